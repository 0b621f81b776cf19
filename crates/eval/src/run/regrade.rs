//! Grades the recorded samples of a run again: extracts answers, grades them and applies the task's method. `rescore`
//! reads the run and replaces its files.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::judged::score_of_grade;
use crate::task::{Item, Method, Task};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_core::sorting::sort_by_number;
use offshoot_engine::FinishReason;
use offshoot_score::Scale;
use offshoot_search::best_of_n::choose_best;
use offshoot_search::by_scorer::{choose_by_scores, scored_samples, vote_by_scores};
use offshoot_search::confidence::weigh_votes;
use offshoot_search::self_consistency::vote;
use offshoot_search::{Assessment, Assessor, Details, Outcome, Sample, verdict_on};

use super::assess::{self, Graders};
use super::manifest::RecordedScores;
use super::outcome::{Failed, Finished};
use super::worker::LineWithId;

/// The results of a run with new grades.
pub struct Graded {
    /// The new contents of `samples.jsonl` and `items.jsonl`.
    pub samples: String,
    pub items: String,
    /// Items by index.
    pub finished: Vec<Finished>,
    /// Items that cannot be judged, by index. Their lines record the error, and their samples have no verdict.
    pub unjudged: Vec<Failed>,
    /// Ids of items that failed in the run and have no samples to grade.
    pub failed: Vec<String>,
    /// Number of items that have samples but are not finished.
    pub unfinished: usize,
    /// Whether items have other indices in the task than in the run.
    pub moved: bool,
}

impl Graded {
    /// `drawn`: the run's samples by the item's index in `items`. `lines`: the lines of `items.jsonl`; the journal has
    /// checked that their items are in `items`.
    pub fn new(
        grading: &Regrader<'_>,
        items: &[Item],
        mut drawn: HashMap<usize, Vec<Sample>>,
        lines: Vec<Map<String, Value>>,
    ) -> Result<Self> {
        let by_index: HashMap<usize, &Item> = items.iter().map(|item| (item.index, item)).collect();
        let mut all: Vec<(&Item, &mut Vec<Sample>)> =
            drawn.iter_mut().map(|(index, samples)| (by_index[index], samples)).collect();
        sort_by_number(&mut all, |(item, _)| item.index as u64);
        all.iter_mut().for_each(|(_, samples)| sort_by_number(samples, |sample| sample.index));
        if let Some(scored) = grading.scored {
            let samples = all.iter_mut().flat_map(|(_, samples)| samples.iter_mut());
            samples.filter_map(|sample| sample.scored.as_mut()).for_each(|score| score.aggregate(scored.aggregate));
        }
        let mut errors = grading.grade(&mut all)?;
        let line = |(item, samples): &(&Item, &mut Vec<Sample>)| -> String {
            samples.iter().map(|sample| text(&LineWithId { id: &item.id, rest: sample })).collect()
        };
        let mut graded = Self {
            samples: all.iter().map(line).collect(),
            items: String::new(),
            finished: Vec::new(),
            unjudged: Vec::new(),
            failed: Vec::new(),
            unfinished: 0,
            moved: false,
        };
        let by_id: HashMap<&str, &Item> = items.iter().map(|item| (item.id.as_str(), item)).collect();
        let item_of = |line: &Map<String, Value>| line.get("id").and_then(Value::as_str).and_then(|id| by_id.get(id));
        let mut lines: Vec<_> = lines.into_iter().filter_map(|line| Some((*item_of(&line)?, line))).collect();
        sort_by_number(&mut lines, |(item, _): &(&Item, _)| item.index as u64);
        for (item, mut line) in lines {
            let place = json!(item.index);
            graded.moved |= line.insert("index".to_string(), place.clone()).is_some_and(|before| before != place);
            graded.item(grading, item, &mut line, &mut drawn, errors.remove(&item.index))?;
            graded.items += &text(&line);
        }
        let unfinished = |item: &&Item| drawn.get(&item.index).is_some_and(|samples| !samples.is_empty());
        graded.unfinished = items.iter().filter(unfinished).count();
        let more = items.iter().filter_map(|item| Some((item, errors.remove(&item.index)?)));
        graded.unjudged.extend(more.map(|(item, error)| Failed { index: item.index, id: item.id.clone(), error }));
        sort_by_number(&mut graded.unjudged, |item| item.index as u64);
        Ok(graded)
    }

    /// Regrades one line: replaces the outcome and keeps its other fields.
    fn item(
        &mut self,
        grading: &Regrader<'_>,
        item: &Item,
        line: &mut Map<String, Value>,
        drawn: &mut HashMap<usize, Vec<Sample>>,
        error: Option<Error>,
    ) -> Result<()> {
        // An item that failed in the run has no outcome; one that could not be judged by an earlier rescore has.
        if line.contains_key("error") && !line.contains_key("samples") {
            drawn.remove(&item.index);
            self.failed.push(item.id.clone());
            return Ok(());
        }
        let before: Outcome = serde_json::from_value(Value::Object(line.clone()))
            .map_err(|error| Error::Internal(format!("the line of item `{}` is read twice: {error}", item.id)))?;
        let samples = drawn.remove(&item.index).unwrap_or_default();
        line.shift_remove("error");
        line.insert("reference".to_string(), json!(item.reference()));
        // The chosen sample is kept for a later rescore that can judge it.
        let outcome = match &error {
            Some(error) => {
                line.insert("error".to_string(), json!(error.to_string()));
                let Outcome { chosen, votes, weights, tied, .. } = before;
                Outcome { samples, chosen, votes, weights, tied, ..Outcome::default() }
            }
            None => settle(grading, item, before, samples),
        };
        line.insert("answer".to_string(), json!(assess::answer_of(grading.task, &outcome)));
        line.insert("prediction".to_string(), json!(outcome.prediction));
        line.insert("correct".to_string(), json!(outcome.correct));
        line.insert("chosen".to_string(), json!(outcome.chosen));
        line.insert("votes".to_string(), json!(outcome.votes));
        match outcome.weights.is_empty() {
            true => drop(line.shift_remove("weights")),
            false => drop(line.insert("weights".to_string(), json!(outcome.weights))),
        }
        match outcome.bar {
            None => drop(line.shift_remove("bar")),
            Some(bar) => drop(line.insert("bar".to_string(), json!(bar))),
        }
        if error.is_none() {
            put_scores(grading.task, line, &outcome);
        }
        line.insert("samples_correct".to_string(), json!(assess::samples_correct(item, &outcome.samples)));
        match outcome.tied.is_empty() {
            true => drop(line.shift_remove("tied")),
            false => drop(line.insert("tied".to_string(), json!(outcome.tied))),
        }
        let (index, id) = (item.index, item.id.clone());
        match error {
            Some(error) => self.unjudged.push(Failed { index, id, error }),
            None => self.finished.push(Finished { index, outcome }),
        }
        Ok(())
    }

    /// Number of items that were stopped early, and how many of them would have continued with the new answers and
    /// grades.
    pub fn stopped_early(&self, method: &Method) -> (usize, usize) {
        let stopped = || self.finished.iter().map(|item| &item.outcome).filter(|outcome| outcome.cancelled > 0);
        let goes_on = |outcome: &&Outcome| match method {
            Method::SelfConsistency { stop, confidence, .. } => {
                let samples = &outcome.samples;
                let answers: Vec<_> = match confidence {
                    Some(how) => how.answers(samples, how.bar(samples)),
                    None => samples.iter().map(|sample| sample.answer.as_deref()).collect(),
                };
                stop.fewest_more(&answers, outcome.cancelled as u32) > 0
            }
            _ => !outcome.samples.iter().any(|sample| sample.correct == Some(true)),
        };
        (stopped().count(), stopped().filter(goes_on).count())
    }
}

/// Grades texts by the task's graders, by running them, or by a judge.
pub struct Regrader<'a> {
    pub task: &'a Task,
    pub graders: Graders<'a>,
    /// Whether the grades that a judge gave are kept, as its question is the same now. A judge is then asked only
    /// about samples without a grade.
    pub keeps_grades: bool,
    /// How the method makes the scores of samples of those of their parts; `None`: they stay as they are.
    pub scored: Option<&'a RecordedScores>,
}

impl Regrader<'_> {
    /// Grades all samples. All are queued before waiting for the first, so that no judge is idle. Returns the errors of
    /// items that cannot be judged, by index.
    fn grade(&self, drawn: &mut [(&Item, &mut Vec<Sample>)]) -> Result<HashMap<usize, Error>> {
        if let (true, Some(by)) = (self.keeps_grades, self.task.graded_by_judge()) {
            for (item, samples) in drawn.iter_mut() {
                for sample in samples.iter_mut().filter(|sample| sample.finish != FinishReason::LowConfidence) {
                    sample.answer = assess::grade(self.task, item, &sample.text).answer;
                    sample.correct = score_of_grade(sample).map(|score| score >= by.right_from);
                }
            }
        }
        let is_known =
            |sample: &Sample| self.keeps_grades && (score_of_grade(sample).is_some() || self.graders.judge.is_none());
        let of_item = |item| move |text: &str| assess::grade(self.task, item, text);
        let grades: Vec<_> = drawn.iter().map(|(item, _)| of_item(*item)).collect();
        let mut begun: Vec<Assessor<'_>> = Vec::with_capacity(drawn.len());
        for ((item, samples), grade) in drawn.iter().zip(&grades) {
            let mut assessor = self.graders.assessor(self.task, item, grade)?;
            // What a sample that lost confidence would have answered is not known.
            let whole = samples.iter().enumerate().filter(|(_, sample)| sample.finish != FinishReason::LowConfidence);
            for (ix, sample) in whole.filter(|(_, sample)| !is_known(sample)) {
                assessor.begin(NodeId::new(ix), &sample.text);
            }
            begun.push(assessor);
        }
        let mut errors = HashMap::new();
        for ((item, samples), assessor) in drawn.iter_mut().zip(&mut begun) {
            match assess::collect(samples, assessor, || Ok(()), |_| Ok(())) {
                Err(error @ Error::Unjudgeable { .. }) => {
                    assessor.forget();
                    samples.iter_mut().for_each(|sample| assess::put(sample, Assessment::default()));
                    errors.insert(item.index, error);
                }
                collected => collected?,
            }
        }
        Ok(errors)
    }

    /// The verdict without any answer: wrong if the task has a grader, else `None`.
    fn no_answer(&self, item: &Item) -> Option<bool> {
        let is_graded = item.tests().is_some() || item.graded_by().is_some();
        (is_graded || assess::grade(self.task, item, "").correct.is_some()).then_some(false)
    }
}

/// What a scorer did for an item, and its scores of the samples.
fn put_scores(task: &Task, line: &mut Map<String, Value>, outcome: &Outcome) {
    match &outcome.scorer {
        None => drop(line.shift_remove("scorer")),
        Some(work) => drop(line.insert("scorer".to_string(), json!(work))),
    }
    match &outcome.details {
        // A search by steps has chosen by its scores: they stay.
        _ if !task.method.draws_alike() => {}
        Some(Details::Scores { scores }) => drop(line.insert("scores".to_string(), json!(scores))),
        _ => drop(line.shift_remove("scores")),
    }
}

/// The outcome of the samples by the task's method.
fn settle(grading: &Regrader<'_>, item: &Item, before: Outcome, samples: Vec<Sample>) -> Outcome {
    let n = samples.len() + before.cancelled;
    let (cancelled, cancelled_tokens) = (before.cancelled, before.cancelled_tokens);
    // As of an older version, where nothing says what the scores are.
    let of_before = || before.scorer.as_ref().map_or(Scale::Probability, |scorer| scorer.scale);
    let scale = grading.scored.map_or_else(of_before, |scored| scored.scale);
    let weight = |score| scale.probability(score);
    let scored = |samples| Outcome { cancelled, cancelled_tokens, ..scored_samples(samples, scale) };
    match grading.task.method {
        Method::SelfConsistency { scorer: Some(_), .. } => {
            vote_by_scores(scored(samples), weight, grading.no_answer(item))
        }
        // Samples that the model scored in its own batch have no scores in their lines: the choice stays.
        Method::BestByScorer { .. } if samples.iter().any(|sample| sample.scored.is_some()) => {
            choose_by_scores(scored(samples), grading.no_answer(item))
        }
        Method::SelfConsistency { confidence, .. } => {
            let outcome = Outcome { cancelled_tokens, ..vote(samples, n, grading.no_answer(item)) };
            confidence.iter().fold(outcome, weigh_votes)
        }
        Method::BestOfN { by, .. } => {
            choose_best(Outcome { samples, cancelled, cancelled_tokens, ..Outcome::default() }, by)
        }
        Method::Sample { .. } => Outcome { samples, cancelled, cancelled_tokens, ..Outcome::default() },
        _ => choice_kept(&grading.task.method, Outcome { samples, ..before }),
    }
}

/// The outcome of a search by this method whose choice stays, with the answers and grades that its samples have now.
pub fn choice_kept(method: &Method, outcome: Outcome) -> Outcome {
    let Some(chosen) = outcome.samples.iter().find(|sample| Some(sample.index) == outcome.chosen) else {
        return outcome;
    };
    let prediction = chosen.answer.clone();
    let correct = match &prediction {
        Some(answer) if method.grades_answers() => verdict_on(answer, &outcome.samples),
        _ => chosen.correct,
    };
    Outcome { prediction, correct, ..outcome }
}

fn text(line: &impl Serialize) -> String {
    serde_json::to_string(line).expect("maps with text keys are JSON") + "\n"
}
