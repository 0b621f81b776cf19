//! What requests may call the model: its names, and those of its adapters; and what `/v1/models` and
//! `/v1/models/{name}` answer. Which adapters there are is left to the caller.

use serde_json::{Value, json};

use offshoot_core::ids::AdapterVersion;

use super::refusal::Refusal;

/// What requests may call the model. It may change between two requests, as adapters are loaded and removed.
pub trait ModelNames: Sync {
    /// The adapter that a request with this `model` is sampled with; `None`: the model's own name.
    ///
    /// # Errors
    ///
    /// Neither the model nor an adapter has this name.
    fn adapter_of(&self, model: &str) -> Result<Option<AdapterVersion>, Refusal>;
}

/// Every name is the model's.
#[derive(Clone, Copy, Debug)]
pub struct AnyName;

impl ModelNames for AnyName {
    fn adapter_of(&self, _: &str) -> Result<Option<AdapterVersion>, Refusal> {
        Ok(None)
    }
}

/// An adapter by the name that requests may give as `model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedAdapter {
    pub name: String,
    /// Where it was read: its folder.
    pub root: String,
}

/// The model that is served.
#[derive(Clone, Copy, Debug)]
pub struct ServedModel<'a> {
    /// The names that requests may call it.
    pub names: &'a [String],
    /// Its adapters that are loaded.
    pub adapters: &'a [ServedAdapter],
    /// Since when, in seconds since 1970.
    pub created: u64,
    /// Its context, in tokens (`max_model_len` of vLLM).
    pub context: usize,
}

impl ServedModel<'_> {
    /// All names of each model, then those of its adapters.
    pub fn list<'a>(models: impl IntoIterator<Item = ServedModel<'a>>) -> Value {
        let entries = |model: ServedModel<'a>| -> Vec<Value> {
            let names = model.names.iter().map(|name| model.entry(name));
            names.chain(model.adapters.iter().map(|adapter| model.adapter(adapter))).collect()
        };
        let data: Vec<Value> = models.into_iter().flat_map(entries).collect();
        json!({ "object": "list", "data": data })
    }

    /// One name.
    pub fn one(&self, name: &str) -> Result<Value, Refusal> {
        if self.names.iter().any(|served| served == name) {
            return Ok(self.entry(name));
        }
        let adapter = self.adapters.iter().find(|adapter| adapter.name == name);
        adapter.map(|adapter| self.adapter(adapter)).ok_or_else(|| {
            let adapters = self.adapters.iter().map(|adapter| adapter.name.clone());
            Refusal::model_not_found(name, &self.names.iter().cloned().chain(adapters).collect::<Vec<_>>())
        })
    }

    fn entry(&self, name: &str) -> Value {
        self.card(name, self.names.first().map(String::as_str), None)
    }

    fn adapter(&self, adapter: &ServedAdapter) -> Value {
        self.card(&adapter.name, Some(&adapter.root), self.names.first().map(String::as_str))
    }

    /// `parent`: the model of an adapter.
    fn card(&self, name: &str, root: Option<&str>, parent: Option<&str>) -> Value {
        json!({
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "offshoot",
            "root": root,
            "parent": parent,
            "max_model_len": self.context,
        })
    }
}
