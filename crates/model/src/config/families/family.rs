//! The supported architectures by name, and what each implies for the whole model.

use std::fmt;

use offshoot_backend::Gate;
use offshoot_core::error::Result;
use offshoot_core::listed;

use super::super::fields::Fields;
use super::super::layer::{Activation, Norm};
use super::super::modules::{DEEPSEEK, GEMMA, GPT_OSS, LLAMA, LONGCAT, MIXTRAL, Modules, PHI, PHI3, QWEN3_NEXT};

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
    DeepseekV2,
    /// And Kimi K2 and Moonlight.
    DeepseekV3,
    Glm4MoeLite,
    Mistral4,
    MiniCpm3,
    SarvamMla,
    LongcatFlash,
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
    DeepseekV2 = "deepseek_v2",
    DeepseekV3 = "deepseek_v3",
    Glm4MoeLite = "glm4_moe_lite",
    Mistral4 = "mistral4",
    MiniCpm3 = "minicpm3",
    SarvamMla = "sarvam_mla",
    LongcatFlash = "longcat_flash",
});

impl Family {
    fn by_model_type(name: &str) -> Option<Self> {
        match name {
            GEMMA4_UNIFIED => Some(Self::Gemma4),
            KIMI_K2 => Some(Self::DeepseekV3),
            name => Self::named(name),
        }
    }

    /// Reads the family by `model_type`, or else by the first of `architectures`.
    pub fn read(fields: &Fields<'_>) -> Result<Self> {
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

    pub fn modules(self) -> Modules {
        match self {
            Self::Phi => PHI,
            Self::Phi3 => PHI3,
            Self::Mixtral => MIXTRAL,
            Self::Gemma2 | Self::Gemma3 | Self::Gemma4 => GEMMA,
            Self::GptOss => GPT_OSS,
            Self::Qwen3Next => QWEN3_NEXT,
            Self::LongcatFlash => LONGCAT,
            _ if self.is_latent() => DEEPSEEK,
            _ => LLAMA,
        }
    }

    pub fn biases(self, fields: &Fields<'_>) -> Result<Biases> {
        let attention = fields.flag("attention_bias")?.unwrap_or(false);
        let mlp = fields.flag("mlp_bias")?.unwrap_or(false);
        Ok(match self {
            Self::Llama | Self::SmolLm3 | Self::MiniCpm3 | Self::DeepseekV2 => {
                Biases { qkv: attention, out: attention, mlp, head: false }
            }
            Self::Mistral | Self::Ministral | Self::Ministral3 | Self::Mixtral | Self::Phi3 => Biases::default(),
            Self::Qwen2 => Biases { qkv: true, ..Biases::default() },
            Self::Phi => Biases { qkv: true, out: true, mlp: true, head: true },
            _ => Biases { qkv: attention, out: attention, ..Biases::default() },
        })
    }

    pub fn norm(self, fields: &Fields<'_>) -> Result<Norm> {
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

    pub fn activation(self, fields: &Fields<'_>) -> Result<Activation> {
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
    pub fn has_delta_rule(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }

    /// Whether its attention is latent.
    pub fn is_latent(self) -> bool {
        matches!(
            self,
            Self::DeepseekV2
                | Self::DeepseekV3
                | Self::Glm4MoeLite
                | Self::Mistral4
                | Self::MiniCpm3
                | Self::SarvamMla
                | Self::LongcatFlash
        )
    }

    /// Whether checkpoints may have layers behind the model's that predict further tokens.
    pub fn predicts_further(self) -> bool {
        matches!(self, Self::DeepseekV3 | Self::Glm4MoeLite | Self::SarvamMla)
    }

    pub fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3 | Self::Gemma4)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().trim_end_matches("_text"))
    }
}

/// `one of llama, mistral, ...`
pub fn supported() -> String {
    let names: Vec<String> = Family::ALL.iter().map(ToString::to_string).collect();
    format!("one of {}", names.join(", "))
}

/// Which linear layers have a bias.
#[derive(Default)]
pub struct Biases {
    pub qkv: bool,
    pub out: bool,
    pub mlp: bool,
    pub head: bool,
}

/// The `model_type` of Gemma 4's text model in its 12B size: Gemma 4 with other defaults.
pub const GEMMA4_UNIFIED: &str = "gemma4_unified_text";

/// The `model_type` of Kimi K2, which is DeepSeek-V3 by another name.
pub const KIMI_K2: &str = "kimi_k2";
