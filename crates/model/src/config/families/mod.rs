//! The supported architectures: what each implies by its name and what its config.json may set. The result is plain
//! data in `ModelConfig`; no other file depends on the family. `defaults` holds what transformers assumes where a
//! config is silent, `layers` reads what differs from layer to layer, `experts` the mixtures, `delta_rule` layers with
//! a state, `tokens` special tokens.

mod defaults;
mod delta_rule;
mod experts;
mod layers;
mod tokens;

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use offshoot_backend::{Dtype, Gate};
use offshoot_core::error::Result;
use offshoot_core::listed;

use super::fields::{Fields, LARGEST_CONTEXT, LARGEST_LAYERS, LARGEST_VOCAB, LARGEST_WIDTH};
use super::modules::{GEMMA, GPT_OSS, LLAMA, MIXTRAL, Modules, PHI, PHI3, QWEN3_5, QWEN3_NEXT};
use super::quantisation::{self, Quantisation};
use super::{Activation, ExpertForm, ExpertModules, ModelConfig, Norm, PerLayerInputs};
use tokens::read_special_tokens;

/// The architectures of config.json's `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1 to 3, CodeLlama, Yi and every other model with the type `llama`.
    Llama,
    Mistral,
    Ministral,
    /// The text model of Ministral 3 and of Mistral's models since then.
    Ministral3,
    Mixtral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    /// The text models of Qwen3.5 and Qwen3.6, dense and with experts.
    Qwen35,
    Qwen35Moe,
    /// Phi-1, Phi-1.5 and Phi-2.
    Phi,
    /// Phi-3, Phi-3.5 and Phi-4, without pictures.
    Phi3,
    SmolLm3,
    Olmo2,
    Olmo3,
    Gemma2,
    Gemma3,
    Gemma4,
    GptOss,
}

// The `model_type`; that of the text model where a wrapper has another.
listed!(Family {
    Llama = "llama",
    Mistral = "mistral",
    Ministral = "ministral",
    Ministral3 = "ministral3",
    Mixtral = "mixtral",
    Qwen2 = "qwen2",
    Qwen3 = "qwen3",
    Qwen3Moe = "qwen3_moe",
    Qwen3Next = "qwen3_next",
    Qwen35 = "qwen3_5_text",
    Qwen35Moe = "qwen3_5_moe_text",
    Phi = "phi",
    Phi3 = "phi3",
    SmolLm3 = "smollm3",
    Olmo2 = "olmo2",
    Olmo3 = "olmo3",
    Gemma2 = "gemma2",
    Gemma3 = "gemma3_text",
    Gemma4 = "gemma4_text",
    GptOss = "gpt_oss",
});

impl Family {
    fn by_model_type(name: &str) -> Option<Self> {
        let name = if name == GEMMA4_UNIFIED { Self::Gemma4.name() } else { name };
        Self::named(name)
    }

    /// By `model_type`, or else by the first of `architectures`.
    fn read(fields: &Fields<'_>) -> Result<Self> {
        if let Some(name) = fields.text("model_type")? {
            return Self::by_model_type(name)
                .ok_or_else(|| fields.error("model_type", supported(), format!("\"{name}\"")));
        }
        let architectures = fields.list("architectures")?.unwrap_or_default();
        match architectures.first().and_then(|name| name.as_str()) {
            Some(name) => {
                let plain = |name: &str| name.to_lowercase().replace('_', "").replace("text", "");
                let found = plain(&name.to_lowercase().replace("forcausallm", ""));
                let family = Self::ALL.into_iter().find(|family| plain(family.name()) == found);
                family.ok_or_else(|| fields.error("architectures", supported(), format!("\"{name}\"")))
            }
            None => Err(fields.error("model_type", supported(), "nothing")),
        }
    }

    fn modules(self) -> Modules {
        match self {
            Self::Phi => PHI,
            Self::Phi3 => PHI3,
            Self::Mixtral => MIXTRAL,
            Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => GEMMA,
            Self::GptOss => GPT_OSS,
            Self::Qwen3Next => QWEN3_NEXT,
            Self::Qwen35 | Self::Qwen35Moe => QWEN3_5,
            _ => LLAMA,
        }
    }

    fn biases(self, fields: &Fields<'_>) -> Result<Biases> {
        let attention = fields.flag("attention_bias")?.unwrap_or(false);
        let mlp = fields.flag("mlp_bias")?.unwrap_or(false);
        Ok(match self {
            Self::Llama | Self::SmolLm3 => Biases { qkv: attention, out: attention, mlp, head: false },
            Self::Mistral | Self::Ministral | Self::Ministral3 | Self::Mixtral | Self::Phi3 => Biases::default(),
            Self::Qwen2 => Biases { qkv: true, ..Biases::default() },
            Self::Qwen3 | Self::Qwen3Moe | Self::Olmo2 | Self::Olmo3 | Self::GptOss => {
                Biases { qkv: attention, out: attention, ..Biases::default() }
            }
            Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe => {
                Biases { qkv: attention, out: attention, ..Biases::default() }
            }
            Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => {
                Biases { qkv: attention, out: attention, ..Biases::default() }
            }
            Self::Phi => Biases { qkv: true, out: true, mlp: true, head: true },
        })
    }

    fn norm(self, fields: &Fields<'_>) -> Result<Norm> {
        let (name, default) = match self {
            Self::Phi => ("layer_norm_eps", 1e-5),
            _ => ("rms_norm_eps", 1e-6),
        };
        let eps = fields.positive(name)?.unwrap_or(default) as f32;
        Ok(match self {
            Self::Phi => Norm::Layer { eps },
            Self::Gemma2 | Self::Gemma3 => Norm::RmsPlusOne { eps },
            _ if self.has_delta_rule() => Norm::RmsPlusOne { eps },
            _ => Norm::Rms { eps },
        })
    }

    fn activation(self, fields: &Fields<'_>) -> Result<Activation> {
        const TANH: &[&str] = &["gelu_new", "gelu_pytorch_tanh", "gelu_fast"];
        const SILU: &[&str] = &["silu", "swish"];
        let (field, activation, known, expected) = match self {
            Self::Phi => ("hidden_act", Activation::Gelu, TANH, "gelu_new (Phi)"),
            Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => {
                ("hidden_activation", Activation::Gated(Gate::Gelu), TANH, "gelu_pytorch_tanh (Gemma)")
            }
            Self::GptOss => ("hidden_act", Activation::Gated(Gate::Clamped), SILU, "silu"),
            _ => ("hidden_act", Activation::Gated(Gate::Silu), SILU, "silu"),
        };
        match fields.text(field)? {
            Some(name) if !known.contains(&name) => Err(fields.error(field, expected, format!("\"{name}\""))),
            _ => Ok(activation),
        }
    }

    /// Whether layers with a state stand beside those with attention.
    fn has_delta_rule(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }

    fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3 | Self::Gemma4)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().trim_end_matches("_text"))
    }
}

/// `one of llama, mistral, ...`
fn supported() -> String {
    let names: Vec<String> = Family::ALL.iter().map(ToString::to_string).collect();
    format!("one of {}", names.join(", "))
}

/// Which linear layers have a bias.
#[derive(Default)]
struct Biases {
    qkv: bool,
    out: bool,
    mlp: bool,
    head: bool,
}

/// The `model_type` of Gemma 4's text model in its 12B size: Gemma 4 with other defaults.
const GEMMA4_UNIFIED: &str = "gemma4_unified_text";

/// A wrapper around a text model, whose config nests.
struct Wrapper {
    /// Its `model_type`.
    name: &'static str,
    /// The `model_type` of the text model where the nested config does not name it.
    text: &'static str,
    /// Its `tie_word_embeddings` where it does not say; `None`: the text model's.
    tied: Option<bool>,
}

const fn wrapper(name: &'static str, text: &'static str, tied: Option<bool>) -> Wrapper {
    Wrapper { name, text, tied }
}

const WRAPPERS: [Wrapper; 7] = [
    wrapper("gemma3", "gemma3_text", Some(true)),
    wrapper("gemma4", "gemma4_text", Some(true)),
    wrapper("gemma4_unified", GEMMA4_UNIFIED, Some(true)),
    wrapper("mistral3", "mistral", Some(true)),
    wrapper("qwen3_5", "qwen3_5_text", Some(false)),
    wrapper("qwen3_5_moe", "qwen3_5_moe_text", Some(false)),
    wrapper("llava", "llama", None),
];

/// Wrappers whose text model is a supported family, and does something else within them.
const OTHER_WRAPPERS: [(&str, &str); 4] = [
    ("paligemma", "reads its prompt in both directions"),
    ("colpali", "makes vectors of documents"),
    ("gemma4_assistant", "drafts for another model"),
    ("gemma4_unified_assistant", "drafts for another model"),
];

/// Reads a config.json.
pub(super) fn read(fields: &Fields<'_>) -> Result<ModelConfig> {
    let nested = fields.object("text_config")?;
    let model_type = fields.text("model_type")?;
    let wrapper = model_type.and_then(|name| WRAPPERS.iter().find(|wrapper| wrapper.name == name));
    if let Some((name, why)) = OTHER_WRAPPERS.iter().find(|(name, _)| model_type == Some(*name)) {
        return Err(fields.error("model_type", supported(), format!("\"{name}\", which {why}")));
    }
    let (text, implied) = match (&nested, wrapper) {
        (Some(nested), wrapper) => (nested, wrapper.map(|wrapper| wrapper.text)),
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
    let family = Family::read(&text.over(&object))?;
    if nested.is_some() {
        if let (Some(name), None) = (model_type, wrapper) {
            log::warn!("model_type \"{name}\" is not a known wrapper: its text model is read as if it were alone");
        }
        let tied = fields.flag("tie_word_embeddings")?.or(wrapper.and_then(|wrapper| wrapper.tied));
        // Llava's own `false` does not count.
        let says = tied.filter(|tied| *tied || wrapper.is_none_or(|wrapper| wrapper.tied.is_some()));
        object.extend(says.map(|tied| ("tie_word_embeddings".to_owned(), Value::from(tied))));
        if family == Family::Mistral {
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
    defaults::lay_under(family, &mut object);
    let text = text.over(&object);
    let mut config = read_text(family, &text)?;
    read_special_tokens(&text, &mut config)?;
    if nested.is_some() {
        read_special_tokens(fields, &mut config)?;
        // The wrapper of Gemma 3 does not cap logits, whatever the text model says.
        config.final_softcap.take_if(|_| family == Family::Gemma3);
    }
    Ok(config)
}

/// The special tokens of a generation_config.json take precedence.
pub(super) fn read_generation(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<()> {
    read_special_tokens(fields, config)
}

/// Reads the fields of a text model.
fn read_text(family: Family, fields: &Fields<'_>) -> Result<ModelConfig> {
    let quantisation = quantisation::read(fields)?;
    refuse_bidirectional(fields)?;
    if family == Family::Phi && fields.flag("qk_layernorm")?.unwrap_or(false) {
        return Err(fields.error(
            "qk_layernorm",
            "false (a norm of queries and keys is supported for other families only)",
            "true",
        ));
    }
    let hidden = fields.required_size("hidden_size", LARGEST_WIDTH)?;
    let layers = fields.required_size("num_hidden_layers", LARGEST_LAYERS)?;
    let positions = max_position_embeddings(fields)?;
    let layers = layers::Reader::new(family, fields, hidden, layers, positions)?;
    let (context, layers) = (layers.context, layers.read()?);
    let vocab = fields.required_size("vocab_size", LARGEST_VOCAB)?;
    Ok(ModelConfig {
        family,
        modules: modules(family, quantisation.as_ref()),
        hidden,
        layers,
        final_norm: family.norm(fields)?,
        vocab,
        context,
        embed_scale: family.is_gemma().then(|| (hidden as f32).sqrt()),
        per_layer_inputs: per_layer_inputs(family, fields, vocab)?,
        final_softcap: if family.is_gemma() { softcap(fields, "final_logit_softcapping")? } else { None },
        head_bias: family.biases(fields)?.head,
        tied_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        quantisation,
        compute: None,
        dtype: dtype(fields)?,
        bos: None,
        eos: Vec::new(),
        formats: Arc::default(),
    })
}

/// The modules of a family whose checkpoint is quantised like this.
fn modules(family: Family, quantisation: Option<&Quantisation>) -> Modules {
    let modules = family.modules();
    match quantisation {
        Some(Quantisation::Published(published)) if published.has_mxfp4_experts() => {
            Modules { experts: ExpertModules { form: ExpertForm::Mxfp4, ..modules.experts }, ..modules }
        }
        _ => modules,
    }
}

fn softcap(fields: &Fields<'_>, name: &str) -> Result<Option<f32>> {
    Ok(fields.positive(name)?.map(|cap| cap as f32))
}

/// Gemma 4's smaller models; a width of zero means none.
fn per_layer_inputs(family: Family, fields: &Fields<'_>, vocab: usize) -> Result<Option<PerLayerInputs>> {
    const WIDTH: &str = "hidden_size_per_layer_input";
    if family != Family::Gemma4 || fields.count(WIDTH)?.unwrap_or(0) == 0 {
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
