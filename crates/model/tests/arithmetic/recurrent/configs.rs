//! Random small models with recurrent layers: what the reference computes, and config.json as it is published.

use offshoot_core::dice::Dice;
use serde_json::{Value, json};

use super::super::families::configs::between;
use super::super::families::reference::Rope;
use super::reference::{Attention, Conv, Dense, Kda, Latent, Layer, Mamba1, Mamba2, Mixer, Spec};

pub const FAMILIES: [&str; 8] =
    ["bamba", "granitemoehybrid", "nemotron_h", "mamba2", "falcon_h1", "lfm2", "kimi_linear", "jamba"];

pub struct Model {
    pub spec: Spec,
    pub config: Value,
}

/// Sizes that all families have.
struct Sizes {
    hidden: usize,
    width: usize,
    layers: usize,
    attention: Attention,
    mamba: Mamba2,
}

/// A model of a family.
pub fn model(family: &str, dice: &mut Dice) -> Model {
    let kv_heads = dice.pick(&[1, 2]);
    let heads = kv_heads * dice.pick(&[1, 2]);
    let dim = dice.pick(&[8, 12]);
    // Half of each of Bamba's heads is rotated, pair by pair.
    let hidden = if family == "bamba" { 32 } else { dice.pick(&[24, 32]) };
    let attention = Attention {
        module: "self_attn",
        out: "o_proj",
        heads,
        kv_heads,
        dim: if matches!(family, "bamba" | "granitemoehybrid" | "lfm2" | "jamba") { hidden / heads } else { dim },
        rope: None,
        scale: 0.0,
        input: 1.0,
        norms: None,
        bias: false,
    };
    let attention = Attention { scale: (attention.dim as f64).sqrt().recip(), ..attention };
    let groups = dice.pick(&[1, 2]);
    let mamba_heads = groups * dice.pick(&[2, 4]);
    let mamba = Mamba2 {
        module: "mamba",
        heads: mamba_heads,
        dim: 2 * hidden / mamba_heads,
        groups,
        state: dice.pick(&[5, 8]),
        tokens: between(dice, 2, 5),
        conv_bias: dice.one_in(2),
        proj_bias: dice.one_in(2),
        limits: dice.pick(&[[0.0, f64::INFINITY], [0.3, 0.9]]),
        norm: Some(false),
        input: 1.0,
        factors: [1.0; 5],
    };
    let sizes = Sizes { hidden, width: dice.pick(&[20, 40]), layers: between(dice, 2, 4), attention, mamba };
    match family {
        "bamba" => bamba(dice, sizes),
        "granitemoehybrid" => granite(dice, sizes),
        "nemotron_h" => nemotron_h(dice, sizes),
        "mamba2" => mamba2(dice, sizes),
        "falcon_h1" => falcon_h1(dice, sizes),
        "lfm2" => lfm2(dice, sizes),
        "kimi_linear" => kimi_linear(dice, sizes),
        "jamba" => jamba(dice, sizes),
        other => panic!("no family {other}"),
    }
}

fn rope(theta: f64, rotated: usize) -> Rope {
    let frequencies = (0..rotated / 2).map(|i| theta.powf(-2.0 * i as f64 / rotated as f64)).collect();
    Rope { frequencies, magnitude: 1.0 }
}

fn gated(names: [&'static str; 4], width: usize) -> Dense {
    let [norm, gate, up, down] = names;
    Dense { norm, width, gate: Some(gate), up, down, gate_factor: 1.0, factor: 1.0 }
}

const FEED_FORWARD: [&str; 4] =
    ["pre_ff_layernorm", "feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"];
const SHARED_MLP: [&str; 4] =
    ["post_attention_layernorm", "shared_mlp.input_linear", "shared_mlp.input_linear", "shared_mlp.output_linear"];
const MLP: [&str; 4] = ["post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

fn spec(dice: &mut Dice, sizes: &Sizes, layers: Vec<Layer>) -> Spec {
    Spec {
        vocab: between(dice, 40, 70),
        hidden: sizes.hidden,
        eps: dice.pick(&[1e-5, 1e-6]),
        embed: "model.embed_tokens",
        layer: "model.layers.",
        final_norm: "model.norm",
        embed_scale: 1.0,
        logit_scale: 1.0,
        tied: dice.one_in(2),
        layers,
    }
}

/// What most configs say; the names of the epsilon and of the tied head differ.
fn common(spec: &Spec, sizes: &Sizes, family: &str) -> Value {
    json!({
        "model_type": family, "hidden_size": sizes.hidden, "intermediate_size": sizes.width,
        "num_hidden_layers": spec.layers.len(), "num_attention_heads": sizes.attention.heads,
        "num_key_value_heads": sizes.attention.kv_heads, "vocab_size": spec.vocab, "max_position_embeddings": 128,
        "rms_norm_eps": spec.eps, "tie_word_embeddings": spec.tied, "rope_theta": 1000.0, "torch_dtype": "float32"
    })
}

/// The fields of Mamba-2 as Bamba has them.
fn of_mamba(mamba: &Mamba2) -> Value {
    let mut fields = json!({
        "mamba_n_heads": mamba.heads, "mamba_d_head": mamba.dim, "mamba_n_groups": mamba.groups, "mamba_expand": 2,
        "mamba_d_state": mamba.state, "mamba_d_conv": mamba.tokens, "mamba_conv_bias": mamba.conv_bias,
        "mamba_proj_bias": mamba.proj_bias, "mamba_chunk_size": 256
    });
    if mamba.limits[1].is_finite() {
        fields["time_step_limit"] = json!(mamba.limits);
    }
    fields
}

fn with(mut config: Value, more: Value) -> Value {
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// For each layer, whether it has attention: one of them has, and one has not.
fn kinds(dice: &mut Dice, layers: usize) -> Vec<bool> {
    let one = dice.below(layers);
    (0..layers).map(|layer| layer == one).collect()
}

fn bamba(dice: &mut Dice, mut sizes: Sizes) -> Model {
    sizes.attention.rope = Some(rope(1000.0, sizes.attention.dim / 2));
    let kinds = kinds(dice, sizes.layers);
    let layer = |&attends: &bool| Layer {
        mixers: vec![(
            if attends { Mixer::Attention(sizes.attention.clone()) } else { Mixer::Mamba2(sizes.mamba.clone()) },
            1.0,
        )],
        norm: "input_layernorm",
        dense: Some(gated(FEED_FORWARD, sizes.width)),
    };
    let layers = kinds.iter().map(layer).collect();
    let spec = Spec { final_norm: "model.final_layernorm", ..spec(dice, &sizes, layers) };
    let indices: Vec<usize> = (0..kinds.len()).filter(|&layer| kinds[layer]).collect();
    let config = with(common(&spec, &sizes, "bamba"), of_mamba(&sizes.mamba));
    Model { config: with(config, json!({"attn_layer_indices": indices})), spec }
}

fn granite(dice: &mut Dice, mut sizes: Sizes) -> Model {
    let rotates = dice.one_in(2);
    sizes.attention.rope = rotates.then(|| rope(1000.0, sizes.attention.dim));
    sizes.attention.scale = 0.2;
    let factor = dice.pick(&[0.22, 0.5]);
    let kinds = kinds(dice, sizes.layers);
    // A model without experts has the shared block alone.
    let layer = |&attends: &bool| Layer {
        mixers: vec![(
            if attends { Mixer::Attention(sizes.attention.clone()) } else { Mixer::Mamba2(sizes.mamba.clone()) },
            factor,
        )],
        norm: "input_layernorm",
        dense: Some(Dense { factor, ..gated(SHARED_MLP, sizes.width) }),
    };
    let layers = kinds.iter().map(layer).collect();
    let spec = Spec { embed_scale: 3.0, logit_scale: 1.0 / 0.7, ..spec(dice, &sizes, layers) };
    let types: Vec<&str> = kinds.iter().map(|&attends| if attends { "attention" } else { "mamba" }).collect();
    let config = with(common(&spec, &sizes, "granitemoehybrid"), of_mamba(&sizes.mamba));
    let more = json!({
        "layer_types": types, "num_local_experts": 0, "num_experts_per_tok": 0,
        "shared_intermediate_size": sizes.width, "attention_multiplier": 0.2, "embedding_multiplier": 3.0,
        "residual_multiplier": factor, "logits_scaling": 0.7,
        "position_embedding_type": if rotates { "rope" } else { "nope" }
    });
    Model { config: with(config, more), spec }
}

fn nemotron_h(dice: &mut Dice, mut sizes: Sizes) -> Model {
    (sizes.attention.module, sizes.mamba.module) = ("mixer", "mixer");
    sizes.mamba.dim = dice.pick(&[4, 8]);
    sizes.mamba.limits = [0.2, f64::INFINITY];
    let pattern = dice.pick(&["M*-", "M-*M-", "-M*", "MM*-M"]);
    let layer = |letter: char| {
        let mixer = match letter {
            'M' => Some(Mixer::Mamba2(sizes.mamba.clone())),
            '*' => Some(Mixer::Attention(sizes.attention.clone())),
            _ => None,
        };
        let dense = Dense {
            norm: "norm",
            width: sizes.width,
            gate: None,
            up: "mixer.up_proj",
            down: "mixer.down_proj",
            gate_factor: 1.0,
            factor: 1.0,
        };
        let has_mixer = mixer.is_some();
        Layer {
            mixers: mixer.map(|mixer| (mixer, 1.0)).into_iter().collect(),
            norm: "norm",
            dense: (!has_mixer).then_some(dense),
        }
    };
    let layers = pattern.chars().map(layer).collect();
    let spec = Spec {
        embed: "backbone.embeddings",
        layer: "backbone.layers.",
        final_norm: "backbone.norm_f",
        tied: false,
        ..spec(dice, &sizes, layers)
    };
    let mamba = &sizes.mamba;
    let more = json!({
        "hybrid_override_pattern": pattern, "head_dim": sizes.attention.dim, "layer_norm_epsilon": spec.eps,
        "norm_eps": spec.eps, "mamba_num_heads": mamba.heads, "mamba_head_dim": mamba.dim, "n_groups": mamba.groups,
        "ssm_state_size": mamba.state, "conv_kernel": mamba.tokens, "use_conv_bias": mamba.conv_bias,
        "use_bias": mamba.proj_bias, "mamba_proj_bias": false, "expand": 2, "time_step_min": 0.2,
        "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "mlp_bias": false, "attention_bias": false
    });
    let mut config = with(common(&spec, &sizes, "nemotron_h"), more);
    config.as_object_mut().unwrap().remove("rms_norm_eps");
    Model { config, spec }
}

fn mamba2(dice: &mut Dice, mut sizes: Sizes) -> Model {
    sizes.mamba.module = "mixer";
    let layer = |_| Layer { mixers: vec![(Mixer::Mamba2(sizes.mamba.clone()), 1.0)], norm: "norm", dense: None };
    let layers = (0..sizes.layers).map(layer).collect();
    let spec = Spec {
        embed: "backbone.embeddings",
        layer: "backbone.layers.",
        final_norm: "backbone.norm_f",
        ..spec(dice, &sizes, layers)
    };
    let mamba = &sizes.mamba;
    let config = json!({
        "model_type": "mamba2", "hidden_size": sizes.hidden, "num_hidden_layers": spec.layers.len(),
        "vocab_size": spec.vocab, "layer_norm_epsilon": spec.eps, "tie_word_embeddings": spec.tied, "expand": 2,
        "num_heads": mamba.heads, "head_dim": mamba.dim, "n_groups": mamba.groups, "state_size": mamba.state,
        "conv_kernel": mamba.tokens, "use_conv_bias": mamba.conv_bias, "use_bias": mamba.proj_bias,
        "time_step_limit": mamba.limits.map(|limit| if limit.is_finite() { json!(limit) } else { json!("Infinity") }),
        "hidden_act": "silu", "torch_dtype": "float32"
    });
    Model { config, spec }
}

fn falcon_h1(dice: &mut Dice, mut sizes: Sizes) -> Model {
    let norm = dice.pick(&[None, Some(false), Some(true)]);
    sizes.mamba = Mamba2 {
        dim: dice.pick(&[4, 8]),
        proj_bias: false,
        norm,
        input: 1.25,
        factors: [0.7, 0.5, 0.6, 0.9, 0.35],
        ..sizes.mamba
    };
    let (key, of_input, of_output) = (0.39, dice.pick(&[1.0, 0.8]), 0.9375);
    sizes.attention.rope = Some(rope(1000.0, sizes.attention.dim));
    sizes.attention.scale *= key;
    sizes.attention.input = of_input;
    let layer = |_| Layer {
        mixers: vec![
            (Mixer::Mamba2(sizes.mamba.clone()), 0.47),
            (Mixer::Attention(sizes.attention.clone()), of_output),
        ],
        norm: "input_layernorm",
        dense: Some(Dense { gate_factor: 0.88, factor: 0.58, ..gated(FEED_FORWARD, sizes.width) }),
    };
    let layers = (0..sizes.layers).map(layer).collect();
    let spec =
        Spec { final_norm: "model.final_layernorm", embed_scale: 5.65, logit_scale: 0.4, ..spec(dice, &sizes, layers) };
    let config = with(common(&spec, &sizes, "falcon_h1"), of_mamba(&sizes.mamba));
    let more = json!({
        "head_dim": sizes.attention.dim, "mamba_d_ssm": sizes.mamba.heads * sizes.mamba.dim,
        "mamba_rms_norm": norm.is_some(), "mamba_norm_before_gate": norm == Some(true),
        "attention_in_multiplier": of_input, "attention_out_multiplier": of_output, "embedding_multiplier": 5.65,
        "key_multiplier": key, "lm_head_multiplier": 0.4, "mlp_multipliers": [0.88, 0.58], "ssm_in_multiplier": 1.25,
        "ssm_multipliers": sizes.mamba.factors, "ssm_out_multiplier": 0.47
    });
    Model { config: with(config, more), spec }
}

fn lfm2(dice: &mut Dice, mut sizes: Sizes) -> Model {
    sizes.attention = Attention {
        out: "out_proj",
        rope: Some(rope(1000.0, sizes.attention.dim)),
        norms: Some(["q_layernorm", "k_layernorm"]),
        ..sizes.attention
    };
    let conv = Conv { tokens: between(dice, 2, 4), bias: dice.one_in(2) };
    let kinds = kinds(dice, sizes.layers);
    let layer = |&attends: &bool| Layer {
        mixers: vec![(
            if attends { Mixer::Attention(sizes.attention.clone()) } else { Mixer::Conv(conv.clone()) },
            1.0,
        )],
        norm: "operator_norm",
        dense: Some(gated(["ffn_norm", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2"], sizes.width)),
    };
    let layers = kinds.iter().map(layer).collect();
    let spec = Spec { final_norm: "model.embedding_norm", ..spec(dice, &sizes, layers) };
    let types: Vec<&str> = kinds.iter().map(|&attends| if attends { "full_attention" } else { "conv" }).collect();
    let more = json!({
        "layer_types": types, "conv_L_cache": conv.tokens, "conv_bias": conv.bias, "norm_eps": spec.eps,
        "block_auto_adjust_ff_dim": false, "tie_embedding": spec.tied
    });
    let mut config = with(common(&spec, &sizes, "lfm2"), more);
    for name in ["rms_norm_eps", "tie_word_embeddings"] {
        config.as_object_mut().unwrap().remove(name);
    }
    Model { config, spec }
}

fn kimi_linear(dice: &mut Dice, sizes: Sizes) -> Model {
    let kda = Kda { heads: between(dice, 1, 3), dim: dice.pick(&[6, 8]), tokens: between(dice, 2, 4) };
    let latent = Latent { heads: 2, rank: 16, nope: 8, rope: 4, value: 8 };
    let kinds = kinds(dice, sizes.layers);
    let layer = |&attends: &bool| Layer {
        mixers: vec![(if attends { Mixer::Latent(latent.clone()) } else { Mixer::Kda(kda.clone()) }, 1.0)],
        norm: "input_layernorm",
        dense: Some(gated(MLP, sizes.width)),
    };
    let layers = kinds.iter().map(layer).collect();
    let spec = Spec { tied: false, ..spec(dice, &sizes, layers) };
    let counted = |attends: bool| -> Vec<usize> {
        (0..kinds.len()).filter(|&layer| kinds[layer] == attends).map(|layer| layer + 1).collect()
    };
    let more = json!({
        "num_attention_heads": latent.heads, "num_key_value_heads": latent.heads, "head_dim": 12,
        "kv_lora_rank": latent.rank, "q_lora_rank": null, "qk_nope_head_dim": latent.nope,
        "qk_rope_head_dim": latent.rope, "v_head_dim": latent.value, "mla_use_nope": true,
        "first_k_dense_replace": kinds.len(), "num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1,
        "moe_intermediate_size": 8, "model_max_length": 128,
        "linear_attn_config": {
            "full_attn_layers": counted(true), "kda_layers": counted(false), "head_dim": kda.dim,
            "num_heads": kda.heads, "short_conv_kernel_size": kda.tokens
        }
    });
    let mut config = with(common(&spec, &sizes, "kimi_linear"), more);
    config.as_object_mut().unwrap().remove("max_position_embeddings");
    Model { config, spec }
}

fn jamba(dice: &mut Dice, sizes: Sizes) -> Model {
    let mamba = Mamba1 {
        channels: 2 * sizes.hidden,
        state: dice.pick(&[5, 8]),
        rank: dice.pick(&[3, 6]),
        tokens: between(dice, 2, 4),
        conv_bias: dice.one_in(2),
        proj_bias: dice.one_in(2),
    };
    let period = between(dice, 2, 3);
    let offset = dice.below(period);
    let layer = |layer: usize| Layer {
        mixers: vec![(
            if layer % period == offset {
                Mixer::Attention(sizes.attention.clone())
            } else {
                Mixer::Mamba1(mamba.clone())
            },
            1.0,
        )],
        norm: "input_layernorm",
        dense: Some(gated(FEED_FORWARD, sizes.width)),
    };
    let layers = (0..sizes.layers).map(layer).collect();
    let spec = Spec { final_norm: "model.final_layernorm", ..spec(dice, &sizes, layers) };
    let more = json!({
        "attn_layer_period": period, "attn_layer_offset": offset, "expert_layer_period": 2, "expert_layer_offset": 1,
        "num_experts": 1, "num_experts_per_tok": 1, "mamba_expand": 2, "mamba_d_state": mamba.state,
        "mamba_d_conv": mamba.tokens, "mamba_dt_rank": mamba.rank, "mamba_conv_bias": mamba.conv_bias,
        "mamba_proj_bias": mamba.proj_bias
    });
    Model { config: with(common(&spec, &sizes, "jamba"), more), spec }
}
