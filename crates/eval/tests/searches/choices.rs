//! Choosing among offered answers: the scores against whole prompts computed apart, what is computed how often, and the
//! tasks that offer answers.

use crate::job;
use crate::shared;

use std::path::Path;

use offshoot_core::ids::TokenId;
use offshoot_engine::scripted::{text_of, tokens_of};
use offshoot_engine::{Continuation, EngineHandle, ScriptedReply};
use offshoot_eval::task::{Overrides, Task, TaskPrompt};
use offshoot_search::choose::{Neutral, OfferedChoice};
use offshoot_search::settings::ChooseBy;
use offshoot_search::tree::SamplingTree;
use offshoot_search::{Assessment, Assessor, Details, Outcome, choose};
use offshoot_text::{AddSpecial, Tokenizer};

use job::Order;

fn assess(text: &str) -> Assessment {
    Assessment::graded(Some(text.to_string()), Some(text == "two"))
}

fn chosen(tree: &mut SamplingTree, choices: &[OfferedChoice], by: ChooseBy) -> Outcome {
    let (order, mut record) = (Order::default(), |_: &_| Ok(()));
    let mut job = order.job(Assessor::new(assess), &mut record);
    let root = tree.root();
    choose(tree, root, choices, by, &mut job).expect("nothing fails")
}

fn logprobs(outcome: &Outcome) -> Vec<f64> {
    let Some(Details::Choices { choices }) = &outcome.details else { panic!("choices") };
    choices.iter().map(|choice| choice.logprob).collect()
}

/// After `Q:` each letter costs what it is worth below; after anything else each costs 1.
fn priced() -> SamplingTree {
    let engine = EngineHandle::scripted(|call| {
        let Continuation::Given { tokens, .. } = call.continuation else { panic!("nothing is drawn") };
        let price = if call.text() == "Q:" { 2.0 } else { 1.0 };
        let letters = text_of(tokens);
        ScriptedReply::scores(letters.bytes().map(|letter| if letter == b'!' { -0.25 } else { -price }).collect())
    });
    job::tree_on(engine, "Q:")
}

fn choice(label: &str, text: &str, bytes: usize, neutral: bool) -> OfferedChoice {
    let neutral = neutral.then(|| Neutral { prompt: tokens_of("A:"), tokens: tokens_of(text) });
    OfferedChoice { label: label.to_string(), bytes, tokens: tokens_of(text), neutral }
}

#[test]
fn the_measure_decides_and_of_equals_the_first() {
    // Log-probabilities -2, -2.25, -4.5, -4.5.
    let choices = [("one", "x", 1), ("two", "x!", 9), ("three", "xx!!", 1), ("four", "xx!!", 1)];
    let choices = choices.map(|(label, text, bytes)| choice(label, text, bytes, false));
    for (by, label) in [(ChooseBy::Logprob, "one"), (ChooseBy::MeanLogprob, "two"), (ChooseBy::PerByte, "two")] {
        let outcome = chosen(&mut priced(), &choices, by);
        assert_eq!(logprobs(&outcome), [-2.0, -2.25, -4.5, -4.5]);
        assert_eq!(outcome.prediction.as_deref(), Some(label), "{by:?}");
        assert_eq!(outcome.correct, Some(label == "two"));
    }
    let equal = chosen(&mut priced(), &choices[2..], ChooseBy::Logprob);
    assert_eq!(equal.prediction.as_deref(), Some("three"));
}

#[test]
fn what_says_nothing_is_taken_off() {
    // -2 + 1 = -1; -4 - 0.25 + 2 + 0.25 = -2; alone "!" gains nothing and loses nothing.
    let choices = [("one", "x"), ("two", "!"), ("three", "xx!")].map(|(label, text)| choice(label, text, 1, true));
    let outcome = chosen(&mut priced(), &choices, ChooseBy::Logprob);
    let Some(Details::Choices { choices }) = &outcome.details else { panic!("choices") };
    assert_eq!(choices.iter().map(|choice| choice.score).collect::<Vec<_>>(), [-1.0, 0.0, -2.0]);
    assert_eq!(outcome.prediction.as_deref(), Some("two"));
}

#[test]
fn choices_score_as_whole_prompts_do_and_the_prompt_is_computed_once() {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
    let (engine, tokenizer) = offshoot_launch::open(&model).expect("the bundled model");
    let levels = [
        "The cat named Fizada sleeps in the station. The dog named Rolo has fur that is grey.\n\n",
        "Question: Where does the cat named Fizada sleep?\nAnswer:",
    ];
    let levels = levels.map(String::from);
    let texts = [" station", " garden", " old tower", " grey"].map(String::from);
    let encoded = tokenizer.encode_choices(&levels, &texts, AddSpecial::Yes).expect("text");
    let prompt = encoded.prompt.tokens.clone();
    let offered = |(text, tokens): (&String, &Vec<TokenId>)| OfferedChoice {
        label: text.trim().to_string(),
        bytes: text.len() - 1,
        tokens: tokens.clone(),
        neutral: None,
    };
    let choices: Vec<OfferedChoice> = texts.iter().zip(&encoded.continuations).map(offered).collect();
    let mut tree = SamplingTree::new(engine.clone(), prompt.clone().into()).expect("short enough");
    let outcome = chosen(&mut tree, &choices, ChooseBy::Logprob);
    assert_eq!(outcome.prediction.as_deref(), Some("station"));
    let metrics = engine.metrics().expect("it lives");
    // Of a choice's own tokens the last is not computed: nothing is asked of what follows it.
    let own: usize = choices.iter().map(|choice| choice.tokens.len() - 1).sum();
    let most = (prompt.len() + own) as u64;
    assert!(metrics.prompt_tokens_computed <= most, "{} of {most}", metrics.prompt_tokens_computed);
    assert!(metrics.prompt_tokens_logical >= 4 * prompt.len() as u64 - 4, "{}", metrics.prompt_tokens_logical);

    for (text, logprob) in texts.iter().zip(logprobs(&outcome)) {
        let (alone, _) = offshoot_launch::open(&model).expect("the bundled model");
        let whole = tokenizer.encode(&(levels.concat() + text), AddSpecial::Yes).expect("text");
        let (before, after) = whole.split_at(prompt.len());
        assert_eq!(before, prompt, "no token crosses the seam here");
        let tree = SamplingTree::new(alone, before.to_vec().into()).expect("short enough");
        let score = &tree.score(&[tree.root()], after).expect("it scores")[0];
        assert_eq!(score.sum, logprob, "{text}: on the CPU to the last bit");
    }
}

#[test]
fn a_token_across_the_seam_shortens_the_prompt_for_all() {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
    let tokenizer = Tokenizer::load(&model).expect("the bundled model");
    let levels = ["Question: x\nAns".to_string()];
    let texts = ["?", "wer", "!"].map(String::from);
    let encoded = tokenizer.encode_choices(&levels, &texts, AddSpecial::Yes).expect("text");
    for (text, continuation) in texts.iter().zip(&encoded.continuations) {
        let whole = tokenizer.encode(&(levels[0].clone() + text), AddSpecial::Yes).expect("text");
        assert_eq!([encoded.prompt.tokens.clone(), continuation.clone()].concat(), whole);
    }
    let alone = tokenizer.encode(&levels[0], AddSpecial::Yes).expect("text");
    assert!(encoded.prompt.tokens.len() < alone.len(), "`Answer` is one token");
    assert_eq!(encoded.prompt.level_ends, [encoded.prompt.tokens.len()]);
    let empty = tokenizer.encode_choices(&levels, &[String::new()], AddSpecial::Yes);
    assert!(empty.expect_err("nothing to score").to_string().contains("at least one token"));
}

#[test]
fn mmlu_has_its_subjects_own_examples() {
    let Some(data) = shared::shared("data/mmlu") else { return };
    let ready = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/ready/mmlu.json");
    let load = |path: &str| {
        let set = vec![format!("items.path={}", data.join(path).display())];
        Task::load(&ready, &Overrides { set, ..Overrides::default() }).expect("the ready task")
    };
    let task = load("test");
    let items = task.items(None).expect("csv");
    let of_pattern = load("test/*_test.csv").items(None).expect("csv");
    assert_eq!(
        items.iter().map(|item| &item.id).collect::<Vec<_>>(),
        of_pattern.iter().map(|item| &item.id).collect::<Vec<_>>()
    );
    let one = load("test/abstract_algebra_test.csv");
    let own = one.items(None).expect("csv");
    assert!(own.iter().all(|item| item.fields["subject"] == "abstract_algebra") && own.len() < items.len());
    assert_eq!(one.prompt(&own[3]).expect("all fields"), task.prompt(&items[3]).expect("all fields"));
    let other = load("dev/abstract_algebra_dev.csv").items(None).expect_err("not a file of questions").to_string();
    assert!(other.contains("expected a file named `*_test.csv`"), "{other}");
    let first =
        |subject: &str| items.iter().find(|item| item.id == format!("{subject}/0")).expect("its first question");
    let TaskPrompt::Levels(levels) = task.prompt(first("college_computer_science")).expect("all fields") else {
        panic!("levels")
    };
    assert!(levels[0].ends_with("about college computer science.\n\n"));
    assert!(levels[1].starts_with("Which of the following regular expressions") && levels[1].ends_with("\n\n"));
    assert_eq!(levels[1].matches("\nAnswer: ").count(), 5);
    assert!(levels[2].ends_with("\nAnswer:"));
    let TaskPrompt::Levels(others) = task.prompt(first("abstract_algebra")).expect("all fields") else {
        panic!("levels")
    };
    assert_ne!(levels[1], others[1]);
    let references: Vec<_> = items.iter().map(|item| item.reference().expect("graded")).collect();
    assert!(references.iter().all(|letter| ["A", "B", "C", "D"].contains(&letter.as_str())));
}
