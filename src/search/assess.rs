//! What finished texts are worth, and how a driver hears it: at once where that is cheap (answers, graders), or later, from other
//! threads, where it is expensive (judges), while the item's other candidates grow. To a driver both look the same: a text is handed
//! over, and its assessment comes when it is known. How a text is assessed is left to whoever implements [`Assess`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use petgraph::graph::NodeIndex;
use serde_json::Value;

use super::PATIENCE;
use crate::error::Result;

/// What a finished text is worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// The answer in the form that is voted on.
    pub answer: Option<String>,
    /// Whether it is right; `None`: nothing says so.
    pub correct: Option<bool>,
    /// Its value, in [0, 1] or where the searches' other values lie; `None`: 1 where it is right, else 0.
    pub score: Option<f64>,
    /// What the assessor says beside that, for the results: a judge's verdict.
    pub detail: Option<Value>,
}

impl Assessment {
    pub fn graded(answer: Option<String>, correct: Option<bool>) -> Assessment {
        Assessment { answer, correct, ..Assessment::default() }
    }

    /// Its value to a search.
    pub fn value(&self) -> f64 {
        self.score.unwrap_or(f64::from(self.correct == Some(true)))
    }
}

/// Says what finished texts are worth: a task's graders, a judge, or any function of a text. The same text always gets the same
/// assessment.
pub trait Assess {
    /// Whether it says what is right at all. Where it does, no answer is a wrong answer.
    fn says_what_is_right(&self) -> bool;

    /// The assessment of `text` where it takes microseconds; `None`: it comes as the reply to `request`, from any thread. An error
    /// in the reply ends the search.
    fn assess(&self, text: &str, request: &mut dyn FnMut() -> Request) -> Option<Assessment>;
}

/// A function that assesses in the driver's thread.
impl<F: Fn(&str) -> Assessment> Assess for F {
    fn says_what_is_right(&self) -> bool {
        self("").correct.is_some()
    }

    fn assess(&self, text: &str, _: &mut dyn FnMut() -> Request) -> Option<Assessment> {
        Some(self(text))
    }
}

/// A text that waits for its assessment.
pub struct Request {
    text: Arc<str>,
    replies: Sender<Reply>,
    abandoned: Arc<AtomicBool>,
}

/// The answer to a [`Request`].
pub struct Reply {
    text: Arc<str>,
    assessment: Result<Assessment>,
}

impl Request {
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether nobody waits for the reply any more.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub fn reply(self, assessment: Result<Assessment>) {
        // An error says that the receiver is gone: the search is over.
        drop(self.replies.send(Reply { text: self.text, assessment }));
    }
}

/// Where replies come in. Dropping it abandons the requests that were made with it.
struct Replies {
    sender: Sender<Reply>,
    receiver: Receiver<Reply>,
    abandoned: Arc<AtomicBool>,
}

impl Replies {
    fn new() -> Self {
        let (sender, receiver) = unbounded();
        Self { sender, receiver, abandoned: Arc::default() }
    }

    fn request(&self, text: &str) -> Request {
        Request { text: text.into(), replies: self.sender.clone(), abandoned: self.abandoned.clone() }
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

/// The assessments of one item's texts, each text requested once.
pub struct Assessor<'a> {
    assess: Box<dyn Assess + 'a>,
    /// Texts whose assessments did not come at once.
    texts: HashMap<Arc<str>, Known>,
    replies: Replies,
    ready: VecDeque<(NodeIndex, Assessment)>,
}

/// What is known of a text that was handed over.
enum Known {
    Assessed(Assessment),
    /// These wait for it.
    Awaited(Vec<NodeIndex>),
}

impl<'a> Assessor<'a> {
    pub fn new(assess: impl Assess + 'a) -> Self {
        Self { assess: Box::new(assess), texts: HashMap::new(), replies: Replies::new(), ready: VecDeque::new() }
    }

    /// Whether it says what is right at all.
    pub fn grades(&self) -> bool {
        self.assess.says_what_is_right()
    }

    /// Hands over the text of `node`.
    pub fn begin(&mut self, node: NodeIndex, text: &str) {
        let known = self.known(text, Some(node));
        self.ready.extend(known.map(|assessment| (node, assessment)));
    }

    /// An assessment that is there.
    pub fn take(&mut self) -> Option<(NodeIndex, Assessment)> {
        self.ready.pop_front()
    }

    /// Whether texts were handed over whose replies have not come.
    pub fn is_awaited(&self) -> bool {
        self.texts.values().any(|known| matches!(known, Known::Awaited(_)))
    }

    /// Where replies come in, each to be given to `receive`.
    pub fn replies(&self) -> Receiver<Reply> {
        self.replies.receiver.clone()
    }

    /// Makes what a reply decides ready to be taken.
    pub fn receive(&mut self, reply: Reply) -> Result<()> {
        let Reply { text, assessment } = reply;
        let assessment = assessment?;
        if let Some(Known::Awaited(nodes)) = self.texts.insert(text, Known::Assessed(assessment.clone())) {
            self.ready.extend(nodes.into_iter().map(|node| (node, assessment.clone())));
        }
        Ok(())
    }

    /// Receives the next reply, if one comes in a short while.
    pub fn wait(&mut self) -> Result<()> {
        match self.replies.receiver.recv_timeout(PATIENCE) {
            Ok(reply) => self.receive(reply),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    /// Forgets the texts that were handed over and not taken back. Requests that nobody has begun to work on are dropped.
    pub fn forget(&mut self) {
        self.ready.clear();
        self.texts.retain(|_, known| matches!(known, Known::Assessed(_)));
        self.replies = Replies::new();
    }

    /// Assesses one text and waits for it. `go_on` says between whiles whether to wait on.
    pub fn assess(&mut self, text: &str, go_on: impl Fn() -> Result<()>) -> Result<Assessment> {
        loop {
            if let Some(assessment) = self.known(text, None) {
                return Ok(assessment);
            }
            go_on()?;
            self.wait()?;
        }
    }

    /// The assessment of `text` if it is known; else it will be, for `node` too.
    fn known(&mut self, text: &str, node: Option<NodeIndex>) -> Option<Assessment> {
        match self.texts.get_mut(text) {
            Some(Known::Assessed(assessment)) => Some(assessment.clone()),
            Some(Known::Awaited(nodes)) => {
                nodes.extend(node);
                None
            }
            None => {
                let assessment = self.assess.assess(text, &mut || self.replies.request(text));
                if assessment.is_none() {
                    self.texts.insert(text.into(), Known::Awaited(node.into_iter().collect()));
                }
                assessment
            }
        }
    }
}
