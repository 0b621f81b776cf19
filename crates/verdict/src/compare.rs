//! Comparisons of the texts of one item: the questions about pairs and groups are asked, and their answers become the
//! verdict on each text. What is asked and how it counts is left to `pairs` and `groups`.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::answer::recorded;
use crate::gather::{Asker, first_error, gather, same};
use crate::groups::GroupRule;
use crate::item::{ItemVerdicts, TextVerdict};
use crate::pairs::PairRule;
use crate::question::{Answered, Question};
use crate::verdict::Verdict;
use offshoot_core::error::{Error, Result};

/// Takes the verdict on each of the compared texts, in their order.
pub(crate) type ThenCompared = Box<dyn FnOnce(Vec<Result<TextVerdict>>) + Send>;

/// The questions of a comparison, each written when it is asked.
type Questions = Box<dyn Iterator<Item = Result<Question>> + Send>;

/// Compares texts with each other, and returns at once.
pub(crate) fn compare(item: &ItemVerdicts, asker: Asker, texts: Vec<Arc<str>>, then: ThenCompared) {
    match item.verdict() {
        Verdict::Pairs(rule) => in_pairs(item, asker, rule.clone(), texts, then),
        Verdict::Groups(rule) => in_groups(item, asker, rule.clone(), texts, then),
        Verdict::Each(_) | Verdict::Rubric(_) => unreachable!("these judge texts one by one"),
    }
}

fn in_pairs(item: &ItemVerdicts, asker: Asker, rule: PairRule, texts: Vec<Arc<str>>, then: ThenCompared) {
    let plan = rule.plan(texts.len(), item.key());
    let shown: Vec<[usize; 2]> = plan.questions.iter().map(|asked| asked.shown).collect();
    let (writer, wanted) = (item.writer(), rule.wanted());
    let questions: Questions = Box::new(shown.clone().into_iter().map(move |[first, second]| {
        let fields = [("first", &*texts[first]), ("second", &*texts[second])];
        let fields: Map<String, Value> =
            fields.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
        writer.question(&fields, wanted.clone())
    }));
    let then = move |answers: Vec<Result<Answered>>| {
        let asked = AskedTokens::of(&answers);
        let read = |answered: Result<Answered>| answered.and_then(|answered| rule.first_wins(&answered.answer));
        let won: Vec<Result<f64>> = answers.into_iter().map(read).collect();
        let scores = plan.scores(&won.iter().map(|won| won.as_ref().ok().copied()).collect::<Vec<_>>());
        let scores = scores.into_iter().map(|score| {
            score.map(|score| Compared { score: score.score(), detail: score.recorded(), lacking: score.lacking })
        });
        then(asked.verdicts(scores, shown.iter().map(|shown| &shown[..]), &won));
    };
    gather(item.judge(), asker, questions, Box::new(then));
}

fn in_groups(item: &ItemVerdicts, asker: Asker, rule: GroupRule, texts: Vec<Arc<str>>, then: ThenCompared) {
    let plan = rule.plan(texts.len(), item.key());
    let shown: Vec<Vec<usize>> = plan.questions.iter().map(|asked| asked.shown.clone()).collect();
    let (writer, of_group) = (item.writer(), rule.clone());
    let questions: Questions = Box::new(shown.clone().into_iter().map(move |shown| {
        let samples: Vec<Value> = shown.iter().map(|&text| Value::from(&*texts[text])).collect();
        let fields = [("samples", samples.into()), ("count", shown.len().into()), ("take", of_group.take().into())];
        let fields = fields.into_iter().map(|(name, value): (_, Value)| (name.to_owned(), value)).collect();
        writer.question(&fields, of_group.wanted(shown.len())?)
    }));
    let then = move |answers: Vec<Result<Answered>>| {
        let asked = AskedTokens::of(&answers);
        let records: Vec<Value> = answers
            .iter()
            .map(|answered| answered.as_ref().map_or(Value::Null, |answered| recorded(&answered.answer)))
            .collect();
        let read = |(answered, shown): (Result<Answered>, &Vec<usize>)| rule.chosen(&answered?.answer, shown.len());
        let chosen: Vec<Result<Vec<usize>>> = answers.into_iter().zip(&shown).map(read).collect();
        let scores = plan.scores(&chosen.iter().map(|chosen| chosen.as_ref().ok().cloned()).collect::<Vec<_>>());
        let scores = scores.into_iter().map(|score| {
            let detail = |question: usize| records[question].clone();
            score.map(|score| Compared { score: score.score(), detail: score.recorded(detail), lacking: score.lacking })
        });
        then(asked.verdicts(scores, shown.iter().map(Vec::as_slice), &chosen));
    };
    gather(item.judge(), asker, questions, Box::new(then));
}

/// What comparisons make of a text.
struct Compared {
    score: f64,
    detail: Value,
    /// The number of the first question about it that has no answer.
    lacking: Option<usize>,
}

/// The prompts' tokens of the questions that were asked.
struct AskedTokens {
    tokens: Vec<usize>,
}

impl AskedTokens {
    fn of(answers: &[Result<Answered>]) -> AskedTokens {
        let tokens = |answered: &Result<Answered>| answered.as_ref().map_or(0, |answered| answered.tokens);
        AskedTokens { tokens: answers.iter().map(tokens).collect() }
    }

    /// The verdict on each text. `shown`: the texts of each question; `answers`: what each question says. A text's
    /// error is that of the question that it names; one that is not of one question alone is all texts'.
    fn verdicts<'a, T>(
        &self,
        texts: impl Iterator<Item = Result<Compared, usize>>,
        shown: impl Iterator<Item = &'a [usize]>,
        answers: &[Result<T>],
    ) -> Vec<Result<TextVerdict>> {
        let errors: Vec<Option<&Error>> = answers.iter().map(|answer| answer.as_ref().err()).collect();
        let of_all = first_error(errors.iter().copied().flatten()).filter(|error| error.ends_all());
        let error = |question: usize| errors[question].expect("this question has no answer");
        let texts: Vec<Result<Compared, usize>> = texts.collect();
        let mut tokens = vec![0; texts.len()];
        for (shown, asked) in shown.zip(&self.tokens) {
            shown.iter().for_each(|&text| tokens[text] += asked);
        }
        let verdict = |(text, tokens): (Result<Compared, usize>, usize)| match (of_all, text) {
            (Some(of_all), _) => Err(same(of_all)),
            (None, Err(question)) => Err(same(error(question))),
            (None, Ok(Compared { score, detail, lacking })) => {
                let lacking = lacking.map(|question| error(question).to_string());
                Ok(TextVerdict { score, detail, tokens, lacking })
            }
        };
        texts.into_iter().zip(tokens).map(verdict).collect()
    }
}
