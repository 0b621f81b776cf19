//! The data of the views of a run: its items, each with its tree, with samples assigned to nodes, and the savings by
//! sharing. `folder` reads the data; `page` and `outline` display it.

use std::slice;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::ends::{SampleEnd, ends};
use super::totals::{RunTotals, SummaryTotals};
use crate::report::is_zero;
use offshoot_search::tree::{Trace, TraceNode};

#[derive(Clone, Debug)]
pub struct ShownRun {
    /// The name of its folder.
    pub name: String,
    pub items: Vec<ShownItem>,
    pub totals: RunTotals,
    /// The run's accuracy and the number of items whose answers tie, if the summary has them.
    pub accuracy: Option<(f64, usize)>,
}

impl ShownRun {
    /// `summary`: of exactly these items; `None`: there is none.
    pub(super) fn new(name: String, items: Vec<ShownItem>, summary: Option<&SummaryTotals>) -> Self {
        // The summary counts prompts and samples alone; trees also hold what a search tried and asked.
        let has_trees = items.iter().any(|item| item.trace.nodes.iter().any(|node| node.token_ids.is_some()));
        let of_summary = summary.filter(|_| !has_trees).and_then(SummaryTotals::totals);
        let totals = of_summary.unwrap_or_else(|| RunTotals::of_items(&items));
        let accuracy = summary.and_then(|summary| Some((summary.accuracy()?, summary.tied)));
        Self { name, items, totals, accuracy }
    }
}

#[derive(Clone, Debug)]
pub struct ShownItem {
    /// Its line of `items.jsonl`; only an id if the item is not finished.
    pub facts: Map<String, Value>,
    /// Notes on missing data, in sentences.
    pub notes: Vec<String>,
    pub trace: Trace,
    /// One for each node of the trace.
    beside: Vec<NodeFacts>,
    /// The node with the chosen text.
    pub answer: Option<usize>,
}

/// Facts about a node that are not in its trace.
#[derive(Clone, Debug, Default)]
struct NodeFacts {
    branches: usize,
    sample: Option<Map<String, Value>>,
}

/// A node to display: the fields of its trace, and `branches` (the number that share its keys and values), `chosen`
/// (whether it is on the path to the answer) and, if a sample ends here, `sample` (its line of `samples.jsonl` without
/// the fields that the node also has).
#[derive(Serialize)]
pub struct ShownNode<'a> {
    #[serde(flatten)]
    pub node: &'a TraceNode,
    pub branches: usize,
    pub chosen: bool,
    /// Characters at the beginning of its text that most of its siblings have, too; a list of siblings shows what
    /// follows.
    #[serde(skip_serializing_if = "is_zero")]
    pub parts_at: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<&'a Map<String, Value>>,
}

/// Fields of a sample that its node also has.
const FIELDS_OF_NODE: [&str; 7] = ["id", "text", "tokens", "finish", "stop", "logprob", "logprobs"];

impl ShownItem {
    /// Assigns `samples` (lines of `samples.jsonl`) to the nodes at which they end ([`ends`]).
    pub fn new(facts: Map<String, Value>, notes: Vec<String>, trace: Trace, samples: Vec<Map<String, Value>>) -> Self {
        let mut beside: Vec<NodeFacts> =
            trace.branches().into_iter().map(|branches| NodeFacts { branches, sample: None }).collect();
        let chosen = facts.get("chosen").and_then(Value::as_u64);
        let (mut answer, mut unassigned) = (None, 0);
        let ends = ends(&trace, &samples);
        for (mut sample, end) in samples.into_iter().zip(ends) {
            let index = sample.get("index").and_then(Value::as_u64);
            let Some(SampleEnd { node, .. }) = end else {
                unassigned += 1;
                continue;
            };
            if chosen.is_some() && chosen == index {
                answer = Some(node);
            }
            sample.retain(|key, _| !FIELDS_OF_NODE.contains(&key.as_str()));
            beside[node].sample = Some(sample);
        }
        let mut notes = notes;
        if unassigned > 0 {
            notes.push(format!("{unassigned} samples belong to no node of this tree."));
        }
        Self { facts, notes, trace, beside, answer }
    }

    pub fn id(&self) -> &str {
        &self.trace.item
    }

    /// Nodes from the answer up to the root.
    pub fn answer_path(&self) -> Vec<usize> {
        std::iter::successors(self.answer, |&node| self.trace.nodes[node].parent).collect()
    }

    pub fn nodes(&self) -> Vec<ShownNode<'_>> {
        let mut chosen = vec![false; self.beside.len()];
        self.answer_path().into_iter().for_each(|node| chosen[node] = true);
        let parts_at = self.trace.parts_at();
        self.trace
            .nodes
            .iter()
            .zip(&self.beside)
            .map(|(node, NodeFacts { branches, sample })| ShownNode {
                node,
                branches: *branches,
                chosen: chosen[node.id],
                parts_at: parts_at[node.id],
                sample: sample.as_ref(),
            })
            .collect()
    }

    /// The totals of this item alone.
    pub fn totals(&self) -> RunTotals {
        RunTotals::of_items(slice::from_ref(self))
    }

    /// Tokens of the tree if every branch had a copy of its whole path.
    pub(super) fn tokens_unshared(&self) -> usize {
        self.trace.nodes.iter().zip(&self.beside).map(|(node, beside)| node.tokens * beside.branches).sum()
    }
}

impl Serialize for ShownItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in &self.facts {
            map.serialize_entry(key, value)?;
        }
        map.serialize_entry("notes", &self.notes)?;
        map.serialize_entry("kv_bytes_per_token", &self.trace.kv_bytes_per_token)?;
        map.serialize_entry("totals", &self.totals())?;
        map.serialize_entry("answer", &self.answer)?;
        map.serialize_entry("nodes", &self.nodes())?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(id: usize, parent: Option<usize>, ordinal: u64, text: &str) -> Value {
        json!({"id": id, "parent": parent, "kind": "sample", "ordinal": ordinal, "state": "closed", "finish": null,
               "score": null, "tokens": 4, "logprob": null, "text": text})
    }

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn samples_find_the_nodes_that_they_end_at() {
        let nodes =
            [node(0, None, 0, "Q"), node(1, Some(0), 0, "a"), node(2, Some(0), 1, "a"), node(3, Some(1), 0, "b")];
        let trace = serde_json::from_value(json!({"item": "x", "kv_bytes_per_token": null, "nodes": nodes}));
        let samples = [
            json!({"id": "x", "index": 1, "text": "a", "correct": false}),
            json!({"id": "x", "index": 5, "text": "ab", "correct": true}),
            json!({"id": "x", "index": 6, "text": "nowhere"}),
        ];
        let facts = map(json!({"id": "x", "chosen": 5}));
        let item = ShownItem::new(facts, Vec::new(), trace.expect("a trace"), samples.map(map).to_vec());
        let of: Vec<Option<u64>> =
            item.nodes().iter().map(|node| node.sample.map(|s| s["index"].as_u64().expect("a number"))).collect();
        assert_eq!(of, [None, None, Some(1), Some(5)], "of two nodes of one text, the one of its ordinal");
        assert_eq!((item.answer, item.answer_path()), (Some(3), vec![3, 1, 0]));
        assert_eq!(item.notes, ["1 samples belong to no node of this tree."]);
        let totals = item.totals();
        assert_eq!((totals.tokens, totals.tokens_unshared), (Some(16), 2 * 4 + 4 + 4 + 4));
    }
}
