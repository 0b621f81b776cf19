//! The encodings of Parquet's pages: levels, and values as bytes, one by one, so that a page that says more than it
//! holds takes no memory. Where pages come from is up to `pages`.

use std::ops::Range;
use std::sync::Arc;

use super::schema::Physical;
use super::thrift::{read_varint, zigzag};
use super::why::{Why, why};

/// An unpacked page, which its decoders share.
pub(super) type Page = Arc<Vec<u8>>;

fn ends_early<T>() -> Result<T, Why> {
    why("a page ends early")
}

/// A number of `bytes` bytes at `at`, the least first.
fn number(page: &[u8], at: usize, bytes: usize) -> Result<usize, Why> {
    match page.get(at..).and_then(|left| left.get(..bytes)) {
        Some(found) => Ok(found.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))),
        None => ends_early(),
    }
}

/// A number of at most 64 bits at bit `at` of `bytes`, the least bit first.
fn bits(bytes: &[u8], at: usize, width: u32) -> Option<u64> {
    let (first, shift) = (at / 8, at % 8);
    let last = (at + width as usize).div_ceil(8);
    let found = bytes.get(first..last)?.iter().rev().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
    Some((found >> shift) as u64 & (!0u64).checked_shr(64 - width).unwrap_or(0))
}

/// Numbers of some bits, in runs of one number and runs of packed ones.
pub(super) struct Runs {
    page: Page,
    /// What is not read yet.
    bytes: Range<usize>,
    width: u32,
    left: u64,
    run: Run,
}

enum Run {
    Same(u32),
    /// From this bit of the page on.
    Packed(usize),
}

impl Runs {
    pub fn new(page: Page, bytes: Range<usize>, width: u32) -> Result<Runs, Why> {
        if width > 32 {
            return why(format!("numbers of {width} bits are in a page, expected at most 32"));
        }
        if bytes.start > bytes.end || bytes.end > page.len() {
            return ends_early();
        }
        Ok(Runs { page, bytes, width, left: 0, run: Run::Same(0) })
    }

    /// Runs after their length in four bytes; also where they end.
    pub fn after_length(page: Page, at: usize, width: u32) -> Result<(Runs, usize), Why> {
        let end = (at + 4).saturating_add(number(&page, at, 4)?);
        Ok((Runs::new(page, at + 4..end, width)?, end))
    }

    fn next_run(&mut self) -> Result<(), Why> {
        let Some((head, taken)) = read_varint(&self.page[self.bytes.clone()]) else { return ends_early() };
        self.bytes.start += taken;
        self.left = head >> 1;
        if head & 1 == 1 {
            let packed = self.left.saturating_mul(u64::from(self.width));
            self.left = self.left.saturating_mul(8);
            self.run = Run::Packed(8 * self.bytes.start);
            // The last run may be cut short.
            self.bytes.start = self.bytes.end.min(self.bytes.start.saturating_add(packed as usize));
        } else {
            let bytes = self.width.div_ceil(8) as usize;
            if self.bytes.len() < bytes {
                return ends_early();
            }
            self.run = Run::Same(number(&self.page, self.bytes.start, bytes)? as u32);
            self.bytes.start += bytes;
        }
        Ok(())
    }

    pub fn next(&mut self) -> Result<u32, Why> {
        while self.left == 0 {
            self.next_run()?;
        }
        self.left -= 1;
        match &mut self.run {
            Run::Same(number) => Ok(*number),
            Run::Packed(at) => {
                let found = bits(&self.page[..self.bytes.start], *at, self.width);
                *at += self.width as usize;
                found.map_or_else(ends_early, |found| Ok(found as u32))
            }
        }
    }
}

/// Levels of a page.
pub(super) enum Levels {
    /// The column has one level only.
    None,
    Runs(Runs),
    /// Packed from this bit on, the highest bit first, as old writers have it.
    Packed(Page, usize, u32),
}

impl Levels {
    pub fn width(most: i16) -> u32 {
        u32::from((most as u16).checked_ilog2().map_or(0, |log| log as u16 + 1))
    }

    pub fn next(&mut self) -> Result<i16, Why> {
        match self {
            Levels::None => Ok(0),
            Levels::Runs(runs) => runs.next().map(|level| level as i16),
            Levels::Packed(page, at, width) => {
                let mut level = 0;
                for _ in 0..*width {
                    let Some(byte) = page.get(*at / 8) else { return ends_early() };
                    level = level << 1 | i16::from(byte >> (7 - *at % 8) & 1);
                    *at += 1;
                }
                Ok(level)
            }
        }
    }
}

/// Whole numbers by their differences, in blocks of which each has its own width.
struct Differences {
    page: Page,
    /// What is read next: a block's head, or packed differences.
    at: usize,
    of_miniblock: usize,
    miniblocks: usize,
    left: u64,
    value: i64,
    least: i64,
    /// Where the widths of the block's miniblocks are, and which of these is read.
    widths: usize,
    miniblock: usize,
    /// Differences of it that are left, and the next one's first bit.
    packed: usize,
    bit: usize,
    is_first: bool,
}

impl Differences {
    fn new(page: Page, mut at: usize) -> Result<Differences, Why> {
        let mut head = || -> Result<u64, Why> {
            let Some((value, taken)) = page.get(at..).and_then(read_varint) else { return ends_early() };
            at += taken;
            Ok(value)
        };
        let [of_block, miniblocks, left, first] = [head()?, head()?, head()?, head()?];
        if of_block == 0
            || of_block > 1 << 24
            || miniblocks == 0
            || of_block % miniblocks != 0
            || !(of_block / miniblocks).is_multiple_of(8)
        {
            return why(format!("a page has blocks of {of_block} differences in {miniblocks} parts"));
        }
        let of_miniblock = (of_block / miniblocks) as usize;
        let miniblocks = miniblocks as usize;
        Ok(Differences {
            page,
            at,
            of_miniblock,
            miniblocks,
            left,
            value: zigzag(first),
            least: 0,
            widths: 0,
            miniblock: miniblocks,
            packed: 0,
            bit: 0,
            is_first: true,
        })
    }

    /// Goes on to the next miniblock.
    fn advance(&mut self) -> Result<(), Why> {
        if self.miniblock == self.miniblocks {
            let Some((least, taken)) = self.page.get(self.at..).and_then(read_varint) else { return ends_early() };
            self.least = zigzag(least);
            self.widths = self.at + taken;
            self.at = self.widths + self.miniblocks;
            self.miniblock = 0;
        }
        let width = number(&self.page, self.widths + self.miniblock, 1)?;
        if width > 64 {
            return why(format!("a page has differences of {width} bits"));
        }
        self.bit = 8 * self.at;
        self.at += self.of_miniblock / 8 * width;
        self.packed = self.of_miniblock;
        self.miniblock += 1;
        Ok(())
    }

    fn next(&mut self) -> Result<i64, Why> {
        let Some(left) = self.left.checked_sub(1) else { return ends_early() };
        self.left = left;
        if std::mem::take(&mut self.is_first) {
            return Ok(self.value);
        }
        if self.packed == 0 {
            self.advance()?;
        }
        let width = u32::from(self.page[self.widths + self.miniblock - 1]);
        let Some(difference) = bits(&self.page, self.bit, width) else { return ends_early() };
        self.bit += width as usize;
        self.packed -= 1;
        self.value = self.value.wrapping_add(self.least).wrapping_add(difference as i64);
        Ok(self.value)
    }

    /// Where the numbers of a stream like this end.
    fn end(page: &Page, at: usize) -> Result<usize, Why> {
        let mut stream = Differences::new(page.clone(), at)?;
        let mut left = stream.left.saturating_sub(1);
        while left > 0 {
            stream.advance()?;
            left = left.saturating_sub(stream.of_miniblock as u64);
        }
        Ok(stream.at)
    }
}

/// The values of a dictionary's page.
pub(super) struct Dictionary {
    page: Page,
    /// Where each begins, and the last one's end; of values of one length, nothing.
    begins: Vec<u32>,
    physical: Physical,
}

impl Dictionary {
    pub fn new(page: Page, physical: Physical) -> Result<Dictionary, Why> {
        let mut begins = Vec::new();
        if physical == Physical::Bytes {
            let mut at = 0;
            while at < page.len() {
                begins.push(at as u32);
                at = (at + 4).saturating_add(number(&page, at, 4)?);
            }
            if at > page.len() {
                return ends_early();
            }
            begins.push(at as u32);
        }
        Ok(Dictionary { page, begins, physical })
    }

    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.page.len() + 4 * self.begins.len()
    }

    fn value(&self, index: usize) -> Option<&[u8]> {
        match self.physical {
            Physical::Bool => None,
            Physical::Fixed(length) => self.page.get(index.checked_mul(length)?..)?.get(..length),
            Physical::Bytes => {
                let end = *self.begins.get(index + 1)? as usize;
                self.page.get(self.begins[index] as usize + 4..end)
            }
        }
    }
}

/// The values of a page in their encoding.
pub(super) enum Values {
    /// From this byte on; of truth values, from this bit on.
    Plain(Page, usize),
    Dictionary(Runs, Arc<Dictionary>),
    Bools(Runs),
    Differences(Differences64),
    /// Lengths, and where the bytes begin.
    Lengths(Page, Box<Lengths>),
    /// What each has in common with the value before, that value, and the rest.
    Prefixes(Page, Box<Prefixes>),
    /// The first bytes of all values, then the second ones, and so on, of values from the first byte to the end.
    Split {
        page: Page,
        from: usize,
        next: usize,
        value: Vec<u8>,
    },
}

pub(super) struct Differences64(Differences, [u8; 8]);

pub(super) struct Lengths {
    lengths: Differences,
    at: usize,
}

pub(super) struct Prefixes {
    prefixes: Differences,
    value: Vec<u8>,
    suffixes: Lengths,
}

impl Lengths {
    fn new(page: Page, at: usize) -> Result<Lengths, Why> {
        Ok(Lengths { at: Differences::end(&page, at)?, lengths: Differences::new(page, at)? })
    }

    fn next<'p>(&mut self, page: &'p [u8]) -> Result<&'p [u8], Why> {
        let length = usize::try_from(self.lengths.next()?).unwrap_or(usize::MAX);
        let Some(found) = page.get(self.at..).and_then(|left| left.get(..length)) else { return ends_early() };
        self.at += length;
        Ok(found)
    }
}

impl Values {
    /// The values of `page` from byte `from` on.
    pub fn new(
        page: Page,
        from: usize,
        encoding: i64,
        physical: Physical,
        dictionary: Option<&Arc<Dictionary>>,
    ) -> Result<Values, Why> {
        let end = page.len();
        match (encoding, physical) {
            (0, Physical::Bool) => Ok(Values::Plain(page, 8 * from)),
            (0, _) => Ok(Values::Plain(page, from)),
            (2 | 8, _) => {
                let Some(dictionary) = dictionary else { return why("a page lacks its dictionary") };
                // A page of nulls may have no width.
                let width = page.get(from).copied().unwrap_or(0);
                let runs = Runs::new(page, (from + 1).min(end)..end, u32::from(width))?;
                Ok(Values::Dictionary(runs, dictionary.clone()))
            }
            (3, Physical::Bool) => Ok(Values::Bools(Runs::after_length(page, from, 1)?.0)),
            (5, Physical::Fixed(4 | 8)) => {
                Ok(Values::Differences(Differences64(Differences::new(page, from)?, [0; 8])))
            }
            (6, Physical::Bytes) => Ok(Values::Lengths(page.clone(), Box::new(Lengths::new(page, from)?))),
            (7, Physical::Bytes | Physical::Fixed(_)) => {
                let prefixes = Differences::new(page.clone(), from)?;
                let suffixes = Lengths::new(page.clone(), Differences::end(&page, from)?)?;
                Ok(Values::Prefixes(page, Box::new(Prefixes { prefixes, value: Vec::new(), suffixes })))
            }
            (9, Physical::Fixed(length)) => Ok(Values::Split { page, from, next: 0, value: vec![0; length] }),
            _ => why(format!("a page is in encoding {encoding}, which is not known for its column")),
        }
    }

    /// The next value's bytes; of a truth value, one of 0 or 1.
    pub fn next(&mut self, physical: Physical) -> Result<&[u8], Why> {
        match self {
            Values::Plain(page, at) => match physical {
                Physical::Bool => {
                    let bit = bits(page, *at, 1).map_or_else(ends_early, Ok)?;
                    *at += 1;
                    Ok(&[[0], [1]][bit as usize])
                }
                Physical::Fixed(length) => {
                    *at += length;
                    page.get(*at - length..*at).map_or_else(ends_early, Ok)
                }
                Physical::Bytes => {
                    let begin = *at + 4;
                    *at = begin.saturating_add(number(page, *at, 4)?);
                    page.get(begin..*at).map_or_else(ends_early, Ok)
                }
            },
            Values::Dictionary(runs, dictionary) => {
                let index = runs.next()?;
                dictionary.value(index as usize).ok_or_else(|| Why(format!("a dictionary has no value {index}")))
            }
            Values::Bools(runs) => Ok(&[[0], [1]][runs.next()? as usize & 1]),
            Values::Differences(Differences64(stream, value)) => {
                *value = stream.next()?.to_le_bytes();
                Ok(if physical == Physical::Fixed(4) { &value[..4] } else { value })
            }
            Values::Lengths(page, lengths) => lengths.next(page),
            Values::Prefixes(page, prefixes) => {
                let Prefixes { prefixes, value, suffixes } = &mut **prefixes;
                let kept = usize::try_from(prefixes.next()?).unwrap_or(usize::MAX);
                if kept > value.len() {
                    return why(format!("a value begins with {kept} bytes of one of {}", value.len()));
                }
                value.truncate(kept);
                value.extend(suffixes.next(page)?);
                match physical {
                    Physical::Fixed(length) if length != value.len() => {
                        why(format!("a value has {} bytes, expected {length}", value.len()))
                    }
                    _ => Ok(value),
                }
            }
            Values::Split { page, from, next, value } => {
                let count = (page.len() - *from) / value.len();
                if *next >= count {
                    return ends_early();
                }
                for (ix, byte) in value.iter_mut().enumerate() {
                    *byte = page[*from + ix * count + *next];
                }
                *next += 1;
                Ok(value)
            }
        }
    }
}
