//! The packed trie: distinct tokens in depth-first order, so that every subtree is a range of indices, and the samples
//! as leaves. Built by [`TrieBuilder`](super::TrieBuilder).

use serde::{Deserialize, Serialize};

use offshoot_core::ids::{TokenId, WeightVersion};
use offshoot_engine::FinishReason;

/// What is recorded of a token that the model sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawnToken {
    /// Natural-log probability, under the distribution that was asked for where it was sampled.
    pub logprob: f32,
    /// The weights that it was sampled under.
    pub weights: WeightVersion,
}

/// A token of a [`RolloutTrie`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrieToken {
    /// The token.
    pub id: TokenId,
    /// Index of the token before it; `None`: it is the first of a prompt.
    pub parent: Option<u32>,
    /// Index behind the last token of its subtree, so that token `i` attends to token `j` if `i` lies in
    /// `j..end of j`.
    pub end: u32,
    /// Number of tokens before it on its path: its position in every sequence that it is part of.
    pub position: u32,
    /// Number of segments before its own on its path: 0 in prompts, 1 in what was forked from the prompt, and one more
    /// behind each further fork. Of a given token that several samples have, in the first of them.
    pub depth: u32,
    /// How it was sampled; `None`: it was given, and is not trained.
    pub drawn: Option<DrawnToken>,
}

/// A sample of a [`RolloutTrie`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leaf {
    /// Index of its last token, which also has children if another sample goes on behind it.
    pub token: u32,
    /// The number of its prompt or problem.
    pub group: u64,
    /// Its index among the samples of the group.
    pub sample: u64,
    /// Its reward; `None`: it has none.
    pub reward: Option<f64>,
    /// Why it ended. A sample that was cancelled is not finished: it has its tokens so far.
    pub finish: FinishReason,
    /// Whether it was cancelled and continued later.
    pub continued: bool,
}

/// Samples that share prefixes, as arrays over their distinct tokens.
///
/// Given tokens behind the same tokens are one, so that a prompt is there once for all of its samples, and the common
/// beginning of several prompts once for all of them. A sampled token is shared by the samples that were forked behind
/// it, and by no others: two samples that begin alike by chance are two draws, each with its own log-probability.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutTrie {
    pub(super) tokens: Vec<TrieToken>,
    pub(super) leaves: Vec<Leaf>,
}

impl RolloutTrie {
    /// The distinct tokens, depth first: each behind its parent, each subtree in one piece.
    pub fn tokens(&self) -> &[TrieToken] {
        &self.tokens
    }

    /// The samples in the order in which they were added.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Indices of the tokens of a leaf's sequence, from the first of its prompt on.
    ///
    /// # Panics
    ///
    /// If there are at most `leaf` leaves.
    pub fn path(&self, leaf: usize) -> Vec<u32> {
        let mut path: Vec<u32> = self.path_up(self.leaves[leaf].token).collect();
        path.reverse();
        path
    }

    /// The sequence of a leaf: the prompt's tokens, then the sampled ones.
    ///
    /// # Panics
    ///
    /// If there are at most `leaf` leaves.
    pub fn sequence(&self, leaf: usize) -> Vec<TokenId> {
        self.path(leaf).into_iter().map(|at| self.tokens[at as usize].id).collect()
    }

    /// Tokens of all samples together, as if nothing were shared.
    pub fn unpacked_tokens(&self) -> usize {
        self.leaves.iter().map(|leaf| self.tokens[leaf.token as usize].position as usize + 1).sum()
    }

    /// A token and those before it, last first.
    fn path_up(&self, token: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(token), |&at| self.tokens[at as usize].parent)
    }
}
