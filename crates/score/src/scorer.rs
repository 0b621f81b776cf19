//! What a search holds of a scorer: texts that grow as a tree are handed in, and their scores come back in any order.
//! What computes them is left to others: a reward model on an engine, or a function in tests.

use std::time::Duration;

use serde_json::Value;

use crate::aggregate::Aggregate;
use crate::rendered::StepScores;
use crate::scale::Scale;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_text::Message;

/// Scores the texts of many questions.
pub trait TextScorer: Send + Sync {
    /// The answers to a question, of which there are none yet.
    ///
    /// # Errors
    ///
    /// The question cannot be written in the scorer's form.
    fn begin(&self, question: &[Message]) -> Result<Box<dyn ScoredTree>>;

    /// What the scores are.
    fn scale(&self) -> Scale;

    /// How the scores of an answer's steps become the answer's, where whoever asks has no other wish.
    fn aggregate(&self) -> Aggregate;

    /// What tells this scorer from others in records: two scorers of one identity give equal texts equal scores.
    fn identity(&self) -> &ScorerIdentity;
}

/// The answers to one question as a tree, each by the node at which its text ends. Dropping it gives up all of them.
pub trait ScoredTree: Send {
    /// Begins to score the answer that ends at `node`, and returns at once. `steps`: the whole answer, cut where the
    /// search has cut it. `parent`: a node that was started before, whose answer this one goes on from; it may be
    /// pruned already, but what it has in common with this one may be computed again then.
    ///
    /// # Errors
    ///
    /// `node` is being scored, or has been, and was not pruned since. What is wrong with the text itself is told by
    /// [`poll`](Self::poll).
    fn start(&mut self, node: NodeId, parent: Option<NodeId>, steps: &[String]) -> Result<()>;

    /// No further answer is compared with those that were started. Where answers are compared with each other, they are
    /// scored from now on, and answers that are started later are compared among themselves. Elsewhere it does nothing.
    fn complete(&mut self) {}

    /// Whether the score of an answer depends on the others that are started with it, so that none is scored before
    /// [`complete`](Self::complete).
    fn compares(&self) -> bool {
        false
    }

    /// Gives up the answer that ends at `node`; it is not reported any more. Nodes that go on from it stay. What was
    /// started before this takes over from it first: calls are followed in their order.
    fn prune(&mut self, node: NodeId);

    /// The next answer that has its scores, waiting at most `patience` for one. `None`: none has come, or none is being
    /// scored. An error concerns this answer alone.
    fn poll(&mut self, patience: Duration) -> Option<(NodeId, Result<TextScores>)>;

    /// How many answers are being scored.
    fn waiting(&self) -> usize;
}

/// The scores of an answer, and what they have cost.
#[derive(Clone, Debug, PartialEq)]
pub struct TextScores {
    /// The scores; those of the parent's steps are among them.
    pub scores: StepScores,
    /// Number of tokens of the question and the answer in the scorer's form.
    pub tokens: usize,
    /// How many of them were computed for this answer: the others were there from answers before.
    pub computed: usize,
    /// What records say of the scores: the answers of a judge. `None`: the scores say all.
    pub detail: Option<Value>,
    /// Why the scores are made of a part of what they should be made of: the first comparison that failed. `None`: none
    /// did.
    pub lacking: Option<String>,
}

/// What tells a scorer from others in records.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScorerIdentity {
    /// The name of its model.
    pub name: String,
    /// The name of its form, or `custom` where a file or a task describes it.
    pub form: String,
    /// A digest of its configuration, the names, sizes and forms of its tensors' files, and its form.
    pub digest: String,
}
