//! The samples of one item as a tree of texts whose scores are verdicts. Texts that are judged one by one are asked
//! about as they start; texts that are compared are, once the tree is complete, with all that started since it was
//! complete before.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::Map;

use crate::compare::compare;
use crate::gather::{Asker, same};
use crate::item::{ItemVerdicts, TextVerdict};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_score::{ScoredTree, StepScore, StepScores, TextScores};

/// What became of the text with this number.
type TextResult = (usize, Result<TextVerdict>);

/// The samples of one item.
pub(crate) struct VerdictTree {
    item: ItemVerdicts,
    /// Dropped with the tree, so that comparisons which nobody waits for end.
    asker: Arc<()>,
    texts: Vec<StartedText>,
    /// The texts that a node with an equal text is one of.
    by_text: HashMap<Arc<str>, usize>,
    nodes: HashMap<NodeId, StartedNode>,
    /// Texts that are to be compared, and are not asked about yet.
    open: Vec<usize>,
    /// Number of texts that are asked about and have no verdict.
    asked: usize,
    /// Nodes whose texts have a verdict that was not reported.
    ready: VecDeque<NodeId>,
    /// Number of nodes that nothing was reported of.
    waiting: usize,
    results: Sender<TextResult>,
    received: Receiver<TextResult>,
}

/// A text, however many nodes end with it.
struct StartedText {
    text: Arc<str>,
    /// The nodes that end with it and are not pruned.
    nodes: Vec<NodeId>,
    verdict: Option<Result<TextVerdict>>,
}

struct StartedNode {
    /// The number of its text.
    text: usize,
    /// The number of its last step.
    step: usize,
    is_waiting: bool,
}

impl VerdictTree {
    pub fn new(item: ItemVerdicts) -> VerdictTree {
        let (results, received) = unbounded();
        VerdictTree {
            item,
            asker: Arc::new(()),
            texts: Vec::new(),
            by_text: HashMap::new(),
            nodes: HashMap::new(),
            open: Vec::new(),
            asked: 0,
            ready: VecDeque::new(),
            waiting: 0,
            results,
            received,
        }
    }

    /// Adds a text that is not equal to one that is there.
    fn add(&mut self, text: Arc<str>) -> usize {
        let at = self.texts.len();
        self.texts.push(StartedText { text: Arc::clone(&text), nodes: Vec::new(), verdict: None });
        self.by_text.insert(Arc::clone(&text), at);
        if self.compares() {
            self.open.push(at);
        } else {
            self.asked += 1;
            let results = self.results.clone();
            // The tree may be gone by then.
            self.item.of_one(&text, Map::new(), Box::new(move |verdict| _ = results.send((at, verdict))));
        }
        at
    }

    fn note(&mut self, (at, verdict): TextResult) {
        self.asked -= 1;
        let text = &mut self.texts[at];
        text.verdict = Some(verdict);
        self.ready.extend(&text.nodes);
    }

    /// The scores of a node that is ready.
    fn report(&mut self, node: NodeId) -> Result<TextScores> {
        let started = self.nodes.get_mut(&node).expect("pruned nodes are not ready");
        started.is_waiting = false;
        self.waiting -= 1;
        let verdict = self.texts[started.text].verdict.as_ref().expect("the node is ready");
        let TextVerdict { score, detail, tokens, lacking } = verdict.as_ref().map_err(same)?;
        let scores = StepScores { scores: vec![StepScore { step: started.step, score: *score }] };
        let (detail, lacking) = (Some(detail.clone()), lacking.clone());
        Ok(TextScores { scores, tokens: *tokens, computed: *tokens, detail, lacking })
    }
}

impl ScoredTree for VerdictTree {
    fn start(&mut self, node: NodeId, _parent: Option<NodeId>, steps: &[String]) -> Result<()> {
        if self.nodes.contains_key(&node) {
            return Err(Error::Internal(format!("the text at node {node} is started twice")));
        }
        let text: Arc<str> = steps.concat().into();
        let at = self.by_text.get(&text).copied().unwrap_or_else(|| self.add(text));
        let step = steps.len().saturating_sub(1);
        self.nodes.insert(node, StartedNode { text: at, step, is_waiting: true });
        self.waiting += 1;
        let text = &mut self.texts[at];
        text.nodes.push(node);
        self.ready.extend(text.verdict.is_some().then_some(node));
        Ok(())
    }

    fn complete(&mut self) {
        let mut set: Vec<usize> = std::mem::take(&mut self.open);
        set.retain(|&at| !self.texts[at].nodes.is_empty());
        if set.is_empty() {
            return;
        }
        // What is asked follows from the texts, not from the order in which they came.
        set.sort_unstable_by(|&a, &b| self.texts[a].text.cmp(&self.texts[b].text));
        self.by_text.clear();
        self.asked += set.len();
        let texts: Vec<Arc<str>> = set.iter().map(|&at| Arc::clone(&self.texts[at].text)).collect();
        let results = self.results.clone();
        let then = move |verdicts: Vec<Result<TextVerdict>>| {
            set.into_iter().zip(verdicts).for_each(|result| _ = results.send(result));
        };
        compare(&self.item, Asker::of(&self.asker), texts, Box::new(then));
    }

    fn compares(&self) -> bool {
        self.item.verdict().compares()
    }

    fn prune(&mut self, node: NodeId) {
        let Some(started) = self.nodes.remove(&node) else { return };
        self.waiting -= usize::from(started.is_waiting);
        self.texts[started.text].nodes.retain(|&other| other != node);
        self.ready.retain(|&other| other != node);
    }

    fn poll(&mut self, patience: Duration) -> Option<(NodeId, Result<TextScores>)> {
        // Longer than any job takes, where the clock cannot say when.
        const FOREVER: Duration = Duration::from_secs(1 << 32);
        let now = Instant::now();
        let deadline = now.checked_add(patience).unwrap_or(now + FOREVER);
        loop {
            if let Some(node) = self.ready.pop_front() {
                return Some((node, self.report(node)));
            }
            if self.waiting == 0 || self.asked == 0 {
                return None;
            }
            match self.received.recv_deadline(deadline) {
                Ok(result) => self.note(result),
                Err(_) => return None,
            }
        }
    }

    fn waiting(&self) -> usize {
        self.waiting
    }
}
