//! A small model with latent attention and random weights, which has the bundled model's tokenizer and template. Its
//! texts make no sense.

use std::fs;
use std::path::Path;

use offshoot_core::dice::Dice;
use serde_json::{Map, Value, json};

const HIDDEN: usize = 32;
const INNER: usize = 48;
const LAYERS: usize = 2;
const HEADS: usize = 4;
/// Many times the width of a key: copies of latents pay under few rows.
const RANK: usize = 128;
/// Elements of a key that are not rotated, and those that are.
const NOPE: usize = 12;
const ROPE: usize = 4;
const VALUE: usize = 20;

/// The folder of the model.
pub fn latent_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let demo = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
        fs::copy(demo.join(name), folder.path().join(name)).expect("the folder is writable");
    }
    let text = fs::read_to_string(demo.join("config.json")).expect("the demo model is part of the project");
    let demo: Value = serde_json::from_str(&text).expect("a config is JSON");
    let vocabulary = demo["vocab_size"].as_u64().expect("a number") as usize;
    let config = json!({
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "q_lora_rank": null, "kv_lora_rank": RANK, "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "first_k_dense_replace": LAYERS, "n_routed_experts": null,
        "vocab_size": vocabulary, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32",
    });
    fs::write(folder.path().join("config.json"), config.to_string()).expect("the folder is writable");
    fs::write(folder.path().join("model.safetensors"), weights(vocabulary)).expect("the folder is writable");
    folder
}

/// Names and sizes of all tensors.
fn tensors(vocabulary: usize) -> Vec<(String, Vec<usize>)> {
    let whole = [
        ("model.embed_tokens", vec![vocabulary, HIDDEN]),
        ("model.norm", vec![HIDDEN]),
        ("lm_head", vec![vocabulary, HIDDEN]),
    ];
    let of_layer = [
        ("input_layernorm", vec![HIDDEN]),
        ("self_attn.q_proj", vec![HEADS * (NOPE + ROPE), HIDDEN]),
        ("self_attn.kv_a_proj_with_mqa", vec![RANK + ROPE, HIDDEN]),
        ("self_attn.kv_a_layernorm", vec![RANK]),
        ("self_attn.kv_b_proj", vec![HEADS * (NOPE + VALUE), RANK]),
        ("self_attn.o_proj", vec![HIDDEN, HEADS * VALUE]),
        ("post_attention_layernorm", vec![HIDDEN]),
        ("mlp.gate_proj", vec![INNER, HIDDEN]),
        ("mlp.up_proj", vec![INNER, HIDDEN]),
        ("mlp.down_proj", vec![HIDDEN, INNER]),
    ];
    let mut all: Vec<_> = whole.into_iter().map(|(name, sizes)| (format!("{name}.weight"), sizes)).collect();
    for layer in 0..LAYERS {
        let named = |(name, sizes): &(&str, Vec<usize>)| (format!("model.layers.{layer}.{name}.weight"), sizes.clone());
        all.extend(of_layer.iter().map(named));
    }
    all
}

/// The file of the weights, in f32.
fn weights(vocabulary: usize) -> Vec<u8> {
    let (mut dice, mut header, mut data) = (Dice::new(52), Map::new(), Vec::new());
    for (name, sizes) in tensors(vocabulary) {
        let begin = data.len();
        let scale = if sizes.len() == 1 || name.contains("embed") { 1.0 } else { 0.4 };
        let numbers = dice.numbers(sizes.iter().product());
        data.extend(numbers.into_iter().flat_map(|x| (scale * x).to_le_bytes()));
        header.insert(name, json!({"dtype": "F32", "shape": sizes, "data_offsets": [begin, data.len()]}));
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
