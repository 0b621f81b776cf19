//! Which nodes of a forest to choose, none beneath another, so that they are worth most: the one shared level of a plan
//! or of a job. What a node is worth is left to the caller.
//!
//! The recurrence: `best(v) = max(worth(v), sum of best(c) over the children c of v)`. It is exact, because a choice
//! beneath `v` is either `v` alone or choices beneath its children, which do not restrict each other.

/// The chosen nodes, rising. `parent` names a node's parent, which stands before it. Of two choices that
/// are worth the same it takes the one nearer the roots; a node that is worth nothing is never chosen.
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
