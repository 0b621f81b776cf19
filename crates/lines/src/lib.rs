//! Files of lines, gzipped or not: opened, unpacked as they are read, and limited in length, so that no file decides
//! how much memory is held; and files of results that grow line by line ([`SortedLines`]). What a line means is left to
//! the callers.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

#[cfg(test)]
#[path = "../../../tests/common/skip.rs"]
mod skip;
mod sorted;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use offshoot_core::error::{Error, Result};
use offshoot_core::figures;
use offshoot_core::input::{self, BYTE_ORDER_MARK};

pub use sorted::{LineKey, SortedLines};

/// The first bytes of a gzipped file.
const GZIP: &[u8] = b"\x1f\x8b";

/// Opens a file; it is unpacked if it is gzipped, which its name or its first bytes say.
pub fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(input::open(path)?);
    let is_named = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
    let is_gzip = file.fill_buf().map_err(Error::io(path, "read"))?.starts_with(GZIP);
    Ok(match is_gzip || is_named {
        true => Box::new(BufReader::new(MultiGzDecoder::new(file))),
        false => Box::new(file),
    })
}

/// A line that is not blank.
pub struct Line {
    /// Counted from 1; blank lines count.
    pub number: usize,
    /// Without the byte order mark of the file. Of a line that is too long, its beginning.
    pub bytes: Vec<u8>,
    /// The length of the line if it exceeds the limit.
    pub too_long: Option<TooLong>,
}

/// A line's length, in bytes, and the limit that it exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    bytes: usize,
    most: usize,
}

impl TooLong {
    /// `a line of 1.20 GiB is longer than 64.0 MiB`
    pub fn why(&self) -> String {
        let (most, bytes) = (figures::bytes(self.most as u64), figures::bytes(self.bytes as u64));
        format!("a line of {bytes} is longer than {most}")
    }
}

/// The lines of a file that are not blank.
pub struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    number: usize,
    most: usize,
}

impl Lines {
    /// `most`: the longest line that is read whole, in bytes.
    pub fn of(path: &Path, reader: Box<dyn BufRead>, most: usize) -> Lines {
        Lines { path: path.to_path_buf(), reader, number: 0, most }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let mut bytes = Vec::new();
            // One byte more for the line's end.
            let limit = self.most as u64 + 1;
            let read = (&mut self.reader).take(limit).read_until(b'\n', &mut bytes)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            let mut too_long = None;
            if read as u64 == limit && bytes.last() != Some(&b'\n') {
                let rest = self.reader.skip_until(b'\n')?;
                too_long = Some(TooLong { bytes: read + rest, most: self.most });
            }
            if self.number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            if too_long.is_some() || !bytes.trim_ascii().is_empty() {
                return Ok(Some(Line { number: self.number, bytes, too_long }));
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Result<Line>> {
        self.read().map_err(Error::io(&self.path, "read")).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn lines(text: &[u8], most: usize) -> Vec<(usize, String, bool)> {
        let lines = Lines::of(Path::new("in.jsonl"), Box::new(Cursor::new(text.to_vec())), most);
        let shown = |line: Result<Line>| {
            let Line { number, bytes, too_long } = line.expect("memory is read");
            (number, String::from_utf8(bytes).expect("the test's text").trim_end().to_string(), too_long.is_some())
        };
        lines.map(shown).collect()
    }

    #[test]
    fn lines_have_numbers_and_a_limit() {
        let text = b"\xef\xbb\xbfabcd\r\n\n  \nabcde\nabcdefg\nx";
        let of = |number, text: &str, is_cut| (number, text.to_string(), is_cut);
        assert_eq!(
            lines(text, 9),
            [of(1, "abcd", false), of(4, "abcde", false), of(5, "abcdefg", false), of(6, "x", false)]
        );
        assert_eq!(
            lines(b"abcde\nabcdef\n\nabcdefghij\nx", 5),
            [of(1, "abcde", false), of(2, "abcdef", true), of(4, "abcdef", true), of(5, "x", false)]
        );
    }

    #[test]
    fn files_are_unpacked_by_name_or_first_bytes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(b"{}\n{}\n").expect("memory takes it");
        let packed = packed.finish().expect("memory takes it");
        let read = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("the folder is writable");
            let lines = Lines::of(&path, open(&path)?, 100).collect::<Result<Vec<Line>>>()?;
            Ok::<_, Error>(lines.len())
        };
        assert_eq!(read("named.gz", &packed).expect("whole"), 2);
        assert_eq!(read("unnamed", &packed).expect("whole"), 2);
        assert_eq!(read("plain", b"{}").expect("whole"), 1);
        for (name, bytes) in [("cut.gz", &packed[..packed.len() - 9]), ("plain.gz", b"{}\n"), ("cut", &packed[..15])] {
            let error = read(name, bytes).expect_err("broken").to_string();
            assert!(error.contains(&format!("{name}: cannot ")), "{error}");
        }
    }
}
