//! Reads little-endian values from the beginning of a file's bytes. Every length is compared with what is left before
//! anything is read or allocated.

use std::ops::Range;
use std::path::Path;

use offshoot_core::error::{Error, Result};

pub struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The place of the next `length` bytes; `what` they are, for the error.
    pub fn take(&mut self, length: u64, what: &str) -> Result<Range<usize>> {
        let start = self.at;
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        match end.filter(|&end| end <= self.bytes.len()) {
            Some(end) => {
                self.at = end;
                Ok(start..end)
            }
            None => Err(Error::format(
                self.path,
                format!(
                    "truncated or broken: {what} at byte {start} has {length} bytes, the file ends at byte {}",
                    self.bytes.len()
                ),
            )),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let range = self.take(N as u64, what)?;
        Ok(self.bytes[range].try_into().expect("as many bytes as were taken"))
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The place of a string: a length of eight bytes, then its bytes.
    pub fn string(&mut self, what: &str) -> Result<Range<usize>> {
        let length = self.u64(&format!("the length of {what}"))?;
        self.take(length, what)
    }

    /// The number of things of which each takes at least `least` bytes.
    pub fn count(&mut self, what: &str, least: usize) -> Result<usize> {
        let count = self.u64(&format!("the number of {what}"))?;
        self.fits(count, what, least)
    }

    /// `count` if that many things of at least `least` bytes can follow.
    pub fn fits(&self, count: u64, what: &str, least: usize) -> Result<usize> {
        let most = self.left() / least;
        usize::try_from(count).ok().filter(|&count| count <= most).ok_or_else(|| {
            let expected = format!("at most {most}, for which the file has bytes");
            Error::field(self.path, format!("number of {what}"), expected, count.to_string())
        })
    }
}
