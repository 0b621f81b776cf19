//! API keys: who a request is from, a client or, for the verbs of rollouts, an operator. Keys are compared as hashes,
//! in constant time, each request with every key.

use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_core::setting::{API_KEYS, ROLLOUT, ROLLOUT_KEYS};
use offshoot_openai::protocol::{Refusal, RefusalKind};

/// Who sends requests: the index of an API key, or 0 where none are asked for. Operators come behind the clients.
/// Clients share the engine fairly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub usize);

/// The environment variable with API keys, separated by commas.
pub const VARIABLE: &str = "OFFSHOOT_API_KEYS";
/// The environment variable with operators' keys, separated by commas.
pub const OPERATORS_VARIABLE: &str = "OFFSHOOT_ROLLOUT_KEYS";

/// The keys that requests may have; none: requests need none.
#[derive(Default)]
pub struct ApiKeys {
    clients: Vec<blake3::Hash>,
    /// Keys of those who may pause the engine and change its weights; they may also do what clients may.
    operators: Vec<blake3::Hash>,
}

impl ApiKeys {
    /// The keys in `file`, one per line, or those of the environment. `operators`: where the operators' keys are, if
    /// the server has verbs for rollouts.
    ///
    /// # Errors
    ///
    /// A file cannot be read or has no key; a key is both a client's and an operator's; there are clients' keys, but
    /// none for operators, who would then be anybody with a client's key.
    pub fn load(file: Option<&Path>, operators: Option<Option<&Path>>) -> Result<ApiKeys> {
        let clients = hashes(file, VARIABLE)?;
        let Some(of_operators) = operators else { return Ok(ApiKeys { clients, operators: Vec::new() }) };
        let operators = hashes(of_operators, OPERATORS_VARIABLE)?;
        if operators.is_empty() && !clients.is_empty() {
            let expected = format!("keys of operators beside {API_KEYS} ({ROLLOUT_KEYS}, or {OPERATORS_VARIABLE})");
            return Err(Error::value(ROLLOUT, expected, "none"));
        }
        match operators.iter().any(|operator| clients.contains(operator)) {
            true => Err(Error::value(ROLLOUT_KEYS, "keys that no client has", "one of the API keys")),
            false => Ok(ApiKeys { clients, operators }),
        }
    }

    /// Whether nobody needs a key for samples.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Whether nobody needs a key to pause the engine or to change its weights, where there are verbs for that.
    pub fn have_no_operator(&self) -> bool {
        self.operators.is_empty()
    }

    /// A name of a client that stays the same when keys are added or moved.
    pub fn owner(&self, client: ClientId) -> String {
        let operator = || self.operators.get(client.0.checked_sub(self.first_operator())?);
        let hash = self.clients.get(client.0).or_else(operator);
        hash.map_or_else(String::new, |hash| hash.to_hex()[..16].to_owned())
    }

    /// Whether there are clients who are not to see each other's texts.
    pub fn are_several(&self) -> bool {
        self.first_operator() + self.operators.len() > 1
    }

    /// Number of the first operator: behind the clients, or behind the one client that everybody without a key is.
    fn first_operator(&self) -> usize {
        self.clients.len().max(1)
    }

    /// The client or operator that sent a request for samples, by its key.
    pub fn client(&self, headers: &HeaderMap) -> Result<ClientId, Refusal> {
        let operator = self.operator_of(headers);
        if self.is_empty() || operator.is_some() {
            return Ok(operator.unwrap_or_default());
        }
        found(&self.clients, key(headers)?).map(ClientId).ok_or_else(unknown)
    }

    /// The operator that sent a request for one of the verbs of rollouts, by its key.
    pub fn operator(&self, headers: &HeaderMap) -> Result<ClientId, Refusal> {
        if self.have_no_operator() {
            return Ok(ClientId::default());
        }
        let key = key(headers)?;
        match (self.operator_of(headers), found(&self.clients, key)) {
            (Some(operator), _) => Ok(operator),
            (None, Some(_)) => {
                let what = "this path needs the key of an operator, found that of a client";
                Err(Refusal::of_kind(RefusalKind::Forbidden, "operators_only", what))
            }
            (None, None) => Err(unknown()),
        }
    }

    fn operator_of(&self, headers: &HeaderMap) -> Option<ClientId> {
        let at = found(&self.operators, key(headers).ok()?)?;
        Some(ClientId(self.first_operator() + at))
    }
}

/// The hashes of the keys in `file`, or in the environment.
fn hashes(file: Option<&Path>, variable: &str) -> Result<Vec<blake3::Hash>> {
    let (text, place) = match file {
        Some(path) => (input::text(path)?, path.display().to_string()),
        None => (std::env::var(variable).unwrap_or_default(), variable.to_owned()),
    };
    let keys: Vec<&str> = text.split(['\n', ',']).map(str::trim).filter(|key| !key.is_empty()).collect();
    if file.is_some() && keys.is_empty() {
        return Err(Error::value(place, "an API key on each line", "none"));
    }
    Ok(keys.iter().map(|key| blake3::hash(key.as_bytes())).collect())
}

/// The hash of a request's key.
fn key(headers: &HeaderMap) -> Result<blake3::Hash, Refusal> {
    let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
    let key = given.and_then(|value| value.strip_prefix(b"Bearer ")).ok_or_else(|| {
        Refusal::unauthorized("expected the header `Authorization: Bearer KEY`, found none of this form")
    })?;
    Ok(blake3::hash(key.trim_ascii()))
}

/// The index of a key. `blake3::Hash` compares in constant time; all are compared.
fn found(known: &[blake3::Hash], key: blake3::Hash) -> Option<usize> {
    known.iter().enumerate().fold(None, |found, (at, known)| {
        let is_same = *known == key;
        if is_same { Some(at) } else { found }
    })
}

fn unknown() -> Refusal {
    Refusal::unauthorized("the API key is not one of this server's")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_a_client_and_other_keys_are_refused() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "first\n\n second \n").expect("it is writable");
        let keys = ApiKeys::load(Some(file.path()), None).expect("two keys");
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
        assert!(ApiKeys::load(Some(Path::new("/no/such/file")), None).is_err());
    }

    fn file(keys: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), keys).expect("it is writable");
        file
    }

    fn with_key(key: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {key}").parse().expect("a header"));
        headers
    }

    #[test]
    fn operators_may_what_clients_may_and_clients_not_what_operators_may() {
        let (clients, operators) = (file("first\nsecond"), file("root"));
        let keys = ApiKeys::load(Some(clients.path()), Some(Some(operators.path()))).expect("three keys");
        let status = |found: Result<ClientId, Refusal>| found.map_err(|refusal| refusal.status());
        assert_eq!(status(keys.client(&with_key("second"))), Ok(ClientId(1)));
        assert_eq!(status(keys.client(&with_key("root"))), Ok(ClientId(2)));
        assert_eq!(status(keys.operator(&with_key("root"))), Ok(ClientId(2)));
        assert_eq!(status(keys.operator(&with_key("first"))), Err(403));
        assert_eq!(status(keys.operator(&with_key("third"))), Err(401));
        assert_eq!(status(keys.operator(&HeaderMap::new())), Err(401));
        let owners = [0, 1, 2, 3].map(|client| keys.owner(ClientId(client)));
        assert_eq!(owners[2], blake3::hash(b"root").to_hex()[..16]);
        assert!(owners[3].is_empty() && owners[0] != owners[2]);

        // Without clients' keys, samples are anybody's and the verbs the operator's.
        let keys = ApiKeys::load(None, Some(Some(operators.path()))).expect("one key");
        assert_eq!(status(keys.client(&HeaderMap::new())), Ok(ClientId(0)));
        assert_eq!(status(keys.client(&with_key("root"))), Ok(ClientId(1)));
        assert_eq!(status(keys.operator(&HeaderMap::new())), Err(401));
        assert!(keys.owner(ClientId(0)).is_empty() && keys.are_several());
    }

    #[test]
    fn verbs_beside_api_keys_need_keys_of_their_own() {
        let clients = file("first");
        let why = |operators| match ApiKeys::load(Some(clients.path()), operators) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        assert!(why(Some(None)).contains(OPERATORS_VARIABLE), "{}", why(Some(None)));
        assert!(why(Some(Some(clients.path()))).contains("no client has"));
        assert!(why(None).is_empty());
    }
}
