//! The forms of what verbs are sent and answer: queries, bodies that may be missing, and one-line answers.

use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;
use serde_json::{Map, Value};

use offshoot_openai::protocol::{BodyFields, Refusal};

use crate::server::Server;

/// The query of a request: names and values in its order.
pub type Pairs = axum::extract::Query<Vec<(String, String)>>;

/// The fields of a query that were not read yet.
pub struct QueryFields(Vec<(String, String)>);

impl QueryFields {
    pub fn new(pairs: Pairs) -> Self {
        QueryFields(pairs.0)
    }

    /// All values of a field, in order.
    pub fn all(&mut self, key: &str) -> Vec<String> {
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| name == key);
        self.0 = left;
        let taken: Vec<(String, String)> = taken;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    /// A field's last value.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.all(key).pop()
    }

    pub fn flag(&mut self, key: &str) -> Result<Option<bool>, Refusal> {
        let read = |value: String| match &*value.to_ascii_lowercase() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(Refusal::value(key, "true or false", &format!("{value:?}"))),
        };
        self.text(key).map(read).transpose()
    }

    /// One of these words.
    pub fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, Refusal> {
        let Some(found) = self.text(key) else { return Ok(None) };
        let word = words.iter().find(|(word, _)| *word == found).map(|&(_, of)| of);
        let expected = || words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        word.map(Some).ok_or_else(|| Refusal::value(key, &expected(), &format!("{found:?}")))
    }

    /// Refuses any field that was not read.
    pub fn finish(self) -> Result<(), Refusal> {
        match self.0.first() {
            Some((key, _)) => Err(Refusal::unknown(key)),
            None => Ok(()),
        }
    }
}

/// The object in a body, which may be empty.
///
/// # Errors
///
/// There is no body, or no object in it.
pub async fn object(server: &Arc<Server>, headers: &HeaderMap, body: Body) -> Result<Map<String, Value>, Refusal> {
    read(server, headers, body).await?.ok_or_else(|| {
        let what = "expected a JSON object in the body, `{}` at least, found no body";
        Refusal::new("invalid_body", what)
    })
}

/// The object in a body; an empty one without a body.
pub async fn optional_object(
    server: &Arc<Server>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Map<String, Value>, Refusal> {
    Ok(read(server, headers, body).await?.unwrap_or_default())
}

async fn read(server: &Arc<Server>, headers: &HeaderMap, body: Body) -> Result<Option<Map<String, Value>>, Refusal> {
    let body = server.receive(headers, body).await?;
    (!body.is_empty()).then(|| body.parse()).transpose()
}

/// The fields of the [`object`] in a body.
pub async fn fields(server: &Arc<Server>, headers: &HeaderMap, body: Body) -> Result<BodyFields, Refusal> {
    Ok(BodyFields::new(&object(server, headers, body).await?))
}

/// The fields of the [`optional_object`] in a body.
pub async fn optional_fields(server: &Arc<Server>, headers: &HeaderMap, body: Body) -> Result<BodyFields, Refusal> {
    Ok(BodyFields::new(&optional_object(server, headers, body).await?))
}

/// Runs `work`, which waits for the engine, on a thread of its own.
pub async fn waiting<T: Send + 'static>(
    server: &Arc<Server>,
    work: impl FnOnce(&Server) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let server = server.clone();
    let panicked = |_| Refusal::new("internal_error", "a thread of the server has panicked");
    tokio::task::spawn_blocking(move || work(&server)).await.unwrap_or_else(|error| Err(panicked(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_queries_are_read_by_name_and_refused_if_unknown() {
        let pairs = [("tags", "weights"), ("tags", "kv_cache"), ("clear", "True"), ("mode", "keep"), ("x", "1")];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let mut query = QueryFields::new(axum::extract::Query(pairs));
        assert_eq!(query.all("tags"), ["weights", "kv_cache"]);
        assert_eq!(query.flag("clear").expect("a flag"), Some(true));
        assert_eq!(query.flag("other").expect("none"), None);
        assert_eq!(query.word("mode", &[("keep", 7)]).expect("a word"), Some(7));
        let refused = query.finish().expect_err("one is left");
        assert_eq!((refused.code, refused.param.as_deref()), ("unknown_parameter", Some("x")));
        let wrong = |key: &str| QueryFields::new(axum::extract::Query(vec![(key.to_owned(), "maybe".to_owned())]));
        assert!(wrong("clear").flag("clear").is_err());
        assert!(wrong("mode").word("mode", &[("keep", 7)]).is_err());
    }
}
