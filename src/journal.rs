//! Results on disk, line by line: a sample is in `samples.jsonl` before it is counted, an item in `items.jsonl` when all of
//! its samples are. Only whole lines are ever left behind: a line that could not be written whole is taken back.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::Serialize;

use crate::error::{Error, Result};

/// The results of one run; shared by the threads that work on items.
pub struct Journal {
    folder: PathBuf,
    samples: Mutex<Lines>,
    items: Mutex<Lines>,
}

impl Journal {
    /// Creates `folder` with empty files. A folder that holds results already is left alone.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(Error::io(folder, "create the output folder"))?;
        Ok(Self {
            samples: Mutex::new(Lines::create(&folder.join("samples.jsonl"))?),
            items: Mutex::new(Lines::create(&folder.join("items.jsonl"))?),
            folder: folder.to_path_buf(),
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn sample(&self, line: &impl Serialize) -> Result<()> {
        self.samples.lock().expect("appending does not panic").append(line)
    }

    pub fn item(&self, line: &impl Serialize) -> Result<()> {
        self.items.lock().expect("appending does not panic").append(line)
    }

    /// Writes `name` whole or not at all.
    pub fn file(&self, name: &str, contents: &str) -> Result<()> {
        let path = self.folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io(parent, "create the folder"))?;
        }
        let partial = path.with_extension("partial");
        fs::write(&partial, contents).map_err(Error::io(&partial, "write"))?;
        fs::rename(&partial, &path).map_err(Error::io(&path, "write"))
    }
}

/// A file of JSON lines, open for appending.
struct Lines {
    path: PathBuf,
    file: File,
    /// Bytes of the whole lines written so far.
    whole: u64,
}

impl Lines {
    fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(Error::io(path, "create"))?;
        Ok(Self { path: path.to_path_buf(), file, whole: 0 })
    }

    fn append(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value)
            .map_err(|error| Error::Internal(format!("{}: a result is not JSON: {error}", self.path.display())))?;
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line) {
            // The disk is full, say: what was finished before stays, the half line goes.
            let undone = self.file.set_len(self.whole).and_then(|()| self.file.seek(SeekFrom::Start(self.whole)));
            if let Err(again) = undone {
                log::warn!("{}: the last line may be cut: {again}", self.path.display());
            }
            return Err(Error::io(&self.path, "write a line")(error));
        }
        self.whole += line.len() as u64;
        Ok(())
    }
}

/// The first of `base`, `base-2`, `base-3`, ... that does not exist yet.
pub fn fresh_folder(base: &Path) -> PathBuf {
    let numbered = |n: u32| match n {
        1 => base.to_path_buf(),
        n => PathBuf::from(format!("{}-{n}", base.display())),
    };
    (1..).map(numbered).find(|path| !path.exists()).expect("some number is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_nothing_is_overwritten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = folder.path().join("deep/run");
        let journal = Journal::create(&out).expect("the folder is writable");
        journal.sample(&serde_json::json!({"id": "a", "text": "two\nlines"})).expect("written");
        journal.sample(&serde_json::json!({"id": "b"})).expect("written");
        let text = fs::read_to_string(out.join("samples.jsonl")).expect("readable");
        assert_eq!(text, "{\"id\":\"a\",\"text\":\"two\\nlines\"}\n{\"id\":\"b\"}\n");

        assert!(matches!(Journal::create(&out), Err(Error::Io { .. })), "a second run must not write over the first");
        assert_eq!(fresh_folder(&out), folder.path().join("deep/run-2"));
    }

    #[test]
    fn a_line_that_does_not_fit_leaves_no_half_line() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            println!("skipped: no /dev/full here");
            return;
        }
        let file = OpenOptions::new().write(true).open(full).expect("/dev/full opens");
        let mut lines = Lines { path: full.to_path_buf(), file, whole: 0 };
        let error = lines.append(&serde_json::json!({"id": "a"})).expect_err("the disk is full");
        assert!(error.to_string().starts_with("/dev/full: cannot write a line: "), "{error}");
        assert_eq!(error.exit_code(), 2);
        assert_eq!(lines.whole, 0);
    }
}
