//! The folder of a prefix store: keeps its files below a number of bytes, and notes their use in their modification
//! times. Several processes may use one folder; none of them locks it.

use std::fs::{self, DirBuilder, FileTimes};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::chunk::{ChunkKey, ChunkName, ChunkPart, file_bytes, is_there, open, path_of, write};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::bytes;
use offshoot_core::out::files::remove_partials;

/// Files written after which the folder is measured again, because other processes write there, too.
const MEASURE_EVERY: usize = 64;

/// Makes the folder, readable for its owner only: keys and values tell what the prompts were.
pub(super) fn make(folder: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(Error::io(folder, "create the prefix store"))?;
    fs::read_dir(folder).map(drop).map_err(Error::io(folder, "read the prefix store"))?;
    remove_partials(folder, "");
    Ok(())
}

/// Records that the chunks of a prefix were used, and the state after the last one if there is one. The last one comes
/// first: of one prefix the end is evicted before the beginning, without which it could not be found. All times are of
/// one clock: that by which a file system dates what is written may be coarser, and so behind.
pub(super) fn touch(folder: &Path, chain: &[ChunkName]) {
    let state = chain.last().map(|name| path_of(folder, name, ChunkPart::State));
    let pages = chain.iter().rev().map(|name| path_of(folder, name, ChunkPart::Pages));
    for path in state.into_iter().chain(pages) {
        let now = FileTimes::new().set_modified(SystemTime::now());
        // A file that another user made keeps its time.
        let _ = open(&path).map(|file| file.set_times(now));
    }
}

/// Writes files, and removes those used longest ago where there would be too many bytes.
pub(super) struct FolderWriter {
    folder: PathBuf,
    most_bytes: u64,
    /// Bytes of the files when they were measured last, and of those written since.
    held: u64,
    /// Files written since then; `None`: never measured.
    since: Option<usize>,
}

impl FolderWriter {
    pub fn new(folder: PathBuf, most_bytes: u64) -> Self {
        Self { folder, most_bytes, held: 0, since: None }
    }

    /// Writes a part of the last chunk of `chain`, unless it is there.
    pub fn write(&mut self, key: &ChunkKey, chain: &[ChunkName], part: ChunkPart, held: &[u8]) -> Result<()> {
        let path = path_of(&self.folder, chain.last().expect("a chain has chunks"), part);
        let new = file_bytes(held.len());
        if !is_there(&path) && clear(&path) && self.make_room(new) {
            write(&path, key, part, held)?;
            self.held += new;
            self.since = self.since.map(|files| files + 1);
            touch(&self.folder, chain);
        }
        Ok(())
    }

    /// Removes files until `new` bytes fit. False if they never will.
    fn make_room(&mut self, new: u64) -> bool {
        let is_known = self.since.is_some_and(|files| files < MEASURE_EVERY);
        if is_known && self.held + new <= self.most_bytes {
            return true;
        }
        let mut files = files(&self.folder);
        self.since = Some(0);
        self.held = files.iter().map(|file| file.bytes).sum();
        if self.held + new <= self.most_bytes {
            return true;
        }
        files.sort_by_key(|file| file.used);
        // A little more than is needed, so that the next files find room at once.
        let most = (self.most_bytes - self.most_bytes / 8).saturating_sub(new);
        for file in files {
            if self.held <= most {
                break;
            }
            log::debug!("{}: removed, {} are freed", file.path.display(), bytes(file.bytes));
            let _ = fs::remove_file(&file.path); // Another process may have been faster.
            self.held -= file.bytes;
        }
        self.held + new <= self.most_bytes
    }
}

/// Removes what lies in the place of a file and is none, such as a FIFO. False if it stays: a folder that is not empty.
fn clear(path: &Path) -> bool {
    let Ok(there) = fs::symlink_metadata(path) else { return true };
    let removed = if there.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
    match &removed {
        Ok(()) => log::warn!("{}: it is no regular file; it is removed", path.display()),
        Err(error) => log::warn!("{}: it is no regular file, and cannot be removed: {error}", path.display()),
    }
    removed.is_ok()
}

struct StoredFile {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

fn has_ending(path: &Path, part: ChunkPart) -> bool {
    path.extension().is_some_and(|ending| ending == part.ending())
}

fn files(folder: &Path) -> Vec<StoredFile> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let path = entry.path();
        let there = entry
            .metadata()
            .ok()
            .filter(|there| there.is_file() && ChunkPart::BOTH.iter().any(|part| has_ending(&path, *part)))?;
        Some(StoredFile { path, bytes: there.len(), used: there.modified().ok()? })
    });
    found.collect()
}
