//! A judge that is a model behind a server of the OpenAI protocol. This file holds what clients have, and the threads
//! that send questions; `body` writes requests, `read` reads answers, `client` sends one request, `health` decides when
//! a server is not asked for a while.

mod body;
mod client;
mod health;
mod json_text;
mod options;
mod read;
mod retry_after;
mod roots;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use serde_json::Value;

use crate::ask::{Ask, JudgeCounts, JudgeIdentity, Reply, hand_over};
use crate::item::unwritten;
use crate::question::{Answered, Question};
use body::Body;
use client::{Client, Failure};
use health::Health;
use offshoot_core::bounded::caught;
use offshoot_core::error::{Error, Result};
pub use options::{JudgeKey, ServerOptions};
use read::Usage;

/// The time before the first retry; each further one takes twice the time of the one before.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The longest time before a retry, also where a server asks for more.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A model behind a server as a judge. Its questions are sent by threads of its own, which end once it is dropped, at
/// most after the request that each of them has under way; no answer is handed over then.
pub struct ServerJudge {
    identity: JudgeIdentity,
    asking: Arc<Asking>,
    /// `None`: the threads end.
    questions: Option<Sender<(Question, Reply)>>,
    /// Closed when the judge is dropped.
    _open: Sender<()>,
}

/// What the threads that send questions share.
struct Asking {
    client: Client,
    /// The model's name.
    model: String,
    retries: u32,
    first_wait: Duration,
    health: Mutex<Health>,
    asked: AtomicUsize,
    tokens: AtomicUsize,
    written: AtomicUsize,
    retried: AtomicUsize,
    /// Whether it was said that a question has no answer.
    has_warned: AtomicBool,
    /// Delivers once the judge is dropped.
    closed: Receiver<()>,
}

impl ServerJudge {
    /// A judge at this server, which is asked for its models: where the options name none, its only one is taken.
    ///
    /// # Errors
    ///
    /// An option is out of range; the file of SSL_CERT_FILE has no certificates; the server refuses its client; where
    /// it is to name the model, it lists none or several, or cannot be asked; no thread starts.
    pub fn open(options: ServerOptions) -> Result<ServerJudge> {
        let is_named = options.model.is_some();
        let judge = ServerJudge::waiting(options, FIRST_WAIT)?;
        if is_named {
            judge.asking.check_key()?;
        }
        Ok(judge)
    }

    /// As [`open`](Self::open), with this time before the first retry, and a server that takes the key.
    fn waiting(options: ServerOptions, first_wait: Duration) -> Result<ServerJudge> {
        options.check()?;
        let (requests, retries) = (options.requests, options.retries);
        let named = options.model.clone();
        if options.shows_key() {
            log::warn!("the key for the judge's server goes to {} in plain text: https would hide it", options.url);
        }
        let client = Client::new(options)?;
        let (open, closed) = bounded(0);
        let mut asking = Asking {
            client,
            model: String::new(),
            retries,
            first_wait,
            health: Mutex::default(),
            asked: AtomicUsize::new(0),
            tokens: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            retried: AtomicUsize::new(0),
            has_warned: AtomicBool::new(false),
            closed,
        };
        asking.model = match named {
            Some(model) => model,
            None => read::only_model(&asking.retrying(|client| client.get("models"))?)?,
        };
        let identity = JudgeIdentity { name: asking.model.clone(), digest: None };
        let asking = Arc::new(asking);
        let (questions, queued) = unbounded::<(Question, Reply)>();
        for _ in 0..requests {
            let (asking, queued) = (Arc::clone(&asking), queued.clone());
            let started = Builder::new().name("judge-server".to_owned()).spawn(move || asking.work(&queued));
            started.map_err(|error| Error::busy("a thread of the judge", error.to_string()))?;
        }
        Ok(ServerJudge { identity, asking, questions: Some(questions), _open: open })
    }
}

impl Ask for ServerJudge {
    fn ask(&self, question: Question, reply: Reply) {
        self.asking.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(questions) = &self.questions {
            // A reply that is dropped says itself that the judge has ended.
            drop(questions.send((question, reply)));
        }
    }

    fn identity(&self) -> &JudgeIdentity {
        &self.identity
    }

    fn counts(&self) -> JudgeCounts {
        let Asking { asked, tokens, written, retried, .. } = &*self.asking;
        let [questions, tokens, written, retried] =
            [asked, tokens, written, retried].map(|count| count.load(Ordering::Relaxed));
        JudgeCounts { questions, tokens, written, retried }
    }
}

impl Asking {
    /// Answers questions until the judge is dropped.
    fn work(&self, queued: &Receiver<(Question, Reply)>) {
        for (question, reply) in queued {
            if self.is_closed() {
                return;
            }
            let answered = caught(|| self.answer(&question));
            let answered = answered.unwrap_or_else(|panic| Err(unwritten(panic)));
            if self.is_closed() {
                return;
            }
            hand_over(reply, answered);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected)
    }

    fn answer(&self, question: &Question) -> Result<Answered> {
        let Body { part, fields } = body::of(question, &self.model, self.client.request())?;
        self.health().admit(&self.client.name(), Instant::now())?;
        let answer = self.retrying(|client| client.post(part, &fields))?;
        let Usage { tokens, written } = read::usage(&answer);
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
        self.written.fetch_add(written, Ordering::Relaxed);
        read::answer(question, &fields, &answer).map_err(|error| self.client.hiding(error))
    }

    /// Refuses a key that the server does not take, or the lack of one, before anything is sampled. Whatever else the
    /// server answers, questions may have answers.
    fn check_key(&self) -> Result<()> {
        match self.client.get("models") {
            Err(Failure::Answered { why, status: Some(401 | 403), .. }) => Err(Error::busy(self.client.name(), why)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, again after failures that may pass, and notes what becomes of the server.
    fn retrying(&self, send: impl Fn(&Client) -> Result<Value, Failure>) -> Result<Value> {
        let mut wait = self.first_wait;
        let mut left = self.retries;
        loop {
            let failure = match send(&self.client) {
                Ok(answer) => {
                    self.health().reached();
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            let asked_for = failure.may_pass().filter(|_| left > 0);
            let Some(asked_for) = asked_for else {
                return Err(self.failed(failure));
            };
            left -= 1;
            self.retried.fetch_add(1, Ordering::Relaxed);
            let time = asked_for.unwrap_or_default().max(wait).min(LONGEST_WAIT);
            if self.closed.recv_timeout(time) != Err(RecvTimeoutError::Timeout) {
                return Err(Error::busy("question to the judge", "the judge ends before it answers"));
            }
            wait = wait.saturating_mul(2);
        }
    }

    /// The error of a request that is not sent again.
    fn failed(&self, failure: Failure) -> Error {
        match failure {
            Failure::Unreached(why) | Failure::Answered { why, is_gateway: true, .. } => {
                let is_down = self.health().unreached(&why, Instant::now());
                if is_down {
                    log::warn!("the judge's server is not reached ({why}); it is asked again from time to time");
                }
                Error::busy(self.client.name(), why)
            }
            Failure::Answered { why, .. } => {
                self.health().reached();
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "the judge's server has no answer to a question ({why}); of others no more is said here"
                    );
                }
                Error::busy(self.client.name(), why)
            }
        }
    }
}
