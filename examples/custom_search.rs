//! A search of one's own: eight first lines of a solution are sampled, the two of which the model is surest are kept,
//! each is finished eight times, and the sixteen answers vote. Beside it, sixteen solutions sampled at one go.
//!
//!     cargo run --release --example custom_search

use std::collections::BTreeMap;

use offshoot::engine::{SamplingParams, Stop};
use offshoot::tokenizer::AddSpecial;
use offshoot::tree::SamplingTree;
use petgraph::graph::NodeIndex;

fn main() -> offshoot::Result<()> {
    let (engine, tokenizer) = offshoot::open("tasks/models/demo".as_ref())?;
    let question =
        "Question: A baker buys 6 boxes with 48 eggs in each. The baker uses 97 eggs. How many eggs are left?\nAnswer:";
    let prompt = tokenizer.encode(question, AddSpecial::Yes)?;

    // A tree is the record of one search. Its root is the prompt; every fork shares what is above it.
    let mut tree = SamplingTree::new(engine, "eggs", 1, prompt, question.to_string())?;
    let how = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let line = Stop { strings: vec!["\n".to_string()], include_stop: true, ..Stop::max_tokens(60) };
    let end = Stop { strings: vec!["\n\n".to_string()], ..Stop::max_tokens(200) };

    // Fork, then extend: all eight starts grow in one batch, each until its line ends.
    let mut starts = tree.fork(tree.root(), 8)?;
    tree.extend(&starts, &how, &line)?;

    // Score: here the mean log-probability of a thought's tokens. Any number will do: a model's verdict, a program's.
    for &start in &starts {
        let mean = tree.node(start).logprob / tree.node(start).tokens.len() as f64;
        tree.set_score(start, mean);
    }
    starts.sort_by(|&a, &b| tree.node(b).score.partial_cmp(&tree.node(a).score).expect("no score is NaN"));

    // Prune: the engine takes the memory back, the tree keeps the record.
    for rejected in starts.split_off(2) {
        tree.prune(rejected);
    }
    let mut ends = Vec::new();
    for &start in &starts {
        println!("kept {:7.3}  {}", tree.node(start).score.expect("scored above"), tree.node(start).text.trim());
        ends.extend(tree.fork(start, 8)?);
    }
    tree.extend(&ends, &how, &end)?;
    println!("two starts, eight ends each: {:?}", votes(&tree, &ends));

    // The same number of answers without a search, for comparison.
    let whole = tree.fork(tree.root(), 16)?;
    tree.extend(&whole, &how, &end)?;
    println!("sixteen at one go:           {:?}", votes(&tree, &whole));
    Ok(())
}

/// How often each answer was given; it stands behind `####`.
fn votes(tree: &SamplingTree, ends: &[NodeIndex]) -> BTreeMap<String, usize> {
    let mut votes = BTreeMap::new();
    for &end in ends {
        let text = tree.path_text(end);
        let answer = text.rsplit_once("#### ").map_or("none", |(_, answer)| answer.trim());
        *votes.entry(answer.to_string()).or_default() += 1;
    }
    votes
}
