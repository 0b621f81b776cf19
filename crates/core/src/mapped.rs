//! A file mapped into memory, read-only. What its bytes mean is left to `gguf` and to `model::weights`.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::lfs;

pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// # Errors
    ///
    /// The file cannot be opened or mapped, or is a pointer of Git LFS.
    pub fn open(path: PathBuf) -> Result<Self> {
        let file = File::open(&path).map_err(Error::io(&path, "open"))?;
        // SAFETY: the map is read-only and private to this object. Like every program that maps a model, we rely on the
        // file not being truncated while it is read.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(&path, "map"))?;
        lfs::refuse_pointer(&path, &map)?;
        Ok(Self { path, map })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Releases the mapped pages of these bytes; reading them again would load them from the file.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let range = range.start.min(self.map.len())..range.end.min(self.map.len());
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
        let _ = range;
    }
}
