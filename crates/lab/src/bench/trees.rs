//! Reads trees for one decode step of attention (`bench attention --trees`): one JSON object per line, either regular
//! (`levels`: `[tokens per node, leaves below a node]` from the root, `leaves` queries in total) or ragged (`parents`
//! and `tokens` by node, -1 for a root, a query at every leaf). Parents come before their children. Heads are
//! `kv_heads` of `head_dim`, or `latent`.

use std::path::Path;

use serde::Deserialize;

use super::latent_trees::LatentLine;
use offshoot_backend::{Dtype, HeadLayout, LatentHeads, MOST_HEAD_DIM};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::input;
use offshoot_kv::{Forest, PagePool, PrefixTree, StepRow};

/// Limits of a tree: more than any GPU holds, and small enough that sums are exact.
const MOST_TOKENS: usize = 1 << 30;
const MOST_QUERIES: usize = 1 << 20;
const MOST_HEADS: usize = 1 << 10;
const MOST_LATENT: usize = 576;

/// One line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TreeLine {
    name: String,
    q_heads: usize,
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    latent: Option<LatentLine>,
    dtype: Dtype,
    leaves: Option<usize>,
    levels: Option<Vec<(usize, usize)>>,
    parents: Option<Vec<i64>>,
    tokens: Option<Vec<usize>>,
}

/// A tree with queries at the ends of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSpec {
    pub name: String,
    /// Of latents those of the absorbed form, unless another one is measured.
    pub heads: HeadLayout,
    pub latents: Option<LatentHeads>,
    pub dtype: Dtype,
    pub nodes: Vec<TreeNode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeNode {
    /// Index of an earlier node.
    pub parent: Option<usize>,
    pub tokens: usize,
    /// Number of queries at its end.
    pub queries: usize,
}

/// Reads all trees of a file.
pub fn read_trees(path: &Path) -> Result<Vec<TreeSpec>> {
    let text = input::text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let trees: Vec<TreeSpec> = lines.map(|(number, line)| read_tree(path, number + 1, line)).collect::<Result<_>>()?;
    match trees.is_empty() {
        true => Err(Error::format(path, "expected at least one tree, found none")),
        false => Ok(trees),
    }
}

fn read_tree(path: &Path, number: usize, text: &str) -> Result<TreeSpec> {
    let line: TreeLine =
        serde_json::from_str(text).map_err(|fault| Error::format(path, format!("line {number}: {fault}")))?;
    let wrong = |field: &str, expected: &str, found: String| {
        Error::field(path, format!("line {number}: {field}"), expected, found)
    };
    if let Some(leaves) = line.leaves.filter(|&leaves| leaves > MOST_QUERIES) {
        return Err(wrong("leaves", &format!("at most {MOST_QUERIES}"), leaves.to_string()));
    }
    let nodes = match (&line.levels, &line.parents, &line.tokens) {
        (Some(levels), None, None) => {
            let leaves = line.leaves.ok_or_else(|| wrong("leaves", "the number of queries", "nothing".to_owned()))?;
            regular(leaves, levels).ok_or_else(|| {
                wrong("levels", "leaves divided evenly by every level", format!("{levels:?} of {leaves}"))
            })?
        }
        (None, Some(parents), Some(tokens)) => ragged(parents, tokens).ok_or_else(|| {
            wrong("parents", "one parent and token count a node, parents first", format!("{parents:?}"))
        })?,
        _ => return Err(wrong("levels", "levels, or parents and tokens", "both or neither".to_owned())),
    };
    let tokens = nodes.iter().fold(0, |sum: usize, node| sum.saturating_add(node.tokens));
    if tokens > MOST_TOKENS {
        return Err(wrong("tokens", &format!("at most {MOST_TOKENS} in all"), tokens.to_string()));
    }
    let TreeLine { name, q_heads, kv_heads, head_dim, latent, dtype, .. } = line;
    let latents =
        latent.map(|LatentLine { rank, rope, nope, v }| LatentHeads { heads: q_heads, rank, nope, rope, value: v });
    let (kv_heads, head_dim) = match (latents, kv_heads, head_dim) {
        (None, Some(kv_heads), Some(head_dim)) => (kv_heads, head_dim),
        (Some(latents), None, None) => (1, latents.latent_width().max(latents.nope + latents.rope).max(latents.value)),
        _ => return Err(wrong("latent", "latent, or kv_heads and head_dim", "both or neither".to_owned())),
    };
    let most_width = if latents.is_some() { MOST_LATENT } else { MOST_HEAD_DIM };
    if q_heads > MOST_HEADS || head_dim > most_width {
        let expected = format!("at most {MOST_HEADS} heads of width {most_width}");
        return Err(wrong("q_heads", &expected, format!("{q_heads} x {head_dim}")));
    }
    if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) || q_heads == 0 || head_dim == 0 || head_dim % 2 == 1 {
        let found = format!("{q_heads} / {kv_heads} x {head_dim}");
        return Err(wrong("q_heads", "whole groups of heads of even width", found));
    }
    let heads = latents.map_or(HeadLayout::new(q_heads, kv_heads, head_dim), |latents| latents.absorbed());
    Ok(TreeSpec { name, heads, latents, dtype, nodes })
}

fn regular(leaves: usize, levels: &[(usize, usize)]) -> Option<Vec<TreeNode>> {
    let mut nodes: Vec<TreeNode> = Vec::new();
    let mut above: Option<(usize, usize)> = None; // first node of the level above, and leaves beneath each
    for &(tokens, beneath) in levels {
        let fits = tokens > 0 && beneath > 0 && leaves > 0 && leaves.is_multiple_of(beneath);
        if !fits || above.is_some_and(|(_, above)| !above.is_multiple_of(beneath)) {
            return None;
        }
        let first = nodes.len();
        let parent = |node: usize| above.map(|(first, above)| first + node * beneath / above);
        nodes.extend((0..leaves / beneath).map(|node| TreeNode { parent: parent(node), tokens, queries: 0 }));
        above = Some((first, beneath));
    }
    let (first, beneath) = above?;
    nodes[first..].iter_mut().for_each(|node| node.queries = beneath);
    Some(nodes)
}

fn ragged(parents: &[i64], tokens: &[usize]) -> Option<Vec<TreeNode>> {
    if parents.len() != tokens.len() || parents.is_empty() || tokens.contains(&0) {
        return None;
    }
    let mut nodes = Vec::with_capacity(tokens.len());
    for (node, (&parent, &tokens)) in parents.iter().zip(tokens).enumerate() {
        let parent = match parent {
            -1 => None,
            parent => Some(usize::try_from(parent).ok().filter(|&parent| parent < node)?),
        };
        nodes.push(TreeNode { parent, tokens, queries: 1 });
    }
    for &parent in parents.iter().filter(|&&parent| parent >= 0) {
        nodes[parent as usize].queries = 0;
    }
    Some(nodes)
}

/// A tree laid out in pages.
pub struct PagedTree {
    pub forest: Forest,
    pub pages: usize,
}

impl TreeSpec {
    pub fn queries(&self) -> usize {
        self.nodes.iter().map(|node| node.queries).sum()
    }

    /// Bytes of keys and values of every node, counted once at `kv_element_bytes` bytes per element, plus queries and
    /// results.
    pub fn bytes(&self, kv_element_bytes: usize) -> f64 {
        let tokens: usize = self.nodes.iter().map(|node| node.tokens).sum();
        let stored = tokens * self.heads.stored_width();
        let rows = self.queries() * (self.heads.q_width() + self.heads.out_width());
        (stored * kv_element_bytes + rows * self.dtype.bytes()) as f64
    }

    /// Multiplications and additions of every query with every token of its path.
    pub fn flops(&self) -> f64 {
        let mut contexts = Vec::with_capacity(self.nodes.len());
        let mut pairs = 0;
        for node in &self.nodes {
            let context = node.tokens + node.parent.map_or(0, |parent: usize| contexts[parent]);
            contexts.push(context);
            pairs += node.queries * context;
        }
        (2 * pairs * (self.heads.q_width() + self.heads.out_width())) as f64
    }

    /// Lays the tree out in pages of `page_tokens`; every query is at the last token of its node.
    pub fn lay_out(&self, page_tokens: u32) -> Result<PagedTree> {
        let pages: usize = self.nodes.iter().map(|node| node.tokens / page_tokens as usize + 2).sum();
        let (mut pool, mut tree) = (PagePool::new(pages), PrefixTree::new(page_tokens));
        let short = |_| Error::Internal(format!("{pages} pages do not hold {}", self.name));
        let (mut segments, mut rows) = (Vec::with_capacity(self.nodes.len()), Vec::new());
        for (number, node) in self.nodes.iter().enumerate() {
            // Roots differ in every token, so that they share nothing.
            let text = vec![TokenId::new(number); node.tokens];
            let segment = match node.parent {
                None => tree.admit(&mut pool, &text).map_err(short)?,
                Some(parent) => {
                    let segment = tree.fork(segments[parent]);
                    tree.append(&mut pool, segment, &text).map_err(short)?;
                    segment
                }
            };
            let last = tree.end(segment) - 1;
            tree.mark_computed(segment, if node.queries == 0 { last + 1 } else { last });
            rows.extend((0..node.queries).map(|_| StepRow { segment, position: last }));
            segments.push(segment);
        }
        tree.depth_first(&mut rows);
        Ok(PagedTree { forest: tree.forest(&rows), pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_fixtures::forests::context;

    fn read(line: &str) -> Result<TreeSpec> {
        read_tree(Path::new("trees.jsonl"), 1, line)
    }

    const HEADS: &str = r#""name": "t", "q_heads": 4, "kv_heads": 2, "head_dim": 8, "dtype": "bf16""#;

    #[test]
    fn a_regular_tree_is_what_its_ragged_form_says() {
        let regular = read(&format!(r#"{{ {HEADS}, "leaves": 4, "levels": [[50, 4], [7, 2], [3, 1]] }}"#)).unwrap();
        let ragged =
            read(&format!(r#"{{ {HEADS}, "parents": [-1, 0, 0, 1, 1, 2, 2], "tokens": [50, 7, 7, 3, 3, 3, 3] }}"#));
        assert_eq!(regular, ragged.unwrap());
        assert_eq!(regular.queries(), 4);
        assert_eq!(regular.bytes(2), (2 * (50 + 14 + 12) * 2 * 8 + 2 * 4 * 4 * 8) as f64 * 2.0);
        assert_eq!(regular.flops(), (4 * 4 * 60 * 4 * 8) as f64);
    }

    #[test]
    fn queries_may_share_a_whole_path() {
        let spec = read(&format!(r#"{{ {HEADS}, "leaves": 6, "levels": [[40, 3]] }}"#)).unwrap();
        assert_eq!(spec.nodes, [TreeNode { parent: None, tokens: 40, queries: 3 }; 2]);
        let paged = spec.lay_out(16).unwrap();
        paged.forest.check().unwrap();
        assert_eq!(paged.forest.row_positions, [39; 6]);
        let context = |row| context(&paged.forest, row);
        assert_eq!(context(0), context(2));
        assert_ne!(context(0), context(3));
    }

    #[test]
    fn latents_have_the_heads_of_their_absorbed_form() {
        let latent = r#""latent": {"rank": 16, "rope": 8, "nope": 4, "v": 6}"#;
        let line =
            |heads: &str| format!(r#"{{ "name": "t", "dtype": "bf16", "leaves": 2, "levels": [[9, 1]], {heads} }}"#);
        let spec = read(&line(&format!(r#""q_heads": 5, {latent}"#))).unwrap();
        assert_eq!(spec.latents, Some(LatentHeads { heads: 5, rank: 16, nope: 4, rope: 8, value: 6 }));
        assert_eq!(spec.bytes(2), (2 * 9 * 24 + 2 * 5 * (24 + 16)) as f64 * 2.0);
        assert_eq!(spec.flops(), (2 * 2 * 9 * 5 * (24 + 16)) as f64);
        assert!(read(&line(&format!(r#""q_heads": 5, "kv_heads": 1, "head_dim": 24, {latent}"#))).is_err());
        assert!(read(&line(r#""q_heads": 5"#)).is_err());
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        for tree in [
            r#""leaves": 4, "levels": [[5, 3]]"#,
            r#""levels": [[5, 1]]"#,
            r#""parents": [-1, 1], "tokens": [3, 3]"#,
            r#""parents": [-1], "tokens": [3, 3]"#,
            r#""parents": [-1], "tokens": [0]"#,
            r#""leaves": 1"#,
            r#""leaves": 1, "levels": [[1, 1]], "depth": 3"#,
            r#""leaves": 4000000000000, "levels": [[1, 1]]"#,
            r#""leaves": 4, "levels": [[5000000000000000000, 1]]"#,
            r#""parents": [-1, 0], "tokens": [2000000000, 2000000000]"#,
        ] {
            assert!(read(&format!("{{ {HEADS}, {tree} }}")).is_err(), "{tree}");
        }
    }
}
