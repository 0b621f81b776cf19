//! Input files, gzipped or not, and their lines: opened, unpacked as they are read, and limited in length, so that no
//! file decides how much memory is held. What a line means is left to the callers.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, Result};
use crate::figures;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const GZIP: &[u8] = b"\x1f\x8b";

/// The longest line of a file of items, problems or samples, in bytes; the tests of some benchmarks take many MiB.
pub const MOST_OF_RECORD: usize = 512 << 20;

/// The largest JSON file or template of a model's folder, in bytes; those of large models have tens of MiB.
pub const MOST_OF_MODEL_FILE: u64 = 512 << 20;

/// The bytes of a file of a model's folder.
///
/// # Errors
///
/// It is no regular file, as is a link to a device, which may have no end; it has more than [`MOST_OF_MODEL_FILE`]; it
/// cannot be read.
pub fn model_file(path: &Path) -> Result<Vec<u8>> {
    let facts = std::fs::metadata(path).map_err(Error::io(path, "read"))?;
    if !facts.is_file() {
        return Err(Error::format(path, "expected a regular file, found a folder, pipe or device"));
    }
    if facts.len() > MOST_OF_MODEL_FILE {
        let [most, found] = [MOST_OF_MODEL_FILE, facts.len()].map(figures::bytes);
        return Err(Error::format(path, format!("expected at most {most}, found {found}")));
    }
    std::fs::read(path).map_err(Error::io(path, "read"))
}

/// The bytes of an input file that is read whole: a task, a document, a prompt.
///
/// # Errors
///
/// It is a device; it has more than [`MOST_OF_RECORD`]; it cannot be read.
pub fn input_file(path: &Path) -> Result<Vec<u8>> {
    whole(path, open_input(path)?)
}

/// The same as text, without a byte order mark.
pub fn input_text(path: &Path) -> Result<String> {
    whole_text(path, open_input(path)?)
}

/// The rest of the input `path`, opened and perhaps unpacked, as text without a byte order mark; bounded like
/// [`input_file`].
pub fn whole_text(path: &Path, reader: impl Read) -> Result<String> {
    let not_text = |at: usize| Error::format(path, format!("not UTF-8 text (byte {at})"));
    let mut bytes = whole(path, reader)?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| not_text(error.utf8_error().valid_up_to()))
}

/// The same as bytes.
pub fn whole(path: &Path, reader: impl Read) -> Result<Vec<u8>> {
    let most = MOST_OF_RECORD as u64;
    let too_long =
        |found: &str| Error::format(path, format!("expected at most {}, found {found}", figures::bytes(most)));
    if let Some(facts) = std::fs::metadata(path).ok().filter(|facts| facts.is_file() && facts.len() > most) {
        return Err(too_long(&figures::bytes(facts.len())));
    }
    let mut bytes = Vec::new();
    reader.take(most + 1).read_to_end(&mut bytes).map_err(Error::io(path, "read"))?;
    if bytes.len() > MOST_OF_RECORD { Err(too_long("more")) } else { Ok(bytes) }
}

/// Opens a file, pipe or terminal. Other devices, such as /dev/zero, have no end.
fn open_input(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(Error::io(path, "open"))?;
    let kind = file.metadata().map_err(Error::io(path, "open"))?.file_type();
    let is_empty = || std::fs::canonicalize(path).is_ok_and(|real| real == Path::new("/dev/null"));
    let is_device = kind.is_block_device() || (kind.is_char_device() && !file.is_terminal() && !is_empty());
    if is_device {
        return Err(Error::format(path, "expected a file or a pipe, found a device"));
    }
    Ok(file)
}

/// Opens a file; it is unpacked if it is gzipped, which its name or its first bytes say.
pub fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(open_input(path)?);
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
