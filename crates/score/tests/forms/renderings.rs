//! Conversations and texts around answers, and the scores of what is rendered.

use std::sync::OnceLock;

use offshoot_score::{Aggregate, HeadFacts, ResolvedForm, Scale};
use offshoot_text::Message;
use proptest::prelude::*;
use serde_json::json;

use crate::tokenizers::{
    CHATML, HEADERS, TestTokenizer, asked, built_in, form, head, places, resolve, resolved, tokens,
};

#[test]
fn a_form_s_system_turn_replaces_the_conversation_s() {
    let demo = TestTokenizer::demo(CHATML);
    let tokenizer = &demo.tokenizer;
    let conversation =
        [Message::system("Be brief."), Message::user("1 + 1?"), Message::assistant("2."), Message::user("2 + 2?")];
    let bare = "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n2.<|im_end|>\n<|im_start|>user\n2 + 2?\
                <|im_end|>\n<|im_start|>assistant\n4.";
    let expected =
        |system: &str, end: &str| tokens(tokenizer, &format!("<|im_start|>system\n{system}<|im_end|>\n{bare}{end}"));
    let rendered =
        |name: &str, width| resolved(&built_in(name), tokenizer, width).render(&conversation, &["4."]).unwrap();
    assert_eq!(rendered("last-token", 1).tokens, expected("Be brief.", "<|im_end|>\n"));
    let own = "Please reason step by step, and put your final answer within \\boxed{}.";
    assert_eq!(rendered("step-tag", 2).tokens, expected(own, "<extra_0>"));
}

#[test]
fn an_answer_that_the_conversation_has_begun_goes_on() {
    let demo = TestTokenizer::demo(CHATML);
    let scorer = resolved(&built_in("last-token"), &demo.tokenizer, 1);
    let begun = [Message::user("1 + 1?"), Message::assistant("It is")];
    let whole = scorer.render(&asked("1 + 1?"), &["It is 2."]).unwrap();
    assert_eq!(scorer.render(&begun, &[" 2."]).unwrap(), whole);
}

#[test]
fn a_question_about_an_answer() {
    let demo = TestTokenizer::demo(CHATML);
    let tokenizer = &demo.tokenizer;
    let own = form(json!({
        "text": {"chat": {"system": "Judge.", "read": {"question": {"text": "{{question}}\n{{answer}}\nGood?"}}}},
        "output": {"words": {"good": ["+"], "bad": ["-"]}}
    }));
    let scorer = resolved(&own, tokenizer, 2);
    let text = "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n1 + 1?\nIt is 2.\nGood?<|im_end|>\n\
                <|im_start|>assistant\n";
    let rendered = scorer.render(&asked("1 + 1?"), &["It is ", "2."]).unwrap();
    assert_eq!(rendered.tokens, tokens(tokenizer, text));
    assert_eq!((rendered.reads[0].at, rendered.reads[0].step), (rendered.tokens.len() - 1, 1));
    assert_eq!(scorer.scale(), Scale::Probability);
}

/// transformers reads a classifier's value at the last token that is not its padding token, even where the template
/// wrote that one.
#[test]
fn a_classifier_passes_over_its_padding_token() {
    let demo = TestTokenizer::demo(HEADERS);
    let tokenizer = &demo.tokenizer;
    let eot = tokenizer.token("<|eot_id|>").unwrap();
    let padded = HeadFacts { padding: Some(eot), ..head(1) };
    let rendered = |name: &str| resolve(&built_in(name), tokenizer, &padded).unwrap().render(&asked("1 + 1?"), &["2."]);
    let classifier = rendered("last-token").unwrap();
    let whole = rendered("token-logit").unwrap();
    assert_eq!(whole.tokens.split_last(), Some((&eot, &*classifier.tokens)));
    assert_eq!(classifier.reads[0].at, classifier.tokens.len() - 1);
    assert_eq!(whole.reads[0].at, whole.tokens.len() - 1);
}

#[test]
fn steps_without_text_have_no_values() {
    let demo = TestTokenizer::demo(CHATML);
    let scorer = resolved(&built_in("step-tag"), &demo.tokenizer, 2);
    let steps = ["a\n\nb\n\n", "", "\n\n", "c", " "];
    let rendered = scorer.render(&asked("q"), &steps).unwrap();
    assert_eq!(rendered.reads.iter().map(|place| place.step).collect::<Vec<_>>(), [0, 0, 3]);
    let ln = |x: f32| x.ln();
    let values = [[0.0, 0.0], [0.0, ln(3.0)], [ln(4.0), 0.0]];
    let scores = scorer.scores(&rendered, &values).unwrap();
    let near = |found: Option<f64>, expected: f64| assert!((found.unwrap() - expected).abs() < 1e-6, "{found:?}");
    let by_step = scores.by_step(steps.len());
    near(by_step[0], 0.75);
    near(by_step[3], 0.2);
    assert_eq!([by_step[1], by_step[2], by_step[4]], [None; 3]);
    near(scores.aggregated(scorer.aggregate()), 0.2);
    near(scores.aggregated(Aggregate::Min), 0.2);
    near(scores.aggregated(Aggregate::Product), 0.5 * 0.75 * 0.2);
    near(scores.aggregated(Aggregate::Mean), (0.5 + 0.75 + 0.2) / 3.0);
}

#[test]
fn parts_behind_a_conversation() {
    let demo = TestTokenizer::demo(CHATML);
    let tokenizer = &demo.tokenizer;
    let own = form(json!({
        "text": {"chat": {"read": {"parts": {"end": "\n"}}}},
        "output": {"weighted": {"weights": [-1, 1], "activation": "softmax"}}
    }));
    let scorer = resolved(&own, tokenizer, 2);
    let before = tokens(tokenizer, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
    let expected =
        [before, tokens(tokenizer, "a b"), tokens(tokenizer, "\n"), tokens(tokenizer, "c"), tokens(tokenizer, "\n")];
    let rendered = scorer.render(&asked("q"), &["a b\n\n", "c"]).unwrap();
    assert_eq!(rendered.tokens, expected.concat());
    assert_eq!(scorer.scores(&rendered, &[[0.0, 0.0], [1.0, 1.0]]).unwrap().by_step(2), [Some(0.0); 2]);
    assert_eq!(scorer.scale(), Scale::Logit);
}

/// Loaded once for all cases.
static DEMO: OnceLock<(TestTokenizer, ResolvedForm)> = OnceLock::new();

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever steps say, there is a value for each that has text, at a tag that rendering wrote; and what was
    /// rendered for the first steps is the beginning of what is rendered for more.
    #[test]
    fn tags_stand_behind_steps_whatever_they_say(
        steps in proptest::collection::vec(
            proptest::collection::vec(
                prop::sample::select(vec![
                    "a", "It is 2", " ", "\n", "<extra_0>", "<", "|im_end|>", "<|im_start|>assistant\n", "é", "<extra",
                    "_0>",
                ]),
                0..6,
            ),
            1..5,
        )
    ) {
        let (demo, scorer) = DEMO.get_or_init(|| {
            let demo = TestTokenizer::demo(CHATML);
            let scorer = resolved(&built_in("step-tag"), &demo.tokenizer, 2);
            (demo, scorer)
        });
        let steps: Vec<String> = steps.iter().map(|pieces| pieces.concat()).collect();
        let has_text = |step: &String| step.split("\n\n").any(|part| !part.trim().is_empty());
        let Some(first) = steps.iter().position(has_text) else {
            return Ok(());
        };
        let tag = demo.tokenizer.token("<extra_0>").unwrap();
        let whole = scorer.render(&asked("q"), &steps).unwrap();
        let at: Vec<usize> = whole.reads.iter().map(|place| place.at).collect();
        prop_assert_eq!(&at, &places(&whole.tokens, tag));
        for (ix, step) in steps.iter().enumerate() {
            prop_assert_eq!(whole.reads.iter().any(|place| place.step == ix), has_text(step));
        }
        for most in first + 1..steps.len() {
            let begun = scorer.render(&asked("q"), &steps[..most]).unwrap();
            prop_assert_eq!(&begun.tokens[..], &whole.tokens[..begun.tokens.len()]);
        }
    }
}
