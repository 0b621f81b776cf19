//! Runs the requests: a loop that collects the events of `generate` and writes a request's answer when all of its
//! prompts are complete. `generate` decides the order of the prompts and how many run at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::engine::{EngineFacts, EngineHandle, Finish, Hear, UniformKey};
use crate::error::{Error, Result};
use crate::launch::{GenerateEvent, Generation, PromptRequest, generate, in_bytes};
use crate::openai::protocol::{PromptCandidates, Refusal};
use crate::out::Progress;
use crate::tokenizer::Tokenizer;

use super::answer::BatchAnswer;
use super::input::InputLine;
use super::origin::AnswerOrigin;
use super::output::BatchOutput;
use super::request::LineRequest;

/// Longest wait for an event before the interrupt flag is read again.
const PATIENCE: Duration = Duration::from_millis(100);

pub struct BatchJob<'a> {
    pub lines: &'a [InputLine],
    pub origin: &'a AnswerOrigin,
    pub engine: EngineHandle,
    pub tokenizer: &'a Tokenizer,
    /// Start of the job, in seconds since 1970.
    pub created: u64,
    pub progress: &'a Progress,
}

/// The result of all requests.
pub struct BatchResult {
    pub output: BatchOutput,
    /// The interrupt or error that ended the job early.
    pub ended: Option<Error>,
    /// Sampled tokens.
    pub tokens: usize,
}

impl BatchJob<'_> {
    pub fn answer_all(&self, requests: &[LineRequest], output: BatchOutput, interrupted: &AtomicBool) -> BatchResult {
        let places = |(request, of): (usize, &LineRequest)| {
            (0..of.prompts.len()).map(move |prompt| RequestPrompt { request, prompt })
        };
        let places: Vec<RequestPrompt> = requests.iter().enumerate().flat_map(places).collect();
        let prompts = places.iter().map(|place| place.prompt(requests)).collect();
        let mut answering = AnswerLoop {
            work: self,
            requests,
            places,
            generation: generate(&self.engine, prompts, Hear::Finishes),
            sampled: HashMap::new(),
            parts: requests.iter().map(|request| request.prompts.iter().map(|_| None).collect()).collect(),
            output,
            tokens: 0,
        };
        let ended = answering.run(interrupted).err();
        BatchResult { output: answering.output, ended, tokens: answering.tokens }
    }
}

/// A prompt of a request.
#[derive(Clone, Copy)]
struct RequestPrompt {
    request: usize,
    prompt: usize,
}

impl RequestPrompt {
    fn prompt<'a>(&self, requests: &'a [LineRequest]) -> PromptRequest<'a> {
        let request = &requests[self.request];
        let prompt = &request.prompts[self.prompt];
        // The first prompt uses the request's own random numbers, so that a list of one prompt gives the same samples
        // as the prompt alone.
        let uniforms = match self.prompt {
            0 => UniformKey::root(request.seed, &request.custom_id),
            later => UniformKey::root(request.seed, &format!("{}\n{later}", request.custom_id)),
        };
        PromptRequest {
            tokens: &prompt.tokens,
            n: request.best_of,
            params: &request.params,
            stop: &prompt.stop,
            uniforms,
        }
    }
}

/// The results of a request so far, one per prompt.
type Parts = Vec<Option<Result<PromptCandidates, Refusal>>>;

/// The finished samples of a prompt.
struct FinishedSamples {
    finishes: Vec<Option<Finish>>,
    left: usize,
}

impl FinishedSamples {
    fn none(n: usize) -> Self {
        FinishedSamples { finishes: (0..n).map(|_| None).collect(), left: n }
    }
}

struct AnswerLoop<'a> {
    work: &'a BatchJob<'a>,
    requests: &'a [LineRequest],
    /// The request and index of each prompt.
    places: Vec<RequestPrompt>,
    generation: Generation<'a>,
    /// Prompts with some but not all samples finished.
    sampled: HashMap<usize, FinishedSamples>,
    parts: Vec<Parts>,
    output: BatchOutput,
    tokens: usize,
}

impl AnswerLoop<'_> {
    fn run(&mut self, interrupted: &AtomicBool) -> Result<()> {
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            match self.generation.poll(PATIENCE) {
                Poll::Ready(Some(event)) => self.take(event)?,
                Poll::Ready(None) => return Ok(()),
                Poll::Pending => {}
            }
        }
    }

    fn take(&mut self, event: GenerateEvent) -> Result<()> {
        match event {
            GenerateEvent::Tokens { .. } => Ok(()),
            GenerateEvent::Finished { sample, finish } => {
                self.tokens += finish.tokens.len();
                self.work.progress.sample_done(finish.tokens.len());
                let n = self.requests[self.places[sample.prompt].request].best_of;
                let sampled = self.sampled.entry(sample.prompt).or_insert_with(|| FinishedSamples::none(n));
                sampled.finishes[sample.sample] = Some(finish);
                sampled.left -= 1;
                if sampled.left > 0 {
                    return Ok(());
                }
                let whole = self.sampled.remove(&sample.prompt).expect("it was there just now");
                let (drawn, shared) =
                    (whole.finishes.into_iter().flatten().collect(), self.generation.shared_tokens(sample.prompt));
                self.end(sample.prompt, Ok(PromptCandidates { drawn, shared }))
            }
            GenerateEvent::Failed { sample, error } => {
                let refusal = own_matter(error, self.work.engine.facts())?;
                // The other samples are useless without this one.
                self.generation.discard(sample.prompt);
                self.sampled.remove(&sample.prompt);
                self.end(sample.prompt, Err(refusal))
            }
            GenerateEvent::Refused { prompt, error } => {
                let refusal = own_matter(error, self.work.engine.facts())?;
                self.end(prompt, Err(refusal))
            }
        }
    }

    /// Stores the result of one prompt; the last one of a request writes the answer.
    fn end(&mut self, at: usize, part: Result<PromptCandidates, Refusal>) -> Result<()> {
        let place = self.places[at];
        let request = &self.requests[place.request];
        let parts = &mut self.parts[place.request];
        parts[place.prompt] = Some(part);
        if parts.iter().any(Option::is_none) {
            return Ok(());
        }
        let all: Result<Vec<PromptCandidates>, Refusal> = std::mem::take(parts).into_iter().flatten().collect();
        let answer = match all {
            Ok(all) => {
                let call = self.work.lines[request.line].call.as_ref().expect("a request is read from a call");
                BatchAnswer::of(call, request, &all, self.work.origin, self.work.tokenizer, self.work.created)
            }
            Err(refusal) => BatchAnswer::refused(&self.work.lines[request.line], &refusal),
        };
        self.output.write(request.line, &answer)?;
        self.work.progress.item_done();
        Ok(())
    }
}

/// Errors caused by a single request become its refusal; any other error ends the job.
fn own_matter(error: Error, facts: &EngineFacts) -> Result<Refusal> {
    match error {
        Error::ContextTooLong { .. } | Error::OutOfPages { .. } | Error::Value { .. } => {
            let Refusal { code, .. } = Refusal::of(&error);
            Ok(Refusal { code, message: in_bytes(error, facts).to_string() })
        }
        error => Err(error),
    }
}
