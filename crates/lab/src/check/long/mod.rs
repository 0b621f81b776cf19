//! A long decode: some thousand steps of a tree that branches, is pruned and gets new prompts while others decode, with
//! the same tokens on the device and on the CPU. The device runs as it does for users: run-ahead, plans patched from
//! step to step, graphs replayed, pages reused by other branches. The CPU shares nothing and plans every step from
//! scratch.
//!
//! `script` defines what happens to the tree, `side` runs it on an engine; this file compares every log-probability of
//! every token.

mod script;
mod side;

use std::collections::BTreeMap;
use std::fmt;

use script::{BranchName, LongScript, ScriptCounts, ScriptSizes, VOCAB};
use side::{ReportedToken, ScriptPlayer, StepCounts, named};

use offshoot_backend::{Backend, Dtype};
use offshoot_cases::{CaseResult, CheckEffort, CheckReport, WorstError};
use offshoot_core::error::Result;
use offshoot_cpu::Cpu;
use offshoot_engine::{EngineConfig, PoolSize};
use offshoot_kv::plan::Planner;
use offshoot_model::check::tolerance;
use offshoot_model::{Decoder, ModelConfig};

/// A small model, and the mode of the device.
struct LongCase {
    dtype: Dtype,
    family: &'static str,
    changes: &'static str,
    deterministic: bool,
}

const LLAMA: (&str, &str) = ("llama", r#""num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128"#);
/// Windows of a few pages in all layers but the first: two plans per step.
const WINDOWS: (&str, &str) = (
    "qwen2",
    r#""num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "sliding_window": 100,
        "use_sliding_window": true, "max_window_layers": 1"#,
);

const fn case((family, changes): (&'static str, &'static str), dtype: Dtype, deterministic: bool) -> LongCase {
    LongCase { dtype, family, changes, deterministic }
}

/// In 16 bits, to test the tensor cores' kernels; in f32, because there a wrong key among hundreds exceeds rounding.
const CASES: [LongCase; 6] = [
    case(LLAMA, Dtype::F16, false),
    case(WINDOWS, Dtype::F16, false),
    case(LLAMA, Dtype::Bf16, false),
    case(LLAMA, Dtype::F32, false),
    case(WINDOWS, Dtype::F16, true),
    case(LLAMA, Dtype::Bf16, true),
];

/// Most branches that run at once: more than any round of a script has.
const MAX_BRANCHES: usize = 32;
/// Rows of a step: few, so that prompts come in chunks.
const STEP_ROWS: usize = 64;

/// Runs all cases on devices opened by `open`, and on the CPU.
pub fn long<B: Backend>(open: impl Fn() -> Result<B>, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let cases = if effort == CheckEffort::Quick { &CASES[..1] } else { &CASES };
    // A synchronous backend is the CPU, which is always deterministic.
    for (seed, case) in (0u64..).zip(cases).filter(|(_, case)| B::IS_ASYNC || !case.deterministic) {
        case.play(open()?, effort, seed, report)?;
    }
    Ok(())
}

impl LongCase {
    fn play<B: Backend>(&self, backend: B, effort: CheckEffort, seed: u64, report: &mut CheckReport) -> Result<()> {
        let sizes = ScriptSizes::of(effort);
        let config = ModelConfig::from_json(&format!(
            r#"{{ "model_type": "{}", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
                "vocab_size": {VOCAB}, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, {} }}"#,
            self.family, self.changes
        ))?;
        let layers = config.layers.len();
        let usual = EngineConfig {
            max_branches: MAX_BRANCHES,
            step_rows: STEP_ROWS,
            run_ahead: true,
            deterministic: self.deterministic,
            check_plans: true,
            ..EngineConfig::default()
        };
        let simple = EngineConfig { run_ahead: false, planner: Planner::Flat, ..usual.clone() };
        let mut device = self.side(backend, &config, usual, sizes, false)?;
        let mut cpu = self.side(Cpu::open()?, &config, simple, sizes, true)?;
        let mut script = LongScript::new(sizes, seed);
        let mut held = LogprobComparison::default();
        while let Some(round) = script.next_round() {
            let (found, expected) = (device.play(&round)?, cpu.play(&round)?);
            // Of differences of two values that may each be off, as in the whole runs.
            let tolerance = |scale: f32| 2.0 * f64::from(tolerance(self.dtype, layers, scale));
            held.hold(&found, &expected, tolerance, |step| device.was_advanced(step));
        }
        let exercised = ScriptCoverage {
            steps: device.steps(),
            counts: script.counts,
            tokens: held.tokens,
            rows: device.metrics().rows,
            pool: sizes.pool,
            preemptions: device.metrics().preemptions,
        };
        held.file(report, self);
        exercised.file(report, self, sizes);
        Ok(())
    }

    fn side<B: Backend>(
        &self,
        mut backend: B,
        model: &ModelConfig,
        config: EngineConfig,
        sizes: ScriptSizes,
        replans: bool,
    ) -> Result<ScriptPlayer> {
        let decoder = Decoder::random(&mut backend, model.clone(), self.dtype, 11)?;
        let pool = PoolSize::Share { of_free: 0.5, at_most: sizes.pool * decoder.kv_bytes_per_token() };
        ScriptPlayer::new(decoder.on(backend), EngineConfig { pool, ..config }, replans)
    }
}

impl fmt::Display for LongCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.deterministic { ", deterministic" } else { "" };
        let changes = self.changes.split_whitespace().collect::<Vec<_>>().join(" ").replace('"', "");
        write!(f, "{}, {changes}{how}", self.family)
    }
}

/// The result of the comparison.
///
/// Errors do not grow with the number of steps: what a layer reads of earlier positions was computed by the layers
/// below it, so it has passed through no more layers than the model has, and is averaged on the way. So every step must
/// be within the tolerance of one forward pass, scaled by the largest log-probability of its row, and the mean error
/// within a quarter of it: the largest of so many errors is about four standard deviations, and the mean is less than
/// one.
///
/// The sensitivity was tested with faults: if one row in ten misses its own newest token, at one of 16 positions and
/// nowhere else, the error is 2.8 times the tolerance in f16, 1.3 times in bf16 (with windows) and 55 times in f32.
#[derive(Default)]
struct LogprobComparison {
    tokens: u64,
    worst: WorstError,
    /// Sums over all log-probabilities of all tokens.
    errors: f64,
    tolerances: f64,
    /// The first token that is outside the tolerance or wrong.
    failure: Option<(String, WorstError)>,
}

impl LogprobComparison {
    /// Compares the results of a round.
    fn hold(
        &mut self,
        found: &BTreeMap<BranchName, Vec<ReportedToken>>,
        expected: &BTreeMap<BranchName, Vec<ReportedToken>>,
        tolerance: impl Fn(f32) -> f64,
        was_advanced: impl Fn(u64) -> bool,
    ) {
        let mut first: Option<(u64, String, WorstError)> = None;
        for (&name, found) in found {
            let expected = expected.get(&name).map_or(&[][..], Vec::as_slice);
            // For a pruned branch, one side may have reported more tokens.
            for (found, expected) in found.iter().zip(expected) {
                let (what, worst) = compare(name, found, expected, &tolerance);
                self.tokens += 1;
                self.errors += mean_difference(found, expected);
                self.tolerances += worst.tolerance;
                if worst.share() > self.worst.share() {
                    self.worst = worst;
                }
                let fails = worst.error > worst.tolerance;
                if fails && first.as_ref().is_none_or(|(step, ..)| found.step < *step) {
                    let how = if was_advanced(found.step) { "advanced" } else { "planned anew" };
                    let row = format!("branch {} at position {}", name.0, found.position);
                    first = Some((found.step, format!("step {} ({how}), {row}: {what}", found.step), worst));
                }
            }
        }
        if self.failure.is_none() {
            self.failure = first.map(|(_, what, worst)| (what, worst));
        }
    }

    fn file(&self, report: &mut CheckReport, case: &LongCase) {
        match &self.failure {
            Some((what, worst)) => {
                report.see("long", Some(case.dtype), format_args!("{case}: {what}"), CaseResult::once(*worst));
            }
            None => report.see("long", Some(case.dtype), case, CaseResult::once(self.worst)),
        }
        let tokens = self.tokens as f64;
        let worst = WorstError { error: self.errors / tokens, tolerance: self.tolerances / tokens / 4.0 };
        report.see("long, mean", Some(case.dtype), case, CaseResult::once(worst));
    }
}

/// Describes a token, and the largest error of its log-probabilities: infinite if the token is not the one that the
/// script determines.
fn compare(
    name: BranchName,
    found: &ReportedToken,
    expected: &ReportedToken,
    tolerance: impl Fn(f32) -> f64,
) -> (String, WorstError) {
    let scale = expected.logprobs.iter().fold(1.0f32, |scale, logprob| scale.max(logprob.abs()));
    let tolerance = tolerance(scale);
    let named = named(name, found.position);
    for (side, drawn) in [("", found.token), (" on the CPU", expected.token)] {
        if drawn != named {
            let what = format!("token {drawn} was sampled{side} instead of {named}");
            return (what, WorstError { error: f64::INFINITY, tolerance });
        }
    }
    let differences = found.logprobs.iter().zip(&expected.logprobs).map(|(a, b)| f64::from((a - b).abs()));
    let differences = differences.map(|error| if error.is_nan() { f64::INFINITY } else { error });
    let (at, error) = differences.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).expect("a vocabulary has tokens");
    let (found, expected) = (found.logprobs[at], expected.logprobs[at]);
    let what = format!("the log-probability of token {at} is {found}, on the CPU {expected}");
    (what, WorstError { error, tolerance })
}

fn mean_difference(found: &ReportedToken, expected: &ReportedToken) -> f64 {
    let differences = found.logprobs.iter().zip(&expected.logprobs).map(|(a, b)| f64::from((a - b).abs()));
    differences.sum::<f64>() / VOCAB as f64
}

/// What the device executed.
struct ScriptCoverage {
    steps: StepCounts,
    counts: ScriptCounts,
    tokens: u64,
    rows: u64,
    pool: usize,
    preemptions: u64,
}

impl ScriptCoverage {
    /// Adds the counts to the report, and fails the case if the script did not exercise something.
    fn file(&self, report: &mut CheckReport, case: &LongCase, sizes: ScriptSizes) {
        let (StepCounts { all, replanned, turned }, counts) = (self.steps, self.counts);
        let advanced = all - replanned;
        let needed = [
            ("steps", all >= u64::from(sizes.steps)),
            ("advanced steps", 2 * advanced >= all),
            ("steps planned anew", replanned > 0),
            ("turned pages", turned > 0),
            ("tokens compared", self.tokens >= all),
            ("forks", counts.forks > counts.late_forks),
            ("forks while others decode", counts.late_forks > 0),
            ("prompts while others decode", counts.late_roots > 0),
            ("prunes", counts.prunes > counts.late_prunes),
            ("prunes while others decode", counts.late_prunes > 0),
            ("pages used again", self.rows > self.pool as u64),
        ];
        for (what, _) in needed.iter().filter(|(_, enough)| !enough) {
            report.miss("long", Some(case.dtype), format_args!("{case}: too few {what}: {self}"));
        }
        report.note("long", Some(case.dtype), format_args!("{case}: {self}"));
    }
}

impl fmt::Display for ScriptCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (StepCounts { all, replanned, turned }, counts) = (self.steps, self.counts);
        let ScriptCounts { forks, late_forks, late_roots, prunes, late_prunes } = counts;
        write!(
            f,
            "{all} steps, {} advanced with {turned} pages turned, {replanned} planned anew; {} rows on {} slots, {} \
             tokens compared; {forks} forks ({late_forks} while others decoded), {late_roots} prompts while others \
             decoded, {prunes} prunes ({late_prunes} while others decoded), {} preemptions",
            all - replanned,
            self.rows,
            self.pool,
            self.tokens,
            self.preemptions
        )
    }
}
