//! Scores the texts of a file and writes its lines again, each with the scores of its texts. Lines are read, scored and
//! written as they come, so that a file may be larger than memory; the new file is there when it is whole.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::questions::LineQuestions;
use super::queue::TextQueue;
use super::{ScoreTextsOptions, ScoringReport, TextTotals, check};
use crate::journal::folder::keep;
use crate::records::{Format, RecordPlace, records_and_texts};
use crate::run::json_of;
use crate::run::sample_fields::{SampleFields, SampleTexts};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::counted;
use offshoot_core::interrupt::Interrupt;
use offshoot_core::json::RawJson;
use offshoot_core::out;
use offshoot_core::out::files::{WholeFile, check_output, is_stream, remove_partials, with_ending};
use offshoot_core::setting::{AS, OUT};
use offshoot_score::TextScorer;
use offshoot_search::SampleScore;
use offshoot_search::settings::SampleScoring;

/// Time between two lines about how far the work is.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Scores the texts of the file of samples.
pub(super) fn score(options: &ScoreTextsOptions, interrupt: &Interrupt) -> Result<()> {
    let path = output(options)?;
    let task = options.task()?;
    let folder = options.folder(task.as_ref())?;
    let of_method = task.as_ref().and_then(|task| task.method.reward_of_samples());
    let aggregate = options.aggregate(of_method.and_then(|how| how.aggregate), &folder)?;
    let delimiter = options.delimiter.clone().or(of_method.map(|how| how.delimiter.clone()));
    let how = SampleScoring { aggregate, delimiter: delimiter.unwrap_or(SampleScoring::default().delimiter) };
    let fields = SampleFields { path: &options.samples, id: options.id.as_deref(), text: options.text.as_deref() };
    let questions = LineQuestions::new(fields, options.question.as_deref(), task)?;
    let launched = folder.start(&options.engine)?;
    let most = 2 * launched.scorer.engine().facts().max_branches;
    let written = WrittenFields::new(options.name.as_deref());
    let work = FileWork { fields, questions: &questions, scorer: &*launched.scorer, how: &how, most, written };
    let totals = work.write_to(&path, interrupt.listen())?;
    let report = ScoringReport::new(&launched, &totals, path.display().to_string())?;
    let page = match options.json {
        true => json_of("the totals", &report, &path)?.to_string() + "\n",
        false => report.to_string(),
    };
    match is_stream(&path) {
        true => out::aside(page.trim_end()),
        false => out::text(page)?,
    }
    totals.left_out().map_or(Ok(()), |what| Err(Error::format(path, what)))
}

/// The file to write, which can be written. The samples are there.
fn output(options: &ScoreTextsOptions) -> Result<PathBuf> {
    let samples = &options.samples;
    let kind = fs::metadata(samples).map_err(Error::io(samples, "open"))?.file_type();
    let is_pipe = samples.starts_with("/dev") || !(kind.is_file() || kind.is_dir());
    let path = match &options.out {
        Some(path) => path.clone(),
        None if is_pipe => {
            let expected = format!("a file, because {} has no folder for results", samples.display());
            return Err(Error::value(OUT, expected, "none"));
        }
        None => with_ending(samples, "_scored.jsonl"),
    };
    let is_lines = ["jsonl", "ndjson"].iter().any(|ending| path.extension().is_some_and(|of| of == *ending));
    if !is_lines && !is_stream(&path) {
        return Err(Error::value(OUT, "a name that ends in .jsonl", path.display().to_string()));
    }
    check_output(&path)?;
    Ok(path)
}

/// The names of the fields that a line gets.
#[derive(Clone)]
struct WrittenFields {
    /// The scores of each text's steps.
    scores: String,
    /// The score of each text.
    score: String,
    /// Why a text has none.
    error: String,
}

impl WrittenFields {
    fn new(prefix: Option<&str>) -> WrittenFields {
        let named = |name: &str| prefix.map_or(name.to_owned(), |prefix| format!("{prefix}_{name}"));
        WrittenFields { scores: named("scores"), score: named("score"), error: named("score_error") }
    }

    fn all(&self) -> [&str; 3] {
        [&self.scores, &self.score, &self.error]
    }

    /// The line with the scores of its texts in these fields, which replace those that it has.
    fn add_to(&self, line: &ReadLine, scores: &[SampleScore]) -> String {
        let of_steps = |score: &SampleScore| match score {
            SampleScore::Scored { .. } => json!(score.parts()),
            SampleScore::Unscored { .. } => Value::Null,
        };
        let error = |score: &SampleScore| match score {
            SampleScore::Scored { .. } => Value::Null,
            SampleScore::Unscored { score_error } => json!(score_error),
        };
        let each = |of: &dyn Fn(&SampleScore) -> Value| match (line.is_lone, scores) {
            (true, [score]) => of(score),
            _ => scores.iter().map(of).collect(),
        };
        let mut added = vec![(&self.scores, each(&of_steps)), (&self.score, each(&|score| json!(score.score())))];
        if scores.iter().any(|score| score.score().is_none()) {
            added.push((&self.error, each(&error)));
        }
        let kept = line.text.pairs().expect("it was read as an object");
        let kept = kept.into_iter().filter(|(name, _)| !self.all().contains(&name.as_str()));
        let kept = kept.map(|(_, [name, value])| format!("{}: {}", name.trim_ascii(), value.trim_ascii()));
        let added = added.into_iter().map(|(name, value)| format!("{}: {value}", json!(name)));
        format!("{{{}}}", kept.chain(added).collect::<Vec<_>>().join(", "))
    }
}

/// A line whose texts are being scored.
struct ReadLine {
    place: RecordPlace,
    text: RawJson,
    /// Whether it has one text, and no list of texts.
    is_lone: bool,
}

/// How the lines of a file are scored.
struct FileWork<'w> {
    fields: SampleFields<'w>,
    questions: &'w LineQuestions<'w>,
    scorer: &'w dyn TextScorer,
    how: &'w SampleScoring,
    /// Texts that are held at once.
    most: usize,
    written: WrittenFields,
}

impl FileWork<'_> {
    /// Writes the lines with their scores to the file at `path`, which is there when it is whole.
    fn write_to(&self, path: &Path, interrupted: &AtomicBool) -> Result<TextTotals> {
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) {
            // Those of killed processes.
            remove_partials(if folder.as_os_str().is_empty() { Path::new(".") } else { folder }, name);
        }
        let mut file = WholeFile::create(path)?;
        let totals = self.write(path, file.writer(), interrupted).inspect_err(|error| {
            if matches!(error, Error::Interrupted) && !is_stream(path) {
                out::aside(format_args!("{} is not written: it would not be whole", path.display()));
            }
        })?;
        keep(path)?;
        file.finish()?;
        Ok(totals)
    }

    fn write(&self, path: &Path, out: &mut dyn Write, interrupted: &AtomicBool) -> Result<TextTotals> {
        let samples = self.fields.path;
        let mut records = records_and_texts(samples, Format::of(samples).unwrap_or(Format::JsonLines))?;
        let mut queue = TextQueue::new(self.scorer, self.how, self.most);
        let (mut totals, mut has_said, mut told, mut lines) = (TextTotals::default(), false, Instant::now(), 0);
        loop {
            while !queue.is_full()
                && let Some(record) = records.next()
            {
                check(interrupted)?;
                let (record, text) = record?;
                let SampleTexts { texts, is_lone, .. } = self.fields.texts_of(&record)?;
                if let Some(name) = self.written.all().into_iter().find(|name| record.1.contains_key(*name))
                    && !std::mem::replace(&mut has_said, true)
                {
                    out::aside(format_args!(
                        "note: {} of {} has a field `{name}` already, which the new lines do not keep ({AS} NAME \
                         writes NAME_{name} beside it)",
                        record.0,
                        samples.display()
                    ));
                }
                let question = self.questions.of(&record)?;
                queue.put(ReadLine { place: record.0, text, is_lone }, question, texts)?;
            }
            let Some((line, scores)) = queue.take(&|| check(interrupted))? else { break };
            scores.iter().for_each(|score| totals.add(&line.place, score));
            writeln!(out, "{}", self.written.add_to(&line, &scores)).map_err(Error::io(path, "write"))?;
            lines += 1;
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let scored = counted((totals.texts + totals.unscored) as u64, "text");
                out::aside(format_args!("{} of {scored} written", counted(lines, "line")));
            }
        }
        match lines {
            0 => Err(Error::format(samples, "no samples")),
            _ => Ok(totals),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Overrides, Task};
    use offshoot_score::{Aggregate, Scale, ScriptedAnswer, ScriptedScore, ScriptedScorer};

    const LOUD: &str = "text to score: expected one that the script scores, found it is loud";

    /// Texts with `!` have no score; the others have for each step its length, and a tenth for a question mark.
    fn script(answer: &ScriptedAnswer<'_>) -> ScriptedScore {
        if answer.text().contains('!') {
            return ScriptedScore::failing("it is loud");
        }
        let asks = answer.question.iter().any(|turn| turn.last_text().is_some_and(|text| text.ends_with('?')));
        ScriptedScore::steps(answer.steps.iter().map(|step| step.len() as f64 + if asks { 0.125 } else { 0.0 }))
    }

    struct Files(tempfile::TempDir);

    impl Files {
        fn new(name: &str, text: &str) -> (Files, PathBuf) {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join(name);
            fs::write(&path, text).expect("writable");
            (Files(folder), path)
        }

        /// What becomes of the samples, or the error's text.
        fn score(
            &self,
            samples: &Path,
            question: Option<&str>,
            task: Option<Task>,
            prefix: Option<&str>,
        ) -> std::result::Result<(Vec<Value>, TextTotals), String> {
            let scorer = ScriptedScorer::new(script).of_scale(Scale::Logit);
            let how = SampleScoring { delimiter: "\n".to_owned(), aggregate: Aggregate::Min };
            let fields = SampleFields { path: samples, id: None, text: None };
            let out = self.0.path().join("out.jsonl");
            let questions = LineQuestions::new(fields, question, task).map_err(|error| error.to_string())?;
            let written = WrittenFields::new(prefix);
            let work = FileWork { fields, questions: &questions, scorer: &scorer, how: &how, most: 2, written };
            let totals = work.write_to(&out, &AtomicBool::new(false)).map_err(|error| error.to_string())?;
            let text = fs::read_to_string(&out).expect("written");
            Ok((text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect(), totals))
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<String> = fs::read_dir(self.0.path())
                .expect("readable")
                .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
                .collect();
            names.sort();
            names
        }
    }

    #[test]
    fn lines_keep_what_they_have_and_get_their_scores() {
        let text = concat!(
            "{\"problem\": \"p\", \"completions\": [\"ab\\nc\", \"!\", \"ab\\nc\"], ",
            "\"big\": 12345678901234567890123}\n",
            "\n",
            "{\"problem\": \"q?\", \"completions\": \"abc\", \"score\": 7}\n",
            "{\"problem\": \"q?\", \"completions\": \"a!\"}\n",
            "{\"problem\": \"q?\", \"completions\": []}\n",
        );
        let (files, samples) = Files::new("in.jsonl", text);
        let (lines, totals) = files.score(&samples, None, None, None).expect("sound lines");
        assert_eq!(lines[0]["scores"], json!([[3.0, 1.0], null, [3.0, 1.0]]));
        assert_eq!(lines[0]["score"], json!([1.0, null, 1.0]));
        assert_eq!(lines[0]["score_error"], json!([null, LOUD, null]));
        assert_eq!((&lines[1]["scores"], &lines[1]["score"]), (&json!([3.125]), &json!(3.125)), "the old one is gone");
        assert!(lines[1].get("score_error").is_none());
        assert_eq!((&lines[2]["score"], &lines[2]["score_error"]), (&Value::Null, &json!(LOUD)));
        assert_eq!((&lines[3]["scores"], &lines[3]["score"]), (&json!([]), &json!([])));
        let written = fs::read_to_string(files.0.path().join("out.jsonl")).expect("written");
        assert!(written.contains("\"big\": 12345678901234567890123,"), "no digit is lost: {written}");
        assert_eq!((totals.texts, totals.unscored), (3, 2));
        assert_eq!(totals.left_out(), Some(format!("2 of 5 texts have no score, first line 1: {LOUD}")));

        let (lines, _) = files.score(&samples, None, None, Some("mine")).expect("sound lines");
        assert_eq!((&lines[1]["score"], &lines[1]["mine_score"]), (&json!(7), &json!(3.125)));
        assert_eq!(files.names(), ["in.jsonl", "out.jsonl", "out.jsonl.before"]);
    }

    #[test]
    fn rows_and_lists_are_scored_as_lines_are() {
        let (files, samples) = Files::new("in.csv", "id,question,text\n7,\"a, b\",abc\n");
        let (lines, _) = files.score(&samples, None, None, None).expect("sound rows");
        assert_eq!(lines, [json!({"id": "7", "question": "a, b", "text": "abc", "scores": [3.0], "score": 3.0})]);
        let (files, samples) = Files::new("in.json", r#"[{"prompt": "p", "samples": ["a"]}]"#);
        let (lines, _) = files.score(&samples, None, None, None).expect("a sound list");
        assert_eq!(lines, [json!({"prompt": "p", "samples": ["a"], "scores": [[1.0]], "score": [1.0]})]);
    }

    #[test]
    fn the_question_is_a_field_a_template_or_the_tasks() {
        let line =
            r#"{"id": 4, "question": "p", "other": "q?", "text": "ab", "chat": [{"role": "user", "content": "q?"}]}"#;
        let (files, samples) = Files::new("in.jsonl", line);
        let score = |question, task| {
            files.score(&samples, question, task, None).map(|(lines, _)| lines[0]["score"].as_f64().expect("a score"))
        };
        assert_eq!(score(None, None), Ok(2.0));
        assert_eq!(score(Some("other"), None), Ok(2.125));
        assert_eq!(score(Some("chat"), None), Ok(2.125));
        assert_eq!(score(Some("{{other}} and {{question}}"), None), Ok(2.0));
        let task = |id: &str| {
            let task = json!({"items": [{"id": id, "question": "really?"}], "prompt": "{{question}}",
                "method": {"sample": {"samples": 1}}});
            Task::reload(Path::new("t.json"), task, &Overrides::default()).expect("a task")
        };
        assert_eq!(score(None, Some(task("4"))), Ok(2.125));
        assert_eq!(score(Some("It is {{question}}."), Some(task("4"))), Ok(2.0));
        for (question, of_task, parts) in [
            (Some("nothing"), None, &["in.jsonl", "line 1", "nothing", "`question`"][..]),
            (Some("text"), Some(task("4")), &["`question`", "item `4`", "`text`"]),
            (Some("{{nothing}}"), None, &["`nothing`", "line 1"]),
            (Some("{{"), None, &["`question`", "a template"]),
            (Some("id"), None, &["`id`", "a text or a chat at line 1", "4"]),
            (None, Some(task("5")), &["`id`", "an item of t.json at line 1", "\"4\""]),
        ] {
            let error = score(question, of_task).expect_err("no question");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        assert_eq!(files.names(), ["in.jsonl", "out.jsonl", "out.jsonl.before"], "nothing half written is left");
    }

    #[test]
    fn what_is_no_file_of_samples_is_named() {
        for (text, parts) in [
            ("", &["no samples"][..]),
            ("{\"question\": \"p\", \"text\": \"a\"}\n{\"question\": \"p\"}\n", &["line 2", "`completions`", "`text`"]),
            ("{\"question\": \"p\", \"text\": [7]}\n", &["`text`", "line 1", "7"]),
            ("{\"question\": \"p\", \"text\": \"a\"}\n{\"question", &["line 2", "not JSON"]),
        ] {
            let (files, samples) = Files::new("in.jsonl", text);
            let error = files.score(&samples, None, None, None).expect_err("no samples");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            assert_eq!(files.names(), ["in.jsonl"], "nothing half written is left");
        }
    }

    #[test]
    fn an_interrupt_leaves_no_file() {
        let (files, samples) = Files::new("in.jsonl", "{\"question\": \"p\", \"text\": \"a\"}\n");
        let (scorer, how) = (ScriptedScorer::new(script), SampleScoring::default());
        let fields = SampleFields { path: &samples, id: None, text: None };
        let questions = LineQuestions::new(fields, None, None).expect("a field");
        let written = WrittenFields::new(None);
        let work = FileWork { fields, questions: &questions, scorer: &scorer, how: &how, most: 2, written };
        let ended = work.write_to(&files.0.path().join("out.jsonl"), &AtomicBool::new(true));
        assert!(matches!(ended, Err(Error::Interrupted)));
        assert_eq!(files.names(), ["in.jsonl"]);
    }
}
