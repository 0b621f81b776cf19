//! Requests in flight: one loop that takes what `generate` tells of their prompts and, once a request has all of its
//! own, writes its answer. In which order prompts are begun and how many at once is `generate`'s.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::engine::{UniformKey, EngineFacts, EngineHandle, Finish, Hear};
use crate::error::{Error, Result};
use crate::launch::{GenerateEvent, Generation, PromptRequest, generate, in_bytes};
use crate::openai::protocol::{Candidates, Refusal};
use crate::out::Progress;
use crate::tokenizer::Tokenizer;

use super::answer::Answer;
use super::input::Line;
use super::origin::Origin;
use super::output::Output;
use super::request::LineRequest;

/// How long an interrupt may wait while nothing happens.
const PATIENCE: Duration = Duration::from_millis(100);

pub struct Work<'a> {
    pub lines: &'a [Line],
    pub origin: &'a Origin,
    pub engine: EngineHandle,
    pub tokenizer: &'a Tokenizer,
    /// Seconds since 1970 at which the job began.
    pub created: u64,
    pub progress: &'a Progress,
}

/// What came of the requests.
pub struct Worked {
    pub output: Output,
    /// The interrupt or error that ended the job early.
    pub ended: Option<Error>,
    /// Tokens drawn.
    pub tokens: usize,
}

impl Work<'_> {
    pub fn answer_all(&self, requests: &[LineRequest], output: Output, interrupted: &AtomicBool) -> Worked {
        let places =
            |(request, of): (usize, &LineRequest)| (0..of.prompts.len()).map(move |prompt| Place { request, prompt });
        let places: Vec<Place> = requests.iter().enumerate().flat_map(places).collect();
        let prompts = places.iter().map(|place| place.prompt(requests)).collect();
        let mut answering = Answering {
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
        Worked { output: answering.output, ended, tokens: answering.tokens }
    }
}

/// A prompt of a request.
#[derive(Clone, Copy)]
struct Place {
    request: usize,
    prompt: usize,
}

impl Place {
    fn prompt<'a>(&self, requests: &'a [LineRequest]) -> PromptRequest<'a> {
        let request = &requests[self.request];
        let prompt = &request.prompts[self.prompt];
        // The first prompt's uniforms are those of the request alone, so that a list of one prompt is that prompt.
        let uniforms = match self.prompt {
            0 => UniformKey::root(request.seed, &request.custom_id),
            later => UniformKey::root(request.seed, &format!("{}\n{later}", request.custom_id)),
        };
        PromptRequest { tokens: &prompt.tokens, n: request.best_of, params: &request.params, stop: &prompt.stop, uniforms }
    }
}

/// What a request has so far, a prompt each.
type Parts = Vec<Option<Result<Candidates, Refusal>>>;

/// The samples of a prompt, as far as they have finished.
struct Sampled {
    finishes: Vec<Option<Finish>>,
    left: usize,
}

impl Sampled {
    fn none(n: usize) -> Self {
        Sampled { finishes: (0..n).map(|_| None).collect(), left: n }
    }
}

struct Answering<'a> {
    work: &'a Work<'a>,
    requests: &'a [LineRequest],
    /// Of each prompt.
    places: Vec<Place>,
    generation: Generation<'a>,
    /// Prompts that some of their samples have finished of.
    sampled: HashMap<usize, Sampled>,
    parts: Vec<Parts>,
    output: Output,
    tokens: usize,
}

impl Answering<'_> {
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
                let sampled = self.sampled.entry(sample.prompt).or_insert_with(|| Sampled::none(n));
                sampled.finishes[sample.sample] = Some(finish);
                sampled.left -= 1;
                if sampled.left > 0 {
                    return Ok(());
                }
                let whole = self.sampled.remove(&sample.prompt).expect("it was there just now");
                let (drawn, shared) =
                    (whole.finishes.into_iter().flatten().collect(), self.generation.shared_tokens(sample.prompt));
                self.end(sample.prompt, Ok(Candidates { drawn, shared }))
            }
            GenerateEvent::Failed { sample, error } => {
                let refusal = own_matter(error, self.work.engine.facts())?;
                // Its other samples are of no use without this one.
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

    /// One prompt has its candidates, or is refused; the last one of a request writes the answer.
    fn end(&mut self, at: usize, part: Result<Candidates, Refusal>) -> Result<()> {
        let place = self.places[at];
        let request = &self.requests[place.request];
        let parts = &mut self.parts[place.request];
        parts[place.prompt] = Some(part);
        if parts.iter().any(Option::is_none) {
            return Ok(());
        }
        let all: Result<Vec<Candidates>, Refusal> = std::mem::take(parts).into_iter().flatten().collect();
        let answer = match all {
            Ok(all) => {
                let call = self.work.lines[request.line].call.as_ref().expect("a request is read from a call");
                Answer::of(call, request, &all, self.work.origin, self.work.tokenizer, self.work.created)
            }
            Err(refusal) => Answer::refused(&self.work.lines[request.line], &refusal),
        };
        self.output.write(request.line, &answer)?;
        self.work.progress.item_done();
        Ok(())
    }
}

/// What one request asks too much is its own matter; any other error is the job's.
fn own_matter(error: Error, facts: &EngineFacts) -> Result<Refusal> {
    match error {
        Error::ContextTooLong { .. } | Error::OutOfPages { .. } | Error::Value { .. } => {
            let Refusal { code, .. } = Refusal::of(&error);
            Ok(Refusal { code, message: in_bytes(error, facts).to_string() })
        }
        error => Err(error),
    }
}
