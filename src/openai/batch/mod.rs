//! `offshoot batch`: answers a file of OpenAI Batch requests with one engine. Reads the lines, orders all prompts so
//! that shared prefixes follow each other, samples them, and writes each answer when it is complete. Prompts are
//! encoded while the engine already samples earlier ones. A line that cannot be answered gets an error and never stops
//! the job. `protocol` defines what a request means and the form of an answer.

mod answer;
mod input;
mod origin;
mod output;
mod prompts;
mod request;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Result;
use crate::figures::count;
use crate::interrupt::Interrupt;
use crate::launch::{Demand, DeviceChoice, EngineBudget, Launch, ModelSource};
use crate::model::ModelFolder;
use crate::openai::protocol::{Refusal, RequestReader};
use crate::out;
use crate::out::Progress;
use crate::plan::Planner;
use crate::tokenizer::Tokenizer;

use answer::BatchAnswer;
use origin::AnswerOrigin;
use output::BatchOutput;
pub use prompts::{BatchPrompt, read_prompts};
use request::RequestOutline;
use work::BatchResult;

/// The options of `offshoot batch`.
#[derive(Clone, Debug)]
pub struct BatchOptions {
    pub input: PathBuf,
    pub out: PathBuf,
    pub model: PathBuf,
    /// Keeps the answers that `out` already has, if they belong to this model and these requests.
    pub resume: bool,
    /// Seed of requests without one.
    pub seed: u64,
    pub plan: Option<Planner>,
    pub device: DeviceChoice,
    pub budget: EngineBudget,
}

/// The exit code if requests were refused.
const REFUSED: u8 = 2;

/// Answers every line of the input until all are answered or `interrupt` asks to stop.
pub fn main(options: &BatchOptions, interrupt: &Interrupt) -> Result<ExitCode> {
    options.budget.check()?;
    let lines = input::read(&options.input)?;
    let folder = ModelFolder::open(&options.model)?;
    let tokenizer = Arc::new(Tokenizer::load(&options.model)?);
    let origin = AnswerOrigin::new(&options.model, options.budget.kv, options.seed)?;
    let mut output = BatchOutput::open(&options.out, options.resume, &lines, &origin)?;

    let reader = RequestReader { tokenizer: &tokenizer, config: &folder.config, seed: options.seed };
    let mut requests: Vec<RequestOutline> = Vec::new();
    for line in &lines {
        if output.has(line.index) {
            continue;
        }
        let read = line.call.as_ref().map_err(Refusal::clone);
        match read.and_then(|call| RequestOutline::read(&reader, line.index, call)) {
            Ok(request) => requests.push(request),
            Err(refusal) => output.write(line.index, &BatchAnswer::refused(line, &refusal))?,
        }
    }
    let kept = lines.len() - requests.len() - output.refused();
    let mut sampled = 0;
    if !requests.is_empty() {
        let branches = requests.iter().map(|request| request.branches).sum();
        let most = requests.iter().map(|request| request.most_tokens).fold(0, usize::saturating_add);
        // Each branch has its own pages and cannot use the rest of its prompt's last page.
        let tokens = |_, page_tokens: usize| most.saturating_add(usize::saturating_mul(branches, 2 * page_tokens));
        let launch = Launch {
            model: ModelSource::folder(&folder)?,
            tokenizer: Some(tokenizer.clone()),
            device: options.device,
            budget: options.budget,
            planner: options.plan.unwrap_or_default(),
            demand: Demand::new(branches, tokens),
        };
        let engine = launch.start()?.engine;
        let progress = Progress::new(requests.len());
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let work = work::BatchJob { lines: &lines, origin: &origin, engine, reader, created, progress: &progress };
        let worked = work.answer_all(&requests, output, interrupt.listen());
        progress.finish();
        let BatchResult { output: back, ended, tokens } = worked;
        (output, sampled) = (back, tokens);
        if let Some(error) = ended {
            return Err(error);
        }
    }
    let (answered, refused) = (output.answered(), output.refused());
    let first_refused = output.first_refused().map(|(index, why)| (lines[index].custom_id.clone(), why.to_owned()));
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
    let Some((id, why)) = first_refused else { return Ok(ExitCode::SUCCESS) };
    let first = id.map_or_else(String::new, |id| format!(" ({id:?})"));
    out::aside(format_args!(
        "{}: {} refused, the first{first} because of {why}",
        options.input.display(),
        count(refused as u64)
    ));
    Ok(ExitCode::from(REFUSED))
}
