//! `offshoot rescore`: answers, votes and grades anew from the samples of a run, whose texts are the truth; no model is loaded and
//! nothing is sampled. What a search chose by other means than answers and grades stays chosen. The new results take the place of
//! the old ones all or none: see [`replace`].

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use petgraph::graph::NodeIndex;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::journal::{Journal, Recorded, replace};
use crate::judge::Isolation;
use crate::out;
use crate::search::best_of_n::choose_best;
use crate::search::self_consistency::vote;
use crate::search::{Assessment, Assessor, Outcome, Sample};
use crate::task::{Item, Method, Overrides, Task};

use super::assess::{self, Judging};
use super::manifest::{self, Manifest};
use super::summary::scores;
use super::worker::{Finished, Line};

/// What is to be graded anew, and how.
#[derive(Clone, Debug)]
pub struct RescoreOptions {
    pub run: PathBuf,
    /// `None`: the run's own task, as its manifest has it.
    pub task: Option<PathBuf>,
    /// `key=value` changes to the task.
    pub set: Vec<String>,
    /// The k of pass@k and the like; `None`: powers of two.
    pub k: Option<Vec<u32>>,
    /// `None`: into the run's folder, where what was there is kept as `*.before`.
    pub out: Option<PathBuf>,
    /// Candidates judged at once; `None`: one a core.
    pub judges: Option<usize>,
    pub isolation: Isolation,
}

pub fn rescore(options: &RescoreOptions) -> Result<()> {
    let run = &options.run;
    let Some(mut manifest) = Manifest::read(run)? else {
        let found = format!("none in {}", run.display());
        return Err(Error::value("the run to rescore", format!("a folder of results with {}", manifest::NAME), found));
    };
    let overrides = Overrides { set: options.set.clone(), ..Overrides::default() };
    let task = match &options.task {
        Some(path) => Task::load(path, &overrides)?,
        None => Task::reload(&manifest.task_file, manifest.task.clone(), &overrides)?,
    };
    let folder = options.out.as_ref().unwrap_or(run);
    if options.out.is_some() {
        Journal::check_free(folder)?;
    }
    let items = task.items(None)?;
    let indices: HashMap<&str, usize> = items.iter().map(|item| (item.id.as_str(), item.index)).collect();
    // While the journal is open, no other process writes to the run.
    let (_journal, recorded) = Journal::reopen(run, |id| indices.get(id).copied())?;
    let by_index: HashMap<usize, &Item> = items.iter().map(|item| (item.index, item)).collect();
    let judging = Judging::open(&task, items.iter(), options.isolation, options.judges)?;
    let grading = Grading { task: &task, judging: judging.as_ref() };
    let graded = Graded::new(&grading, &by_index, recorded, lines(&run.join("items.jsonl"))?)?;
    let scores = scores(&task, &graded.finished, options.k.as_deref());

    let summary = run.join("summary.json");
    let mut before = match summary.exists() {
        true => object(&summary, &fs::read_to_string(&summary).map_err(Error::io(&summary, "read"))?)?,
        false => Map::from_iter([
            ("task".to_string(), json!(task.name)),
            ("method".to_string(), json!(task.method.described())),
        ]),
    };
    if let Ok(Value::Object(scores)) = serde_json::to_value(&scores) {
        before.extend(scores);
    }
    for key in ["answer", "grade", "method"] {
        match (task.source.get(key), manifest.task.as_object_mut()) {
            (Some(value), Some(recorded)) => drop(recorded.insert(key.to_string(), value.clone())),
            (None, Some(recorded)) => drop(recorded.shift_remove(key)),
            (_, None) => {}
        }
    }
    let files = [
        ("samples.jsonl", graded.samples),
        ("items.jsonl", graded.items),
        ("summary.json", format!("{:#}\n", Value::Object(before))),
        ("task.json", format!("{:#}\n", manifest.task)),
        (manifest::NAME, manifest.text()?),
    ];
    fs::create_dir_all(folder).map_err(Error::io(folder, "create the output folder"))?;
    // What was there first stays: a second rescore keeps the run's own.
    files.iter().try_for_each(|(name, _)| Journal::keep(folder, name))?;
    replace(folder, &files)?;
    out::text(format_args!("{scores}{:<11} {}\n", "results", folder.display()))
}

/// The lines of a run, graded anew.
struct Graded {
    samples: String,
    items: String,
    finished: Vec<Finished>,
}

impl Graded {
    /// `lines`: those of `items.jsonl`, each of an item that `items` has, for the journal has read them.
    fn new(
        grading: &Grading<'_>,
        items: &HashMap<usize, &Item>,
        mut recorded: Recorded,
        mut lines: Vec<Map<String, Value>>,
    ) -> Result<Self> {
        let mut drawn: Vec<(&Item, &mut Vec<Sample>)> =
            recorded.samples.iter_mut().map(|(index, samples)| (items[index], samples)).collect();
        drawn.sort_by_key(|(item, _)| item.index);
        drawn.iter_mut().for_each(|(_, samples)| samples.sort_by_key(|sample| sample.index));
        grading.grade(&mut drawn)?;
        let line = |(item, samples): &(&Item, &mut Vec<Sample>)| -> String {
            samples.iter().map(|sample| text(&Line { id: &item.id, rest: sample })).collect()
        };
        let samples = drawn.iter().map(line).collect();
        let mut finished = Vec::new();
        for line in &mut lines {
            let index = line.get("index").and_then(Value::as_u64).map(|index| index as usize);
            let Some((item, ended)) =
                index.and_then(|index| Some((items.get(&index)?, recorded.finished.remove(&index)?)))
            else {
                continue;
            };
            let drawn = recorded.samples.remove(&item.index).unwrap_or_default();
            let outcome = settle(grading, item, ended.outcome, drawn);
            let right = outcome.samples.iter().filter(|sample| sample.correct == Some(true)).count();
            line.insert("reference".to_string(), json!(item.reference()));
            line.insert("prediction".to_string(), json!(outcome.prediction));
            line.insert("correct".to_string(), json!(outcome.correct));
            line.insert("chosen".to_string(), json!(outcome.chosen));
            line.insert("votes".to_string(), json!(outcome.votes));
            line.insert("samples_correct".to_string(), json!(right));
            finished.push(Finished { index: item.index, outcome });
        }
        finished.sort_by_key(|item| item.index);
        Ok(Self { samples, items: lines.iter().map(text).collect(), finished })
    }
}

/// What a text is worth: by the task's graders, or the judge.
struct Grading<'a> {
    task: &'a Task,
    judging: Option<&'a Judging>,
}

impl Grading<'_> {
    /// All samples are handed over before the first is waited for, so that no judge is idle while there is one left.
    fn grade(&self, drawn: &mut [(&Item, &mut Vec<Sample>)]) -> Result<()> {
        let of_item = |item| move |text: &str| assess::grade(self.task, item, text);
        let grades: Vec<_> = drawn.iter().map(|(item, _)| of_item(*item)).collect();
        let mut begun: Vec<Assessor<'_>> = Vec::with_capacity(drawn.len());
        for ((item, samples), grade) in drawn.iter().zip(&grades) {
            let mut assessor = assess::assessor(self.judging, item, grade);
            for (ix, sample) in samples.iter().enumerate() {
                assessor.begin(NodeIndex::new(ix), &sample.text);
            }
            begun.push(assessor);
        }
        for ((_, samples), assessor) in drawn.iter_mut().zip(&mut begun) {
            loop {
                while let Some((at, Assessment { answer, correct, judged })) = assessor.take() {
                    let sample = &mut samples[at.index()];
                    (sample.answer, sample.correct, sample.judged) = (answer, correct, judged);
                }
                if !assessor.is_awaited() {
                    break;
                }
                assessor.wait()?;
            }
        }
        Ok(())
    }

    /// The verdict where nobody answered: wrong, where the task has a grader.
    fn no_answer(&self, item: &Item) -> Option<bool> {
        (self.judging.is_some() || assess::grade(self.task, item, "").correct.is_some()).then_some(false)
    }
}

/// What the samples come to by the task's method.
fn settle(grading: &Grading<'_>, item: &Item, before: Outcome, samples: Vec<Sample>) -> Outcome {
    let n = samples.len() + before.cancelled;
    match grading.task.method {
        Method::SelfConsistency { .. } => {
            Outcome { cancelled_tokens: before.cancelled_tokens, ..vote(samples, n, grading.no_answer(item)) }
        }
        Method::BestOfN { by, .. } => choose_best(
            Outcome {
                samples,
                cancelled: before.cancelled,
                cancelled_tokens: before.cancelled_tokens,
                ..Outcome::default()
            },
            by,
        ),
        Method::Sample { .. } => Outcome {
            samples,
            cancelled: before.cancelled,
            cancelled_tokens: before.cancelled_tokens,
            ..Outcome::default()
        },
        _ => match samples.iter().find(|sample| Some(sample.index) == before.chosen) {
            Some(chosen) => {
                let (prediction, correct) = (chosen.answer.clone(), chosen.correct);
                Outcome { prediction, correct, samples, ..before }
            }
            None => Outcome { samples, ..before },
        },
    }
}

fn lines(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let text = fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    text.lines().map(|line| object(path, line)).collect()
}

fn object(path: &Path, text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| Error::format(path, format!("not a JSON object: {error}")))
}

fn text(line: &impl Serialize) -> String {
    serde_json::to_string(line).expect("maps with text keys are JSON") + "\n"
}
