//! Nemotron-H: layers of one block each, which is Mamba-2, attention, a dense block or a mixture of experts.

use serde_json::{Value, json};

use offshoot_core::error::Result;

use super::super::super::fields::{Fields, shown};
use super::super::super::layer::Activation;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::LayerKind;
use super::super::canonical::Canonical;
use super::super::description::{
    ActivationRule, Beside, Bias, Biases, Blocks, Description, ExpertLayers, ExpertRule, KindRule, PLAIN, RopeRule,
    Rotated,
};
use super::super::keys::Why;
use super::super::recurrent;

pub const NEMOTRON_H: Description = Description {
    name: "nemotron_h",
    renamed: &[
        ("mamba_num_heads", "mamba_n_heads"),
        ("mamba_head_dim", "mamba_d_head"),
        ("n_groups", "mamba_n_groups"),
        ("ssm_state_size", "mamba_d_state"),
        ("conv_kernel", "mamba_d_conv"),
        ("use_conv_bias", "mamba_conv_bias"),
        // The projections follow this field, whatever `mamba_proj_bias` says.
        ("use_bias", "mamba_proj_bias"),
    ],
    adapt: Some(read_blocks),
    defaults: || {
        json!({
            "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 21_504, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096, "mamba_n_heads": 128,
            "mamba_d_head": 64, "mamba_n_groups": 8, "mamba_d_state": 128, "mamba_d_conv": 4,
            "mamba_proj_bias": false, "n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
            "norm_topk_prob": true, "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    fixed: &[("mamba_hidden_act", "\"silu\""), ("attention_bias", "false"), ("n_shared_experts", "1")],
    ignored: &[
        ("expand", Why::Unread),
        ("norm_eps", Why::Repeats("layer_norm_epsilon")),
        ("moe_shared_expert_overlap", Why::Kernel),
    ],
    eps: ("layer_norm_epsilon", 1e-5),
    blocks: Blocks::One,
    biases: Biases { mlp: Bias::Flag("mlp_bias"), ..Biases::NONE },
    activation: ActivationRule { field: "mlp_hidden_act", known: &[("relu2", Activation::ReluSquared)] },
    kinds: KindRule::all(LayerKind::Linear),
    rope: RopeRule { rotated: Rotated::None, ..RopeRule::PLAIN },
    experts: Some(ExpertRule {
        layers: ExpertLayers::Listed,
        beside: Beside::Ungated("moe_shared_expert_intermediate_size"),
        latent: Some("moe_latent_size"),
        ..ExpertRule::SIGMOID
    }),
    recurrent: Some(recurrent::mamba2),
    predicts_further: true,
    modules: Modules {
        in_layer: &[
            ("mamba", "mixer"),
            ("self_attn", "mixer"),
            ("mlp", "mixer"),
            ("input_layernorm", "norm"),
            ("post_attention_layernorm", "norm"),
        ],
        outside: &[
            ("model.embed_tokens", "backbone.embeddings"),
            ("model.layers", "backbone.layers"),
            ("model.norm", "backbone.norm_f"),
        ],
        ..LLAMA
    },
    ..PLAIN
};

/// A letter or a word names the block of each layer, of which there are as many. transformers clamps steps by
/// `time_step_min` where it computes a prompt, and nowhere else; here they are clamped wherever a row is computed.
fn read_blocks(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const PATTERN: &str = "hybrid_override_pattern";
    const WORDS: [&str; 2] = ["layers_block_type", "layer_types"];
    let mut blocks = Vec::new();
    let listed = WORDS.into_iter().find(|name| written.value(name).is_some());
    if let Some(name) = listed {
        for (layer, word) in written.list(name)?.unwrap_or_default().iter().enumerate() {
            let known = word.as_str().and_then(block_of);
            let place = format!("{name}[{layer}]");
            let expected = "mamba, attention, mlp or moe";
            blocks.push(known.ok_or_else(|| written.error(&place, expected, shown(word)))?);
        }
    } else if let Some(pattern) = written.text(PATTERN)? {
        for letter in pattern.chars() {
            let found = || written.error(PATTERN, "letters M, *, - or E", format!("\"{letter}\""));
            blocks.push(block_of(&letter.to_string()).ok_or_else(found)?);
        }
    }
    for name in WORDS.into_iter().chain([PATTERN]) {
        canonical.object.remove(name);
    }
    let own = listed.unwrap_or(PATTERN);
    let part = |which: fn(&(LayerKind, &'static str)) -> &'static str| -> Value {
        blocks.iter().map(which).collect::<Vec<_>>().into()
    };
    canonical.set(own, "num_hidden_layers", blocks.len());
    canonical.set(own, "layer_types", part(|(kind, _)| kind.name()));
    canonical.set(own, "mlp_layer_types", part(|(_, block)| block));
    if written.value("use_bias").is_none() {
        canonical.object.remove("mamba_proj_bias");
    }
    let least = written.positive("time_step_min")?.unwrap_or(0.001);
    canonical.set("time_step_min", "time_step_limit", json!([least, "Infinity"]));
    Ok(())
}

/// What a block is: the kind of its mixer, and the kind of its feed-forward block.
fn block_of(name: &str) -> Option<(LayerKind, &'static str)> {
    Some(match name {
        "M" | "mamba" | "linear_attention" => (LayerKind::Linear, "dense"),
        "*" | "attention" | "full_attention" => (LayerKind::Full, "dense"),
        "-" | "mlp" => (LayerKind::None, "dense"),
        "E" | "moe" => (LayerKind::None, "sparse"),
        _ => return None,
    })
}
