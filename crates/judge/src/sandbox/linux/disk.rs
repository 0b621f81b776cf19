//! Whether the files of a candidate exceed its output limit: asked of a file system of its own, or measured where its
//! folder is on the machine's disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use super::processes::ProcessScope;
use super::root::OwnFiles;
use super::tree::{self, CopyError, Unbounded};
use super::{Confined, Limit};

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

    /// Which limit they exceed, if one. Measures them only so often that it takes little of the time.
    pub fn exceeded_now(&mut self, order: &Confined, seen: ProcessScope) -> Option<Limit> {
        match self {
            CandidateFiles::Measured(files) if files.measured.elapsed() < files.took * SHARE => None,
            _ => self.exceeded(order, seen),
        }
    }

    /// Which limit they exceed, if one.
    pub fn exceeded(&mut self, order: &Confined, seen: ProcessScope) -> Option<Limit> {
        match self {
            CandidateFiles::Own(files) => files.exceeded(),
            CandidateFiles::Measured(files) => {
                let begun = Instant::now();
                let exceeded = match files.bytes(order, seen) {
                    Ok(bytes) => (bytes > order.limits.output_bytes).then_some(Limit::Output),
                    Err(exceeded) => Some(exceeded.into()),
                };
                files.measured = Instant::now();
                files.took = begun.elapsed();
                exceeded
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
    fn bytes(&mut self, order: &Confined, seen: ProcessScope) -> Result<u64, Unbounded> {
        let known = &mut self.known;
        let note = |inode, bytes| {
            known.insert(inode, bytes);
        };
        let in_folder = tree::measure(&order.folder, note)?.bytes;
        Ok(in_folder.saturating_add(seen.unlinked_bytes(known, order.limits.output_bytes.saturating_add(1))))
    }
}
