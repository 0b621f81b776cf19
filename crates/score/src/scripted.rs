//! A scorer without a model, in which a closure scores each answer. Searches are tested on it. It behaves as a reward
//! model's tree in starting, pruning and polling, and its scores come in the order that the script says.
//!
//! Its tokens are bytes. It scores at once, on the thread that starts an answer; a script delays a score by polls, so
//! that no test depends on time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::aggregate::Aggregate;
use crate::rendered::{StepScore, StepScores};
use crate::scale::Scale;
use crate::scorer::{ScoredTree, ScorerIdentity, TextScorer, TextScores};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_text::Message;

/// A script's input: the answer to score.
pub struct ScriptedAnswer<'a> {
    /// The turns of the question.
    pub question: &'a [Message],
    /// The whole answer, as the search has cut it.
    pub steps: &'a [String],
    /// The node at which the answer ends.
    pub node: NodeId,
    /// The node that the answer goes on from.
    pub parent: Option<NodeId>,
}

impl ScriptedAnswer<'_> {
    /// The whole answer as one text.
    pub fn text(&self) -> String {
        self.steps.concat()
    }
}

/// A script's reply: the scores of an answer, or the error it gets, and when they come.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptedScore {
    outcome: Outcome,
    arrival: Arrival,
}

#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    /// A score for each step, from the first one on.
    Steps(Vec<f64>),
    /// One score for the answer, at its last step.
    Whole(f64),
    Fails(String),
}

/// When the outcome of an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// Behind this many polls that do not report it.
    AfterPolls(usize),
    /// Not before the answer is pruned.
    Never,
}

impl ScriptedScore {
    /// A score for each step, as a process reward model gives; it comes with the next poll.
    pub fn steps(scores: impl IntoIterator<Item = f64>) -> Self {
        Outcome::Steps(scores.into_iter().collect()).at_once()
    }

    /// One score for the whole answer, as an outcome reward model gives; it comes with the next poll.
    pub fn whole(score: f64) -> Self {
        Outcome::Whole(score).at_once()
    }

    /// An error with this text for the answer alone; it comes with the next poll.
    pub fn failing(why: impl Into<String>) -> Self {
        Outcome::Fails(why.into()).at_once()
    }

    /// The next `polls` polls do not report it.
    pub fn after_polls(mut self, polls: usize) -> Self {
        self.arrival = Arrival::AfterPolls(polls);
        self
    }

    /// No poll reports it.
    pub fn never(mut self) -> Self {
        self.arrival = Arrival::Never;
        self
    }
}

impl Outcome {
    fn at_once(self) -> ScriptedScore {
        ScriptedScore { outcome: self, arrival: Arrival::AfterPolls(0) }
    }
}

/// What happened to a scripted scorer, in the order in which it did. `tree`: the number of the tree, in the order in
/// which trees were begun, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptedEvent {
    /// A tree was begun.
    Began {
        /// The tree.
        tree: usize,
    },
    /// An answer was started.
    Started {
        /// The tree.
        tree: usize,
        /// The node at which the answer ends.
        node: NodeId,
        /// The node that it goes on from.
        parent: Option<NodeId>,
        /// The whole answer.
        text: String,
    },
    /// A poll returned an answer's scores or its error.
    Reported {
        /// The tree.
        tree: usize,
        /// The node at which the answer ends.
        node: NodeId,
    },
    /// An answer was given up.
    Pruned {
        /// The tree.
        tree: usize,
        /// The node at which the answer ends.
        node: NodeId,
    },
    /// A tree was dropped.
    Dropped {
        /// The tree.
        tree: usize,
    },
}

type Script = dyn Fn(&ScriptedAnswer<'_>) -> ScriptedScore + Send + Sync;

/// A scorer that a closure scripts.
pub struct ScriptedScorer {
    script: Arc<Script>,
    scale: Scale,
    aggregate: Aggregate,
    identity: ScorerIdentity,
    newest_first: bool,
    refusal: Option<String>,
    events: Arc<Mutex<Vec<ScriptedEvent>>>,
}

impl ScriptedScorer {
    /// A scorer that calls `script` when an answer is started. Its scores are probabilities, and the last step's is the
    /// answer's.
    pub fn new(script: impl Fn(&ScriptedAnswer<'_>) -> ScriptedScore + Send + Sync + 'static) -> Self {
        let [name, form, digest] = ["scripted", "custom", "0"].map(str::to_owned);
        ScriptedScorer {
            script: Arc::new(script),
            scale: Scale::Probability,
            aggregate: Aggregate::Last,
            identity: ScorerIdentity { name, form, digest },
            newest_first: false,
            refusal: None,
            events: Arc::default(),
        }
    }

    /// The scores are of this scale.
    pub fn of_scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    /// The scores of steps become the answer's by `aggregate`.
    pub fn aggregated_by(mut self, aggregate: Aggregate) -> Self {
        self.aggregate = aggregate;
        self
    }

    /// The scorer has this identity.
    pub fn identified(mut self, identity: ScorerIdentity) -> Self {
        self.identity = identity;
        self
    }

    /// Of the answers that a poll can report, the one that was started last comes first; without this the one that was
    /// started first.
    pub fn newest_first(mut self) -> Self {
        self.newest_first = true;
        self
    }

    /// Every question is refused with an error of this text.
    pub fn refusing_questions(mut self, why: impl Into<String>) -> Self {
        self.refusal = Some(why.into());
        self
    }

    /// What has happened so far.
    pub fn events(&self) -> Vec<ScriptedEvent> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl TextScorer for ScriptedScorer {
    fn begin(&self, question: &[Message]) -> Result<Box<dyn ScoredTree>> {
        if let Some(why) = &self.refusal {
            return Err(unscored(why));
        }
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = events.iter().filter(|event| matches!(event, ScriptedEvent::Began { .. })).count();
        events.push(ScriptedEvent::Began { tree });
        Ok(Box::new(ScriptedTree {
            tree,
            script: Arc::clone(&self.script),
            newest_first: self.newest_first,
            events: Arc::clone(&self.events),
            question: question.to_vec(),
            texts: HashMap::new(),
            waiting: Vec::new(),
        }))
    }

    fn scale(&self) -> Scale {
        self.scale
    }

    fn aggregate(&self) -> Aggregate {
        self.aggregate
    }

    fn identity(&self) -> &ScorerIdentity {
        &self.identity
    }
}

struct ScriptedTree {
    tree: usize,
    script: Arc<Script>,
    newest_first: bool,
    events: Arc<Mutex<Vec<ScriptedEvent>>>,
    question: Vec<Message>,
    /// The texts of all nodes that were started.
    texts: HashMap<NodeId, StartedText>,
    /// In the order in which they were started.
    waiting: Vec<WaitingAnswer>,
}

struct StartedText {
    text: String,
    is_pruned: bool,
}

struct WaitingAnswer {
    node: NodeId,
    arrival: Arrival,
    result: Result<TextScores>,
}

impl ScriptedTree {
    fn note(&self, event: ScriptedEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

impl ScoredTree for ScriptedTree {
    fn start(&mut self, node: NodeId, parent: Option<NodeId>, steps: &[String]) -> Result<()> {
        if self.texts.get(&node).is_some_and(|text| !text.is_pruned) {
            return Err(Error::Internal(format!("the answer at node {node} is started twice")));
        }
        let text = steps.concat();
        self.note(ScriptedEvent::Started { tree: self.tree, node, parent, text: text.clone() });
        let question: usize = self.question.iter().filter_map(Message::last_text).map(str::len).sum();
        let before = parent.and_then(|parent| self.texts.get(&parent));
        let shared = before.map_or(0, |before| question + shared_bytes(&before.text, &text));
        let tokens = question + text.len();
        let ScriptedScore { outcome, arrival } =
            (self.script)(&ScriptedAnswer { question: &self.question, steps, node, parent });
        let scores = match outcome {
            Outcome::Steps(scores) => {
                Ok(scores.into_iter().enumerate().map(|(step, score)| StepScore { step, score }).collect())
            }
            Outcome::Whole(score) => Ok(vec![StepScore { step: steps.len().saturating_sub(1), score }]),
            Outcome::Fails(why) => Err(unscored(&why)),
        };
        let computed = tokens - shared;
        let of = |scores| TextScores { scores: StepScores { scores }, tokens, computed, detail: None, lacking: None };
        let result = scores.map(of);
        self.texts.insert(node, StartedText { text, is_pruned: false });
        self.waiting.push(WaitingAnswer { node, arrival, result });
        Ok(())
    }

    fn prune(&mut self, node: NodeId) {
        if let Some(text) = self.texts.get_mut(&node).filter(|text| !text.is_pruned) {
            text.is_pruned = true;
            self.waiting.retain(|waiting| waiting.node != node);
            self.note(ScriptedEvent::Pruned { tree: self.tree, node });
        }
    }

    fn poll(&mut self, _patience: Duration) -> Option<(NodeId, Result<TextScores>)> {
        let is_due = |waiting: &WaitingAnswer| waiting.arrival == Arrival::AfterPolls(0);
        let due = match self.newest_first {
            true => self.waiting.iter().rposition(is_due),
            false => self.waiting.iter().position(is_due),
        };
        let reported = due.map(|ix| self.waiting.remove(ix));
        for waiting in &mut self.waiting {
            if let Arrival::AfterPolls(polls) = &mut waiting.arrival {
                *polls = polls.saturating_sub(1);
            }
        }
        let WaitingAnswer { node, result, .. } = reported?;
        self.note(ScriptedEvent::Reported { tree: self.tree, node });
        Some((node, result))
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Drop for ScriptedTree {
    fn drop(&mut self) {
        self.note(ScriptedEvent::Dropped { tree: self.tree });
    }
}

fn unscored(why: &str) -> Error {
    Error::value("text to score", "one that the script scores", why)
}

fn shared_bytes(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(steps: &[&str]) -> Vec<String> {
        steps.iter().map(|step| (*step).to_owned()).collect()
    }

    fn polled(tree: &mut dyn ScoredTree) -> Option<(NodeId, Result<TextScores>)> {
        tree.poll(Duration::ZERO)
    }

    #[test]
    fn scores_errors_and_delays_are_the_script_s() {
        let scorer = ScriptedScorer::new(|answer| match answer.text().as_str() {
            "bad" => ScriptedScore::failing("it is bad"),
            "late" => ScriptedScore::steps([0.25]).after_polls(2),
            "never" => ScriptedScore::whole(1.0).never(),
            _ => ScriptedScore::steps((0..answer.steps.len()).map(|step| step as f64)),
        });
        let mut tree = scorer.begin(&[Message::user("What?")]).unwrap();
        for (node, text) in ["late", "bad", "never", "a"].into_iter().enumerate() {
            tree.start(NodeId::new(node), None, &texts(&[text])).unwrap();
        }
        tree.start(NodeId(4), Some(NodeId(3)), &texts(&["a", "b"])).unwrap();
        assert!(tree.start(NodeId(4), None, &texts(&["c"])).is_err(), "started twice");
        assert_eq!(tree.waiting(), 5);
        let (node, result) = polled(&mut *tree).unwrap();
        assert!(node == NodeId(1) && result.unwrap_err().to_string().contains("it is bad"));
        let (node, result) = polled(&mut *tree).unwrap();
        assert_eq!((node, result.unwrap().scores.by_step(1)), (NodeId(3), vec![Some(0.0)]));
        // Its two polls are over.
        assert_eq!(polled(&mut *tree).unwrap().0, NodeId(0));
        let (node, result) = polled(&mut *tree).unwrap();
        let scored = result.unwrap();
        assert_eq!((node, scored.scores.by_step(2)), (NodeId(4), vec![Some(0.0), Some(1.0)]));
        assert_eq!((scored.tokens, scored.computed), ("What?ab".len(), 1));
        assert!(polled(&mut *tree).is_none() && tree.waiting() == 1);
        tree.prune(NodeId(2));
        assert_eq!(tree.waiting(), 0);
        tree.start(NodeId(2), None, &texts(&["a"])).unwrap();
        assert_eq!(polled(&mut *tree).unwrap().0, NodeId(2));
    }

    #[test]
    fn the_newest_comes_first_on_request_and_what_happened_is_recorded() {
        let scorer = ScriptedScorer::new(|_| ScriptedScore::whole(0.5)).newest_first();
        let mut tree = scorer.begin(&[Message::user("What?")]).unwrap();
        tree.start(NodeId(1), None, &texts(&["a"])).unwrap();
        tree.start(NodeId(2), Some(NodeId(1)), &texts(&["a", "b"])).unwrap();
        let (node, result) = polled(&mut *tree).unwrap();
        assert_eq!((node, result.unwrap().scores.by_step(2)), (NodeId(2), vec![None, Some(0.5)]));
        tree.prune(NodeId(1));
        tree.prune(NodeId(1));
        assert!(polled(&mut *tree).is_none());
        drop(tree);
        let started =
            |node, parent, text: &str| ScriptedEvent::Started { tree: 0, node, parent, text: text.to_owned() };
        let happened = [
            ScriptedEvent::Began { tree: 0 },
            started(NodeId(1), None, "a"),
            started(NodeId(2), Some(NodeId(1)), "ab"),
            ScriptedEvent::Reported { tree: 0, node: NodeId(2) },
            ScriptedEvent::Pruned { tree: 0, node: NodeId(1) },
            ScriptedEvent::Dropped { tree: 0 },
        ];
        assert_eq!(scorer.events(), happened);
        let refusing = ScriptedScorer::new(|_| ScriptedScore::whole(0.5)).refusing_questions("no question");
        assert!(refusing.begin(&[]).err().is_some_and(|error| error.to_string().contains("no question")));
    }
}
