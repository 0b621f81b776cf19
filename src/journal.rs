//! Results on disk, line by line: a sample is in `samples.jsonl` before it is counted, an item in `items.jsonl` when all of
//! its samples are. Only whole lines are ever left behind: a line that could not be written whole is taken back. Lines stand in
//! the order in which they came, which is by chance; a run that is complete puts them in order, so that equal runs leave equal
//! files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
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

    /// Says early what `create` would say: the folder holds results.
    pub fn check_free(folder: &Path) -> Result<()> {
        match folder.join("samples.jsonl").exists() {
            true => Err(Error::format(folder, "holds the results of a run already; choose another folder by --out")),
            false => Ok(()),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sample number `sample` of the item at `item` of the task's items.
    pub fn sample(&self, item: usize, sample: u64, line: &impl Serialize) -> Result<()> {
        self.samples.lock().expect("appending does not panic").append((item, sample), line)
    }

    pub fn item(&self, item: usize, line: &impl Serialize) -> Result<()> {
        self.items.lock().expect("appending does not panic").append((item, 0), line)
    }

    /// Puts the lines of a complete run in the order of items and samples. Each file is replaced whole or stays as it is.
    pub fn finish(self) -> Result<()> {
        for lines in [self.samples, self.items] {
            lines.into_inner().expect("appending does not panic").sort()?;
        }
        Ok(())
    }

    /// Writes `name` whole or not at all.
    pub fn file(&self, name: &str, contents: &str) -> Result<()> {
        let path = self.folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io(parent, "create the folder"))?;
        }
        write_whole(&path, |file| file.write_all(contents.as_bytes()))
    }
}

/// Writes a file beside `path` and puts it in its place when it is whole; nothing is left of one that fails.
fn write_whole(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = File::create(&partial).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()?;
        fs::rename(&partial, path)
    });
    written.map_err(|error| {
        if partial.exists()
            && let Err(again) = fs::remove_file(&partial)
        {
            log::warn!("{}: cannot be removed: {again}", partial.display());
        }
        Error::io(path, "write")(error)
    })
}

/// A file of JSON lines, open for appending.
struct Lines {
    path: PathBuf,
    file: File,
    /// The whole lines written so far.
    lines: Vec<Line>,
}

/// Where a line belongs among the others, and where it stands.
#[derive(Clone, Copy)]
struct Line {
    place: (usize, u64),
    start: u64,
    bytes: usize,
}

impl Lines {
    fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        Ok(Self { path: path.to_path_buf(), file: file.map_err(Error::io(path, "create"))?, lines: Vec::new() })
    }

    /// Bytes of the whole lines.
    fn whole(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.start + line.bytes as u64)
    }

    fn append(&mut self, place: (usize, u64), value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value)
            .map_err(|error| Error::Internal(format!("{}: a result is not JSON: {error}", self.path.display())))?;
        line.push(b'\n');
        let start = self.whole();
        if let Err(error) = self.file.write_all(&line) {
            // The disk is full, say: what was finished before stays, the half line goes.
            let undone = self.file.set_len(start).and_then(|()| self.file.seek(SeekFrom::Start(start)));
            if let Err(again) = undone {
                log::warn!("{}: the last line may be cut: {again}", self.path.display());
            }
            return Err(Error::io(&self.path, "write a line")(error));
        }
        self.lines.push(Line { place, start, bytes: line.len() });
        Ok(())
    }

    fn sort(mut self) -> Result<()> {
        if self.lines.is_sorted_by_key(|line| line.place) {
            return Ok(());
        }
        self.lines.sort_by_key(|line| line.place);
        write_whole(&self.path, |sorted| {
            for line in &self.lines {
                let mut text = vec![0; line.bytes];
                self.file.seek(SeekFrom::Start(line.start))?;
                self.file.read_exact(&mut text)?;
                sorted.write_all(&text)?;
            }
            Ok(())
        })
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
        journal.sample(1, 0, &serde_json::json!({"id": "a", "text": "two\nlines"})).expect("written");
        journal.sample(0, 3, &serde_json::json!({"id": "b"})).expect("written");
        let text = fs::read_to_string(out.join("samples.jsonl")).expect("readable");
        assert_eq!(text, "{\"id\":\"a\",\"text\":\"two\\nlines\"}\n{\"id\":\"b\"}\n");

        assert!(matches!(Journal::create(&out), Err(Error::Io { .. })), "a second run must not write over the first");
        assert_eq!(fresh_folder(&out), folder.path().join("deep/run-2"));

        journal.finish().expect("written");
        let text = fs::read_to_string(out.join("samples.jsonl")).expect("readable");
        assert_eq!(text, "{\"id\":\"b\"}\n{\"id\":\"a\",\"text\":\"two\\nlines\"}\n", "by item, then sample");
        let mut names: Vec<_> =
            fs::read_dir(&out).expect("readable").map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["items.jsonl", "samples.jsonl"], "nothing partial is left");
    }

    #[test]
    fn a_file_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("summary.json");
        let full = |_: &mut BufWriter<File>| Err(io::Error::from(io::ErrorKind::StorageFull));
        let error = write_whole(&path, full).expect_err("the disk is full");
        assert!(error.to_string().starts_with(&format!("{}: cannot write: ", path.display())), "{error}");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_line_that_does_not_fit_leaves_no_half_line() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            println!("skipped: no /dev/full here");
            return;
        }
        let file = OpenOptions::new().write(true).open(full).expect("/dev/full opens");
        let mut lines = Lines { path: full.to_path_buf(), file, lines: Vec::new() };
        let error = lines.append((0, 0), &serde_json::json!({"id": "a"})).expect_err("the disk is full");
        assert!(error.to_string().starts_with("/dev/full: cannot write a line: "), "{error}");
        assert_eq!(error.exit_code(), 2);
        assert_eq!(lines.whole(), 0);
    }
}
