//! Searches by a judge that compares samples: when they are compared, and what a resumed search compares again.

use std::sync::Arc;

use offshoot_core::Error;
use offshoot_score::Scale;
use offshoot_search::settings::SampleScoring;
use offshoot_search::{Assessor, ModelScores, OnScorerError, Sample, SampleScore, Scorer, best_by_scorer};
use offshoot_verdict::{
    Ask, ItemVerdicts, JudgeAnswer, JudgePrompt, PairAnswer, PairRule, Question, ScriptedJudge, Verdict,
};
use serde_json::{Map, Value, json};

use super::scorers::{assess, order, texts};

/// A judge of pairs that likes the letter that is later in the alphabet, and fails where a text is `bad`.
fn likes_late_letters() -> (Arc<ScriptedJudge>, ItemVerdicts) {
    let judge = Arc::new(ScriptedJudge::new(|question: &Question| {
        let JudgePrompt::Text(shown) = &question.prompt else { panic!("prompts are texts") };
        let (first, second) = shown.split_once('|').expect("two texts are shown");
        match shown.contains("bad") {
            true => Err(Error::value("text to compare", "a letter", shown)),
            false => Ok(JudgeAnswer::Words(if first > second { vec![1.0, 0.0] } else { vec![0.0, 1.0] })),
        }
    }));
    let pairs = PairRule::new(PairAnswer::words("A", "B").expect("they differ"), true, None).expect("all meet");
    let write = |fields: &Map<String, Value>| {
        let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
        Ok(JudgePrompt::Text(format!("{}|{}", text("first"), text("second"))))
    };
    let asked: Arc<dyn Ask> = Arc::clone(&judge) as _;
    (judge, ItemVerdicts::new(asked, Arc::new(Verdict::Pairs(pairs)), Arc::new(write), 0))
}

#[test]
fn samples_are_compared_once_all_have_come() {
    let run = |says: &'static [&'static str], n: usize, earlier: Vec<Sample>| {
        let (judge, verdicts) = likes_late_letters();
        let (order, mut record) = (order(false), |sample: &Sample| {
            assert!(sample.scored.is_none(), "what is sampled is recorded before it is scored");
            Ok(())
        });
        let mut job = order.job(Assessor::new(assess), &mut record);
        job.earlier = earlier;
        let mut tree = texts(says);
        let scores = ModelScores::over("a judge", Scale::Probability, Ok(verdicts.tree()), OnScorerError::Unscored);
        let mut scorer = Scorer::Model(Box::new(scores.expect("it takes the problem")));
        let root = tree.root();
        let outcome = best_by_scorer(&mut tree, root, n, &mut scorer, &SampleScoring::default(), &mut job);
        (outcome.expect("nothing fails"), judge.questions().len())
    };
    let (outcome, questions) = run(&["b", "c", "a", "c"], 4, Vec::new());
    assert_eq!(questions, 6, "the two equal texts are one");
    assert_eq!(outcome.samples.iter().map(Sample::score).collect::<Vec<_>>(), [0.5, 1.0, 0.0, 1.0].map(Some));
    assert_eq!((outcome.chosen, &outcome.tied[..]), (Some(1), &[1, 3][..]));
    let Some(SampleScore::Scored { verdict, score_tokens, .. }) = &outcome.samples[0].scored else { panic!() };
    assert_eq!(verdict, &Some(json!({"won": 1.0, "of": 2})));
    assert_eq!(*score_tokens, Some(4 * "b|c".len()));
    let work = outcome.scorer.clone().expect("it was asked");
    assert_eq!((work.texts, work.unscored), (3, 0));

    // All have their scores: nothing is asked.
    let (again, questions) = run(&[], 4, outcome.samples.clone());
    assert_eq!((again.chosen, questions), (Some(1), 0));
    assert_eq!(again.samples, outcome.samples);

    // One was not scored: all are compared again, with those that are sampled now.
    let mut earlier = outcome.samples[..2].to_vec();
    earlier[1].scored = None;
    let (again, questions) = run(&["d", "a"], 4, earlier);
    assert_eq!(questions, 12);
    let scores: Vec<Option<f64>> = again.samples.iter().map(Sample::score).collect();
    assert_eq!(scores, [1.0 / 3.0, 2.0 / 3.0, 1.0, 0.0].map(Some));

    // What cannot be compared has no score, and the others have theirs.
    let (outcome, _) = run(&["b", "bad", "a"], 3, Vec::new());
    assert_eq!(outcome.samples.iter().map(Sample::score).collect::<Vec<_>>(), [Some(1.0), None, Some(0.0)]);
    let error = outcome.scorer.expect("it was asked").first_error.expect("one failed");
    assert!(error.contains("text to compare"), "{error}");
}
