//! The texts of published models: what their cards, search-and-learn and reward_hub make of a question and an answer,
//! written out by hand.

use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_score::{Rendered, Scale, ScoreForm, ScorerConfig};
use offshoot_text::{AddSpecial, Tokenizer};
use serde_json::json;

use crate::shared::shared;
use crate::tokenizers::{CHATML, TestTokenizer, asked, built_in, form, places, resolve, resolved, tokens};

const QUESTION: &str = "Sam has 3 boxes of 12 pens. How many pens are that?";
const STEPS: [&str; 3] = ["Each box has 12 pens.", "3 * 12 = 36.", "The answer is 36."];

fn at(rendered: &Rendered) -> Vec<usize> {
    rendered.reads.iter().map(|place| place.at).collect()
}

fn steps_of(rendered: &Rendered) -> Vec<usize> {
    rendered.reads.iter().map(|place| place.step).collect()
}

/// search-and-learn's Qwen2.5-Math-PRM: blank lines become the tag, and one stands at the end. reward_hub splits at
/// blank lines and joins by the tag.
fn check_step_tag(tokenizer: &Arc<Tokenizer>) {
    let scorer = resolved(&built_in("step-tag"), tokenizer, 2);
    let answer = STEPS.join("\n\n").replace("\n\n", "<extra_0>");
    let text = format!(
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{{}}.<|im_end|>\n\
         <|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n{answer}<extra_0>"
    );
    let expected = tokens(tokenizer, &text);
    let tag = tokenizer.token("<extra_0>").unwrap();
    let cut = STEPS.map(|step| format!("{step}\n\n"));
    let whole = [STEPS.join("\n\n")];
    for (steps, numbers) in [(&cut[..], [0, 1, 2]), (&whole[..], [0, 0, 0])] {
        let rendered = scorer.render(&asked(QUESTION), steps).unwrap();
        assert_eq!(rendered.tokens, expected);
        assert_eq!(at(&rendered), places(&expected, tag));
        assert_eq!((steps_of(&rendered), rendered.trunk), (numbers.to_vec(), expected.len()));
    }
}

#[test]
fn two_classes_at_a_step_tag() {
    check_step_tag(&TestTokenizer::demo(CHATML).tokenizer);
    let Some(qwen2) = TestTokenizer::qwen2() else { return };
    check_step_tag(&qwen2);
}

#[test]
fn math_shepherd_s_tags_and_words() {
    let Some(tokenizer) = TestTokenizer::mistral() else { return };
    let form = built_in("words-at-tag");
    // The pieces with a space before them; "+" and "-" alone are 28806 and 28733, "ки" alone is 1107.
    assert_eq!(form.words(&tokenizer).unwrap(), Some(vec![TokenId(648), TokenId(387)]));
    let scorer = resolved(&form, &tokenizer, 2);
    let text = format!("{QUESTION} {} ки\n{} ки\n{} ки", STEPS[0], STEPS[1], STEPS[2]);
    let expected = tokenizer.encode(&text, AddSpecial::Yes).unwrap();
    assert_eq!(expected[0], tokenizer.bos().unwrap());
    // White space at a step's end would be part of the tag's token.
    let rendered = scorer.render(&asked(QUESTION), &[format!("{}\n\n{} \n\n", STEPS[0], STEPS[1]), STEPS[2].into()]);
    let rendered = rendered.unwrap();
    assert_eq!(rendered.tokens, expected);
    assert_eq!(at(&rendered), places(&expected, TokenId(12902)));
    assert_eq!(steps_of(&rendered), [0, 0, 1]);
}

/// search-and-learn writes the system prompt and the question a line each, a space, and blank lines behind the tags.
#[test]
fn math_shepherd_as_search_and_learn_writes_it() {
    let Some(tokenizer) = TestTokenizer::mistral() else { return };
    let own = form(json!({
        "text": {"plain": {"text": "{{question}}\n {{answer}}", "special_tokens": true,
            "read": {"tags": {"tag": " ки", "between": "\n\n"}}}},
        "output": {"words": {"good": [" +"], "bad": [" -"]}}
    }));
    let question = [offshoot_text::Message::system("Solve it."), offshoot_text::Message::user(QUESTION)];
    let text = format!("Solve it.\n{QUESTION}\n {}", STEPS.join("\n\n").replace("\n\n", " ки\n\n") + " ки");
    let rendered = resolved(&own, &tokenizer, 2).render(&question, &[STEPS.join("\n\n")]).unwrap();
    assert_eq!(rendered.tokens, tokenizer.encode(&text, AddSpecial::Yes).unwrap());
    assert_eq!(at(&rendered), places(&rendered.tokens, TokenId(12902)));
}

/// A conversation that grows by a step and "+" at a time: the value is read at index -3 of each, in which "+" is -2 and
/// the end of the turn -1.
#[test]
fn rlhflow_s_pluses_at_the_assistant_s_turns() {
    let Some(tokenizer) = &TestTokenizer::llama3() else { return };
    let form = built_in("words-at-turn");
    assert_eq!(form.words(tokenizer).unwrap(), Some(vec![TokenId(10), TokenId(12)]));
    let scorer = resolved(&form, tokenizer, 2);
    let turn = |role: &str, text: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>");
    let mut text = "<|begin_of_text|>".to_owned();
    let mut expected = Vec::new();
    for (ix, step) in STEPS.iter().enumerate() {
        let said = if ix == 0 { format!("{QUESTION} {step}") } else { (*step).to_owned() };
        text += &(turn("user", &said) + &turn("assistant", "+"));
        expected.push(tokens(tokenizer, &text).len() - 3);
        let rendered = scorer.render(&asked(QUESTION), &STEPS[..=ix]).unwrap();
        assert_eq!(at(&rendered), expected);
        assert_eq!(rendered.tokens, tokens(tokenizer, &text)[..expected[ix] + 1]);
    }
}

/// Each line is encoded alone and followed by the token of a line end, empty lines too. The text as a whole would have
/// one token for two line ends.
fn skywork(tokenizer: &Tokenizer, question: &str, answer: &str) -> (Vec<TokenId>, Vec<usize>) {
    let end = *tokens(tokenizer, "\n").last().unwrap();
    let bos = tokenizer.named_token("bos_token").unwrap();
    let mut all = tokens(tokenizer, &format!("{bos}{question}\n"));
    let mut flagged = Vec::new();
    for line in answer.split('\n') {
        if !line.is_empty() {
            all.extend(tokens(tokenizer, line));
        }
        all.push(end);
        flagged.push(all.len() - 1);
    }
    (all, flagged)
}

#[test]
fn skywork_s_line_ends() {
    let demo = TestTokenizer::demo(CHATML);
    for tokenizer in [Some(demo.tokenizer), TestTokenizer::qwen2()].iter().flatten() {
        let scorer = resolved(&built_in("step-lines"), tokenizer, 1);
        let answer = STEPS.join("\n\n");
        let (expected, flagged) = skywork(tokenizer, QUESTION, &answer);
        let rendered = scorer.render(&asked(QUESTION), &[&*answer]).unwrap();
        assert_eq!((at(&rendered), &rendered.tokens), (flagged, &expected));
        // The same tokens and places step by step.
        let steps = [format!("{}\n\n", STEPS[0]), format!("{}\n\n", STEPS[1]), STEPS[2].to_owned()];
        let by_steps = scorer.render(&asked(QUESTION), &steps).unwrap();
        assert_eq!((&by_steps.tokens, at(&by_steps)), (&expected, at(&rendered)));
        assert_eq!(steps_of(&by_steps), [0, 0, 1, 1, 2]);
    }
}

/// TRL's process reward models: the prompt, and each step and separator encoded alone.
#[test]
fn separators_of_token_classifiers() {
    let demo = TestTokenizer::demo(CHATML);
    let tokenizer = &demo.tokenizer;
    let scorer = resolved(&built_in("separator"), tokenizer, 2);
    let mut expected = vec![tokenizer.bos().unwrap()];
    expected.extend(tokens(tokenizer, QUESTION));
    let mut ends = Vec::new();
    for step in STEPS {
        expected.extend(tokens(tokenizer, step));
        expected.extend(tokens(tokenizer, "\n\n"));
        ends.push(expected.len() - 1);
    }
    let rendered = scorer.render(&asked(QUESTION), &STEPS).unwrap();
    assert_eq!((at(&rendered), &rendered.tokens), (ends, &expected));
}

/// Skywork-Reward-V2 on Qwen: the last token is the line end behind the answer's turn.
#[test]
fn the_last_token_of_a_conversation() {
    let demo = TestTokenizer::demo(CHATML);
    for tokenizer in [Some(demo.tokenizer), TestTokenizer::qwen2()].iter().flatten() {
        let scorer = resolved(&built_in("last-token"), tokenizer, 1);
        let text = format!(
            "<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n",
            STEPS.join("\n\n")
        );
        let expected = tokens(tokenizer, &text);
        let cut = STEPS.join("\n\n");
        let rendered = scorer.render(&asked(QUESTION), &[&*cut]).unwrap();
        assert_eq!((&rendered.tokens, at(&rendered)), (&expected, vec![expected.len() - 1]));
        assert_eq!(rendered.trunk, tokens(tokenizer, text.strip_suffix("<|im_end|>\n").unwrap()).len());
    }
}

/// Llama 3's template writes the beginning of text, once, and trims what turns say.
#[test]
fn one_beginning_of_text_and_trimmed_turns() {
    let Some(tokenizer) = &TestTokenizer::llama3() else { return };
    let scorer = resolved(&built_in("last-token"), tokenizer, 1);
    let turn = |role: &str, text: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>");
    let text = format!("<|begin_of_text|>{}{}", turn("user", QUESTION), turn("assistant", STEPS[0]));
    let rendered = scorer.render(&asked(QUESTION), &[format!("{}\n\n", STEPS[0])]).unwrap();
    assert_eq!(rendered.tokens, tokens(tokenizer, &text));
    assert_eq!(places(&rendered.tokens, tokenizer.bos().unwrap()), [0]);
    // All but the end of the turn stands in a longer answer, too, where the full stop is one token with the blank line.
    assert_eq!(rendered.trunk, rendered.tokens.len() - 1);
    let longer = scorer.render(&asked(QUESTION), &STEPS.map(|step| format!("{step}\n\n"))).unwrap();
    assert_eq!(longer.tokens[..rendered.trunk - 1], rendered.tokens[..rendered.trunk - 1]);
}

/// Athene reads its scorer's own token behind the conversation.
#[test]
fn a_token_behind_the_conversation() {
    let Some(tokenizer) = &TestTokenizer::llama3() else { return };
    let with = |text: &str| {
        form(json!({
            "text": {"chat": {"read": {"end": {"append": text}}}},
            "output": {"column": {"activation": "none"}}
        }))
    };
    let rendered = |text: &str| resolved(&with(text), tokenizer, 1).render(&asked(QUESTION), &STEPS).unwrap();
    let bare = resolved(&built_in("last-token"), tokenizer, 1).render(&asked(QUESTION), &STEPS).unwrap();
    let appended = rendered("<|reserved_special_token_1|>");
    assert_eq!(appended.tokens.split_last(), Some((&TokenId(128_003), &*bare.tokens)));
    assert_eq!((appended.reads[0].at, appended.trunk), (bare.tokens.len(), bare.trunk));
    // What the template writes already is not written twice.
    assert_eq!(rendered("<|eot_id|>").tokens, bare.tokens);
}

/// Nemotron's reward is the logit of token 0 where the next turn's first token would be.
#[test]
fn the_logit_of_one_token() {
    let demo = TestTokenizer::demo(CHATML);
    let form = built_in("token-logit");
    assert_eq!(form.words(&demo.tokenizer).unwrap(), Some(vec![TokenId(0)]));
    let scorer = resolved(&form, &demo.tokenizer, 1);
    let rendered = scorer.render(&asked(QUESTION), &STEPS).unwrap();
    assert_eq!(scorer.scores(&rendered, &[[-2.5]]).unwrap().scores[0].score, -2.5);
}

/// What was computed for the first steps stands at the beginning of what more steps need, in all forms with values for
/// steps.
#[test]
fn each_step_goes_on_from_the_one_before() {
    let demo = TestTokenizer::demo(CHATML);
    let mut all = vec![("step-tag", 2, demo.tokenizer)];
    all.extend(TestTokenizer::qwen2().map(|qwen2| ("step-tag", 2, qwen2)));
    all.extend(TestTokenizer::qwen2().map(|qwen2| ("step-lines", 1, qwen2)));
    all.extend(TestTokenizer::llama3().map(|llama3| ("words-at-turn", 2, llama3)));
    all.extend(TestTokenizer::llama3().map(|llama3| ("separator", 2, llama3)));
    all.extend(TestTokenizer::mistral().map(|mistral| ("words-at-tag", 2, mistral)));
    let steps = ["First, 3 * 12 = 36.\n\n", "Then:\n- 36 + 0\n- is 36\n\n", "So\n\n", "the answer is $36$."];
    for (name, width, tokenizer) in &all {
        let scorer = resolved(&built_in(name), tokenizer, *width);
        let rendered = |most: usize| scorer.render(&asked(QUESTION), &steps[..most]).unwrap();
        let whole = rendered(steps.len());
        for most in 1..steps.len() {
            let begun = rendered(most);
            assert_eq!(begun.tokens, whole.tokens[..begun.tokens.len()], "{name}");
            assert_eq!(begun.reads, whole.reads[..begun.reads.len()], "{name}");
            assert_eq!(begun.trunk, begun.tokens.len(), "{name}");
        }
    }
}

/// The configs of the reward goldens: a class of each kind, and labels that contradict the head's width.
#[test]
fn configs_of_reward_models_tell_their_forms() {
    let goldens = [
        ("reward-qwen2-math-prm", 2, "step-tag", Scale::Probability),
        ("reward-qwen3-classifier", 1, "last-token", Scale::Logit),
        ("reward-skywork-prm", 1, "step-lines", Scale::Probability),
    ];
    let demo = TestTokenizer::demo(CHATML);
    for (folder, width, name, scale) in goldens {
        let Some(folder) = shared(&format!("goldens_modern/{folder}")) else { return };
        let config = ScorerConfig::read(&folder).unwrap();
        let form = ScoreForm::of_model(None, &folder, config.class()).unwrap();
        assert_eq!(form, built_in(name));
        let scorer = resolve(&form, &demo.tokenizer, &config.head(width)).unwrap();
        assert_eq!(scorer.scale(), scale, "{name}");
        let rendered = scorer.render(&asked(QUESTION), &STEPS).unwrap();
        // The second column of two is that of good steps, whatever the labels are called.
        let values = vec![if width == 2 { vec![0.0, 3f32.ln()] } else { vec![3f32.ln()] }; rendered.reads.len()];
        let score = scorer.scores(&rendered, &values).unwrap().scores[0].score;
        let expected = if scale == Scale::Probability { 0.75 } else { 3f64.ln() };
        assert!((score - expected).abs() < 1e-6, "{name}: {score}");
    }
}
