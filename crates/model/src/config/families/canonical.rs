//! Rewrites a config.json in the words that the readers understand: fields get the names by which they are read, a
//! family's own notation becomes the common one, and what is not written becomes what transformers assumes. Llama,
//! Mistral, Qwen and Phi-1 to 2 write all sizes, which stay required. So do all families with latent attention write
//! the widths of their heads.

use serde_json::{Map, Value};

use offshoot_core::error::Result;

use super::super::fields::{Fields, OwnNames};
use super::description::Description;

/// The fields of a config.json, as they are read.
pub struct Canonical {
    pub object: Map<String, Value>,
    /// What the file calls those that have other names there.
    pub own: OwnNames,
}

impl Canonical {
    /// The fields of `written`, with those of `object` beside them, as the family's readers understand them. A written
    /// `null` stays.
    pub fn of(family: &Description, written: &Fields<'_>, object: Map<String, Value>) -> Result<Self> {
        let mut canonical = Self { object, own: OwnNames::new() };
        for &(own, name) in family.renamed {
            // Where both are written, the family's own counts.
            if let Some(value) = canonical.object.remove(own) {
                canonical.set(own, name, value);
            }
        }
        if let Some(adapt) = family.adapt {
            adapt(written, &mut canonical)?;
        }
        let Value::Object(defaults) = (family.defaults)() else { unreachable!("defaults are objects") };
        for (name, value) in defaults {
            // A rope that is written as `null` is the family's own.
            if name == "rope_parameters" && canonical.object.get(&name).is_some_and(Value::is_null) {
                canonical.object.remove(&name);
            }
            canonical.object.entry(name).or_insert(value);
        }
        Ok(canonical)
    }

    /// Sets the field that is read as `name` and that the file calls `own`.
    pub fn set(&mut self, own: &'static str, name: &'static str, value: impl Into<Value>) {
        self.object.insert(name.to_owned(), value.into());
        self.own.insert(name, own);
    }
}
