//! Gemma 2, and the text models of Gemma 3 and 4.

use serde_json::json;

use offshoot_backend::Gate;
use offshoot_core::error::Result;

use super::super::super::fields::Fields;
use super::super::super::layer::Activation;
use super::super::super::modules::{ExpertForm, LLAMA, Modules, StackedForm};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::canonical::Canonical;
use super::super::description::{
    ActivationRule, Beside, Description, ExpertLayers, ExpertRule, Factor, FileWindows, GgufRule, HeadNormRule,
    KeyRule, KindRule, NormKind, NormPlaces, PLAIN, PLAIN_ROPE, RopeRule, Rotated, ScaleRule, WindowRule,
};
use super::super::keys::Why;
use super::olmo::complete_ropes;

/// The `model_type` of Gemma 4's text model in its 12B size: Gemma 4 with other defaults.
pub const GEMMA4_UNIFIED: &str = "gemma4_unified_text";

/// What all of them have.
const GEMMA: Description = Description {
    norm: NormKind::RmsPlusOne,
    places: NormPlaces::Around,
    activation: ActivationRule {
        field: "hidden_activation",
        known: &[
            ("gelu_pytorch_tanh", Activation::Gated(Gate::Gelu)),
            ("gelu_new", Activation::Gated(Gate::Gelu)),
            ("gelu_fast", Activation::Gated(Gate::Gelu)),
        ],
    },
    ignored: &[("hidden_act", Why::Unread)],
    windows: WindowRule::WRITTEN,
    scales: SCALES,
    ..PLAIN
};

const SCALES: ScaleRule = ScaleRule {
    embeddings: Factor::RootOfHidden,
    rounds_embeddings: true,
    scores: Factor::OneOverRoot("query_pre_attn_scalar"),
    logit_cap: Some("final_logit_softcapping"),
    ..ScaleRule::NONE
};

pub const GEMMA2: Description = Description {
    name: "gemma2",
    ignored: &[("sliding_window_size", Why::Repeats("sliding_window"))],
    defaults: || {
        json!({
            "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
            "query_pre_attn_scalar": 256, "tie_word_embeddings": true, "sliding_window": 4096,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "bos_token_id": 2, "eos_token_id": 1,
        })
    },
    kinds: KindRule::every(None, 2, LayerKind::Sliding),
    scales: ScaleRule { score_cap: Some("attn_logit_softcapping"), ..SCALES },
    gguf: GgufRule { windows: FileWindows::ByLayer, scaled_by_hidden: Some(46), ..GgufRule::named("gemma2") },
    ..GEMMA
};

pub const GEMMA3: Description = Description {
    name: "gemma3_text",
    adapt: Some(complete_ropes),
    defaults: || {
        json!({
            "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
            "query_pre_attn_scalar": 256, "tie_word_embeddings": true, "sliding_window": 4096,
            "bos_token_id": 2, "eos_token_id": 1,
        })
    },
    kinds: KindRule::every(Some("sliding_window_pattern"), 6, LayerKind::Sliding),
    rope: RopeRule {
        full: RopeDefaults { theta: 1e6, ..PLAIN_ROPE },
        sliding: RopeDefaults { theta_field: Some("rope_local_base_freq"), scaled: false, ..PLAIN_ROPE },
        rotated: Rotated::All,
    },
    // Its `max_position_embeddings` is what the scaling reaches already.
    stretches_context: false,
    head_norm: Some(HeadNormRule::BY_HEAD),
    gguf: GgufRule { windows: FileWindows::ByLayerOrNone, scaled_by_hidden: Some(62), ..GgufRule::named("gemma3") },
    ..GEMMA
};

pub const GEMMA4: Description = Description {
    name: "gemma4_text",
    also: &[GEMMA4_UNIFIED],
    adapt: Some(unified_defaults),
    defaults: || {
        json!({
            "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
            "tie_word_embeddings": true, "sliding_window": 512, "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 262_144, "bos_token_id": 2, "eos_token_id": 1, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        })
    },
    norm: NormKind::Rms,
    kinds: KindRule { last_is_full: true, ..KindRule::every(None, 6, LayerKind::Sliding) },
    rope: RopeRule::same(RopeDefaults { theta_field: None, scaled: false, ..PLAIN_ROPE }),
    head_norm: Some(HeadNormRule { values: true, ..HeadNormRule::BY_HEAD }),
    keys: KeyRule::Gemma4,
    // Its queries and keys are normalised.
    scales: ScaleRule { scores: Factor::Fixed(1.0), of_layers: true, ..SCALES },
    experts: Some(ExpertRule {
        layers: ExpertLayers::If("enable_moe_block"),
        chosen: "top_k_experts",
        router_norm: true,
        beside: Beside::Dense,
        ..ExpertRule::SOFTMAX
    }),
    modules: Modules {
        in_layer: &[("mlp.gate", "router.proj"), ("mlp.experts", "experts")],
        experts: ExpertForm::Stacked(StackedForm::Plain),
        ..LLAMA
    },
    ..GEMMA
};

fn unified_defaults(_: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    if canonical.object.get("model_type").is_some_and(|name| name == GEMMA4_UNIFIED) {
        for (name, value) in
            [("max_position_embeddings", 262_144), ("sliding_window", 1024), ("hidden_size_per_layer_input", 0)]
        {
            canonical.object.entry(name).or_insert_with(|| value.into());
        }
    }
    Ok(())
}
