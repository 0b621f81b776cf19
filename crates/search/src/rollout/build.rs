//! Builds a [`RolloutTrie`]: prompts, segments behind them and leaves in any order; the tokens are put into depth-first
//! order at the end.

use std::collections::HashMap;

use super::trie::{DrawnToken, Leaf, RolloutTrie, TrieToken};
use crate::tree::SamplingTree;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::{FinishReason, LogprobsMode};

/// A token of a trie that is being built: what comes next is appended behind it. A place is of its own builder only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriePlace(u32);

/// A leaf of a sampling tree that becomes a rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TreeLeaf {
    /// The node where the sample ends.
    pub node: NodeId,
    /// The sample's index among those of the tree.
    pub sample: u64,
    /// Its reward.
    pub reward: Option<f64>,
}

/// Collects the tokens and leaves of a [`RolloutTrie`].
#[derive(Debug, Default)]
pub struct TrieBuilder {
    /// In the order in which they were added: parents before children. `end` is set when the trie is built.
    tokens: Vec<TrieToken>,
    /// Given tokens by what they follow.
    given: HashMap<(Option<u32>, TokenId), u32>,
    leaves: Vec<Leaf>,
}

impl TrieBuilder {
    /// A builder without tokens.
    pub fn new() -> TrieBuilder {
        TrieBuilder::default()
    }

    /// Adds a prompt and returns its last token; what it has in common with other prompts is stored once.
    ///
    /// # Errors
    ///
    /// The prompt is empty.
    pub fn prompt(&mut self, tokens: &[TokenId]) -> Result<TriePlace> {
        let last = tokens.iter().fold(None, |parent, &id| Some(self.push(parent, id, 0, None)));
        let last = last.ok_or_else(|| Error::value("prompt of a rollout", "at least one token", "none"))?;
        Ok(TriePlace(last))
    }

    /// Adds a segment behind `at`: tokens with how they were sampled, or `None` for given ones. Returns its last token,
    /// or that of `at` if it has none.
    pub fn segment(
        &mut self,
        at: TriePlace,
        tokens: impl IntoIterator<Item = (TokenId, Option<DrawnToken>)>,
    ) -> TriePlace {
        let depth = self.tokens[at.0 as usize].depth + 1;
        TriePlace(tokens.into_iter().fold(at.0, |parent, (id, drawn)| self.push(Some(parent), id, depth, drawn)))
    }

    /// Adds a sample that ends at `at`; `leaf` is told where that is.
    pub fn leaf(&mut self, at: TriePlace, leaf: impl FnOnce(u32) -> Leaf) {
        self.leaves.push(leaf(at.0));
    }

    /// Adds the paths to `leaves` of a sampling tree as samples of `group`. The end-of-text or stop token that ended a
    /// sample is its last token. `mode`: which log-probabilities sampled tokens have.
    ///
    /// # Errors
    ///
    /// A leaf failed, was never extended, or is part of a question, which has a prompt of its own; the log-probability
    /// that `mode` names is not recorded of a sampled token.
    pub fn tree(&mut self, tree: &SamplingTree, group: u64, leaves: &[TreeLeaf], mode: LogprobsMode) -> Result<()> {
        let root = tree.node(tree.root());
        let mut prompt = self.prompt(&root.tokens[..root.given_at_start()])?;
        if root.tokens.len() > root.given_at_start() {
            prompt = self.segment(prompt, root.drawn_tokens(mode)?.split_off(root.given_at_start()));
        }
        let mut places = HashMap::from([(tree.root(), prompt)]);
        // By index: the same tree gives the same trie, whichever sample finished first.
        let mut leaves = leaves.to_vec();
        leaves.sort_by_key(|leaf| leaf.sample);
        for TreeLeaf { node, sample, reward } in leaves {
            let end = tree.node(node);
            let expected = |found: &str| Error::value(format!("leaf {node} of a rollout"), "a sampled thought", found);
            let path = tree.path(node);
            // The path to a thought below a question begins behind the question.
            let above = path.first().map_or(Some(node), |&first| tree.parent(first));
            if above != Some(tree.root()) {
                return Err(expected("a question or an answer to one"));
            }
            let finish = match &end.finish {
                None => return Err(expected("one that was never extended")),
                Some(FinishReason::Failed) => return Err(expected("one that failed")),
                Some(finish) => finish.clone(),
            };
            let mut at = prompt;
            for &step in &path {
                at = match places.get(&step) {
                    Some(&place) => place,
                    None => self.segment(at, tree.node(step).drawn_tokens(mode)?),
                };
                places.insert(step, at);
            }
            if let Some((token, drawn)) = end.drawn_ending(mode)? {
                at = TriePlace(self.push(Some(at.0), token, self.tokens[at.0 as usize].depth, Some(drawn)));
            }
            let continued = path.iter().any(|&step| tree.node(step).is_continued());
            self.leaf(at, |token| Leaf { token, group, sample, reward, finish, continued });
        }
        Ok(())
    }

    /// The trie of everything that was added, without tokens that lead to no leaf.
    pub fn build(self) -> RolloutTrie {
        let TrieBuilder { tokens, mut leaves, .. } = self;
        // The number of tokens of each subtree, 0 where it has no leaf.
        let mut sizes = vec![0u32; tokens.len()];
        for leaf in &leaves {
            sizes[leaf.token as usize] = 1;
        }
        for at in (0..tokens.len()).rev() {
            if let Some(parent) = tokens[at].parent.filter(|_| sizes[at] > 0) {
                let own = sizes[parent as usize].max(1);
                sizes[parent as usize] = own + sizes[at];
            }
        }
        // Parents come before children, so that each place follows from the parent's: `next` is where the next child of
        // a token goes.
        let (mut places, mut next, mut next_root) = (vec![0u32; tokens.len()], vec![0u32; tokens.len()], 0);
        let mut order: Vec<(u32, TrieToken)> = Vec::with_capacity(tokens.len());
        for (at, token) in tokens.iter().enumerate().filter(|&(at, _)| sizes[at] > 0) {
            let free = token.parent.map_or(&mut next_root, |parent| &mut next[parent as usize]);
            places[at] = *free;
            *free += sizes[at];
            next[at] = places[at] + 1;
            let parent = token.parent.map(|parent| places[parent as usize]);
            order.push((places[at], TrieToken { parent, end: places[at] + sizes[at], ..*token }));
        }
        order.sort_unstable_by_key(|&(place, _)| place);
        for leaf in &mut leaves {
            leaf.token = places[leaf.token as usize];
        }
        RolloutTrie { tokens: order.into_iter().map(|(_, token)| token).collect(), leaves }
    }

    /// A token behind `parent`: a given one that is there already, or a new one, of a segment with this depth; where
    /// the parent is in a deeper one, as given tokens are that another sample has as well, of that one.
    fn push(&mut self, parent: Option<u32>, id: TokenId, depth: u32, drawn: Option<DrawnToken>) -> u32 {
        let new = u32::try_from(self.tokens.len()).expect("rollouts have fewer than 2^32 tokens, which fit no memory");
        if drawn.is_none() {
            let at = *self.given.entry((parent, id)).or_insert(new);
            if at != new {
                return at;
            }
        }
        let parent_token = parent.map(|parent| &self.tokens[parent as usize]);
        let position = parent_token.map_or(0, |parent| parent.position + 1);
        let depth = parent_token.map_or(depth, |parent| depth.max(parent.depth));
        self.tokens.push(TrieToken { id, parent, end: 0, position, depth, drawn });
        new
    }
}
