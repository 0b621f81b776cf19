//! The threads of a judge on an engine. Some write questions in tokens, which takes longer than to place them; one
//! places them on branches of the engine, and hands over the answers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread::{Builder, JoinHandle, available_parallelism};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, never, select, unbounded};

use super::Counts;
use super::written::{WrittenAnswer, WrittenJson, WrittenQuestion, shares, write};
use crate::ask::{Reply, hand_over};
use crate::item::unwritten;
use crate::question::{Answered, JudgeAnswer, Question};
use offshoot_core::bounded::caught;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId};
use offshoot_engine::{
    EngineHandle, Event, EventReceiver, Extend, Finish, FinishReason, First, Hear, RootOptions, UniformKey,
};
use offshoot_text::{SharedEncoder, SpecialText, Tokenizer};

/// Threads that write questions, at most.
const MOST_WRITERS: usize = 4;

/// Questions on branches of the engine, at most: more than a step computes. Others wait as text.
const MOST_PLACED: usize = 256;

/// How often a judge that waits for its engine looks whether its clients are gone.
const LOOK: Duration = Duration::from_millis(50);

/// Questions that are written and not placed, at most.
const MOST_WRITTEN: usize = 32;

/// A question in tokens, or why it cannot be written.
struct Work {
    written: Result<WrittenQuestion>,
    reply: Reply,
}

/// The threads of a judge. Dropping it ends them, and waits for that.
pub(super) struct JudgeThread {
    /// `None`: the threads end.
    clients: Option<Clients>,
    threads: Vec<JoinHandle<()>>,
}

/// What goes with the last client.
struct Clients {
    questions: Sender<(Question, Reply)>,
    /// Nothing is sent here: the threads end once it is closed.
    _open: Sender<Infallible>,
}

impl JudgeThread {
    pub fn start(
        engine: EngineHandle,
        tokenizer: Arc<Tokenizer>,
        special_text: SpecialText,
        adapter: Option<AdapterVersion>,
        counts: Arc<Counts>,
    ) -> Result<JudgeThread> {
        let (questions, queued) = unbounded::<(Question, Reply)>();
        let (work, received) = bounded(MOST_WRITTEN);
        let (open, closed) = bounded(0);
        let clients = Clients { questions, _open: open };
        let mut judge = JudgeThread { clients: Some(clients), threads: Vec::new() };
        let writers = available_parallelism().map_or(1, |cores| cores.get().div_ceil(2).min(MOST_WRITERS));
        for _ in 0..writers {
            let (from, to, tokenizer) = ((queued.clone(), closed.clone()), work.clone(), Arc::clone(&tokenizer));
            judge.threads.push(spawn("judge-text", move || write_all(from, &to, &tokenizer, special_text))?);
        }
        let receiver = engine.receiver(Hear::Finishes);
        let placing =
            Placing { engine, adapter, receiver, counts, questions: HashMap::new(), branches: HashMap::new(), next: 0 };
        judge.threads.push(spawn("judge", move || placing.run(&received, &closed))?);
        Ok(judge)
    }

    /// Has a question answered.
    pub fn ask(&self, question: Question, reply: Reply) {
        if let Some(clients) = &self.clients {
            // A reply that is dropped says itself that the judge has ended.
            drop(clients.questions.send((question, reply)));
        }
    }
}

impl Drop for JudgeThread {
    fn drop(&mut self) {
        self.clients = None;
        let own = std::thread::current().id();
        // A reply may hold the last client. A panic was written to the log.
        self.threads.drain(..).filter(|thread| thread.thread().id() != own).for_each(|thread| _ = thread.join());
    }
}

/// Whether the last client is gone.
fn is_closed(closed: &Receiver<Infallible>) -> bool {
    closed.try_recv() == Err(TryRecvError::Disconnected)
}

/// Writes questions until the last client is gone.
fn write_all(
    (queued, closed): (Receiver<(Question, Reply)>, Receiver<Infallible>),
    work: &Sender<Work>,
    tokenizer: &Tokenizer,
    special_text: SpecialText,
) {
    let mut encoder = SharedEncoder::guarding(tokenizer, special_text);
    for (question, reply) in queued {
        if is_closed(&closed) {
            return;
        }
        let written = caught(|| write(&mut encoder, &question));
        let written = written.unwrap_or_else(|panic| Err(unwritten(panic)));
        select! {
            send(work, Work { written, reply }) -> sent => if sent.is_err() { return },
            recv(closed) -> _ => return,
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = Builder::new().name(name.to_owned()).spawn(body);
    started.map_err(|error| Error::busy("a thread of the judge", error.to_string()))
}

/// What the thread that places questions has.
struct Placing {
    engine: EngineHandle,
    /// What questions are computed with.
    adapter: Option<AdapterVersion>,
    /// The events of the branches that are being extended.
    receiver: EventReceiver,
    counts: Arc<Counts>,
    questions: HashMap<u64, PlacedQuestion>,
    /// The question of each branch that is being extended, and the branch's place in it.
    branches: HashMap<BranchId, (u64, usize)>,
    /// The number of the next question.
    next: u64,
}

/// A question on branches of the engine.
struct PlacedQuestion {
    /// All of its branches; the first one is the prompt's.
    branches: Vec<BranchId>,
    /// Number of the prompt's tokens.
    tokens: usize,
    awaited: Awaited,
    reply: Reply,
}

/// What a question waits for.
enum Awaited {
    /// The natural-log probabilities of its words; `None`: not known yet.
    Words(Vec<Option<f64>>),
    /// The text of its answer.
    Json(Box<WrittenJson>),
}

impl Placing {
    /// Works until the last client is gone.
    fn run(mut self, received: &Receiver<Work>, closed: &Receiver<Infallible>) {
        let silent = never();
        while !is_closed(closed) {
            let work = if self.questions.len() < MOST_PLACED { received } else { &silent };
            let first = match self.receiver.unfinished() {
                0 => select! {
                    recv(work) -> work => work.map(First::Message),
                    recv(closed) -> _ => break,
                },
                _ => match self.receiver.poll_beside(work, LOOK) {
                    Poll::Ready(first) => Ok(first),
                    Poll::Pending => continue,
                },
            };
            match first {
                Ok(First::Message(Work { written, reply })) => self.place(written, reply),
                Ok(First::Event(Some(event))) => self.note(event),
                Ok(First::Event(None)) => {}
                // All writers are gone.
                Err(_) => break,
            }
        }
        let branches: Vec<BranchId> = self.questions.values().flat_map(|placed| placed.branches.clone()).collect();
        self.engine.release(&branches);
    }

    /// Begins to answer a question.
    fn place(&mut self, written: Result<WrittenQuestion>, reply: Reply) {
        let mut branches = Vec::new();
        let tokens = written.as_ref().map_or(0, |written| written.prompt.len());
        match written.and_then(|written| self.begin(written, &mut branches)) {
            Ok(awaited) => drop(self.questions.insert(self.next, PlacedQuestion { branches, tokens, awaited, reply })),
            Err(error) => {
                branches.iter().for_each(|branch| _ = self.branches.remove(branch));
                self.engine.release(&branches);
                hand_over(reply, Err(error));
            }
        }
        self.next += 1;
    }

    /// Makes the branches of a question, and appends them to `made`, so that the caller can release them after an
    /// error.
    fn begin(&mut self, written: WrittenQuestion, made: &mut Vec<BranchId>) -> Result<Awaited> {
        let place = RootOptions { adapter: self.adapter, ..RootOptions::default() };
        let root = self.engine.root_with(written.prompt, place).map_err(of_prompt)?;
        made.push(root);
        let (extends, awaited) = match written.answer {
            WrittenAnswer::Words(words) => {
                let forks = self.engine.fork(root, words.len())?;
                made.extend(&forks);
                let awaited = Awaited::Words(vec![None; words.len()]);
                let given = |(&fork, word): (&BranchId, Vec<TokenId>)| Extend::given(fork, word, Some(0));
                (forks.iter().zip(words).map(given).collect(), awaited)
            }
            WrittenAnswer::Json(json) => {
                // The likeliest tokens take no random numbers.
                let extend = Extend::sampled(root, &json.params, &json.stop, UniformKey(0));
                (vec![extend], Awaited::Json(json))
            }
        };
        let places =
            extends.iter().enumerate().map(|(place, extend): (usize, &Extend)| (extend.branch, (self.next, place)));
        self.branches.extend(places.collect::<Vec<_>>());
        self.receiver.start(extends)?;
        Ok(awaited)
    }

    /// What became of a branch.
    fn note(&mut self, event: Event) {
        if !event.is_end() {
            return;
        }
        let Some((question, place)) = self.branches.remove(&event.id()) else { return };
        let Some(placed) = self.questions.get_mut(&question) else { return };
        let answer = match event {
            Event::Tokens { .. } => None,
            Event::Failed { error, .. } => Some(Err(error)),
            Event::Finished { finish, .. } => {
                if matches!(placed.awaited, Awaited::Json(_)) {
                    self.counts.written.fetch_add(finish.tokens.len(), Ordering::Relaxed);
                }
                placed.awaited.note(place, &finish)
            }
        };
        if let Some(answer) = answer {
            self.answer(question, answer);
        }
    }

    /// Hands over the answer to a question, and forgets its branches. Their keys and values stay cached until room is
    /// needed.
    fn answer(&mut self, question: u64, answer: Result<JudgeAnswer>) {
        let Some(PlacedQuestion { branches, tokens, reply, .. }) = self.questions.remove(&question) else { return };
        branches.iter().for_each(|branch| _ = self.branches.remove(branch));
        self.engine.release(&branches);
        self.counts.tokens.fetch_add(tokens, Ordering::Relaxed);
        hand_over(reply, answer.map(|answer| Answered { answer, tokens }));
    }
}

/// The error of a prompt, which says whose it is.
fn of_prompt(error: Error) -> Error {
    match error {
        Error::ContextTooLong { tokens, context, .. } => {
            Error::ContextTooLong { what: "the prompt of the judge".to_owned(), tokens, context }
        }
        other => other,
    }
}

impl Awaited {
    /// Notes how the branch in this place of the question ended. Returns the answer once it is whole.
    fn note(&mut self, place: usize, finish: &Finish) -> Option<Result<JudgeAnswer>> {
        match (self, &finish.reason) {
            (_, FinishReason::Cancelled | FinishReason::Aborted | FinishReason::OutOfTime) => {
                let why = format!("the engine ends it: {:?}", finish.reason);
                Some(Err(Error::busy("question to the judge", why)))
            }
            (Awaited::Words(words), _) => {
                words[place] = Some(finish.logprob);
                let all: Option<Vec<f64>> = words.iter().copied().collect();
                all.map(|all| shares(&all).map(JudgeAnswer::Words))
            }
            (Awaited::Json(json), _) => Some(json.read(finish)),
        }
    }
}
