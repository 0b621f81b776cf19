//! The supported architectures: `description` says what a family is made of, `table` has one description for each. The
//! files beside them read a config.json by any of these; the result is plain data in `ModelConfig`, and no other file
//! depends on the family. `keys` refuses fields that nobody reads, `canonical` gives a config the common words,
//! `classes` tells generators from scorers and refuses other models, `layers` reads what differs from layer to layer,
//! `latent` latent attention, `experts` the mixtures, `recurrent` layers with a state, `tokens` special tokens.

mod beside;
mod canonical;
mod classes;
mod description;
mod experts;
mod family;
mod keys;
mod latent;
mod layers;
mod recurrent;
mod table;
mod tokens;

use std::sync::Arc;

use serde_json::Value;

use offshoot_backend::Dtype;
use offshoot_core::error::Result;

use super::fields::{Fields, LARGEST_CONTEXT, LARGEST_LAYERS, LARGEST_VOCAB, LARGEST_WIDTH, UsedKeys, shown};
use super::model::{EmbedScale, ModelConfig, PerLayerInputs};
use super::modules::{ExpertForm, Modules, StackedForm};
use super::output::OutputHead;
use super::quantisation::{self, Quantisation};
use canonical::Canonical;
pub use classes::ModelRole;
pub(super) use classes::role;
use description::{Description, Factor, KeyRule};
pub(super) use description::{FileWindows, GgufRule, GroupRule};
pub use family::Family;
use family::{refuse_known, supported};
pub use keys::{Why, ignored};
use layers::softcap;
use table::{GEMMA4_UNIFIED, KIMI_K2};
pub(super) use tokens::read_special_tokens;

/// A wrapper around a text model, whose config nests.
struct Wrapper {
    /// Its `model_type`.
    name: &'static str,
    /// The `model_type` of the text model where the nested config does not name it.
    text: &'static str,
    /// Its `tie_word_embeddings` where it does not say; `None`: the text model's, which is tied if either says so.
    tied: Option<bool>,
}

const fn wrapper(name: &'static str, text: &'static str, tied: Option<bool>) -> Wrapper {
    Wrapper { name, text, tied }
}

const WRAPPERS: [Wrapper; 15] = [
    wrapper("gemma3", "gemma3_text", Some(true)),
    wrapper("gemma4", "gemma4_text", Some(true)),
    wrapper("gemma4_unified", GEMMA4_UNIFIED, Some(true)),
    wrapper("mistral3", "mistral", Some(true)),
    wrapper("qwen3_5", "qwen3_5_text", Some(false)),
    wrapper("qwen3_5_moe", "qwen3_5_moe_text", Some(false)),
    wrapper("llava", "llama", None),
    wrapper("kimi_k25", KIMI_K2, Some(true)),
    wrapper("qwen2_vl", "qwen2_vl_text", None),
    wrapper("qwen2_5_vl", "qwen2_5_vl_text", None),
    wrapper("qwen3_vl", "qwen3_vl_text", Some(false)),
    wrapper("qwen3_vl_moe", "qwen3_vl_moe_text", Some(false)),
    wrapper("glm4v", "glm4v_text", None),
    wrapper("glm4v_moe", "glm4v_moe_text", None),
    wrapper("internvl", "qwen2", Some(true)),
];

/// Wrappers whose text model is a supported family, and does something else within them.
const OTHER_WRAPPERS: [(&str, &str); 4] = [
    ("paligemma", "reads its prompt in both directions"),
    ("colpali", "makes vectors of documents"),
    ("gemma4_assistant", "drafts for another model"),
    ("gemma4_unified_assistant", "drafts for another model"),
];

/// Reads a config.json, of a model with this role. A scorer's output is found among its tensors: until then it counts
/// as that of a generator.
pub(super) fn read(fields: &Fields<'_>, role: ModelRole) -> Result<ModelConfig> {
    let nested = fields.object("text_config")?;
    let model_type = fields.text("model_type")?;
    let wrapper = model_type.and_then(|name| WRAPPERS.iter().find(|wrapper| wrapper.name == name));
    if let Some((name, why)) = OTHER_WRAPPERS.iter().find(|(name, _)| model_type == Some(*name)) {
        return Err(fields.error("model_type", supported(), format!("\"{name}\", which {why}")));
    }
    // Models of other types name them in `model_type`, too, so what is not read of these is said first.
    refuse_known(fields)?;
    classes::refuse_others(fields, role)?;
    let (text, implied) = match (&nested, wrapper) {
        (Some(nested), wrapper) => (nested, wrapper.map(|wrapper| wrapper.text)),
        // The fields of the text model lie beside the wrapper's.
        (None, Some(Wrapper { name, .. })) if Family::named(name).is_some() => (fields, None),
        (None, Some(Wrapper { name, .. })) => {
            let expected = format!("an object with the text model's fields (model_type \"{name}\")");
            return Err(fields.error("text_config", expected, "nothing"));
        }
        (None, None) => (fields, None),
    };
    let mut object = text.all().clone();
    if let (Some(implied), false) = (implied, object.contains_key("model_type")) {
        object.insert("model_type".to_owned(), Value::from(implied));
    }
    refuse_known(text)?;
    let family = Family::read(&text.over(&object))?;
    if nested.is_some() {
        if let (Some(name), None) = (model_type, wrapper) {
            log::warn!("model_type \"{name}\" is not a known wrapper: its text model is read as if it were alone");
        }
        let tied = fields.flag("tie_word_embeddings")?.or(wrapper.and_then(|wrapper| wrapper.tied));
        // Of llava and its like an own `false` does not count.
        let says = tied.filter(|tied| *tied || wrapper.is_none_or(|wrapper| wrapper.tied.is_some()));
        object.extend(says.map(|tied| ("tie_word_embeddings".to_owned(), Value::from(tied))));
        if family.name() == "mistral" {
            // Alone they make it another family, in a wrapper they mean nothing.
            object.remove("layer_types");
        }
    }
    // What the wrapper says of the whole model where the text model is silent.
    for name in ["dtype", "torch_dtype", "quantization_config"] {
        if let (Some(value), None) = (fields.value(name), text.value(name)) {
            object.insert(name.to_owned(), value.clone());
        }
    }
    let used = UsedKeys::default();
    let written = text.over(text.all()).noting(&used);
    let Canonical { object, own } = Canonical::of(family.description(), &written, object)?;
    let text = written.over(&object).with_names(&own);
    let mut config = read_text(family, &text)?;
    read_special_tokens(&text, &mut config)?;
    keys::refuse_unknown(family.description(), &written, &text, &used)?;
    if nested.is_some() {
        read_special_tokens(fields, &mut config)?;
        // The wrapper of Gemma 3 does not cap logits, whatever the text model says.
        config.final_softcap.take_if(|_| family.name() == "gemma3_text");
    }
    Ok(config)
}

/// Reads the fields of a text model.
fn read_text(family: Family, fields: &Fields<'_>) -> Result<ModelConfig> {
    let described = family.description();
    let quantisation = quantisation::read(fields)?.map(Quantisation::Published);
    refuse_bidirectional(fields)?;
    refuse_others(described, fields)?;
    let hidden = fields.required_size("hidden_size", LARGEST_WIDTH)?;
    let layers = fields.required_size("num_hidden_layers", LARGEST_LAYERS)?;
    let positions = max_position_embeddings(fields)?;
    let factor = |factor: Factor| factor.read(fields, hidden, layers);
    let (embed_scale, logit_scale) = (factor(described.scales.embeddings)?, factor(described.scales.logits)?);
    let reader = layers::Reader::new(described, fields, hidden, layers, positions)?;
    let (context, layers) = (reader.context, reader.read()?);
    let vocab = fields.required_size("vocab_size", LARGEST_VOCAB)?;
    Ok(ModelConfig {
        family,
        modules: modules(described, quantisation.as_ref()),
        hidden,
        layers,
        final_norm: layers::norm(described, fields)?,
        vocab,
        output: OutputHead::Tokens,
        context,
        embed_scale: embed_scale.map(|factor| EmbedScale { factor, rounded: described.scales.rounds_embeddings }),
        positions: None,
        per_layer_inputs: per_layer_inputs(described, fields, vocab)?,
        logit_scale,
        final_softcap: softcap(fields, described.scales.logit_cap)?,
        head_bias: described.biases.head.read(fields)?,
        tied_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        quantisation,
        compute: None,
        dtype: dtype(fields)?,
        bos: None,
        eos: Vec::new(),
        formats: Arc::default(),
        latents_apart: false,
    })
}

/// Refuses values of fields of which the family has one only.
fn refuse_others(family: &Description, fields: &Fields<'_>) -> Result<()> {
    for (name, only) in family.fixed {
        let Some(found) = fields.value(name) else { continue };
        let said: Value = serde_json::from_str(only).expect("values of tables are JSON");
        // A number that is switched off.
        let is_off = said.is_number() && *found == Value::Bool(false);
        if !is_off && !keys::is_same(found, &said) {
            return Err(fields.error(name, format!("{only} ({family})"), shown(found)));
        }
    }
    Ok(())
}

/// The modules of a family whose checkpoint is quantised like this.
fn modules(family: &Description, quantisation: Option<&Quantisation>) -> Modules {
    let modules = family.modules;
    match quantisation {
        Some(Quantisation::Published(published)) if published.has_mxfp4_experts() => {
            Modules { experts: ExpertForm::Stacked(StackedForm::Mxfp4), ..modules }
        }
        _ => modules,
    }
}

/// Gemma 4's smaller models; a width of zero means none.
fn per_layer_inputs(family: &Description, fields: &Fields<'_>, vocab: usize) -> Result<Option<PerLayerInputs>> {
    const WIDTH: &str = "hidden_size_per_layer_input";
    if family.keys != KeyRule::Gemma4 || fields.count(WIDTH)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let width = fields.required_size(WIDTH, LARGEST_WIDTH)?;
    let table = fields.required_size("vocab_size_per_layer_input", LARGEST_VOCAB)?;
    if table < vocab {
        let expected = format!("at least vocab_size ({vocab})");
        return Err(fields.error("vocab_size_per_layer_input", expected, table.to_string()));
    }
    Ok(Some(PerLayerInputs { width, vocab: table }))
}

fn max_position_embeddings(fields: &Fields<'_>) -> Result<usize> {
    // The second name is that of the first conversions of Llama 1.
    for name in ["max_position_embeddings", "max_sequence_length"] {
        if let Some(context) = fields.size(name, LARGEST_CONTEXT)? {
            return Ok(context);
        }
    }
    fields.required_size("max_position_embeddings", LARGEST_CONTEXT)
}

/// "vision" concerns tokens of pictures only.
fn refuse_bidirectional(fields: &Fields<'_>) -> Result<()> {
    const NAME: &str = "use_bidirectional_attention";
    if fields.value("is_causal") == Some(&Value::Bool(false)) {
        return Err(fields.error("is_causal", "true: text is read from left to right", "false"));
    }
    match fields.value(NAME) {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(value) if value.as_str() == Some("vision") => Ok(()),
        Some(value) => Err(fields.error(NAME, "false: text is read from left to right", value.to_string())),
    }
}

/// `torch_dtype`, or `dtype` as newer versions write it.
fn dtype(fields: &Fields<'_>) -> Result<Option<Dtype>> {
    for name in ["dtype", "torch_dtype"] {
        let Some(text) = fields.text(name)? else { continue };
        return match text.trim_start_matches("torch.") {
            "float32" | "float" => Ok(Some(Dtype::F32)),
            "float16" | "half" => Ok(Some(Dtype::F16)),
            "bfloat16" => Ok(Some(Dtype::Bf16)),
            // "auto" and others: decided by the tensors.
            _ => Ok(None),
        };
    }
    Ok(None)
}
