//! A memory-mapped safetensors file: eight bytes of header length, a JSON header, the tensors' bytes. Opening it checks
//! that its length matches the header.

use std::cmp::Ordering;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};

use offshoot_core::error::{Error, Result};
use offshoot_core::mapped::MappedFile;

const LENGTH_BYTES: usize = 8;

pub struct SafetensorsFile {
    map: MappedFile,
    header: Metadata,
    /// Offset of the tensors' bytes.
    data: usize,
}

impl SafetensorsFile {
    pub fn open(path: PathBuf) -> Result<Self> {
        let map = MappedFile::open(path)?;
        let (header, data) = read_header(map.path(), map.bytes())?;
        Ok(Self { map, header, data })
    }

    pub fn path(&self) -> &Path {
        self.map.path()
    }

    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.map.bytes()[self.range(info)]
    }

    fn range(&self, info: &TensorInfo) -> Range<usize> {
        let (start, end) = info.data_offsets;
        self.data + start..self.data + end
    }

    /// Releases a tensor's mapped pages; reading it again would load them from the file.
    pub fn release(&self, info: &TensorInfo) {
        self.map.release(self.range(info));
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
