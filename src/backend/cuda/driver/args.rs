//! The arguments of one launch, by value, in the order of the kernel's parameters.

use super::memory::Memory;

/// `Args::new().memory(&out).memory(&x).u32(width).f32(eps)`.
#[derive(Clone, Debug)]
pub struct Args {
    /// Each value in the low bytes of its own word; the device is little-endian, as the host is.
    values: [u64; Self::MOST],
    /// Bytes of each.
    sizes: [u8; Self::MOST],
    count: usize,
}

impl Args {
    /// No kernel here has more parameters.
    pub(super) const MOST: usize = 32;

    #[expect(clippy::new_without_default, reason = "a launch without arguments does not exist")]
    pub fn new() -> Self {
        Self { values: [0; Self::MOST], sizes: [0; Self::MOST], count: 0 }
    }

    /// A pointer to the memory's first byte.
    #[must_use]
    pub fn memory(self, memory: &Memory) -> Self {
        self.memory_at(memory, 0)
    }

    /// A pointer `offset` bytes into the memory. Panics when that lies outside.
    #[must_use]
    pub fn memory_at(self, memory: &Memory, offset: usize) -> Self {
        assert!(offset <= memory.bytes(), "an argument {offset} bytes into memory of {} bytes", memory.bytes());
        self.push(memory.address() + offset as u64, 8)
    }

    /// The same, or a null pointer.
    #[must_use]
    pub fn memory_or_null(self, memory: Option<&Memory>) -> Self {
        match memory {
            Some(memory) => self.memory(memory),
            None => self.u64(0),
        }
    }

    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.push(u64::from(value), 4)
    }

    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.push(u64::from(value.to_bits()), 4)
    }

    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.push(value, 8)
    }

    /// Bytes of each argument.
    pub(super) fn sizes(&self) -> &[u8] {
        &self.sizes[..self.count]
    }

    /// The values, where the driver reads them.
    pub(super) fn values(&self) -> &[u64] {
        &self.values[..self.count]
    }

    fn push(mut self, value: u64, bytes: u8) -> Self {
        assert!(self.count < Self::MOST, "a kernel with more than {} parameters", Self::MOST);
        self.values[self.count] = value;
        self.sizes[self.count] = bytes;
        self.count += 1;
        self
    }
}
