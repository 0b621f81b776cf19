//! A memory-mapped safetensors file: eight bytes of header length, a JSON header, the tensors' bytes. Opening it checks
//! that its length matches the header.

use std::cmp::Ordering;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::error::{Error, Result};

const LENGTH_BYTES: usize = 8;

pub struct SafetensorsFile {
    path: PathBuf,
    map: Mmap,
    header: Metadata,
    /// Offset of the tensors' bytes.
    data: usize,
}

impl SafetensorsFile {
    pub fn open(path: PathBuf) -> Result<Self> {
        let file = File::open(&path).map_err(Error::io(&path, "open"))?;
        // SAFETY: the map is read-only and private to this object. Like every program that maps a model, we rely on the
        // file not being truncated while it is read.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(&path, "map"))?;
        let (header, data) = read_header(&path, &map)?;
        Ok(Self { path, map, header, data })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.map[self.range(info)]
    }

    /// Bytes of all tensors.
    pub fn data_len(&self) -> usize {
        self.header.data_len()
    }

    fn range(&self, info: &TensorInfo) -> Range<usize> {
        let (start, end) = info.data_offsets;
        self.data + start..self.data + end
    }

    /// Releases a tensor's mapped pages; reading it again would load them from the file.
    pub fn release(&self, info: &TensorInfo) {
        #[cfg(unix)]
        {
            let range = self.range(info);
            // SAFETY: the range is inside the map, and dropping clean pages of a read-only file map changes no byte:
            // the next access reads the file again.
            let advised = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            if let Err(fault) = advised {
                log::debug!("{}: cannot release mapped pages: {fault}", self.path.display());
            }
        }
        #[cfg(not(unix))]
        let _ = info;
    }
}

/// The header, and the offset of the data.
fn read_header(path: &Path, bytes: &[u8]) -> Result<(Metadata, usize)> {
    let truncated = |what: String| Error::format(path, format!("truncated: {what}, the file has {}", bytes.len()));
    let Some((length, _)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(truncated(format!("a safetensors file begins with {LENGTH_BYTES} bytes of header length")));
    };
    let length = u64::from_le_bytes(*length);
    let data = usize::try_from(length).ok().and_then(|length| length.checked_add(LENGTH_BYTES));
    let Some(data) = data.filter(|&data| data <= bytes.len()) else {
        return Err(truncated(format!("the header alone says it has {length} bytes")));
    };
    let header: Metadata = serde_json::from_slice(&bytes[LENGTH_BYTES..data])
        .map_err(|fault| Error::format(path, format!("the safetensors header is not valid: {fault}")))?;
    let expected = data.saturating_add(header.data_len());
    match expected.cmp(&bytes.len()) {
        Ordering::Equal => Ok((header, data)),
        Ordering::Greater => Err(truncated(format!("by its header it has {expected} bytes"))),
        Ordering::Less => {
            let what = format!("too long: the header accounts for {expected} bytes, the file has {}", bytes.len());
            Err(Error::format(path, what))
        }
    }
}
