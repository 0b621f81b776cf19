//! gpt-oss: sinks, biased experts with a clamped gate, and windows in every second layer.

use serde_json::{Value, json};

use offshoot_backend::Gate;
use offshoot_core::error::Result;

use super::super::super::fields::Fields;
use super::super::super::layer::ExpertWidthField;
use super::super::super::modules::{ExpertForm, LLAMA, Modules, StackedForm};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::canonical::Canonical;
use super::super::description::{
    ActivationRule, Description, ExpertRule, FileWindows, GgufRule, KindRule, PLAIN, PLAIN_ROPE, RopeRule, ScoreRule,
    WindowRule,
};
use super::super::keys::Why;

pub const GPT_OSS: Description = Description {
    name: "gpt_oss",
    ignored: &[("experts_per_token", Why::Repeats("num_experts_per_tok")), ("initial_context_length", Why::Unread)],
    adapt: Some(plain_rope),
    defaults: || {
        json!({
            "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5, "attention_bias": true, "sliding_window": 128, "num_experts_per_tok": 4,
            "num_experts": 128, "rope_parameters": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096,
            },
        })
    },
    activation: ActivationRule::silu(Gate::Clamped),
    kinds: KindRule::every(None, 2, LayerKind::Sliding),
    windows: WindowRule::WRITTEN,
    rope: RopeRule::same(RopeDefaults { theta: 150_000.0, ..PLAIN_ROPE }),
    sinks: true,
    experts: Some(ExpertRule {
        width: ExpertWidthField::Intermediate,
        scores: ScoreRule::SoftmaxOfChosen,
        bias: true,
        ..ExpertRule::SOFTMAX
    }),
    modules: Modules {
        in_layer: &[("mlp.gate", "mlp.router")],
        experts: ExpertForm::Stacked(StackedForm::Transposed { alternate: true }),
        ..LLAMA
    },
    gguf: GgufRule {
        windows: FileWindows::ByLayer,
        // It has no dense blocks, and its experts' width where others have that of dense blocks.
        width: "expert_feed_forward_length",
        norm_behind_attention: true,
        truncates: false,
        ..GgufRule::named("gpt-oss")
    },
    ..PLAIN
};

/// In the older notation it writes that nothing is scaled as `null`.
fn plain_rope(_: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    let object = &mut canonical.object;
    if object.get("rope_scaling").is_some_and(Value::is_null) && !object.contains_key("rope_parameters") {
        object.insert("rope_parameters".to_owned(), json!({"rope_type": "default"}));
    }
    Ok(())
}
