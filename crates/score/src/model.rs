//! A reward model on an engine of its own as a scorer. This file holds what its clients have: the model, and for each
//! question a tree of answers. Both send what is asked for to the scorer's thread (`work`) and wait for nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};

use crate::aggregate::Aggregate;
use crate::resolved::ResolvedForm;
use crate::scale::Scale;
use crate::scorer::{ScoredTree, ScorerIdentity, TextScorer, TextScores};
use crate::work::{Answer, AnswerScores, ScorerThread, TreeId, Work};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_engine::EngineHandle;
use offshoot_text::{Message, Tokenizer};

/// A reward model: its engine, whose model is a scorer, and its form. Each answer is a branch of the engine that goes
/// on from that of the answer before it, so that a tree of answers costs its distinct tokens.
///
/// Texts are written in the model's form on threads of the scorer's own. They end when the model and all of its trees
/// are dropped.
pub struct ScorerModel {
    engine: EngineHandle,
    form: Arc<ResolvedForm>,
    identity: ScorerIdentity,
    /// Last: its thread ends once the engine's handles are dropped.
    thread: Arc<ScorerThread>,
}

impl ScorerModel {
    /// A scorer on `engine`, whose branches must be its own. `identity`: what records call it.
    ///
    /// # Errors
    ///
    /// The engine's model generates; its head has another width than the form; no thread starts.
    pub fn new(engine: EngineHandle, form: ResolvedForm, identity: ScorerIdentity) -> Result<ScorerModel> {
        let (expected, found) = (form.width(), engine.facts().values);
        if found != Some(expected) {
            let found = found.map_or_else(|| "a model that generates".to_owned(), |width| format!("{width} values"));
            return Err(Error::value("the scorer's engine", format!("{expected} values at a token"), found));
        }
        let form = Arc::new(form);
        let thread = Arc::new(ScorerThread::start(engine.clone(), Arc::clone(&form))?);
        Ok(ScorerModel { engine, form, identity, thread })
    }

    /// The engine that computes the values. Its counters say how many tokens were computed, and how many values found.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// How texts become tokens, and values scores.
    pub fn form(&self) -> &ResolvedForm {
        &self.form
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.form.tokenizer()
    }
}

impl TextScorer for ScorerModel {
    fn begin(&self, question: &[Message]) -> Result<Box<dyn ScoredTree>> {
        let begun = Arc::new(self.form.begin(question)?);
        let (results, received) = unbounded();
        let tree = self.thread.name_tree();
        self.thread.send(Work::Begin { tree, question: question.into(), begun, results })?;
        let thread = Arc::clone(&self.thread);
        let name = self.identity.name.clone();
        Ok(Box::new(ModelTree { name, tree, received, answers: HashMap::new(), waiting: 0, started: 0, thread }))
    }

    fn scale(&self) -> Scale {
        self.form.scale()
    }

    fn aggregate(&self) -> Aggregate {
        self.form.aggregate()
    }

    fn identity(&self) -> &ScorerIdentity {
        &self.identity
    }
}

/// The answers to one question, as its client has them.
struct ModelTree {
    /// The name of the model, for errors.
    name: String,
    tree: TreeId,
    received: Receiver<AnswerScores>,
    /// The answers that were started and not pruned.
    answers: HashMap<NodeId, StartedAnswer>,
    /// How many of them have no scores yet.
    waiting: usize,
    /// Number of answers that were started so far. A node may be started again once it is pruned; results of an earlier
    /// start are dropped.
    started: u64,
    thread: Arc<ScorerThread>,
}

/// The error of a scorer's engine that has ended: it says whose it was, as a generator's may run beside it.
fn of_scorer(name: &str, error: Error) -> Error {
    match error {
        Error::EngineStopped { why } => Error::EngineStopped { why: format!("that of the scorer {name}: {why}") },
        other => other,
    }
}

#[derive(Clone, Copy)]
struct StartedAnswer {
    start: u64,
    is_waiting: bool,
}

impl ModelTree {
    /// An answer's result, if the answer waits for it.
    fn note(&mut self, scored: AnswerScores) -> Option<(NodeId, Result<TextScores>)> {
        let AnswerScores { node, start, result } = scored;
        let answer = self.answers.get_mut(&node).filter(|answer| answer.is_waiting && answer.start == start)?;
        answer.is_waiting = false;
        self.waiting -= 1;
        Some((node, result.map_err(|error| of_scorer(&self.name, error))))
    }

    /// The failure of an answer that waits, once the scorer's thread has ended.
    fn failed(&mut self) -> Option<(NodeId, Result<TextScores>)> {
        let (&node, answer) = self.answers.iter_mut().find(|(_, answer)| answer.is_waiting)?;
        answer.is_waiting = false;
        self.waiting -= 1;
        Some((node, Err(self.thread.ended())))
    }
}

impl ScoredTree for ModelTree {
    fn start(&mut self, node: NodeId, parent: Option<NodeId>, steps: &[String]) -> Result<()> {
        if self.answers.contains_key(&node) {
            return Err(Error::Internal(format!("the answer at node {node} is started twice")));
        }
        let start = self.started;
        self.thread
            .send(Work::Start { tree: self.tree, answer: Answer { node, start, parent, steps: steps.into() } })?;
        self.started += 1;
        self.waiting += 1;
        self.answers.insert(node, StartedAnswer { start, is_waiting: true });
        Ok(())
    }

    fn prune(&mut self, node: NodeId) {
        if let Some(answer) = self.answers.remove(&node) {
            self.waiting -= usize::from(answer.is_waiting);
            // A thread that has ended holds no branch.
            let _ = self.thread.send(Work::Prune { tree: self.tree, node });
        }
    }

    fn poll(&mut self, patience: Duration) -> Option<(NodeId, Result<TextScores>)> {
        // Longer than any job takes, where the clock cannot say when.
        const FOREVER: Duration = Duration::from_secs(1 << 32);
        let now = Instant::now();
        let deadline = now.checked_add(patience).unwrap_or(now + FOREVER);
        while self.waiting > 0 {
            match self.received.recv_deadline(deadline) {
                Ok(scored) => {
                    if let Some(noted) = self.note(scored) {
                        return Some(noted);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return self.failed(),
            }
        }
        None
    }

    fn waiting(&self) -> usize {
        self.waiting
    }
}

impl Drop for ModelTree {
    fn drop(&mut self) {
        let _ = self.thread.send(Work::Close { tree: self.tree });
    }
}
