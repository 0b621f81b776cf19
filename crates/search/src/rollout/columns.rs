//! A trie as columns of plain numbers, as arrays, tables and files of other programs have them. Only here -1 and NaN
//! stand for what is absent; [`RolloutTrie`] has `None`.

use super::trie::{DrawnToken, Leaf, RolloutTrie, TrieToken};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{TokenId, WeightVersion};
use offshoot_engine::FinishReason;

/// A number for each token of a trie.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenColumns {
    /// Token ids.
    pub token_ids: Vec<i64>,
    /// Index of the token before each; -1: the first of a prompt.
    pub parents: Vec<i64>,
    /// Index behind each token's subtree.
    pub ends: Vec<i64>,
    /// Tokens before each on its path.
    pub positions: Vec<i64>,
    /// Segments before each token's own on its path.
    pub depths: Vec<i64>,
    /// Natural-log probabilities; NaN: given.
    pub logprobs: Vec<f32>,
    /// Versions of the weights; -1: given.
    pub weight_versions: Vec<i64>,
    /// Whether each was sampled: the loss mask.
    pub sampled: Vec<bool>,
}

/// A number for each leaf of a trie.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeafColumns {
    /// Index of the last token.
    pub tokens: Vec<i64>,
    /// Numbers of the groups.
    pub groups: Vec<i64>,
    /// Indices in the group.
    pub samples: Vec<i64>,
    /// Rewards; NaN: none.
    pub rewards: Vec<f64>,
    /// Whether each was cancelled and continued later.
    pub continued: Vec<bool>,
}

/// `None` is -1.
fn or_minus_one(number: Option<u64>) -> i64 {
    number.map_or(-1, |number| number as i64)
}

impl RolloutTrie {
    /// The tokens as columns.
    pub fn token_columns(&self) -> TokenColumns {
        let tokens = self.tokens();
        TokenColumns {
            token_ids: tokens.iter().map(|token| token.id.0.into()).collect(),
            parents: tokens.iter().map(|token| or_minus_one(token.parent.map(u64::from))).collect(),
            ends: tokens.iter().map(|token| token.end.into()).collect(),
            positions: tokens.iter().map(|token| token.position.into()).collect(),
            depths: tokens.iter().map(|token| token.depth.into()).collect(),
            logprobs: tokens.iter().map(|token| token.drawn.map_or(f32::NAN, |drawn| drawn.logprob)).collect(),
            weight_versions: tokens.iter().map(|token| or_minus_one(token.drawn.map(|d| d.weights.0))).collect(),
            sampled: tokens.iter().map(|token| token.drawn.is_some()).collect(),
        }
    }

    /// The leaves as columns, all but the reasons for which they ended.
    pub fn leaf_columns(&self) -> LeafColumns {
        let leaves = self.leaves();
        LeafColumns {
            tokens: leaves.iter().map(|leaf| leaf.token.into()).collect(),
            groups: leaves.iter().map(|leaf| leaf.group as i64).collect(),
            samples: leaves.iter().map(|leaf| leaf.sample as i64).collect(),
            rewards: leaves.iter().map(|leaf| leaf.reward.unwrap_or(f64::NAN)).collect(),
            continued: leaves.iter().map(|leaf| leaf.continued).collect(),
        }
    }

    /// The trie of columns that another program may have written.
    ///
    /// # Errors
    ///
    /// Columns of one kind have different lengths, or their numbers are no trie in depth-first order.
    pub fn from_columns(tokens: &TokenColumns, leaves: &LeafColumns, finishes: &[FinishReason]) -> Result<RolloutTrie> {
        let count = tokens.token_ids.len();
        for (name, length) in [
            ("parents", tokens.parents.len()),
            ("ends", tokens.ends.len()),
            ("positions", tokens.positions.len()),
            ("depths", tokens.depths.len()),
            ("logprobs", tokens.logprobs.len()),
            ("weight_versions", tokens.weight_versions.len()),
            ("sampled", tokens.sampled.len()),
        ] {
            same_length(name, "token_ids", count, length)?;
        }
        for (name, length) in [
            ("leaf_groups", leaves.groups.len()),
            ("leaf_samples", leaves.samples.len()),
            ("leaf_rewards", leaves.rewards.len()),
            ("leaf_continued", leaves.continued.len()),
            ("leaf_finish", finishes.len()),
        ] {
            same_length(name, "leaf_tokens", leaves.tokens.len(), length)?;
        }
        let mut trie = RolloutTrie { tokens: Vec::with_capacity(count), leaves: Vec::new() };
        for at in 0..count {
            let token = token_at(tokens, at, &trie.tokens)?;
            trie.tokens.push(token);
        }
        for (at, finish) in finishes.iter().enumerate() {
            trie.leaves.push(Leaf {
                token: index("leaf_tokens", at, leaves.tokens[at], 0, count)?,
                group: whole("leaf_groups", at, leaves.groups[at])?,
                sample: whole("leaf_samples", at, leaves.samples[at])?,
                reward: Some(leaves.rewards[at]).filter(|reward| !reward.is_nan()),
                finish: finish.clone(),
                continued: leaves.continued[at],
            });
        }
        Ok(trie)
    }
}

/// Token `at`, whose place among those before it is checked.
fn token_at(columns: &TokenColumns, at: usize, before: &[TrieToken]) -> Result<TrieToken> {
    let count = columns.token_ids.len();
    let parent = match columns.parents[at] {
        -1 => None,
        parent => Some(index("parents", at, parent, 0, at)?),
    };
    let position = parent.map_or(0, |parent| before[parent as usize].position + 1);
    if columns.positions[at] != i64::from(position) {
        return Err(wrong("positions", at, position, columns.positions[at]));
    }
    // Depth first: the parent is the last token before that is not complete.
    let open = std::iter::successors(at.checked_sub(1), |&last| before[last].parent.map(|parent| parent as usize))
        .find(|&last| before[last].end as usize > at);
    if open != parent.map(|parent| parent as usize) {
        let expected = open.map_or("-1".to_owned(), |open| open.to_string());
        return Err(wrong("parents", at, expected, columns.parents[at]));
    }
    let most = parent.map_or(count, |parent| before[parent as usize].end as usize);
    let drawn = match columns.sampled[at] {
        false => None,
        true => Some(DrawnToken {
            logprob: columns.logprobs[at],
            weights: WeightVersion(whole("weight_versions", at, columns.weight_versions[at])?),
        }),
    };
    Ok(TrieToken {
        id: TokenId(index("token_ids", at, columns.token_ids[at], 0, u32::MAX as usize)?),
        parent,
        end: index("ends", at, columns.ends[at], at + 1, most + 1)?,
        position,
        depth: index("depths", at, columns.depths[at], 0, u32::MAX as usize)?,
        drawn,
    })
}

fn same_length(name: &str, as_of: &str, expected: usize, found: usize) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(wrong_value(name, format!("{expected} numbers, as many as {as_of} has"), found.to_string())),
    }
}

/// A number of a column from `least` up, below `limit`.
fn index(name: &str, at: usize, value: i64, least: usize, limit: usize) -> Result<u32> {
    let number = u32::try_from(value).ok().filter(|&number| (least..limit).contains(&(number as usize)));
    number.ok_or_else(|| wrong(name, at, format!("a whole number from {least} up, below {limit}"), value))
}

/// A number of a column that is not negative.
fn whole(name: &str, at: usize, value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| wrong(name, at, "a whole number from 0 up", value))
}

fn wrong(name: &str, at: usize, expected: impl ToString, found: i64) -> Error {
    wrong_value(&format!("{name}[{at}]"), expected.to_string(), found.to_string())
}

fn wrong_value(name: &str, expected: String, found: String) -> Error {
    Error::value(format!("rollouts, {name}"), expected, found)
}
