//! A sampling tree as Python holds it, and its running extends. Nodes are indices; the Python half wraps them. A tree
//! is locked only for moments, never while an extend waits for tokens: other threads, and the loop that reads its
//! events, can fork, score and prune meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use offshoot::{After, Error, NodeId, NodeState, Probe, Prompt, SamplingTree, TokenId, TreeEvent};
use offshoot_core::ids::AdapterVersion;
use offshoot_engine::{EngineHandle, LogprobsMode, RootOptions, TokenRecord};
use offshoot_eval::view;
use offshoot_form::SampleForm;
use offshoot_search::tree;
use pyo3::exceptions::{PyBaseException, PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict};

use crate::engine::{Engine, check_ready};
use crate::errors::{OrRaise, exception};
use crate::events;
use crate::forms::NativeForm;
use crate::params::{Sampling, token_ids, word};
use crate::process::OfProcess;

/// Most events that one call returns.
const EVENTS_AT_ONCE: usize = 4096;

/// A sampling tree.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Tree {
    engine: OfProcess<EngineHandle>,
    tree: OfProcess<Mutex<SamplingTree>>,
    /// Whose log-probabilities its nodes show.
    logprobs_mode: LogprobsMode,
}

impl Tree {
    /// Fails where what samples or scores would wait for memory or weights for ever.
    fn check_ready(&self) -> PyResult<()> {
        check_ready(self.engine.get()?)
    }

    /// For threads without the interpreter's lock.
    fn lock(&self) -> PyResult<MutexGuard<'_, SamplingTree>> {
        Ok(self.tree.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For threads with the interpreter's lock, which is released where this one must be waited for, while another
    /// thread scores.
    fn lock_attached(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, SamplingTree>> {
        Ok(self.tree.get()?.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `read` with the tree, for threads with the interpreter's lock.
    pub fn read<T>(&self, py: Python<'_>, read: impl FnOnce(&SamplingTree) -> PyResult<T>) -> PyResult<T> {
        read(&*self.lock_attached(py)?)
    }

    /// A node of this tree.
    fn at(tree: &SamplingTree, node: usize) -> PyResult<NodeId> {
        let count = tree.nodes().count();
        match node < count {
            true => Ok(NodeId::new(node)),
            false => Err(PyIndexError::new_err(format!("node: expected a number below {count}, found {node}"))),
        }
    }

    fn all_at(tree: &SamplingTree, nodes: &[usize]) -> PyResult<Vec<NodeId>> {
        nodes.iter().map(|&node| Tree::at(tree, node)).collect()
    }

    /// A node that can be forked and extended.
    fn open_at(tree: &SamplingTree, node: usize) -> PyResult<NodeId> {
        let at = Tree::at(tree, node)?;
        let state = match tree.node(at).state() {
            NodeState::Open => return Ok(at),
            NodeState::Closed => "closed",
            NodeState::Pruned => "pruned",
        };
        let why = tree.failure(at).map_or_else(String::new, |error| format!(": {error}"));
        Err(PyRuntimeError::new_err(format!("node {node} is {state} and cannot grow{why}")))
    }

    fn all_open_at(tree: &SamplingTree, nodes: &[usize]) -> PyResult<Vec<NodeId>> {
        nodes.iter().map(|&node| Tree::open_at(tree, node)).collect()
    }
}

#[pymethods]
impl Tree {
    /// A tree whose root is a prompt. Random numbers follow from `seed`, `name` and the path of forks. `adapter`: the
    /// version of the one that the prompt is computed with.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        tokens: Vec<u32>,
        text: String,
        seed: u64,
        name: String,
        logprobs_mode: &str,
        adapter: Option<u64>,
    ) -> PyResult<Tree> {
        let logprobs_mode = word("logprobs_mode", &LogprobsMode::WORDS, logprobs_mode)?;
        let handle = engine.ready()?;
        let engine = OfProcess::new(handle.clone());
        let place = RootOptions { adapter: adapter.map(AdapterVersion), ..RootOptions::default() };
        let prompt = Prompt { text, tokens: token_ids(tokens) };
        let tree = py.detach(|| SamplingTree::placed(handle, prompt, place)).or_raise()?;
        Ok(Tree { engine, tree: OfProcess::new(Mutex::new(tree.seed(seed).named(name))), logprobs_mode })
    }

    /// `n` new children of a node, which go on with the adapter of this version, or with the node's; and in `form`, in
    /// the node's, or, with `any_text`, in none.
    #[pyo3(signature = (at, n, adapter=None, form=None, any_text=false))]
    fn fork(
        &self,
        py: Python<'_>,
        at: usize,
        n: usize,
        adapter: Option<u64>,
        form: Option<&NativeForm>,
        any_text: bool,
    ) -> PyResult<Vec<usize>> {
        let mut tree = self.lock_attached(py)?;
        let at = Tree::open_at(&tree, at)?;
        let children = match adapter {
            Some(version) => tree.fork_with(at, n, Some(AdapterVersion(version))),
            None => tree.fork(at, n),
        };
        let children = children.or_raise()?;
        if any_text || form.is_some() {
            let form = form.map(|form| SampleForm::shared(form.0.clone()));
            tree.set_form(&children, form);
        }
        Ok(children.into_iter().map(NodeId::ix).collect())
    }

    /// Lets nodes go on with the adapter of this version, unless what samples from them then would be refused.
    fn set_adapter(&self, py: Python<'_>, nodes: Vec<usize>, adapter: u64) -> PyResult<()> {
        self.check_ready()?;
        let mut tree = self.lock_attached(py)?;
        let nodes = Tree::all_open_at(&tree, &nodes)?;
        tree.set_adapter(&nodes, Some(AdapterVersion(adapter))).or_raise()
    }

    /// Splits a node without children behind its first `tokens` tokens and `text` bytes; the new child with the rest.
    fn split(&self, py: Python<'_>, at: usize, tokens: usize, text: usize) -> PyResult<usize> {
        let mut tree = self.lock_attached(py)?;
        let at = Tree::at(&tree, at)?;
        tree.split(at, tokens, text).or_raise().map(NodeId::ix)
    }

    /// Begins to sample from nodes.
    fn extend(slf: Py<Self>, py: Python<'_>, nodes: Vec<usize>, sampling: &Sampling) -> PyResult<Growth> {
        slf.get().check_ready()?;
        let growth = {
            let tree = slf.get().lock_attached(py)?;
            let nodes = Tree::all_open_at(&tree, &nodes)?;
            let params = |at| sampling.beginning(|| tree.content_start(at)).params;
            tree.growth_each(&nodes, params, &sampling.stop).or_raise()?
        };
        Ok(Growth::new(slf.clone_ref(py), growth))
    }

    /// Begins to append given tokens to nodes, scored if `logprobs`.
    fn extend_given(slf: Py<Self>, py: Python<'_>, given: Vec<(usize, Vec<u32>)>, logprobs: bool) -> PyResult<Growth> {
        slf.get().check_ready()?;
        let growth = {
            let tree = slf.get().lock_attached(py)?;
            let given = given.into_iter().map(|(node, tokens)| Ok((Tree::open_at(&tree, node)?, token_ids(tokens))));
            tree.growth_given(&given.collect::<PyResult<Vec<_>>>()?, logprobs).or_raise()?
        };
        Ok(Growth::new(slf.clone_ref(py), growth))
    }

    /// The log-probabilities of continuations after nodes, all in one batch; the tree does not change.
    fn score(&self, py: Python<'_>, probes: Vec<(usize, Vec<u32>)>) -> PyResult<Vec<f64>> {
        self.check_ready()?;
        py.detach(|| {
            let tree = self.lock()?;
            let probes: Vec<(NodeId, Vec<TokenId>)> = probes
                .into_iter()
                .map(|(node, tokens)| Ok((Tree::open_at(&tree, node)?, token_ids(tokens))))
                .collect::<PyResult<_>>()?;
            let probes: Vec<Probe<'_>> =
                probes.iter().map(|(node, tokens)| Probe { after: After::Node(*node), continuation: tokens }).collect();
            let scored = tree.probe(&probes).or_raise()?;
            Ok(scored.into_iter().map(|score| score.sum).collect())
        })
    }

    /// Rejects nodes and their subtrees: their memory is free at once, their record stays.
    fn prune(&self, py: Python<'_>, nodes: Vec<usize>) -> PyResult<()> {
        let mut tree = self.lock_attached(py)?;
        for node in Tree::all_at(&tree, &nodes)? {
            tree.prune(node);
        }
        Ok(())
    }

    /// Releases nodes; they stay part of the result.
    fn close(&self, py: Python<'_>, nodes: Vec<usize>) -> PyResult<()> {
        let mut tree = self.lock_attached(py)?;
        for node in Tree::all_at(&tree, &nodes)? {
            tree.close(node);
        }
        Ok(())
    }

    fn set_score(&self, py: Python<'_>, at: usize, score: f64) -> PyResult<()> {
        let mut tree = self.lock_attached(py)?;
        let at = Tree::at(&tree, at)?;
        tree.set_score(at, score);
        Ok(())
    }

    /// Number of nodes.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock_attached(py)?.nodes().count())
    }

    fn parent(&self, py: Python<'_>, at: usize) -> PyResult<Option<usize>> {
        let tree = self.lock_attached(py)?;
        Ok(tree.parent(Tree::at(&tree, at)?).map(NodeId::ix))
    }

    fn children(&self, py: Python<'_>, at: usize) -> PyResult<Vec<usize>> {
        let tree = self.lock_attached(py)?;
        Ok(tree.children(Tree::at(&tree, at)?).into_iter().map(NodeId::ix).collect())
    }

    /// The text from the root's end to the node's.
    fn path_text(&self, py: Python<'_>, at: usize) -> PyResult<String> {
        let tree = self.lock_attached(py)?;
        Ok(tree.path_text(Tree::at(&tree, at)?))
    }

    fn text(&self, py: Python<'_>, at: usize) -> PyResult<String> {
        let tree = self.lock_attached(py)?;
        Ok(tree.node(Tree::at(&tree, at)?).text.clone())
    }

    fn token_ids(&self, py: Python<'_>, at: usize) -> PyResult<Vec<u32>> {
        let tree = self.lock_attached(py)?;
        Ok(tree.node(Tree::at(&tree, at)?).tokens.iter().map(|token| token.0).collect())
    }

    /// The log-probabilities of the node's tokens as the bytes of 32-bit floats, NaN where it is not recorded, as of
    /// given tokens that were not scored; empty if it is of none.
    fn logprobs<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyBytes>> {
        let tree = self.lock_attached(py)?;
        let node = tree.node(Tree::at(&tree, at)?);
        let logprobs: Vec<Option<f32>> = node.logprobs(self.logprobs_mode).collect();
        let shown = |logprob: &Option<f32>| logprob.unwrap_or(f32::NAN).to_ne_bytes();
        let is_known = logprobs.iter().any(Option::is_some);
        let bytes: Vec<u8> = if is_known { logprobs.iter().flat_map(shown).collect() } else { Vec::new() };
        Ok(PyBytes::new(py, &bytes))
    }

    /// Whether the form of its text allowed no other token in the place of each of the node's tokens; false of given
    /// ones.
    fn forced(&self, py: Python<'_>, at: usize) -> PyResult<Vec<bool>> {
        let tree = self.lock_attached(py)?;
        let node = tree.node(Tree::at(&tree, at)?);
        Ok(node.records().map(|record| record.is_some_and(|record| record.forced)).collect())
    }

    /// The entropies of the model's distribution in the tokens' places, likewise.
    fn entropies<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyBytes>> {
        let tree = self.lock_attached(py)?;
        let node = tree.node(Tree::at(&tree, at)?);
        let entropy = |record: Option<TokenRecord<'_>>| record.and_then(|record| record.entropy);
        let is_known = node.records().any(|record| entropy(record).is_some());
        let bytes = |record| entropy(record).unwrap_or(f32::NAN).to_ne_bytes();
        let bytes: Vec<u8> = if is_known { node.records().flat_map(bytes).collect() } else { Vec::new() };
        Ok(PyBytes::new(py, &bytes))
    }

    /// Log-probability, score, finish reason, stop reason, state and error of a node.
    fn facts<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyDict>> {
        let tree = self.lock_attached(py)?;
        let at = Tree::at(&tree, at)?;
        let node = tree.node(at);
        let dict = PyDict::new(py);
        let stop_reason = node.finish.as_ref().map(|finish| events::stop_reason(py, finish)).transpose()?;
        dict.set_item("finish_reason", node.finish.as_ref().map(events::finish_reason))?;
        dict.set_item("stop_reason", stop_reason.flatten())?;
        dict.set_item("logprob", node.logprob)?;
        dict.set_item("score", node.score)?;
        dict.set_item(
            "state",
            match node.state() {
                NodeState::Open => "open",
                NodeState::Closed => "closed",
                NodeState::Pruned => "pruned",
            },
        )?;
        dict.set_item("error", tree.failure(at).map(Error::to_string))?;
        Ok(dict)
    }

    /// The tree as a page for a browser: one file without external resources.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        let trace = self.lock_attached(py)?.trace();
        view::html_of(trace).or_raise()
    }
}

/// A node has ended.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct NodeFinished {
    node: usize,
}

/// A node has failed.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct NodeFailed {
    node: usize,
    error: Py<PyBaseException>,
}

/// A running extend of a tree's nodes.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Growth {
    tree: Py<Tree>,
    growth: OfProcess<Mutex<tree::Growth>>,
}

impl Growth {
    fn new(tree: Py<Tree>, growth: tree::Growth) -> Growth {
        Growth { tree, growth: OfProcess::new(Mutex::new(growth)) }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, tree::Growth>> {
        Ok(self.growth.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Growth {
    /// How nodes ended within at most `wait` seconds; None once all have ended.
    fn next_events<'py>(&self, py: Python<'py>, wait: f64) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::ZERO);
        let tree = self.tree.get();
        let taken = py.detach(|| -> PyResult<Option<Vec<TreeEvent>>> {
            let mut growth = self.lock()?;
            let mut event = match growth.poll(wait) {
                Poll::Ready(None) => return Ok(None),
                Poll::Ready(Some(event)) => Some(event),
                Poll::Pending => return Ok(Some(Vec::new())),
            };
            let mut taken = Vec::new();
            let mut tree = tree.lock()?;
            while let Some(next) = event {
                taken.push(growth.apply(&mut tree, next).or_raise()?);
                let more = taken.len() < EVENTS_AT_ONCE;
                event = match more.then(|| growth.poll(Duration::ZERO)) {
                    Some(Poll::Ready(next)) => next,
                    Some(Poll::Pending) | None => None,
                };
            }
            Ok(Some(taken))
        })?;
        taken.map(|taken| taken.into_iter().filter_map(|event| self.event(py, event).transpose()).collect()).transpose()
    }

    /// Cancels nodes: they finish as cancelled with their tokens so far.
    fn cancel(&self, py: Python<'_>, nodes: Vec<usize>) -> PyResult<()> {
        let tree = self.tree.get();
        py.detach(|| {
            let growth = self.lock()?;
            let tree = tree.lock()?;
            growth.cancel(&tree, &Tree::all_at(&tree, &nodes)?);
            Ok(())
        })
    }

    fn cancel_all(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.lock().map(|growth| growth.cancel_all()))
    }
}

impl Growth {
    /// An event as Python's object; None for tokens, of which trees hear nothing.
    fn event<'py>(&self, py: Python<'py>, event: TreeEvent) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match event {
            TreeEvent::Tokens { .. } => None,
            TreeEvent::Finished { id, .. } => Some(Bound::new(py, NodeFinished { node: id.ix() })?.into_any()),
            TreeEvent::Failed { id: node, .. } => {
                let said = self.tree.get().lock_attached(py)?.failure(node).map_or_else(String::new, Error::to_string);
                let error = exception(Error::value(format!("node {node}"), "room to grow", said)).into_value(py);
                Some(Bound::new(py, NodeFailed { node: node.ix(), error })?.into_any())
            }
        })
    }
}
