//! Whether the files of a candidate exceed its output limit: asked of a file system of its own, or measured where its
//! folder is on the machine's disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use super::Confined;
use super::processes::ProcessScope;
use super::root::OwnFiles;
use super::tree::{self, CopyError, Unbounded};

/// The files of a running candidate.
pub(super) enum CandidateFiles {
    /// In memory, bounded by the kernel.
    Own(OwnFiles),
    Measured(MeasuredFiles),
}

/// Files on the machine's disk.
pub(super) struct MeasuredFiles {
    measured: Instant,
    /// How long the last measurement took.
    took: Duration,
    /// Bytes of each file by its inode, as last measured.
    known: HashMap<u64, u64>,
}

/// The supervisor spends at most one part in so many on measuring files.
const SHARE: u32 = 8;
/// Less free disk than this is a full disk.
const FULL: u64 = 1 << 20;

impl CandidateFiles {
    pub fn measured() -> CandidateFiles {
        CandidateFiles::Measured(MeasuredFiles {
            measured: Instant::now(),
            took: Duration::ZERO,
            known: HashMap::new(),
        })
    }

    /// Whether they exceed the limit. Measures them only so often that it takes little of the time.
    pub fn exceed_now(&mut self, order: &Confined, seen: ProcessScope) -> bool {
        match self {
            CandidateFiles::Measured(files) if files.measured.elapsed() < files.took * SHARE => false,
            _ => self.exceed(order, seen),
        }
    }

    /// Whether they exceed the limit.
    pub fn exceed(&mut self, order: &Confined, seen: ProcessScope) -> bool {
        match self {
            CandidateFiles::Own(files) => files.full(),
            CandidateFiles::Measured(files) => {
                let begun = Instant::now();
                let exceed = files.bytes(order, seen).is_none_or(|bytes| bytes > order.limits.output_bytes);
                files.measured = Instant::now();
                files.took = begun.elapsed();
                exceed
            }
        }
    }

    /// Whether the machine's disk has no room left, so that a failed write says nothing about the candidate.
    pub fn disk_is_full(&self, order: &Confined) -> bool {
        match self {
            CandidateFiles::Own(_) => false,
            CandidateFiles::Measured(_) => statvfs(&order.folder).is_ok_and(|disk| {
                disk.blocks_available() * disk.fragment_size() < FULL || disk.files() > 0 && disk.files_available() == 0
            }),
        }
    }

    /// Puts them where the caller expects them.
    pub fn keep(&self, order: &Confined) -> Result<(), CopyError> {
        match self {
            CandidateFiles::Own(files) => files.keep(order),
            CandidateFiles::Measured(_) => Ok(()),
        }
    }
}

impl MeasuredFiles {
    /// `None` if there are too many to measure.
    fn bytes(&mut self, order: &Confined, seen: ProcessScope) -> Option<u64> {
        let known = &mut self.known;
        let note = |inode, bytes| {
            known.insert(inode, bytes);
        };
        let in_folder = match tree::measure(&order.folder, note) {
            Ok(size) => size.bytes,
            Err(Unbounded) => return None,
        };
        Some(in_folder.saturating_add(seen.unlinked_bytes(known, order.limits.output_bytes.saturating_add(1))))
    }
}
