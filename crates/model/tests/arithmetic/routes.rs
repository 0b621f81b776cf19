//! The experts kept for each token: those that transformers chooses, whatever the instruction set, the chunks in which
//! a prompt is computed and the number of ranks; and that keeping them changes no logits.

use std::fs;
use std::path::Path;

use offshoot_backend::{Backend, Dtype};
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::{Decoder, ModelConfig, ModelFolder, Sequence};
use serde_json::{Value, json};

const MIXTURES: [&str; 4] = ["mixtral", "qwen3-moe", "gpt-oss-sinks", "gemma4-mixture"];

/// Logits of each chunk's last row, and the experts of all tokens.
fn run<B: Backend>(
    backend: &mut B,
    decoder: &mut Decoder<B>,
    tokens: &[TokenId],
    chunk: usize,
) -> (Vec<Vec<f32>>, Vec<u16>) {
    let mut sequence = Sequence::new(backend, decoder, tokens.len()).unwrap();
    let mut logits = Vec::new();
    for chunk in tokens.chunks(chunk) {
        let last = chunk.len() as u32;
        logits.push(sequence.extend(chunk, last - 1..last).unwrap());
    }
    (logits, sequence.routes().unwrap())
}

#[test]
fn experts_are_those_of_transformers() {
    let goldens = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/goldens"));
    for name in MIXTURES {
        let folder = super::goldens::in_style(&goldens.join(name), "rope_parameters");
        let read = |file: &str| -> Value {
            serde_json::from_str(&fs::read_to_string(goldens.join(name).join(file)).unwrap()).unwrap()
        };
        let (golden, routes) = (read("golden.json"), read("routes.json"));
        let ids = |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>();
        let prompt: Vec<TokenId> = ids(&golden["prompt"]).into_iter().map(|id| TokenId(id as u32)).collect();
        let by_layer = routes["experts"].as_array().unwrap();
        // By token, then by layer.
        let expected: Vec<u16> = (0..prompt.len())
            .flat_map(|token| by_layer.iter().flat_map(move |layer| ids(&layer[token])))
            .map(|id| id as u16)
            .collect();
        // No score is so near another that rounding of f32 could choose otherwise.
        assert!(routes["min_margin"].as_f64().unwrap() > 1e-5, "{name}");
        for isa in [Isa::Portable, *Isa::available().last().unwrap()] {
            let mut backend = Cpu::with_isa(isa);
            let opened = ModelFolder::open(folder.path()).unwrap();
            let layers: Vec<u64> = opened.config.expert_layers().into_iter().map(|layer| layer as u64).collect();
            assert_eq!(layers, ids(&routes["layers"]), "{name}");
            let mut decoder = Decoder::load(&mut backend, &opened).unwrap();
            for chunk in [48, 17, 1] {
                decoder.keep_routes(false).unwrap();
                let (plain, none) = run(&mut backend, &mut decoder, &prompt, chunk);
                assert!(none.is_empty());
                decoder.keep_routes(true).unwrap();
                let (logits, found) = run(&mut backend, &mut decoder, &prompt, chunk);
                assert_eq!(found, expected, "{name}, {isa}, {chunk} tokens a step");
                assert_eq!(logits, plain, "{name}, {isa}: keeping experts changes no bit");
            }
        }
    }
}

fn config(others: Value) -> ModelConfig {
    let mut fields = json!({
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 48, "vocab_size": 96, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false
    });
    fields.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
    ModelConfig::from_json(&fields.to_string()).unwrap()
}

#[test]
fn many_experts_have_ids_of_two_bytes() {
    let config = config(json!({
        "model_type": "qwen3_moe", "num_experts": 300, "num_experts_per_tok": 4, "moe_intermediate_size": 8,
        "norm_topk_prob": true
    }));
    let mut backend = Cpu::open().unwrap();
    let mut decoder = Decoder::random(&mut backend, config, Dtype::F32, 5).unwrap();
    decoder.keep_routes(true).unwrap();
    let tokens: Vec<TokenId> = (0..70).map(|i| TokenId(i * i % 96)).collect();
    let (_, whole) = run(&mut backend, &mut decoder, &tokens, 70);
    let (_, parts) = run(&mut backend, &mut decoder, &tokens, 9);
    assert_eq!(whole, parts);
    assert_eq!(whole.len(), 70 * 2 * 4);
    assert!(whole.iter().any(|&expert| expert > 255) && whole.iter().all(|&expert| expert < 300));
    let distinct = |chosen: &[u16]| (1..chosen.len()).all(|i| !chosen[..i].contains(&chosen[i]));
    assert!(whole.chunks_exact(4).all(distinct));
}

#[test]
fn experts_are_refused_where_they_cannot_be_kept() {
    let refused = |config: ModelConfig| config.route_shape().unwrap_err().to_string();
    let dense = refused(config(json!({ "model_type": "llama" })));
    assert!(dense.contains("return_routed_experts") && dense.contains("a model without any"), "{dense}");
    let windowed = refused(config(json!({
        "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16
    })));
    assert!(windowed.contains("sliding window"), "{windowed}");
}
