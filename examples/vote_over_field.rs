//! A vote over a field of JSON: 16 samples whose texts a schema holds to one form, and the answer that most of them
//! give.
//!
//!     cargo run --release --example vote_over_field

use offshoot::search::{Assessment, Decided, JsonPointer, SearchJob, self_consistency};
use offshoot::{Form, Model, SamplingParams, Stop};
use serde_json::json;

fn main() -> offshoot::Result<()> {
    let model = Model::open("tasks/models/demo")?;
    let mut tree = model.tree("Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:")?;
    let schema = json!({
        "type": "object",
        "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["answer"],
        "additionalProperties": false
    });
    let how = SamplingParams::default().temperature(0.8).form(Form::Json(schema));
    let stop = Stop::max_tokens(100);
    let answer = JsonPointer::new("/answer")?;
    let mut job = SearchJob::new(&how, &stop).assessed_by(|text: &str| Assessment::graded(answer.answer(text), None));
    let root = tree.root();
    let outcome = self_consistency(&mut tree, root, 16, Decided::Never, &mut job)?;
    println!("{:?} by {:?}", outcome.prediction, outcome.votes);
    Ok(())
}
