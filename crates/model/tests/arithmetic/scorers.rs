//! Scorers: values of the published forms' goldens, of random models of several families against the plain reference of
//! `families`, and of steps that keep them; and which heads are refused.

use std::path::Path;

use offshoot_backend::{Dtype, RowToken, StepBatch, StepRequests};
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_kv::plan::Planner;
use offshoot_kv::{PagePool, PrefixTree, StepRow};
use offshoot_model::check::{ScoreScale, read_scores, scores};
use offshoot_model::{
    ActivationChoice, Decoder, KvRoom, LoadedRanks, MadeFormat, ModelConfig, ModelFolder, ModelRole, ModelWeights,
    OutputHead, RowValues, Sequence, StepLimits, StepRunner, ValueHead, ValueLayer, WeightChoice,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::families::reference::{self, Tensors};
use crate::families::{TOLERANCE, draw, folder};
use crate::shared::shared;

const PAGES: usize = 16;

#[test]
fn published_forms() {
    let Some(root) = shared("goldens_modern") else { return };
    for (name, scale, width) in [
        ("reward-qwen2-math-prm", ScoreScale::Softmax, 2),
        ("reward-qwen3-classifier", ScoreScale::Values, 1),
        ("reward-skywork-prm", ScoreScale::Sigmoids, 1),
    ] {
        let path = root.join(name);
        assert_eq!(ModelRole::of(&path).unwrap(), ModelRole::Scorer);
        let opened = ModelFolder::open_scorer(&path, None).unwrap();
        for isa in Isa::available() {
            let mut backend = Cpu::with_isa(isa);
            let mut model = Decoder::load(&mut backend, &opened).unwrap();
            let report = scores(&mut backend, &mut model, &path.join("golden_scores.json")).unwrap();
            println!("{isa}, {name}\n{report}");
            assert!(report.passes() && report.difference < 1e-3, "{isa}, {name}\n{report}");
            assert_eq!((report.scale, report.width, report.positions), (scale, width, 4));
        }
        let error = ModelFolder::open(&path).unwrap_err().to_string();
        assert!(error.contains("predicts tokens") && error.contains("scores"), "{error}");
    }
}

/// A body in bf16, or of codes that are made at load, beside a head as it is stored.
#[test]
fn published_forms_in_other_dtypes() {
    let Some(root) = shared("goldens_modern") else { return };
    for name in ["reward-qwen2-math-prm", "reward-qwen3-classifier", "reward-skywork-prm"] {
        let path = root.join(name);
        let mut rounded = ModelFolder::open_scorer(&path, None).unwrap();
        rounded.config.compute = Some(Dtype::Bf16);
        let mut backend = Cpu::open().unwrap();
        let mut model = Decoder::load(&mut backend, &rounded).unwrap();
        let report = scores(&mut backend, &mut model, &path.join("golden_scores.json")).unwrap();
        assert!(report.passes() && report.difference > 1e-6, "{name}\n{report}");
        let choice = WeightChoice { weights: Some(MadeFormat::Int8), activations: ActivationChoice::Bf16 };
        let coded = ModelFolder::open_scorer(&path, None).unwrap().with(choice).unwrap();
        let mut model = Decoder::load(&mut backend, &coded).unwrap();
        let report = scores(&mut backend, &mut model, &path.join("golden_scores.json")).unwrap();
        assert!(report.difference > 1e-6 && report.difference < 0.2, "{name}\n{report}");
    }
}

/// Names as trl saves a model that it wraps, with the head beside it or in the wrapper, and those of the bare decoder.
#[test]
fn heads_are_found_under_any_prefix() {
    let (model, tokens) = draw("llama", 5);
    for (prefix, module, class) in [
        ("pretrained_model.model.", "v_head.summary", "LlamaForCausalLM"),
        ("pretrained_model.model.", "pretrained_model.score", "LlamaForSequenceClassification"),
        ("", "score", "LlamaForTokenClassification"),
        ("model.", "v_head", "AutoModelForCausalLMWithValueHead"),
    ] {
        let mut tensors = Tensors::new(5, prefix);
        let expected = reference::values(&model.spec, &mut tensors, &tokens, &[(module, 2, true)]);
        let mut config = model.configs[0].clone();
        config["architectures"] = json!([class]);
        let folder = folder(&config, &tensors);
        hold(folder.path(), None, &tokens, &expected, &format!("{prefix}, {module}"));
        let generates = class.ends_with("ForCausalLM");
        let role = if generates { ModelRole::Generator } else { ModelRole::Scorer };
        assert_eq!(ModelRole::of(folder.path()).unwrap(), role, "{class}");
    }
}

/// The config of a drawn model with the class of a scorer.
fn scorer(config: &Value, labels: Option<usize>) -> Value {
    let mut config = config.clone();
    config["architectures"] = json!(["SomeForSequenceClassification"]);
    if let Some(labels) = labels {
        config["num_labels"] = json!(labels);
    }
    config
}

fn load(path: &Path, words: Option<&[TokenId]>) -> (Cpu, Decoder<Cpu>) {
    let mut backend = Cpu::with_isa(*Isa::available().last().unwrap());
    let opened = ModelFolder::open_scorer(path, words).unwrap_or_else(|error| panic!("{error}"));
    let decoder = Decoder::load(&mut backend, &opened).unwrap_or_else(|error| panic!("{error}"));
    (backend, decoder)
}

fn hold(path: &Path, words: Option<&[TokenId]>, tokens: &[usize], expected: &[f64], what: &str) {
    let (backend, decoder) = load(path, words);
    hold_loaded(backend, decoder, tokens, expected, what);
}

fn hold_loaded(mut backend: Cpu, mut decoder: Decoder<Cpu>, tokens: &[usize], expected: &[f64], what: &str) {
    let tokens: Vec<TokenId> = tokens.iter().map(|&token| TokenId::new(token)).collect();
    let rows = u32::try_from(tokens.len()).unwrap();
    let found = Sequence::new(&mut backend, &mut decoder, tokens.len()).unwrap().extend(&tokens, 0..rows).unwrap();
    let worst = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(found.len() == expected.len() && worst < TOLERANCE, "{worst}: {what}");
}

#[test]
fn heads_of_all_forms_on_several_families() {
    let heads: [&[reference::ValueLayer<'_>]; 7] = [
        &[("score", 1, false)],
        &[("score", 2, true)],
        &[("score.0", 24, true), ("score.2", 2, true)],
        &[("v_head.summary", 1, true)],
        &[("v_head.summary.0", 16, true), ("v_head.summary.2", 8, true), ("v_head.summary.4", 1, true)],
        &[("v_head", 1, false)],
        &[("regression_head", 19, false)],
    ];
    for family in ["llama", "mistral", "gemma2", "qwen3_moe"] {
        for (number, head) in (0u64..).zip(heads) {
            let (model, tokens) = draw(family, 100 + number);
            let mut tensors = Tensors::new(number, &model.prefix);
            if number % 2 == 0 {
                // An output layer for tokens lies beside the head, and is left out.
                reference::logits(&model.spec, &mut tensors, &tokens);
            }
            let expected = reference::values(&model.spec, &mut tensors, &tokens, head);
            let width = head.last().unwrap().1;
            let labels = (number % 3 == 0).then_some(width);
            for config in &model.configs {
                let folder = folder(&scorer(config, labels), &tensors);
                hold(folder.path(), None, &tokens, &expected, &format!("{family}, {head:?}: {config}"));
            }
        }
    }
}

/// Of a bare model's folder, and of a generator's with the modules of sentence-transformers.
#[test]
fn vectors_are_the_rows_behind_the_final_norm() {
    for family in ["llama", "mistral", "gemma2", "qwen3_moe"] {
        let (model, tokens) = draw(family, 41);
        let mut tensors = Tensors::new(41, &model.prefix);
        let expected = reference::values(&model.spec, &mut tensors, &tokens, &[]);
        let mut config = model.configs[0].clone();
        config["architectures"] = json!(["SomeModel"]);
        let bare = folder(&config, &tensors);
        assert_eq!(ModelRole::of(bare.path()).unwrap(), ModelRole::Embedder);
        config["architectures"] = json!(["SomeForCausalLM"]);
        let generator = folder(&config, &tensors);
        assert_eq!(ModelRole::of(generator.path()).unwrap(), ModelRole::Generator);
        let modules = json!([{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]);
        std::fs::write(generator.path().join("modules.json"), modules.to_string()).unwrap();
        assert_eq!(ModelRole::of(generator.path()).unwrap(), ModelRole::Embedder);
        for folder in [&bare, &generator] {
            let opened = ModelFolder::open_embedder(folder.path()).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(opened.config.outputs(), model.spec.hidden);
            let mut backend = Cpu::with_isa(*Isa::available().last().unwrap());
            let decoder = Decoder::load(&mut backend, &opened).unwrap_or_else(|error| panic!("{error}"));
            hold_loaded(backend, decoder, &tokens, &expected, family);
        }
    }
    let (phi, _) = draw("phi", 1);
    let folder = folder(&phi.configs[0], &Tensors::new(1, &phi.prefix));
    let error = ModelFolder::open_embedder(folder.path()).unwrap_err().to_string();
    assert!(error.contains("final norm"), "{error}");
}

/// Of a generator's folder, tied or not, with a softcap or without.
#[test]
fn the_logits_of_some_tokens_are_values() {
    for family in ["llama", "gemma2", "phi", "qwen3_moe"] {
        for seed in 0..4 {
            let (model, tokens) = draw(family, seed);
            let mut tensors = Tensors::new(seed, &model.prefix);
            let all = reference::logits(&model.spec, &mut tensors, &tokens);
            let words = [model.spec.vocab - 1, 3, 11];
            let expected: Vec<f64> =
                all.chunks_exact(model.spec.vocab).flat_map(|logits| words.map(|word| logits[word])).collect();
            let folder = folder(&model.configs[0], &tensors);
            let words = words.map(TokenId::new);
            hold(folder.path(), Some(&words), &tokens, &expected, &format!("{family}, draw {seed}"));
        }
    }
}

fn random_scorer() -> ModelConfig {
    let config = r#"{ "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 500, "eos_token_id": 1,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }"#;
    let layer = |module: &str, outputs| ValueLayer { module: module.to_owned(), outputs, bias: true };
    let head = ValueHead { inner: vec![layer("score.0", 32)], last: layer("score.2", 2) };
    ModelConfig { output: OutputHead::Values(head), ..ModelConfig::from_json(config).unwrap() }
}

/// Submits a text in steps that end where `ends` says, which keep the values of the tokens `at`.
fn kept(model: &mut dyn StepRunner, tokens: &[TokenId], ends: &[usize], at: &[usize]) -> Vec<f32> {
    let largest = StepBatch::default().shape();
    model.prepare(StepLimits { deterministic: true, longest: 128, largest, keeps_routes: false }).unwrap();
    model.allocate(KvRoom { pages: PAGES, ..KvRoom::default() }).unwrap();
    let facts = model.facts();
    assert_eq!(facts.values, Some(2));
    let (mut pool, mut tree) = (PagePool::new(PAGES), PrefixTree::new(facts.page_tokens));
    let path = tree.admit(&mut pool, tokens).unwrap();
    let (mut first, mut values) = (0, Vec::new());
    for &end in ends {
        let rows: Vec<StepRow> = (first..end)
            .map(|position| StepRow { segment: path, position: u32::try_from(position).unwrap() })
            .collect();
        let forest = tree.forest(&rows);
        let slots = rows.iter().map(|row| tree.slot(row.segment, row.position)).collect();
        let wanted = |position: &usize| at.contains(position);
        let logit_rows: Vec<u32> = (first..end).filter(wanted).map(|p| u32::try_from(p - first).unwrap()).collect();
        let count = logit_rows.len();
        let batch = StepBatch {
            tokens: tokens[first..end].iter().copied().map(RowToken::Known).collect(),
            positions: rows.iter().map(|row| row.position).collect(),
            slots: vec![slots],
            logit_rows,
            plans: vec![Planner::Flat.plan(&forest, &facts.plan_hints[0])],
            requests: StepRequests::Values,
            ..StepBatch::default()
        };
        assert!(!batch.can_advance());
        model.submit(batch).unwrap();
        let RowValues { width, data } = model.collect_values().unwrap();
        assert_eq!((width, data.len()), (2, 2 * count));
        values.extend(data);
        first = end;
    }
    values
}

#[test]
fn steps_keep_the_values_of_some_rows() {
    let tokens: Vec<TokenId> = (0..60).map(|i| TokenId::new(i * 7 % 500)).collect();
    let at = [0, 8, 9, 31, 32, 59];
    let weights = ModelWeights::random(random_scorer(), Dtype::F32, 7);
    let mut backend = Cpu::open().unwrap();
    let mut model = Decoder::of(&mut backend, &weights).unwrap();
    let all = Sequence::new(&mut backend, &mut model, tokens.len()).unwrap().extend(&tokens, 0..60).unwrap();
    let expected: Vec<f32> = at.iter().flat_map(|&at| all[2 * at..][..2].to_vec()).collect();
    let mut runner = model.on(backend);
    // The last step but one keeps nothing.
    for ends in [&[60][..], &[9, 30, 31, 33, 50, 60]] {
        assert_eq!(kept(&mut *runner, &tokens, ends, &at), expected, "{ends:?}");
        runner.clear();
    }
}

#[test]
fn ranks_keep_the_values_of_one_device() {
    let tokens: Vec<TokenId> = (0..40).map(|i| TokenId::new(i * 11 % 500)).collect();
    let weights = ModelWeights::random(random_scorer(), Dtype::F32, 7);
    let one = {
        let mut backend = Cpu::open().unwrap();
        let mut runner = Decoder::of(&mut backend, &weights).unwrap().on(backend);
        kept(&mut *runner, &tokens, &[40], &[7, 39])
    };
    let ranks = super::ranks::ranks(Isa::Portable, 2, true);
    let mut two = LoadedRanks::start(ranks, |rank| Decoder::of(rank, &weights)).unwrap();
    let two = kept(&mut *two, &tokens, &[40], &[7, 39]);
    let apart = one.iter().zip(&two).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(one.len() == two.len() && apart < 1e-4, "{one:?} and {two:?}");
}

/// Steps of a scorer sample nothing, and those of a generator keep no values.
#[test]
fn steps_of_the_other_kind_are_refused() {
    let generator = ModelConfig { output: OutputHead::Tokens, ..random_scorer() };
    let mut backend = Cpu::open().unwrap();
    let weights = ModelWeights::random(generator, Dtype::F32, 7);
    let mut runner = Decoder::of(&mut backend, &weights).unwrap().on(backend);
    assert_eq!(runner.facts().values, None);
    let largest = StepBatch::default().shape();
    runner.prepare(StepLimits { deterministic: true, longest: 128, largest, keeps_routes: false }).unwrap();
    runner.allocate(KvRoom { pages: PAGES, ..KvRoom::default() }).unwrap();
    let (mut pool, mut tree) = (PagePool::new(PAGES), PrefixTree::new(runner.facts().page_tokens));
    let segment = tree.admit(&mut pool, &[TokenId(5)]).unwrap();
    let rows = [StepRow { segment, position: 0 }];
    let batch = StepBatch {
        tokens: vec![RowToken::Known(TokenId(5))],
        positions: vec![0],
        slots: vec![vec![tree.slot(segment, 0)]],
        logit_rows: vec![0],
        plans: vec![Planner::Flat.plan(&tree.forest(&rows), &runner.facts().plan_hints[0])],
        requests: StepRequests::Values,
        ..StepBatch::default()
    };
    let failure = runner.submit(batch).unwrap_err();
    assert!(failure.error.to_string().contains("do not fit"), "{}", failure.error);
}

/// A llama of one layer with a scorer's tensors, changed by `change`.
fn small(layers: &[reference::ValueLayer<'_>], hidden: usize, changes: Value) -> TempDir {
    let (model, tokens) = draw("llama", 1);
    let mut tensors = Tensors::new(1, &model.prefix);
    reference::values(&model.spec, &mut tensors, &tokens, layers);
    let mut config = scorer(&model.configs[0], None);
    config["hidden_size"] = json!(if hidden == 0 { model.spec.hidden } else { hidden });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    folder(&config, &tensors)
}

#[track_caller]
fn refused(folder: &TempDir, said: &[&str]) {
    let error = ModelFolder::open_scorer(folder.path(), None).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    for said in said {
        assert!(text.contains(said), "`{said}` is not in: {text}");
    }
}

#[test]
fn heads_that_do_not_fit_are_named() {
    let one: &[reference::ValueLayer<'_>] = &[("score", 1, false)];
    assert!(ModelFolder::open_scorer(small(one, 0, json!({"num_labels": 1})).path(), None).is_ok());
    refused(&small(one, 0, json!({"num_labels": 2})), &["score.weight", "num_labels", "[1, ...]"]);
    refused(&small(one, 4096, json!({})), &["score.weight", "4096"]);
    refused(&small(one, 0, json!({"do_normalize": true})), &["do_normalize"]);
    refused(&small(&[("head", 1, false)], 0, json!({})), &["`score`", "`v_head.summary`", "none of them"]);
    refused(&small(&[("score", 8, false), ("v_head", 1, false)], 0, json!({})), &["both", "score", "v_head"]);
    for (class, said) in [
        ("DebertaV2ForSequenceClassification", "both directions"),
        ("LlamaForRewardModelWithGating", "gate"),
        ("LlamaForQuestionAnswering", "marks answers"),
    ] {
        refused(&small(one, 0, json!({"architectures": [class]})), &["`architectures`", class, said]);
    }
    refused(&small(one, 0, json!({"is_causal": false})), &["is_causal"]);
}

#[test]
fn golden_scores_that_do_not_fit_are_named() {
    let (folder, config) = (tempfile::tempdir().unwrap(), random_scorer());
    let path = folder.path().join("scores.json");
    let read = |json: Value| {
        std::fs::write(&path, json.to_string()).unwrap();
        read_scores(&path, &config)
    };
    let golden = json!({"prompt": [4, 5, 6], "positions": [0, 2], "scores": [[0.1, 0.9], [0.5, 0.5]]});
    let found = read(golden.clone()).unwrap();
    assert_eq!((found.positions, found.scores), (vec![0, 2], vec![vec![0.1, 0.9], vec![0.5, 0.5]]));
    for (field, wrong) in [
        ("prompt", json!([4, 500])),
        ("prompt", json!([])),
        ("positions", json!([0, 3])),
        ("positions", json!(1)),
        ("scores", json!([[0.1], [0.9]])),
        ("scores", json!([[0.1, 0.9]])),
        ("scores", json!([[0.1, "x"], [0.5, 0.5]])),
    ] {
        let mut golden = golden.clone();
        golden[field] = wrong;
        let error = read(golden).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(&format!("`{field}`")), "{error}");
    }
}

/// A score that is off by more than rounding fails, whatever the file's scale.
#[test]
fn wrong_scores_fail() {
    let weights = ModelWeights::random(random_scorer(), Dtype::F32, 7);
    let mut backend = Cpu::open().unwrap();
    let mut model = Decoder::of(&mut backend, &weights).unwrap();
    let tokens = [4, 5, 6].map(TokenId::new);
    let values = Sequence::new(&mut backend, &mut model, 3).unwrap().extend(&tokens, 0..3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scores.json");
    for scale in [ScoreScale::Values, ScoreScale::Sigmoids, ScoreScale::Softmax] {
        for off in [0.0, 3e-3] {
            let mut rows = [0, 2].map(|at| scale.scores(&values[2 * at..][..2]));
            rows[1][0] += off;
            let golden = json!({"prompt": [4, 5, 6], "positions": [0, 2], "scores": rows});
            std::fs::write(&path, golden.to_string()).unwrap();
            let report = scores(&mut backend, &mut model, &path).unwrap();
            assert_eq!((report.passes(), report.scale), (off == 0.0, scale), "{report}");
        }
    }
}
