//! The totals of a run over all its items, one definition for every view: what the run's trees hold, with all that the
//! search tried and asked. Of a run that kept no trees they are those of its prompts and samples, which the summary
//! counts by level.

use std::path::Path;
use std::{fs, iter};

use serde::{Deserialize, Serialize};

use super::shown::ShownItem;
use crate::report::LevelUse;
use offshoot_core::error::Error;
use offshoot_core::ids::TokenId;
use offshoot_engine::FinishReason;
use offshoot_kv::DistinctTokens;
use offshoot_search::tree::{Trace, TraceNode};

/// Tokens of one item or several, and their keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RunTotals {
    /// Tokens, each shared prefix of given texts counted once, whichever items and questions share it. `None`: the run
    /// kept no trees, so nothing tells what its items share.
    pub tokens: Option<u64>,
    /// Tokens if every branch had a copy of its whole context.
    pub tokens_unshared: u64,
    /// Bytes of the keys and values of `tokens`. `None`: unknown.
    pub kv_bytes: Option<u64>,
}

/// What the views read of `summary.json`.
#[derive(Debug, Deserialize)]
pub struct SummaryTotals {
    #[serde(default)]
    levels: Vec<LevelUse>,
    #[serde(default)]
    accuracy: Option<SummaryAccuracy>,
    /// Items whose answers tie.
    #[serde(default)]
    pub tied: usize,
}

#[derive(Debug, Deserialize)]
struct SummaryAccuracy {
    value: f64,
}

impl SummaryTotals {
    /// Those of the run in `folder`; `None`: it has no summary, as after a kill.
    pub fn read(folder: &Path) -> Option<Self> {
        let path = folder.join("summary.json");
        if !path.exists() {
            return None;
        }
        let read = fs::read(&path).map_err(Error::io(&path, "read"));
        let parsed = read.and_then(|text| {
            serde_json::from_slice(&text).map_err(|error| Error::format(&path, format!("not a run's summary: {error}")))
        });
        parsed.inspect_err(|error| log::warn!("{error}")).ok()
    }

    pub fn accuracy(&self) -> Option<f64> {
        self.accuracy.as_ref().map(|accuracy| accuracy.value)
    }

    /// `None`: the summary counted no item.
    pub fn totals(&self) -> Option<RunTotals> {
        (!self.levels.is_empty()).then(|| RunTotals::of_levels(&self.levels))
    }
}

impl RunTotals {
    /// The sums over `levels`.
    pub fn of_levels(levels: &[LevelUse]) -> Self {
        let sum = |of: fn(&LevelUse) -> u64| levels.iter().map(of).sum::<u64>();
        Self {
            tokens: Some(sum(|level| level.tokens)),
            tokens_unshared: sum(|level| level.tokens_unshared),
            kv_bytes: Some(sum(|level| level.kv_bytes)),
        }
    }

    /// What the trees of `items` hold. The tokens of `tokens` that items share count once; of one item alone they are
    /// known even without the tokens' ids, as its nodes share nothing then that is not one node.
    pub fn of_items(items: &[ShownItem]) -> Self {
        let mut held = HeldTokens::default();
        let own = |item: &ShownItem| match held.add(&item.trace) {
            None if items.len() == 1 => Some(item.trace.nodes.iter().map(|node| node.tokens as u64).sum()),
            counted => counted,
        };
        let own: Option<Vec<u64>> = items.iter().map(own).collect();
        let bytes = |tokens: &[u64]| {
            let each = items.iter().map(|item| item.trace.kv_bytes_per_token);
            tokens.iter().zip(each).map(|(&tokens, each)| Some(tokens * each? as u64)).sum()
        };
        Self {
            tokens_unshared: items.iter().map(|item| item.tokens_unshared() as u64).sum(),
            kv_bytes: own.as_deref().and_then(bytes),
            tokens: own.map(|own| own.iter().sum()),
        }
    }
}

/// Counts the tokens of trees one after another: a sampled token once, and a given one once for all contexts that have
/// the same tokens up to it, whichever trees and questions they belong to.
#[derive(Default)]
struct HeldTokens {
    given: DistinctTokens,
}

impl HeldTokens {
    /// Adds a tree. Returns how many of its tokens no earlier one holds; `None`: the tree has no token ids.
    fn add(&mut self, trace: &Trace) -> Option<u64> {
        let nodes = &trace.nodes;
        // For each node: whether its whole context was given, and whether a given text goes on from it.
        let (mut given, mut goes_on) = (vec![false; nodes.len()], vec![false; nodes.len()]);
        for node in nodes {
            let above = node.parent.filter(|_| !node.asks);
            given[node.id] = is_given(node) && above.is_none_or(|above| given[above]);
            if let Some(above) = above.filter(|_| given[node.id]) {
                goes_on[above] = true;
            }
        }
        let mut held = 0;
        for node in nodes {
            if !given[node.id] {
                held += node.tokens;
            } else if !goes_on[node.id] {
                let context = context_of(nodes, node)?;
                held += context.len() - self.given.insert(&context);
            }
        }
        Some(held as u64)
    }
}

/// Whether the text of `node` was given, as a prompt or a question is, and nothing of it was sampled or scored.
fn is_given(node: &TraceNode) -> bool {
    matches!(node.finish, None | Some(FinishReason::Given)) && node.logprob.is_none()
}

/// The tokens from the root, or the question that `node` belongs to, down to the end of `node`; `None`: they have no
/// ids.
fn context_of(nodes: &[TraceNode], node: &TraceNode) -> Option<Vec<TokenId>> {
    let above = |node: &&TraceNode| node.parent.filter(|_| !node.asks).map(|parent| &nodes[parent]);
    let path: Vec<&TraceNode> = iter::successors(Some(node), above).collect();
    let tokens = path.iter().rev().map(|node| node.token_ids.as_deref()).collect::<Option<Vec<_>>>()?;
    Some(tokens.concat())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use offshoot_core::dice::Dice;
    use serde_json::{Map, Value, json};

    /// A search of `nodes` nodes below the prompt `[0, 0, number % 2]`: given and sampled thoughts, and questions.
    fn searched(dice: &mut Dice, number: u32, nodes: usize) -> Trace {
        let made = (0..nodes).map(|id| {
            let (sampled, asks) = (id > 0 && dice.one_in(3), id > 0 && dice.one_in(3));
            let ids: Vec<u32> = match id {
                0 => vec![0, 0, number % 2],
                _ => (0..dice.within(1, 3)).map(|_| dice.within(0, 1)).collect(),
            };
            let parent = (id > 0).then(|| dice.below(id));
            json!({"id": id, "parent": parent, "kind": "sample", "ordinal": id, "state": "closed", "score": null,
                   "asks": asks && !sampled, "finish": if sampled { "length" } else { "given" },
                   "tokens": ids.len(), "token_ids": ids, "logprob": sampled.then_some(-1.0), "text": ""})
        });
        let nodes: Vec<Value> = made.collect();
        serde_json::from_value(json!({"item": "x", "kv_bytes_per_token": 8, "nodes": nodes})).expect("a trace")
    }

    /// The sampled node, as its item and id, that a token stands in or below, and the tokens up to it.
    type TokenPlace = (Option<(usize, usize)>, Vec<TokenId>);

    /// Every place of a token by itself: of a given context the tokens up to it, of what is below a sampled text the
    /// node, too.
    fn places(item: usize, trace: &Trace) -> HashSet<TokenPlace> {
        let mut contexts: Vec<(bool, Vec<TokenId>)> = Vec::new();
        let mut places = HashSet::new();
        for node in &trace.nodes {
            let parent = node.parent.filter(|_| !node.asks);
            let (given, mut context) = parent.map_or((true, Vec::new()), |parent| contexts[parent].clone());
            let given = given && node.logprob.is_none();
            for &token in node.token_ids.as_deref().expect("they have ids") {
                context.push(token);
                places.insert(((!given).then_some((item, node.id)), context.clone()));
            }
            contexts.push((given, context));
        }
        places
    }

    #[test]
    fn totals_are_those_of_the_distinct_paths_of_all_items() {
        let mut dice = Dice::new(48);
        for nodes in [1, 2, 5, 20, 80] {
            let items: Vec<ShownItem> = (0..4)
                .map(|number| ShownItem::new(Map::new(), Vec::new(), searched(&mut dice, number, nodes), Vec::new()))
                .collect();
            let of_each: Vec<_> = items.iter().enumerate().map(|(ix, item)| places(ix, &item.trace)).collect();
            let all: HashSet<_> = of_each.iter().flatten().collect();
            let totals = RunTotals::of_items(&items);
            assert_eq!(totals.tokens, Some(all.len() as u64), "{nodes} nodes");
            assert_eq!(totals.kv_bytes, Some(8 * all.len() as u64));
            for (item, places) in items.iter().zip(&of_each) {
                let own = item.totals();
                assert_eq!(own.tokens, Some(places.len() as u64), "{nodes} nodes");
                assert!(own.tokens <= totals.tokens && own.tokens_unshared <= totals.tokens_unshared);
                assert!(own.tokens <= Some(own.tokens_unshared));
            }
        }
    }
}
