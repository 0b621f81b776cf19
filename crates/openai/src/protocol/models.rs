//! What `/v1/models` and `/v1/models/{name}` answer: the names of the model that is served.

use serde_json::{Value, json};

use super::refusal::Refusal;

/// The model that is served.
#[derive(Clone, Copy, Debug)]
pub struct ServedModel<'a> {
    /// The names that requests may call it.
    pub names: &'a [String],
    /// Since when, in seconds since 1970.
    pub created: u64,
    /// Its context, in tokens (`max_model_len` of vLLM).
    pub context: usize,
}

impl ServedModel<'_> {
    /// All names.
    pub fn list(&self) -> Value {
        let data: Vec<Value> = self.names.iter().map(|name| self.entry(name)).collect();
        json!({ "object": "list", "data": data })
    }

    /// One name.
    pub fn one(&self, name: &str) -> Result<Value, Refusal> {
        match self.names.iter().any(|served| served == name) {
            true => Ok(self.entry(name)),
            false => Err(Refusal::model_not_found(name, self.names)),
        }
    }

    fn entry(&self, name: &str) -> Value {
        json!({
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "offshoot",
            "root": self.names.first(),
            "parent": null,
            "max_model_len": self.context,
        })
    }
}
