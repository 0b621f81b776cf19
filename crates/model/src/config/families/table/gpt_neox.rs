//! GPT-NeoX and Pythia: both blocks side by side with a norm for each, and a gelu without a gate.

use serde_json::json;

use super::super::super::layer::Activation;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::RopeDefaults;
use super::super::description::{
    ActivationRule, Bias, Biases, Description, NormKind, NormPlaces, PLAIN, PLAIN_ROPE, RopeRule,
};

const ATTENTION: Bias = Bias::Flag("attention_bias");

pub const GPT_NEOX: Description = Description {
    name: "gpt_neox",
    renamed: &[("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")],
    defaults: || {
        json!({
            "vocab_size": 50_432, "hidden_size": 6144, "intermediate_size": 24_576, "num_hidden_layers": 44,
            "num_attention_heads": 64, "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "bos_token_id": 0,
            "eos_token_id": 2, "attention_bias": true, "use_parallel_residual": true,
        })
    },
    norm: NormKind::Layer,
    eps: ("layer_norm_eps", 1e-5),
    places: NormPlaces::If("use_parallel_residual", &NormPlaces::ParallelOfTwo, &NormPlaces::Before),
    biases: Biases { qkv: ATTENTION, out: ATTENTION, mlp: Bias::Always, head: Bias::Never },
    activation: ActivationRule {
        field: "hidden_act",
        known: &[
            ("gelu", Activation::GeluErf),
            ("gelu_new", Activation::Gelu),
            ("gelu_fast", Activation::Gelu),
            ("gelu_pytorch_tanh", Activation::Gelu),
        ],
    },
    rope: RopeRule::same(RopeDefaults { fraction: 0.25, partial: true, ..PLAIN_ROPE }),
    modules: Modules {
        in_layer: &[
            ("self_attn.qkv_proj", "attention.query_key_value"),
            ("self_attn.o_proj", "attention.dense"),
            ("mlp.up_proj", "mlp.dense_h_to_4h"),
            ("mlp.down_proj", "mlp.dense_4h_to_h"),
        ],
        outside: &[
            ("model.embed_tokens", "gpt_neox.embed_in"),
            ("model.layers", "gpt_neox.layers"),
            ("model.norm", "gpt_neox.final_layer_norm"),
            ("lm_head", "embed_out"),
        ],
        fused_qkv: true,
        qkv_by_head: true,
        ..LLAMA
    },
    ..PLAIN
};
