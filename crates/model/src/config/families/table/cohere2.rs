//! Command R7B and A (`cohere2`), and their kin with experts.

use serde_json::{Value, json};

use offshoot_backend::RopePairs;
use offshoot_core::error::Result;

use super::super::super::fields::{Fields, LARGEST_LAYERS};
use super::super::super::layer::ExpertWidthField;
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::canonical::Canonical;
use super::super::description::{
    Beside, Description, ExpertLayers, ExpertRule, Factor, KindRule, NormKind, NormPlaces, Normalise, PLAIN,
    PLAIN_ROPE, RopeRule, Rotated, ScaleRule, ScoreRule, WindowRule,
};
use super::super::keys::Why;

const PATTERN: &str = "sliding_window_pattern";

pub const COHERE2: Description = Description {
    name: "cohere2",
    defaults: || {
        json!({
            "vocab_size": 256_000, "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "max_position_embeddings": 8192, "logit_scale": 0.0625,
            "tie_word_embeddings": true, "sliding_window": 4096, "bos_token_id": 5, "eos_token_id": 255_001,
        })
    },
    fixed: &[
        ("order_of_interleaved_layers", "\"local_attn_first\""),
        ("position_embedding_type", "\"rope_gptj\""),
        ("rotary_pct", "1.0"),
        ("use_gated_activation", "true"),
        ("use_parallel_block", "true"),
        ("use_qk_norm", "false"),
    ],
    ignored: &[
        ("layer_switch", Why::Repeats(PATTERN)),
        ("use_embedding_sharing", Why::Repeats("tie_word_embeddings")),
        ("use_parallel_embedding", Why::Kernel),
    ],
    norm: NormKind::LayerNoBias,
    eps: ("layer_norm_eps", 1e-5),
    places: NormPlaces::Parallel,
    kinds: KindRule::every(Some(PATTERN), 4, LayerKind::Sliding),
    windows: WindowRule::WRITTEN,
    rope: RopeRule {
        rotated: Rotated::Sliding,
        ..RopeRule::same(RopeDefaults { pairs: RopePairs::Neighbours, ..PLAIN_ROPE })
    },
    scales: ScaleRule { logits: Factor::Field("logit_scale"), ..ScaleRule::NONE },
    ..PLAIN
};

pub const COHERE2_MOE: Description = Description {
    name: "cohere2_moe",
    adapt: Some(list_layers),
    defaults: || {
        json!({
            "vocab_size": 256_000, "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "head_dim": 128, "max_position_embeddings": 8192, "logit_scale": 0.0625,
            "tie_word_embeddings": true, "sliding_window": 4096, "bos_token_id": 5, "eos_token_id": 255_001,
            "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
        })
    },
    fixed: &[
        ("order_of_interleaved_layers", "\"local_attn_first\""),
        ("position_embedding_type", "\"rope_gptj\""),
        ("rotary_pct", "1.0"),
        ("use_gated_activation", "true"),
        ("use_parallel_block", "true"),
        ("use_qk_norm", "false"),
        // With it, norms would be others.
        ("rms_norm_eps", "null"),
        // What transformers computes with it is another rope than that of its kind.
        ("rope_scaling", "null"),
    ],
    rope: RopeRule { rotated: Rotated::Listed, ..COHERE2.rope },
    dense_width: &["prefix_dense_intermediate_size", "intermediate_size"],
    experts: Some(ExpertRule {
        layers: ExpertLayers::Listed,
        count: &["num_experts"],
        width: ExpertWidthField::Intermediate,
        scores: ScoreRule::OfChosen("expert_selection_fn"),
        normalise: Normalise::Written,
        beside: Beside::Shared("num_shared_experts"),
        average: Some("shared_expert_combination_strategy"),
        ..ExpertRule::SOFTMAX
    }),
    ..COHERE2
};

/// The first layers have dense blocks, and a pattern of windows of their own: with a period of one they have ropes too.
fn list_layers(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    let size = |name: &str, usual| Ok(written.size(name, LARGEST_LAYERS)?.unwrap_or(usual));
    let layers: usize = size("num_hidden_layers", 40)?;
    let (first, rest) = (size("prefix_dense_sliding_window_pattern", 1)?, size(PATTERN, 4)?);
    let dense = written.count("first_k_dense_replace")?.map_or(0, |dense| dense.min(layers as u64) as usize);
    let kind = |layer: usize, period| match (layer + 1).is_multiple_of(period) {
        true => LayerKind::Full.name(),
        false => LayerKind::Sliding.name(),
    };
    let of_first = (0..dense).map(|layer| kind(layer, first));
    let kinds = of_first.chain((0..layers - dense).map(|layer| kind(layer, rest)));
    let blocks = (0..layers).map(|layer| if layer < dense { "dense" } else { "sparse" });
    let object = &mut canonical.object;
    for (name, values) in [("layer_types", kinds.collect::<Value>()), ("mlp_layer_types", blocks.collect())] {
        if written.value(name).is_none() {
            object.insert(name.to_owned(), values);
        }
    }
    let says = |name: &str, layer: usize, word: &str| object.get(name).is_some_and(|list| list[layer] == word);
    let is_rotated = |layer| {
        says("layer_types", layer, LayerKind::Sliding.name()) || (first == 1 && says("mlp_layer_types", layer, "dense"))
    };
    let rotated: Value = (0..layers).map(|layer| u64::from(is_rotated(layer))).collect();
    object.insert("no_rope_layers".to_owned(), rotated);
    Ok(())
}
