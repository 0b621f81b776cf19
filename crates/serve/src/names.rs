//! What requests may call the model: its names, those that trainers have for it, and the names of the adapters that the
//! engine holds. Loads and removes adapters by name; which version of one a name means, and what runs meanwhile, is the
//! engine's.

use std::sync::{Mutex, PoisonError};

use offshoot_core::error::{Error, Result};
use offshoot_core::ids::AdapterVersion;
use offshoot_engine::{AdapterSource, EngineHandle, LoadedAdapter};
use offshoot_openai::protocol::{ModelNames, Refusal, ServedAdapter};

/// The names of a server's model and of its adapters.
pub struct ServedNames {
    /// Those that lists show; the first is that of requests without one.
    model: Vec<String>,
    /// What trainers call the model beside these: its folder's path.
    paths: Vec<String>,
    /// Those of the model that scores texts.
    scorer: Vec<String>,
    engine: EngineHandle,
    /// Held while an adapter is loaded, so that of two that load one name at once the second finds it.
    loading: Mutex<()>,
}

impl ServedNames {
    /// `model`: at least one name. `scorer`: those of the model that scores texts.
    pub fn new(model: Vec<String>, paths: Vec<String>, scorer: Vec<String>, engine: EngineHandle) -> Self {
        ServedNames { model, paths, scorer, engine, loading: Mutex::default() }
    }

    /// The model's names that lists show; the first is that of requests without one.
    pub fn of_model(&self) -> &[String] {
        &self.model
    }

    /// Whether requests may call the model so.
    fn is_model(&self, name: &str) -> bool {
        self.model.iter().chain(&self.paths).any(|known| known == name)
    }

    /// The adapters that requests may name.
    pub fn adapters(&self) -> Vec<ServedAdapter> {
        let adapters = self.engine.adapters().into_iter();
        adapters.map(|adapter| ServedAdapter { root: root(&adapter), name: adapter.name }).collect()
    }

    /// Loads an adapter under a name; `replaces`: in place of one that has it.
    ///
    /// # Errors
    ///
    /// The model or, unless it `replaces`, an adapter has the name, or the adapter does not fit the engine: what was
    /// loaded before stays.
    pub fn load(&self, name: &str, source: AdapterSource, replaces: bool) -> Result<LoadedAdapter> {
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_model(name) || self.scorer.iter().any(|scorer| scorer == name) {
            return Err(Error::value("lora_name", "a name that the model does not have", format!("{name:?}")));
        }
        if !replaces && self.engine.adapters().iter().any(|adapter| adapter.name == name) {
            let expected = "a name that no adapter has; `load_inplace` replaces one";
            return Err(Error::value("lora_name", expected, format!("{name:?}, which is loaded already")));
        }
        self.engine.load_adapter(name, source)
    }

    /// Removes an adapter: requests may not name it any more. False if there is none of this name.
    pub fn unload(&self, name: &str) -> Result<bool> {
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.engine.adapters().iter().any(|adapter| adapter.name == name) {
            return Ok(false);
        }
        self.engine.unload_adapter(name).map(|()| true)
    }
}

/// Where an adapter was read.
pub fn root(adapter: &LoadedAdapter) -> String {
    adapter.folder.as_ref().map_or_else(|| "memory".to_owned(), |folder| folder.display().to_string())
}

impl ModelNames for ServedNames {
    fn adapter_of(&self, model: &str) -> Result<Option<AdapterVersion>, Refusal> {
        if self.is_model(model) {
            return Ok(None);
        }
        let adapters = self.engine.adapters();
        match adapters.iter().find(|adapter| adapter.name == model) {
            Some(adapter) => Ok(Some(adapter.version)),
            None if self.scorer.iter().any(|scorer| scorer == model) => {
                let expected = format!("a model that generates: {}", self.model.join(" or "));
                let found = format!("{model:?}, which reads texts: ask /pooling, /score or /v1/embeddings");
                Err(Refusal::value("model", &expected, &found))
            }
            None => {
                let names = self.model.iter().chain(&self.paths).cloned();
                let names: Vec<String> = names.chain(adapters.into_iter().map(|adapter| adapter.name)).collect();
                Err(Refusal::model_not_found(model, &names))
            }
        }
    }
}

/// What requests may call the model that scores texts, or makes vectors of them.
pub struct ScorerNames<'a> {
    /// Its names.
    pub own: &'a [String],
    /// The names of the model beside it.
    pub generator: Option<&'a ServedNames>,
}

impl ModelNames for ScorerNames<'_> {
    fn adapter_of(&self, model: &str) -> Result<Option<AdapterVersion>, Refusal> {
        if self.own.iter().any(|name| name == model) {
            return Ok(None);
        }
        if self.generator.is_some_and(|generator| generator.adapter_of(model).is_ok()) {
            let expected = format!("a model that reads texts: {}", self.own.join(" or "));
            return Err(Refusal::value("model", &expected, &format!("{model:?}, which generates")));
        }
        Err(Refusal::model_not_found(model, self.own))
    }
}
