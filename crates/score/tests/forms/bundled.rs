//! The form of the bundled reward model against the tokens of its training, which Python has made.

use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use offshoot_core::ids::TokenId;
use offshoot_score::{ResolvedForm, Scale, ScoreForm, ScorerConfig};
use offshoot_text::{Message, Tokenizer};
use serde_json::Value;

#[test]
fn the_bundled_reward_model_reads_what_it_was_trained_on() {
    let folder = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/reward");
    let golden: Value = serde_json::from_slice(&std::fs::read(folder.join("golden_scores.json")).unwrap()).unwrap();
    let numbers = |name: &str| golden[name].as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize);
    let tokenizer = Arc::new(Tokenizer::load(&folder).unwrap());
    let config = ScorerConfig::read(&folder).unwrap();
    let form = ScoreForm::of_model(None, &folder, config.class()).unwrap();
    let scorer = ResolvedForm::new(&form, tokenizer, &config.head(1), UNIX_EPOCH).unwrap();
    assert_eq!(scorer.scale(), Scale::Probability);

    let question = [Message::user(golden["question"].as_str().unwrap())];
    let answer = golden["answer"].as_str().unwrap();
    let lines: Vec<&str> = answer.split_inclusive('\n').collect();
    for steps in [vec![answer], lines] {
        let rendered = scorer.render(&question, &steps).unwrap();
        let tokens: Vec<TokenId> = numbers("prompt").map(TokenId::new).collect();
        assert_eq!(rendered.tokens, tokens, "{} steps", steps.len());
        let reads: Vec<usize> = rendered.reads.iter().map(|place| place.at).collect();
        assert_eq!(reads, numbers("positions").collect::<Vec<_>>(), "{} steps", steps.len());
    }
}
