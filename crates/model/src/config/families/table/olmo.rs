//! OLMo 2 and 3, and FlexOlmo: norms behind the blocks, and of all queries and keys as one vector; and OLMoE, with
//! norms before the blocks.

use serde_json::{Value, json};

use offshoot_core::error::Result;

use super::super::super::fields::Fields;
use super::super::super::layer::ExpertWidthField;
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::canonical::Canonical;
use super::super::description::{
    Description, ExpertRule, FileWindows, GgufRule, HeadNormRule, KindRule, NormPlaces, Normalise, PLAIN, PLAIN_ROPE,
    RopeRule, Rotated, WindowRule, WindowUse,
};

pub const OLMO2: Description = Description {
    name: "olmo2",
    defaults: || {
        json!({
            "vocab_size": 50_304, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "eos_token_id": 50_279,
        })
    },
    places: NormPlaces::After,
    head_norm: Some(HeadNormRule::OF_ALL_HEADS),
    gguf: GgufRule { with_windows: Some("olmo3"), ..GgufRule::named("olmo2") },
    ..PLAIN
};

pub const OLMO3: Description = Description {
    name: "olmo3",
    adapt: Some(complete_ropes),
    kinds: KindRule::every(None, 4, LayerKind::Sliding),
    windows: WindowRule { used: WindowUse::Always, default: WindowRule::DEFAULT },
    rope: RopeRule {
        full: RopeDefaults { theta: 500_000.0, ..PLAIN_ROPE },
        sliding: RopeDefaults { theta_field: None, theta: 500_000.0, scaled: false, ..PLAIN_ROPE },
        rotated: Rotated::All,
    },
    gguf: GgufRule { windows: FileWindows::ByLayer, ..GgufRule::NONE },
    ..OLMO2
};

pub const FLEX_OLMO: Description = Description {
    name: "flex_olmo",
    defaults: || {
        json!({
            "vocab_size": 100_352, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "num_experts": 7,
            "num_experts_per_tok": 5, "norm_topk_prob": false, "eos_token_id": 100_257,
        })
    },
    rope: RopeRule::same(RopeDefaults { theta: 500_000.0, ..PLAIN_ROPE }),
    experts: Some(ExpertRule {
        count: &["num_experts"],
        width: ExpertWidthField::Intermediate,
        normalise: Normalise::Written,
        ..ExpertRule::SOFTMAX
    }),
    gguf: GgufRule::NONE,
    ..OLMO2
};

/// Where only one kind of layers has a rope, the other one has a plain rope.
pub fn complete_ropes(_: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];
    let Some(Value::Object(ropes)) = canonical.object.get_mut("rope_parameters") else { return Ok(()) };
    if KINDS.iter().any(|kind| ropes.contains_key(*kind)) {
        for kind in KINDS {
            ropes.entry(kind).or_insert_with(|| json!({"rope_type": "default"}));
        }
    }
    Ok(())
}

pub const OLMOE: Description = Description {
    name: "olmoe",
    defaults: || {
        json!({
            "vocab_size": 50_304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "eos_token_id": 50_279,
            "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false,
        })
    },
    head_norm: Some(HeadNormRule::OF_ALL_HEADS),
    clip: Some("clip_qkv"),
    experts: Some(ExpertRule {
        width: ExpertWidthField::Intermediate,
        normalise: Normalise::Written,
        ..ExpertRule::SOFTMAX
    }),
    ..PLAIN
};
