//! The supported architectures: what each implies by its name and what its config.json may set. The result is plain
//! data in `ModelConfig`; no other file depends on the family.

use std::fmt;

use crate::backend::{Dtype, HeadLayout, MOST_HEAD_DIM};
use crate::error::Result;
use crate::ids::TokenId;

use super::fields::{Fields, LARGEST_CONTEXT, LARGEST_LAYERS, LARGEST_VOCAB, LARGEST_WIDTH, shown, whole};
use super::rope::RopeConfig;
use super::{Activation, AttentionSpec, FeedForward, LayerNorms, LayerSpec, ModelConfig, Norm};

/// The architectures of config.json's `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1 to 3, CodeLlama, Yi and every other model with the type `llama`.
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    /// Phi-1, Phi-1.5 and Phi-2.
    Phi,
}

const SUPPORTED: &str = "one of llama, mistral, qwen2, qwen3, phi";

/// Defaults of transformers for `sliding_window` and `max_window_layers`, for configs without these keys.
const DEFAULT_WINDOW: usize = 4096;
const DEFAULT_MAX_WINDOW_LAYERS: u64 = 28;

impl Family {
    fn read(fields: &Fields<'_>) -> Result<Self> {
        if let Some(name) = fields.text("model_type")? {
            return Self::by_model_type(name)
                .ok_or_else(|| fields.error("model_type", SUPPORTED, format!("\"{name}\"")));
        }
        let architectures = fields.list("architectures")?.unwrap_or_default();
        match architectures.first().and_then(|name| name.as_str()) {
            Some(name) => {
                let model_type = name.to_lowercase().replace("forcausallm", "");
                Self::by_model_type(&model_type)
                    .ok_or_else(|| fields.error("architectures", SUPPORTED, format!("\"{name}\"")))
            }
            None => Err(fields.error("model_type", SUPPORTED, "nothing")),
        }
    }

    fn by_model_type(name: &str) -> Option<Self> {
        match name {
            "llama" => Some(Self::Llama),
            "mistral" => Some(Self::Mistral),
            "qwen2" => Some(Self::Qwen2),
            "qwen3" => Some(Self::Qwen3),
            "phi" => Some(Self::Phi),
            _ => None,
        }
    }

    fn biases(self, fields: &Fields<'_>) -> Result<Biases> {
        let attention = fields.flag("attention_bias")?.unwrap_or(false);
        let mlp = fields.flag("mlp_bias")?.unwrap_or(false);
        Ok(match self {
            Self::Llama => Biases { qkv: attention, out: attention, mlp, head: false },
            Self::Mistral => Biases::default(),
            Self::Qwen2 => Biases { qkv: true, ..Biases::default() },
            Self::Qwen3 => Biases { qkv: attention, out: attention, ..Biases::default() },
            Self::Phi => Biases { qkv: true, out: true, mlp: true, head: true },
        })
    }

    fn norm(self, fields: &Fields<'_>) -> Result<Norm> {
        let (name, default) = match self {
            Self::Phi => ("layer_norm_eps", 1e-5),
            _ => ("rms_norm_eps", 1e-6),
        };
        let eps = fields.positive(name)?.unwrap_or(default) as f32;
        Ok(if self == Self::Phi { Norm::Layer { eps } } else { Norm::Rms { eps } })
    }

    fn activation(self, fields: &Fields<'_>) -> Result<Activation> {
        let found = fields.text("hidden_act")?;
        let (activation, known, expected): (_, &[&str], _) = match self {
            Self::Phi => (Activation::Gelu, &["gelu_new", "gelu_pytorch_tanh", "gelu_fast"], "gelu_new (Phi)"),
            _ => (Activation::GatedSilu, &["silu", "swish"], "silu"),
        };
        match found {
            Some(name) if !known.contains(&name) => Err(fields.error("hidden_act", expected, format!("\"{name}\""))),
            _ => Ok(activation),
        }
    }

    /// The sliding window of each layer.
    fn windows(self, fields: &Fields<'_>, layers: usize, context: usize) -> Result<Vec<Option<u32>>> {
        let window = match fields.size("sliding_window", LARGEST_CONTEXT)? {
            Some(window) => Some(window),
            None if fields.is_written("sliding_window") => None,
            None => Some(DEFAULT_WINDOW),
        };
        // A window as long as the context hides nothing.
        let window = window.filter(|&w| w < context).map(|w| u32::try_from(w).expect("LARGEST_CONTEXT fits"));
        let (window, first_windowed) = match self {
            Self::Llama | Self::Phi => (None, layers),
            Self::Mistral => (window, 0),
            Self::Qwen2 | Self::Qwen3 => {
                let used = fields.flag("use_sliding_window")?.unwrap_or(false);
                let from = fields.count("max_window_layers")?.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
                (window.filter(|_| used), usize::try_from(from).unwrap_or(layers))
            }
        };
        match fields.list("layer_types")? {
            None => Ok((0..layers).map(|layer| window.filter(|_| layer >= first_windowed)).collect()),
            Some(kinds) if kinds.len() != layers => {
                let expected = format!("one for each of num_hidden_layers ({layers})");
                Err(fields.error("layer_types", expected, kinds.len().to_string()))
            }
            Some(kinds) => kinds
                .iter()
                .enumerate()
                .map(|(layer, kind)| match kind.as_str() {
                    Some("full_attention") => Ok(None),
                    Some("sliding_attention") => Ok(window),
                    _ => {
                        let expected = "full_attention or sliding_attention";
                        Err(fields.error(&format!("layer_types[{layer}]"), expected, shown(kind)))
                    }
                })
                .collect(),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Phi => "phi",
        })
    }
}

/// Which linear layers have a bias.
#[derive(Default)]
struct Biases {
    qkv: bool,
    out: bool,
    mlp: bool,
    head: bool,
}

/// Reads a config.json, except for special tokens.
pub(super) fn read(fields: &Fields<'_>) -> Result<ModelConfig> {
    let family = Family::read(fields)?;
    refuse_quantised(fields)?;
    if family == Family::Phi && fields.flag("qk_layernorm")?.unwrap_or(false) {
        return Err(fields.error(
            "qk_layernorm",
            "false (a norm of queries and keys is supported for qwen3 only)",
            "true",
        ));
    }
    let hidden = fields.required_size("hidden_size", LARGEST_WIDTH)?;
    let layers = fields.required_size("num_hidden_layers", LARGEST_LAYERS)?;
    let heads = heads(fields, hidden)?;
    let max_position_embeddings = match fields.size("max_position_embeddings", LARGEST_CONTEXT)? {
        Some(context) => context,
        // The name in the first conversions of Llama 1.
        None => match fields.size("max_sequence_length", LARGEST_CONTEXT)? {
            Some(context) => context,
            None => fields.required_size("max_position_embeddings", LARGEST_CONTEXT)?,
        },
    };
    let default_fraction = if family == Family::Phi { 0.5 } else { 1.0 };
    let rope = RopeConfig::read(fields, heads.head_dim, max_position_embeddings, default_fraction)?;
    let context = rope.context(max_position_embeddings);
    let width = fields.required_size("intermediate_size", LARGEST_WIDTH)?;
    let vocab = fields.required_size("vocab_size", LARGEST_VOCAB)?;
    let norm = family.norm(fields)?;
    let activation = family.activation(fields)?;
    let biases = family.biases(fields)?;
    let norms = match family {
        Family::Phi => LayerNorms::Parallel(norm),
        _ => LayerNorms::Sequential { attention: norm, feed_forward: norm },
    };
    let tied_embeddings = fields.flag("tie_word_embeddings")?.unwrap_or(false);
    let windows = family.windows(fields, layers, context)?;
    let layer = |window| LayerSpec {
        attention: AttentionSpec {
            heads,
            window,
            rope: rope.clone(),
            scale: 1.0 / (heads.head_dim as f32).sqrt(),
            head_norm: (family == Family::Qwen3).then(|| norm.eps()),
            qkv_bias: biases.qkv,
            out_bias: biases.out,
        },
        feed_forward: FeedForward::Dense { activation, width, bias: biases.mlp },
        norms,
    };
    Ok(ModelConfig {
        family,
        hidden,
        layers: windows.into_iter().map(layer).collect(),
        final_norm: norm,
        vocab,
        context,
        head_bias: biases.head,
        tied_embeddings,
        dtype: dtype(fields)?,
        bos: None,
        eos: Vec::new(),
    })
}

fn heads(fields: &Fields<'_>, hidden: usize) -> Result<HeadLayout> {
    let q_heads = fields.required_size("num_attention_heads", LARGEST_WIDTH)?;
    let kv_heads = fields.size("num_key_value_heads", LARGEST_WIDTH)?.unwrap_or(q_heads);
    if !q_heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of num_attention_heads ({q_heads})");
        return Err(fields.error("num_key_value_heads", expected, kv_heads.to_string()));
    }
    let head_dim = match fields.size("head_dim", LARGEST_WIDTH)? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(q_heads) => hidden / q_heads,
        None => {
            let expected = format!("a divisor of hidden_size ({hidden}), or `head_dim`");
            return Err(fields.error("num_attention_heads", expected, q_heads.to_string()));
        }
    };
    let most = MOST_HEAD_DIM.min(LARGEST_WIDTH / q_heads);
    if !head_dim.is_multiple_of(2) || head_dim > most {
        let expected = format!("an even number up to {most}");
        let derived = if fields.value("head_dim").is_some() { "" } else { " (hidden_size / num_attention_heads)" };
        return Err(fields.error("head_dim", expected, format!("{head_dim}{derived}")));
    }
    Ok(HeadLayout { q_heads, kv_heads, head_dim })
}

fn refuse_quantised(fields: &Fields<'_>) -> Result<()> {
    let Some(quantised) = fields.object("quantization_config")? else { return Ok(()) };
    let method = quantised.text("quant_method")?.unwrap_or("an unnamed method");
    Err(fields.error("quantization_config", "weights in f32, f16 or bf16, not quantised", format!("\"{method}\"")))
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

/// Reads `bos_token_id` and `eos_token_id` (one id or a list) if present. Ids outside the vocabulary cannot be sampled;
/// they are ignored with a warning.
pub(super) fn read_special_tokens(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<()> {
    if let Some(bos) = token_ids(fields, "bos_token_id", config.vocab)? {
        config.bos = bos.first().copied();
    }
    if let Some(eos) = token_ids(fields, "eos_token_id", config.vocab)? {
        config.eos = eos;
    }
    Ok(())
}

fn token_ids(fields: &Fields<'_>, name: &str, vocab: usize) -> Result<Option<Vec<TokenId>>> {
    let Some(value) = fields.value(name) else { return Ok(None) };
    let single = std::slice::from_ref(value);
    let mut ids = Vec::new();
    for value in value.as_array().map_or(single, Vec::as_slice) {
        let id = whole(value).ok_or_else(|| fields.error(name, "a token id or a list of them", shown(value)))?;
        match u32::try_from(id).ok().filter(|&id| (id as usize) < vocab) {
            Some(id) => ids.push(TokenId(id)),
            None => log::warn!("{}", fields.error(name, format!("an id below vocab_size ({vocab})"), id.to_string())),
        }
    }
    Ok(Some(ids))
}
