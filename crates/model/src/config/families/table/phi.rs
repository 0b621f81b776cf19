//! Phi-1, 1.5 and 2 (`phi`), and Phi-3, 3.5 and 4 without pictures (`phi3`).

use serde_json::json;

use super::super::super::layer::Activation;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::description::{
    ActivationRule, Bias, Biases, Description, FileWindows, GgufRule, KindRule, NormKind, NormPlaces, PLAIN,
    PLAIN_ROPE, RopeRule, WindowRule,
};

pub const PHI: Description = Description {
    name: "phi",
    defaults: || json!({"bos_token_id": 1, "eos_token_id": 2}),
    fixed: &[("qk_layernorm", "false")],
    norm: NormKind::Layer,
    eps: ("layer_norm_eps", 1e-5),
    places: NormPlaces::Parallel,
    biases: Biases { qkv: Bias::Always, out: Bias::Always, mlp: Bias::Always, head: Bias::Always },
    activation: ActivationRule {
        field: "hidden_act",
        known: &[
            ("gelu_new", Activation::Gelu),
            ("gelu_pytorch_tanh", Activation::Gelu),
            ("gelu_fast", Activation::Gelu),
        ],
    },
    rope: RopeRule::same(RopeDefaults { fraction: 0.5, partial: true, ..PLAIN_ROPE }),
    modules: Modules {
        in_layer: &[("self_attn.o_proj", "self_attn.dense"), ("mlp.up_proj", "mlp.fc1"), ("mlp.down_proj", "mlp.fc2")],
        outside: &[("model.norm", "model.final_layernorm")],
        ..LLAMA
    },
    gguf: GgufRule::named("phi2"),
    ..PLAIN
};

pub const PHI3: Description = Description {
    name: "phi3",
    fixed: &[("full_attn_mod", "1"), ("interpolate_factor", "1")],
    defaults: || {
        json!({
            "vocab_size": 32_064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 32_000,
        })
    },
    biases: Biases::NONE,
    kinds: KindRule::all(LayerKind::Sliding).unlisted(),
    windows: WindowRule::WRITTEN,
    rope: RopeRule::same(RopeDefaults { partial: true, is_phi3: true, ..PLAIN_ROPE }),
    modules: Modules { fused_qkv: true, fused_up: true, ..LLAMA },
    gguf: GgufRule { windows: FileWindows::InAll, ..GgufRule::named("phi3") },
    ..PLAIN
};
