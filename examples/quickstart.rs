//! Eight answers to one question, sampled as one tree: the question's keys and values are stored, read and multiplied
//! once.
//!
//!     cargo run --release --example quickstart

use offshoot::{Model, SamplingParams, Stop};

fn main() -> offshoot::Result<()> {
    let model = Model::open("tasks/models/demo")?;
    let question =
        "Question: Tom has 12 boxes with 15 pens in each. Tom loses 30 pens. How many pens does Tom have now?\nAnswer:";
    let mut tree = model.tree(question)?.seed(1).named("pens");
    let answers = tree.fork(tree.root(), 8)?;
    tree.extend(&answers, &SamplingParams::default().temperature(0.8), &Stop::max_tokens(100).at("\n\n"))?;
    for node in answers {
        println!("{:8.2}  {}", tree.node(node).logprob, tree.node(node).text.trim().replace('\n', " | "));
    }
    Ok(())
}
