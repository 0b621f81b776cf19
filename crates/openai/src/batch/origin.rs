//! Identifies the inputs of an answer by two hashes in the answer: `request_id`, of everything the call contains, and
//! `system_fingerprint`, of the model and the formats of keys, values and states. `--resume` keeps only answers with
//! matching hashes.

use std::path::Path;

use serde_json::json;

use super::input::Call;
use crate::protocol::Endpoint;
use offshoot_backend::{KvDtype, StateDtype};
use offshoot_core::error::Result;
use offshoot_model::WeightChoice;
use offshoot_model::hashes::hash_of_folder;

pub struct AnswerOrigin {
    /// "fp_0c1f…".
    pub system_fingerprint: String,
    /// Seed of calls without one.
    seed: u64,
}

impl AnswerOrigin {
    pub fn new(model: &Path, formats: CacheFormats, weights: WeightChoice, seed: u64) -> Result<Self> {
        Ok(AnswerOrigin { system_fingerprint: system_fingerprint(model, formats, weights)?, seed })
    }

    /// Equal for calls with the same content and seed, so that equal jobs write equal answers. "own" tells answers from
    /// those of versions in which a seed of the call's own depended on its id.
    pub fn request_id(&self, call: &Call) -> String {
        let endpoint = match call.endpoint {
            Endpoint::Completions => "completions",
            Endpoint::Chat => "chat",
        };
        let is_seeded = call.body.get("seed").is_some_and(|seed| !seed.is_null());
        let seed = if is_seeded { json!("own") } else { json!(self.seed) };
        name_of("req_", &json!([call.custom_id, endpoint, call.body, seed]).to_string())
    }
}

/// Storage formats of what a model computes of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFormats {
    /// Keys and values.
    pub kv: KvDtype,
    /// States of delta-rule layers, if the model has some.
    pub states: StateDtype,
}

/// Names the model in `folder`, how its keys, values and states are kept, and what its weights become.
pub fn system_fingerprint(folder: &Path, formats: CacheFormats, weights: WeightChoice) -> Result<String> {
    let mut named = format!("{} {}", hash_of_folder(folder)?, formats.kv);
    if !formats.states.is_f32() {
        named += &format!(" {} states", formats.states);
    }
    if !weights.is_as_stored() {
        named += &format!(" {weights}");
    }
    Ok(name_of("fp_", &named))
}

/// `prefix` and a hash of `from`.
pub fn name_of(prefix: &str, from: &str) -> String {
    format!("{prefix}{}", &blake3::hash(from.as_bytes()).to_hex()[..24])
}
