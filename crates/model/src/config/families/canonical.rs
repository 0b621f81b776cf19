//! Rewrites a config.json in the words that the readers understand: fields get the names by which they are read, a
//! family's own notation becomes the common one, and what is not written becomes what transformers assumes. Llama,
//! Mistral, Qwen and Phi-1 to 2 write all sizes, which stay required. So do all families with latent attention write
//! the widths of their heads.

use serde_json::{Map, Value};

use offshoot_core::error::Result;

use super::super::fields::{Fields, LARGEST_LAYERS, OwnNames, shown, whole};
use super::super::rope::LayerKind;
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

    /// Sets `layer_types` by the field `own`, which lists the layers with attention; the others have a state. Without
    /// the field none has attention. `usual`: the number of layers where it is not written.
    pub fn list_attention(&mut self, written: &Fields<'_>, own: &'static str, usual: usize) -> Result<()> {
        let layers = written.size("num_hidden_layers", LARGEST_LAYERS)?.unwrap_or(usual);
        let mut kinds = vec![LayerKind::Linear.name(); layers];
        for (ix, number) in written.list(own)?.unwrap_or_default().iter().enumerate() {
            let layer = whole(number).and_then(|number| kinds.get_mut(usize::try_from(number).ok()?));
            let expected = || format!("a layer below num_hidden_layers ({layers})");
            *layer.ok_or_else(|| written.error(&format!("{own}[{ix}]"), expected(), shown(number)))? =
                LayerKind::Full.name();
        }
        self.set(own, "layer_types", kinds);
        Ok(())
    }
}
