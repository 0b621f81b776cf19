//! The options of `offshoot plan`.

use std::path::PathBuf;

use clap::Args;

use super::words::PREDICTIONS;
use offshoot_args::words::{DTYPES, one_of};
use offshoot_args::{AdapterArgs, BudgetArgs, JudgeFolderArgs, ScorerArgs, arrivals, whole};
use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::count;
use offshoot_estimate::replay::{Policy, TraceReplay};
use offshoot_estimate::trace::TraceOptions;
use offshoot_estimate::{FEW_SAMPLES, FEW_TOKENS, PlanOptions, Predict};
use offshoot_launch::{Devices, EngineBudget};

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Task file (.json), OpenAI Batch requests, or rows of prompts, one JSON object per line: {"prompt": "..."},
    /// {"tokens": [1, 2]} or {"prompt_tokens": 1500, "shared": [["few-shot", 400], ["document 7", 700]]}; each may have
    /// samples, and max_tokens or output_tokens
    #[arg(required_unless_present = "replay")]
    pub input: Option<PathBuf>,
    /// Replay a recorded trace instead (not with --parts, --explain, --svg or options for reading a job): Mooncake's
    /// (.jsonl), lengths of prompt and answer (.csv), lengths of prompts (.json)
    #[arg(long, value_name = "TRACE", requires = "model", conflicts_with_all = JOB)]
    pub replay: Option<PathBuf>,
    /// For a trace: requests per second, arriving independently (default: the trace's arrival times, or all at once)
    #[arg(long, value_name = "R", value_parser = arrivals, conflicts_with = "input")]
    pub rate: Option<f64>,
    /// For a trace: only the first N requests
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), conflicts_with = "input")]
    pub requests: Option<usize>,
    /// For a trace: fcfs, batchllm, ours
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "fcfs,batchllm,ours",
        conflicts_with = "input"
    )]
    pub policy: Vec<Policy>,
    /// Model folder, GGUF file, or a config.json if prompts are given as tokens (default: the task's)
    #[arg(long, value_name = "DIR_OR_JSON")]
    pub model: Option<PathBuf>,
    /// Device to estimate for: h200, cpu (two cores' rates, with the limits of a GPU), or a file with a device's
    /// figures (default: h200, with a note unless this machine has one)
    #[arg(long, value_name = "NAME_OR_JSON")]
    pub device_profile: Option<String>,
    /// Dtype of weights, keys and values (default: that of the model's files, or the config's where there are none)
    #[arg(long, value_parser = one_of(DTYPES))]
    pub dtype: Option<Dtype>,
    /// Expected tokens per sample, if the limit is higher (default: the limit)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub output_tokens: Option<u32>,
    /// For a task: only the first N items
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub limit: Option<usize>,
    /// For a task: samples per item
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub samples: Option<u32>,
    /// For a task: change any value of the file
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Whether to run the scheduler on a simulated device, to predict steps and time
    #[arg(long, value_parser = one_of(PREDICTIONS), default_value = "auto", value_name = "WHEN", help = predict_help())]
    pub predict: Predict,
    /// Also cut the job into N parts of about equal work for several processes, along its shared prefixes, and report
    /// what each computes and what is computed twice
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=4096))]
    pub parts: Option<usize>,
    /// Also report for each node of the tree whether the attention of a decode step shares, splits or folds it, and
    /// what that saves
    #[arg(long)]
    pub explain: bool,
    /// One JSON object instead of lines
    #[arg(long)]
    pub json: bool,
    /// Also draw the tree, and the tokens of each step by policy, into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub scorer: ScorerArgs,
    #[command(flatten)]
    pub judge: JudgeFolderArgs,
    #[command(flatten)]
    pub budget: BudgetArgs,
    #[command(flatten)]
    pub room: AdapterArgs,
}

fn predict_help() -> String {
    let (samples, tokens) = (count(FEW_SAMPLES), count(FEW_TOKENS));
    format!(
        "Whether to run the scheduler on a simulated device, to predict steps and time: auto where it has at most \
         {samples} samples and {tokens} tokens to sample"
    )
}

/// Options that do not apply to a trace.
const JOB: [&str; 11] =
    ["input", "limit", "samples", "set", "output_tokens", "predict", "parts", "explain", "svg", "scorer", "judge"];

/// What to estimate: a job or a trace.
pub enum PlanCommand {
    Job(PlanOptions),
    Trace(TraceOptions),
}

impl PlanArgs {
    /// `devices`: those among which the job would be divided, or, if they are as many as `ranks`, the model.
    pub fn on(self, devices: Option<&Devices>, ranks: Option<usize>) -> Result<PlanCommand> {
        let args = self;
        let replicas = devices.filter(|_| ranks.is_none()).map(Devices::known_count).transpose()?;
        if let (Some(devices), Some(ranks)) = (devices, ranks) {
            let count = devices.known_count()?;
            if count != ranks {
                let expected = format!("{ranks} devices, as --tensor-parallel says");
                return Err(Error::value("--devices", expected, devices.to_string()));
            }
        }
        if let (Some(ranks), None) = (ranks, &args.input) {
            return Err(Error::value("--tensor-parallel", "a job, not a trace", ranks.to_string()));
        }
        if let (Some(devices), None) = (devices, &args.input) {
            return Err(Error::value("--devices", "a job to divide among them, not a trace", devices.to_string()));
        }
        let budget = EngineBudget { adapters: args.room.limits(0), ..args.budget.into() };
        Ok(match (args.input, args.replay, args.model) {
            (None, Some(trace), Some(model)) => PlanCommand::Trace(TraceOptions {
                replay: TraceReplay { trace, rate: args.rate, requests: args.requests, seed: 1 },
                model,
                dtype: args.dtype,
                device_profile: args.device_profile,
                budget,
                policies: args.policy,
                json: args.json,
            }),
            (input, _, model) => PlanCommand::Job(PlanOptions {
                input: input.expect("clap requires an input without --replay, and a model with it"),
                model,
                dtype: args.dtype,
                limit: args.limit,
                samples: args.samples,
                set: args.set,
                output_tokens: args.output_tokens,
                device_profile: args.device_profile,
                budget,
                scorer: args.scorer.into(),
                judge: args.judge.into(),
                predict: args.predict,
                parts: args.parts,
                replicas,
                ranks,
                explain: args.explain,
                json: args.json,
                svg: args.svg,
            }),
        })
    }
}
