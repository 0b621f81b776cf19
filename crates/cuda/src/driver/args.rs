//! The arguments of one launch, by value, in the order of the kernel's parameters.

use std::ffi::c_void;

use super::memory::Memory;
use super::tensor_map::TensorMap;

/// `Args::new().memory(&out).memory(&x).u32(width).f32(eps)`.
#[derive(Clone, Debug)]
pub struct Args {
    /// Each value from the low bytes of a word of its own on; the device is little-endian, as the host is.
    words: [u64; Self::MOST_WORDS],
    /// The first word and the bytes of each.
    places: [(u8, u8); Self::MOST],
    count: usize,
    used: usize,
}

impl Args {
    /// No kernel here has more parameters.
    pub(super) const MOST: usize = 32;

    /// Nor more than three tensor maps among them.
    const MOST_WORDS: usize = Self::MOST + 3 * TensorMap::WORDS;

    #[expect(clippy::new_without_default, reason = "a launch without arguments does not exist")]
    pub fn new() -> Self {
        Self { words: [0; Self::MOST_WORDS], places: [(0, 0); Self::MOST], count: 0, used: 0 }
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
        self.push(&[memory.address() + offset as u64], 8)
    }

    /// A pointer to the memory's first byte, or a null pointer.
    #[must_use]
    pub fn memory_or_null(self, memory: Option<&Memory>) -> Self {
        match memory {
            Some(memory) => self.memory(memory),
            None => self.u64(0),
        }
    }

    /// `count` pointers as one parameter, to the first byte of each of `memories`; null ones behind them.
    #[must_use]
    pub fn memories<'a>(self, memories: impl IntoIterator<Item = &'a Memory>, count: usize) -> Self {
        let mut pointers: Vec<u64> = memories.into_iter().map(Memory::address).collect();
        assert!(pointers.len() <= count, "{} pointers in {count} places", pointers.len());
        pointers.resize(count, 0);
        self.push(&pointers, 8 * count as u8)
    }

    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.push(&[u64::from(value)], 4)
    }

    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.push(&[u64::from(value.to_bits())], 4)
    }

    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.push(&[value], 8)
    }

    #[must_use]
    pub fn tensor_map(self, map: &TensorMap) -> Self {
        self.push(map.words(), 8 * TensorMap::WORDS as u8)
    }

    /// Bytes of each argument.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.places[..self.count].iter().map(|&(_, bytes)| usize::from(bytes))
    }

    /// The address of each value, which the driver only reads.
    pub(super) fn addresses(&self) -> [*mut c_void; Self::MOST] {
        let mut addresses = [std::ptr::null_mut(); Self::MOST];
        for (address, (first, _)) in addresses.iter_mut().zip(&self.places[..self.count]) {
            *address = std::ptr::from_ref(&self.words[usize::from(*first)]).cast_mut().cast();
        }
        addresses
    }

    fn push(mut self, value: &[u64], bytes: u8) -> Self {
        assert!(self.count < Self::MOST, "a kernel with more than {} parameters", Self::MOST);
        self.words[self.used..self.used + value.len()].copy_from_slice(value);
        self.places[self.count] = (self.used as u8, bytes);
        self.count += 1;
        self.used += value.len();
        self
    }
}
