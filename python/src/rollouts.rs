//! Rollouts as a packed trie, for Python: built of samples or of trees, and handed over as columns, as Arrow tables, as
//! a file and as a trainer's row. Columns are the bytes of numbers in this machine's order; the Python half makes
//! arrays of them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offshoot::{FinishReason, NodeId, TokenId};
use offshoot_core::ids::WeightVersion;
use offshoot_engine::LogprobsMode;
use offshoot_eval::records::table::{Column, Data, Fields, Kind, Table};
use offshoot_search::rollout::{self, DrawnToken, Leaf, TreeLeaf, TriePlace};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict};

use crate::errors::OrRaise;
use crate::events;
use crate::params::token_ids;
use crate::tables;
use crate::tree::Tree;

/// Why a sample ended, and the stop string or token that ended it.
type LeafEnd = (&'static str, Option<Py<PyAny>>);

/// Samples that share prefixes, as arrays over their distinct tokens.
#[pyclass(frozen, name = "RolloutTrie", module = "offshoot._offshoot")]
pub struct NativeTrie(Arc<rollout::RolloutTrie>);

impl NativeTrie {
    pub fn new(trie: rollout::RolloutTrie) -> NativeTrie {
        NativeTrie(Arc::new(trie))
    }
}

fn bytes<'py, T: Copy, const SIZE: usize>(
    py: Python<'py>,
    numbers: &[T],
    of: impl Fn(T) -> [u8; SIZE],
) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|&number| of(number)).collect();
    PyBytes::new(py, &bytes)
}

#[pymethods]
impl NativeTrie {
    /// The trie in a safetensors file.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<NativeTrie> {
        py.detach(|| rollout::RolloutTrie::read(&path)).or_raise().map(NativeTrie::new)
    }

    /// Writes the trie to a safetensors file.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.write(&path)).or_raise()
    }

    /// Number of distinct tokens.
    fn __len__(&self) -> usize {
        self.0.tokens().len()
    }

    /// Tokens of all samples, as if nothing were shared.
    fn unpacked_tokens(&self) -> usize {
        self.0.unpacked_tokens()
    }

    /// Columns by name: of tokens, then of leaves.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (tokens, leaves) = (self.0.token_columns(), self.0.leaf_columns());
        let dict = PyDict::new(py);
        for (name, column) in [
            ("token_ids", &tokens.token_ids),
            ("parents", &tokens.parents),
            ("ends", &tokens.ends),
            ("positions", &tokens.positions),
            ("depths", &tokens.depths),
            ("weight_versions", &tokens.weight_versions),
            ("leaf_tokens", &leaves.tokens),
            ("leaf_groups", &leaves.groups),
            ("leaf_samples", &leaves.samples),
        ] {
            dict.set_item(name, bytes(py, column, i64::to_ne_bytes))?;
        }
        dict.set_item("logprobs", bytes(py, &tokens.logprobs, f32::to_ne_bytes))?;
        dict.set_item("sampled", bytes(py, &tokens.sampled, |of| [u8::from(of)]))?;
        dict.set_item("rewards", bytes(py, &leaves.rewards, f64::to_ne_bytes))?;
        dict.set_item("leaf_continued", bytes(py, &leaves.continued, |of| [u8::from(of)]))?;
        Ok(dict)
    }

    /// For each leaf, why it ended and the stop string or token that ended it.
    fn finishes(&self, py: Python<'_>) -> PyResult<Vec<LeafEnd>> {
        let of = |leaf: &Leaf| Ok((events::finish_reason(&leaf.finish), events::stop_reason(py, &leaf.finish)?));
        self.0.leaves().iter().map(of).collect()
    }

    /// Indices of the tokens of a leaf's sequence.
    fn path<'py>(&self, py: Python<'py>, leaf: usize) -> PyResult<Bound<'py, PyBytes>> {
        let count = self.0.leaves().len();
        if leaf >= count {
            return Err(PyIndexError::new_err(format!("leaf: expected a number below {count}, found {leaf}")));
        }
        Ok(bytes(py, &self.0.path(leaf), |at| i64::from(at).to_ne_bytes()))
    }

    /// Columns of the trie as a row of TRL's trainer.
    fn row<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let row = py.detach(|| self.0.tree_row());
        let dict = PyDict::new(py);
        for (name, column) in [
            ("input_ids", &row.input_ids),
            ("position_ids", &row.position_ids),
            ("shift_labels", &row.shift_labels),
            ("kv_index", &row.kv_index),
            ("segment_borders", &row.segment_borders),
            ("path_borders", &row.path_borders),
            ("token_index", &row.token_index),
            ("leaves", &row.leaves),
        ] {
            dict.set_item(name, bytes(py, column, i64::to_ne_bytes))?;
        }
        dict.set_item("logprobs", bytes(py, &row.logprobs, f32::to_ne_bytes))?;
        Ok(dict)
    }

    /// The tokens as a table of Arrow.
    fn tokens(&self) -> TrieTable {
        TrieTable { trie: self.0.clone(), of_leaves: false }
    }

    /// The leaves as a table of Arrow.
    fn leaves(&self) -> TrieTable {
        TrieTable { trie: self.0.clone(), of_leaves: true }
    }
}

/// The tokens or the leaves of a trie as a table of Arrow.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct TrieTable {
    trie: Arc<rollout::RolloutTrie>,
    of_leaves: bool,
}

impl TrieTable {
    fn table(&self) -> offshoot::Result<(Fields, Table)> {
        let mut columns = Vec::new();
        let numbers = |values: Vec<i64>| Column::of(Data::I64(values));
        // What is absent is null here.
        let known =
            |values: Vec<i64>| Column::of_optional(values.into_iter().map(|value| (value >= 0).then_some(value)));
        if self.of_leaves {
            let of = self.trie.leaf_columns();
            let words: Vec<&str> = self.trie.leaves().iter().map(|leaf| events::finish_reason(&leaf.finish)).collect();
            columns.push(("token", Kind::I64, numbers(of.tokens)));
            columns.push(("group", Kind::I64, numbers(of.groups)));
            columns.push(("sample", Kind::I64, numbers(of.samples)));
            columns.push(("reward", Kind::F64, Column::of(Data::F64(of.rewards))));
            columns.push(("finish_reason", Kind::Text, Column::of_texts(words.into_iter().map(Some))?));
            columns.push(("continued", Kind::Bool, Column::of_bools(of.continued)));
        } else {
            let of = self.trie.token_columns();
            columns.push(("token_id", Kind::I64, numbers(of.token_ids)));
            columns.push(("parent", Kind::I64, known(of.parents)));
            columns.push(("end", Kind::I64, numbers(of.ends)));
            columns.push(("position", Kind::I64, numbers(of.positions)));
            columns.push(("depth", Kind::I64, numbers(of.depths)));
            columns.push(("logprob", Kind::F32, Column::of(Data::F32(of.logprobs))));
            columns.push(("weight_version", Kind::I64, known(of.weight_versions)));
            columns.push(("sampled", Kind::Bool, Column::of_bools(of.sampled)));
        }
        let rows = if self.of_leaves { self.trie.leaves().len() } else { self.trie.tokens().len() };
        let (fields, columns) = columns.into_iter().map(|(name, kind, column)| ((name, kind), (name, column))).unzip();
        Ok((fields, Table { rows, columns }))
    }
}

#[pymethods]
impl TrieTable {
    /// Arrow's stream, as `pyarrow.table` and others ask for it.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets the producer keep its own columns.
        drop(requested_schema);
        let (fields, table) = py.detach(|| self.table()).or_raise()?;
        tables::stream(py, vec![Arc::new(table)], fields)
    }
}

/// Collects samples and trees of a trie. Places are numbers that it gave out.
#[pyclass(frozen, module = "offshoot._offshoot")]
#[derive(Default)]
pub struct TrieBuilder(Mutex<Builder>);

#[derive(Default)]
struct Builder {
    /// `None`: the trie was built.
    inner: Option<rollout::TrieBuilder>,
    places: Vec<TriePlace>,
}

impl TrieBuilder {
    fn lock(&self) -> MutexGuard<'_, Builder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Builder {
    fn inner(&mut self) -> PyResult<&mut rollout::TrieBuilder> {
        self.inner.as_mut().ok_or_else(|| PyRuntimeError::new_err("the trie was built already"))
    }

    fn at(&self, place: usize) -> PyResult<TriePlace> {
        let missing = || PyIndexError::new_err(format!("place: expected a number that was given out, found {place}"));
        self.places.get(place).copied().ok_or_else(missing)
    }

    fn take(&mut self, place: TriePlace) -> usize {
        self.places.push(place);
        self.places.len() - 1
    }
}

#[pymethods]
impl TrieBuilder {
    #[new]
    fn new() -> TrieBuilder {
        TrieBuilder(Mutex::new(Builder { inner: Some(rollout::TrieBuilder::new()), places: Vec::new() }))
    }

    /// Adds a prompt; its last token's place.
    fn prompt(&self, tokens: Vec<u32>) -> PyResult<usize> {
        let mut builder = self.lock();
        let place = builder.inner()?.prompt(&token_ids(tokens)).or_raise()?;
        Ok(builder.take(place))
    }

    /// Adds tokens behind a place: sampled ones with their log-probabilities and the versions of the weights, or given
    /// ones without either. The last token's place.
    #[pyo3(signature = (at, tokens, logprobs=None, versions=None))]
    fn segment(
        &self,
        at: usize,
        tokens: Vec<u32>,
        logprobs: Option<Vec<f32>>,
        versions: Option<Vec<u64>>,
    ) -> PyResult<usize> {
        let mut builder = self.lock();
        let at = builder.at(at)?;
        for (name, length) in
            [("logprobs", logprobs.as_ref().map(Vec::len)), ("versions", versions.as_ref().map(Vec::len))]
        {
            if length.is_some_and(|length| length != tokens.len()) {
                let (expected, found) = (tokens.len(), length.unwrap_or(0));
                let why = format!("{name}: expected {expected}, one for each token, found {found}");
                return Err(PyValueError::new_err(why));
            }
        }
        let drawn = |at: usize| {
            let weights = versions.as_ref().map_or(WeightVersion::FIRST, |versions| WeightVersion(versions[at]));
            logprobs.as_ref().map(|logprobs| DrawnToken { logprob: logprobs[at], weights })
        };
        let tokens: Vec<_> = token_ids(tokens).into_iter().enumerate().map(|(at, id)| (id, drawn(at))).collect();
        let place = builder.inner()?.segment(at, tokens);
        Ok(builder.take(place))
    }

    /// Adds a sample that ends at a place.
    #[pyo3(signature = (at, group, sample, reward, finish_reason, stop_reason=None, continued=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn leaf(
        &self,
        at: usize,
        group: u64,
        sample: u64,
        reward: Option<f64>,
        finish_reason: &str,
        stop_reason: Option<StopReason>,
        continued: bool,
    ) -> PyResult<()> {
        let finish = match (finish_reason, stop_reason) {
            ("stop", None) => FinishReason::EndOfText,
            ("stop", Some(StopReason::Text(text))) => FinishReason::StopString(text),
            ("stop", Some(StopReason::Token(token))) => FinishReason::StopToken(TokenId(token)),
            // The second ones as servers say it.
            ("dead_end", _) => FinishReason::DeadEnd,
            ("length", Some(StopReason::Text(why))) if why == "dead_end" => FinishReason::DeadEnd,
            ("form_limit", _) => FinishReason::FormLimit,
            ("length", Some(StopReason::Text(why))) if why == "form_limit" => FinishReason::FormLimit,
            ("length", _) => FinishReason::Length,
            ("abort", _) => FinishReason::Cancelled,
            (other, _) => {
                let expected = "stop, length, abort, dead_end or form_limit";
                let why = format!("finish_reason: expected {expected}, found {other}");
                return Err(PyValueError::new_err(why));
            }
        };
        let mut builder = self.lock();
        let at = builder.at(at)?;
        builder.inner()?.leaf(at, |token| Leaf { token, group, sample, reward, finish, continued });
        Ok(())
    }

    /// Adds the paths to leaves of a sampling tree: (node, sample, reward). `processed`: log-probabilities are those of
    /// the distributions that tokens were drawn from.
    fn tree(
        &self,
        py: Python<'_>,
        tree: &Tree,
        group: u64,
        leaves: Vec<(usize, u64, Option<f64>)>,
        processed: bool,
    ) -> PyResult<()> {
        let mode = if processed { LogprobsMode::ProcessedLogprobs } else { LogprobsMode::RawLogprobs };
        let leaf = |(node, sample, reward)| TreeLeaf { node: NodeId::new(node), sample, reward };
        let leaves: Vec<TreeLeaf> = leaves.into_iter().map(leaf).collect();
        tree.read(py, |tree| {
            let count = tree.nodes().count();
            if let Some(leaf) = leaves.iter().find(|leaf| leaf.node.ix() >= count) {
                return Err(PyIndexError::new_err(format!(
                    "node: expected a number below {count}, found {}",
                    leaf.node
                )));
            }
            self.lock().inner()?.tree(tree, group, &leaves, mode).or_raise()
        })
    }

    /// The trie of everything that was added.
    fn build(&self) -> PyResult<NativeTrie> {
        let inner = self.lock().inner.take();
        let inner = inner.ok_or_else(|| PyRuntimeError::new_err("the trie was built already"))?;
        Ok(NativeTrie::new(inner.build()))
    }
}

/// What ended a sample, as Python says it.
#[derive(FromPyObject)]
enum StopReason {
    Text(String),
    Token(u32),
}
