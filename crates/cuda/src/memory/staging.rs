//! Large copies between pageable host memory and the device: two page-locked halves take turns, so that the host's
//! threads fill or empty one while the bus carries the other.

use std::ops::Range;

use rayon::prelude::*;

use crate::driver::device::Device;
use crate::driver::event::Event;
use crate::driver::memory::{Memory, Pinned};
use offshoot_core::error::Result;

/// Bytes of a half: a copy of this size takes 0.3 ms at 50 GB/s, against which its fixed costs of some microseconds
/// vanish.
const HALF: usize = 16 << 20;

/// Bytes that one thread copies at a time.
const SHARE: usize = 1 << 20;

pub struct Staging {
    device: Device,
    halves: [StagingHalf; 2],
    next: usize,
}

struct StagingHalf {
    pinned: Pinned,
    /// The last copy that used `pinned`.
    done: Event,
}

impl Staging {
    pub fn new(device: &Device) -> Result<Self> {
        let half = || Ok(StagingHalf { pinned: device.pinned(HALF)?, done: device.event()? });
        Ok(Self { device: device.clone(), halves: [half()?, half()?], next: 0 })
    }

    /// Enqueues the copy of `from` to byte `at` of `to`. When it returns, `from` may be used for something else.
    pub fn upload(&mut self, to: &Memory, at: usize, from: &[u8]) -> Result<()> {
        for (i, chunk) in from.chunks(HALF).enumerate() {
            let half = self.next_half();
            let half = &mut self.halves[half];
            half.done.wait()?;
            copy_on_all_threads(&mut half.pinned[..chunk.len()], chunk);
            self.device.upload_pinned(to, at + i * HALF, &half.pinned, 0..chunk.len())?;
            half.done.record()?;
        }
        Ok(())
    }

    /// Copies `parts` of `from`, in bytes, to `to` one after the other, and waits for them. They fill `to`.
    pub fn download(&mut self, to: &mut [u8], from: &Memory, parts: impl Iterator<Item = Range<usize>>) -> Result<()> {
        let mut under_way = None;
        let mut left = to;
        for part in parts {
            let (to, rest) = left.split_at_mut(part.len());
            left = rest;
            for (at, chunk) in part.step_by(HALF).zip(to.chunks_mut(HALF)) {
                let half = self.next_half();
                // The half is free: an upload that read it is awaited here, a download that filled it was awaited
                // below.
                self.halves[half].done.wait()?;
                self.device.download_pinned(&mut self.halves[half].pinned, 0, from, at..at + chunk.len())?;
                self.halves[half].done.record()?;
                if let Some((before, chunk)) = under_way.replace((half, chunk)) {
                    self.empty(before, chunk)?;
                }
            }
        }
        assert!(left.is_empty(), "download: parts as long as what they fill");
        under_way.map_or(Ok(()), |(half, chunk)| self.empty(half, chunk))
    }

    /// Waits for all copies.
    pub fn settle(&self) -> Result<()> {
        self.device.synchronise()
    }

    /// Waits for the copy into `half`, then copies it on to `chunk`.
    fn empty(&self, half: usize, chunk: &mut [u8]) -> Result<()> {
        let half = &self.halves[half];
        half.done.wait()?;
        copy_on_all_threads(chunk, &half.pinned[..chunk.len()]);
        Ok(())
    }

    fn next_half(&mut self) -> usize {
        self.next = 1 - self.next;
        self.next
    }
}

fn copy_on_all_threads(to: &mut [u8], from: &[u8]) {
    to.par_chunks_mut(SHARE).zip(from.par_chunks(SHARE)).for_each(|(to, from)| to.copy_from_slice(from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_together_copy_every_byte() {
        let from: Vec<u8> = (0..3 * SHARE + 17).map(|i| (i % 251) as u8).collect();
        let mut to = vec![0; from.len()];
        copy_on_all_threads(&mut to, &from);
        assert!(to == from);
    }
}
