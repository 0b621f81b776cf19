//! Eight answers to one question, sampled as one tree: the question's keys and values are stored, read and multiplied
//! once.
//!
//!     cargo run --release --example quickstart

use offshoot::engine::{SamplingParams, Stop};
use offshoot::tokenizer::AddSpecial;
use offshoot::tree::SamplingTree;

fn main() -> offshoot::Result<()> {
    let (engine, tokenizer) = offshoot::open("tasks/models/demo".as_ref())?;
    let question =
        "Question: Tom has 12 boxes with 15 pens in each. Tom loses 30 pens. How many pens does Tom have now?\nAnswer:";
    let prompt = tokenizer.encode(question, AddSpecial::Yes)?;

    let mut tree = SamplingTree::new(engine, "pens", 1, prompt, question.to_string())?;
    let answers = tree.fork(tree.root(), 8)?;
    let how = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let stop = Stop { strings: vec!["\n\n".to_string()], ..Stop::max_tokens(100) };
    tree.extend(&answers, &how, &stop)?;

    for node in answers {
        println!("{:8.2}  {}", tree.node(node).logprob, tree.node(node).text.trim().replace('\n', " | "));
    }
    Ok(())
}
