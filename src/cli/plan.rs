//! The options of `offshoot plan`.

use std::path::PathBuf;

use clap::Args;

use super::EngineArgs;
use crate::backend::Dtype;
use crate::forecast::{PlanOptions, Predict};

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Task file (.json), OpenAI Batch requests, or rows of prompts, a JSON object a line: {"prompt": "..."}, {"tokens": [1, 2]}
    /// or {"prompt_tokens": 1500, "shared": [["few-shot", 400], ["document 7", 700]]}; each may have samples, and max_tokens
    /// or output_tokens
    pub input: PathBuf,
    /// Model folder, or a config.json where prompts come as tokens (default: the task's)
    #[arg(long, value_name = "DIR_OR_JSON")]
    pub model: Option<PathBuf>,
    /// What the job would run on: h200, cpu, or a file with a device's figures
    #[arg(long, value_name = "NAME_OR_JSON", default_value = "h200")]
    pub device_profile: String,
    /// Dtype of weights, keys and values (default: the config's)
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Tokens that a sample is expected to have, where it may have more (default: all that it may)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub output_tokens: Option<u32>,
    /// Of a task: only the first N items
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Of a task: samples an item
    #[arg(long, value_name = "N")]
    pub samples: Option<u32>,
    /// Of a task: change any value of the file
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Whether the scheduler runs the job on a modelled device, to predict steps and time: auto where that takes seconds
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    pub predict: Predict,
    /// One JSON object instead of lines
    #[arg(long)]
    pub json: bool,
    /// Also draw the tree, and the tokens of each step for the policies, into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl From<PlanArgs> for PlanOptions {
    fn from(args: PlanArgs) -> Self {
        Self {
            input: args.input,
            model: args.model,
            dtype: args.dtype,
            limit: args.limit,
            samples: args.samples,
            set: args.set,
            output_tokens: args.output_tokens,
            device_profile: args.device_profile,
            budget: args.engine.into(),
            predict: args.predict,
            json: args.json,
            svg: args.svg,
        }
    }
}
