//! EXAONE 4.0, and K-EXAONE with experts (`exaone_moe`).

use serde_json::{Value, json};

use offshoot_core::error::Result;

use super::super::super::fields::{Fields, LARGEST_LAYERS, shown};
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::LayerKind;
use super::super::canonical::Canonical;
use super::super::description::{
    Beside, Biases, Description, ExpertLayers, ExpertRule, HeadNormRule, KindRule, NormPlaces, PLAIN, RopeRule,
    Rotated, WindowRule, WindowUse,
};

pub const EXAONE4: Description = Description {
    name: "exaone4",
    adapt: Some(list_kinds),
    defaults: || {
        json!({
            "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 16_384, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5, "sliding_window": 4096, "bos_token_id": 0, "eos_token_id": 2,
        })
    },
    places: NormPlaces::After,
    biases: Biases::NONE,
    kinds: KindRule::every(Some("sliding_window_pattern"), 4, LayerKind::Sliding),
    windows: WindowRule { used: WindowUse::Always, default: None },
    rope: RopeRule { rotated: Rotated::Sliding, ..RopeRule::PLAIN },
    head_norm: Some(HeadNormRule::BY_HEAD),
    ..PLAIN
};

pub const EXAONE_MOE: Description = Description {
    name: "exaone_moe",
    adapt: Some(list_blocks),
    defaults: || {
        json!({
            "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 16_384, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5, "sliding_window": 4096, "bos_token_id": 1, "eos_token_id": 53,
            "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8, "num_shared_experts": 1,
            "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
        })
    },
    places: NormPlaces::Before,
    experts: Some(ExpertRule {
        layers: ExpertLayers::Listed,
        count: &["num_experts"],
        beside: Beside::Shared("num_shared_experts"),
        ..ExpertRule::SIGMOID
    }),
    predicts_further: true,
    modules: Modules { in_layer: &[("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias")], ..LLAMA },
    ..EXAONE4
};

/// `layer_types` of a pattern of letters, "L" with a window and "G" without, which is repeated. Without a window and
/// `layer_types`, no layer has one.
fn list_kinds(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const PATTERN: &str = "sliding_window_pattern";
    let pattern = canonical.object.remove(PATTERN);
    let has_windows = written.value("sliding_window").is_some() || !written.is_written("sliding_window");
    if written.value("layer_types").is_some() {
        return Ok(());
    }
    let layers = written.size("num_hidden_layers", LARGEST_LAYERS)?.unwrap_or(32);
    let letters = match &pattern {
        _ if !has_windows => "G",
        Some(Value::String(letters)) => letters.as_str(),
        Some(Value::Null) | None => return Ok(()),
        Some(_) => {
            canonical.object.extend(pattern.map(|pattern| (PATTERN.to_owned(), pattern)));
            return Ok(());
        }
    };
    let kinds = letters.chars().cycle().take(layers).map(|letter| match letter {
        'L' => Ok(LayerKind::Sliding.name()),
        'G' => Ok(LayerKind::Full.name()),
        _ => Err(written.error(PATTERN, "a number, or letters L and G", shown(&Value::from(letters)))),
    });
    let kinds: Vec<&str> = kinds.collect::<Result<_>>()?;
    if kinds.is_empty() {
        return Err(written.error(PATTERN, "a number, or letters L and G", "\"\""));
    }
    canonical.object.insert("layer_types".to_owned(), kinds.into());
    Ok(())
}

/// The same, and `mlp_layer_types` of `is_moe_layer`, or else of `first_k_dense_replace`.
fn list_blocks(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const LIST: &str = "is_moe_layer";
    const DENSE: &str = "first_k_dense_replace";
    list_kinds(written, canonical)?;
    let (list, dense) = (written.list(LIST)?, written.count(DENSE)?.unwrap_or(1));
    if written.value("mlp_layer_types").is_some() {
        return Ok(());
    }
    let block = |is_sparse| if is_sparse { "sparse" } else { "dense" };
    let of_value = |(layer, value): (usize, &Value)| match value.as_bool() {
        Some(is_sparse) => Ok(block(is_sparse)),
        None => Err(written.error(&format!("{LIST}[{layer}]"), "true or false", shown(value))),
    };
    let layers = written.size("num_hidden_layers", LARGEST_LAYERS)?.unwrap_or(32);
    let (own, blocks): (_, Vec<&str>) = match list {
        Some(list) => (LIST, list.iter().enumerate().map(of_value).collect::<Result<_>>()?),
        None => (DENSE, (0..layers).map(|layer| block(layer as u64 >= dense)).collect()),
    };
    canonical.set(own, "mlp_layer_types", blocks);
    Ok(())
}
