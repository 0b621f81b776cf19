//! The options of `offshoot batch`.

use std::path::PathBuf;

use clap::Args;

use offshoot_args::{LaunchArgs, whole};
use offshoot_launch::Devices;
use offshoot_openai::batch::{BatchOptions, DEFAULT_MOST_OF_LINE};

#[derive(Debug, Args)]
pub struct BatchArgs {
    /// Requests in OpenAI's Batch format, one JSON object per line; may be gzipped
    pub input: PathBuf,
    /// Output file; answers and refusals are in the order of the requests
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Model folder or GGUF file; a request's `model` field is only copied into its answer (default: the folder's name)
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Continue OUT: requests that it already answers are skipped; answers of another model, `--weights`, `--kv-dtype`,
    /// `--seed` or request are refused by name
    #[arg(long)]
    pub resume: bool,
    /// Longest line of the input in MiB; a longer one is refused
    #[arg(long, value_name = "MIB", value_parser = whole::<usize>(1..=1 << 20),
          default_value_t = DEFAULT_MOST_OF_LINE >> 20)]
    pub max_line: usize,
    /// Seed of requests without one
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..), default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub engine: LaunchArgs,
}

impl BatchArgs {
    pub fn on(self, devices: Devices) -> BatchOptions {
        let args = self;
        BatchOptions {
            input: args.input,
            out: args.out,
            model: args.model,
            most_of_line: args.max_line << 20,
            resume: args.resume,
            seed: args.seed,
            engine: args.engine.on(devices),
        }
    }
}
