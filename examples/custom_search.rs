//! A search of one's own: eight first lines of a solution are sampled, the two of which the model is surest are kept,
//! each is finished eight times, and the sixteen answers vote. Beside it, sixteen solutions sampled at one go.
//!
//!     cargo run --release --example custom_search

use std::collections::BTreeMap;

use offshoot::{FinishReason, Model, NodeId, SamplingParams, SamplingTree, Stop};

const QUESTION: &str =
    "Question: A baker buys 6 boxes with 48 eggs in each. The baker uses 97 eggs. How many eggs are left?\nAnswer:";

fn main() -> offshoot::Result<()> {
    let mut tree = Model::open("tasks/models/demo")?.tree(QUESTION)?.seed(1).named("eggs");
    let (how, end) = (SamplingParams::default().temperature(0.8), Stop::max_tokens(200).at("\n\n"));

    // All eight starts grow in one batch, each until its line ends; the two likeliest are kept. What is pruned gives
    // its memory back, and stays in the record.
    let mut starts = tree.fork(tree.root(), 8)?;
    tree.extend(&starts, &how, &Stop::max_tokens(60).at("\n").included())?;
    // With some starts the model may end its text; these do not go on.
    starts.retain(|&start| tree.node(start).finish != Some(FinishReason::EndOfText));
    starts.sort_by(|&a, &b| tree.node(b).mean_logprob().total_cmp(&tree.node(a).mean_logprob()));
    starts.split_off(starts.len().min(2)).into_iter().for_each(|rejected| tree.prune(rejected));

    let ends = tree.fork_all(&starts, 8)?;
    tree.extend(&ends, &how, &end)?;
    println!("two starts, eight ends each: {:?}", votes(&tree, &ends));

    // The same number of answers without a search, for comparison.
    let whole = tree.fork(tree.root(), 16)?;
    tree.extend(&whole, &how, &end)?;
    println!("sixteen at one go:           {:?}", votes(&tree, &whole));
    Ok(())
}

/// How often each answer was given; it stands behind `####`.
fn votes(tree: &SamplingTree, ends: &[NodeId]) -> BTreeMap<String, usize> {
    let mut votes = BTreeMap::new();
    for &end in ends {
        let text = tree.path_text(end);
        let answer = text.rsplit_once("#### ").map_or("none", |(_, answer)| answer.trim());
        *votes.entry(answer.to_string()).or_default() += 1;
    }
    votes
}
