//! A [`FinishReason`] as two fields of a record: `finish`, a word, and `stop`, the string or token that it names. For
//! `#[serde(flatten, with = …)]`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::FinishReason;
use offshoot_core::ids::TokenId;

#[derive(Serialize, Deserialize)]
#[serde(remote = "FinishReason", tag = "finish", content = "stop", rename_all = "snake_case")]
enum FinishFields {
    StopString(String),
    StopToken(TokenId),
    EndOfText,
    Length,
    ContextFull,
    LowConfidence,
    DeadEnd,
    FormLimit,
    Cancelled,
    OutOfTime,
    Aborted,
    Given,
    Failed,
}

pub fn serialize<S: Serializer>(reason: &FinishReason, serializer: S) -> Result<S::Ok, S::Error> {
    FinishFields::serialize(reason, serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FinishReason, D::Error> {
    of(&Map::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// The reason in a record with these fields.
pub fn of(record: &Map<String, Value>) -> serde_json::Result<FinishReason> {
    FinishFields::deserialize(&Value::Object(record.clone()))
}

/// The fields of a record that may have no reason: its `finish` is null.
pub mod optional {
    use super::*;

    #[derive(Serialize)]
    struct Absent {
        finish: (),
    }

    pub fn serialize<S: Serializer>(reason: &Option<FinishReason>, serializer: S) -> Result<S::Ok, S::Error> {
        match reason {
            Some(reason) => super::serialize(reason, serializer),
            None => Absent { finish: () }.serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FinishReason>, D::Error> {
        let record = Map::deserialize(deserializer)?;
        match record.get("finish") {
            None | Some(Value::Null) => Ok(None),
            Some(_) => of(&record).map(Some).map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        tokens: usize,
        #[serde(flatten, with = "super")]
        finish: FinishReason,
        logprob: f64,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Node {
        #[serde(flatten, with = "super::optional")]
        finish: Option<FinishReason>,
        tokens: usize,
    }

    fn record(finish: FinishReason) -> Record {
        Record { tokens: 3, finish, logprob: -0.1 }
    }

    #[test]
    fn finish_is_a_word() {
        let texts = [
            (FinishReason::Length, r#"{"tokens":3,"finish":"length","logprob":-0.1}"#),
            (
                FinishReason::StopString("\n".into()),
                r#"{"tokens":3,"finish":"stop_string","stop":"\n","logprob":-0.1}"#,
            ),
            (FinishReason::LowConfidence, r#"{"tokens":3,"finish":"low_confidence","logprob":-0.1}"#),
            (FinishReason::DeadEnd, r#"{"tokens":3,"finish":"dead_end","logprob":-0.1}"#),
            (FinishReason::FormLimit, r#"{"tokens":3,"finish":"form_limit","logprob":-0.1}"#),
            (FinishReason::StopToken(TokenId(7)), r#"{"tokens":3,"finish":"stop_token","stop":7,"logprob":-0.1}"#),
        ];
        for (reason, text) in texts {
            assert_eq!(serde_json::to_string(&record(reason.clone())).unwrap(), text);
            assert_eq!(serde_json::from_str::<Record>(text).unwrap(), record(reason));
        }
        assert!(serde_json::from_str::<Record>(r#"{"tokens":3,"finish":"bored","logprob":-0.1}"#).is_err());
        assert!(serde_json::from_str::<Record>(r#"{"tokens":3,"logprob":-0.1}"#).is_err());
    }

    #[test]
    fn a_record_may_have_no_reason() {
        let node = Node { finish: None, tokens: 0 };
        let text = r#"{"finish":null,"tokens":0}"#;
        assert_eq!(serde_json::to_string(&node).unwrap(), text);
        assert_eq!(serde_json::from_str::<Node>(text).unwrap(), node);
        let ended = Node { finish: Some(FinishReason::EndOfText), tokens: 2 };
        assert_eq!(serde_json::from_str::<Node>(r#"{"finish":"end_of_text","tokens":2}"#).unwrap(), ended);
    }
}
