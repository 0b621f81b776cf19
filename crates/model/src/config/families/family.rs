//! The supported architectures by name.

use std::fmt;

use offshoot_core::error::Result;

use super::super::fields::Fields;
use super::description::Description;
use super::table::FAMILIES;

/// An architecture of config.json's `model_type`, which `families::table` describes.
#[derive(Clone, Copy)]
pub struct Family(&'static Description);

impl Family {
    /// All that are supported, in the order in which errors list them.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(Self)
    }

    /// The family of a `model_type`.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|family| family.0.name == name || family.0.also.contains(&name))
    }

    /// Reads the family by `model_type`, or else by the first of `architectures`.
    pub fn read(fields: &Fields<'_>) -> Result<Self> {
        if let Some(name) = fields.text("model_type")? {
            return Self::named(name).ok_or_else(|| fields.error("model_type", supported(), format!("\"{name}\"")));
        }
        let architectures = fields.list("architectures")?.unwrap_or_default();
        match architectures.first().and_then(|name| name.as_str()) {
            Some(name) => {
                let plain = |name: &str| name.to_lowercase().replace('_', "").replace("text", "");
                let found = plain(&name.to_lowercase().replace("forcausallm", ""));
                let family = Self::all().find(|family| plain(family.name()) == found);
                family.ok_or_else(|| fields.error("architectures", supported(), format!("\"{name}\"")))
            }
            None => Err(fields.error("model_type", supported(), "nothing")),
        }
    }

    /// Its `model_type`; that of the text model where a wrapper has another.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    pub fn description(self) -> &'static Description {
        self.0
    }

    /// Other values of `model_type` that mean it.
    pub fn other_names(self) -> &'static [&'static str] {
        self.0.also
    }

    /// What of GGUF files llama.cpp calls it; `None`: there are no such files, or another family names them.
    pub fn gguf_architecture(self) -> Option<&'static str> {
        self.0.gguf.architecture
    }

    /// What its layers may have beside attention to keys and values and dense feed-forward blocks.
    pub fn parts(self) -> Vec<&'static str> {
        let Description { latent, experts, recurrent, .. } = self.0;
        let parts = [
            (latent.is_some(), "latent attention"),
            (recurrent.is_some(), "recurrent layers"),
            (experts.is_some(), "experts"),
        ];
        parts.into_iter().filter_map(|(has, part)| has.then_some(part)).collect()
    }

    /// Whether its attention is latent.
    pub fn is_latent(self) -> bool {
        self.0.latent.is_some()
    }

    /// Whether checkpoints may have layers behind the model's that predict further tokens.
    pub fn predicts_further(self) -> bool {
        self.0.predicts_further
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Family {}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `one of llama, mistral, ...`
pub fn supported() -> String {
    let names: Vec<String> = Family::all().map(|family| family.to_string()).collect();
    format!("one of {}", names.join(", "))
}
