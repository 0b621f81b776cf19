//! Scores the samples of a run: their lines get what those of a run by its scorer have, and the manifest says which
//! scorer that was and how it read them. Lines are written as scores come, behind those that they replace, so a command
//! that was interrupted goes on with the samples that have no score.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use super::queue::TextQueue;
use super::{ScoreTextsOptions, ScoringReport, TextTotals, check};
use crate::journal::{Journal, folder};
use crate::run::manifest::{self, Manifest, RecordedScores, ScorerFiles};
use crate::run::worker::LineWithId;
use crate::run::{json_of, tables};
use crate::task::{Item, Overrides, Task};
use offshoot_core::error::{Error, Result};
use offshoot_core::interrupt::Interrupt;
use offshoot_core::out;
use offshoot_core::out::Stage;
use offshoot_core::out::files::FolderClaim;
use offshoot_core::setting::{AGGREGATE, AS, DELIMITER, ID, OUT, QUESTION, SET, TASK, TEXT};
use offshoot_core::sorting::sort_by_number;
use offshoot_launch::ScorerFolder;
use offshoot_search::settings::SampleScoring;
use offshoot_search::{OnScorerError, Sample};
use offshoot_text::Message;

/// Scores the samples of a run that have no score.
pub(super) fn score(options: &ScoreTextsOptions, interrupt: &Interrupt) -> Result<()> {
    check_options(options)?;
    let run = options.samples.as_path();
    let _claim = FolderClaim::of(run)?;
    let mut manifest = Manifest::of(run, "the run to score")?;
    let task = Task::reload(&manifest.task_file, manifest.task.clone(), &Overrides::default())?;
    check_method(&task)?;
    let items = task.items(None)?;
    if let Some(path) = manifest.changed_items(&task)? {
        out::aside(format_args!("warning: {} has changed since the run: its present content is asked", path.display()));
    }
    let (journal, drawn) = Journal::reopen(run, &items)?;
    let has_scores = drawn.samples.values().flatten().any(|sample| sample.score().is_some());
    if !has_scores && task.method.reward_key().is_none() {
        // A scorer that was stopped before its first score decides nothing.
        manifest.scorer = None;
    }
    let task = task_of(options, &manifest)?;
    let scorer = options.folder(Some(&task))?;
    let scored = recorded(options, &manifest, &task, &scorer)?;
    let files =
        ScorerFiles { samples: Some(scored.clone()), ..ScorerFiles::new(scorer.path(), scorer.identity().clone())? };
    manifest.check_scorer(run, &files)?;
    let unscored = unscored(&items, drawn.samples, &manifest)?;
    if unscored.is_empty() {
        return out::line(format_args!("every sample of {} has its score already", run.display()));
    }
    let launched = scorer.start(&options.engine)?;
    let interrupted = interrupt.listen();
    (manifest.scorer, manifest.task) = (Some(files), task.source.clone());
    folder::write(run, manifest::NAME, &manifest.text()?)?;
    folder::write(run, "task.json", &format!("{:#}\n", task.source))?;
    let had_tables = tables::remove(run)?;
    let most = 2 * launched.scorer.engine().facts().max_branches;
    let how = SampleScoring { delimiter: scored.delimiter, aggregate: scored.aggregate };
    let totals = write(&journal, &task, unscored, &mut TextQueue::new(&*launched.scorer, &how, most), interrupted);
    // What is written so far replaces the lines before it, whatever ended the work.
    let sorted = journal.finish();
    let tabled = if had_tables { tables::write(run) } else { Ok(()) };
    let totals = totals?;
    sorted.and(tabled)?;
    let report = ScoringReport::new(&launched, &totals, run.display().to_string())?;
    match options.json {
        true => json_of("the totals", &report, run).and_then(out::line)?,
        false => out::text(report)?,
    }
    if task.method.reward_key().is_none() && task.method.draws_alike() {
        let samples = task.method.samples();
        let method = json!({"best_of_n": {"samples": samples, "by": "reward"}});
        out::aside(format_args!("next: `offshoot rescore {} {SET} 'method={method}'` chooses by them", run.display()));
    }
    totals.left_out().map_or(Ok(()), |what| Err(Error::format(run.join("samples.jsonl"), what)))
}

/// Refuses what is said of a file's lines alone.
fn check_options(options: &ScoreTextsOptions) -> Result<()> {
    let ScoreTextsOptions { task, id, text, out, name, set, .. } = options;
    let given = [
        (TASK, task.as_ref().map(|path| path.display().to_string())),
        (ID, id.clone()),
        (TEXT, text.clone()),
        (OUT, out.as_ref().map(|path| path.display().to_string())),
        (AS, name.clone()),
        (SET, set.first().cloned()),
    ];
    let given = given.into_iter().find_map(|(setting, value)| Some((setting, value?)));
    given.map_or(Ok(()), |(setting, value)| {
        let expected =
            format!("none for the run in {}, whose own task and samples are used", options.samples.display());
        Err(Error::value(setting, expected, format!("`{value}`")))
    })
}

/// Refuses a run whose method asks a judge: its samples have that one's scores, or wait for them.
fn check_method(task: &Task) -> Result<()> {
    if task.method.verdict().is_none() {
        return Ok(());
    }
    let expected = "one that asks no judge, for a run has the scores of one model: `offshoot rescore` with `sample` as \
                    the method makes one of independent samples so";
    Err(Error::field(&task.path, "method", expected, task.method.described()))
}

/// The run's task, with the question that the user gives.
fn task_of(options: &ScoreTextsOptions, manifest: &Manifest) -> Result<Task> {
    let mut source = manifest.task.clone();
    if let Some(question) = &options.question {
        let is_template = ["{{", "{%"].iter().any(|begin| question.contains(begin));
        let template = if is_template { question.clone() } else { format!("{{{{ {question} }}}}") };
        let scorer = match source["scorer"].take() {
            Value::Object(keys) => Value::Object(keys),
            Value::Null => json!({}),
            folder => json!({ "model": folder }),
        };
        source["scorer"] = scorer;
        source["scorer"]["question"] = json!(template);
        let of = |task: &Value| task["scorer"].get("question").cloned();
        if manifest.scorer.is_some() && of(&manifest.task) != of(&source) {
            let expected = "that about which samples of this run have scores already";
            return Err(Error::value(QUESTION, expected, format!("`{question}`")));
        }
    }
    Task::reload(&manifest.task_file, source, &Overrides::default())
}

/// How the samples are to be scored: as those that have scores are.
fn recorded(
    options: &ScoreTextsOptions,
    manifest: &Manifest,
    task: &Task,
    scorer: &ScorerFolder,
) -> Result<RecordedScores> {
    let form = scorer.resolved()?;
    let before = manifest.scorer.as_ref().and_then(|scorer| scorer.samples.as_ref());
    let of_method = task.method.reward_of_samples();
    if task.method.reward_key().is_some() && of_method.is_none() {
        let expected = "one that scores whole samples or none: the scores of these have guided the search";
        return Err(Error::field(&task.path, "method", expected, task.method.described()));
    }
    let of_run = before.map(|before| before.delimiter.clone()).or(of_method.map(|how| how.delimiter.clone()));
    let delimiter = match (&options.delimiter, of_run) {
        (Some(asked), Some(of_run)) if *asked != of_run => {
            return Err(Error::value(
                DELIMITER,
                format!("{of_run:?}, as for the run's own scores"),
                format!("{asked:?}"),
            ));
        }
        (asked, of_run) => of_run.or(asked.clone()).unwrap_or(SampleScoring::default().delimiter),
    };
    let of_run =
        before.map(|before| before.aggregate).or(of_method.map(|how| how.aggregate.unwrap_or(form.aggregate())));
    let aggregate = options.aggregate(of_run, scorer)?;
    if let Some(of_run) = of_run.filter(|&of_run| of_run != aggregate) {
        let word = |aggregate| json!(aggregate).as_str().unwrap_or_default().to_owned();
        let expected = format!("{}, as for the run's own scores (`offshoot rescore` changes it)", word(of_run));
        return Err(Error::value(AGGREGATE, expected, word(aggregate)));
    }
    Ok(RecordedScores { scale: form.scale(), delimiter, aggregate, form_aggregate: form.aggregate() })
}

/// The samples without a score, by item and number.
fn unscored<'i>(
    items: &'i [Item],
    mut recorded: HashMap<usize, Vec<Sample>>,
    manifest: &Manifest,
) -> Result<Vec<(&'i Item, Sample)>> {
    if manifest.scorer.is_none() && recorded.values().flatten().any(|sample| sample.score().is_some()) {
        let found = "those of the run's own method";
        return Err(Error::format(
            manifest.folder.clone().unwrap_or_default().join("samples.jsonl"),
            format!("`score`: expected samples without scores, or with those of a scorer, found {found}"),
        ));
    }
    let of_item = |item: &'i Item| {
        let mut samples = recorded.remove(&item.index).unwrap_or_default();
        samples.retain(|sample| sample.score().is_none());
        sort_by_number(&mut samples, |sample| sample.index);
        samples.into_iter().map(move |sample| (item, sample)).collect::<Vec<_>>()
    };
    Ok(items.iter().flat_map(of_item).collect())
}

/// Writes the samples with their scores.
fn write<'i>(
    journal: &Journal,
    task: &Task,
    samples: Vec<(&'i Item, Sample)>,
    queue: &mut TextQueue<'_, (&'i Item, Sample)>,
    interrupted: &AtomicBool,
) -> Result<TextTotals> {
    let mut totals = TextTotals::default();
    let stage = Stage::new("samples", samples.len());
    let mut asked: Option<(usize, Vec<Message>)> = None;
    let mut samples = samples.into_iter();
    loop {
        while !queue.is_full()
            && let Some((item, sample)) = samples.next()
        {
            check(interrupted)?;
            let question = match asked.take().filter(|(of, _)| *of == item.index) {
                Some((_, question)) => question,
                None => task.scorer.question(item, task.prompt(item)?)?,
            };
            asked = Some((item.index, question.clone()));
            let text = sample.text.clone();
            queue.put((item, sample), question, vec![text])?;
        }
        let Some(((item, mut sample), mut scores)) = queue.take(&|| check(interrupted))? else { return Ok(totals) };
        sample.scored = scores.pop();
        let place = format!("sample {} of item `{}`", sample.index, item.id);
        sample.scored.iter().for_each(|score| totals.add(&place, score));
        if let (OnScorerError::Fail, Some(what)) = (task.scorer.on_error, totals.left_out()) {
            return Err(Error::format(journal.folder().join("samples.jsonl"), what));
        }
        journal.sample(item.index, sample.index, &LineWithId { id: &item.id, rest: &sample })?;
        stage.step();
    }
}
