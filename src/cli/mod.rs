//! The command line as clap parses it, one file per command; `main` calls the module that runs each command. Besides
//! default values, it contains only what a terminal needs: progress bars and stopping by signals.

mod bars;
mod batch;
mod check;
mod judge;
mod plan;
mod refused;
mod run;
mod score;
mod serve;
pub mod stopping;
mod tree;
mod vote;
mod words;

use clap::{Args, Parser, Subcommand};

pub use bars::show_bars;
pub use batch::BatchArgs;
pub use check::CheckArgs;
pub use judge::{JudgeArgs, JudgeCommand};
pub use plan::{PlanArgs, PlanCommand};
pub use run::{RescoreArgs, RunArgs};
pub use score::ScoreArgs;
pub use serve::ServeArgs;
pub use tree::TreeArgs;
pub use vote::VoteArgs;

use offshoot_args::command::MachineArgs;
use offshoot_core::error::Result;
use offshoot_launch::Devices;

/// Environment variables that change what is computed, below the options. clap indents no line that it breaks: they are
/// short enough for a terminal of 80 columns.
const ENVIRONMENT: &str = "\
Environment:
  OFFSHOOT_CPU  The path of the CPU's arithmetic: portable, avx2, avx512,
                avx512bf16 or amx (`offshoot-lab check --paths` lists those
                of this processor). Samples may differ between paths.
                Default: the fastest";

#[derive(Debug, Parser)]
#[command(
    name = "offshoot",
    version,
    about,
    max_term_width = 110,
    after_help = ENVIRONMENT,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<CliCommand>,

    #[command(flatten)]
    pub machine: MachineArgs,
}

impl Cli {
    /// The devices that were chosen, one or several.
    ///
    /// # Errors
    ///
    /// They are not as many as `--tensor-parallel` says.
    pub fn chosen_devices(&self) -> Result<Devices> {
        match self.command {
            // An estimate opens no device.
            Some(CliCommand::Plan(_)) => Ok(self.machine.listed_devices()),
            _ => self.machine.chosen_devices(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run a task file: sample, answer, vote, grade. Without one: the bundled demo
    Run(RunArgs),
    /// Estimate a job without running it: what its prompts share, memory, waves, and its time on a simulated device
    Plan(PlanArgs),
    /// Print a model's facts and check its arithmetic (`offshoot-lab check` checks devices)
    Check(CheckArgs),
    /// List the families of models that run and what each was compared with, or say whether a model folder runs
    Models(ModelsArgs),
    /// Answer, vote and grade again from the samples of a run, without a model
    Rescore(RescoreArgs),
    /// Score samples that are there already by a reward model
    Score(ScoreArgs),
    /// Let samples vote that were made elsewhere; needs no model
    Vote(VoteArgs),
    /// Answer a file of OpenAI Batch requests (/v1/chat/completions and /v1/completions)
    Batch(BatchArgs),
    /// Serve a model by the OpenAI protocol: completions, chats, streams, log-probabilities, kept branches
    Serve(ServeArgs),
    /// Show the sampling trees of a run as text, as a page for the browser, as JSON or as a drawing
    Tree(TreeArgs),
    /// Judge samples made elsewhere on a code benchmark's problems, each candidate in a sandbox, and report pass@k
    Judge(JudgeArgs),
    /// Write a commented task file and example items to start from
    New(NewArgs),
    /// Explain a command, or (`help task`) every key of a task file
    Help(HelpArgs),
}

#[derive(Debug, Args)]
pub struct HelpArgs {
    /// A command, or `task`: the keys of a task file with type, default and meaning
    pub topic: Vec<String>,
    /// With `task`: the JSON Schema of task files, for editors
    #[arg(long)]
    pub schema: bool,
}

#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Model folder in Hugging Face form, perhaps without weights, or GGUF file
    pub folder: Option<std::path::PathBuf>,
}

#[derive(Debug, Args)]
pub struct NewArgs {
    /// Name of the task; writes NAME.json and NAME.jsonl
    pub name: String,
}
