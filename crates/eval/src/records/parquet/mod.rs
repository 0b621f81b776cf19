//! Parquet files as JSON lines, one a row, so that all that reads JSON lines reads Parquet: lists and structs become
//! lists and objects, nulls stay, times become ISO texts, bytes become text or else base64. Strangers write such files:
//! what a file says of itself is checked before it is believed, and its pages are read one at a time within a bound of
//! memory. `write` has the other direction, for results.

mod json;
mod pages;
mod rows;
mod schema;
mod thrift;
mod values;
mod why;
mod write;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use rows::Rows;
use why::Why;

pub(super) use write::Writer;

use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{self, shortened};

/// Memory for reading a file: at least this, and so many times its length, because a page is unpacked whole.
const LEAST_BYTES: usize = 512 << 20;
const TIMES_LENGTH: usize = 16;
/// Rows are read in batches of at most this many, which end where they have so many bytes. A text that many rows have
/// is stored once in the file and once for each row in a batch.
const BATCH_ROWS: u64 = 16;
const BATCH_BYTES: usize = 1 << 20;
/// A file may have this many rows, and one more for each of its bytes: rows without content take none.
const FREE_ROWS: u64 = 1 << 18;

/// The rows of Parquet files, one after the other, as JSON lines.
pub(super) struct RowLines {
    ahead: VecDeque<PathBuf>,
    file: Option<OpenFile>,
    /// Lines, of which those before `at` have been read.
    text: Vec<u8>,
    at: usize,
}

/// A file with its rows not read yet.
struct OpenFile {
    path: PathBuf,
    rows: Rows,
    rows_left: u64,
    most_rows: u64,
}

impl RowLines {
    /// Opens the first file at once, so that what is no Parquet is refused here.
    pub fn open(files: Vec<PathBuf>) -> Result<RowLines> {
        let mut lines = RowLines { ahead: files.into(), file: None, text: Vec::new(), at: 0 };
        lines.file = lines.ahead.pop_front().map(|path| OpenFile::open(&path)).transpose()?;
        Ok(lines)
    }

    /// Replaces the text that was read by the next rows; none are left if it is then empty.
    fn refill(&mut self) -> Result<()> {
        self.at = 0;
        self.text.clear();
        self.text.shrink_to(BATCH_BYTES);
        loop {
            match self.file.take() {
                Some(mut file) => {
                    file.next_rows(&mut self.text)?;
                    if !self.text.is_empty() {
                        self.file = Some(file);
                        return Ok(());
                    }
                }
                None => match self.ahead.pop_front() {
                    Some(path) => self.file = Some(OpenFile::open(&path)?),
                    None => return Ok(()),
                },
            }
        }
    }
}

impl BufRead for RowLines {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.text.len() {
            // Nothing is read after what failed.
            self.refill().inspect_err(|_| self.ahead.clear()).map_err(io::Error::other)?;
        }
        Ok(&self.text[self.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

impl Read for RowLines {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

impl OpenFile {
    fn open(path: &Path) -> Result<OpenFile> {
        let facts = std::fs::metadata(path).map_err(Error::io(path, "open"))?;
        if !facts.is_file() {
            return Err(Error::format(path, "expected a Parquet file, found a folder, pipe or device"));
        }
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let length = usize::try_from(facts.len()).unwrap_or(usize::MAX);
        let most = LEAST_BYTES.saturating_add(length.saturating_mul(TIMES_LENGTH));
        let rows = Rows::open(file, facts.len(), most).map_err(|why| not_read(path, &why))?;
        let most_rows = FREE_ROWS + facts.len();
        Ok(OpenFile { path: path.to_path_buf(), rows, rows_left: most_rows, most_rows })
    }

    /// Writes the next rows as lines; none after the last.
    fn next_rows(&mut self, text: &mut Vec<u8>) -> Result<()> {
        for _ in 0..BATCH_ROWS {
            if text.len() >= BATCH_BYTES || !self.rows.write_next(text).map_err(|why| not_read(&self.path, &why))? {
                break;
            }
            let Some(rows_left) = self.rows_left.checked_sub(1) else {
                let most = figures::count(self.most_rows);
                return Err(Error::format(&self.path, format!("expected at most {most} rows, found more")));
            };
            self.rows_left = rows_left;
        }
        Ok(())
    }
}

fn not_read(path: &Path, why: &Why) -> Error {
    /// The most letters of a reason, which may have names from the file.
    const MOST: usize = 300;
    let why = why.0.split_whitespace().collect::<Vec<_>>().join(" ");
    Error::format(path, format!("not Parquet that can be read: {}", shortened(why, MOST)))
}

#[cfg(test)]
mod tests {
    use crate::full::some_or_full;
    use serde_json::{Value, json};

    use super::*;
    use crate::records::table::Kind;
    use crate::records::write::write_records;
    use offshoot_core::dice::Dice;

    const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..", "/tests/data/parquet");

    fn rows(files: Vec<PathBuf>) -> Result<Vec<Value>> {
        let lines = offshoot_lines::Lines::of(Path::new("x"), Box::new(RowLines::open(files)?), 1 << 20);
        lines.map(|line| Ok(serde_json::from_slice(&line?.bytes).expect("a row is JSON"))).collect()
    }

    /// The files of `tests/data/parquet/make_parquet.py`, which pyarrow wrote: each type, encoding and codec; with the
    /// lines that they are, which those of one name share.
    fn fixtures() -> Vec<(PathBuf, Vec<Value>)> {
        let files = std::fs::read_dir(FIXTURES).expect("the fixtures are there").map(|file| file.unwrap().path());
        let of_file = |path: PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let name = name.strip_suffix(".parquet")?.split('.').next().unwrap();
            let lines = std::fs::read_to_string(path.with_file_name(format!("{name}.jsonl"))).ok()?;
            Some((path, lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()))
        };
        let files: Vec<(PathBuf, Vec<Value>)> = files.filter_map(of_file).collect();
        assert_eq!(files.len(), 18);
        files
    }

    #[test]
    fn rows_are_the_objects_that_json_lines_would_have() {
        for (file, expected) in fixtures() {
            let found = rows(vec![file.clone(), file.clone()]).unwrap();
            assert_eq!(found.len(), 2 * expected.len(), "{}", file.display());
            for (row, (found, expected)) in found.iter().zip(expected.iter().cycle()).enumerate() {
                assert_eq!(found, expected, "{}, row {row}", file.display());
            }
        }
    }

    #[test]
    fn what_is_no_parquet_is_refused_in_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        let whole = std::fs::read(&fixtures()[0].0).unwrap();
        for bytes in [&b""[..], b"{\"a\": 1}\n", &whole[..whole.len() / 2], &whole[whole.len() / 2..]] {
            std::fs::write(&path, bytes).unwrap();
            let error = rows(vec![path.clone()]).unwrap_err().to_string();
            assert!(error.contains("x.parquet: not Parquet") && !error.contains('\n'), "{error}");
        }
        assert!(rows(vec![folder.path().to_path_buf()]).unwrap_err().to_string().contains("found a folder"));
    }

    #[test]
    fn damaged_files_are_refused_or_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        let mut dice = Dice::new(1);
        for (file, _) in fixtures() {
            let whole = std::fs::read(file).unwrap();
            for _ in 0..100 {
                let mut bytes = whole.clone();
                for _ in 0..=dice.below(4) {
                    let at = dice.below(bytes.len());
                    let any = dice.below(256) as u8;
                    bytes[at] = dice.pick(&[0, 1, 0x7F, 0x80, 0xFF, any]);
                }
                std::fs::write(&path, bytes).unwrap();
                let read = |mut rows: RowLines| io::copy(&mut rows, &mut io::sink()).map_err(|error| error.to_string());
                if let Err(said) = RowLines::open(vec![path.clone()]).map_err(|error| error.to_string()).and_then(read)
                {
                    assert!(said.contains("x.parquet: ") && !said.contains('\n'), "{said}");
                }
            }
        }
    }

    #[test]
    fn rows_without_content_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        let records = vec![json!({}); FREE_ROWS as usize + (64 << 10)];
        write_records(vec![("a", Kind::I64)], records, &mut File::create(&path).unwrap()).unwrap();
        let error = rows(vec![path]).unwrap_err().to_string();
        assert!(error.contains("expected at most") && error.contains("rows, found more"), "{error}");
    }

    #[test]
    fn a_text_that_all_rows_share_is_not_held_for_all_of_them() {
        // 700 rows with the same text of 1 MB, which the file has once, in a dictionary.
        let mut lines = RowLines::open(vec![PathBuf::from(FIXTURES).join("shared.parquet")]).unwrap();
        let mut text = 0;
        let wanted = some_or_full(64 << 20, 700 << 20);
        while text < wanted {
            let bytes = lines.fill_buf().unwrap().len();
            assert!(bytes > 0, "the file ends after {text} bytes");
            assert!(bytes < 2 * BATCH_BYTES, "{bytes} bytes are held");
            text += bytes;
            lines.consume(bytes);
        }
    }
}
