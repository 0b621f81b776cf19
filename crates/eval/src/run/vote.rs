//! `offshoot vote`: lets samples vote that were made elsewhere. Reads their texts by item, finds and grades the answers
//! as a task defines it, and writes each item's vote in the format that the file's name says; no model is loaded.

use std::collections::HashMap;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::journal::folder::keep;
use crate::records::table::RecordKind;
use crate::records::write::{write_parquet, write_rows};
use crate::records::{FileRecord, Format, records};
use crate::report::RunScores;
use crate::task::{Item, Overrides, Task};
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::json::listed;
use offshoot_core::out;
use offshoot_core::out::files::{WholeFile, check_output, with_ending, write_whole};
use offshoot_core::setting::{OUT, SCALE, SCORES, SET};
use offshoot_engine::FinishReason;
use offshoot_search::self_consistency::vote;
use offshoot_search::{Outcome, Sample, best_scored, weighted_vote};

use super::assess::{grade, question_of, samples_correct};
use super::json_of;
use super::outcome::Finished;
use super::sample_fields::{SampleFields, SampleTexts, field_of};
use super::summary::{best_at, scores, usual_ks};
use super::vote_scores::{PickScores, Picks, ReplayOptions, Scale, VoteBy, read_scores};

/// The options of `offshoot vote`.
#[derive(Clone, Debug)]
pub struct VoteOptions {
    /// JSON lines, a JSON list, CSV or Parquet.
    pub samples: PathBuf,
    /// The task whose `items`, `answer` and `grade` are used. `None`: the items are the samples' own ids and fields.
    pub task: Option<PathBuf>,
    /// `key=value` changes of `answer`, `grade` and `items`.
    pub set: Vec<String>,
    /// The fields of an item's id and of a sample's text; `None`: the first of the usual names.
    pub id: Option<String>,
    pub text: Option<String>,
    /// JSON lines, a JSON list, CSV, TSV or Parquet, by the ending of its name; a stream gets JSON lines. `None`: JSON
    /// lines beside the samples. A file that is there already is kept as `*.before`.
    pub out: Option<PathBuf>,
    pub k: Option<Vec<u32>>,
    /// The scores of the samples, which then choose; `None`: the samples have none.
    pub scores: Option<ReplayOptions>,
    /// Whether the scores are printed as JSON.
    pub json: bool,
}

/// The samples of an item, in the file's order.
struct VotingTexts {
    id: String,
    /// The fields of its first record.
    fields: Map<String, Value>,
    texts: Vec<String>,
    /// The score of each text, where there are scores.
    scores: Vec<Option<f64>>,
}

pub fn main(options: &VoteOptions) -> Result<()> {
    let path = options.out.clone().unwrap_or_else(|| with_ending(&options.samples, "_votes.jsonl"));
    check_output(&path)?;
    let form = form_of(&path)?;
    options.scores.iter().try_for_each(ReplayOptions::check)?;
    let read = texts_by_item(options)?;
    let most = read.iter().map(|item| item.texts.len()).max().unwrap_or(0);
    let task = task_of(options, &read, most)?;
    let items = task.items(None)?;
    let by_id: HashMap<&str, &Item> = items.iter().map(|item| (item.id.as_str(), item)).collect();
    if is_without_rules(&task) {
        out::aside(format_args!(
            "note: whole texts vote, because nothing says where in them the answers are ({SET} \
             answer.regex='#### (.*)' or answer.json=/answer does, or a task file)"
        ));
    }
    if let Some(how) = &options.scores {
        note_of_scale(how, &read);
    }
    let (mut finished, mut lines, mut picked) = (Vec::new(), Vec::new(), Vec::new());
    let counts = read.iter().map(|item| item.texts.len());
    let ks = options.k.clone().unwrap_or_else(|| usual_ks(counts));
    for VotingTexts { id, texts, scores, .. } in read {
        let Some(&item) = by_id.get(id.as_str()) else {
            let expected = format!("an item of {}", task.items_path().display());
            return Err(Error::field(&options.samples, "id", expected, format!("\"{}\"", id.escape_debug())));
        };
        let samples: Vec<Sample> =
            texts.into_iter().enumerate().map(|(ix, text)| sample(&task, item, ix, text)).collect();
        let (n, right) = (samples.len(), samples_correct(item, &samples));
        let no_answer = grade(&task, item, "").correct.is_some().then_some(false);
        let mut outcome = vote(samples, n, no_answer);
        // The best one is chosen for itself: the votes are only shown.
        let shown = options.scores.as_ref().filter(|how| how.by == VoteBy::Best);
        let shown = shown.map(|_| std::mem::take(&mut outcome.votes));
        if let Some(how) = &options.scores {
            outcome = choose(outcome, &scores, how, no_answer);
        }
        let of_k = ks.iter().map(|&k| k as usize).filter(|&k| k <= n);
        let picks = |how: &ReplayOptions| {
            of_k.map(|k| Picks::among(&outcome.samples, &scores, how.scale, k)).collect::<Vec<_>>()
        };
        let picks = options.scores.as_ref().map(picks).unwrap_or_default();
        let mut line = json!({
            "id": item.id, "question": question_of(&task, item)?, "reference": item.reference(),
            "prediction": outcome.prediction, "correct": outcome.correct, "chosen": outcome.chosen,
            "votes": shown.as_ref().unwrap_or(&outcome.votes), "samples": n, "samples_correct": right,
        });
        if let (Some(line), [_, ..]) = (line.as_object_mut(), &outcome.tied[..]) {
            line.insert("tied".to_string(), json!(outcome.tied));
        }
        if let (Some(line), [_, ..]) = (line.as_object_mut(), &outcome.weights[..]) {
            line.insert("weights".to_string(), json!(outcome.weights));
        }
        if let (Some(line), Some(_)) = (line.as_object_mut(), &options.scores) {
            line.insert("first".to_string(), json!(picks));
        }
        picked.push((picks, scores));
        lines.push(line);
        finished.push(Finished { index: item.index, outcome });
    }
    let mut scores = scores(&task, &finished, options.k.as_deref());
    // These need the samples' tokens and log-probabilities, which texts do not have.
    (scores.samples_tokens, scores.best_at, scores.weighted_vote) = (None, Vec::new(), None);
    if options.scores.is_some() {
        let each = finished.iter().zip(&picked).map(|(item, (_, scores))| (&item.outcome.samples[..], &scores[..]));
        (scores.best_at, scores.ranked_by_score) = (best_at(each, &ks), true);
    }
    let samples = finished.iter().map(|item| &item.outcome.samples[..]);
    let picks: Vec<(Vec<Picks>, &[Sample])> = picked.into_iter().map(|(picks, _)| picks).zip(samples).collect();
    let first: Vec<PickScores> = ks.iter().filter_map(|&k| PickScores::of(k as usize, &picks)).collect();
    keep(&path)?;
    let kind = if options.scores.is_some() { RecordKind::ScoredVote } else { RecordKind::Vote };
    write(&path, form, kind, &lines)?;
    match options.json {
        true => {
            let first = options.scores.as_ref().map(|_| first);
            json_of("the scores", &PrintedScores { scores, first }, &path).and_then(out::line)
        }
        false => {
            let first: String = first.iter().map(|first| format!("{first}\n")).collect();
            out::text(format_args!("{scores}{first}{:<11} {}\n", "results", path.display()))
        }
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct PrintedScores {
    #[serde(flatten)]
    scores: RunScores,
    /// Of the choices among the first k samples, where these have scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<Vec<PickScores>>,
}

/// Says that scores which are no probabilities are summed as they are.
fn note_of_scale(how: &ReplayOptions, read: &[VotingTexts]) {
    let mut scores = read.iter().flat_map(|item| item.scores.iter().flatten());
    let odd = scores.find(|score| !(0.0..=1.0).contains(*score));
    if let (Some(odd), Scale::Probability) = (odd, how.scale) {
        out::aside(format_args!(
            "note: the scores are no probabilities (one is {odd}), and weighted votes are sums of them as they are \
             ({SCALE} logit weighs their sigmoids, as a run does)"
        ));
    }
}

/// The outcome by scores, in place of the majority's.
fn choose(outcome: Outcome, scores: &[Option<f64>], how: &ReplayOptions, no_answer: Option<bool>) -> Outcome {
    match how.by {
        VoteBy::Majority => outcome,
        VoteBy::Weighted => {
            weighted_vote(outcome, |at, _| scores[at].map(|score| how.scale.probability(score)), no_answer)
        }
        VoteBy::Best => best_scored(outcome, |at, _| scores[at], no_answer),
    }
}

/// The forms in which votes are written.
#[derive(Clone, Copy)]
enum VotesForm {
    JsonLines,
    JsonList,
    /// Rows, with this character between their fields.
    Rows(char),
    Parquet,
}

/// The form that the ending of the file's name says.
fn form_of(path: &Path) -> Result<VotesForm> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    match ending.as_str() {
        "jsonl" | "ndjson" => Ok(VotesForm::JsonLines),
        // A pipe or /dev/stdout, which may be a file.
        "" if path.starts_with("/dev") || (path.exists() && !path.is_file()) => Ok(VotesForm::JsonLines),
        "json" => Ok(VotesForm::JsonList),
        "csv" => Ok(VotesForm::Rows(',')),
        "tsv" => Ok(VotesForm::Rows('\t')),
        "parquet" => Ok(VotesForm::Parquet),
        other => {
            let expected = match other {
                "gz" => "a name without .gz, because votes are not packed",
                _ => "a name that ends in .jsonl, .json, .csv, .tsv or .parquet",
            };
            Err(Error::value(OUT, expected, path.display().to_string()))
        }
    }
}

fn write(path: &Path, form: VotesForm, kind: RecordKind, votes: &[Value]) -> Result<()> {
    let lines = || votes.iter().map(|vote| format!("{vote}\n")).collect::<String>();
    match form {
        VotesForm::JsonLines => write_whole(path, |file| file.write_all(lines().as_bytes())),
        VotesForm::JsonList => {
            let list = json::pretty("the votes", votes)?;
            write_whole(path, |file| writeln!(file, "{list}"))
        }
        VotesForm::Rows(between) => write_whole(path, |file| write_rows(kind, votes, between, file)),
        VotesForm::Parquet => {
            let mut out = WholeFile::create(path)?;
            write_parquet(kind, path, Box::new(Cursor::new(lines())), out.writer())?;
            out.finish()
        }
    }
}

/// Whether the task has no rule by which a text's answer would be a part of it.
fn is_without_rules(task: &Task) -> bool {
    let rules = task.source.get("answer").and_then(Value::as_object);
    rules.is_none_or(|rules| !rules.keys().any(|key| ["regex", "boxed", "json", "tool_call"].contains(&key.as_str())))
}

/// The task to vote by: the given one or one of the samples' own fields, with the vote as its method.
fn task_of(options: &VoteOptions, read: &[VotingTexts], most: usize) -> Result<Task> {
    let allowed = ["answer", "grade", "items"];
    let key = |set: &str| set.split(['.', '=']).next().unwrap_or_default().trim().to_string();
    if let Some(set) = options.set.iter().find(|set| !allowed.contains(&key(set).as_str())) {
        return Err(Error::value(SET, format!("a key of {}", listed(&allowed)), format!("`{set}`")));
    }
    let method = json!({"self_consistency": {"samples": most}});
    let overrides = |set: &[String]| Overrides { set: set.to_vec(), ..Overrides::default() };
    let task = match &options.task {
        Some(path) => {
            let set: Vec<String> = options.set.iter().cloned().chain([format!("method={method}")]).collect();
            Task::load(path, &overrides(&set))?
        }
        None => {
            let item = |item: &VotingTexts| {
                let mut fields = item.fields.clone();
                fields.insert("id".to_string(), json!(item.id));
                Value::Object(fields)
            };
            let items: Vec<Value> = read.iter().map(item).collect();
            let task = json!({"items": items, "prompt": "", "method": method, "answer": {}});
            Task::reload(&options.samples, task, &overrides(&options.set))?
        }
    };
    match task.is_judged() {
        true => Err(Error::field(&task.path, "grade.judge", "no judge, which `offshoot judge` is", "one")),
        false if task.graded_by_judge().is_some() => {
            let expected = "a grader that reads texts alone, for no model is asked here (`offshoot rescore` asks a \
                            server about the samples of a run)";
            Err(Error::field(&task.path, "grade.verdict", expected, "a question to a judge"))
        }
        false => Ok(task),
    }
}

fn sample(task: &Task, item: &Item, ix: usize, text: String) -> Sample {
    let graded = grade(task, item, &text);
    Sample {
        index: ix as u64,
        text,
        tokens: 0,
        finish: FinishReason::Given,
        logprob: 0.0,
        answer: graded.answer,
        correct: graded.correct,
        detail: None,
        logprobs: None,
        ending: None,
        confidence: None,
        scored: None,
        error: None,
    }
}

/// Items in the order of their first samples. A run that is not finished has a sample that was scored twice, without
/// its score and with it: the second line adds the score alone. Records without the field of scores have none, where
/// another has it.
fn texts_by_item(options: &VoteOptions) -> Result<Vec<VotingTexts>> {
    let path = &options.samples;
    let fields = SampleFields { path, id: options.id.as_deref(), text: options.text.as_deref() };
    let (mut items, mut places): (Vec<VotingTexts>, HashMap<String, usize>) = Default::default();
    // Where the text is of each record that has an index and was not scored by a run, by its item and the index.
    let mut unscored: HashMap<(usize, u64), usize> = HashMap::new();
    let (mut has_scores, mut missing) = (options.scores.is_none(), None);
    for record in records(path, Format::of(path).unwrap_or(Format::JsonLines), None)? {
        let record = record?;
        let (id, id_field) = fields.id_of(&record)?;
        let SampleTexts { texts, field: text_field, is_lone } = fields.texts_of(&record)?;
        let scores = match scores_of(options, &record, texts.len(), is_lone)? {
            Ok(scores) => {
                has_scores = true;
                scores
            }
            Err(error) => {
                missing.get_or_insert(error);
                vec![None; texts.len()]
            }
        };
        let place = *places.entry(id.clone()).or_insert(items.len());
        if let Some(index) = record.1.get("index").and_then(Value::as_u64).filter(|_| is_lone) {
            let is_scored = ["score", "score_error"].iter().any(|field| record.1.contains_key(*field));
            if !is_scored {
                unscored.insert((place, index), items.get(place).map_or(0, |item: &VotingTexts| item.texts.len()));
            } else if let Some(at) = unscored.remove(&(place, index))
                && items[place].texts[at] == texts[0]
            {
                items[place].scores.iter_mut().skip(at).zip(scores).for_each(|(known, score)| *known = score);
                continue;
            }
        }
        if place == items.len() {
            let mut fields = record.1;
            fields.shift_remove(&id_field);
            fields.shift_remove(&text_field);
            items.push(VotingTexts { id, fields, texts: Vec::new(), scores: Vec::new() });
        }
        items[place].texts.extend(texts);
        items[place].scores.extend(scores);
    }
    match (items.is_empty(), missing.filter(|_| !has_scores)) {
        (true, _) => Err(Error::format(path, "no samples")),
        (false, Some(error)) => Err(error),
        (false, None) => Ok(items),
    }
}

/// The scores of a record's texts, none where none are asked for; or that the record does not have the field.
fn scores_of(
    options: &VoteOptions,
    record: &FileRecord,
    texts: usize,
    is_lone: bool,
) -> Result<Result<Vec<Option<f64>>>> {
    let Some(how) = &options.scores else { return Ok(Ok(Vec::new())) };
    match field_of(&options.samples, record, Some(&how.field), &[], SCORES) {
        Ok(field) => {
            let value = &record.1[&field];
            read_scores(&options.samples, record.0, &field, value, (texts, is_lone), how.aggregate).map(Ok)
        }
        Err(missing) => Ok(Err(missing)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing asks a model here: samples that wait for a grade are not wrong.
    #[test]
    fn a_task_that_a_judge_grades_is_refused() {
        let options = VoteOptions {
            samples: PathBuf::from("samples.jsonl"),
            task: None,
            set: vec![r#"grade.verdict={"prompt": "{{sample}}", "words": {" yes": 1, " no": 0}}"#.to_owned()],
            id: None,
            text: None,
            out: None,
            k: None,
            scores: None,
            json: false,
        };
        let (id, texts, scores) = ("a".to_owned(), vec!["x".to_owned()], Vec::new());
        let read = [VotingTexts { id, fields: Map::new(), texts, scores }];
        let error = task_of(&options, &read, 1).expect_err("no judge").to_string();
        assert!(error.contains("grade.verdict") && error.contains("`offshoot rescore`"), "{error}");
    }

    #[test]
    fn choices_by_scores_tie_as_those_of_runs() {
        let task = json!({"items": [{"id": "a"}], "prompt": "", "answer": {},
            "method": {"self_consistency": {"samples": 4}}});
        let task = Task::reload(Path::new("t.json"), task, &Overrides::default()).expect("a task");
        let item = &task.items(None).expect("one")[0];
        let chosen = |texts: [&str; 3], scores: [Option<f64>; 3], by| {
            let samples: Vec<Sample> =
                texts.iter().enumerate().map(|(ix, text)| sample(&task, item, ix, text.to_string())).collect();
            let (scale, aggregate) = (Scale::Probability, Default::default());
            let how = ReplayOptions { field: "scores".to_owned(), aggregate, scale, by };
            let outcome = choose(vote(samples, 3, None), &scores, &how, None);
            (outcome.prediction, outcome.chosen, outcome.tied)
        };
        let answer = |answer: &str| Some(answer.to_owned());
        let equal = [Some(0.3), Some(0.1 + 0.2), Some(0.1)];
        assert_eq!(chosen(["x", "y", "z"], equal, VoteBy::Weighted), (answer("x"), Some(0), vec![0, 1]));
        assert_eq!(
            chosen(["x", "y", "z"], [Some(0.5), None, Some(0.5)], VoteBy::Best),
            (answer("x"), Some(0), vec![0, 2])
        );
        assert_eq!(chosen(["x", "y", "y"], equal, VoteBy::Weighted), (answer("y"), Some(1), vec![]));
        assert_eq!(chosen(["x", "y", "y"], [None, None, Some(0.5)], VoteBy::Best), (answer("y"), Some(2), vec![]));
        assert_eq!(chosen(["x", "y", "y"], [None; 3], VoteBy::Weighted), (None, None, vec![]));
        assert_eq!(chosen(["x", "y", "z"], [None; 3], VoteBy::Majority), (answer("x"), Some(0), vec![0, 1, 2]));
    }
}
