//! Prompts in flight: threads that each take the next prompt in token order, draw its candidates and, once a request has all of its
//! own, write its answer. The engine merges what all of them grow into one batch, so threads here only wait.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::engine::EngineHandle;
use crate::error::{Error, Result};
use crate::run::Progress;
use crate::tokenizer::Tokenizer;
use crate::tree::{Event, SamplingTree};

use super::Refusal;
use super::answer::{Answer, Candidates};
use super::input::Line;
use super::output::Output;
use super::request::Request;

/// Threads that wait cost memory for their stacks, nothing else.
const MOST_THREADS: usize = 256;
/// How long an interrupt may wait while nothing happens.
const PATIENCE: Duration = Duration::from_millis(100);

pub struct Work<'a> {
    pub lines: &'a [Line],
    pub engine: EngineHandle,
    /// Branches that grow at once.
    pub branches: usize,
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

/// A prompt of a request, and the tokens that it shares with the one before it in token order: with any prompt before it.
struct Place {
    request: usize,
    prompt: usize,
    shared: usize,
}

/// What a request has so far, a prompt each.
type Parts = Vec<Option<Result<Candidates, Refusal>>>;

struct Shared<'a> {
    work: &'a Work<'a>,
    requests: &'a [Request],
    order: Vec<Place>,
    next: AtomicUsize,
    parts: Vec<Mutex<Parts>>,
    output: Mutex<Output>,
    /// The first error; once it is set nobody takes another prompt.
    ended: Mutex<Option<Error>>,
    tokens: AtomicUsize,
    interrupted: &'a AtomicBool,
}

impl Work<'_> {
    pub fn answer_all(&self, requests: Vec<Request>, output: Output, interrupted: &AtomicBool) -> Worked {
        let order = in_token_order(&requests);
        let each = requests.iter().map(Request::branches).sum::<usize>().div_ceil(order.len().max(1));
        let threads = (self.branches.div_ceil(each.max(1)) + 1).min(order.len()).min(MOST_THREADS);
        let empty = |request: &Request| Mutex::new(request.prompts.iter().map(|_| None).collect());
        let shared = Shared {
            work: self,
            requests: &requests,
            order,
            next: AtomicUsize::new(0),
            parts: requests.iter().map(empty).collect(),
            output: Mutex::new(output),
            ended: Mutex::new(None),
            tokens: AtomicUsize::new(0),
            interrupted,
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| shared.take_prompts());
            }
        });
        Worked {
            output: shared.output.into_inner().expect("writing does not panic"),
            ended: shared.ended.into_inner().expect("storing does not panic"),
            tokens: shared.tokens.into_inner(),
        }
    }
}

/// All prompts so that those which share a prefix follow each other.
fn in_token_order(requests: &[Request]) -> Vec<Place> {
    let tokens = |place: &Place| &requests[place.request].prompts[place.prompt].tokens;
    let places = |(request, of): (usize, &Request)| {
        (0..of.prompts.len()).map(move |prompt| Place { request, prompt, shared: 0 })
    };
    let mut order: Vec<Place> = requests.iter().enumerate().flat_map(places).collect();
    order.sort_by(|a, b| tokens(a).cmp(tokens(b)).then((a.request, a.prompt).cmp(&(b.request, b.prompt))));
    for at in 1..order.len() {
        let (before, own) = (tokens(&order[at - 1]), tokens(&order[at]));
        order[at].shared = before.iter().zip(own).take_while(|(a, b)| a == b).count();
    }
    order
}

impl Shared<'_> {
    fn take_prompts(&self) {
        while let Some(place) = self.next_place() {
            if let Err(error) = self.answer(place) {
                self.ended.lock().expect("storing does not panic").get_or_insert(error);
            }
        }
    }

    fn next_place(&self) -> Option<&Place> {
        if self.ended.lock().expect("storing does not panic").is_some() {
            return None;
        }
        self.order.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// One prompt; the last one of a request writes the answer.
    fn answer(&self, place: &Place) -> Result<()> {
        let request = &self.requests[place.request];
        let part = match self.draw(request, place) {
            Ok(candidates) => Ok(candidates),
            // What one request asks too much is its own matter; all else is the job's.
            Err(error @ (Error::ContextTooLong { .. } | Error::OutOfPages { .. } | Error::Value { .. })) => {
                Err(Refusal::of(&error))
            }
            Err(error) => return Err(error),
        };
        let mut parts = self.parts[place.request].lock().expect("storing does not panic");
        parts[place.prompt] = Some(part);
        if parts.iter().any(Option::is_none) {
            return Ok(());
        }
        let all: Result<Vec<Candidates>, Refusal> = std::mem::take(&mut *parts).into_iter().flatten().collect();
        drop(parts);
        let answer = match all {
            Ok(all) => Answer::of(request, &all, self.work.tokenizer, self.work.created),
            Err(refusal) => Answer::refused(&self.work.lines[request.line], &refusal),
        };
        self.output.lock().expect("writing does not panic").write(request.line, &answer)?;
        self.work.progress.item_done();
        Ok(())
    }

    /// The candidates of one prompt: forks of it, each with coins of its own.
    fn draw(&self, request: &Request, place: &Place) -> Result<Candidates> {
        let prompt = &request.prompts[place.prompt];
        // The first prompt's coins are those of the request alone, so that a list of one prompt is that prompt.
        let coins = match place.prompt {
            0 => request.custom_id.clone(),
            later => format!("{}\n{later}", request.custom_id),
        };
        let engine = self.work.engine.clone();
        let mut tree = SamplingTree::new(engine, &coins, request.seed, prompt.tokens.clone(), prompt.text.clone())?;
        let nodes = tree.fork(tree.root(), request.best_of)?;
        let mut growing = tree.start(&nodes, &request.params, &prompt.stop)?;
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            match growing.poll_event(PATIENCE)? {
                Poll::Ready(Some(Event::Finished { node })) => {
                    growing.tree_mut().close(node);
                    let tokens = growing.tree().node(node).tokens.len();
                    self.tokens.fetch_add(tokens, Ordering::Relaxed);
                    self.work.progress.sample_done(tokens);
                }
                Poll::Ready(Some(Event::Token { .. })) | Poll::Pending => {}
                Poll::Ready(None) => break,
            }
        }
        drop(growing);
        let drawn = nodes.iter().map(|&node| tree.node(node).clone()).collect();
        Ok(Candidates { drawn, shared: place.shared })
    }
}
