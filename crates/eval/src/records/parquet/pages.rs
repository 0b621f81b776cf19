//! The pages of a row group's columns: read from the file one at a time, unpacked within a bound of memory, and given
//! out as levels and values. What these are together is up to `rows`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

use super::schema::{Chunk, Leaf};
use super::thrift::Thrift;
use super::values::{Dictionary, Levels, Page, Runs, Values};
use super::why::{Why, why};

/// Most bytes of a page's description, which may have its least and its greatest value.
const MOST_HEAD: usize = 16 << 20;
/// How many bytes are read for it at first.
const HEAD: usize = 4 << 10;

/// A column's next value: where it begins and how much of it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub repetition: i16,
    pub definition: i16,
}

/// The columns of a row group, and how much memory their pages may take together.
pub(super) struct Columns {
    file: File,
    columns: Vec<ReadColumn>,
    left: usize,
}

struct ReadColumn {
    leaf: Leaf,
    chunk: Chunk,
    dictionary: Option<Arc<Dictionary>>,
    /// Values of the chunk that no page before had.
    ahead: u64,
    page: Option<OpenPage>,
    /// The level of the next value, where it was looked at.
    level: Option<Level>,
}

struct OpenPage {
    bytes: usize,
    left: u64,
    repetitions: Levels,
    definitions: Levels,
    values: Values,
}

impl Columns {
    /// None yet.
    pub fn of(file: File) -> Columns {
        Columns { file, columns: Vec::new(), left: 0 }
    }

    /// Goes on with the columns of a row group, whose pages take at most `most` bytes.
    pub fn open(&mut self, leaves: &[Leaf], chunks: &[Chunk], most: usize) {
        let column = |(leaf, chunk): (&Leaf, &Chunk)| ReadColumn {
            leaf: leaf.clone(),
            chunk: *chunk,
            dictionary: None,
            ahead: chunk.values,
            page: None,
            level: None,
        };
        self.columns = leaves.iter().zip(chunks).map(column).collect();
        self.left = most;
    }

    pub fn leaf(&self, column: usize) -> &Leaf {
        &self.columns[column].leaf
    }

    /// The level of the column's next value; `None` after the last.
    pub fn peek(&mut self, column: usize) -> Result<Option<Level>, Why> {
        let Columns { file, columns, left } = self;
        let column = &mut columns[column];
        if column.level.is_none() {
            column.level = column.next_level(file, left).map_err(|error| error.of(&column.leaf.name))?;
        }
        Ok(column.level)
    }

    /// The column's next value; `None` where it or what it is in is null or empty.
    pub fn next(&mut self, column: usize) -> Result<Option<&[u8]>, Why> {
        let Some(level) = self.peek(column)? else {
            return why(format!("`{}` has fewer values than rows", self.leaf(column).name));
        };
        let ReadColumn { leaf, page, level: looked, .. } = &mut self.columns[column];
        *looked = None;
        if level.definition < leaf.most_definition {
            return Ok(None);
        }
        let page = page.as_mut().expect("the level was read from it");
        page.values.next(leaf.physical).map(Some).map_err(|error| error.of(&leaf.name))
    }
}

impl ReadColumn {
    fn next_level(&mut self, file: &mut File, left: &mut usize) -> Result<Option<Level>, Why> {
        while self.page.as_ref().is_none_or(|page| page.left == 0) {
            *left += self.page.take().map_or(0, |page| page.bytes);
            if self.ahead == 0 || self.chunk.begin >= self.chunk.end {
                return Ok(None);
            }
            self.read_page(file, left)?;
        }
        let page = self.page.as_mut().expect("one was read");
        page.left -= 1;
        let (repetition, definition) = (page.repetitions.next()?, page.definitions.next()?);
        Ok(Some(Level { repetition, definition }))
    }

    /// Reads the next page, which may have no values.
    fn read_page(&mut self, file: &mut File, left: &mut usize) -> Result<(), Why> {
        let (head, length) = self.read_head(file)?;
        self.chunk.begin += length as u64;
        let (Some(packed), Some(unpacked)) = (head.size(3), head.size(2)) else { return why("a page has no size") };
        if packed > self.chunk.end - self.chunk.begin {
            return why(format!("a page of {packed} bytes goes past its column"));
        }
        let needed = usize::try_from(packed.saturating_add(unpacked)).unwrap_or(usize::MAX);
        let kind = head.int(1).unwrap_or(-1);
        if needed > *left && matches!(kind, 0 | 2 | 3) {
            return why(format!("a page of {packed} bytes, {unpacked} once unpacked, takes too much memory"));
        }
        let read = |file: &mut File| -> Result<Vec<u8>, Why> {
            let mut bytes = vec![0; packed as usize];
            file.read_exact(&mut bytes).map_err(|error| Why(error.to_string()))?;
            Ok(bytes)
        };
        let begin = self.chunk.begin;
        self.chunk.begin += packed;
        file.seek(SeekFrom::Start(begin)).map_err(|error| Why(error.to_string()))?;
        let (codec, unpacked) = (self.chunk.codec, unpacked as usize);
        match kind {
            0 => {
                let Some(data) = head.field(5) else { return why("a page is not described") };
                let page = Arc::new(unpack(codec, &read(file)?, unpacked)?);
                let encodings = [data.int(4).unwrap_or(3), data.int(3).unwrap_or(3)];
                self.open_page(page, data, encodings, left)
            }
            3 => {
                let Some(data) = head.field(8) else { return why("a page is not described") };
                let levels = [data.size(6).unwrap_or(0), data.size(5).unwrap_or(0)];
                let bytes = read(file)?;
                let of_levels = levels[0].saturating_add(levels[1]);
                if of_levels > packed || of_levels > unpacked as u64 {
                    return why("a page ends early");
                }
                let (level_bytes, packed_values) = bytes.split_at(of_levels as usize);
                let mut page = level_bytes.to_vec();
                let codec = if data.bool(7) == Some(false) { 0 } else { codec };
                page.extend(unpack(codec, packed_values, unpacked - level_bytes.len())?);
                self.open_page_in_parts(Arc::new(page), data, levels.map(|length| length as usize), left)
            }
            2 => {
                let page = Arc::new(unpack(codec, &read(file)?, unpacked)?);
                let dictionary = Dictionary::new(page, self.leaf.physical)?;
                *left += self.dictionary.take().map_or(0, |old| old.bytes());
                let Some(now_left) = left.checked_sub(dictionary.bytes()) else {
                    return why("its dictionary takes too much memory");
                };
                *left = now_left;
                self.dictionary = Some(Arc::new(dictionary));
                Ok(())
            }
            // An index, or what later versions add.
            _ => Ok(()),
        }
    }

    fn read_head(&self, file: &mut File) -> Result<(Thrift, usize), Why> {
        let most = usize::try_from(self.chunk.end - self.chunk.begin).unwrap_or(usize::MAX).min(MOST_HEAD);
        let mut length = HEAD.min(most);
        loop {
            let mut bytes = vec![0; length];
            let read = file.seek(SeekFrom::Start(self.chunk.begin)).and_then(|_| file.read_exact(&mut bytes));
            read.map_err(|error| Why(error.to_string()))?;
            match Thrift::read(&bytes)? {
                Some(found) => return Ok(found),
                None if length == most => return why("a page's description ends early"),
                None => length = (16 * length).min(most),
            }
        }
    }

    /// Opens a page of the first version: levels are in front of the values, each with its length.
    fn open_page(&mut self, page: Page, data: &Thrift, encodings: [i64; 2], left: &mut usize) -> Result<(), Why> {
        let count = data.size(1).unwrap_or(0);
        let (mut at, mut levels) = (0, [const { Levels::None }; 2]);
        let most = [self.leaf.most_repetition, self.leaf.most_definition];
        for ((levels, encoding), most) in levels.iter_mut().zip(encodings).zip(most) {
            if most == 0 {
                continue;
            }
            let width = Levels::width(most);
            if encoding == 4 {
                *levels = Levels::Packed(page.clone(), 8 * at, width);
                let bytes = count.saturating_mul(u64::from(width)).div_ceil(8);
                at = at.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
            } else {
                let (runs, end) = Runs::after_length(page.clone(), at, width)?;
                (*levels, at) = (Levels::Runs(runs), end);
            }
        }
        self.set_page(page, at, data.int(2), count, levels, left)
    }

    /// Opens a page of the second version, whose levels have these lengths.
    fn open_page_in_parts(
        &mut self,
        page: Page,
        data: &Thrift,
        lengths: [usize; 2],
        left: &mut usize,
    ) -> Result<(), Why> {
        let (mut at, mut levels) = (0, [const { Levels::None }; 2]);
        let most = [self.leaf.most_repetition, self.leaf.most_definition];
        for ((levels, length), most) in levels.iter_mut().zip(lengths).zip(most) {
            if most > 0 {
                *levels = Levels::Runs(Runs::new(page.clone(), at..at + length, Levels::width(most))?);
            }
            at += length;
        }
        self.set_page(page, at, data.int(4), data.size(1).unwrap_or(0), levels, left)
    }

    fn set_page(
        &mut self,
        page: Page,
        at: usize,
        encoding: Option<i64>,
        count: u64,
        [repetitions, definitions]: [Levels; 2],
        left: &mut usize,
    ) -> Result<(), Why> {
        if at > page.len() {
            return why("a page ends early");
        }
        let bytes = page.len();
        let encoding = encoding.unwrap_or(-1);
        // A page of nulls alone needs none of what its encoding has at its beginning.
        let values = match at == bytes {
            true => Values::Plain(page, 8 * bytes),
            false => Values::new(page, at, encoding, self.leaf.physical, self.dictionary.as_ref())?,
        };
        let count = count.min(self.ahead);
        self.ahead -= count;
        *left = left.checked_sub(bytes).ok_or_else(|| Why("its pages take too much memory".to_string()))?;
        self.page = Some(OpenPage { bytes, left: count, repetitions, definitions, values });
        Ok(())
    }
}

/// Unpacks a page to `length` bytes.
fn unpack(codec: i64, packed: &[u8], length: usize) -> Result<Vec<u8>, Why> {
    let wrong = |error: &dyn std::fmt::Display| Why(format!("a page is not packed as it is said to be: {error}"));
    let mut page = vec![0; if codec == 0 { 0 } else { length }];
    let found = match codec {
        0 => {
            page = packed.to_vec();
            page.len()
        }
        // Nothing, which some writers leave unpacked.
        _ if packed.is_empty() => 0,
        1 => snap::raw::Decoder::new().decompress(packed, &mut page).map_err(|error| wrong(&error))?,
        2 => {
            let mut unpacked = MultiGzDecoder::new(packed);
            unpacked.read_exact(&mut page).map_err(|error| wrong(&error))?;
            length
        }
        5 => unpack_lz4(packed, &mut page).ok_or_else(|| wrong(&"no form of LZ4"))?,
        6 => ruzstd::decoding::FrameDecoder::new().decode_all(packed, &mut page).map_err(|error| wrong(&error))?,
        7 => lz4_flex::block::decompress_into(packed, &mut page).map_err(|error| wrong(&error))?,
        3 => return why("its pages are packed by LZO, which is not read"),
        4 => return why("its pages are packed by brotli, which is not read"),
        other => return why(format!("its pages are packed by codec {other}, which is not known")),
    };
    if found == length { Ok(page) } else { why(format!("a page has {found} bytes, expected {length}")) }
}

/// LZ4 in the form of Hadoop (blocks, each after its two lengths), as frames or as one block: writers disagree.
fn unpack_lz4(packed: &[u8], page: &mut [u8]) -> Option<usize> {
    let of_hadoop = |page: &mut [u8]| {
        let (mut left, mut at) = (packed, 0);
        while !left.is_empty() {
            let (lengths, rest) = left.split_at_checked(8)?;
            let length = |ix: usize| u32::from_be_bytes(lengths[ix..ix + 4].try_into().expect("four bytes")) as usize;
            let block = rest.get(..length(4))?;
            let found = lz4_flex::block::decompress_into(block, page.get_mut(at..)?.get_mut(..length(0))?).ok()?;
            (at, left) = (at + found, &rest[length(4)..]);
        }
        (at == page.len()).then_some(at)
    };
    let of_frames = |page: &mut [u8]| {
        lz4_flex::frame::FrameDecoder::new(packed).read_exact(page).ok()?;
        Some(page.len())
    };
    of_hadoop(page).or_else(|| of_frames(page)).or_else(|| lz4_flex::block::decompress_into(packed, page).ok())
}
