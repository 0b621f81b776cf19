//! Qwen2 and 2.5, and Qwen3, dense and with experts, with the text models of their kin that read pictures.

use serde_json::json;

use super::super::super::rope::LayerKind;
use super::super::description::{
    Beside, Bias, Biases, Description, ExpertLayers, ExpertRule, GgufRule, HeadNormRule, ImpliedKinds, KindRule,
    Normalise, PLAIN, WindowRule, WindowUse,
};

/// Windows in layers behind the first, if a switch says so.
const SWITCHED: WindowRule = WindowRule { used: WindowUse::Switched, default: WindowRule::DEFAULT };
const BEHIND: KindRule = KindRule { listed: true, otherwise: ImpliedKinds::Behind(28), last_is_full: false };

pub const QWEN2: Description = Description {
    name: "qwen2",
    biases: Biases { qkv: Bias::Always, ..Biases::NONE },
    kinds: BEHIND,
    windows: SWITCHED,
    gguf: GgufRule::named("qwen2"),
    ..PLAIN
};

pub const QWEN3: Description = Description {
    name: "qwen3",
    kinds: BEHIND,
    windows: SWITCHED,
    head_norm: Some(HeadNormRule::BY_HEAD),
    gguf: GgufRule::named("qwen3"),
    ..PLAIN
};

pub const QWEN3_MOE: Description = Description {
    name: "qwen3_moe",
    defaults: || {
        json!({
            "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
            "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
            "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
        })
    },
    kinds: KindRule::all(LayerKind::Sliding).unlisted(),
    windows: SWITCHED,
    head_norm: Some(HeadNormRule::BY_HEAD),
    experts: Some(ExpertRule { layers: ExpertLayers::Stepped, normalise: Normalise::Written, ..ExpertRule::SOFTMAX }),
    gguf: GgufRule::named("qwen3moe"),
    ..PLAIN
};

pub const QWEN2_MOE: Description = Description {
    name: "qwen2_moe",
    defaults: || {
        json!({
            "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
            "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 32_768,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
            "num_experts": 60, "norm_topk_prob": false, "qkv_bias": true,
        })
    },
    biases: Biases { qkv: Bias::Flag("qkv_bias"), ..Biases::NONE },
    kinds: KindRule { otherwise: ImpliedKinds::EvenBelow(28), ..BEHIND },
    windows: SWITCHED,
    experts: Some(ExpertRule {
        layers: ExpertLayers::Stepped,
        normalise: Normalise::Written,
        beside: Beside::Gated("shared_expert_intermediate_size"),
        ..ExpertRule::SOFTMAX
    }),
    ..PLAIN
};
