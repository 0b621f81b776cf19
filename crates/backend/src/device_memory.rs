//! Tensors that lie in the memory of a GPU when a model is given them: memory that a trainer broadcast or lends
//! ([`DeviceMemory`]), a tensor's bytes in it ([`DeviceBytes`]), and who gives access to it ([`DeviceLender`]). A
//! backend that computes on a GPU copies such tensors without the host ([`Backend::copies_from_devices`]); for all
//! others they are copied to the host first. The driver's calls are left to the backend of that GPU.
//!
//! [`Backend::copies_from_devices`]: super::Backend::copies_from_devices

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::weights::Dtype;
use offshoot_core::error::Result;

/// Memory of a GPU that holds tensors. All that writes to it is done, and it stays as it is as long as this lives.
pub trait DeviceMemory: fmt::Debug + Send + Sync {
    /// The number of the GPU.
    fn ordinal(&self) -> usize;

    /// Where the first byte lies, as kernels of this process see it.
    fn address(&self) -> u64;

    fn bytes(&self) -> usize;

    /// A copy of these bytes in host memory.
    ///
    /// # Errors
    ///
    /// The device fails.
    fn download(&self, range: Range<usize>) -> Result<Vec<u8>>;

    /// The place of the first of these elements of `dtype` that is not finite, or not when it becomes `becomes`.
    ///
    /// # Errors
    ///
    /// The device fails.
    fn not_finite(&self, range: Range<usize>, dtype: Dtype, becomes: Dtype) -> Result<Option<usize>>;

    /// These elements of dtype `from` rounded to `to`, to nearest even, in memory of their own.
    ///
    /// # Errors
    ///
    /// The device lacks memory, or fails.
    fn cast(&self, range: Range<usize>, from: Dtype, to: Dtype) -> Result<Arc<dyn DeviceMemory>>;

    /// Bytes `columns` of each row of `row` bytes, in memory of their own. Rows fill the range.
    ///
    /// # Errors
    ///
    /// The device lacks memory, or fails.
    fn columns(&self, range: Range<usize>, row: usize, columns: Range<usize>) -> Result<Arc<dyn DeviceMemory>>;
}

/// Neighbouring bytes of device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBytes<'a> {
    memory: &'a dyn DeviceMemory,
    start: usize,
    len: usize,
}

impl<'a> DeviceBytes<'a> {
    /// All bytes of `memory`.
    pub fn whole(memory: &'a dyn DeviceMemory) -> Self {
        Self { memory, start: 0, len: memory.bytes() }
    }

    /// Bytes `range` of these. Panics if it is out of bounds.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "bytes {range:?} of {} on a device", self.len);
        Self { start: self.start + range.start, len: range.len(), ..self }
    }

    pub fn len(self) -> usize {
        self.len
    }

    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The number of the GPU.
    pub fn ordinal(self) -> usize {
        self.memory.ordinal()
    }

    /// Where the first byte lies.
    pub fn address(self) -> u64 {
        self.memory.address() + self.start as u64
    }

    fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// As [`DeviceMemory::download`].
    ///
    /// # Errors
    ///
    /// The device fails.
    pub fn download(self) -> Result<Vec<u8>> {
        self.memory.download(self.range())
    }

    /// As [`DeviceMemory::not_finite`].
    ///
    /// # Errors
    ///
    /// The device fails.
    pub fn not_finite(self, dtype: Dtype, becomes: Dtype) -> Result<Option<usize>> {
        self.memory.not_finite(self.range(), dtype, becomes)
    }

    /// As [`DeviceMemory::cast`].
    ///
    /// # Errors
    ///
    /// The device lacks memory, or fails.
    pub fn cast(self, from: Dtype, to: Dtype) -> Result<Arc<dyn DeviceMemory>> {
        self.memory.cast(self.range(), from, to)
    }

    /// As [`DeviceMemory::columns`].
    ///
    /// # Errors
    ///
    /// The device lacks memory, or fails.
    pub fn columns(self, row: usize, columns: Range<usize>) -> Result<Arc<dyn DeviceMemory>> {
        self.memory.columns(self.range(), row, columns)
    }
}

/// A dense matrix in device memory: `rows x cols` elements of `dtype`, row-major, not necessarily aligned.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView<'a> {
    pub dtype: Dtype,
    pub rows: usize,
    pub cols: usize,
    pub bytes: DeviceBytes<'a>,
}

impl DeviceView<'_> {
    /// These rows of it.
    #[must_use]
    pub fn rows(self, rows: Range<usize>) -> Self {
        let row = self.cols * self.dtype.bytes();
        Self { rows: rows.len(), bytes: self.bytes.part(rows.start * row..rows.end * row), ..self }
    }
}

/// What keeps lent memory alive and in place: it is dropped with the last user of the memory.
pub type Keeper = Box<dyn Any + Send + Sync>;

/// A name of another process's device memory, or of an event that says when it has been written (CUDA IPC).
pub type IpcHandle = [u8; 64];

/// Gives access to memory of one GPU that others own.
pub trait DeviceLender: Send + Sync {
    /// The GPU's UUID, as `8a7b...-....`, without a prefix.
    ///
    /// # Errors
    ///
    /// The driver does not say it.
    fn uuid(&self) -> Result<String>;

    /// Memory that something else in this process has on this GPU, once what its owner has enqueued on the default
    /// stream is done.
    ///
    /// # Errors
    ///
    /// These bytes are none of this GPU's.
    fn lent(&self, address: u64, bytes: usize, keeper: Keeper) -> Result<Arc<dyn DeviceMemory>>;

    /// Memory of another process, all that the handle names. It is closed with its last user.
    ///
    /// # Errors
    ///
    /// The driver does not open it.
    fn opened(&self, handle: &IpcHandle) -> Result<Arc<dyn DeviceMemory>>;

    /// Waits for an event of another process, until `deadline`. Returns whether it has come.
    ///
    /// # Errors
    ///
    /// The driver does not open it.
    fn wait_for(&self, event: &IpcHandle, deadline: Instant) -> Result<bool>;

    /// A copy of these bytes: on the device where it has so much memory to spare, otherwise on the host.
    ///
    /// # Errors
    ///
    /// Neither has.
    fn copied(&self, bytes: DeviceBytes<'_>) -> Result<MemoryBlock>;
}

/// Bytes of tensors, wherever they are.
#[derive(Debug)]
pub enum MemoryBlock {
    Host(Vec<u8>),
    Device(Arc<dyn DeviceMemory>),
}

impl MemoryBlock {
    pub fn len(&self) -> usize {
        match self {
            MemoryBlock::Host(bytes) => bytes.len(),
            MemoryBlock::Device(memory) => memory.bytes(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
