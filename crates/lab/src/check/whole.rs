//! Whole models: golden files, and a tree of prompts and forks through the engine, on the device and on the CPU. The
//! tokens are given, so that one different choice does not make two runs incomparable; greedy text follows, compared as
//! far as margins allow.

use std::path::{Path, PathBuf};

use offshoot_backend::{Backend, Dtype};
use offshoot_cases::{CaseResult, CheckEffort, CheckReport, WorstError};
use offshoot_core::bundled::bundled;
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;
use offshoot_cpu::Cpu;
use offshoot_engine::{Engine, EngineConfig, Extend, Finish, PoolSize, SamplingParams, Stop, UniformKey};
use offshoot_kv::plan::{LatentForm, LatentFormChoice};
use offshoot_model::check::{GoldenReport, golden, golden_dtype, golden_in_forms, tolerance};
use offshoot_model::config::ActivationChoice;
use offshoot_model::{Decoder, ModelConfig, ModelFolder, StepRunner, WeightChoice};

/// Names of golden files.
const GOLDEN_FILES: [&str; 2] = ["golden.json", "golden_greedy.json"];
/// Depth to which folders are searched.
const DEPTH: usize = 3;

/// The golden files below `folder`, at least one.
pub fn golden_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    find_goldens(folder, DEPTH, &mut files)?;
    if files.is_empty() {
        let expected = format!("model folders with a {} beneath it", GOLDEN_FILES.join(" or "));
        return Err(Error::value(format!("--goldens {}", folder.display()), expected, "none"));
    }
    files.sort();
    Ok(files)
}

/// Checks the model folders of these golden files against them.
pub fn goldens<B: Backend>(backend: &mut B, files: &[PathBuf], report: &mut CheckReport) -> Result<()> {
    for file in files {
        let mut model = ModelFolder::open(file.parent().unwrap_or(Path::new(".")))?;
        // A router chooses other experts where anything is rounded, activations of codes too.
        if let Some(dtype) = golden_dtype(&model.config) {
            model = model.with(WeightChoice { weights: None, activations: ActivationChoice::Bf16 })?;
            model.config.compute = Some(dtype);
        }
        let mut decoder = Decoder::load(backend, &model)?;
        see_golden(report, "golden", file, &golden(backend, &mut decoder, file)?);
        if decoder.config().latents().is_some() {
            for (name, choice) in FORMS {
                let found = golden_in_forms(backend, &mut decoder, file, (choice, SEGMENT))?;
                see_golden(report, name, file, &found);
            }
        }
    }
    Ok(())
}

/// The forms in which models with latent attention read the segments of a golden text, of so many tokens each.
const FORMS: [(&str, LatentFormChoice); 3] = [
    ("golden, kept copies", LatentFormChoice::All(LatentForm::Kept)),
    ("golden, copies made again", LatentFormChoice::All(LatentForm::Again)),
    ("golden, forms mixed", LatentFormChoice::Random(1)),
];
const SEGMENT: u32 = 21;

fn see_golden(report: &mut CheckReport, name: &'static str, file: &Path, found: &GoldenReport) {
    for case in &found.cases {
        // Wrong greedy tokens fail the case, but have no error size.
        let error = if case.passes(found.dtype, found.rounding) { f64::from(case.logits) } else { f64::INFINITY };
        let worst = WorstError { error, tolerance: f64::from(case.tolerance) };
        let what = format!("{}, {}: logits off by {:.2e}", file.display(), case.name, case.logits);
        report.see(name, Some(found.dtype), what, CaseResult::once(worst));
    }
}

fn find_goldens(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    found.extend(GOLDEN_FILES.map(|name| folder.join(name)).into_iter().find(|file| file.is_file()));
    if depth == 0 {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        let path = entry.map_err(Error::io(folder, "list"))?.path();
        if path.is_dir() {
            find_goldens(&path, depth - 1, found)?;
        }
    }
    Ok(())
}

/// The model of the runs: the bundled one or, if it is not available, random weights of a small shape.
enum RunModel {
    Folder(ModelFolder),
    Random(ModelConfig),
}

impl RunModel {
    fn find() -> Result<Self> {
        match bundled("models/demo/config.json") {
            Ok(config) => ModelFolder::open(config.parent().unwrap_or(Path::new("."))).map(RunModel::Folder),
            Err(_) => ModelConfig::from_json(SMALL_SHAPE).map(RunModel::Random),
        }
    }

    fn load<B: Backend>(&self, backend: &mut B) -> Result<Decoder<B>> {
        match self {
            RunModel::Folder(folder) => Decoder::load(backend, folder),
            RunModel::Random(config) => Decoder::random(backend, config.clone(), Dtype::Bf16, 1),
        }
    }
}

const SMALL_SHAPE: &str = r#"{ "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }"#;

/// Compares the same tree on `backend` and on the CPU.
pub fn runs<B: Backend>(mut backend: B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let model = RunModel::find()?;
    let decoder = model.load(&mut backend)?;
    let (dtype, layers) = (decoder.dtype(), decoder.config().layers.len());
    let mut cpu = Cpu::open()?;
    let on_cpu = model.load(&mut cpu)?;
    let (found, expected) = (run(decoder.on(backend), effort)?, run(on_cpu.on(cpu), effort)?);

    let given = |run: &TreeRun| run.given.concat();
    let scale = given(&expected).iter().fold(1.0f32, |scale, logprob| scale.max(logprob.abs()));
    // Twice the tolerance, because both values have errors.
    let tolerance = 2.0 * f64::from(tolerance(dtype, layers, scale));
    let difference = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
    let differences: Vec<f64> = given(&found).iter().zip(&given(&expected)).map(difference).collect();
    let worst = differences.iter().fold(0.0, |worst: f64, e| if e.is_nan() { f64::INFINITY } else { worst.max(*e) });
    let same_shape = found.given.iter().map(Vec::len).eq(expected.given.iter().map(Vec::len));
    let error = if same_shape { worst } else { f64::INFINITY };
    let branches = expected.given.len();
    let found_given = CaseResult::once(WorstError { error, tolerance });
    report.see("run, given", Some(dtype), format_args!("{branches} branches"), found_given);

    // The largest of so many errors is about four standard deviations, and the mean is less than one.
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let found_mean = CaseResult::once(WorstError { error: mean, tolerance: tolerance / 4.0 });
    report.see("run, mean", Some(dtype), format_args!("{} tokens", differences.len()), found_mean);

    let margins = found.greedy.iter().zip(&expected.greedy).map(|(found, expected)| margin(found, expected));
    let error = margins.fold(0.0, f64::max);
    let found_greedy = CaseResult::once(WorstError { error, tolerance });
    report.see(
        "run, greedy",
        Some(dtype),
        format_args!("the margin of another token, {branches} branches"),
        found_greedy,
    );
    Ok(())
}

/// The margin by which `expected` preferred its own token where the two texts differ first; 0 if they do not differ.
fn margin(found: &Finish, expected: &Finish) -> f64 {
    let parted = found.tokens.iter().zip(&expected.tokens).position(|(found, expected)| found != expected);
    match parted.map(|at| expected.records.top(at)) {
        None if found.tokens.len() == expected.tokens.len() => 0.0,
        Some([(_, first), (_, second), ..]) => f64::from(first - second),
        _ => f64::INFINITY,
    }
}

/// The results of the tree: log-probabilities of given tokens, and greedy text, by branch.
struct TreeRun {
    given: Vec<Vec<f32>>,
    greedy: Vec<Finish>,
}

/// Runs a tree: prompts with a common header; forks of each are scored, the last of them pruned, the others forked and
/// scored again; greedy text follows. Everything that can run together does.
fn run(model: Box<dyn StepRunner>, effort: CheckEffort) -> Result<TreeRun> {
    let (prompts, forks, greedy) = if effort == CheckEffort::Quick { (2, 2, 4) } else { (4, 6, 32) };
    let dice = &mut Dice::new(4);
    let vocab = model.config().vocab;
    let tokens = prompts * 200 + prompts * forks * 3 * 100;
    let useful = tokens * model.facts().kv_bytes_per_token;
    let pool = PoolSize::Share { of_free: 0.5, at_most: useful };
    let config = EngineConfig { pool, run_ahead: true, check_plans: true, ..EngineConfig::default() };
    let engine = Engine::start(model, None, config)?;
    let mut text = |shortest: u32, longest: u32| {
        let len = dice.within(shortest, longest);
        dice.text(len as usize, vocab)
    };
    let header = text(60, 90);
    let mut score = |branches: &[BranchId]| -> Vec<Extend> {
        branches.iter().map(|&branch| Extend::given(branch, text(1, 40), Some(0))).collect()
    };
    let mut first = Vec::new();
    for prompt in 0..prompts {
        let own = Dice::new(prompt as u64).text(20 + 9 * prompt, vocab);
        first.extend(engine.fork(engine.root([header.clone(), own].concat())?, forks)?);
    }
    let mut given = engine.finish(score(&first))?;
    let (kept, pruned): (Vec<_>, Vec<_>) = first.iter().enumerate().partition(|(i, _)| i % forks != forks - 1);
    engine.prune(&pruned.iter().map(|(_, branch)| **branch).collect::<Vec<_>>());
    let mut second = Vec::new();
    for (_, branch) in kept {
        second.extend(engine.fork(*branch, 2)?);
    }
    given.extend(engine.finish(score(&second))?);
    let params = SamplingParams { top_logprobs: Some(2), ..SamplingParams::greedy() };
    let stop = Stop { ignore_eos: true, ..Stop::max_tokens(greedy) };
    let draws = second.iter().map(|&branch| Extend::sampled(branch, &params, &stop, UniformKey::root(0, "check")));
    let greedy = engine.finish(draws.collect())?;
    Ok(TreeRun { given: given.iter().map(|finish| finish.logprobs().to_vec()).collect(), greedy })
}
