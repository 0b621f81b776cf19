//! A list that a step's kernels read or write at a fixed device address, and two page-locked host copies, one for each
//! staging slot: the next step can be written, or the last one read, while another is still being copied.

use std::ops::Range;

use crate::driver::device::Device;
use crate::driver::memory::{Memory, Pinned};
use offshoot_core::error::Result;

/// Steps that may be under way at once: one that runs, and one that is being loaded.
pub const STAGING_SLOTS: usize = 2;

/// Which of the two copies a step uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagingSlot(usize);

impl StagingSlot {
    pub fn next(self) -> Self {
        StagingSlot((self.0 + 1) % STAGING_SLOTS)
    }

    pub fn ix(self) -> usize {
        self.0
    }
}

pub struct Staged {
    memory: Memory,
    pinned: [Pinned; STAGING_SLOTS],
}

impl Staged {
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        Ok(Self { memory: device.alloc(bytes)?, pinned: [device.pinned(bytes)?, device.pinned(bytes)?] })
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Makes room for `bytes`, contents lost; says whether the device address changed.
    pub fn reserve(&mut self, device: &Device, bytes: usize) -> Result<bool> {
        let moves = bytes > self.memory.bytes();
        if moves {
            *self = Self::new(device, bytes.checked_next_power_of_two().unwrap_or(bytes))?;
        }
        Ok(moves)
    }

    /// Enqueues the copy of `bytes` to the device. Returns whether the device address changed because the list had to
    /// grow. The copy of the step before last must be done.
    pub fn fill(&mut self, device: &Device, slot: StagingSlot, bytes: &[u8]) -> Result<bool> {
        let moves = self.reserve(device, bytes.len())?;
        if !bytes.is_empty() {
            let pinned = &mut self.pinned[slot.ix()];
            pinned[..bytes.len()].copy_from_slice(bytes);
            device.upload_pinned(&self.memory, 0, pinned, 0..bytes.len())?;
        }
        Ok(moves)
    }

    /// Enqueues the copy of the words `changed` of `words`, which were filled in as many before.
    pub fn patch(&mut self, device: &Device, slot: StagingSlot, words: &[u32], changed: Range<usize>) -> Result<()> {
        let bytes = changed.start * size_of::<u32>()..changed.end * size_of::<u32>();
        let pinned = &mut self.pinned[slot.ix()];
        pinned[bytes.clone()].copy_from_slice(bytemuck::cast_slice(&words[changed]));
        device.upload_pinned(&self.memory, bytes.start, pinned, bytes)
    }

    /// Enqueues the copy of the first `bytes` to the host.
    pub fn fetch(&mut self, device: &Device, slot: StagingSlot, bytes: usize) -> Result<()> {
        device.download_pinned(&mut self.pinned[slot.ix()], 0, &self.memory, 0..bytes)
    }

    /// What was fetched in `slot`, once that copy is done.
    pub fn bytes(&self, slot: StagingSlot) -> &[u8] {
        &self.pinned[slot.ix()]
    }
}
