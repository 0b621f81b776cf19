//! An append-only file of JSON lines. When `append` returns, the operating system has the complete line. A line that
//! could not be written completely is removed; an incomplete line of a killed process is removed when the file is
//! opened again.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::out::files::{SYNC_EVERY, lock, write_whole};

/// (item, sample): the order of the lines.
pub(super) type LineKey = (usize, u64);

pub(super) struct SortedLines {
    path: PathBuf,
    file: File,
    /// The complete lines so far.
    lines: Vec<LineSpan>,
    synced: Instant,
}

/// The key of a line, and its byte range in the file.
#[derive(Clone, Copy)]
struct LineSpan {
    place: LineKey,
    start: u64,
    bytes: usize,
}

impl SortedLines {
    pub fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        Self::of(path, file.map_err(Error::io(path, "create"))?)
    }

    /// Opens the file of an earlier process. `read` receives each complete line and returns its key, or why the line is
    /// invalid.
    pub fn reopen(path: &Path, mut read: impl FnMut(&[u8]) -> Result<LineKey, String>) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut opened = Self::of(path, file.map_err(Error::io(path, "open"))?)?;
        let mut reader = BufReader::new(&opened.file);
        let mut text = Vec::new();
        loop {
            text.clear();
            let bytes = reader.read_until(b'\n', &mut text).map_err(Error::io(path, "read"))?;
            if text.pop() != Some(b'\n') {
                break;
            }
            let number = opened.lines.len() + 1;
            let place = read(&text).map_err(|what| Error::format(path, format!("line {number}: {what}")))?;
            let start = opened.lines.last().map_or(0, |line: &LineSpan| line.start + line.bytes as u64);
            opened.lines.push(LineSpan { place, start, bytes });
        }
        if !text.is_empty() {
            log::info!("{}: removing an incomplete line", path.display());
        }
        opened.cut_to(opened.whole()).map_err(Error::io(path, "remove the last line"))?;
        Ok(opened)
    }

    fn of(path: &Path, file: File) -> Result<Self> {
        lock(path, &file)?;
        Ok(Self { path: path.to_path_buf(), file, lines: Vec::new(), synced: Instant::now() })
    }

    /// Bytes of the complete lines.
    fn whole(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.start + line.bytes as u64)
    }

    fn cut_to(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.seek(SeekFrom::Start(bytes)).map(drop)
    }

    pub fn append(&mut self, place: LineKey, value: &impl Serialize) -> Result<()> {
        let line = json::text("a result", value)? + "\n";
        let start = self.whole();
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // For example, the disk is full: earlier lines stay, the incomplete line is removed.
            if let Err(again) = self.cut_to(start) {
                log::warn!("{}: the last line may be cut: {again}", self.path.display());
            }
            return Err(Error::io(&self.path, "write a line")(error));
        }
        self.lines.push(LineSpan { place, start, bytes: line.len() });
        if self.synced.elapsed() >= SYNC_EVERY {
            self.file.sync_data().map_err(Error::io(&self.path, "force to the disk"))?;
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Keeps the lines whose keys `keep` accepts. The file is replaced atomically or not changed.
    pub fn retain(mut self, keep: impl Fn(LineKey) -> bool) -> Result<Self> {
        let before = self.lines.len();
        self.lines.retain(|line| keep(line.place));
        if self.lines.len() == before {
            return Ok(self);
        }
        self.rewrite()?;
        let places: Vec<LineKey> = self.lines.iter().map(|line| line.place).collect();
        let path = self.path.clone();
        drop(self);
        let mut places = places.into_iter();
        Self::reopen(&path, |_| places.next().ok_or_else(|| "more lines than were kept".to_string()))
    }

    /// Sorts the lines. The file is replaced atomically or not changed.
    pub fn sort(mut self) -> Result<()> {
        if self.lines.is_sorted_by_key(|line| line.place) {
            return self.file.sync_data().map_err(Error::io(&self.path, "force to the disk"));
        }
        self.lines.sort_by_key(|line| line.place);
        self.rewrite()
    }

    fn rewrite(&mut self) -> Result<()> {
        write_whole(&self.path, |file| {
            for line in &self.lines {
                let mut text = vec![0; line.bytes];
                self.file.seek(SeekFrom::Start(line.start))?;
                self.file.read_exact(&mut text)?;
                file.write_all(&text)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_line_that_does_not_fit_leaves_no_half_line() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return crate::skip::skipped("no /dev/full here");
        }
        let file = OpenOptions::new().write(true).open(full).expect("/dev/full opens");
        let mut lines = SortedLines { path: full.to_path_buf(), file, lines: Vec::new(), synced: Instant::now() };
        let error = lines.append((0, 0), &json!({"id": "a"})).expect_err("the disk is full");
        assert!(error.to_string().starts_with("/dev/full: cannot write a line: "), "{error}");
        assert_eq!(error.exit_code(), 2);
        assert_eq!(lines.whole(), 0);
    }

    /// The key is the line's field `n`.
    fn place(line: &[u8]) -> Result<LineKey, String> {
        let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        value["n"].as_u64().map(|n| (0, n)).ok_or_else(|| "no number".to_string())
    }

    fn write(path: &Path, texts: &[String], from: usize, lines: &mut SortedLines) {
        for (n, text) in texts.iter().enumerate().skip(from) {
            lines.append((0, n as u64), &json!({"n": n, "text": text})).expect("it can be written");
        }
        assert!(path.exists());
    }

    proptest! {
        /// Any prefix of a file can be continued; only the cut part is lost.
        #[test]
        fn any_prefix_of_a_file_is_continued(texts in prop::collection::vec(".{0,12}", 1..8), cut in 0.0f64..=1.0) {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join("lines.jsonl");
            write(&path, &texts, 0, &mut SortedLines::create(&path).expect("it is new"));
            let whole = fs::read(&path).expect("readable");
            let left = &whole[..(whole.len() as f64 * cut) as usize];
            fs::write(&path, left).expect("writable");
            let mut lines = SortedLines::reopen(&path, place).expect("a prefix is no fault");
            let kept = left.iter().filter(|&&byte| byte == b'\n').count();
            prop_assert_eq!(lines.lines.len(), kept);
            write(&path, &texts, kept, &mut lines);
            prop_assert_eq!(fs::read(&path).expect("readable"), whole);
        }
    }

    #[test]
    fn a_broken_line_in_the_middle_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        fs::write(&path, "{\"n\": 0}\n{\"n\": \n{\"n\": 2}\n").expect("writable");
        let Err(error) = SortedLines::reopen(&path, place) else { panic!("the second line is no JSON") };
        assert!(error.to_string().contains("lines.jsonl: line 2: "), "{error}");
    }

    #[test]
    fn two_processes_do_not_write_to_one_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        let first = SortedLines::create(&path).expect("it is new");
        assert!(SortedLines::reopen(&path, place).is_err_and(|error| error.to_string().contains("another process")));
        drop(first);
        assert!(SortedLines::reopen(&path, place).is_ok());
    }

    #[test]
    fn dropped_lines_leave_the_others_in_place() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        let texts: Vec<String> = (0..5).map(|n| n.to_string()).collect();
        let mut lines = SortedLines::create(&path).expect("it is new");
        write(&path, &texts, 0, &mut lines);
        let mut lines = lines.retain(|(_, n)| n % 2 == 0).expect("writable");
        lines.append((0, 1), &json!({"n": 1})).expect("writable");
        lines.sort().expect("writable");
        let text = fs::read_to_string(&path).expect("readable");
        let numbers: Vec<u64> = text.lines().map(|line| place(line.as_bytes()).expect("whole").1).collect();
        assert_eq!(numbers, [0, 1, 2, 4]);
    }
}
