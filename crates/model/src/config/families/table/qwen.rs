//! Qwen2 and 2.5, and Qwen3, dense and with experts, with the text models of their kin that read pictures.

use serde_json::json;

use super::super::super::modules::{ExpertForm, LLAMA, Modules, StackedForm};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::description::{
    Beside, Bias, Biases, Description, ExpertLayers, ExpertRule, GgufRule, HeadNormRule, ImpliedKinds, KindRule,
    Normalise, PLAIN, PLAIN_ROPE, RopeRule, WindowRule, WindowUse,
};
use super::super::keys::Why;

/// Windows in layers behind the first, if a switch says so.
const SWITCHED: WindowRule = WindowRule { used: WindowUse::Switched, default: WindowRule::DEFAULT };
const BEHIND: KindRule =
    KindRule { listed: true, words: &[], otherwise: ImpliedKinds::Behind(28), last_is_full: false };

pub const QWEN2: Description = Description {
    name: "qwen2",
    // Within the context that the model was trained on, chunks change nothing.
    ignored: &[("dual_chunk_attention_config", Why::Unread)],
    biases: Biases { qkv: Bias::Always, ..Biases::NONE },
    kinds: BEHIND,
    windows: SWITCHED,
    gguf: GgufRule::named("qwen2"),
    ..PLAIN
};

/// Qwen2-VL and Qwen2.5-VL, which write the text model's fields beside the wrapper's, or apart.
pub const QWEN2_VL: Description = Description {
    name: "qwen2_vl",
    also: &["qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
    rope: RopeRule::same(RopeDefaults { theta: 1e6, ..PLAIN_ROPE }),
    kinds: KindRule { otherwise: ImpliedKinds::Behind(80), ..BEHIND },
    gguf: GgufRule::named("qwen2vl"),
    ..QWEN2
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

/// Qwen3-VL.
pub const QWEN3_VL: Description = Description { name: "qwen3_vl_text", gguf: GgufRule::named("qwen3vl"), ..QWEN3 };

/// Qwen3-VL's mixtures, which store all experts of a matrix in one tensor.
pub const QWEN3_VL_MOE: Description = Description {
    name: "qwen3_vl_moe_text",
    modules: Modules { experts: ExpertForm::Stacked(StackedForm::Transposed { alternate: false }), ..LLAMA },
    gguf: GgufRule::named("qwen3vlmoe"),
    ..QWEN3_MOE
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
