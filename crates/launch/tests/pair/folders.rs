//! Tiny models in folders: a generator and scorers, with the bundled model's tokenizer. Estimates are tested with them,
//! too.
#![allow(dead_code, reason = "not every suite uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// The bundled model.
pub fn demo() -> PathBuf {
    Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo")
}

const HIDDEN: usize = 64;
const INNER: usize = 96;
const VOCAB: usize = 1024;
const LAYERS: usize = 2;

/// A form that reads a value at the end of each line.
pub const LINES: &str = r#"{
    "text": {"plain": {
        "text": "{{question}}\n{{answer}}", "special_tokens": false, "read": {"parts": {"separator": "\n"}}
    }},
    "output": {"column": {"activation": "sigmoid"}}
}"#;

/// A model folder of this class. `head`: the rows of `score.weight`; `None`: the head of a generator. `form`: what its
/// scorer.json says.
pub fn folder(class: &str, head: Option<usize>, form: Option<&str>) -> TempDir {
    let folder = TempDir::new().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
        fs::copy(demo().join(name), folder.path().join(name)).unwrap();
    }
    let config = json!({
        "architectures": [class], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": INNER,
        "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
        "rope_theta": 10000.0, "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32"
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::write(folder.path().join("model.safetensors"), tensors(head)).unwrap();
    if let Some(form) = form {
        fs::write(folder.path().join("scorer.json"), form).unwrap();
    }
    folder
}

/// A scorer that reads a value at the end of each line.
pub fn scorer() -> TempDir {
    folder("LlamaForSequenceClassification", Some(1), Some(LINES))
}

/// An embedder whose vectors are rows of the last tokens.
pub fn embedder() -> TempDir {
    let folder = generator();
    let modules = json!([
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]);
    fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    fs::write(folder.path().join("1_Pooling/config.json"), r#"{"pooling_mode_lasttoken": true}"#).unwrap();
    folder
}

pub fn generator() -> TempDir {
    folder("LlamaForCausalLM", None, None)
}

/// The bytes of a safetensors file with all tensors in f32.
fn tensors(head: Option<usize>) -> Vec<u8> {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        match head {
            Some(rows) => ("score.weight".to_owned(), vec![rows, HIDDEN]),
            None => ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
        },
    ];
    let of_layer = [
        ("input_layernorm", vec![HIDDEN]),
        ("post_attention_layernorm", vec![HIDDEN]),
        ("self_attn.q_proj", vec![64, HIDDEN]),
        ("self_attn.k_proj", vec![32, HIDDEN]),
        ("self_attn.v_proj", vec![32, HIDDEN]),
        ("self_attn.o_proj", vec![HIDDEN, 64]),
        ("mlp.gate_proj", vec![INNER, HIDDEN]),
        ("mlp.up_proj", vec![INNER, HIDDEN]),
        ("mlp.down_proj", vec![HIDDEN, INNER]),
    ];
    for layer in 0..LAYERS {
        shapes.extend(
            of_layer.iter().map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape.clone())),
        );
    }
    let (mut header, mut data, mut state) = (Map::new(), Vec::new(), 1_u64);
    for (name, shape) in shapes {
        let begin = data.len();
        for _ in 0..shape.iter().product() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
            let value = if name.contains("norm") { 1.0 } else { random };
            data.extend(value.to_le_bytes());
        }
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}
