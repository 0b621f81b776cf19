//! What an answer was drawn from, as two names that stand in it: `request_id`, of all that its call asks, and `system_fingerprint`, of
//! the model and what keys and values are rounded to. `--resume` keeps answers of the same names alone.

use std::path::Path;

use serde_json::{Value, json};

use super::input::Call;
use crate::backend::KvDtype;
use crate::error::Result;
use crate::hashes::hash_of_folder;
use crate::openai::protocol::Endpoint;

pub struct Origin {
    /// "fp_0c1f…".
    pub system_fingerprint: String,
    /// Of calls without one.
    seed: u64,
}

impl Origin {
    pub fn new(model: &Path, kv: KvDtype, seed: u64) -> Result<Self> {
        let from = format!("{} {kv}", hash_of_folder(model)?);
        Ok(Origin { system_fingerprint: name_of("fp_", &from), seed })
    }

    /// The same for calls that ask the same with the same uniforms, so that equal jobs leave equal answers.
    pub fn request_id(&self, call: &Call) -> String {
        let endpoint = match call.endpoint {
            Endpoint::Completions => "completions",
            Endpoint::Chat => "chat",
        };
        let seed = if call.body.get("seed").is_none_or(Value::is_null) { Some(self.seed) } else { None };
        name_of("req_", &json!([call.custom_id, endpoint, call.body, seed]).to_string())
    }
}

/// A name for whatever `from` tells apart.
pub fn name_of(prefix: &str, from: &str) -> String {
    format!("{prefix}{}", &blake3::hash(from.as_bytes()).to_hex()[..24])
}
