//! Finds the antichain of a forest with the largest total worth: nodes of which none is beneath another. Used to choose
//! the single shared level of a plan or job. The caller defines the worth of a node.
//!
//! The recurrence is `best(v) = max(worth(v), sum of best(c) over the children c of v)`. It is exact: an antichain in
//! the subtree of `v` is either `v` alone or a union of antichains in the subtrees of its children, which are
//! independent.

/// The chosen nodes, rising. `parent`: a node's parent, which has a smaller index. On ties the node nearer to the root
/// is chosen; a node of worth 0 never is.
pub fn best_antichain(parent: impl Fn(usize) -> Option<u32>, worth: &[u64]) -> Vec<u32> {
    let mut beneath = vec![0u64; worth.len()];
    for node in (0..worth.len()).rev() {
        if let Some(parent) = parent(node) {
            beneath[parent as usize] += worth[node].max(beneath[node]);
        }
    }
    let mut covered = vec![false; worth.len()];
    let mut chosen = Vec::new();
    for (node, index) in (0..worth.len()).zip(0u32..) {
        covered[node] = parent(node).is_some_and(|parent| covered[parent as usize]);
        if !covered[node] && worth[node] > 0 && worth[node] >= beneath[node] {
            covered[node] = true;
            chosen.push(index);
        }
    }
    chosen
}
