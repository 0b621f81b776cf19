//! Assesses finished texts: in the driver's thread if that is cheap (answers, graders), or asynchronously on other
//! threads if it is expensive (judges), while the item's other candidates continue. Drivers treat both alike: they hand
//! over a text and receive its assessment later. Implementations of [`Assess`] decide how a text is assessed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use serde_json::Value;

use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

/// Longest wait for an event before the interrupt flag is read again.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// The assessment of a finished text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// The answer in the canonical form that votes compare.
    pub answer: Option<String>,
    /// Whether it is right; `None`: unknown.
    pub correct: Option<bool>,
    /// Its value, in [0, 1] or in the range of the search's other values; `None`: 1 if it is right, else 0.
    pub score: Option<f64>,
    /// More about the assessment for the results, for example a judge's verdict.
    pub detail: Option<Value>,
}

impl Assessment {
    /// An answer, or none, and whether it is right, if that is known.
    pub fn graded(answer: Option<String>, correct: Option<bool>) -> Assessment {
        Assessment { answer, correct, ..Assessment::default() }
    }

    /// What a text is worth, without an answer.
    pub fn scored(score: f64) -> Assessment {
        Assessment { score: Some(score), ..Assessment::default() }
    }

    /// The value that a search uses.
    pub fn value(&self) -> f64 {
        self.score.unwrap_or(f64::from(self.correct == Some(true)))
    }
}

/// Assesses finished texts: a task's graders, a judge, or any function of a text. The same text always has the same
/// assessment.
pub trait Assess {
    /// Whether it grades texts as right or wrong. If so, a missing answer is wrong.
    fn grades(&self) -> bool;

    /// The assessment of `text` if it takes only microseconds; `None`: it is sent later as the reply to `request`, from
    /// any thread. An error in the reply ends the search.
    fn assess(&self, text: &str, request: &mut dyn FnMut() -> AssessmentRequest) -> Option<Assessment>;

    /// What is known of `text` before the reply to its request, where the text is to be recorded at once, so that it is
    /// not lost should the reply never come; it is recorded again then. `None`: it is recorded with its assessment.
    fn before_reply(&self, _text: &str) -> Option<Assessment> {
        None
    }
}

/// A function that assesses in the driver's thread.
impl<F: Fn(&str) -> Assessment> Assess for F {
    fn grades(&self) -> bool {
        self("").correct.is_some()
    }

    fn assess(&self, text: &str, _: &mut dyn FnMut() -> AssessmentRequest) -> Option<Assessment> {
        Some(self(text))
    }
}

/// A text to assess.
pub struct AssessmentRequest {
    text: Arc<str>,
    replies: Sender<AssessmentReply>,
    abandoned: Arc<AtomicBool>,
}

/// The reply to an [`AssessmentRequest`].
pub(crate) struct AssessmentReply {
    text: Arc<str>,
    assessment: Result<Assessment>,
}

impl AssessmentRequest {
    /// The text to assess.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the reply is no longer needed.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Sends the assessment to the search. An error ends the search.
    pub fn reply(self, assessment: Result<Assessment>) {
        // Sending fails only if the search is over.
        drop(self.replies.send(AssessmentReply { text: self.text, assessment }));
    }
}

/// Receives replies. Dropping it abandons the requests made with it.
struct Replies {
    sender: Sender<AssessmentReply>,
    receiver: Receiver<AssessmentReply>,
    abandoned: Arc<AtomicBool>,
}

impl Replies {
    fn new() -> Self {
        let (sender, receiver) = unbounded();
        Self { sender, receiver, abandoned: Arc::default() }
    }

    fn request(&self, text: &str) -> AssessmentRequest {
        AssessmentRequest { text: text.into(), replies: self.sender.clone(), abandoned: self.abandoned.clone() }
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

/// The assessments of one item's texts. Each text is requested once.
pub struct Assessor<'a> {
    assess: Box<dyn Assess + 'a>,
    /// Texts that are assessed asynchronously.
    texts: HashMap<Arc<str>, TextState>,
    replies: Replies,
    ready: VecDeque<(NodeId, Assessment)>,
}

/// State of a text that is assessed asynchronously.
enum TextState {
    Assessed(Assessment),
    /// Requested; these nodes wait for the assessment.
    Awaited(Vec<NodeId>),
}

impl<'a> Assessor<'a> {
    /// The assessments by `assess`.
    pub fn new(assess: impl Assess + 'a) -> Self {
        Self { assess: Box::new(assess), texts: HashMap::new(), replies: Replies::new(), ready: VecDeque::new() }
    }

    /// Whether the assessor grades texts as right or wrong.
    pub fn grades(&self) -> bool {
        self.assess.grades()
    }

    /// Hands over the text of `node`. Returns what is to be recorded of it before its assessment comes, if anything is.
    pub fn begin(&mut self, node: NodeId, text: &str) -> Option<Assessment> {
        match self.known(text, Some(node)) {
            Some(assessment) => {
                self.ready.push_back((node, assessment));
                None
            }
            None => self.assess.before_reply(text),
        }
    }

    /// Makes the empty assessment of `node` available to `take`: it has no answer and no grade.
    pub(crate) fn pass(&mut self, node: NodeId) {
        self.ready.push_back((node, Assessment::default()));
    }

    /// The next available assessment.
    pub fn take(&mut self) -> Option<(NodeId, Assessment)> {
        self.ready.pop_front()
    }

    /// Whether replies are outstanding.
    pub fn is_awaited(&self) -> bool {
        self.texts.values().any(|state| matches!(state, TextState::Awaited(_)))
    }

    /// The channel of replies; each must be passed to `receive`.
    pub(crate) fn replies(&self) -> Receiver<AssessmentReply> {
        self.replies.receiver.clone()
    }

    /// Stores a reply and makes its assessments available to `take`.
    pub(crate) fn receive(&mut self, reply: AssessmentReply) -> Result<()> {
        let AssessmentReply { text, assessment } = reply;
        let assessment = assessment?;
        if let Some(TextState::Awaited(nodes)) = self.texts.insert(text, TextState::Assessed(assessment.clone())) {
            self.ready.extend(nodes.into_iter().map(|node| (node, assessment.clone())));
        }
        Ok(())
    }

    /// Waits for the next reply, at most `PATIENCE`.
    pub fn wait(&mut self) -> Result<()> {
        match self.replies.receiver.recv_timeout(PATIENCE) {
            Ok(reply) => self.receive(reply),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    /// Forgets the texts whose assessments were not taken. Requests that no thread has started on are dropped.
    pub fn forget(&mut self) {
        self.ready.clear();
        self.texts.retain(|_, state| matches!(state, TextState::Assessed(_)));
        self.replies = Replies::new();
    }

    /// Requests the assessment of a text for which [`assess`](Self::assess) will wait.
    pub(crate) fn request(&mut self, text: &str) {
        if let Some(assessment) = self.known(text, None) {
            self.texts.insert(text.into(), TextState::Assessed(assessment));
        }
    }

    /// Assesses one text and waits for it. `check_interrupted` is called between waits; its error ends the wait.
    pub fn assess(&mut self, text: &str, check_interrupted: impl Fn() -> Result<()>) -> Result<Assessment> {
        loop {
            if let Some(assessment) = self.known(text, None) {
                return Ok(assessment);
            }
            check_interrupted()?;
            self.wait()?;
        }
    }

    /// The assessment of `text` if it is known; otherwise requests it and adds `node` to those that wait for it.
    fn known(&mut self, text: &str, node: Option<NodeId>) -> Option<Assessment> {
        match self.texts.get_mut(text) {
            Some(TextState::Assessed(assessment)) => Some(assessment.clone()),
            Some(TextState::Awaited(nodes)) => {
                nodes.extend(node);
                None
            }
            None => {
                let assessment = self.assess.assess(text, &mut || self.replies.request(text));
                if assessment.is_none() {
                    self.texts.insert(text.into(), TextState::Awaited(node.into_iter().collect()));
                }
                assessment
            }
        }
    }
}
