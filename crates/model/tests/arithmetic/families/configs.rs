//! Random small models of each family: what the reference computes, and config.json in both ways of writing.

use offshoot_core::dice::Dice;
use offshoot_core::mix::fnv1a;
use serde_json::{Value, json};

use super::reference::{Act, Experts, HeadNorms, Layer, Order, Rope, Spec, Stored, Weighing};

pub const FAMILIES: [&str; 17] = [
    "llama",
    "mistral",
    "ministral",
    "ministral3",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "phi",
    "phi3",
    "smollm3",
    "olmo2",
    "olmo3",
    "gemma2",
    "gemma3",
    "gemma4",
    "gpt_oss",
];

/// Context of every model.
const CONTEXT: usize = 128;

pub struct Model {
    pub spec: Spec,
    /// The same model as config.json may say it.
    pub configs: Vec<Value>,
    /// What stands in place of `model.` in the names of tensors.
    pub prefix: String,
}

/// The random numbers of a family.
pub fn dice_of(family: &str, seed: u64) -> Dice {
    Dice::new(seed ^ fnv1a(family.as_bytes()))
}

/// A number from `least` to `most`.
pub fn between(dice: &mut Dice, least: usize, most: usize) -> usize {
    least + dice.below(most - least + 1)
}

/// A rope in config.json: its base, and its scaling without the base.
struct RopeJson {
    theta: f64,
    scaling: Value,
    rope: Rope,
}

fn plain(theta: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect()
}

/// A rope of any kind that all families read.
fn any_rope(dice: &mut Dice, dim: usize) -> RopeJson {
    let theta = dice.pick(&[1000.0, 10_000.0, 500_000.0]);
    let frequencies = plain(theta, dim);
    match between(dice, 0, 2) {
        0 => RopeJson { theta, scaling: json!({"rope_type": "default"}), rope: Rope { frequencies, magnitude: 1.0 } },
        1 => RopeJson {
            theta,
            scaling: json!({"rope_type": "linear", "factor": 4.0}),
            rope: Rope { frequencies: frequencies.iter().map(|f| f / 4.0).collect(), magnitude: 1.0 },
        },
        _ => yarn(theta, dim, dice.one_in(2)),
    }
}

/// Factor 4 over a first context of 16, with turns of 4 and 1, so that a small head has pairs of all three sorts.
fn yarn(theta: f64, dim: usize, truncate: bool) -> RopeJson {
    let pair = |turns: f64| dim as f64 * (16.0 / (turns * std::f64::consts::TAU)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (pair(4.0), pair(1.0));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let stretch = |(i, f): (usize, f64)| {
        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        f / 4.0 * ramp + f * (1.0 - ramp)
    };
    let scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 4.0, "beta_slow": 1.0, "truncate": truncate});
    let frequencies = plain(theta, dim).into_iter().enumerate().map(stretch).collect();
    RopeJson { theta, scaling, rope: Rope { frequencies, magnitude: 0.1 * 4f64.ln() + 1.0 } }
}

/// Both ways of writing one rope for all layers.
fn both_ways(config: &Value, rope: &RopeJson) -> Vec<Value> {
    let mut old = config.clone();
    old["rope_theta"] = rope.theta.into();
    old["rope_scaling"] = match rope.scaling["rope_type"].as_str() {
        Some("default") => Value::Null,
        _ => rope.scaling.clone(),
    };
    let mut new = config.clone();
    new["rope_parameters"] = written(rope);
    vec![old, new]
}

fn written(rope: &RopeJson) -> Value {
    let mut parameters = rope.scaling.clone();
    parameters["rope_theta"] = rope.theta.into();
    parameters
}

/// A plain decoder of random sizes, and its config without ropes.
fn base(dice: &mut Dice, model_type: &str) -> (Spec, Value) {
    let kv_heads = dice.pick(&[1, 2]);
    let heads = kv_heads * dice.pick(&[1, 2, 4]);
    let dim = dice.pick(&[8, 12, 16]);
    let (hidden, width, vocab) = (dice.pick(&[24, 32, 48]), dice.pick(&[20, 40]), between(dice, 40, 70));
    let (layers, eps, tied) = (between(dice, 2, 4), dice.pick(&[1e-5, 1e-6]), dice.one_in(2));
    let layer = Layer {
        heads,
        kv_heads,
        dim,
        window: None,
        rope: None,
        growth: None,
        scale: 1.0 / (dim as f64).sqrt(),
        softcap: None,
        sinks: false,
        head_norms: HeadNorms::None,
        value_norm: false,
        keys_are_values: false,
        reads: None,
        qkv_bias: false,
        out_bias: false,
        fused: false,
        mlp_bias: false,
        act: Act::Silu,
        dense: Some(width),
        experts: None,
        scalar: false,
    };
    let spec = Spec {
        vocab,
        hidden,
        eps,
        plus_one: false,
        layer_norm: false,
        order: Order::Before,
        embed_scale: 1.0,
        final_softcap: None,
        tied,
        inputs: None,
        gemma_names: false,
        layers: vec![layer; layers],
    };
    let config = json!({
        "model_type": model_type, "hidden_size": hidden, "intermediate_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "vocab_size": vocab,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": eps, "tie_word_embeddings": tied, "hidden_act": "silu",
        "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32"
    });
    (spec, config)
}

/// Gives every layer this rope.
fn rotate_all(spec: &mut Spec, rope: &Rope) {
    spec.layers.iter_mut().for_each(|layer| layer.rope = Some(rope.clone()));
}

fn layer_types(dice: &mut Dice, layers: usize) -> Vec<&'static str> {
    (0..layers).map(|_| if dice.one_in(2) { "full_attention" } else { "sliding_attention" }).collect()
}

fn set_windows(spec: &mut Spec, types: &[&str], window: usize) {
    for (layer, kind) in spec.layers.iter_mut().zip(types) {
        layer.window = (*kind == "sliding_attention").then_some(window);
    }
}

pub fn model(family: &str, dice: &mut Dice) -> Model {
    match family {
        "gemma2" | "gemma3" => gemma(family, dice),
        "gemma4" => gemma4(dice),
        "gpt_oss" => gpt_oss(dice),
        "olmo3" => olmo3(dice),
        _ => one_rope(family, dice),
    }
}

/// The families whose layers share one rope.
fn one_rope(family: &str, dice: &mut Dice) -> Model {
    let (mut spec, mut config) = base(dice, family);
    let (layers, window) = (spec.layers.len(), between(dice, 3, 12));
    let dim = spec.layers[0].dim;
    let mut rope = any_rope(dice, dim);
    match family {
        "llama" => {
            let (attention, mlp) = (dice.one_in(2), dice.one_in(2));
            config["attention_bias"] = attention.into();
            config["mlp_bias"] = mlp.into();
            spec.layers.iter_mut().for_each(|layer| {
                (layer.qkv_bias, layer.out_bias, layer.mlp_bias) = (attention, attention, mlp);
            });
        }
        "mistral" => {
            config["sliding_window"] = window.into();
            spec.layers.iter_mut().for_each(|layer| layer.window = Some(window));
        }
        "ministral" => {
            let types = layer_types(dice, layers);
            config["sliding_window"] = window.into();
            config["layer_types"] = json!(types);
            set_windows(&mut spec, &types, window);
        }
        "ministral3" => return ministral3(dice, spec, config),
        "mixtral" => {
            let stored = dice.pick(&[Stored::Mixtral, Stored::Stacked]);
            let experts = experts(dice, stored, Weighing::SoftmaxNormalised);
            if dice.one_in(2) {
                config["sliding_window"] = window.into();
                spec.layers.iter_mut().for_each(|layer| layer.window = Some(window));
            }
            config["num_local_experts"] = experts.count.into();
            config["num_experts_per_tok"] = experts.chosen.into();
            config["intermediate_size"] = experts.width.into();
            spec.layers.iter_mut().for_each(|layer| (layer.dense, layer.experts) = (None, Some(experts.clone())));
        }
        "qwen2" => spec.layers.iter_mut().for_each(|layer| layer.qkv_bias = true),
        "qwen3" => spec.layers.iter_mut().for_each(|layer| layer.head_norms = HeadNorms::Head),
        "qwen3_moe" => qwen3_moe(dice, &mut spec, &mut config),
        "phi" => rope = phi(dice, &mut spec, &mut config),
        "phi3" => rope = phi3(dice, &mut spec, &mut config),
        "smollm3" => {}
        "olmo2" => {
            spec.order = Order::After;
            spec.layers.iter_mut().for_each(|layer| layer.head_norms = HeadNorms::All);
        }
        other => unreachable!("{other}"),
    }
    rotate_all(&mut spec, &rope.rope);
    if family == "smollm3" {
        let rotated: Vec<u8> = (0..layers).map(|_| u8::from(dice.one_in(2))).collect();
        config["no_rope_layers"] = json!(rotated);
        for (layer, rotated) in spec.layers.iter_mut().zip(&rotated) {
            layer.rope.take_if(|_| *rotated == 0);
        }
    }
    let configs = both_ways(&config, &rope);
    let wrapped = family == "mistral" && dice.one_in(2);
    if !wrapped {
        return Model { spec, configs, prefix: "model.".into() };
    }
    let wrap =
        |text: Value| json!({"model_type": "mistral3", "text_config": text, "vision_config": {"hidden_size": 8}});
    Model { spec, configs: configs.into_iter().map(wrap).collect(), prefix: "language_model.model.".into() }
}

/// Yarn, and queries that grow every 16 positions; alone or in its wrapper.
fn ministral3(dice: &mut Dice, mut spec: Spec, config: Value) -> Model {
    let mut rope = yarn(10_000.0, spec.layers[0].dim, true);
    let beta = dice.pick(&[0.1, 0.5]);
    rope.scaling["llama_4_scaling_beta"] = beta.into();
    rotate_all(&mut spec, &rope.rope);
    spec.layers.iter_mut().for_each(|layer| layer.growth = Some((beta, 16)));
    let mut config = config;
    config["rope_parameters"] = written(&rope);
    if dice.one_in(2) {
        return Model { spec, configs: vec![config], prefix: "model.".into() };
    }
    let wrapped = json!({"model_type": "mistral3", "text_config": config, "vision_config": {"hidden_size": 8}});
    Model { spec, configs: vec![wrapped], prefix: "language_model.model.".into() }
}

fn experts(dice: &mut Dice, stored: Stored, weighing: Weighing) -> Experts {
    let count = dice.pick(&[3, 4, 8]);
    Experts { count, chosen: between(dice, 1, 3), width: dice.pick(&[12, 20]), weighing, stored }
}

fn qwen3_moe(dice: &mut Dice, spec: &mut Spec, config: &mut Value) {
    let normalise = dice.one_in(2);
    let weighing = if normalise { Weighing::SoftmaxNormalised } else { Weighing::Softmax };
    let stored = dice.pick(&[Stored::Qwen, Stored::Stacked]);
    let experts = experts(dice, stored, weighing);
    let window = dice.one_in(2).then(|| between(dice, 3, 12));
    config["use_sliding_window"] = window.is_some().into();
    config["sliding_window"] = json!(window);
    // What Qwen3 makes of it does not hold here.
    config["max_window_layers"] = 1.into();
    let (step, dense) = (between(dice, 1, 2), between(dice, 0, spec.layers.len() - 1));
    let name = dice.pick(&["num_experts", "num_local_experts"]);
    config[name] = experts.count.into();
    config["num_experts_per_tok"] = experts.chosen.into();
    config["moe_intermediate_size"] = experts.width.into();
    config["norm_topk_prob"] = normalise.into();
    config["decoder_sparse_step"] = step.into();
    config["mlp_only_layers"] = json!([dense]);
    for (ix, layer) in spec.layers.iter_mut().enumerate() {
        (layer.head_norms, layer.window) = (HeadNorms::Head, window);
        if ix != dense && (ix + 1) % step == 0 {
            (layer.dense, layer.experts) = (None, Some(experts.clone()));
        }
    }
}

fn phi(dice: &mut Dice, spec: &mut Spec, config: &mut Value) -> RopeJson {
    (spec.layer_norm, spec.order, spec.tied) = (true, Order::Parallel, false);
    config["tie_word_embeddings"] = false.into();
    config["layer_norm_eps"] = spec.eps.into();
    config["hidden_act"] = "gelu_new".into();
    for layer in &mut spec.layers {
        (layer.qkv_bias, layer.out_bias, layer.mlp_bias, layer.act) = (true, true, true, Act::PlainGelu);
    }
    let rotary = spec.layers[0].dim / 2;
    config["partial_rotary_factor"] = 0.5.into();
    let theta = dice.pick(&[1000.0, 10_000.0]);
    let frequencies = plain(theta, rotary);
    RopeJson { theta, scaling: json!({"rope_type": "default"}), rope: partial(frequencies) }
}

/// A rope of the first `2 * frequencies.len()` elements of a head.
fn partial(frequencies: Vec<f64>) -> Rope {
    Rope { frequencies, magnitude: 1.0 }
}

/// With longrope, whose original context is shorter or longer than what is read.
fn phi3(dice: &mut Dice, spec: &mut Spec, config: &mut Value) -> RopeJson {
    spec.layers.iter_mut().for_each(|layer| layer.fused = true);
    let dim = spec.layers[0].dim;
    let theta = 10_000.0;
    if dice.one_in(2) {
        config["original_max_position_embeddings"] = 4096.into();
        let rope = Rope { frequencies: plain(theta, dim), magnitude: 1.0 };
        return RopeJson { theta, scaling: json!({"rope_type": "default"}), rope };
    }
    let original = dice.pick(&[10, 100]);
    let factors = |dice: &mut Dice| (0..dim / 2).map(|_| 1.0 + between(dice, 0, 40) as f64 / 8.0).collect::<Vec<f64>>();
    let (short, long) = (factors(dice), factors(dice));
    config["original_max_position_embeddings"] = original.into();
    // Runs have 20 to 61 tokens.
    let used = if original == 10 { &long } else { &short };
    let frequencies = plain(theta, dim).iter().zip(used).map(|(f, factor)| f / factor).collect();
    let factor = CONTEXT as f64 / original as f64;
    let magnitude = (1.0 + factor.ln() / (original as f64).ln()).sqrt();
    let scaling = json!({"rope_type": "longrope", "short_factor": short, "long_factor": long});
    RopeJson { theta, scaling, rope: Rope { frequencies, magnitude } }
}

fn olmo3(dice: &mut Dice) -> Model {
    let (mut spec, mut config) = base(dice, "olmo3");
    let (dim, window) = (spec.layers[0].dim, between(dice, 3, 12));
    let types = layer_types(dice, spec.layers.len());
    spec.order = Order::After;
    config["sliding_window"] = window.into();
    config["layer_types"] = json!(types);
    set_windows(&mut spec, &types, window);
    let full = yarn(500_000.0, dim, true);
    let sliding = RopeJson {
        theta: 500_000.0,
        scaling: json!({"rope_type": "default"}),
        rope: Rope { frequencies: plain(500_000.0, dim), magnitude: 1.0 },
    };
    for layer in &mut spec.layers {
        layer.head_norms = HeadNorms::All;
        layer.rope = Some(if layer.window.is_some() { sliding.rope.clone() } else { full.rope.clone() });
    }
    let mut old = config.clone();
    old["rope_theta"] = 500_000.0.into();
    old["rope_scaling"] = full.scaling.clone();
    config["rope_parameters"] = json!({"full_attention": written(&full), "sliding_attention": written(&sliding)});
    Model { spec, configs: vec![old, config], prefix: "model.".into() }
}

fn gpt_oss(dice: &mut Dice) -> Model {
    let (mut spec, mut config) = base(dice, "gpt_oss");
    let (dim, window) = (spec.layers[0].dim, between(dice, 3, 12));
    let experts = experts(dice, Stored::GptOss, Weighing::SoftmaxOfChosen);
    config["num_local_experts"] = experts.count.into();
    config["num_experts_per_tok"] = experts.chosen.into();
    config["intermediate_size"] = experts.width.into();
    config["attention_bias"] = true.into();
    config["sliding_window"] = window.into();
    let types: Vec<&str> =
        (0..spec.layers.len()).map(|ix| if ix % 2 == 0 { "sliding_attention" } else { "full_attention" }).collect();
    if dice.one_in(2) {
        config["layer_types"] = json!(types);
    }
    set_windows(&mut spec, &types, window);
    for layer in &mut spec.layers {
        (layer.qkv_bias, layer.out_bias, layer.sinks, layer.act) = (true, true, true, Act::Clamped);
        (layer.dense, layer.experts) = (None, Some(experts.clone()));
    }
    let rope = yarn(150_000.0, dim, false);
    rotate_all(&mut spec, &rope.rope);
    Model { spec, configs: both_ways(&config, &rope), prefix: "model.".into() }
}

fn gemma(family: &str, dice: &mut Dice) -> Model {
    let (mut spec, mut config) = base(dice, family);
    let (layers, dim, window) = (spec.layers.len(), spec.layers[0].dim, between(dice, 3, 12));
    gemma_facts(&mut spec, &mut config);
    spec.plus_one = true;
    let scalar = dice.pick(&[dim, 24]);
    config["query_pre_attn_scalar"] = scalar.into();
    config["sliding_window"] = window.into();
    let period = if family == "gemma2" { 2 } else { between(dice, 2, 3) };
    let types: Vec<&str> =
        (0..layers).map(|ix| if (ix + 1) % period == 0 { "full_attention" } else { "sliding_attention" }).collect();
    set_windows(&mut spec, &types, window);
    spec.layers.iter_mut().for_each(|layer| layer.scale = 1.0 / (scalar as f64).sqrt());
    if family == "gemma2" {
        let (attention, last) = (dice.pick(&[None, Some(5.0)]), dice.pick(&[None, Some(4.0)]));
        config["attn_logit_softcapping"] = json!(attention);
        config["final_logit_softcapping"] = json!(last);
        spec.final_softcap = last;
        spec.layers.iter_mut().for_each(|layer| layer.softcap = attention);
        let rope = any_rope(dice, dim);
        rotate_all(&mut spec, &rope.rope);
        return Model { spec, configs: both_ways(&config, &rope), prefix: "model.".into() };
    }
    let full = RopeJson {
        theta: 1e6,
        scaling: json!({"rope_type": "linear", "factor": 8.0}),
        rope: Rope { frequencies: plain(1e6, dim).iter().map(|f| f / 8.0).collect(), magnitude: 1.0 },
    };
    let sliding = RopeJson {
        theta: 1000.0,
        scaling: json!({"rope_type": "default"}),
        rope: Rope { frequencies: plain(1000.0, dim), magnitude: 1.0 },
    };
    for layer in &mut spec.layers {
        layer.head_norms = HeadNorms::Head;
        layer.rope = Some(if layer.window.is_some() { sliding.rope.clone() } else { full.rope.clone() });
    }
    config["model_type"] = "gemma3_text".into();
    let mut old = config.clone();
    old["rope_theta"] = 1e6.into();
    old["rope_local_base_freq"] = 1000.0.into();
    old["rope_scaling"] = full.scaling.clone();
    old["sliding_window_pattern"] = period.into();
    config["layer_types"] = json!(types);
    config["rope_parameters"] = json!({"full_attention": written(&full), "sliding_attention": written(&sliding)});
    if !dice.one_in(2) {
        return Model { spec, configs: vec![old, config], prefix: "model.".into() };
    }
    // The published wrapper: the nested config need not name its type, and the outer one says what is tied.
    let wrap = |mut text: Value| {
        let tied = text["tie_word_embeddings"].take();
        text.as_object_mut().unwrap().remove("tie_word_embeddings");
        text.as_object_mut().unwrap().remove("model_type");
        json!({"model_type": "gemma3", "text_config": text, "vision_config": {}, "tie_word_embeddings": tied})
    };
    let prefix = dice.pick(&["model.language_model.", "language_model.model."]).to_owned();
    Model { spec, configs: vec![wrap(old), wrap(config)], prefix }
}

/// What all Gemmas share.
fn gemma_facts(spec: &mut Spec, config: &mut Value) {
    (spec.order, spec.gemma_names) = (Order::Around, true);
    spec.embed_scale = f64::from((spec.hidden as f32).sqrt());
    spec.layers.iter_mut().for_each(|layer| layer.act = Act::Gelu);
    config.as_object_mut().unwrap().remove("hidden_act");
    config["hidden_activation"] = "gelu_pytorch_tanh".into();
}

fn gemma4(dice: &mut Dice) -> Model {
    let (mut spec, mut config) = base(dice, "gemma4_text");
    gemma_facts(&mut spec, &mut config);
    let (layers, window) = (between(dice, 3, 6), between(dice, 3, 12));
    spec.layers = vec![spec.layers[0].clone(); layers];
    config["num_hidden_layers"] = layers.into();
    config["sliding_window"] = window.into();
    let mut types = layer_types(dice, layers);
    (types[0], types[1], types[layers - 1]) = ("sliding_attention", "full_attention", "full_attention");
    config["layer_types"] = json!(types);
    set_windows(&mut spec, &types, window);
    let shared = between(dice, 0, layers - 2);
    let (equal, doubled, scaled, mixed) = (dice.one_in(2), dice.one_in(2), dice.one_in(2), dice.one_in(2));
    config["num_kv_shared_layers"] = shared.into();
    config["attention_k_eq_v"] = equal.into();
    config["use_double_wide_mlp"] = doubled.into();
    config["enable_moe_block"] = mixed.into();
    config["final_logit_softcapping"] = if scaled { json!(3.0) } else { Value::Null };
    spec.final_softcap = scaled.then_some(3.0);
    let experts = experts(dice, Stored::Gemma, Weighing::SoftmaxNormalised);
    if mixed {
        config["num_experts"] = experts.count.into();
        config["top_k_experts"] = experts.chosen.into();
        config["moe_intermediate_size"] = experts.width.into();
    }
    let inputs = dice.one_in(2).then(|| (dice.pick(&[4, 8]), spec.vocab + between(dice, 0, 5)));
    config["hidden_size_per_layer_input"] = inputs.map_or(0, |(width, _)| width).into();
    config["vocab_size_per_layer_input"] = inputs.map_or(spec.vocab, |(_, rows)| rows).into();
    spec.inputs = inputs;

    let (wide, heads) = (dice.pick(&[20, 32]), spec.layers[0].heads);
    let few = if equal { 1 } else { spec.layers[0].kv_heads };
    let first_shared = layers - shared;
    for ix in 0..layers {
        let layer = &mut spec.layers[ix];
        (layer.scale, layer.head_norms, layer.value_norm, layer.scalar) = (1.0, HeadNorms::Head, true, true);
        layer.experts = mixed.then(|| experts.clone());
        let full = types[ix] == "full_attention";
        if full {
            (layer.dim, layer.kv_heads, layer.heads) = (wide, few, heads);
            layer.keys_are_values = equal;
        }
        let dim = layer.dim;
        layer.rope = Some(if full { proportional(1e5, dim) } else { partial(plain(1000.0, dim)) });
        if ix >= first_shared {
            layer.reads = types[..first_shared].iter().rposition(|other| *other == types[ix]);
            layer.dense = layer.dense.map(|width| if doubled { 2 * width } else { width });
        }
    }
    config["rope_parameters"] = json!({
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}
    });
    // As published, and as transformers 5 writes it.
    let mut old = config.clone();
    old["global_head_dim"] = wide.into();
    old["num_global_key_value_heads"] = few.into();
    let mut own = json!({});
    for (ix, kind) in types.iter().enumerate().filter(|(_, kind)| **kind == "full_attention") {
        assert_eq!(*kind, "full_attention");
        own[ix.to_string()] = json!({"head_dim": wide, "num_key_value_heads": few});
    }
    config["per_layer_config"] = own;
    let wrap = |text: Value| json!({"model_type": "gemma4", "text_config": text, "audio_config": null});
    if dice.one_in(2) {
        let configs = vec![wrap(old), wrap(config)];
        return Model { spec, configs, prefix: "model.language_model.".into() };
    }
    Model { spec, configs: vec![old, config], prefix: "model.".into() }
}

/// A quarter of the pairs turn, by the wavelengths of the whole head.
fn proportional(theta: f64, dim: usize) -> Rope {
    let turning = (dim as f64 * 0.25 / 2.0) as usize;
    let all = plain(theta, dim).into_iter().enumerate();
    partial(all.map(|(i, frequency)| if i < turning { frequency } else { 0.0 }).collect())
}
