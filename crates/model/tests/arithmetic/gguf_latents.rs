//! GGUF files of models with latent attention against the same weights in a folder of safetensors: the maps of latents
//! in one tensor and in two, experts in one tensor for all, and layers that predict further tokens.

use std::collections::BTreeMap;

use crate::gguf_files::GgufWriter;
use offshoot_backend::Dtype;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_gguf::TensorType;
use offshoot_model::{Decoder, ModelFolder, Sequence};
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

const VOCAB: usize = 48;
const HIDDEN: usize = 32;
const HEADS: usize = 4;
const RANK: usize = 32;
const NOPE: usize = 32;
const ROPE: usize = 8;
const VALUE: usize = 12;
const QUERY_RANK: usize = 16;
const INNER: usize = 40;
const WIDTH: usize = 16;
const EXPERTS: usize = 8;
const LAYERS: usize = 3;

/// What differs between the models.
#[derive(Clone, Copy)]
struct Kind {
    query_rank: bool,
    /// Layers before the first with experts.
    dense: usize,
    choosing_bias: bool,
    /// Experts' matrices in two tensors of all.
    stacked: bool,
}

const DEEPSEEK_V3: Kind = Kind { query_rank: true, dense: 1, choosing_bias: true, stacked: false };
const DEEPSEEK_V2: Kind = Kind { query_rank: false, dense: 1, choosing_bias: false, stacked: false };
const MISTRAL4: Kind = Kind { query_rank: true, dense: 0, choosing_bias: false, stacked: true };
/// MiniCPM3, and DeepSeek-V2 where every layer is dense.
const DENSE: Kind = Kind { query_rank: true, dense: LAYERS, choosing_bias: false, stacked: false };

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The tensors of a model by the names of published checkpoints, with a layer that predicts further tokens behind it.
fn tensors(kind: Kind) -> Tensors {
    let mut dice = Dice::new(11);
    let mut all = Tensors::new();
    let mut draw = |name: String, shape: &[usize]| {
        let is_norm = name.ends_with("norm.weight");
        let (centre, reach) = if is_norm { (1.0, 0.4) } else { (0.0, (3.0 / shape[shape.len() - 1] as f32).sqrt()) };
        let values = dice.numbers(shape.iter().product()).into_iter().map(|x| centre + reach * x).collect();
        all.insert(name, (shape.to_vec(), values));
    };
    draw("model.embed_tokens.weight".to_owned(), &[VOCAB, HIDDEN]);
    draw("lm_head.weight".to_owned(), &[VOCAB, HIDDEN]);
    draw("model.norm.weight".to_owned(), &[HIDDEN]);
    for layer in 0..=LAYERS {
        let mut of_layer = |module: &str, shape: &[usize]| draw(format!("model.layers.{layer}.{module}"), shape);
        if layer == LAYERS {
            of_layer("eh_proj.weight", &[HIDDEN, 2 * HIDDEN]);
        }
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            of_layer(&format!("{norm}.weight"), &[HIDDEN]);
        }
        let queries = HEADS * (NOPE + ROPE);
        if kind.query_rank {
            of_layer("self_attn.q_a_proj.weight", &[QUERY_RANK, HIDDEN]);
            of_layer("self_attn.q_a_layernorm.weight", &[QUERY_RANK]);
            of_layer("self_attn.q_b_proj.weight", &[queries, QUERY_RANK]);
        } else {
            of_layer("self_attn.q_proj.weight", &[queries, HIDDEN]);
        }
        of_layer("self_attn.kv_a_proj_with_mqa.weight", &[RANK + ROPE, HIDDEN]);
        of_layer("self_attn.kv_a_layernorm.weight", &[RANK]);
        of_layer("self_attn.kv_b_proj.weight", &[HEADS * (NOPE + VALUE), RANK]);
        of_layer("self_attn.o_proj.weight", &[HIDDEN, HEADS * VALUE]);
        let mut block = |folder: &str, width: usize| {
            of_layer(&format!("{folder}.gate_proj.weight"), &[width, HIDDEN]);
            of_layer(&format!("{folder}.up_proj.weight"), &[width, HIDDEN]);
            of_layer(&format!("{folder}.down_proj.weight"), &[HIDDEN, width]);
        };
        if layer < kind.dense {
            block("mlp", INNER);
            continue;
        }
        block("mlp.shared_experts", WIDTH);
        if !kind.stacked {
            (0..EXPERTS).for_each(|expert| block(&format!("mlp.experts.{expert}"), WIDTH));
        } else {
            of_layer("mlp.experts.gate_up_proj", &[EXPERTS, 2 * WIDTH, HIDDEN]);
            of_layer("mlp.experts.down_proj", &[EXPERTS, HIDDEN, WIDTH]);
        }
        of_layer("mlp.gate.weight", &[EXPERTS, HIDDEN]);
        if kind.choosing_bias {
            of_layer("mlp.gate.e_score_correction_bias", &[EXPERTS]);
        }
    }
    all
}

/// The config.json of a model.
fn config(family: &str, changes: Value) -> Value {
    let mut config = json!({
        "model_type": family, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "vocab_size": VOCAB, "max_position_embeddings": 256, "kv_lora_rank": RANK,
        "q_lora_rank": QUERY_RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE,
        "moe_intermediate_size": WIDTH, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 3,
        "first_k_dense_replace": 1, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    config
}

/// Maps to keys `[heads, rank, nope]` and to values `[heads, value, rank]`, as newer files have them.
fn parts_of_maps(maps: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for head in maps.chunks_exact((NOPE + VALUE) * RANK) {
        keys.extend((0..RANK * NOPE).map(|at| head[at % NOPE * RANK + at / NOPE]));
        values.extend_from_slice(&head[NOPE * RANK..]);
    }
    (keys, values)
}

/// How a file has the maps of latents.
#[derive(Clone, Copy, PartialEq)]
enum Maps {
    One,
    Two,
}

/// The file's name of a tensor that is alone in it.
fn name_in_file(name: &str) -> Option<String> {
    const OUTSIDE: [(&str, &str); 3] = [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ];
    const INSIDE: [(&str, &str); 19] = [
        ("input_layernorm.weight", "attn_norm.weight"),
        ("post_attention_layernorm.weight", "ffn_norm.weight"),
        ("self_attn.q_proj.weight", "attn_q.weight"),
        ("self_attn.q_a_proj.weight", "attn_q_a.weight"),
        ("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"),
        ("self_attn.q_b_proj.weight", "attn_q_b.weight"),
        ("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"),
        ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"),
        ("self_attn.o_proj.weight", "attn_output.weight"),
        ("mlp.gate_proj.weight", "ffn_gate.weight"),
        ("mlp.up_proj.weight", "ffn_up.weight"),
        ("mlp.down_proj.weight", "ffn_down.weight"),
        ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
        ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
        ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
        ("mlp.gate.weight", "ffn_gate_inp.weight"),
        ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ];
    let of = |table: &[(&str, &str)], name: &str| {
        table.iter().find(|(ours, _)| *ours == name).map(|(_, theirs)| (*theirs).to_owned())
    };
    let Some((layer, module)) = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) else {
        return of(&OUTSIDE, name);
    };
    match module {
        "eh_proj.weight" => Some(format!("blk.{layer}.nextn.eh_proj.weight")),
        module => Some(format!("blk.{layer}.{}", of(&INSIDE, module)?)),
    }
}

/// The tensors as a file of `architecture` has them, with the keys that all kinds share.
fn file(architecture: &str, tensors: &Tensors, maps: Maps) -> GgufWriter {
    let key = |key: &str| format!("{architecture}.{key}");
    let mut writer = GgufWriter::default()
        .text("general.architecture", architecture)
        .count(&key("context_length"), 256)
        .count(&key("embedding_length"), HIDDEN as u32)
        .count(&key("block_count"), LAYERS as u32 + 1)
        .count(&key("nextn_predict_layers"), 1)
        .count(&key("feed_forward_length"), INNER as u32)
        .count(&key("attention.head_count"), HEADS as u32)
        .count(&key("attention.head_count_kv"), if maps == Maps::One { HEADS as u32 } else { 1 })
        .count(&key("attention.kv_lora_rank"), RANK as u32)
        .count(&key("attention.q_lora_rank"), QUERY_RANK as u32)
        .count(&key("rope.dimension_count"), ROPE as u32)
        .count(&key("expert_feed_forward_length"), WIDTH as u32)
        .count(&key("expert_count"), EXPERTS as u32)
        .count(&key("expert_used_count"), 3)
        .count(&key("expert_shared_count"), 1)
        .number(&key("rope.freq_base"), 10_000.0)
        .number(&key("attention.layer_norm_rms_epsilon"), 1e-5);
    writer = match maps {
        Maps::One => writer
            .count(&key("attention.key_length"), (NOPE + ROPE) as u32)
            .count(&key("attention.value_length"), VALUE as u32),
        Maps::Two => writer
            .count(&key("attention.key_length"), (RANK + ROPE) as u32)
            .count(&key("attention.value_length"), RANK as u32)
            .count(&key("attention.key_length_mla"), (NOPE + ROPE) as u32)
            .count(&key("attention.value_length_mla"), VALUE as u32),
    };
    let mut experts: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for (name, (shape, values)) in tensors {
        if let Some(theirs) = name_in_file(name) {
            writer = writer.f32(&theirs, shape, values);
            continue;
        }
        let (layer, module) = name.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
        match (module, maps) {
            ("self_attn.kv_b_proj.weight", Maps::One) => {
                writer = writer.f32(&format!("blk.{layer}.attn_kv_b.weight"), shape, values);
            }
            ("self_attn.kv_b_proj.weight", Maps::Two) => {
                let (keys, of_values) = parts_of_maps(values);
                writer = writer.f32(&format!("blk.{layer}.attn_k_b.weight"), &[HEADS, RANK, NOPE], &keys);
                writer = writer.f32(&format!("blk.{layer}.attn_v_b.weight"), &[HEADS, VALUE, RANK], &of_values);
            }
            (module, _) => {
                let kind = module.rsplit('.').nth(1).unwrap().trim_end_matches("_proj");
                experts.entry(format!("blk.{layer}.ffn_{kind}_exps.weight")).or_default().extend(values);
            }
        }
    }
    for (name, values) in experts {
        let shape = if name.contains("down") { [EXPERTS, HIDDEN, WIDTH] } else { [EXPERTS, WIDTH, HIDDEN] };
        writer = writer.f32(&name, &shape, &values);
    }
    writer
}

fn logits(folder: &ModelFolder) -> Vec<f32> {
    let tokens: Vec<TokenId> = (0..40).map(|i| TokenId::new(i * 7 % VOCAB)).collect();
    let mut backend = Cpu::open().unwrap();
    let mut model = Decoder::load(&mut backend, folder).unwrap();
    let mut sequence = Sequence::new(&mut backend, &mut model, tokens.len()).unwrap();
    sequence.extend(&tokens, 0..tokens.len() as u32).unwrap()
}

fn logits_of_folder(config: &Value, tensors: &Tensors) -> Vec<f32> {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> =
        tensors.iter().map(|(name, (shape, x))| (name, shape, Dtype::F32.encode(x))).collect();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        (*name, TensorView::new(safetensors::Dtype::F32, (*shape).clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    logits(&ModelFolder::open(folder.path()).unwrap())
}

fn opened(file: &GgufWriter) -> (TempDir, offshoot_core::Result<ModelFolder>) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let opened = ModelFolder::open(&path);
    (folder, opened)
}

fn logits_of_file(file: &GgufWriter) -> Vec<f32> {
    let (_folder, opened) = opened(file);
    let mut opened = opened.unwrap();
    opened.dtype = Some(Dtype::F32);
    logits(&opened)
}

/// The error of a file, of its metadata or of its tensors.
fn fault(file: &GgufWriter) -> String {
    let (_folder, opened) = opened(file);
    let loaded = opened.and_then(|folder| Decoder::load(&mut Cpu::open().unwrap(), &folder).map(|_| ()));
    loaded.expect_err("it is wrong").to_string()
}

fn assert_says(file: &GgufWriter, said: &[&str]) {
    let error = fault(file);
    assert!(said.iter().all(|said| error.contains(said)), "{said:?} is not in: {error}");
}

/// A file of `tensors` of DeepSeek-V3.
fn deepseek_v3(tensors: &Tensors, maps: Maps) -> GgufWriter {
    file("deepseek2", tensors, maps)
        .count("deepseek2.leading_dense_block_count", 1)
        .count("deepseek2.expert_gating_func", 2)
        .count("deepseek2.expert_group_count", 4)
        .count("deepseek2.expert_group_used_count", 2)
        .number("deepseek2.expert_weights_scale", 2.5)
        .flag("deepseek2.expert_weights_norm", true)
}

#[test]
fn maps_are_read_from_one_tensor_and_from_two() {
    let tensors = tensors(DEEPSEEK_V3);
    let of_folder = json!({"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5});
    let expected = logits_of_folder(&config("deepseek_v3", of_folder), &tensors);
    for maps in [Maps::One, Maps::Two] {
        assert_eq!(logits_of_file(&deepseek_v3(&tensors, maps)), expected);
    }
}

/// Its router has no groups, and yarn says one number for both of config.json.
#[test]
fn a_softmax_that_is_not_normalised_is_deepseek_v2() {
    let tensors = tensors(DEEPSEEK_V2);
    let rope = json!({
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.5, "mscale_all_dim": 0.5
    });
    let of_folder = json!({"q_lora_rank": null, "rope_scaling": rope, "routed_scaling_factor": 1.0});
    let expected = logits_of_folder(&config("deepseek_v2", of_folder), &tensors);
    let file = file("deepseek2", &tensors, Maps::Two)
        .count("deepseek2.leading_dense_block_count", 1)
        .text("deepseek2.rope.scaling.type", "yarn")
        .number("deepseek2.rope.scaling.factor", 4.0)
        .count("deepseek2.rope.scaling.original_context_length", 16)
        .number("deepseek2.rope.scaling.yarn_log_multiplier", 0.05);
    assert_close(&logits_of_file(&file), &expected);
}

/// As llama.cpp writes a folder without experts: it counts them nowhere, and every layer among the dense ones.
#[test]
fn a_deepseek2_may_have_no_experts() {
    let mut tensors = tensors(DENSE);
    tensors.retain(|name, _| !name.starts_with(&format!("model.layers.{LAYERS}.")));
    let of_folder = json!({
        "n_routed_experts": null, "n_shared_experts": 0, "num_experts_per_tok": null, "n_group": null,
        "topk_group": null, "first_k_dense_replace": LAYERS,
    });
    let expected = logits_of_folder(&config("deepseek_v2", of_folder), &tensors);
    let file = file("deepseek2", &tensors, Maps::Two)
        .without("deepseek2.nextn_predict_layers")
        .without("deepseek2.expert_count")
        .without("deepseek2.expert_used_count")
        .count("deepseek2.block_count", LAYERS as u32)
        .count("deepseek2.leading_dense_block_count", LAYERS as u32)
        .count("deepseek2.expert_shared_count", 0)
        .count("deepseek2.expert_gating_func", 1)
        .number("deepseek2.expert_weights_scale", 1.0);
    assert_eq!(logits_of_file(&file), expected);
}

/// Experts in one tensor of gates and ups, and queries that grow.
#[test]
fn a_softmax_that_is_normalised_is_mistral4() {
    let tensors = tensors(MISTRAL4);
    let rope = json!({
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.25,
    });
    let of_folder = json!({"first_k_dense_replace": 0, "rope_parameters": rope});
    let expected = logits_of_folder(&config("mistral4", of_folder), &tensors);
    for architecture in ["mistral4", "deepseek2"] {
        let key = |key: &str| format!("{architecture}.{key}");
        let file = file(architecture, &tensors, Maps::Two)
            .flag(&key("expert_weights_norm"), true)
            .text(&key("rope.scaling.type"), "yarn")
            .number(&key("rope.scaling.factor"), 4.0)
            .count(&key("rope.scaling.original_context_length"), 16)
            .number(&key("rope.scaling.yarn_log_multiplier"), 0.1)
            .number(&key("attention.temperature_scale"), 0.25)
            .count(&key("attention.temperature_length"), 16);
        assert_close(&logits_of_file(&file), &expected);
        let other = file.count(&key("attention.temperature_length"), 17);
        assert_says(&other, &["attention.temperature_length", "(16)", "found 17"]);
    }
}

/// Its files have neither the width of values nor the numbers by which blocks and logits are multiplied.
#[test]
fn a_minicpm3_has_ropes_for_short_and_long_contexts() {
    let mut tensors = tensors(DENSE);
    // Heads of hidden_size / num_attention_heads; no further layer.
    const NARROW: usize = HIDDEN / HEADS;
    for layer in 0..LAYERS {
        for (module, shape) in [("kv_b_proj", [HEADS * (NOPE + NARROW), RANK]), ("o_proj", [HIDDEN, HEADS * NARROW])] {
            let tensor = tensors.get_mut(&format!("model.layers.{layer}.self_attn.{module}.weight")).unwrap();
            tensor.1.truncate(shape[0] * shape[1]);
            tensor.0 = shape.to_vec();
        }
    }
    tensors.retain(|name, _| !name.starts_with(&format!("model.layers.{LAYERS}.")));
    let (short, long) = ([1.0, 1.1, 1.2, 1.3], [1.05, 1.9, 2.4, 4.0]);
    let rope = json!({
        "type": "longrope", "short_factor": short, "long_factor": long, "original_max_position_embeddings": 256
    });
    let of_folder = json!({"v_head_dim": null, "rope_scaling": rope});
    let expected = logits_of_folder(&config("minicpm3", of_folder), &tensors);
    let file = file("minicpm3", &tensors, Maps::One)
        .without("minicpm3.nextn_predict_layers")
        .without("minicpm3.attention.value_length")
        .count("minicpm3.block_count", LAYERS as u32)
        .f32("rope_factors_short.weight", &[4], &short)
        .f32("rope_factors_long.weight", &[4], &long);
    assert_close(&logits_of_file(&file), &expected);
}

/// Numbers that a file has as f32.
fn assert_close(found: &[f32], expected: &[f32]) {
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(found.len() == expected.len() && worst < 1e-4, "{worst}");
}

#[test]
fn maps_in_blocks_are_dense() {
    let tensors = tensors(DEEPSEEK_V3);
    let (mut coded, mut decoded) = (deepseek_v3(&tensors, Maps::Two), deepseek_v3(&tensors, Maps::Two));
    for layer in 0..LAYERS {
        for (part, shape) in [("k", [HEADS, RANK, NOPE]), ("v", [HEADS, VALUE, RANK])] {
            let name = format!("blk.{layer}.attn_{part}_b.weight");
            let kind = TensorType::Q8_0;
            let mut bytes: Vec<u8> = Vec::new();
            let mut dice = Dice::new(layer as u64);
            for _ in 0..shape.iter().product::<usize>() / kind.block_elements() {
                bytes.extend(half::f16::from_f32(0.004).to_le_bytes());
                bytes.extend((0..kind.block_elements()).map(|_| dice.next() as u8));
            }
            let mut values = vec![0.0; shape.iter().product()];
            kind.decode(&bytes, &mut values);
            coded = coded.without(&name).tensor(&name, &shape, kind, bytes);
            decoded = decoded.without(&name).f32(&name, &shape, &values);
        }
    }
    assert_eq!(logits_of_file(&coded), logits_of_file(&decoded));
}

#[test]
fn what_is_wrong_with_a_file_is_named() {
    let tensors = tensors(DEEPSEEK_V3);
    let (one, two) = (deepseek_v3(&tensors, Maps::One), deepseek_v3(&tensors, Maps::Two));
    let says = |file: GgufWriter, said: &[&str]| assert_says(&file, said);
    says(two.clone().without("blk.1.attn_v_b.weight"), &["blk.1.attn_v_b.weight", "nothing"]);
    says(two.clone().without("blk.1.attn_k_b.weight"), &["blk.1.attn_k_b.weight", "nothing"]);
    let neither = one.clone().without("blk.0.attn_kv_b.weight");
    says(neither, &["blk.0.attn_kv_b.weight", "`blk.0.attn_k_b.weight` and `blk.0.attn_v_b.weight`", "nothing"]);
    let straight = two.clone().without("blk.0.attn_k_b.weight");
    let straight = straight.f32("blk.0.attn_k_b.weight", &[HEADS * NOPE, RANK], &[0.0; HEADS * NOPE * RANK]);
    says(straight, &["blk.0.attn_k_b.weight", "[4, 32, 32]", "[128, 32]"]);
    says(two.clone().count("deepseek2.expert_gating_func", 3), &["expert_gating_func", "1 (softmax) or 2", "found 3"]);
    let stored = two.clone().count("deepseek2.attention.key_length", 39);
    says(stored, &["deepseek2.attention.key_length", "(32 + 8)", "found 39"]);
    let narrow = two.clone().count("deepseek2.attention.key_length_mla", 8);
    says(narrow, &["deepseek2.attention.key_length_mla", "rope.dimension_count (8)", "found 8"]);
    says(two.clone().count("deepseek2.expert_group_count", 3), &["deepseek2.expert_group_count", "(8)", "found 3"]);
    says(two.clone().without("blk.1.exp_probs_b.bias"), &["blk.1.exp_probs_b.bias", "nothing"]);
    let growing = two.clone().number("deepseek2.attention.temperature_scale", 0.1);
    says(growing, &["deepseek2.attention.temperature_scale", "deepseek_v3", "found 0.1"]);
    // A layer behind the model's is passed over in families that have some which predict further tokens.
    let joined = two.clone().without("blk.3.nextn.eh_proj.weight");
    assert_eq!(logits_of_file(&joined), logits_of_file(&two));
}
