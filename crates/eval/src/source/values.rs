//! Types of values that several keys of a task file have, with their schemas. Their documentation is not in their
//! schemas: it would be said at each key beside the key's own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::schema::PATH;

// A path, relative to the task file's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, extend("format" = PATH, "x-expected" = "a path, relative to the task file"))]
pub struct TaskPath(pub String);

// A string, or a list of strings.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(from = "OneOrMany")]
#[schemars(inline)]
pub(crate) struct Texts(pub Vec<String>);

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline, extend("x-expected" = "a string or a list of strings"))]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for Texts {
    fn from(texts: OneOrMany) -> Self {
        match texts {
            OneOrMany::One(text) => Self(vec![text]),
            OneOrMany::Many(texts) => Self(texts),
        }
    }
}

// The keys and values of an object in the file's order.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Pairs<T>(#[schemars(with = "BTreeMap<String, T>")] pub Vec<(String, T)>);

impl<'de, T: for<'v> Deserialize<'v>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pair = |(key, value): (String, Value)| Ok((key, T::deserialize(value).map_err(serde::de::Error::custom)?));
        Map::deserialize(deserializer)?.into_iter().map(pair).collect::<Result<_, _>>().map(Pairs)
    }
}
