//! Input files: opened, read whole and limited in length, so that no file decides how much memory is held. Files of
//! lines, gzipped or not, are `offshoot_lines`'; what a file means is left to the callers.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::figures;
use crate::lfs;

/// What some programs write before UTF-8 text.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The longest line of a file of items, problems or samples, in bytes; the tests of some benchmarks take many MiB.
pub const MOST_OF_RECORD: usize = 512 << 20;

/// The largest JSON file or template of a model's folder, in bytes; those of large models have tens of MiB.
pub const MOST_OF_MODEL_FILE: u64 = 512 << 20;

/// The bytes of a JSON file or template of a model's folder, without a byte order mark.
///
/// # Errors
///
/// It is no regular file, as is a link to a device, which may have no end; it has more than [`MOST_OF_MODEL_FILE`]; it
/// cannot be read; it is a pointer of Git LFS.
pub fn model_file(path: &Path) -> Result<Vec<u8>> {
    let facts = std::fs::metadata(path).map_err(Error::io(path, "read"))?;
    if !facts.is_file() {
        return Err(Error::format(path, "expected a regular file, found a folder, pipe or device"));
    }
    if facts.len() > MOST_OF_MODEL_FILE {
        let [most, found] = [MOST_OF_MODEL_FILE, facts.len()].map(figures::bytes);
        return Err(Error::format(path, format!("expected at most {most}, found {found}")));
    }
    let bytes = std::fs::read(path).map(without_mark).map_err(Error::io(path, "read"))?;
    lfs::refuse_pointer(path, &bytes)?;
    Ok(bytes)
}

/// The bytes of an input file that is read whole: a task, a document, a prompt.
///
/// # Errors
///
/// It is a device; it has more than [`MOST_OF_RECORD`]; it cannot be read.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    whole(path, open(path)?)
}

/// The input `path` as text, without a byte order mark; bounded like [`bytes`].
pub fn text(path: &Path) -> Result<String> {
    whole_text(path, open(path)?)
}

/// The rest of the input `path`, opened and perhaps unpacked, as text without a byte order mark; bounded like
/// [`bytes`].
pub fn whole_text(path: &Path, reader: impl Read) -> Result<String> {
    let mut text = String::from_utf8(whole(path, reader)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = &error.as_bytes()[..at];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let what = not_text(error.as_bytes(), at);
        Error::format(path, format!("line {line}, byte {}: {what}", at - begin + 1))
    })?;
    if text.as_bytes().starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(text)
}

/// The bytes behind a byte order mark, if there is one.
fn without_mark(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    bytes
}

/// Why bytes are not UTF-8, of which those before `at` are.
pub fn not_text(bytes: &[u8], at: usize) -> String {
    let byte = bytes.get(at).copied().unwrap_or_default();
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "expected UTF-8 text, found UTF-16".to_string(),
        _ => format!("not UTF-8 text (0x{byte:02x})"),
    }
}

/// The rest of the input `path`, opened and perhaps unpacked; bounded like [`bytes`].
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

/// The paths of what is in a folder, sorted.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = || Error::io(folder, "list the folder");
    let entries = std::fs::read_dir(folder).map_err(failed())?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry.map_err(failed())?.path())).collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// Opens a file, pipe or terminal.
///
/// # Errors
///
/// It is another device, such as /dev/zero, which has no end; it cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(Error::io(path, "open"))?;
    let kind = file.metadata().map_err(Error::io(path, "open"))?.file_type();
    let is_empty = || std::fs::canonicalize(path).is_ok_and(|real| real == Path::new("/dev/null"));
    let is_device = kind.is_block_device() || (kind.is_char_device() && !file.is_terminal() && !is_empty());
    if is_device {
        return Err(Error::format(path, "expected a file or a pipe, found a device"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn what_is_no_text_is_said_by_line_and_byte() {
        let read = |bytes: &[u8]| whole_text(Path::new("in.csv"), Cursor::new(bytes.to_vec()));
        assert_eq!(read(b"\xef\xbb\xbfa\n\xc3\xa9").expect("text"), "a\n\u{e9}");
        for (bytes, expected) in [
            (&b"caf\xe9\n"[..], "in.csv: line 1, byte 4: not UTF-8 text (0xe9)"),
            (b"\xef\xbb\xbf\xe9", "in.csv: line 1, byte 4: not UTF-8 text (0xe9)"),
            (b"a\r\n\xc3\xa9b\nd\xff", "in.csv: line 3, byte 2: not UTF-8 text (0xff)"),
            (b"a\nb\xe2\x82", "in.csv: line 2, byte 2: not UTF-8 text (0xe2)"),
            (b"\xff\xfea\0", "in.csv: line 1, byte 1: expected UTF-8 text, found UTF-16"),
        ] {
            assert_eq!(read(bytes).expect_err("no text").to_string(), expected);
        }
    }
}
