//! Results on disk, line by line: a sample is in `samples.jsonl` before it is counted, an item in `items.jsonl` when
//! all of its samples are. Killing the process at any moment loses no line; a power cut loses the lines of the last two
//! seconds, or those since the last sync if no line followed. Lines are written in the order in which samples finish; a
//! complete run sorts them, so that equal runs write equal files. A sample that is scored or graded later than it is
//! sampled has another line then, which counts; sorting leaves the ones before out.

mod attention;
pub mod folder;
mod replace;

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::judged::is_ungraded;
use crate::task::Item;
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::setting::{OUT, RESUME};
use offshoot_lines::{LineKey, SortedLines};
use offshoot_search::{Outcome, Sample};

pub use attention::{AttentionFile, SampleAttention};
pub use replace::{replace, settle};

/// The results of one run; shared by the threads that work on items.
pub struct Journal {
    folder: PathBuf,
    samples: Mutex<SortedLines>,
    items: Mutex<SortedLines>,
}

/// What earlier processes recorded, by item.
#[derive(Default)]
pub struct Recorded {
    /// Samples that did not fail, in the order of the file.
    pub samples: HashMap<usize, Vec<Sample>>,
    /// Samples that failed, by item and number.
    pub failed_samples: HashSet<(usize, u64)>,
    /// Items that were searched to their end.
    pub finished: HashMap<usize, FinishedItem>,
    pub failed: HashSet<usize>,
}

/// A finished item, read from its line of `items.jsonl`.
pub struct FinishedItem {
    /// Number of its samples.
    pub samples: usize,
    /// Without its samples.
    pub outcome: Outcome,
}

#[derive(Deserialize)]
struct SampleLine {
    id: String,
    #[serde(flatten)]
    sample: Sample,
}

#[derive(Deserialize)]
struct ItemLine {
    id: String,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    samples: usize,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Journal {
    /// Creates empty files in `folder`, which the caller has claimed. Fails if it already contains results.
    pub fn create(folder: &Path) -> Result<Self> {
        Ok(Self {
            samples: Mutex::new(create(&folder.join("samples.jsonl"))?),
            items: Mutex::new(create(&folder.join("items.jsonl"))?),
            folder: folder.to_path_buf(),
        })
    }

    /// Opens the journal that an earlier process left in `folder`; `items`: those of the task.
    pub fn reopen(folder: &Path, items: &[Item]) -> Result<(Self, Recorded)> {
        let mut recorded = Recorded::default();
        let indices: HashMap<&str, usize> = items.iter().map(|item| (item.id.as_str(), item.index)).collect();
        let place = |id: &str| indices.get(id).copied().ok_or_else(|| format!("the task has no item `{id}`"));
        let mut met = HashSet::new();
        let samples = reopen(&folder.join("samples.jsonl"), &mut |line| {
            let SampleLine { id, sample } = parse(line, "a sample")?;
            let at = (place(&id)?, sample.index);
            if !met.insert(at) {
                // A sample is written when it is sampled, and again with its score or its grade, should they come later
                // or anew.
                let mut of_item = recorded.samples.get_mut(&at.0).into_iter().flatten();
                let before = of_item.find(|before| before.index == sample.index);
                let is_graded = |before: &Sample| before.detail.is_none() && sample.detail.is_some();
                match before.filter(|before| sample.scored.is_some() || is_ungraded(before) || is_graded(before)) {
                    Some(before) => *before = sample,
                    None => return Err(format!("a second line of sample {} of item `{id}`", sample.index)),
                }
                return Ok(at);
            }
            match sample.error {
                Some(_) => drop(recorded.failed_samples.insert(at)),
                None => recorded.samples.entry(at.0).or_default().push(sample),
            }
            Ok(at)
        })?;
        let items = reopen(&folder.join("items.jsonl"), &mut |line| {
            let ItemLine { id, error, samples, outcome } = parse(line, "an item")?;
            let at = place(&id)?;
            if recorded.failed.contains(&at) || recorded.finished.contains_key(&at) {
                return Err(format!("a second line of item `{id}`"));
            }
            match error {
                Some(_) => drop(recorded.failed.insert(at)),
                None => drop(recorded.finished.insert(at, FinishedItem { samples, outcome })),
            }
            Ok((at, 0))
        })?;
        let journal = Self { samples: Mutex::new(samples), items: Mutex::new(items), folder: folder.to_path_buf() };
        Ok((journal, recorded))
    }

    /// Keeps only the lines that `items` (by item) and `samples` (by item and number) accept.
    pub fn retain(self, items: &dyn Fn(usize) -> bool, samples: &dyn Fn((usize, u64)) -> bool) -> Result<Self> {
        let lines = |lines: Mutex<SortedLines>| lines.into_inner().expect("appending does not panic");
        Ok(Self {
            samples: Mutex::new(lines(self.samples).retain(samples)?),
            items: Mutex::new(lines(self.items).retain(&|(item, _)| items(item))?),
            folder: self.folder,
        })
    }

    /// Fails if the folder already contains results, like `create`.
    pub fn check_free(folder: &Path) -> Result<()> {
        settle(folder)?;
        match folder.join("samples.jsonl").exists() {
            true => {
                let ways = format!("choose another folder by {OUT}, or continue that run by `offshoot run {RESUME}`");
                Err(Error::format(folder, format!("holds the results of a run already; {ways}")))
            }
            false => Ok(()),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes sample number `sample` of the task's item `item`.
    pub fn sample(&self, item: usize, sample: u64, line: &impl Serialize) -> Result<()> {
        self.samples
            .lock()
            .expect("appending does not panic")
            .append((item, sample), json::text("a result", line)?)
            .map(drop)
    }

    pub fn item(&self, item: usize, line: &impl Serialize) -> Result<()> {
        self.items.lock().expect("appending does not panic").append((item, 0), json::text("a result", line)?).map(drop)
    }

    /// Sorts the lines of a complete run by item and sample. Each file is replaced atomically or not changed.
    pub fn finish(self) -> Result<()> {
        for lines in [self.samples, self.items] {
            lines.into_inner().expect("appending does not panic").sort()?;
        }
        Ok(())
    }

    /// Writes the file `name` atomically.
    pub fn file(&self, name: &str, contents: &str) -> Result<()> {
        folder::write(&self.folder, name, contents)
    }
}

fn create(path: &Path) -> Result<SortedLines> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    SortedLines::new(path, file.map_err(Error::io(path, "create"))?)
}

/// `read`: returns the key of a line, or why it is invalid.
fn reopen(path: &Path, read: &mut dyn FnMut(&[u8]) -> Result<LineKey, String>) -> Result<SortedLines> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    SortedLines::reopen(path, file.map_err(Error::io(path, "open"))?, b"", &mut |number, line| {
        let wrong = |what| Error::format(path, format!("line {number}: {what}"));
        read(line).map(Some).map_err(wrong)
    })
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8], what: &str) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|error| format!("not {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_are_whole_and_nothing_is_overwritten() {
        let base = tempfile::tempdir().expect("a temporary folder");
        let out = base.path().join("deep/run");
        fs::create_dir_all(&out).expect("the folder is writable");
        let journal = Journal::create(&out).expect("the folder is writable");
        journal.sample(1, 0, &serde_json::json!({"id": "a", "text": "two\nlines"})).expect("written");
        journal.sample(0, 3, &serde_json::json!({"id": "b"})).expect("written");
        let text = fs::read_to_string(out.join("samples.jsonl")).expect("readable");
        assert_eq!(text, "{\"id\":\"a\",\"text\":\"two\\nlines\"}\n{\"id\":\"b\"}\n");

        assert!(matches!(Journal::create(&out), Err(Error::Io { .. })), "a second run must not write over the first");
        assert_eq!(folder::free_path(&out), base.path().join("deep/run-2"));

        journal.finish().expect("written");
        let text = fs::read_to_string(out.join("samples.jsonl")).expect("readable");
        assert_eq!(text, "{\"id\":\"b\"}\n{\"id\":\"a\",\"text\":\"two\\nlines\"}\n", "by item, then sample");
        let mut names: Vec<_> =
            fs::read_dir(&out).expect("readable").map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["items.jsonl", "samples.jsonl"], "nothing partial is left");
    }
}
