//! A file of results that grows by whole lines, each with a key, and is sorted by these at its end; of lines with one
//! key the last is kept. When `append` returns, the operating system has the complete line. A line that could not be
//! written completely is removed; an incomplete line of a killed process is removed when the file is opened again. What
//! the lines hold is left to the callers.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use offshoot_core::error::{Error, Result};
use offshoot_core::out::files::{SYNC_EVERY, lock, write_whole};

/// The order of the lines: an item of the job, and a part of it.
pub type LineKey = (usize, u64);
/// Says the key of a line, by its number from 1 and its text.
type KeyOf<'a> = dyn FnMut(usize, &[u8]) -> Result<Option<LineKey>> + 'a;

/// A file of lines, which this process alone writes to.
pub struct SortedLines {
    path: PathBuf,
    file: File,
    /// The complete lines so far.
    lines: Vec<LineSpan>,
    /// Whether the file has complete lines that are not among these.
    has_others: bool,
    /// Bytes of all complete lines.
    end: u64,
    synced: Instant,
}

/// The key of a line, and its byte range in the file.
#[derive(Clone, Copy)]
struct LineSpan {
    key: LineKey,
    start: u64,
    bytes: usize,
}

impl SortedLines {
    /// `file`: the one at `path`, empty, open for reading and writing.
    ///
    /// # Errors
    ///
    /// Another process is writing to the file.
    pub fn new(path: &Path, file: File) -> Result<Self> {
        lock(path, &file)?;
        let (path, lines, synced) = (path.to_path_buf(), Vec::new(), Instant::now());
        Ok(Self { path, file, lines, has_others: false, end: 0, synced })
    }

    /// Like `new`, for a file that an earlier process may have written. `read` receives the number of each complete
    /// line, from 1, and the line without its end; it returns the line's key, or `None` for a line that is left out
    /// when the file is sorted.
    ///
    /// An incomplete line is removed; if it is the only one, only if it begins with `beginning`, as lines do: any other
    /// file stays as it is.
    pub fn reopen(path: &Path, file: File, beginning: &[u8], read: &mut KeyOf) -> Result<Self> {
        let mut opened = Self::new(path, file)?;
        let mut reader = BufReader::new(&opened.file);
        let mut text = Vec::new();
        for number in 1.. {
            text.clear();
            let bytes = reader.read_until(b'\n', &mut text).map_err(Error::io(path, "read"))?;
            let is_whole = text.pop_if(|last| *last == b'\n').is_some();
            if !is_whole && (bytes == 0 || number > 1 || text.starts_with(beginning)) {
                break;
            }
            let key = read(number, &text)?;
            opened.has_others |= key.is_none();
            opened.lines.extend(key.map(|key| LineSpan { key, start: opened.end, bytes }));
            opened.end += bytes as u64;
        }
        if !text.is_empty() {
            log::info!("{}: removing an incomplete line", path.display());
        }
        opened.cut().map_err(Error::io(path, "remove an incomplete line"))?;
        Ok(opened)
    }

    /// Removes what follows the complete lines.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.end)?;
        self.file.seek(SeekFrom::Start(self.end)).map(drop)
    }

    /// Adds a line, given without its end. Returns the bytes that the file has grown by.
    pub fn append(&mut self, key: LineKey, line: String) -> Result<usize> {
        let text = line + "\n";
        if let Err(error) = self.file.write_all(text.as_bytes()) {
            // For example, the disk is full: earlier lines stay, the incomplete line is removed.
            if let Err(again) = self.cut() {
                log::warn!("{}: the last line may be cut: {again}", self.path.display());
            }
            return Err(Error::io(&self.path, "write a line")(error));
        }
        self.lines.push(LineSpan { key, start: self.end, bytes: text.len() });
        self.end += text.len() as u64;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.file.sync_data().map_err(Error::io(&self.path, "force to the disk"))?;
            self.synced = Instant::now();
        }
        Ok(text.len())
    }

    /// Keeps the lines whose keys `keep` accepts. The file is replaced atomically or not changed.
    pub fn retain(mut self, keep: &dyn Fn(LineKey) -> bool) -> Result<Self> {
        let before = self.lines.len();
        self.lines.retain(|line| keep(line.key));
        if self.lines.len() == before {
            return Ok(self);
        }
        self.rewrite()?;
        let Self { path, lines, .. } = self;
        let file = File::options().read(true).write(true).open(&path).map_err(Error::io(&path, "open"))?;
        let mut keys = lines.into_iter().map(|line| Some(line.key));
        let more = || Error::Internal(format!("{} has more lines than were kept", path.display()));
        Self::reopen(&path, file, b"", &mut |_, _| keys.next().ok_or_else(more))
    }

    /// Sorts the lines and keeps the last one of each key. The file is replaced atomically or not changed.
    pub fn sort(mut self) -> Result<()> {
        if !self.has_others && self.lines.is_sorted_by(|one, next| one.key < next.key) {
            return self.file.sync_data().map_err(Error::io(&self.path, "force to the disk"));
        }
        // The order of lines with one key stays that of the file.
        self.lines.sort_by_key(|line| line.key);
        self.lines.reverse();
        self.lines.dedup_by_key(|line| line.key);
        self.lines.reverse();
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
        let file = File::options().write(true).open(full).expect("/dev/full opens");
        let mut lines = SortedLines::new(full, file).expect("devices are not locked");
        let error = lines.append((0, 0), "{}".to_string()).expect_err("the disk is full");
        assert!(error.to_string().starts_with("/dev/full: cannot write a line: "), "{error}");
        assert_eq!(error.exit_code(), 2);
        assert_eq!(lines.end, 0);
    }

    /// The key is the line's field `n`.
    fn place(line: &[u8]) -> Option<LineKey> {
        let value: Value = serde_json::from_slice(line).ok()?;
        Some((0, value["n"].as_u64()?))
    }

    fn create(path: &Path) -> SortedLines {
        let file = File::options().read(true).write(true).create_new(true).open(path).expect("it is new");
        SortedLines::new(path, file).expect("nobody has it")
    }

    fn reopen(path: &Path) -> Result<SortedLines> {
        let file = File::options().read(true).write(true).open(path).expect("it is there");
        let wrong = |number: usize| Error::format(path, format!("line {number}: no number"));
        SortedLines::reopen(path, file, b"{", &mut |number, line| place(line).ok_or_else(|| wrong(number)).map(Some))
    }

    fn write(path: &Path, texts: &[String], from: usize, lines: &mut SortedLines) {
        for (n, text) in texts.iter().enumerate().skip(from) {
            lines.append((0, n as u64), json!({"n": n, "text": text}).to_string()).expect("it can be written");
        }
        assert!(path.exists());
    }

    proptest! {
        /// Any prefix of a file can be continued; only the cut part is lost.
        #[test]
        fn any_prefix_of_a_file_is_continued(texts in prop::collection::vec(".{0,12}", 1..8), cut in 0.0f64..=1.0) {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join("lines.jsonl");
            write(&path, &texts, 0, &mut create(&path));
            let whole = fs::read(&path).expect("readable");
            let left = &whole[..(whole.len() as f64 * cut) as usize];
            fs::write(&path, left).expect("writable");
            let mut lines = reopen(&path).expect("a prefix is no fault");
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
        let Err(error) = reopen(&path) else { panic!("the second line is no JSON") };
        assert!(error.to_string().contains("lines.jsonl: line 2: "), "{error}");
    }

    /// Nothing is removed of what another program wrote.
    #[test]
    fn another_file_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        fs::write(&path, "a text without an end").expect("writable");
        assert!(reopen(&path).is_err_and(|error| error.to_string().contains("lines.jsonl: line 1: ")));
        assert_eq!(fs::read_to_string(&path).expect("readable"), "a text without an end");
    }

    #[test]
    fn two_processes_do_not_write_to_one_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        let first = create(&path);
        assert!(reopen(&path).is_err_and(|error| error.to_string().contains("another process")));
        drop(first);
        assert!(reopen(&path).is_ok());
    }

    #[test]
    fn the_last_line_of_a_key_is_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        let mut lines = create(&path);
        for (n, text) in [(0, "first"), (1, "only"), (0, "second"), (2, "only"), (2, "again")] {
            lines.append((0, n), json!({"n": n, "text": text}).to_string()).expect("writable");
        }
        lines.sort().expect("writable");
        let text = fs::read_to_string(&path).expect("readable");
        let expected = [(0, "second"), (1, "only"), (2, "again")].map(|(n, text)| json!({"n": n, "text": text}));
        assert_eq!(text, expected.map(|line| format!("{line}\n")).concat());
    }

    #[test]
    fn dropped_lines_leave_the_others_in_place() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.jsonl");
        let texts: Vec<String> = (0..5).map(|n| n.to_string()).collect();
        let mut lines = create(&path);
        write(&path, &texts, 0, &mut lines);
        let mut lines = lines.retain(&|(_, n)| n % 2 == 0).expect("writable");
        lines.append((0, 1), json!({"n": 1}).to_string()).expect("writable");
        lines.sort().expect("writable");
        let text = fs::read_to_string(&path).expect("readable");
        let numbers: Vec<u64> = text.lines().map(|line| place(line.as_bytes()).expect("whole").1).collect();
        assert_eq!(numbers, [0, 1, 2, 4]);
    }
}
