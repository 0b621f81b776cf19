//! The output file: one complete line per answer, in order of completion; sorted into the order of the input at the
//! end. Also resumes the file of an interrupted job.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use super::answer::BatchAnswer;
use super::input::{Call, InputLine};
use super::origin::AnswerOrigin;
use crate::protocol::Refusal;
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_core::out::files::{SYNC_EVERY, lock, remove_partials, write_whole};
use offshoot_core::setting::{ACTIVATIONS, KV_DTYPE, OUT, RESUME, SEED, STATE_DTYPE, WEIGHTS};

pub struct BatchOutput {
    path: PathBuf,
    file: File,
    /// Where the answer to each line of the input is in the file; `None`: not answered yet.
    spans: Vec<Option<AnswerSpan>>,
    /// The lines of the input that were refused, and why.
    refusals: BTreeMap<usize, Refusal>,
    end: u64,
    synced: Instant,
}

#[derive(Clone, Copy)]
struct AnswerSpan {
    start: u64,
    bytes: usize,
}

impl BatchOutput {
    /// Opens a new file or, with `resume`, the existing one. Its answers to `lines` are kept; refused lines are refused
    /// again.
    ///
    /// # Errors
    ///
    /// The file contains an answer of another origin, or one to a request that is not in `lines` or is now refused: the
    /// answer would be lost. Another process is writing to the file.
    pub fn open(path: &Path, resume: bool, lines: &[InputLine], origin: &AnswerOrigin) -> Result<Self> {
        if resume && !path.exists() {
            out::starting_afresh(path);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(resume).create_new(!resume).truncate(false);
        let file = options.open(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                Error::format(path, format!("already exists; give {RESUME} to continue it, or another {OUT}"))
            }
            _ => Error::io(path, "open")(error),
        })?;
        lock(path, &file)?;
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) {
            remove_partials(folder, name);
        }
        let mut output = BatchOutput {
            path: path.to_path_buf(),
            file,
            spans: vec![None; lines.len()],
            refusals: BTreeMap::new(),
            end: 0,
            synced: Instant::now(),
        };
        output.read_answers(lines, origin)?;
        Ok(output)
    }

    /// Finds the answers in the file and removes an incomplete last line. Any other file is not changed.
    fn read_answers(&mut self, lines: &[InputLine], origin: &AnswerOrigin) -> Result<()> {
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes).map_err(Error::io(&self.path, "read"))?;
        let mut asked: HashMap<&str, &InputLine> = HashMap::new();
        for line in lines {
            if let Some(id) = &line.custom_id {
                asked.entry(id).or_insert(line);
            }
        }
        let mut start = 0;
        for (number, text) in (1..).zip(bytes.split_inclusive(|&byte| byte == b'\n')) {
            if text.last() != Some(&b'\n') && (number > 1 || text.starts_with(b"{\"id\"")) {
                break;
            }
            let Some(line) = serde_json::from_slice::<Value>(text).ok().filter(|line| line.get("custom_id").is_some())
            else {
                return Err(Error::format(&self.path, format!("line {number}: not an answer to a request")));
            };
            // A refusal has another status.
            if line["response"]["status_code"] == 200 {
                let id = line["custom_id"].as_str().unwrap_or("none");
                let wrong_id = |expected: &str, found: String| {
                    Err(Error::field(&self.path, format!("line {number}: custom_id"), expected, found))
                };
                let Some(asked) = asked.get(id) else {
                    // An input line that cannot be read has no id. If there is exactly one, the answer may be its.
                    let nameless: Vec<&InputLine> = lines.iter().filter(|line| line.custom_id.is_none()).collect();
                    let why = match nameless[..] {
                        [InputLine { call: Err(why), .. }] => format!(" ({})", why.message),
                        _ => String::new(),
                    };
                    return wrong_id("the id of a request in the input", format!("{id}{why}"));
                };
                let call = match &asked.call {
                    Ok(call) => call,
                    Err(why) => {
                        return wrong_id("the id of a request that is not refused", format!("{id} ({})", why.message));
                    }
                };
                self.check(number, &line["response"], call, origin)?;
                self.spans[asked.index] = Some(AnswerSpan { start, bytes: text.len() });
            }
            start += text.len() as u64;
        }
        self.truncate(start).map_err(Error::io(&self.path, "remove an incomplete line"))
    }

    /// Checks that the answer in line `number` is the one that would be sampled now.
    fn check(&self, number: usize, response: &Value, call: &Call, origin: &AnswerOrigin) -> Result<()> {
        let differs = |field: &str, expected: String, found: &Value| {
            let found = found.as_str().unwrap_or("none");
            Err(Error::field(&self.path, format!("line {number}: response.{field}"), expected, found))
        };
        let fingerprint = &response["body"]["system_fingerprint"];
        if *fingerprint != origin.system_fingerprint.as_str() {
            let expected = format!(
                "{} of this model, {WEIGHTS}, {ACTIVATIONS}, {KV_DTYPE} and {STATE_DTYPE}",
                origin.system_fingerprint
            );
            return differs("body.system_fingerprint", expected, fingerprint);
        }
        let (id, found) = (origin.request_id(call), &response["request_id"]);
        if *found != id.as_str() {
            let expected = format!("{id} of what request {:?} asks now, with this {SEED}", call.custom_id);
            return differs("request_id", expected, found);
        }
        Ok(())
    }

    fn truncate(&mut self, end: u64) -> std::io::Result<()> {
        self.end = end;
        self.file.set_len(end)?;
        self.file.seek(SeekFrom::Start(end)).map(drop)
    }

    /// Whether input line `index` is answered.
    pub fn has(&self, index: usize) -> bool {
        self.spans[index].is_some()
    }

    pub fn answered(&self) -> usize {
        self.spans.iter().flatten().count() - self.refused()
    }

    pub fn refused(&self) -> usize {
        self.refusals.len()
    }

    /// The refused lines of the input, by index, and the reasons.
    pub fn refusals(&self) -> &BTreeMap<usize, Refusal> {
        &self.refusals
    }

    /// Appends the answer to line number `index`. Returns its length in bytes.
    pub fn write(&mut self, index: usize, answer: &BatchAnswer) -> Result<usize> {
        let mut text = answer.line.to_string().into_bytes();
        text.push(b'\n');
        if let Err(error) = self.file.write_all(&text) {
            // Earlier answers stay; the incomplete line is removed.
            if let Err(again) = self.truncate(self.end) {
                log::warn!("{}: the last line may be cut: {again}", self.path.display());
            }
            return Err(Error::io(&self.path, "write a line")(error));
        }
        self.spans[index] = Some(AnswerSpan { start: self.end, bytes: text.len() });
        self.refusals.extend(answer.refusal.iter().map(|why| (index, why.clone())));
        self.end += text.len() as u64;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.file.sync_data().map_err(Error::io(&self.path, "force to the disk"))?;
            self.synced = Instant::now();
        }
        Ok(text.len())
    }

    /// Sorts the answers into the order of the input. The file is replaced atomically or not changed.
    pub fn finish(mut self) -> Result<()> {
        let Self { path, file, spans, .. } = &mut self;
        write_whole(path, |sorted| {
            for place in spans.iter().flatten() {
                let mut text = vec![0; place.bytes];
                file.seek(SeekFrom::Start(place.start))?;
                file.read_exact(&mut text)?;
                sorted.write_all(&text)?;
            }
            Ok(())
        })
    }
}
