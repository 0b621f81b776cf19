//! One memory-mapped GGUF file: a header (magic, version, counts), metadata, the list of tensors, and their bytes.
//! Opening it checks that every tensor lies inside the file, at an aligned place, and that no two overlap. (The format:
//! GGUF versions 2 and 3, ggml's docs/gguf.md.)

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::TensorType;
use super::cursor::Cursor;
use super::metadata::Metadata;
use super::tensor_type::{other_name, supported};
use super::value::Value;
use offshoot_core::error::{Error, Result};
use offshoot_core::mapped::MappedFile;

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT: &str = "general.alignment";
const MOST_DIMENSIONS: u32 = 4;
/// The least bytes of a key and its value: two lengths or types, a type, and one byte.
const LEAST_OF_PAIR: usize = 8 + 4 + 1;
/// The least bytes of an entry of the list of tensors: a length, the number of sizes, one size, a type, an offset.
const LEAST_OF_TENSOR: usize = 8 + 4 + 8 + 4 + 8;

/// A tensor and where its bytes are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub kind: TensorType,
    /// The outermost size first: `[out, in]` of a matrix. (Files write them the other way round.)
    pub shape: Vec<usize>,
    pub place: Range<usize>,
}

impl TensorInfo {
    /// The length of a row.
    pub fn cols(&self) -> usize {
        self.shape[self.shape.len() - 1]
    }

    /// The product of all sizes but the last.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }
}

/// A file whose header has been read.
pub struct GgufFile {
    map: MappedFile,
    values: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    header_bytes: usize,
}

impl GgufFile {
    pub fn open(path: PathBuf) -> Result<Self> {
        let map = MappedFile::open(path)?;
        let Header { values, tensors, bytes: header_bytes } = read(map.path(), map.bytes())?;
        Ok(Self { map, values, tensors, header_bytes })
    }

    /// Bytes before those of the tensors.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    pub fn path(&self) -> &Path {
        self.map.path()
    }

    pub fn metadata(&self) -> Metadata<'_> {
        Metadata { file: &self.map, values: &self.values }
    }

    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.map.bytes()[tensor.place.clone()]
    }

    /// Releases the mapped pages of a part of a tensor's bytes.
    pub fn release(&self, tensor: &TensorInfo, part: Range<usize>) {
        self.map.release(tensor.place.start + part.start..tensor.place.start + part.end);
    }
}

/// What a file has before its tensors' bytes.
struct Header {
    values: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    bytes: usize,
}

fn read(path: &Path, bytes: &[u8]) -> Result<Header> {
    let mut cursor = Cursor::new(path, bytes);
    let magic = cursor.take(MAGIC.len() as u64, "the magic number")?;
    if bytes[magic.clone()] != MAGIC {
        let found = format!("\"{}\"", bytes[magic].escape_ascii());
        return Err(Error::field(path, "magic number", "\"GGUF\"", found));
    }
    let version = cursor.u32("the version")?;
    if !(2..=3).contains(&version) {
        let found = match version.swap_bytes() {
            2 | 3 => "a file for big-endian machines".to_owned(),
            _ => version.to_string(),
        };
        return Err(Error::field(path, "version", "2 or 3", found));
    }
    let tensors = cursor.count("tensors", LEAST_OF_TENSOR)?;
    let pairs = cursor.count("metadata values", LEAST_OF_PAIR)?;
    let mut values = HashMap::with_capacity(pairs);
    for _ in 0..pairs {
        let key = text(&mut cursor, path, bytes, "a key of the metadata")?;
        let value = Value::read(&mut cursor, path, bytes, &key)?;
        if values.contains_key(&key) {
            return Err(Error::field(path, key, "one value", "two"));
        }
        values.insert(key, value);
    }
    let mut entries = Vec::with_capacity(cursor.fits(tensors as u64, "tensors", LEAST_OF_TENSOR)?);
    for _ in 0..tensors {
        entries.push(Entry::read(&mut cursor, path, bytes)?);
    }
    let alignment = alignment(path, bytes, &values)?;
    let data = cursor.at().next_multiple_of(alignment);
    let tensors: Vec<_> =
        entries.into_iter().map(|entry| entry.placed(path, data, alignment, bytes.len())).collect::<Result<_>>()?;
    refuse_overlaps(path, &tensors)?;
    Ok(Header { values, tensors, bytes: data })
}

/// Reads a name or key.
fn text(cursor: &mut Cursor<'_>, path: &Path, bytes: &[u8], what: &str) -> Result<String> {
    let place = cursor.string(what)?;
    let text = std::str::from_utf8(&bytes[place.clone()]);
    let fault = |fault| Error::format(path, format!("{what} at byte {} is not UTF-8: {fault}", place.start));
    text.map(str::to_owned).map_err(fault)
}

/// Tensors begin at multiples of this many bytes.
fn alignment(path: &Path, bytes: &[u8], values: &HashMap<String, Value>) -> Result<usize> {
    const DEFAULT: usize = 32;
    const MOST: i128 = 1 << 20;
    match values.get(ALIGNMENT) {
        None => Ok(DEFAULT),
        Some(Value::One(super::value::Scalar::Whole(whole))) if (1..=MOST).contains(whole) => Ok(*whole as usize),
        Some(other) => {
            Err(Error::field(path, ALIGNMENT, format!("a whole number from 1 to {MOST}"), other.shown(bytes)))
        }
    }
}

/// A tensor as the file lists it.
struct Entry {
    name: String,
    kind: TensorType,
    shape: Vec<usize>,
    bytes: usize,
    /// Behind the beginning of the tensors' bytes.
    offset: u64,
}

impl Entry {
    fn read(cursor: &mut Cursor<'_>, path: &Path, bytes: &[u8]) -> Result<Self> {
        let name = text(cursor, path, bytes, "a tensor's name")?;
        let wrong = |expected: String, found: String| Error::Tensor {
            path: path.to_path_buf(),
            tensor: offshoot_core::figures::shortened(name.clone(), 200),
            expected,
            found,
        };
        let dimensions = cursor.u32("the number of a tensor's sizes")?;
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            return Err(wrong(format!("1 to {MOST_DIMENSIONS} sizes"), dimensions.to_string()));
        }
        let mut sizes = Vec::new();
        for _ in 0..dimensions {
            sizes.push(cursor.u64("a tensor's size")?);
        }
        sizes.reverse();
        let number = cursor.u32("a tensor's type")?;
        let offset = cursor.u64("a tensor's offset")?;
        let Some(kind) = TensorType::by_number(number) else {
            let found = other_name(number).map_or(format!("type {number}"), |name| format!("{name} (type {number})"));
            return Err(wrong(supported(), found));
        };
        let shape = sizes.iter().map(|&size| usize::try_from(size).ok().filter(|&size| size > 0));
        let shape = shape.collect::<Option<Vec<usize>>>();
        let elements =
            shape.as_ref().and_then(|shape| shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size)));
        let (Some(shape), Some(elements)) = (shape, elements.filter(|&all| all < usize::MAX / 8)) else {
            return Err(wrong("sizes above 0 whose product can be counted".to_owned(), format!("{sizes:?}")));
        };
        let columns = shape[shape.len() - 1];
        if !columns.is_multiple_of(kind.block_elements()) {
            let expected = format!("rows of a multiple of {} elements ({kind})", kind.block_elements());
            return Err(wrong(expected, columns.to_string()));
        }
        let bytes = elements / kind.block_elements() * kind.block_bytes();
        Ok(Self { kind, bytes, offset, shape, name })
    }

    /// `data`: where the tensors' bytes begin; `end`: the length of the file.
    fn placed(self, path: &Path, data: usize, alignment: usize, end: usize) -> Result<TensorInfo> {
        let Self { name, kind, shape, bytes, offset } = self;
        let wrong =
            |expected, found| Err(Error::Tensor { path: path.to_path_buf(), tensor: name.clone(), expected, found });
        if !offset.is_multiple_of(alignment as u64) {
            return wrong(format!("an offset that is a multiple of {alignment}"), offset.to_string());
        }
        let start = usize::try_from(offset).ok().and_then(|offset| data.checked_add(offset));
        let place = start.and_then(|start| Some(start..start.checked_add(bytes)?));
        match place.filter(|place| place.end <= end) {
            Some(place) => Ok(TensorInfo { name, kind, shape, place }),
            None => {
                let behind = end.saturating_sub(data);
                wrong(
                    format!("{bytes} bytes ({kind}, {shape:?}) within the {behind} bytes behind the header"),
                    format!("an offset of {offset}, beyond which the file is too short"),
                )
            }
        }
    }
}

fn refuse_overlaps(path: &Path, tensors: &[TensorInfo]) -> Result<()> {
    let mut names = HashSet::new();
    if let Some(twice) = tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
        return Err(Error::Tensor {
            path: path.to_path_buf(),
            tensor: twice.name.clone(),
            expected: "one tensor of this name".to_owned(),
            found: "two".to_owned(),
        });
    }
    let mut by_place: Vec<&TensorInfo> = tensors.iter().collect();
    by_place.sort_by_key(|tensor| tensor.place.start);
    match by_place.windows(2).find(|pair| pair[0].place.end > pair[1].place.start) {
        None => Ok(()),
        Some(pair) => Err(Error::Tensor {
            path: path.to_path_buf(),
            tensor: pair[1].name.clone(),
            expected: format!("bytes of its own, from {} on", pair[0].place.end),
            found: format!("byte {}, inside `{}`", pair[1].place.start, pair[0].name),
        }),
    }
}
