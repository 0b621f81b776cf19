//! Phi-3.5-MoE: layer norms, and experts that a sparse mixer chooses.

use serde_json::{Value, json};

use offshoot_core::error::Result;

use super::super::super::fields::{Fields, shown};
use super::super::super::layer::ExpertWidthField;
use super::super::super::modules::{ExpertForm, LLAMA, Modules};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::canonical::Canonical;
use super::super::description::{
    Bias, Biases, Description, ExpertRule, KindRule, NormKind, PLAIN, PLAIN_ROPE, RopeRule, ScoreRule, WindowRule,
};

pub const PHIMOE: Description = Description {
    name: "phimoe",
    // Its router always chooses two.
    fixed: &[("num_experts_per_tok", "2")],
    adapt: Some(scale_rope),
    defaults: || {
        json!({
            "vocab_size": 32_064, "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "num_local_experts": 16,
            "num_experts_per_tok": 2, "router_jitter_noise": 0.01,
        })
    },
    norm: NormKind::Layer,
    eps: ("rms_norm_eps", 1e-5),
    biases: Biases { head: Bias::Flag("lm_head_bias"), ..Biases::OF_ATTENTION },
    kinds: KindRule::all(LayerKind::Sliding).unlisted(),
    windows: WindowRule::WRITTEN,
    rope: RopeRule::same(RopeDefaults { theta: 1e6, is_phi3: true, ..PLAIN_ROPE }),
    experts: Some(ExpertRule {
        width: ExpertWidthField::Intermediate,
        scores: ScoreRule::SparseMixer,
        ..ExpertRule::SOFTMAX
    }),
    modules: Modules {
        in_layer: &[("mlp.gate", "block_sparse_moe.gate"), ("mlp.experts", "block_sparse_moe.experts")],
        experts: ExpertForm::Separate { gate: "w1", up: "w3", down: "w2" },
        ..LLAMA
    },
    ..PLAIN
};

/// The factor of cosines and sines, which the rope calls `short_mscale` and `long_mscale`: one for both.
fn scale_rope(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = written.object(name)? else { continue };
        let [short, long] = ["short_mscale", "long_mscale"].map(|name| rope.value(name));
        let (Some(short), Some(long)) = (short, long) else { continue };
        if short != long {
            let expected = format!("{}, as short_mscale: one factor for sequences of any length", shown(short));
            return Err(rope.error("long_mscale", expected, shown(long)));
        }
        if let Some(Value::Object(rope)) = canonical.object.get_mut(name) {
            rope.insert("attention_factor".to_owned(), short.clone());
        }
    }
    Ok(())
}
