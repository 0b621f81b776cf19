//! `offshoot batch`: answers a file of OpenAI Batch requests with one engine. Reads the lines, orders all prompts so
//! that shared prefixes follow each other, samples them, and writes each answer when it is complete. Prompts are
//! encoded while the engine already samples earlier ones. A line that cannot be answered gets an error and never stops
//! the job. `protocol` defines what a request means and the form of an answer.

mod answer;
mod file;
mod input;
mod origin;
mod output;
mod prompts;
mod request;
mod work;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::protocol::Refusal;
use offshoot_core::error::Result;
use offshoot_core::figures::count;
use offshoot_core::interrupt::Interrupt;
use offshoot_core::json::describe;
use offshoot_core::out;
use offshoot_core::out::Progress;
use offshoot_core::out::files::check_replaceable;
use offshoot_launch::{Demand, EngineOptions, ModelSource};
use offshoot_model::ModelFolder;
use offshoot_text::Tokenizer;

use serde_json::json;

pub use file::RequestFile;
pub use input::read as read_lines;
pub use input::{DEFAULT_MOST_OF_LINE, InputLine};
pub use origin::AnswerOrigin;
pub use prompts::{BatchPrompt, read_prompts};
pub use request::reader;
pub use work::AnswerProgress;

/// The options of `offshoot batch`.
#[derive(Clone, Debug)]
pub struct BatchOptions {
    pub input: PathBuf,
    pub out: PathBuf,
    pub model: PathBuf,
    /// The longest line of the input, in bytes.
    pub most_of_line: usize,
    /// Keeps the answers that `out` already has, if they belong to this model and these requests.
    pub resume: bool,
    /// Seed of requests without one.
    pub seed: u64,
    pub engine: EngineOptions,
}

/// The exit code if requests were refused.
const REFUSED: u8 = 2;

/// Answers every line of the input until all are answered or `interrupt` asks to stop.
pub fn main(options: &BatchOptions, interrupt: &Interrupt) -> Result<ExitCode> {
    options.engine.budget.check()?;
    check_replaceable(&options.out)?;
    let lines = input::read(&options.input, options.most_of_line)?;
    let folder = ModelFolder::open(&options.model)?.with(options.engine.budget.weights)?;
    let tokenizer = Arc::new(Tokenizer::load(&options.model)?);
    let origin = AnswerOrigin::new(&folder, &options.engine.budget, options.seed)?;
    let model = name_of_model(&options.model);
    let reader = request::reader(&tokenizer, &folder.config, &model, options.seed);
    let mut file = RequestFile::open(lines, &options.out, options.resume, origin, &reader)?;
    let open = file.open_requests().count();
    let kept = file.output.answered();
    let mut sampled = 0;
    if open > 0 {
        let branches = file.branches();
        let most = file.most_tokens();
        // Each branch has its own pages and cannot use the rest of its prompt's last page.
        let tokens = |_, page_tokens: usize| most.saturating_add(usize::saturating_mul(branches, 2 * page_tokens));
        let demand = Demand::new(branches, tokens);
        let launch = options.engine.launch(ModelSource::folder(&folder)?, Some(&tokenizer), demand);
        let engine = launch.start()?.engine;
        let progress = Progress::new(open);
        let answered = file.answer(|_| true, engine, reader, &progress, interrupt.listen());
        progress.finish();
        sampled = answered?;
    }
    let RequestFile { lines, output, .. } = file;
    let (answered, refused) = (output.answered(), output.refused());
    let why = refusals(output.refusals(), &lines);
    output.finish()?;
    out::line(format_args!(
        "{} lines: {} answered ({} of them before), {} refused; {} tokens sampled; wrote {}",
        count(lines.len() as u64),
        count(answered as u64),
        count(kept as u64),
        count(refused as u64),
        count(sampled as u64),
        options.out.display()
    ))?;
    let Some(why) = why else { return Ok(ExitCode::SUCCESS) };
    out::aside(format_args!("{}: {why}", options.input.display()));
    Ok(ExitCode::from(REFUSED))
}

/// How many lines were refused, of each kind, and why the first was.
fn refusals(refused: &BTreeMap<usize, Refusal>, lines: &[InputLine]) -> Option<String> {
    let (&index, first) = refused.first_key_value()?;
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for refusal in refused.values() {
        *kinds.entry(refusal.code).or_default() += 1;
    }
    let mut kinds: Vec<(&str, u64)> = kinds.into_iter().collect();
    kinds.sort_by_key(|&(_, lines)| Reverse(lines));
    let kinds: Vec<String> = kinds.into_iter().map(|(code, lines)| format!("{} {code}", count(lines))).collect();
    let id = lines[index].custom_id.as_ref().map_or_else(String::new, |id| format!(" ({})", describe(&json!(id))));
    let (all, kinds) = (count(refused.len() as u64), kinds.join(", "));
    Some(format!("{all} refused ({kinds}), the first{id}: {}", first.message))
}

/// The name of the model's folder.
pub fn name_of_model(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned()
}
