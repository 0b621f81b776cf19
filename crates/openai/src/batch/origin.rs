//! Identifies the inputs of an answer by two hashes in the answer: `request_id`, of everything the call contains, and
//! `system_fingerprint`, of the model and the formats of keys, values and states. `--resume` keeps only answers with
//! matching hashes.

use serde_json::json;

use super::input::Call;
use crate::protocol::{BatchEndpoint, Endpoint};
use offshoot_core::error::Result;
use offshoot_launch::EngineBudget;
use offshoot_model::ModelFolder;
use offshoot_model::hashes::hash_of_folder;

#[derive(Clone)]
pub struct AnswerOrigin {
    /// "fp_0c1f…".
    pub system_fingerprint: String,
    /// Seed of calls without one.
    pub seed: u64,
}

impl AnswerOrigin {
    /// Of answers by the model in `folder`, whose keys, values, states and weights are stored as `budget` says.
    pub fn new(folder: &ModelFolder, budget: &EngineBudget, seed: u64) -> Result<Self> {
        let mut named = format!("{} {}", hash_of_folder(&folder.path)?, budget.kv);
        let (states, weights) = (folder.config.state_dtype(budget.states), folder.config.effect_of(budget.weights));
        if !states.is_f32() {
            named += &format!(" {states} states");
        }
        if !weights.is_as_stored() {
            named += &format!(" {weights}");
        }
        Ok(AnswerOrigin { system_fingerprint: name_of("fp_", &named), seed })
    }

    /// Equal for calls with the same content and seed, so that equal jobs write equal answers. "own" tells answers from
    /// those of versions in which a seed of the call's own depended on its id.
    pub fn request_id(&self, call: &Call) -> String {
        let endpoint = match call.endpoint {
            BatchEndpoint::Samples(Endpoint::Completions) => "completions",
            BatchEndpoint::Samples(Endpoint::Chat) => "chat",
            BatchEndpoint::Responses => "responses",
        };
        let is_seeded = call.body.get("seed").is_some_and(|seed| !seed.is_null());
        let seed = if is_seeded { json!("own") } else { json!(self.seed) };
        name_of("req_", &json!([call.custom_id, endpoint, call.body, seed]).to_string())
    }
}

/// `prefix` and a hash of `from`.
pub fn name_of(prefix: &str, from: &str) -> String {
    format!("{prefix}{}", &blake3::hash(from.as_bytes()).to_hex()[..24])
}
