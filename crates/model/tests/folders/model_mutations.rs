//! Every field of the config.json of each golden model, and every field that it might have, set to what it must not be
//! or seldom is: the folder is refused by one sentence that names file and field, or it loads and computes. Nothing
//! panics.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use offshoot_backend::Dtype;
use offshoot_core::ids::TokenId;
use offshoot_core::{Error, Result};
use offshoot_cpu::Cpu;
use offshoot_model::Sequence;
use offshoot_model::{Decoder, ModelFolder};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::full::some_or_full;

/// A config.json and the weights that fit it.
struct Model {
    config: PathBuf,
    weights: PathBuf,
}

fn models() -> Vec<Model> {
    let goldens = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/goldens");
    let mut models = Vec::new();
    for folder in fs::read_dir(goldens).unwrap().map(|entry| entry.unwrap().path()) {
        for style in ["rope_scaling", "rope_parameters"] {
            let config = folder.join(format!("config.{style}.json"));
            // Families that are younger than the older style have the newer one only.
            if config.exists() {
                models.push(Model { config, weights: folder.join("model.safetensors") });
            }
        }
    }
    models.sort_by(|a, b| a.config.cmp(&b.config));
    models
}

/// What any field is set to; none: the field is taken out.
fn values() -> Vec<Option<Value>> {
    let numbers = [json!(0), json!(1), json!(2), json!(3), json!(7), json!(255), json!(320), json!(-1), json!(-4096)];
    let large =
        [json!(65_537), json!(u32::MAX), json!(i64::MAX), json!(u64::MAX), json!(1e15), json!(1e300), json!(1e18)];
    let fractions = [json!(0.5), json!(1.5), json!(1e-30), json!(1e-320), json!(-0.25), json!(16.0), json!(0.3)];
    let others =
        [json!(null), json!(true), json!(false), json!("16"), json!(""), json!([]), json!({}), json!([1, [2], "x"])];
    let all = [&numbers[..], &large, &fractions, &others].concat();
    all.into_iter().map(Some).chain([None]).collect()
}

/// Fields that a config may have beside those that the goldens have.
const MORE: [&str; 21] = [
    "head_dim",
    "num_key_value_heads",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "partial_rotary_factor",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_sequence_length",
    "attention_bias",
    "mlp_bias",
    "qk_layernorm",
    "quantization_config",
    "torch_dtype",
    "dtype",
    "eos_token_id",
    "bos_token_id",
    "layer_norm_eps",
    "rms_norm_eps",
];

/// Each scaling with all its fields.
fn scalings() -> [Value; 4] {
    [
        json!({"rope_type": "default"}),
        json!({"rope_type": "linear", "factor": 2.0}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}),
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.2, "truncate": false}),
    ]
}

/// The folder in which one config after another stands beside the same weights.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new(weights: &Path) -> Self {
        let folder = TempDir::new().unwrap();
        fs::copy(weights, folder.path().join("model.safetensors")).unwrap();
        Self { folder }
    }

    /// Whether the config is taken; panics where it is neither taken nor refused as it must be.
    fn hold(&self, what: &str, config: &Map<String, Value>) -> bool {
        fs::write(self.folder.path().join("config.json"), serde_json::to_string(config).unwrap()).unwrap();
        let tried = catch_unwind(AssertUnwindSafe(|| compute(self.folder.path())));
        match tried.unwrap_or_else(|_| panic!("{what}: panics")) {
            Ok(()) => true,
            Err(error @ (Error::Field { .. } | Error::Tensor { .. })) => {
                let said = error.to_string();
                assert!(
                    said.contains("config.json: `") || said.contains("model.safetensors: tensor `"),
                    "{what}: {said}"
                );
                assert!(error.exit_code() == 2 && !said.contains('\n'), "{what}: {said}");
                false
            }
            Err(other) => panic!("{what}: {other}"),
        }
    }
}

/// Opens and loads the folder, and runs a prompt of some tokens and one token behind it.
fn compute(folder: &Path) -> Result<()> {
    let folder = ModelFolder::open(folder)?;
    let config = &folder.config;
    assert!(config.parameters() > 0 && config.weight_bytes(Dtype::F32) > 0 && config.kv_bytes_per_token(|_| 4) > 0);
    let mut backend = Cpu::open()?;
    let mut model = Decoder::load(&mut backend, &folder)?;
    let tokens = config.context.min(20);
    let mut sequence = Sequence::new(&mut backend, &mut model, tokens)?;
    let prompt: Vec<TokenId> = (0..tokens - 1).map(|i| TokenId::new(i % config.vocab)).collect();
    if !prompt.is_empty() {
        sequence.extend(&prompt, 0..1)?;
    }
    assert_eq!(sequence.extend(&[TokenId(0)], 0..1)?.len(), config.vocab);
    Ok(())
}

fn read(path: &Path) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// `config` with `name` set to `value`, or without it.
fn with(config: &Map<String, Value>, name: &str, value: Option<&Value>) -> Map<String, Value> {
    let mut config = config.clone();
    match value {
        Some(value) => config.insert(name.to_owned(), value.clone()),
        None => config.remove(name),
    };
    config
}

/// One of each family. The styles differ in their ropes, which have a test of their own.
fn families() -> impl Iterator<Item = Model> {
    models().into_iter().filter(|model| model.config.ends_with("config.rope_parameters.json"))
}

#[test]
fn every_field_is_refused_by_name_or_computes() {
    // Each value for each field, but of each family only every fourth of these.
    let every = some_or_full(4, 1);
    for (number, model) in families().enumerate() {
        let (bench, config) = (Bench::new(&model.weights), read(&model.config));
        let what = model.config.display();
        assert!(bench.hold(&format!("{what} as it is"), &config));
        let mut names: Vec<&str> = config.keys().map(String::as_str).chain(MORE).collect();
        names.sort_unstable();
        names.dedup();
        let values = values();
        let pairs = names
            .iter()
            .enumerate()
            .flat_map(|(n, name)| values.iter().enumerate().map(move |(v, value)| (n + v, name, value)));
        let (mut tried, mut refused) = (0, 0);
        for (_, name, value) in pairs.filter(|(place, ..)| (number + place) % every == 0) {
            let taken = bench.hold(&format!("{what}: {name} = {value:?}"), &with(&config, name, value.as_ref()));
            (tried, refused) = (tried + 1, refused + usize::from(!taken));
        }
        assert!(refused > tried / 5, "{what}: {refused} of {tried} refused");
    }
}

#[test]
fn every_field_of_a_rope_is_refused_by_name_or_computes() {
    for model in models().iter().filter(|model| model.config.to_string_lossy().contains("llama2-mha")) {
        let (bench, mut config) = (Bench::new(&model.weights), read(&model.config));
        config.remove("rope_parameters");
        for (at, scaling) in ["rope_scaling", "rope_parameters"].into_iter().flat_map(|at| scalings().map(|s| (at, s)))
        {
            let scaling = scaling.as_object().unwrap().clone();
            let what = format!("{} with {at} {}", model.config.display(), scaling["rope_type"]);
            let whole = |scaling| with(&config, at, Some(&Value::Object(scaling)));
            assert!(bench.hold(&what, &whole(scaling.clone())));
            let names = scaling.keys().map(String::as_str).chain(["rope_theta", "partial_rotary_factor", "type"]);
            for name in names {
                for value in values() {
                    bench.hold(&format!("{what}: {name} = {value:?}"), &whole(with(&scaling, name, value.as_ref())));
                }
            }
        }
    }
}

/// Heads that fit the weights in product, whatever each of them has.
#[test]
fn every_cut_into_heads_is_refused_by_name_or_computes() {
    let sizes = [1, 2, 3, 4, 8, 12, 16, 32, 64];
    for model in some_or_full(families().collect(), models()) {
        let (bench, config) = (Bench::new(&model.weights), read(&model.config));
        let mut taken = 0;
        for (q_heads, kv_heads) in sizes.iter().flat_map(|&q| sizes.map(|kv| (q, kv))) {
            for head_dim in sizes.map(Some).into_iter().chain([None]) {
                let mut config = config.clone();
                config.insert("num_attention_heads".into(), json!(q_heads));
                config.insert("num_key_value_heads".into(), json!(kv_heads));
                config.insert("head_dim".into(), json!(head_dim));
                let what = format!("{}: {q_heads} / {kv_heads} x {head_dim:?}", model.config.display());
                taken += usize::from(bench.hold(&what, &config));
            }
        }
        // Norms of heads say how wide heads are, sinks how many, and factors of a longrope how many pairs: there the
        // model's own cut alone fits.
        let one = ["qwen3", "qwen3_moe", "gemma3_text", "gemma4_text", "gpt_oss", "phi3"];
        let least = if one.iter().any(|kind| config["model_type"] == *kind) { 1 } else { 2 };
        assert!(taken >= least, "{}: {taken} taken", model.config.display());
    }
}

/// The error of a config of a phi, half of whose heads turn, so that an odd head has an even number of elements to
/// turn.
#[test]
fn heads_of_an_odd_or_large_size_are_refused_by_name() {
    let mut phi = json!({
        "model_type": "phi", "hidden_size": 20, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 128, "partial_rotary_factor": 0.5
    });
    let said = |config: &Value| offshoot_model::ModelConfig::from_json(&config.to_string()).unwrap_err().to_string();
    let odd = said(&phi);
    assert!(odd.contains("config.json: `head_dim`: expected an even number") && odd.contains("found 5"), "{odd}");
    phi["head_dim"] = json!(516);
    let large = said(&phi);
    assert!(large.contains("`head_dim`") && large.contains("512") && large.contains("found 516"), "{large}");
}
