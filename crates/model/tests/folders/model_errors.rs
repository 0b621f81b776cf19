//! Model folders that are not what they should be: each ends with one sentence that names the file, the tensor or
//! field, and the two sizes; and the oddities of real checkpoints that must load.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use offshoot_backend::Dtype;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_model::check::{self, GoldenCase};
use offshoot_model::{Decoder, ModelFolder, Sequence};
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A llama of two layers: hidden 32, 4 query and 2 key heads of 8, feed-forward 48, vocabulary 64.
pub fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false
    })
}

#[derive(Clone)]
pub struct Tensor {
    pub dtype: safetensors::Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

/// Values near `centre`; rounded to bf16, so that all dtypes can hold nearly the same model.
fn tensor(shape: &[usize], salt: usize, centre: f32) -> Tensor {
    let mut dice = Dice::new(salt as u64);
    let mut value = || half::bf16::from_f32(centre + 0.3 * dice.number()).to_f32();
    let count: usize = shape.iter().product();
    let bytes = (0..count).flat_map(|_| value().to_le_bytes()).collect();
    Tensor { dtype: safetensors::Dtype::F32, shape: shape.to_vec(), bytes }
}

pub fn tensors() -> Tensors {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![64, 32]),
        ("model.norm.weight".into(), vec![32]),
        ("lm_head.weight".into(), vec![64, 32]),
    ];
    for layer in 0..2 {
        let parts: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[32]),
            ("post_attention_layernorm", &[32]),
            ("self_attn.q_proj", &[32, 32]),
            ("self_attn.k_proj", &[16, 32]),
            ("self_attn.v_proj", &[16, 32]),
            ("self_attn.o_proj", &[32, 32]),
            ("mlp.gate_proj", &[48, 32]),
            ("mlp.up_proj", &[48, 32]),
            ("mlp.down_proj", &[32, 48]),
        ];
        shapes.extend(parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape.to_vec())));
    }
    let centre = |shape: &[usize]| if shape.len() == 1 { 1.0 } else { 0.0 };
    shapes.into_iter().enumerate().map(|(salt, (name, shape))| (name, tensor(&shape, salt, centre(&shape)))).collect()
}

fn cast(tensor: &Tensor, dtype: safetensors::Dtype) -> Tensor {
    let values = tensor.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let bytes = match dtype {
        safetensors::Dtype::F16 => values.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
        safetensors::Dtype::BF16 => values.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        _ => tensor.bytes.clone(),
    };
    Tensor { dtype, shape: tensor.shape.clone(), bytes }
}

pub fn save(path: &Path, tensors: &Tensors) {
    let views =
        tensors.iter().map(|(name, t)| (name.clone(), TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    safetensors::serialize_to_file(views, None, path).unwrap();
}

pub fn folder(config: &Value, tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    save(&folder.path().join("model.safetensors"), tensors);
    folder
}

/// The same tensors in two files with an index.
fn sharded(tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config().to_string()).unwrap();
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut shards = [Tensors::new(), Tensors::new()];
    let mut map = serde_json::Map::new();
    for (i, (name, tensor)) in tensors.iter().enumerate() {
        shards[i % 2].insert(name.clone(), tensor.clone());
        map.insert(name.clone(), names[i % 2].into());
    }
    for (name, shard) in names.iter().zip(&shards) {
        save(&folder.path().join(name), shard);
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    folder
}

fn load(folder: &TempDir) -> offshoot_core::Result<(Cpu, Decoder<Cpu>)> {
    let mut backend = Cpu::open().unwrap();
    let model = Decoder::load(&mut backend, &ModelFolder::open(folder.path())?)?;
    Ok((backend, model))
}

fn text() -> Vec<TokenId> {
    (0..40).map(|i| TokenId(i * 29 % 64)).collect()
}

/// Logits of every position of `text`.
fn logits(folder: &TempDir) -> Vec<f32> {
    let (mut backend, mut model) = load(folder).unwrap();
    Sequence::new(&mut backend, &mut model, 40).unwrap().extend(&text(), 0..40).unwrap()
}

#[track_caller]
fn said(error: offshoot_core::Error, parts: &[&str]) {
    assert_eq!(error.exit_code(), 2, "{error}");
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[track_caller]
pub fn refused(folder: &TempDir, parts: &[&str]) {
    said(load(folder).map(|_| ()).unwrap_err(), parts);
    // `check` finds the same before any weight is read.
    let facts = ModelFolder::open(folder.path()).and_then(|folder| check::facts(&folder));
    said(facts.map(|_| ()).unwrap_err(), parts);
}

/// `tensors()` with one changed or removed.
fn without(name: &str) -> Tensors {
    let mut tensors = tensors();
    tensors.remove(name).unwrap();
    tensors
}

fn with(name: &str, tensor: Tensor) -> Tensors {
    let mut tensors = tensors();
    tensors.insert(name.to_owned(), tensor);
    tensors
}

#[test]
fn one_file_or_many_prefixed_or_not_is_the_same_model() {
    let plain = logits(&folder(&config(), &tensors()));
    assert!(plain.iter().all(|x| x.is_finite()));
    assert_eq!(logits(&sharded(&tensors())), plain);
    let bare = tensors().into_iter().map(|(name, t)| (name.replace("model.", ""), t)).collect();
    assert_eq!(logits(&folder(&config(), &bare)), plain);
}

#[test]
fn tensors_that_are_computed_or_tied_may_lie_unused() {
    let plain = logits(&folder(&config(), &tensors()));
    let frequencies = with("model.layers.1.self_attn.rotary_emb.inv_freq", tensor(&[4], 0, 0.0));
    assert_eq!(logits(&folder(&config(), &frequencies)), plain);
    let foreign = with("score.weight", tensor(&[1, 32], 0, 0.0));
    assert_eq!(logits(&folder(&config(), &foreign)), plain);

    let mut tied = config();
    tied["tie_word_embeddings"] = true.into();
    let without_head = logits(&folder(&tied, &without("lm_head.weight")));
    let mut all = tensors();
    all.insert("lm_head.weight".to_owned(), all["model.embed_tokens.weight"].clone());
    assert!(logits(&folder(&tied, &all)) == without_head, "a copy of the embedding changes nothing");
    assert!(without_head != plain);
    assert!(logits(&folder(&tied, &tensors())) == plain, "an output layer that differs is used, as in transformers");
    let narrow = with("lm_head.weight", cast(&tensors()["lm_head.weight"], safetensors::Dtype::BF16));
    let own = logits(&folder(&config(), &narrow));
    assert!(logits(&folder(&tied, &narrow)) == own && own != without_head, "one of another dtype, too");
}

/// A small model of a family that has them, but for the layers that predict further tokens.
fn deepseek() -> (Value, Tensors) {
    let config = json!({
        "model_type": "deepseek_v3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "kv_lora_rank": 16,
        "q_lora_rank": null, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 2
    });
    let mut tensors = tensors();
    for layer in 0..2 {
        let at = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for part in ["self_attn.k_proj", "self_attn.v_proj"] {
            tensors.remove(&at(part)).unwrap();
        }
        let own: [(&str, &[usize]); 5] = [
            ("self_attn.q_proj", &[24, 32]),
            ("self_attn.kv_a_proj_with_mqa", &[20, 32]),
            ("self_attn.kv_a_layernorm", &[16]),
            ("self_attn.kv_b_proj", &[32, 16]),
            ("self_attn.o_proj", &[32, 16]),
        ];
        for (salt, (part, shape)) in own.into_iter().enumerate() {
            tensors.insert(at(part), tensor(shape, 100 + salt, if shape.len() == 1 { 1.0 } else { 0.0 }));
        }
    }
    (config, tensors)
}

#[test]
fn latents_may_have_another_dtype_than_queries() {
    let (config, tensors) = deepseek();
    let plain = logits(&folder(&config, &tensors));
    let most = plain.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
    // Their numbers are those of bf16; a processor may round what it multiplies by them, too.
    for (part, layer) in [("kv_a_proj_with_mqa", 0), ("kv_a_proj_with_mqa", 1), ("q_proj", 1)] {
        let name = format!("model.layers.{layer}.self_attn.{part}.weight");
        let mut narrow = tensors.clone();
        narrow.insert(name.clone(), cast(&tensors[&name], safetensors::Dtype::BF16));
        let off = logits(&folder(&config, &narrow)).iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 0.01 * most, "{name} in bf16: logits up to {most} are off by {off}");
    }
}

#[test]
fn layers_that_predict_further_tokens_are_passed_over() {
    let (config, tensors) = deepseek();
    let plain = logits(&folder(&config, &tensors));
    let codes = Tensor { dtype: safetensors::Dtype::I32, shape: vec![32, 8], bytes: vec![0; 4 * 32 * 8] };
    let beside = [
        ("eh_proj.weight_packed", codes.clone()),
        ("eh_proj.qweight", codes),
        ("eh_proj.weight", tensor(&[32, 64], 0, 0.0)),
    ];
    for (part, tensor) in beside {
        let mut more = tensors.clone();
        more.insert(format!("model.layers.2.{part}"), tensor);
        more.insert("model.layers.2.self_attn.o_proj.weight".to_owned(), more["lm_head.weight"].clone());
        assert!(logits(&folder(&config, &more)) == plain, "{part}");
        let listed = more.keys().map(|name| (name.clone(), Value::from("model-00001-of-00001.safetensors")));
        let index = json!({"weight_map": listed.collect::<serde_json::Map<_, _>>()});
        let missing = tempfile::tempdir().unwrap();
        fs::write(missing.path().join("config.json"), config.to_string()).unwrap();
        fs::write(missing.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        let said = check::index_facts(&ModelFolder::open(missing.path()).unwrap()).unwrap();
        assert!(said.is_some_and(|said| said.contains("all that config.json asks for")), "{part}");
    }
    // A layer that joins no row and embedding may be the model's own.
    let mut longer = tensors.clone();
    longer.insert("model.layers.2.mlp.up_proj.weight".to_owned(), tensor(&[48, 32], 0, 0.0));
    refused(&folder(&config, &longer), &["model.layers.2.mlp.up_proj", "num_hidden_layers 2"]);
    let mut llama = self::tensors();
    llama.insert("model.layers.2.mlp.up_proj.weight".to_owned(), tensor(&[48, 32], 0, 0.0));
    refused(&folder(&self::config(), &llama), &["model.layers.2.mlp.up_proj", "num_hidden_layers 2"]);
}

#[test]
fn smaller_dtypes_stay_near_f32_and_norms_may_keep_theirs() {
    use safetensors::Dtype as Stored;
    let exact = logits(&folder(&config(), &tensors()));
    let last = &exact[39 * 64..];
    let case = GoldenCase {
        name: "the f32 model".into(),
        prompt: text(),
        logits: last.iter().enumerate().map(|(i, &logit)| (TokenId::new(i), logit)).collect(),
        ..GoldenCase::default()
    };
    for (stored, dtype) in [(Stored::F32, Dtype::F32), (Stored::F16, Dtype::F16), (Stored::BF16, Dtype::Bf16)] {
        for norms_too in [false, true] {
            let cast = |(name, t): (String, Tensor)| {
                let t = if norms_too || t.shape.len() == 2 { cast(&t, stored) } else { t };
                (name, t)
            };
            let folder = folder(&config(), &tensors().into_iter().map(cast).collect());
            let (mut backend, mut model) = load(&folder).unwrap();
            assert_eq!(model.dtype(), dtype);
            let report = check::golden_cases(&mut backend, &mut model, std::slice::from_ref(&case)).unwrap();
            assert!(report.passes(), "{stored:?}, norms too: {norms_too}\n{report}");
            let chunks = check::chunks(&mut backend, &mut model, &text()).unwrap();
            assert!(chunks.passes(), "{stored:?}: {chunks}");
        }
    }
}

#[test]
fn a_wrong_golden_value_fails() {
    let (mut backend, mut model) = load(&folder(&config(), &tensors())).unwrap();
    let right = Sequence::new(&mut backend, &mut model, 40).unwrap().extend(&text(), 39..40).unwrap();
    for wrong in [0.01, f32::NAN] {
        let case = GoldenCase { prompt: text(), logits: vec![(TokenId(3), right[3] + wrong)], ..GoldenCase::default() };
        assert!(!check::golden_cases(&mut backend, &mut model, &[case]).unwrap().passes(), "{wrong}");
    }
    let likeliest = (0..64).max_by(|&a, &b| right[a].total_cmp(&right[b])).unwrap();
    for (token, passes) in [(likeliest, true), ((likeliest + 1) % 64, false)] {
        let case = GoldenCase { prompt: text(), greedy: vec![TokenId::new(token)], ..GoldenCase::default() };
        assert_eq!(check::golden_cases(&mut backend, &mut model, &[case]).unwrap().passes(), passes);
    }
}

#[test]
fn truncated_files_tell_both_sizes() {
    let folder = folder(&config(), &tensors());
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let size = whole.len().to_string();
    let cut = (whole.len() - 1000).to_string();
    fs::write(&path, &whole[..whole.len() - 1000]).unwrap();
    refused(&folder, &["model.safetensors", "truncated", &size, &cut]);
    fs::write(&path, &whole[..100]).unwrap();
    refused(&folder, &["model.safetensors", "truncated", "100"]);
    fs::write(&path, &whole[..5]).unwrap();
    refused(&folder, &["model.safetensors", "truncated", "the file has 5"]);
    fs::write(&path, []).unwrap();
    refused(&folder, &["model.safetensors", "truncated", "the file has 0"]);
    fs::write(&path, [whole.as_slice(), b"more"].concat()).unwrap();
    refused(&folder, &["model.safetensors", "too long", &size, &(whole.len() + 4).to_string()]);
    let mut broken = whole.clone();
    broken[8] = b'?';
    fs::write(&path, &broken).unwrap();
    refused(&folder, &["model.safetensors", "header is not valid"]);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n";
    fs::write(&path, pointer).unwrap();
    refused(&folder, &["model.safetensors", "Git LFS pointer to one of 1.21 KiB", "git lfs pull"]);
}

#[test]
fn tensors_that_do_not_fit_are_named_with_both_shapes() {
    let q = "model.layers.1.self_attn.q_proj.weight";
    refused(&folder(&config(), &without(q)), &[q, "[32, 32] (num_attention_heads * head_dim, hidden_size)", "nothing"]);
    let wide = with(q, tensor(&[64, 32], 0, 0.0));
    refused(&folder(&config(), &wide), &["model.safetensors", q, "expected [32, 32]", "found [64, 32]"]);
    let flat = with("model.norm.weight", tensor(&[32, 1], 0, 0.0));
    refused(&folder(&config(), &flat), &["model.norm.weight", "[32] (hidden_size)", "found [32, 1]"]);
    let whole = Tensor { dtype: safetensors::Dtype::I32, ..tensor(&[32, 32], 0, 0.0) };
    refused(&folder(&config(), &with(q, whole)), &[q, "F32, F16 or BF16", "I32"]);
    let half = cast(&tensor(&[32, 32], 0, 0.0), safetensors::Dtype::BF16);
    refused(&folder(&config(), &with(q, half)), &["layers.1.self_attn", "stacked", "Bf16", "F32"]);
    refused(&folder(&config(), &without("lm_head.weight")), &["lm_head.weight", "[64, 32]", "`tie_word_embeddings`"]);
}

#[test]
fn tensors_that_the_config_has_no_place_for_are_refused() {
    let bias = with("model.layers.0.self_attn.q_proj.bias", tensor(&[32], 0, 0.0));
    refused(&folder(&config(), &bias), &["model.layers.0.self_attn.q_proj.bias", "config.json", "[32]"]);
    let mut fewer = config();
    fewer["num_hidden_layers"] = 1.into();
    refused(&folder(&fewer, &tensors()), &["model.layers.1.", "num_hidden_layers 1"]);
    let mut more = config();
    more["num_hidden_layers"] = 3.into();
    refused(&folder(&more, &tensors()), &["model.layers.2.", "nothing"]);
    let mut other = config();
    other["vocab_size"] = 65.into();
    refused(
        &folder(&other, &tensors()),
        &["model.embed_tokens.weight", "[65, 32] (vocab_size, hidden_size)", "[64, 32]"],
    );
}

#[test]
fn an_index_that_does_not_hold_is_named() {
    let index = "model.safetensors.index.json";
    let folder = sharded(&tensors());
    let second = folder.path().join("model-00002-of-00002.safetensors");
    let bytes = fs::read(&second).unwrap();
    fs::remove_file(&second).unwrap();
    refused(&folder, &[index, "model-00002-of-00002.safetensors", "not there"]);
    fs::write(&second, &bytes[..bytes.len() / 2]).unwrap();
    refused(&folder, &["model-00002-of-00002.safetensors", "truncated"]);
    save(&second, &Tensors::from([("other".to_owned(), tensor(&[1], 0, 0.0))]));
    refused(&folder, &["model-00002-of-00002.safetensors", "weight", index, "nothing"]);
    fs::write(folder.path().join(index), r#"{"weight_map": {"a": 3}}"#).unwrap();
    refused(&folder, &[index, "`weight_map.a`", "found 3"]);
    fs::write(folder.path().join(index), "{}").unwrap();
    refused(&folder, &[index, "`weight_map`"]);
    fs::write(folder.path().join(index), "{").unwrap();
    refused(&folder, &[index, "not valid JSON"]);
}

#[test]
fn folders_that_are_no_model_say_what_is_missing() {
    let missing = Path::new("/no/such/model");
    said(ModelFolder::open(missing).unwrap_err(), &["/no/such/model", "no such folder"]);
    let folder = tempfile::tempdir().unwrap();
    let kinds = "expected a model folder (config.json, *.safetensors, tokenizer.json) or a .gguf file";
    let name = folder.path().to_str().unwrap();
    said(ModelFolder::open(folder.path()).unwrap_err(), &[name, kinds, "found no config.json"]);
    let file = folder.path().join("model.pth");
    fs::write(&file, "GGUF").unwrap();
    said(ModelFolder::open(&file).unwrap_err(), &["model.pth", kinds, "found another file"]);
    fs::write(folder.path().join("config.json"), config().to_string()).unwrap();
    refused(&folder, &["model.safetensors", "model.pth, a format that is not read"]);
    fs::remove_file(&file).unwrap();
    refused(&folder, &["model.safetensors", "found neither"]);
    fs::write(folder.path().join("config.json"), "[1]").unwrap();
    said(ModelFolder::open(folder.path()).unwrap_err(), &["config.json", "a JSON object"]);
    fs::write(folder.path().join("config.json"), "{").unwrap();
    said(ModelFolder::open(folder.path()).unwrap_err(), &["config.json", "not valid JSON"]);
}

#[test]
fn golden_files_that_do_not_fit_are_named() {
    let model = folder(&config(), &tensors());
    let (mut backend, mut model) = load(&model).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("golden.json");
    let mut refused = |golden: Value, parts: &[&str]| {
        fs::write(&path, golden.to_string()).unwrap();
        said(check::golden(&mut backend, &mut model, &path).unwrap_err(), parts);
    };
    let zeros = vec![0.0; 64];
    refused(json!({}), &["golden.json", "`last_logits`"]);
    refused(json!({"last_logits": [1.0]}), &["`last_logits`", "64 values", "found 1"]);
    let token = json!({"last_logits": zeros, "prompt": [1, 64], "prompt_logprobs": [0.0], "greedy": []});
    refused(token, &["`prompt`", "below 64", "found 64"]);
    let short = json!({"last_logits": zeros, "prompt": [1, 2, 3], "prompt_logprobs": [0.0], "greedy": []});
    refused(short, &["`prompt_logprobs`", "2 values", "found 1"]);
    let empty = json!({"last_logits": zeros, "prompt": [], "prompt_logprobs": [], "greedy": [1]});
    refused(empty, &["`prompt`", "at least one token"]);
    let long =
        json!({"last_logits": zeros, "prompt": vec![1; 100], "prompt_logprobs": vec![0.0; 99], "greedy": vec![1; 29]});
    refused(long, &["`prompt`", "129 tokens", "128"]);
    refused(json!({"cases": []}), &["`cases`"]);
    refused(json!({"cases": [{"prompt_ids": [1]}]}), &["`cases[0].first_step_top10_ids`"]);
}

#[test]
fn steps_beyond_vocabulary_or_context_are_errors() {
    let (mut backend, mut model) = load(&folder(&config(), &tensors())).unwrap();
    let mut sequence = Sequence::new(&mut backend, &mut model, 200).unwrap();
    said(sequence.extend(&[TokenId(64)], 0..1).unwrap_err(), &["token id", "64"]);
    let mut sequence = Sequence::new(&mut backend, &mut model, 200).unwrap();
    said(sequence.extend(&[TokenId(1); 130], 0..1).unwrap_err(), &["129", "128"]);
}

#[test]
fn facts_print_what_was_read() {
    let folder = folder(&config(), &tensors());
    let facts = check::facts(&ModelFolder::open(folder.path()).unwrap()).unwrap();
    assert_eq!(facts.dtype, Dtype::F32);
    assert_eq!((facts.stored.files, facts.stored.tensors), (1, 21));
    // 2 * 64 * 32 (embeddings) + 32 (norm) + 2 * (2 * 32 (norms) + 96 * 32 (q, k, v, o) + 144 * 32 (mlp))
    assert_eq!(facts.config.parameters(), 19_616);
    assert_eq!(facts.stored.bytes, facts.config.weight_bytes(facts.dtype));
    assert_eq!(facts.config.kv_bytes_per_token(|_| 4), 2 * 2 * 16 * 4);
    let printed = facts.to_string();
    for part in ["llama", "2 of width 32", "4 query, 2 key and value, of 8", "21 F32", "256 bytes a token", "plain"] {
        assert!(printed.contains(part), "`{part}` is not in:\n{printed}");
    }
}

/// The llama of this file with two experts in each layer, as Mixtral names them.
fn mixtral() -> (Value, Tensors) {
    let mut config = config();
    config["model_type"] = "mixtral".into();
    config["num_local_experts"] = 2.into();
    config["num_experts_per_tok"] = 1.into();
    let mut all: Tensors = tensors().into_iter().filter(|(name, _)| !name.contains(".mlp.")).collect();
    for layer in 0..2 {
        let at = |name: &str| format!("model.layers.{layer}.block_sparse_moe.{name}.weight");
        all.insert(at("gate"), tensor(&[2, 32], layer, 0.0));
        for expert in 0..2 {
            for (name, shape) in [("w1", [48, 32]), ("w2", [32, 48]), ("w3", [48, 32])] {
                all.insert(at(&format!("experts.{expert}.{name}")), tensor(&shape, layer + expert, 0.0));
            }
        }
    }
    (config, all)
}

#[test]
fn experts_that_do_not_fit_are_named() {
    let (config, whole) = mixtral();
    assert!(logits(&folder(&config, &whole)).iter().all(|x| x.is_finite()));
    let changed = |name: &str, tensor: Option<Tensor>| {
        let mut all = whole.clone();
        all.remove(name).unwrap();
        all.extend(tensor.map(|tensor| (name.to_owned(), tensor)));
        folder(&config, &all)
    };
    let down = "model.layers.1.block_sparse_moe.experts.1.w2.weight";
    refused(&changed(down, None), &["model.safetensors", down, "[32, 48]", "nothing"]);
    refused(
        &changed(down, Some(tensor(&[32, 40], 0, 0.0))),
        &[down, "expected [32, 48] (hidden_size, intermediate_size)", "found [32, 40]"],
    );
    let router = "model.layers.0.block_sparse_moe.gate.weight";
    let wide = changed(router, Some(tensor(&[3, 32], 0, 0.0)));
    refused(&wide, &[router, "expected [2, 32] (num_experts or num_local_experts, hidden_size)", "found [3, 32]"]);
    let mut third = whole.clone();
    third.insert(down.replace("experts.1", "experts.2"), tensor(&[32, 48], 0, 0.0));
    refused(&folder(&config, &third), &["experts.2.w2.weight", "config.json"]);
}

#[test]
fn a_wrapper_is_its_text_model() {
    let plain = logits(&folder(&config(), &tensors()));
    let wrapped = json!({"model_type": "llava", "text_config": config(), "vision_config": {"hidden_size": 8}});
    for (prefix, head) in [("model.language_model.", "lm_head."), ("language_model.model.", "language_model.lm_head.")]
    {
        let name = |name: String| match name.strip_prefix("model.") {
            Some(rest) => format!("{prefix}{rest}"),
            None => name.replace("lm_head.", head),
        };
        let mut all: Tensors = tensors().into_iter().map(|(old, tensor)| (name(old), tensor)).collect();
        all.insert("vision_tower.layers.0.self_attn.q_proj.weight".to_owned(), tensor(&[8, 8], 0, 0.0));
        assert_eq!(logits(&folder(&wrapped, &all)), plain, "{prefix}");
    }
}

#[test]
fn a_folder_without_weights_says_what_config_and_index_hold() {
    let folder = sharded(&tensors());
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        fs::remove_file(folder.path().join(shard)).unwrap();
    }
    let opened = ModelFolder::open(folder.path()).unwrap();
    let printed = check::ConfigFacts(&opened).to_string();
    for part in ["llama", "2 of width 32", "4 query, 2 key and value, of 8", "19616"] {
        assert!(printed.contains(part), "`{part}` is not in:\n{printed}");
    }
    let listed = check::index_facts(&opened).unwrap().unwrap();
    assert!(listed.contains("21 tensors, all that"), "{listed}");
    let path = folder.path().join("model.safetensors.index.json");
    let index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (more, refused) in [("model.layers.2.mlp.up_proj.weight", true), ("extra.weight", false)] {
        let mut index = index.clone();
        index["metadata"] = json!({"total_size": 12345});
        index["weight_map"][more] = "model-00001-of-00002.safetensors".into();
        fs::write(&path, index.to_string()).unwrap();
        match check::index_facts(&opened) {
            Err(error) if refused => said(error, &[more, "num_hidden_layers 2", "a file"]),
            Ok(Some(listed)) if !refused => {
                assert!(listed.starts_with("22 tensors (1 outside the text model)"), "{listed}");
                assert!(listed.ends_with("12345 bytes in all"), "{listed}");
            }
            _ => panic!("{more} is refused: {refused}"),
        }
    }
    let text = index.to_string().replace("layers.1.mlp.up_proj", "layers.1.mlp.other");
    fs::write(&path, text).unwrap();
    let missing = check::index_facts(&opened).unwrap_err();
    said(missing, &["model.safetensors.index.json", "model.layers.1.mlp.up_proj.weight", "[48, 32]", "nothing"]);
}
