//! Results on disk, line by line: a sample is in `samples.jsonl` before it is counted, an item in `items.jsonl` when
//! all of its samples are. Killing the process at any moment loses no line; a power cut loses the lines of the last two
//! seconds, or those since the last sync if no line followed. Lines are written in the order in which samples finish; a
//! complete run sorts them, so that equal runs write equal files.

mod attention;
mod lines;
mod replace;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use lines::SortedLines;
use offshoot_core::error::{Error, Result};
use offshoot_core::out::files::{FolderClaim, write_whole};
use offshoot_core::setting::OUT;
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
            samples: Mutex::new(SortedLines::create(&folder.join("samples.jsonl"))?),
            items: Mutex::new(SortedLines::create(&folder.join("items.jsonl"))?),
            folder: folder.to_path_buf(),
        })
    }

    /// Opens the journal that an earlier process left in `folder`. `index_of` returns an item's index in the task.
    pub fn reopen(folder: &Path, index_of: impl Fn(&str) -> Option<usize>) -> Result<(Self, Recorded)> {
        let mut recorded = Recorded::default();
        let place = |id: &str| index_of(id).ok_or_else(|| format!("the task has no item `{id}`"));
        let mut met = HashSet::new();
        let samples = SortedLines::reopen(&folder.join("samples.jsonl"), |line| {
            let SampleLine { id, sample } = parse(line, "a sample")?;
            let at = (place(&id)?, sample.index);
            if !met.insert(at) {
                return Err(format!("a second line of sample {} of item `{id}`", sample.index));
            }
            match sample.error {
                Some(_) => drop(recorded.failed_samples.insert(at)),
                None => recorded.samples.entry(at.0).or_default().push(sample),
            }
            Ok(at)
        })?;
        let items = SortedLines::reopen(&folder.join("items.jsonl"), |line| {
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
    pub fn retain(self, items: impl Fn(usize) -> bool, samples: impl Fn((usize, u64)) -> bool) -> Result<Self> {
        let lines = |lines: Mutex<SortedLines>| lines.into_inner().expect("appending does not panic");
        Ok(Self {
            samples: Mutex::new(lines(self.samples).retain(samples)?),
            items: Mutex::new(lines(self.items).retain(|(item, _)| items(item))?),
            folder: self.folder,
        })
    }

    /// Fails if the folder already contains results, like `create`.
    pub fn check_free(folder: &Path) -> Result<()> {
        settle(folder)?;
        match folder.join("samples.jsonl").exists() {
            true => Err(Error::format(
                folder,
                format!("holds the results of a run already; choose another folder by {OUT}"),
            )),
            false => Ok(()),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes sample number `sample` of the task's item `item`.
    pub fn sample(&self, item: usize, sample: u64, line: &impl Serialize) -> Result<()> {
        self.samples.lock().expect("appending does not panic").append((item, sample), line)
    }

    pub fn item(&self, item: usize, line: &impl Serialize) -> Result<()> {
        self.items.lock().expect("appending does not panic").append((item, 0), line)
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
        Self::write(&self.folder, name, contents)
    }

    /// Writes a file atomically into a folder that has no journal yet.
    pub fn write(folder: &Path, name: &str, contents: &str) -> Result<()> {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io(parent, "create the folder"))?;
        }
        write_whole(&path, |file| file.write_all(contents.as_bytes()))
    }

    /// Copies `name` to `NAME.before`, unless that exists.
    pub fn keep(folder: &Path, name: &str) -> Result<()> {
        let (path, before) = (folder.join(name), folder.join(format!("{name}.before")));
        if !path.exists() || before.exists() {
            return Ok(());
        }
        let mut now = File::open(&path).map_err(Error::io(&path, "open"))?;
        write_whole(&before, |file| std::io::copy(&mut now, file).map(drop))
    }
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8], what: &str) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|error| format!("not {what}: {error}"))
}

/// The existing folders among `base`, `base-2`, ..., latest first.
pub fn run_folders(base: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = numbered(base).take_while(|path| path.exists()).collect();
    folders.reverse();
    folders
}

/// Makes and claims the first of `base`, `base-2`, `base-3`, ... that does not exist yet.
pub fn fresh_folder(base: &Path) -> Result<FolderClaim> {
    for path in numbered(base) {
        if let Some(claim) = FolderClaim::fresh(&path)? {
            return Ok(claim);
        }
    }
    Err(Error::Internal(format!("no number behind {} is free", base.display())))
}

/// The first of `base`, `base-2`, `base-3`, ... that does not exist yet.
pub fn free_path(base: &Path) -> PathBuf {
    numbered(base).find(|path| !path.exists()).expect("some number is free")
}

/// `base`, `base-2`, `base-3`, ...
fn numbered(base: &Path) -> impl Iterator<Item = PathBuf> {
    (1u32..).map(|n| match n {
        1 => base.to_path_buf(),
        n => PathBuf::from(format!("{}-{n}", base.display())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_nothing_is_overwritten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = folder.path().join("deep/run");
        fs::create_dir_all(&out).expect("the folder is writable");
        let journal = Journal::create(&out).expect("the folder is writable");
        journal.sample(1, 0, &serde_json::json!({"id": "a", "text": "two\nlines"})).expect("written");
        journal.sample(0, 3, &serde_json::json!({"id": "b"})).expect("written");
        let text = fs::read_to_string(out.join("samples.jsonl")).expect("readable");
        assert_eq!(text, "{\"id\":\"a\",\"text\":\"two\\nlines\"}\n{\"id\":\"b\"}\n");

        assert!(matches!(Journal::create(&out), Err(Error::Io { .. })), "a second run must not write over the first");
        assert_eq!(free_path(&out), folder.path().join("deep/run-2"));

        journal.finish().expect("written");
        let text = fs::read_to_string(out.join("samples.jsonl")).expect("readable");
        assert_eq!(text, "{\"id\":\"b\"}\n{\"id\":\"a\",\"text\":\"two\\nlines\"}\n", "by item, then sample");
        let mut names: Vec<_> =
            fs::read_dir(&out).expect("readable").map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["items.jsonl", "samples.jsonl"], "nothing partial is left");
    }
}
