//! The options of `offshoot run` and `offshoot rescore`.

use std::path::PathBuf;

use clap::Args;

use super::words::RESULT_FORMATS;
use offshoot_args::words::one_of;
use offshoot_args::{JudgeFolderArgs, JudgeServerArgs, JudgingArgs, LaunchArgs, ScorerArgs, each_once, number, whole};
use offshoot_core::error::{Error, Result};
use offshoot_eval::run::rescore::RescoreOptions;
use offshoot_eval::run::{ResultFormat, RunOptions};
use offshoot_eval::task::{AskedBy, AskedJudge, AskedKey, Overrides};
use offshoot_launch::{Devices, JudgeFolderOptions};

/// Options that set keys of the task file.
#[derive(Debug, Args)]
pub struct TaskKeyArgs {
    /// Model folder or GGUF file, instead of the task's
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Folder of an adapter (LoRA) as PEFT writes it, instead of the task's; samples are drawn with it
    #[arg(long = "lora", value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Samples per item, instead of the task's
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub samples: Option<u32>,
    /// Temperature, instead of the task's sampling.temperature; 0: always the most probable token
    #[arg(long, value_name = "T", value_parser = number)]
    pub temperature: Option<f64>,
    /// Probability of the tokens that are kept, instead of the task's sampling.top_p
    #[arg(long, value_name = "P", value_parser = number)]
    pub top_p: Option<f64>,
    /// The most tokens of a sample, instead of the task's sampling.max_tokens
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub max_tokens: Option<u32>,
    /// Seed of all random numbers, instead of the task's sampling.seed
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..))]
    pub seed: Option<u64>,
    /// Change any value of the task file: answer.take=first (`offshoot help task` lists the keys; paths are those of
    /// the current folder)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl From<TaskKeyArgs> for Overrides {
    fn from(args: TaskKeyArgs) -> Self {
        fn key(name: &str, value: Option<impl ToString>) -> Option<String> {
            value.map(|value| format!("sampling.{name}={}", value.to_string()))
        }
        let TaskKeyArgs { model, adapter, samples, temperature, top_p, max_tokens, seed, mut set } = args;
        let sampling = [key("seed", seed), key("temperature", temperature), key("top_p", top_p)];
        set.extend(sampling.into_iter().chain([key("max_tokens", max_tokens)]).flatten());
        Self { set, samples, model, adapter }
    }
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Task file (JSON, // comments allowed)
    pub task: Option<PathBuf>,
    #[command(flatten)]
    pub keys: TaskKeyArgs,
    /// Only the first N items
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub limit: Option<usize>,
    /// Folder for results (default: runs/NAME, then runs/NAME-2, ...)
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also write samples.parquet and items.parquet when the run ends
    #[arg(long, value_parser = one_of(RESULT_FORMATS), default_value = "jsonl", value_name = "FORMAT")]
    pub format: ResultFormat,
    /// The k of pass@k, maj@k and best@k (default: powers of two, from 100 samples on 1, 10 and 100; and the number of
    /// samples)
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = whole::<u32>(1..))]
    pub k: Option<Vec<u32>>,
    /// Continue an interrupted run, or add samples or items to a run: the one in --out, or the task's latest that fits;
    /// starts a new run if there is none. Samples on disk are kept, failed items are tried again. The result is that of
    /// an uninterrupted run: on the CPU, and on a GPU with --deterministic
    #[arg(long)]
    pub resume: bool,
    /// Also write every item's sampling tree to OUT/trees, for `offshoot tree OUT` and `offshoot tree OUT --attention`
    #[arg(long)]
    pub trees: bool,
    /// Leave out the items whose prompts exceed the context (the model's, or --context), by name; the exit code is then
    /// 2. Without it such an item ends the run before it begins
    #[arg(long)]
    pub skip_too_long: bool,
    /// Show the first prompt, token counts by level and the memory needed; sample nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the summary as one JSON object, with the folder of the results
    #[arg(long, conflicts_with = "dry_run")]
    pub json: bool,
    #[command(flatten)]
    pub judging: JudgingArgs,
    #[command(flatten)]
    pub scorer: ScorerArgs,
    #[command(flatten)]
    pub judge: JudgeFolderArgs,
    #[command(flatten)]
    pub judge_server: JudgeServerArgs,
    #[command(flatten)]
    pub engine: LaunchArgs,
}

/// What the options say of the judge.
fn asked_judge(folder: Option<JudgeFolderArgs>, server: JudgeServerArgs) -> Result<AskedJudge> {
    let JudgeServerArgs { judge_url, judge_model, judge_key_file } = server;
    let folder: Option<JudgeFolderOptions> = folder.and_then(JudgeFolderArgs::into);
    let by = match (folder, judge_url) {
        (Some(folder), None) => Some(AskedBy::Folder(folder)),
        (None, url) => url.map(AskedBy::Url),
        // An address may hold a password.
        (Some(folder), Some(_)) => {
            let found = format!("--judge {} and --judge-url", folder.path.display());
            return Err(Error::value("the judge", "a folder or a server", found));
        }
    };
    let key = judge_key_file.map_or(AskedKey::Environment, AskedKey::File);
    Ok(AskedJudge { by, name: judge_model, key })
}

impl RunArgs {
    pub fn on(self, devices: Devices) -> Result<RunOptions> {
        let args = self;
        Ok(RunOptions {
            task: args.task,
            overrides: args.keys.into(),
            limit: args.limit,
            out: args.out,
            format: args.format,
            k: args.k.map(each_once),
            resume: args.resume,
            trees: args.trees,
            skip_too_long: args.skip_too_long,
            dry_run: args.dry_run,
            json: args.json,
            judges: args.judging.judges.map(usize::from),
            judge: args.judging.candidates.into(),
            asked_judge: asked_judge(Some(args.judge), args.judge_server)?,
            scorer: args.scorer.into(),
            engine: args.engine.on(devices),
        })
    }
}

#[derive(Debug, Args)]
pub struct RescoreArgs {
    /// Folder of a run's results; replaced files are kept as *.before
    pub run: PathBuf,
    /// Task file with the rules to answer, grade and choose, instead of the run's own
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// Change how answers are found, graded and chosen: answer.regex='#### (.*)' (the method that produced the samples
    /// stays)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The k of pass@k, maj@k and best@k (default: powers of two, from 100 samples on 1, 10 and 100; and the number of
    /// samples)
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = whole::<u32>(1..))]
    pub k: Option<Vec<u32>>,
    /// Folder for results, instead of the run's
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Also write samples.parquet and items.parquet; a run that has them gets new ones in any case
    #[arg(long, value_parser = one_of(RESULT_FORMATS), default_value = "jsonl", value_name = "FORMAT")]
    pub format: ResultFormat,
    #[command(flatten)]
    pub judging: JudgingArgs,
    #[command(flatten)]
    pub judge_server: JudgeServerArgs,
}

impl TryFrom<RescoreArgs> for RescoreOptions {
    type Error = Error;

    fn try_from(args: RescoreArgs) -> Result<Self> {
        Ok(Self {
            run: args.run,
            task: args.task,
            set: args.set,
            k: args.k.map(each_once),
            out: args.out,
            format: args.format,
            judges: args.judging.judges.map(usize::from),
            judge: args.judging.candidates.into(),
            asked_judge: asked_judge(None, args.judge_server)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Keys {
        #[command(flatten)]
        keys: TaskKeyArgs,
    }

    #[test]
    fn options_of_keys_come_after_set() {
        let typed = "run --temperature 0.6 --top-p 2 --max-tokens 7 --seed 9 -n 3 --set sampling.temperature=0.1";
        let overrides = Overrides::from(Keys::parse_from(typed.split(' ')).keys);
        let set = ["temperature=0.1", "seed=9", "temperature=0.6", "top_p=2", "max_tokens=7"];
        assert_eq!(overrides.set, set.map(|set| format!("sampling.{set}")));
        assert_eq!((overrides.samples, overrides.model), (Some(3), None));
    }
}
