//! Each key of a folder's config.json, removed or changed once: the model is refused by name, or computes what
//! transformers computes of the same files. tests/data/make_config_changes.py made the record; the folders are those of
//! ../shared/goldens_2026.

use std::fs;
use std::path::Path;

use offshoot_backend::Dtype;
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check::{self, GoldenCase};
use offshoot_model::{ActivationChoice, Decoder, ModelFolder, WeightChoice};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::full::some_or_full;
use crate::shared::shared;

/// Tokens whose logits behind the prompt are recorded.
const TOKENS: [u32; 6] = [0, 63, 127, 191, 255, 319];

/// Of so many changes one is tried, where the full lists are not asked for.
const SOME: usize = 16;

/// What transformers makes of a folder's changed config.
#[derive(Debug, Deserialize)]
struct FolderChanges {
    folder: String,
    changes: Vec<Change>,
}

#[derive(Debug, Deserialize)]
struct Change {
    /// From the outermost object to the key.
    path: Vec<String>,
    /// The new value; removed where there is none.
    #[serde(default, deserialize_with = "written")]
    value: Option<Value>,
    outcome: Outcome,
}

/// A value that is written, even as `null`.
fn written<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// The logits of the unchanged folder.
    Same,
    /// Others: those of `TOKENS`.
    Logits([f32; TOKENS.len()]),
    /// It is not read: it raises an error, misses tensors or leaves others unread.
    Unread,
}

/// Keys whose changes transformers does not read and this crate does: (the key, why that is no other arithmetic).
const READ_HERE_ALONE: &[(&str, &str)] = &[
    ("architectures", "the model type says as much"),
    ("cache_implementation", "the cache is this crate's own"),
    ("factor", "without it yarn is by the two lengths, as in transformers before 5.24; others refuse"),
    ("first_k_dense_replace", "the list of each layer's kind decides (EXAONE)"),
    ("head_dim", "latent attention has widths of its own; Hunyuan's is by default that of its tensors"),
    ("layer_types", "the pattern says as much (EXAONE)"),
    ("llama_4_scaling_beta", "without it queries do not grow, and it is read as the published code reads it"),
    ("long_mscale", "without it the factor is longrope's own"),
    ("mrope_section", "in a text all three positions of a token are the same"),
    ("rope_scaling", "in a text the parts of Qwen2.5-VL's rope turn alike"),
    ("model_type", "the class in `architectures` says as much"),
    (
        "num_key_value_heads",
        "latent attention has none; others have one for each query head, or their tensors do not fit",
    ),
    ("pad_token_id", "it names a row of the embeddings that training leaves at zero"),
    ("short_mscale", "without it the factor is longrope's own"),
];

/// The config with one change.
fn changed(config: &Value, change: &Change) -> Value {
    let mut config = config.clone();
    let (key, outer) = change.path.split_last().expect("a path has a key");
    let object: &mut Map<String, Value> = outer
        .iter()
        .fold(&mut config, |at, key| &mut at[key])
        .as_object_mut()
        .expect("the path was made from this config");
    match &change.value {
        Some(value) => drop(object.insert(key.clone(), value.clone())),
        None => drop(object.remove(key)),
    }
    config
}

/// A copy of `folder` with links to its files; `config.json` is its own.
fn linked(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| name != "config.json") {
            std::os::unix::fs::symlink(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    copy
}

struct Tried<'a> {
    folder: &'a Path,
    prompt: Vec<TokenId>,
    /// All logits of the unchanged folder.
    logits: Vec<f32>,
}

impl Tried<'_> {
    /// What is wrong with a change.
    fn fault(&self, copy: &Path, config: &Value, change: &Change) -> Option<String> {
        fs::write(copy.join("config.json"), changed(config, change).to_string()).unwrap();
        let mut backend = Cpu::with_isa(*Isa::available().last().expect("at least one"));
        let exact = WeightChoice { weights: None, activations: ActivationChoice::Bf16 };
        let loaded = ModelFolder::open(copy).and_then(|folder| folder.with(exact)).and_then(|mut folder| {
            folder.config.compute = Some(Dtype::F32);
            Decoder::load(&mut backend, &folder)
        });
        let mut model = match loaded {
            Ok(model) => model,
            Err(error) => {
                let named = error.to_string().contains(&*copy.to_string_lossy());
                return (!named).then(|| format!("refused, but no file is named: {error}"));
            }
        };
        let logits: Vec<(u32, f32)> = match &change.outcome {
            Outcome::Same => (0..).zip(self.logits.iter().copied()).collect(),
            Outcome::Logits(logits) => TOKENS.into_iter().zip(*logits).collect(),
            Outcome::Unread => {
                let key = change.path.last().expect("a path has a key");
                let known = READ_HERE_ALONE.iter().any(|(known, _)| known == key);
                return (!known).then(|| "loads, and transformers does not read it".to_owned());
            }
        };
        let logits = logits.into_iter().map(|(token, logit)| (TokenId(token), logit)).collect();
        let case = GoldenCase { prompt: self.prompt.clone(), logits, ..GoldenCase::default() };
        match check::golden_cases(&mut backend, &mut model, &[case]) {
            Ok(report) if report.passes() => None,
            Ok(report) => Some(format!("computes something else: {}", report.cases[0].logits)),
            Err(error) => Some(error.to_string()),
        }
    }
}

#[test]
fn a_changed_config_is_refused_or_computes_what_transformers_computes() {
    let Some(root) = shared("goldens_2026") else { return };
    let (mut faults, mut tried_changes, mut waiting) = (Vec::new(), 0, Vec::new());
    for line in include_str!("../../../../tests/data/config_changes.jsonl").lines() {
        let FolderChanges { folder, changes } = serde_json::from_str(line).unwrap();
        let path = root.join(&folder);
        let config = serde_json::from_slice::<Value>(&fs::read(path.join("config.json")).unwrap());
        // mamba2's has an infinity, which JSON has not.
        let (Ok(config), Ok(_)) = (config, ModelFolder::open(&path)) else {
            waiting.push(folder);
            continue;
        };
        let golden: Value = serde_json::from_slice(&fs::read(path.join("golden.json")).unwrap()).unwrap();
        let numbers = |key: &str| golden[key].as_array().unwrap().iter();
        let tried = Tried {
            folder: &path,
            prompt: numbers("prompt").map(|token| TokenId(token.as_u64().unwrap() as u32)).collect(),
            logits: numbers("last_logits").map(|logit| logit.as_f64().unwrap() as f32).collect(),
        };
        let copy = linked(tried.folder);
        for change in changes.iter().skip(tried_changes % SOME).step_by(some_or_full(SOME, 1)) {
            tried_changes += 1;
            if let Some(fault) = tried.fault(copy.path(), &config, change) {
                let value = change.value.as_ref().map_or("removed".to_owned(), Value::to_string);
                faults.push(format!("{folder}, {}: {value}: {fault}", change.path.join(".")));
            }
        }
    }
    println!("{tried_changes} changes tried; not read yet: {}", waiting.join(", "));
    assert!(faults.is_empty(), "{} of {tried_changes} changes:\n{}", faults.len(), faults.join("\n"));
}
