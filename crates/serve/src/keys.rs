//! API keys: who a request is from. Keys are compared as hashes, in constant time, each request with every key.

use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_openai::protocol::Refusal;

/// Who sends requests: the index of an API key, or 0 where none are asked for. Clients share the engine fairly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub usize);

/// The environment variable with API keys, separated by commas.
pub const VARIABLE: &str = "OFFSHOOT_API_KEYS";

/// The keys that requests may have; none: requests need none.
#[derive(Default)]
pub struct ApiKeys {
    hashes: Vec<blake3::Hash>,
}

impl ApiKeys {
    /// The keys in `file`, one per line, or those of the environment.
    pub fn load(file: Option<&Path>) -> Result<ApiKeys> {
        let (text, place) = match file {
            Some(path) => (input::text(path)?, path.display().to_string()),
            None => (std::env::var(VARIABLE).unwrap_or_default(), VARIABLE.to_owned()),
        };
        let keys: Vec<&str> = text.split(['\n', ',']).map(str::trim).filter(|key| !key.is_empty()).collect();
        if file.is_some() && keys.is_empty() {
            return Err(Error::value(place, "an API key on each line", "none"));
        }
        Ok(ApiKeys { hashes: keys.iter().map(|key| blake3::hash(key.as_bytes())).collect() })
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// A name of a client that stays the same when keys are added or moved.
    pub fn owner(&self, client: ClientId) -> String {
        self.hashes.get(client.0).map_or_else(String::new, |hash| hash.to_hex()[..16].to_owned())
    }

    /// Whether there are clients who are not to see each other's texts.
    pub fn are_several(&self) -> bool {
        self.hashes.len() > 1
    }

    /// The client that sent a request, by its key.
    pub fn client(&self, headers: &HeaderMap) -> Result<ClientId, Refusal> {
        if self.is_empty() {
            return Ok(ClientId::default());
        }
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let key = given.and_then(|value| value.strip_prefix(b"Bearer ")).ok_or_else(|| {
            Refusal::unauthorized("expected the header `Authorization: Bearer KEY`, found none of this form")
        })?;
        let hash = blake3::hash(key.trim_ascii());
        // `blake3::Hash` compares in constant time; all are compared.
        let found = self.hashes.iter().enumerate().fold(None, |found, (at, known)| {
            let is_same = *known == hash;
            if is_same { Some(at) } else { found }
        });
        found.map(ClientId).ok_or_else(|| Refusal::unauthorized("the API key is not one of this server's"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_a_client_and_other_keys_are_refused() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "first\n\n second \n").expect("it is writable");
        let keys = ApiKeys::load(Some(file.path())).expect("two keys");
        let client = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().expect("a header"));
            keys.client(&headers).map_err(|refusal| refusal.status())
        };
        assert_eq!(client("Bearer first"), Ok(ClientId(0)));
        assert_eq!(client("Bearer second"), Ok(ClientId(1)));
        for wrong in ["Bearer third", "Bearer firs", "Bearer ", "Basic first", "first"] {
            assert_eq!(client(wrong), Err(401), "{wrong:?}");
        }
        assert_eq!(keys.client(&HeaderMap::new()).map_err(|refusal| refusal.status()), Err(401));
        assert!(ApiKeys::load(Some(Path::new("/no/such/file"))).is_err());
    }
}
