//! The forms of latent attention in trees of `bench attention --trees`: what each form reads and multiplies, and the
//! least time that a tree takes if each node is attended to in the form that is cheaper there.

use serde::{Deserialize, Serialize};

use super::floor::Work;
use super::trees::{TreeNode, TreeSpec};
use offshoot_backend::{HeadLayout, LatentHeads, Rates};

/// The widths of latents, as a line of a file has them: fields of [`LatentHeads`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LatentLine {
    pub rank: usize,
    pub rope: usize,
    pub nope: usize,
    pub v: usize,
}

/// How latents are attended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TimedForm {
    /// From the latents themselves, by queries that are mapped to their space.
    #[default]
    Absorbed,
    /// As keys and values of all heads.
    Expanded,
    /// Each node in the form that the planner chooses.
    Cheapest,
}

impl TimedForm {
    /// The forms that a node may have.
    const OF_NODES: [Self; 2] = [Self::Absorbed, Self::Expanded];

    /// The heads of what is stored in this form.
    pub fn heads(self, latents: LatentHeads) -> HeadLayout {
        match self {
            TimedForm::Absorbed | TimedForm::Cheapest => latents.absorbed(),
            TimedForm::Expanded => latents.expanded(),
        }
    }
}

/// The least seconds of a tree of latents, if each node is attended to in the form that is cheaper for it, or all in
/// one of them, if that is less: queries and results of the forms that occur, and each node's latents or keys and
/// values once, in `element_bytes` each. Making copies, and maps of queries and results, are not counted.
pub fn floor_seconds(tree: &TreeSpec, latents: LatentHeads, element_bytes: usize, rates: Rates) -> f64 {
    let below = queries_below(&tree.nodes);
    let of_node = |node: usize, form: TimedForm| {
        let (heads, tokens) = (form.heads(latents), tree.nodes[node].tokens);
        let pairs = (tokens * below[node]) as f64;
        Work {
            bytes: (tokens * heads.stored_width() * element_bytes) as f64,
            flops: 2.0 * pairs * (heads.q_width() + heads.out_width()) as f64,
        }
    };
    let of_rows = |form: TimedForm| {
        let heads = form.heads(latents);
        let elements = tree.queries() * (heads.q_width() + heads.out_width());
        Work { bytes: (elements * tree.dtype.bytes()) as f64, flops: 0.0 }
    };
    let seconds = |form_of: &dyn Fn(usize) -> TimedForm| {
        let forms: Vec<TimedForm> = (0..tree.nodes.len()).map(form_of).collect();
        let rows = TimedForm::OF_NODES.into_iter().filter(|form| forms.contains(form)).map(of_rows);
        let nodes = forms.iter().enumerate().map(|(node, &form)| of_node(node, form));
        rows.chain(nodes).fold(Work::default(), Work::plus).seconds(rates)
    };
    let cheaper = |node: usize| {
        let [absorbed, expanded] = TimedForm::OF_NODES.map(|form| of_node(node, form).seconds(rates));
        if absorbed <= expanded { TimedForm::Absorbed } else { TimedForm::Expanded }
    };
    let one_form = TimedForm::OF_NODES.map(|form| seconds(&|_| form));
    one_form.into_iter().fold(seconds(&cheaper), f64::min)
}

/// Queries at the ends of each node and of those below it.
fn queries_below(nodes: &[TreeNode]) -> Vec<usize> {
    let mut below: Vec<usize> = nodes.iter().map(|node| node.queries).collect();
    // Parents come before their children.
    for (node, TreeNode { parent, .. }) in nodes.iter().enumerate().rev() {
        if let Some(parent) = *parent {
            below[parent] += below[node];
        }
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::Dtype;

    #[test]
    fn each_node_has_its_cheaper_form() {
        let latents = LatentHeads { heads: 4, rank: 32, nope: 8, rope: 4, value: 8 };
        let node = |parent, queries| TreeNode { parent, tokens: 1000, queries };
        let nodes = vec![node(None, 98), node(Some(0), 1), node(Some(0), 1)];
        assert_eq!(queries_below(&nodes), [100, 1, 1]);
        let (heads, dtype) = (latents.absorbed(), Dtype::F16);
        let tree = TreeSpec { name: "t".to_owned(), heads, latents: Some(latents), dtype, nodes };
        let floor = |bytes_per_s, flops_per_s| floor_seconds(&tree, latents, 2, Rates { bytes_per_s, flops_per_s });
        // Bytes alone count: a latent of 36 elements a token, and 68 of each query and result.
        assert_eq!(floor(1.0, 1e30), (3000 * 36 * 2 + 100 * 4 * 68 * 2) as f64);
        // Products alone: 20 of each pair and head where they are expanded, which is less than 68.
        assert_eq!(floor(1e30, 1.0), (2 * 4 * 20 * (1000 * 100 + 2 * 1000)) as f64);
        // The node of many queries is expanded, the others are not; queries and results are there in both forms.
        let bytes = 1000 * 4 * 20 * 2 + 2000 * 36 * 2 + 100 * 4 * (20 + 68) * 2;
        assert_eq!(floor(1.0, 100.0), bytes as f64);
    }
}
