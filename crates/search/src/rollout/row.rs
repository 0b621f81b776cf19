//! A trie as a row of TRL's asynchronous GRPO trainer: its tokens in depth-first order with one next token each, and a
//! loss term for each sampled token of each sample.

use super::trie::RolloutTrie;

/// The label of a position whose next token is not trained.
const NOT_TRAINED: i64 = -100;

/// A row for a decoder whose attention reads, for each segment of queries, the keys and values of the path to it, and
/// whose loss takes one label at each position. There a token is repeated for each token that follows it, so that every
/// position has one next token; what lies before a fork is still there once, all but its last token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeRow {
    /// Token ids.
    pub input_ids: Vec<i64>,
    /// The position of each token in its samples.
    pub position_ids: Vec<i64>,
    /// The next token that each position predicts; -100: none that is trained.
    pub shift_labels: Vec<i64>,
    /// Places in the row of the keys that each segment reads: the paths to the ends of all segments, one after the
    /// other.
    pub kv_index: Vec<i64>,
    /// Borders of the segments in the row, from 0 to its length.
    pub segment_borders: Vec<i64>,
    /// Borders of the paths in `kv_index`.
    pub path_borders: Vec<i64>,
    /// For each loss term, the place in the row that predicts its token.
    pub token_index: Vec<i64>,
    /// For each loss term, the log-probability under which its token was sampled.
    pub logprobs: Vec<f32>,
    /// For each loss term, the index of its leaf.
    pub leaves: Vec<i64>,
}

/// A token with one of those that follow it, where a segment begins.
struct SegmentStart {
    token: u32,
    next: Next,
    /// The segment before; `None`: the token is the first of a prompt.
    parent: Option<usize>,
}

/// What follows a token in a sample.
#[derive(Clone, Copy)]
enum Next {
    Token(u32),
    End,
}

impl RolloutTrie {
    /// The trie as a row of TRL's trainer.
    pub fn tree_row(&self) -> TreeRow {
        let tokens = self.tokens();
        let (children, roots) = self.children();
        let mut is_leaf = vec![false; tokens.len()];
        for leaf in self.leaves() {
            is_leaf[leaf.token as usize] = true;
        }
        let nexts = |token: u32| -> Vec<Next> {
            let of = children[token as usize].iter().map(|&child| Next::Token(child));
            of.chain(is_leaf[token as usize].then_some(Next::End)).collect()
        };
        let mut row = TreeRow { segment_borders: vec![0], path_borders: vec![0], ..TreeRow::default() };
        // Of each token that is not the first of a prompt, the place in the row that predicts it.
        let mut predicted_at = vec![0; tokens.len()];
        let mut paths: Vec<Vec<i64>> = Vec::new();
        let mut starts: Vec<SegmentStart> = Vec::new();
        for &token in roots.iter().rev() {
            starts.extend(nexts(token).into_iter().rev().map(|next| SegmentStart { token, next, parent: None }));
        }
        while let Some(SegmentStart { mut token, mut next, parent }) = starts.pop() {
            let segment = paths.len();
            let mut path = parent.map_or_else(Vec::new, |parent| paths[parent].clone());
            loop {
                let place = row.input_ids.len() as i64;
                path.push(place);
                row.input_ids.push(tokens[token as usize].id.0.into());
                row.position_ids.push(tokens[token as usize].position.into());
                let Next::Token(child) = next else {
                    row.shift_labels.push(NOT_TRAINED);
                    break;
                };
                predicted_at[child as usize] = place;
                let label = tokens[child as usize].drawn.map(|_| tokens[child as usize].id.0.into());
                row.shift_labels.push(label.unwrap_or(NOT_TRAINED));
                match nexts(child)[..] {
                    [only] => (token, next) = (child, only),
                    ref several => {
                        let parent = Some(segment);
                        let copies = several.iter().rev();
                        starts.extend(copies.map(|&next| SegmentStart { token: child, next, parent }));
                        break;
                    }
                }
            }
            row.segment_borders.push(row.input_ids.len() as i64);
            row.kv_index.extend(&path);
            row.path_borders.push(row.kv_index.len() as i64);
            paths.push(path);
        }
        for leaf in 0..self.leaves().len() {
            for at in self.path(leaf) {
                if let Some(drawn) = tokens[at as usize].drawn {
                    row.token_index.push(predicted_at[at as usize]);
                    row.logprobs.push(drawn.logprob);
                    row.leaves.push(leaf as i64);
                }
            }
        }
        row
    }

    /// The children of each token, in order, and the first tokens of prompts.
    fn children(&self) -> (Vec<Vec<u32>>, Vec<u32>) {
        let (mut children, mut roots) = (vec![Vec::new(); self.tokens().len()], Vec::new());
        for (at, token) in (0..).zip(self.tokens()) {
            match token.parent {
                Some(parent) => children[parent as usize].push(at),
                None => roots.push(at),
            }
        }
        (children, roots)
    }
}
