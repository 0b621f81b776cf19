//! The deterministic mode bit by bit: the ops' cases of it, then small models through the engine, whose samples of some
//! prompts, sampled together, must equal the same samples sampled alone, with other planners, in other steps, after
//! others were cancelled, and in a resumed run. Prompts are longer than a tile of any device.

use std::path::Path;

use offshoot_backend::{Backend, Dtype, StateDtype};
use offshoot_cases::deterministic::Differences;
use offshoot_cases::{CheckEffort, CheckReport, ReportRow};
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Event, Extend, Finish, ForkKind, PoolSize, SamplingParams, Stop, UniformKey,
};
use offshoot_inspect::{FORKED_TOKENS, forks};
use offshoot_kv::plan::Planner;
use offshoot_model::check::chunks;
use offshoot_model::{Decoder, MadeFormat, ModelConfig, Sequence, WeightChoice};

use super::forward::{adapters_in_runs, load_adapters};

/// Full attention; windows in some layers, longer and shorter than a tile; gated delta-rule layers; experts; and such
/// beside one that all rows share, of dense matrices and of codes: a captured step may compute both at the same time.
const FAMILIES: [(&str, &str, Option<MadeFormat>); 7] = [
    ("llama", r#""head_dim": 64"#, None),
    ("qwen2", r#""sliding_window": 700, "use_sliding_window": true, "max_window_layers": 1"#, None),
    ("qwen2", r#""sliding_window": 90, "use_sliding_window": true, "max_window_layers": 2"#, None),
    (
        "qwen3_5_text",
        r#""head_dim": 64, "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
            "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4"#,
        None,
    ),
    (
        "qwen3_moe",
        r#""head_dim": 64, "num_experts": 12, "num_experts_per_tok": 3, "norm_topk_prob": true,
            "moe_intermediate_size": 96, "decoder_sparse_step": 1, "mlp_only_layers": []"#,
        None,
    ),
    ("deepseek_v3", SHARED_EXPERT, None),
    ("deepseek_v3", SHARED_EXPERT, Some(MadeFormat::Fp8)),
];

const SHARED_EXPERT: &str = r#""q_lora_rank": null, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "moe_intermediate_size": 128, "first_k_dense_replace": 1"#;

/// Runs all cases on devices opened by `open`; `done` gets each part's rows.
///
/// # Errors
///
/// A device's, or one of `done`.
pub fn deterministic<B: Backend>(
    open: impl Fn() -> Result<B>,
    effort: CheckEffort,
    done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    deterministic_of(open, effort, &mut report, done)?;
    Ok(report)
}

/// Adds those of the cases that `report` wants.
pub fn deterministic_of<B: Backend>(
    open: impl Fn() -> Result<B>,
    effort: CheckEffort,
    report: &mut CheckReport,
    mut done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<()> {
    // Closed again before models open theirs.
    offshoot_cases::deterministic(&mut open()?, effort, report, &mut done)?;
    report.part_of(&OF_MODELS, &mut done, |report| models(open, effort, report))
}

/// The rows of whole models.
const OF_MODELS: [&str; 4] = ["alone, chunks", "alone, adapters", "alone, model", "alone, forks"];

fn models<B: Backend>(open: impl Fn() -> Result<B>, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    // Asynchronous devices have different kernels per dtype; f16 uses those of bf16.
    let few = &FAMILIES[..1];
    let dtypes: &[(Dtype, &[_])] = match effort {
        CheckEffort::Quick => &[(Dtype::Bf16, few)],
        CheckEffort::Full if B::IS_ASYNC => &[(Dtype::Bf16, &FAMILIES), (Dtype::F32, few)],
        CheckEffort::Full => &[(Dtype::F32, &FAMILIES)],
    };
    for &(dtype, families) in dtypes {
        for &(family, changes, weights) in families {
            let config = ModelConfig::from_json(&format!(
                r#"{{ "model_type": "{family}", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
                    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, {changes} }}"#
            ))?;
            let choice = WeightChoice { weights, ..WeightChoice::default() };
            let setup = ModelSetup { open: &open, config: config.with(choice, Path::new(family))?, dtype };
            let mut case = format!("{family}, {}", changes.split_whitespace().collect::<Vec<_>>().join(" "));
            if let Some(format) = weights {
                case += &format!(", {format} weights");
            }
            in_chunks(&setup, &case, report)?;
            with_adapters(&setup, &case, report)?;
            through_the_engine(&setup, effort, &case, report)?;
            if setup.config.states().next().is_some() {
                forked(&setup, &case, report)?;
            }
        }
    }
    Ok(())
}

/// A model with random weights, to be loaded on several devices.
struct ModelSetup<'a, F> {
    open: &'a F,
    config: ModelConfig,
    dtype: Dtype,
}

impl<B: Backend, F: Fn() -> Result<B>> ModelSetup<'_, F> {
    fn load(&self) -> Result<(B, Decoder<B>)> {
        let mut backend = (self.open)()?;
        let decoder = Decoder::random(&mut backend, self.config.clone(), self.dtype, 9)?;
        Ok((backend, decoder))
    }

    fn engine(&self, steps: EngineSteps) -> Result<EngineHandle> {
        let (backend, decoder) = self.load()?;
        let useful = 16 * self.config.context * decoder.kv_bytes_per_token();
        let EngineSteps { planner, max_branches, step_rows } = steps;
        let config = EngineConfig {
            planner,
            max_branches,
            step_rows,
            pool: PoolSize::Share { of_free: 0.5, at_most: useful },
            run_ahead: true,
            deterministic: true,
            keeps_routes: self.config.route_shape().is_ok(),
            check_plans: true,
            ..EngineConfig::default()
        };
        Engine::start(decoder.on(backend), None, config)
    }
}

/// Settings that change how an engine forms its steps.
#[derive(Clone, Copy)]
struct EngineSteps {
    planner: Planner,
    max_branches: usize,
    step_rows: usize,
}

const USUAL: EngineSteps = EngineSteps { planner: Planner::Balanced, max_branches: 64, step_rows: 256 };

/// The logits of every position of a text, in one step and in chunks.
fn in_chunks<B: Backend, F: Fn() -> Result<B>>(
    setup: &ModelSetup<'_, F>,
    case: &str,
    report: &mut CheckReport,
) -> Result<()> {
    let (mut backend, mut decoder) = setup.load()?;
    decoder.set_batch_invariant(&mut backend);
    let text = Dice::new(5).text(700, setup.config.vocab);
    let chunked = chunks(&mut backend, &mut decoder, &text)?;
    let mut differences = Differences::default();
    if !chunked.passes() {
        differences.note(chunked.different.max(chunked.not_finite), || chunked.to_string());
    }
    differences.file(report, "alone, chunks", setup.dtype, case);
    Ok(())
}

/// The logits of a text whose tokens have two adapters or none, in one step and in steps of few tokens.
fn with_adapters<B: Backend, F: Fn() -> Result<B>>(
    setup: &ModelSetup<'_, F>,
    case: &str,
    report: &mut CheckReport,
) -> Result<()> {
    let (mut backend, mut decoder) = setup.load()?;
    decoder.set_batch_invariant(&mut backend);
    let slots = load_adapters(&mut backend, &mut decoder, &[5, 16])?;
    let text = Dice::new(8).text(150, setup.config.vocab);
    let adapters = adapters_in_runs(&slots, text.len());
    let mut logits = |steps: &[usize]| -> Result<Vec<f32>> {
        let mut sequence = Sequence::new(&mut backend, &mut decoder, text.len())?;
        let (mut logits, mut from) = (Vec::new(), 0);
        for &rows in steps {
            let step = from..from + rows;
            logits.extend(sequence.extend_with_adapters(&text[step.clone()], &adapters[step], 0..rows as u32)?);
            from += rows;
        }
        Ok(logits)
    };
    let (whole, parts) = (logits(&[150])?, logits(&[1, 64, 2, 33, 1, 1, 1, 17, 30])?);
    let mut differences = Differences::default();
    let rows = whole.chunks_exact(setup.config.vocab).zip(parts.chunks_exact(setup.config.vocab));
    for (row, (whole, part)) in rows.enumerate() {
        differences.see(format_args!("token {row} of 150, in a smaller step"), whole, part);
    }
    differences.file(report, "alone, adapters", setup.dtype, case);
    Ok(())
}

/// Forks of a text at every offset; those that states have been swapped for and computed again for must be among them.
fn forked<B: Backend, F: Fn() -> Result<B>>(
    setup: &ModelSetup<'_, F>,
    case: &str,
    report: &mut CheckReport,
) -> Result<()> {
    for state in StateDtype::ALL {
        let (backend, mut decoder) = setup.load()?;
        decoder.set_state_dtype(state);
        let found = forks(decoder.on(backend), FORKED_TOKENS, 1, true)?;
        let case = format!("{case}, {state} states");
        if found.swapped == 0 || found.recomputed == 0 {
            report.miss("alone, forks", Some(setup.dtype), format_args!("{case}: nothing was swapped: {found}"));
        }
        let mut differences = Differences::default();
        if !found.passes() {
            differences.note(found.different.max(1), || found.to_string());
        }
        differences.file(report, "alone, forks", setup.dtype, format!("{case}: {found}"));
    }
    Ok(())
}

/// The samples to compare: `samples` of each prompt, each of `tokens` tokens.
struct SampledPrompts {
    prompts: Vec<Vec<TokenId>>,
    samples: u64,
    tokens: usize,
    /// The tokens that every other sample is drawn from.
    allowed: Vec<TokenId>,
    /// Whether the experts of each token are compared, too.
    routes: bool,
}

impl SampledPrompts {
    fn new(effort: CheckEffort, config: &ModelConfig) -> Self {
        let vocab = config.vocab;
        let (prompts, samples, tokens) = if effort == CheckEffort::Quick { (2, 2, 6) } else { (3, 5, 70) };
        let header = Dice::new(6).text(960, vocab);
        let own = |prompt: usize| Dice::new(100 + prompt as u64).text(40 + 67 * prompt, vocab);
        let prompts = (0..prompts).map(|prompt| [header.clone(), own(prompt)].concat()).collect();
        let allowed = (0..vocab).step_by(3).map(TokenId::new).collect();
        SampledPrompts { prompts, samples, tokens, allowed, routes: config.route_shape().is_ok() }
    }

    /// All samples: prompt and number.
    fn all(&self) -> Vec<(usize, u64)> {
        (0..self.prompts.len()).flat_map(|prompt| (0..self.samples).map(move |sample| (prompt, sample))).collect()
    }

    /// The extend of sample `sample` of prompt `prompt`, starting at its token `from`.
    fn draw(&self, branch: BranchId, (prompt, sample): (usize, u64), from: usize) -> Extend {
        let uniforms = UniformKey::root(1, &prompt.to_string()).child(ForkKind::Sample, sample);
        let allowed = (sample % 2 == 1).then(|| self.allowed.clone());
        let (top_p, top_logprobs, routes) = (0.95, Some(2), self.routes);
        let params = SamplingParams { top_p, top_logprobs, allowed, routes, ..SamplingParams::default() };
        let stop = Stop { ignore_eos: true, ..Stop::max_tokens(self.tokens - from) };
        Extend::sampled(branch, &params, &stop, uniforms)
    }

    /// A branch for each of `samples`, forked from their prompts.
    fn extends(&self, engine: &EngineHandle, samples: &[(usize, u64)]) -> Result<Vec<Extend>> {
        let roots = self.prompts.iter().map(|prompt| engine.root(prompt.clone())).collect::<Result<Vec<_>>>()?;
        let extend = |&(prompt, sample): &(usize, u64)| {
            let branch = engine.fork(roots[prompt], 1)?[0];
            Ok(self.draw(branch, (prompt, sample), 0))
        };
        let extends = samples.iter().map(extend).collect();
        engine.release(&roots);
        extends
    }
}

fn through_the_engine<B: Backend, F: Fn() -> Result<B>>(
    setup: &ModelSetup<'_, F>,
    effort: CheckEffort,
    case: &str,
    report: &mut CheckReport,
) -> Result<()> {
    let job = SampledPrompts::new(effort, &setup.config);
    let all = job.all();
    let expected = drawn(&setup.engine(USUAL)?, &job, &all)?;
    let mut differences = Differences::default();
    let mut see = |how: &str, samples: &[(usize, u64)], from: usize, found: &[Finish]| {
        for (sample, found) in samples.iter().zip(found) {
            let at = all.iter().position(|other| other == sample).expect("one of all samples");
            compare(&mut differences, format!("sample {sample:?} {how}"), &expected[at], from, found);
        }
    };
    for planner in [Planner::Flat, Planner::SingleLevel, Planner::Tree] {
        see(&format!("by {planner}"), &all, 0, &drawn(&setup.engine(EngineSteps { planner, ..USUAL })?, &job, &all)?);
    }
    let few = EngineSteps { max_branches: 2, step_rows: 37, ..USUAL };
    see("in small steps", &all, 0, &drawn(&setup.engine(few)?, &job, &all)?);
    for &alone in [all.first(), all.last()].into_iter().flatten() {
        see("alone", &[alone], 0, &drawn(&setup.engine(USUAL)?, &job, &[alone])?);
    }
    let (kept, pruned): (Vec<_>, Vec<_>) = all.iter().copied().partition(|(_, sample)| sample % 2 == 0);
    see("after others were pruned", &kept, 0, &drawn_while_pruning(&setup.engine(USUAL)?, &job, &kept, &pruned)?);
    let from = job.tokens / 3;
    let resumed = setup.engine(USUAL)?;
    let go_on = |(&sample, before): (&(usize, u64), &Finish)| {
        let text = [&job.prompts[sample.0][..], &before.tokens[..from]].concat();
        Ok(job.draw(resumed.root(text)?, sample, from))
    };
    let extends = all.iter().zip(&expected).skip(1).step_by(2).map(go_on).collect::<Result<Vec<_>>>()?;
    let every_other: Vec<_> = all.iter().copied().skip(1).step_by(2).collect();
    see("resumed", &every_other, from, &resumed.finish(extends)?);
    differences.file(report, "alone, model", setup.dtype, case);
    Ok(())
}

/// Samples `samples` together.
fn drawn(engine: &EngineHandle, job: &SampledPrompts, samples: &[(usize, u64)]) -> Result<Vec<Finish>> {
    engine.finish(job.extends(engine, samples)?)
}

/// Samples `kept` while `pruned` start with them and are cancelled at the first token event.
fn drawn_while_pruning(
    engine: &EngineHandle,
    job: &SampledPrompts,
    kept: &[(usize, u64)],
    pruned: &[(usize, u64)],
) -> Result<Vec<Finish>> {
    let extends = job.extends(engine, &[kept, pruned].concat())?;
    let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
    let (kept, pruned) = branches.split_at(kept.len());
    let mut finished: Vec<Option<Finish>> = vec![None; branches.len()];
    let mut extension = engine.start(extends)?;
    let mut told = false;
    while let Some(event) = extension.next() {
        match event {
            Event::Tokens { .. } if told => {}
            Event::Tokens { .. } => {
                told = true;
                extension.cancel(pruned);
            }
            Event::Finished { id: branch, finish } => {
                let at = branches.iter().position(|&other| other == branch).expect("events are of our branches");
                if at >= kept.len() {
                    engine.prune(&[branch]);
                }
                finished[at] = Some(finish);
            }
            Event::Failed { error, .. } => return Err(error),
        }
    }
    finished.truncate(kept.len());
    let all = finished.into_iter().collect::<Option<Vec<_>>>();
    all.ok_or_else(|| Error::Internal("a branch that was not cancelled did not finish".to_owned()))
}

/// Compares `expected`, from its token `from` on, with `found`: tokens, their log-probabilities, those of the most
/// likely tokens, and the experts of all tokens where they are kept.
fn compare(differences: &mut Differences, how: String, expected: &Finish, from: usize, found: &Finish) {
    let tokens = &expected.tokens[from..];
    if let Some(at) = tokens.iter().zip(&found.tokens).position(|(a, b)| a != b) {
        let (expected, found) = (tokens[at], found.tokens[at]);
        differences.note(1, || format!("{how}: token {} is {found}, which was {expected}", from + at));
    }
    if tokens.len() != found.tokens.len() {
        differences.note(1, || format!("{how}: {} tokens, where {} were", found.tokens.len(), tokens.len()));
    }
    if expected.routes != found.routes {
        differences.note(1, || format!("{how}: other experts"));
    }
    let likeliest = |top: &[Vec<(TokenId, f32)>]| top.concat().iter().map(|(_, logprob)| *logprob).collect::<Vec<_>>();
    differences.see(
        format_args!("{how}, log-probabilities from token {from} on"),
        &expected.logprobs()[from..],
        found.logprobs(),
    );
    differences.see(
        format_args!("{how}, the likeliest"),
        &likeliest(&expected.records.tops()[from..]),
        &likeliest(found.records.tops()),
    );
}
