//! The scores of one problem's texts by a scorer, such as a reward model: texts are handed in as they become whole, and
//! the scores are taken when the search needs them. Equal texts are scored once, a longer text goes on from the one
//! above it in the tree, and the scorer's hold on a text ends with the search's. What computes the scores is left to
//! `offshoot_score`.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::outcome::SampleScore;
use crate::scorer::NodeText;
use crate::tree::{NodeState, SamplingTree};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_score::{Aggregate, Scale, ScoredTree, TextScorer, TextScores};
use offshoot_text::Message;

/// What becomes of a search whose scorer cannot score a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnScorerError {
    /// It goes on: the text comes behind all that have a score, and weighs nothing in a vote.
    #[default]
    Unscored,
    /// It ends with the scorer's error.
    Fail,
}

/// What a scorer did for a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScorerWork {
    /// What its scores are.
    pub scale: Scale,
    /// Texts that were scored; equal ones are one.
    pub texts: usize,
    /// Texts that could not be scored.
    pub unscored: usize,
    /// Why the first of these could not be, or lacks comparisons, in the order in which the search needed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// The scorer's tokens of the scored texts, each text counted whole.
    pub tokens: usize,
}

/// The scores of the texts of one problem.
pub struct ModelScores {
    /// The scorer's name.
    name: String,
    /// `Err`: why the scorer cannot take the problem.
    tree: Result<Box<dyn ScoredTree>, String>,
    on_error: OnScorerError,
    texts: Vec<ScoredText>,
    /// The indices of the texts that the scorer holds.
    held: Vec<usize>,
    by_steps: HashMap<Vec<String>, usize>,
    by_node: HashMap<NodeId, usize>,
    work: ScorerWork,
}

/// A text, however many nodes end with it.
struct ScoredText {
    /// The node by which the scorer knows it.
    carrier: NodeId,
    /// All nodes that end with it.
    nodes: Vec<NodeId>,
    state: ScoreState,
    /// Whether the search has asked for its score, so that it is counted.
    is_counted: bool,
}

enum ScoreState {
    Waiting,
    Scored(TextScores),
    /// Why it has no score.
    Unscored(String),
    /// Given up before its score came: should the text come again, it is scored then.
    GivenUp,
}

impl ModelScores {
    /// The scores of answers to `question`, of which there are none yet.
    ///
    /// # Errors
    ///
    /// The scorer cannot take the question, and that is to end the search.
    pub fn new(scorer: &dyn TextScorer, question: &[Message], on_error: OnScorerError) -> Result<ModelScores> {
        let identity = scorer.identity();
        ModelScores::over(identity.name.clone(), scorer.scale(), scorer.begin(question), on_error)
    }

    /// The scores that a tree gives, of whose answers none is started yet. `name`: what errors call its scorer; `tree`:
    /// its error where the scorer cannot take the problem.
    ///
    /// # Errors
    ///
    /// That error, where it is to end the search.
    pub fn over(
        name: impl Into<String>,
        scale: Scale,
        tree: Result<Box<dyn ScoredTree>>,
        on_error: OnScorerError,
    ) -> Result<ModelScores> {
        let name = name.into();
        let tree = match (tree, on_error) {
            (Ok(tree), _) => Ok(tree),
            (Err(error), OnScorerError::Unscored) => Err(why_unscored(&name, error)?),
            (Err(error), OnScorerError::Fail) => return Err(named(&name, error)),
        };
        Ok(ModelScores {
            name,
            tree,
            on_error,
            texts: Vec::new(),
            held: Vec::new(),
            by_steps: HashMap::new(),
            by_node: HashMap::new(),
            work: ScorerWork { scale, texts: 0, unscored: 0, first_error: None, tokens: 0 },
        })
    }

    /// What the scores are.
    pub fn scale(&self) -> Scale {
        self.work.scale
    }

    /// What was done so far.
    pub fn work(&self) -> &ScorerWork {
        &self.work
    }

    /// Whether a text's score depends on the texts that are scored with it.
    pub(crate) fn compares(&self) -> bool {
        self.tree.as_ref().is_ok_and(|tree| tree.compares())
    }

    /// How many texts are being scored.
    pub(crate) fn waiting(&self) -> usize {
        self.tree.as_ref().map_or(0, |tree| tree.waiting())
    }

    /// Hands in the text that ends at a node, and returns at once. A node is handed in once.
    ///
    /// # Errors
    ///
    /// Those of the scorer that end the search.
    pub(crate) fn begin(&mut self, tree: &SamplingTree, text: &NodeText<'_>) -> Result<()> {
        if self.by_node.contains_key(&text.node) {
            return Ok(());
        }
        let (node, steps) = (text.node, text.steps());
        let known = self.by_steps.get(&steps).copied();
        if let Some(at) = known.filter(|&at| !matches!(self.texts[at].state, ScoreState::GivenUp)) {
            self.by_node.insert(node, at);
            self.texts[at].nodes.push(node);
            return Ok(());
        }
        let above = std::iter::successors(tree.parent(node), |&above| tree.parent(above));
        let mut known = above.filter_map(|above| self.by_node.get(&above).copied());
        let parent = known.next().map(|at| self.texts[at].carrier);
        let started = match &mut self.tree {
            Ok(scored) => scored.start(node, parent, &steps),
            Err(why) => Err(unscorable(why)),
        };
        let (is_held, state) = match started {
            Ok(()) => (true, ScoreState::Waiting),
            Err(error) => (false, ScoreState::Unscored(why_unscored(&self.name, error)?)),
        };
        self.held.extend(is_held.then_some(self.texts.len()));
        self.by_node.insert(node, self.texts.len());
        self.by_steps.insert(steps, self.texts.len());
        self.texts.push(ScoredText { carrier: node, nodes: vec![node], state, is_counted: false });
        Ok(())
    }

    /// Takes the scores that have come, waiting at most `patience` for the first.
    ///
    /// # Errors
    ///
    /// Those of the scorer that end the search.
    pub(crate) fn receive(&mut self, patience: Duration) -> Result<()> {
        let Ok(tree) = &mut self.tree else { return Ok(()) };
        let mut patience = patience;
        while let Some((node, scores)) = tree.poll(std::mem::take(&mut patience)) {
            let Some(text) = self.by_node.get(&node).map(|&at| &mut self.texts[at]) else {
                return Err(Error::Internal(format!("a scorer names node {node}, which was not handed in")));
            };
            text.state = match scores {
                Ok(scores) => ScoreState::Scored(scores),
                Err(error) => ScoreState::Unscored(why_unscored(&self.name, error)?),
            };
        }
        Ok(())
    }

    /// The score of each text, waiting for those that have not come: `check_interrupted` is called between waits, and
    /// its error ends them. Where texts are compared, it is with those that were handed in before and with these.
    /// `aggregate`: how the scores of a text's steps become its own.
    ///
    /// # Errors
    ///
    /// A text cannot be scored, and that is to end the search.
    pub(crate) fn scores(
        &mut self,
        tree: &SamplingTree,
        of: &[NodeText<'_>],
        aggregate: Aggregate,
        patience: Duration,
        check_interrupted: impl Fn() -> Result<()>,
    ) -> Result<Vec<SampleScore>> {
        of.iter().try_for_each(|text| self.begin(tree, text))?;
        if let (Ok(scored), false) = (&mut self.tree, of.is_empty()) {
            scored.complete();
        }
        let mut found = Vec::with_capacity(of.len());
        for text in of {
            let at = self.by_node[&text.node];
            while matches!(self.texts[at].state, ScoreState::Waiting) {
                check_interrupted()?;
                if self.waiting() == 0 {
                    return Err(Error::Internal(format!("a scorer has forgotten node {}", text.node)));
                }
                self.receive(patience)?;
            }
            found.push(self.score(at, text.ends.len(), aggregate)?);
        }
        self.release(tree);
        Ok(found)
    }

    /// The score of the text with this index, which has come.
    fn score(&mut self, at: usize, steps: usize, aggregate: Aggregate) -> Result<SampleScore> {
        let text = &mut self.texts[at];
        let is_first = !std::mem::replace(&mut text.is_counted, true);
        let why = match &text.state {
            ScoreState::Scored(found) => match SampleScore::of(found, steps, aggregate) {
                SampleScore::Unscored { score_error } => score_error,
                scored => {
                    if let (Some(why), OnScorerError::Fail) = (scored.error(), self.on_error) {
                        return Err(unscorable(why));
                    }
                    if is_first {
                        self.work.first_error = self.work.first_error.take().or(scored.error().map(str::to_owned));
                        (self.work.texts, self.work.tokens) = (self.work.texts + 1, self.work.tokens + found.tokens);
                    }
                    return Ok(scored);
                }
            },
            ScoreState::Unscored(why) => why.clone(),
            ScoreState::Waiting | ScoreState::GivenUp => {
                return Err(Error::Internal("a score is read that has not come".to_owned()));
            }
        };
        if self.on_error == OnScorerError::Fail {
            return Err(unscorable(&why));
        }
        if is_first {
            self.work.unscored += 1;
            self.work.first_error.get_or_insert_with(|| why.clone());
        }
        Ok(SampleScore::Unscored { score_error: why })
    }

    /// Gives up the texts whose nodes cannot grow any more: those that have their scores, and those that were rejected
    /// before they had one.
    pub(crate) fn release(&mut self, tree: &SamplingTree) {
        let Ok(scored) = &mut self.tree else { return };
        let texts = &mut self.texts;
        self.held.retain(|&at| {
            let text = &mut texts[at];
            let is_waiting = matches!(text.state, ScoreState::Waiting);
            let is_over = |&node: &NodeId| match tree.node(node).state() {
                NodeState::Open => false,
                NodeState::Closed => !is_waiting,
                NodeState::Pruned => true,
            };
            let is_held = !text.nodes.iter().all(is_over);
            if !is_held {
                scored.prune(text.carrier);
                if is_waiting {
                    text.state = ScoreState::GivenUp;
                }
            }
            is_held
        });
    }
}

/// The error of a text that cannot be scored.
fn unscorable(why: &str) -> Error {
    Error::value("text for the scorer", "one that it can score", format!("one of which it says: {why}"))
}

/// Why a text has no score, by the error about it of the scorer `name`.
///
/// # Errors
///
/// The error is not of this text alone, and ends all work with the scorer.
pub fn why_unscored(name: &str, error: Error) -> Result<String> {
    match error.ends_all() {
        true => Err(named(name, error)),
        false => Ok(error.to_string()),
    }
}

/// An error that ends all, which says that it is the scorer's: another engine runs beside its own.
fn named(name: &str, error: Error) -> Error {
    match error {
        // A scorer that is a model says it itself.
        Error::EngineStopped { why } if why.contains(name) => Error::EngineStopped { why },
        Error::EngineStopped { why } | Error::Internal(why) => {
            Error::EngineStopped { why: format!("that of the scorer {name}: {why}") }
        }
        other => other,
    }
}
