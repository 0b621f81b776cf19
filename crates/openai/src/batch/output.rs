//! The output file: one complete line per answer, in order of completion; sorted into the order of the input at the
//! end. Also resumes the file of an interrupted job.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::answer::{BatchAnswer, refusal_id};
use super::input::InputLine;
use super::origin::AnswerOrigin;
use crate::protocol::Refusal;
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_core::out::files::remove_partials;
use offshoot_core::setting::{ACTIVATIONS, KV_DTYPE, OUT, RESUME, SEED, STATE_DTYPE, WEIGHTS};
use offshoot_lines::SortedLines;

pub struct BatchOutput {
    file: SortedLines,
    /// Whether each line of the input is answered.
    is_answered: Vec<bool>,
    /// The lines of the input that were refused, and why.
    refusals: BTreeMap<usize, Refusal>,
    /// The lines of the input that an earlier process refused and that are to be answered or refused again: hashes of
    /// what the file says of them.
    refused_before: HashMap<usize, blake3::Hash>,
}

impl BatchOutput {
    /// Opens a new file or, with `resume`, the existing one. Its answers to `lines` are kept; refused lines are
    /// answered or refused again, which replaces what the file says of them unless it is the same.
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
        let mut is_answered = vec![false; lines.len()];
        let mut refused_before = HashMap::new();
        let file = Self::read_answers(path, file, lines, origin, &mut is_answered, &mut refused_before)?;
        refused_before.retain(|&line, _| !is_answered[line]);
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) {
            remove_partials(folder, name);
        }
        Ok(BatchOutput { file, is_answered, refusals: BTreeMap::new(), refused_before })
    }

    /// Finds the answers in the file, each the one that would be sampled now, and removes an incomplete last line. Any
    /// other file is not changed.
    fn read_answers(
        path: &Path,
        file: File,
        lines: &[InputLine],
        origin: &AnswerOrigin,
        is_answered: &mut [bool],
        refused_before: &mut HashMap<usize, blake3::Hash>,
    ) -> Result<SortedLines> {
        let mut asked: HashMap<&str, &InputLine> = HashMap::new();
        for line in lines {
            if let Some(id) = &line.custom_id {
                asked.entry(id).or_insert(line);
            }
        }
        // Named only if the file has refusals.
        let refusal_ids = LazyCell::new(|| -> HashMap<String, usize> {
            lines.iter().map(|line| (refusal_id(line), line.index)).collect()
        });
        SortedLines::reopen(path, file, b"{\"id\"", &mut |number, text| {
            let wrong = |field: &str, expected: &str, found: &str| {
                Error::field(path, format!("line {number}: {field}"), expected, found)
            };
            let line = serde_json::from_slice::<Value>(text).ok().filter(|line| line.get("custom_id").is_some());
            let line = line.ok_or_else(|| Error::format(path, format!("line {number}: not an answer to a request")))?;
            // A refusal has another status.
            if line["response"]["status_code"] != 200 {
                let Some(&index) = line["id"].as_str().and_then(|id| refusal_ids.get(id)) else { return Ok(None) };
                // Of one that the file has several times, the last is kept.
                refused_before.insert(index, blake3::hash(text));
                return Ok((!is_answered[index]).then_some((index, 0)));
            }
            let id = line["custom_id"].as_str().unwrap_or("none");
            let asked = *asked.get(id).ok_or_else(|| {
                // An input line that cannot be read has no id. If there is exactly one, the answer may be its.
                let nameless: Vec<&InputLine> = lines.iter().filter(|line| line.custom_id.is_none()).collect();
                let why = match nameless[..] {
                    [InputLine { call: Err(why), .. }] => format!(" ({})", why.message),
                    _ => String::new(),
                };
                wrong("custom_id", "the id of a request in the input", &format!("{id}{why}"))
            })?;
            let call = asked.call.as_ref().map_err(|why| {
                let found = format!("{id} ({})", why.message);
                wrong("custom_id", "the id of a request that is not refused", &found)
            })?;
            let response = &line["response"];
            let fingerprint = &response["body"]["system_fingerprint"];
            if *fingerprint != origin.system_fingerprint.as_str() {
                let ours = &origin.system_fingerprint;
                let expected = format!("{ours} of this model, {WEIGHTS}, {ACTIVATIONS}, {KV_DTYPE} and {STATE_DTYPE}");
                let found = fingerprint.as_str().unwrap_or("none");
                return Err(wrong("response.body.system_fingerprint", &expected, found));
            }
            let (own, found) = (origin.request_id(call), &response["request_id"]);
            if *found != own.as_str() {
                let expected = format!("{own} of what request {:?} asks now, with this {SEED}", call.custom_id);
                return Err(wrong("response.request_id", &expected, found.as_str().unwrap_or("none")));
            }
            let is_first = !std::mem::replace(&mut is_answered[asked.index], true);
            Ok(is_first.then_some((asked.index, 0)))
        })
    }

    /// Whether input line `index` is answered.
    pub fn has(&self, index: usize) -> bool {
        self.is_answered[index]
    }

    /// Whether an earlier process has refused input line `index`, and nothing else is known of it.
    pub fn was_refused(&self, index: usize) -> bool {
        self.refused_before.contains_key(&index)
    }

    pub fn answered(&self) -> usize {
        self.is_answered.iter().filter(|is_answered| **is_answered).count() - self.refused()
    }

    pub fn refused(&self) -> usize {
        self.refusals.len()
    }

    /// The refused lines of the input, by index, and the reasons.
    pub fn refusals(&self) -> &BTreeMap<usize, Refusal> {
        &self.refusals
    }

    /// Appends the answer to line number `index`, unless the file has it already. Returns the bytes that the
    /// file has grown by.
    pub fn write(&mut self, index: usize, answer: &BatchAnswer) -> Result<usize> {
        let line = answer.line.to_string();
        let bytes = match self.refused_before.get(&index) {
            Some(before) if *before == blake3::hash(line.as_bytes()) => 0,
            _ => self.file.append((index, 0), line)?,
        };
        self.refused_before.remove(&index);
        self.is_answered[index] = true;
        self.refusals.extend(answer.refusal.iter().map(|why| (index, why.clone())));
        Ok(bytes)
    }

    /// Appends what the file says of line number `index`, which is not answered.
    pub fn leave(&mut self, index: usize, line: String) -> Result<()> {
        self.file.append((index, 0), line).map(drop)
    }

    /// Sorts the answers into the order of the input. The file is replaced atomically or not changed.
    pub fn finish(self) -> Result<()> {
        self.file.sort()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::input;

    #[test]
    fn a_refusal_is_in_the_file_once_however_often_it_is_resumed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (given, out) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
        let text = "{\"custom_id\": \"a\", \"url\": \"/v1/completions\"}\n{\"prompt\": \"no id\"}\n";
        std::fs::write(&given, text).expect("the temporary folder is writable");
        let lines = input::read(&given, 1 << 20).expect("two lines");
        let origin = AnswerOrigin { system_fingerprint: "fp_a".to_owned(), seed: 0 };
        let refusals: Vec<Refusal> = lines.iter().filter_map(|line| line.call.as_ref().err().cloned()).collect();
        let resume = |refusals: &[Refusal]| {
            let mut output = BatchOutput::open(&out, true, &lines, &origin).expect("a new file, or its own");
            let write = |(line, refusal): (&InputLine, &Refusal)| {
                output.write(line.index, &BatchAnswer::refused(line, refusal.clone(), &origin)).expect("writable")
            };
            let bytes: usize = lines.iter().zip(refusals).map(write).sum();
            assert_eq!((output.answered(), output.refused()), (0, 2));
            (output, bytes)
        };
        let read = || std::fs::read_to_string(&out).expect("it is there");
        let (_, bytes) = resume(&refusals);
        let first = read();
        assert_eq!((first.lines().count(), first.len()), (2, bytes));
        let (_, again) = resume(&refusals);
        assert_eq!((read(), again), (first.clone(), 0), "nothing is repeated");
        // Another reason replaces it, at the latest when the file is sorted.
        let (output, _) = resume(&[Refusal::new("other", "another reason"), refusals[1].clone()]);
        output.finish().expect("writable");
        let last = read();
        assert_eq!((last.lines().count(), last.lines().nth(1)), (2, first.lines().nth(1)));
        assert!(last.contains("another reason"), "{last}");
    }
}
