//! Where a server's judge is, and how it is asked, as data.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::body::check_different;
use super::client::is_local;
use crate::question::WantedAnswer;
use offshoot_core::error::{Error, Result};

/// A server of the OpenAI protocol, and how it is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// The address of its version 1, such as `https://host/v1`.
    pub url: String,
    /// The model's name; `None`: the only one that the server lists.
    pub model: Option<String>,
    /// What the server knows its client by.
    pub key: Option<JudgeKey>,
    /// How many requests are sent at once, at least 1.
    pub requests: usize,
    /// How long the answer to a request may take, above 0.
    pub timeout: Duration,
    /// How often a request is sent again that fails in a way that may pass.
    pub retries: u32,
    /// Fields of each request's body in addition to its own, or in their place; null takes a field away.
    pub request: Map<String, Value>,
}

impl ServerOptions {
    /// Checks the fields.
    ///
    /// # Errors
    ///
    /// Names the first one out of range.
    pub fn check(&self) -> Result<()> {
        let host = ["http://", "https://"].into_iter().find_map(|scheme| self.url.strip_prefix(scheme));
        let is_url = host.is_some_and(|host| {
            let is_plain = |c: char| c.is_ascii_graphic() && !"?#@\\".contains(c);
            host.chars().all(is_plain) && !host.is_empty() && !host.starts_with(['/', ':']) && has_sound_port(host)
        });
        if !is_url {
            // An address may hold a password.
            let found = if self.url.contains('@') { "one with a user or a password" } else { &*self.url };
            let expected = "an address such as https://host/v1, without a query, user or password";
            return Err(Error::value("address of the judge's server", expected, found));
        }
        if self.requests == 0 {
            return Err(Error::value("requests to the judge at once", "a number from 1 up", "0"));
        }
        if self.timeout.is_zero() {
            return Err(Error::value("time for the judge's answer", "more than 0 seconds", "0"));
        }
        Ok(())
    }

    /// Refuses answers that a server's tokens cannot tell apart: words of which one begins another one.
    ///
    /// # Errors
    ///
    /// Names the two words.
    pub fn check_answer(&self, answer: &WantedAnswer) -> Result<()> {
        match answer {
            WantedAnswer::Words(words) => check_different(words),
            WantedAnswer::Json { .. } => Ok(()),
        }
    }

    /// Whether the key can be read on its way to the server.
    pub(crate) fn shows_key(&self) -> bool {
        self.key.is_some() && self.url.starts_with("http://") && !is_local(&self.url)
    }

    /// The address of a part of the server, such as `chat/completions`.
    pub(crate) fn address(&self, part: &str) -> String {
        format!("{}/{part}", self.url.trim_end_matches('/'))
    }
}

/// Whether the host of an address without its scheme has a port that exists, or none.
fn has_sound_port(address: &str) -> bool {
    let host = address.split('/').next().unwrap_or_default();
    // The colons of an address of version 6 stand in brackets.
    let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    behind.split_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// What a server knows its client by. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct JudgeKey(String);

impl JudgeKey {
    /// The key in this text, without white space around it.
    ///
    /// # Errors
    ///
    /// There is none, or it has characters that a header of HTTP cannot have.
    pub fn new(text: &str) -> Result<JudgeKey> {
        let key = text.trim();
        let expected = "one word of visible ASCII characters";
        let refused = |found: &str| Err(Error::value("key of the judge's server", expected, found));
        match key.chars().all(|c| c.is_ascii_graphic()) {
            true if key.is_empty() => refused("an empty text"),
            true => Ok(JudgeKey(key.to_owned())),
            false => refused("others, which are not shown"),
        }
    }

    /// The header that sends it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// `text` with the key taken out, should a server repeat it; so is a beginning of it, where the text was cut.
    pub(crate) fn hidden_in(&self, text: &str) -> String {
        /// A beginning of so many characters tells something.
        const TELLING: usize = 8;
        let beginnings = (TELLING.min(self.0.len())..=self.0.len()).rev();
        beginnings.fold(text.to_owned(), |text, length| text.replace(&self.0[..length], "…"))
    }
}

impl fmt::Debug for JudgeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JudgeKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> ServerOptions {
        ServerOptions {
            url: url.to_owned(),
            model: None,
            key: Some(JudgeKey::new("sk-secret\n").unwrap()),
            requests: 1,
            timeout: Duration::from_secs(1),
            retries: 0,
            request: Map::new(),
        }
    }

    #[test]
    fn addresses_are_checked() {
        for url in ["https://host/v1", "http://127.0.0.1:8000/v1/", "http://[::1]:80"] {
            options(url).check().unwrap();
        }
        assert_eq!(options("http://host/v1/").address("models"), "http://host/v1/models");
        for url in [
            "",
            "host/v1",
            "ftp://host",
            "https://",
            "https:///v1",
            "https://a b",
            "https://host/v1?a=b",
            "http://host:99999/v1",
            "http://h:x",
            "http://[::1]:0",
        ] {
            let error = options(url).check().unwrap_err().to_string();
            assert!(error.contains("address of the judge's server") && error.contains(url), "{error}");
        }
        let error = options("https://me:sk-secret@host/v1").check().unwrap_err().to_string();
        assert!(!error.contains("sk-secret"), "{error}");
        let none = ServerOptions { requests: 0, ..options("http://host") };
        assert!(none.check().unwrap_err().to_string().contains("at once"));
        let none = ServerOptions { timeout: Duration::ZERO, ..options("http://host") };
        assert!(none.check().unwrap_err().to_string().contains("seconds"));
    }

    #[test]
    fn a_key_that_can_be_read_on_its_way_is_known() {
        for (url, shows) in [("http://host/v1", true), ("https://host/v1", false), ("http://localhost:80", false)] {
            assert_eq!(options(url).shows_key(), shows, "{url}");
        }
        assert!(!ServerOptions { key: None, ..options("http://host/v1") }.shows_key());
    }

    #[test]
    fn a_key_is_shown_nowhere() {
        let options = options("https://host/v1");
        assert!(!format!("{options:?}").contains("sk-secret"));
        let key = options.key.unwrap();
        assert_eq!(key.header(), "Bearer sk-secret");
        assert_eq!(key.hidden_in("no user has sk-secret"), "no user has …");
        assert_eq!(key.hidden_in("no user has sk-secre… (999 characters)"), "no user has …… (999 characters)");
        for (text, found) in [(" \n", "an empty text"), ("sk-a\r\nsk-b", "not shown"), ("sk-ä", "not shown")] {
            let error = JudgeKey::new(text).unwrap_err().to_string();
            assert!(error.contains(found) && !error.contains("sk-"), "{error}");
        }
    }
}
