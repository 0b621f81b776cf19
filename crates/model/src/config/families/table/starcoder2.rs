//! StarCoder2: layer norms and biases, a block without a gate, and a window in each layer.

use serde_json::json;

use super::super::super::layer::Activation;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::LayerKind;
use super::super::description::{ActivationRule, Bias, Biases, Description, KindRule, NormKind, PLAIN, WindowRule};
use super::super::keys::Why;

pub const STARCODER2: Description = Description {
    name: "starcoder2",
    defaults: || {
        json!({
            "vocab_size": 49_152, "hidden_size": 3072, "intermediate_size": 12_288, "num_hidden_layers": 30,
            "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings": 4096, "use_bias": true,
            "tie_word_embeddings": true, "bos_token_id": 50_256, "eos_token_id": 50_256,
        })
    },
    fixed: &[("norm_type", "\"layer_norm\""), ("mlp_type", "\"default\""), ("scale_attn_weights", "true")],
    ignored: &[("activation_function", Why::Unread), ("layer_norm_epsilon", Why::Repeats("norm_epsilon"))],
    norm: NormKind::Layer,
    eps: ("norm_epsilon", 1e-5),
    biases: Biases {
        qkv: Bias::Flag("use_bias"),
        out: Bias::Flag("use_bias"),
        mlp: Bias::Flag("use_bias"),
        head: Bias::Never,
    },
    activation: ActivationRule {
        field: "hidden_act",
        known: &[
            ("gelu_pytorch_tanh", Activation::Gelu),
            ("gelu_new", Activation::Gelu),
            ("gelu_fast", Activation::Gelu),
        ],
    },
    kinds: KindRule::all(LayerKind::Sliding).unlisted(),
    windows: WindowRule::WRITTEN,
    modules: Modules { in_layer: &[("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj")], ..LLAMA },
    ..PLAIN
};
