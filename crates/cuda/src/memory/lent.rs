//! Device memory with tensors that a model is given: what NCCL received, what another library of this process or
//! another process lends, and copies of it. They are checked and rounded here, on the device; `weights` puts them in
//! force.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use super::staging::Staging;
use crate::compile::unit::Unit;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::memory::{Memory, RowsAt};
use offshoot_backend::{DeviceBytes, DeviceLender, DeviceMemory, Dtype, IpcHandle, Keeper, MemoryBlock, WeightView};
use offshoot_core::error::{Error, Result};

/// Device memory that given tensors leave for all else, bytes.
const SPARE: usize = 1 << 30;

/// Elements of which `not_finite` finds the first chunk, as in kernels/ops/not_finite.cu.
const CHUNK: usize = 4096;

/// Copies of fewer bytes gain nothing by page-locked memory.
const LEAST_STAGED: usize = 1 << 20;

/// Gives access to memory of one GPU that others own. Clones share it.
#[derive(Clone)]
pub struct Lender(Arc<LenderDevice>);

struct LenderDevice {
    device: Device,
    /// For elements of 2 and of 4 bytes.
    not_finite: [Function; 2],
    /// u32 `[1]`: the chunk that `not_finite` finds.
    chunk: Mutex<Memory>,
    staging: Mutex<Staging>,
}

/// Memory with given tensors.
struct Given {
    lender: Lender,
    memory: Memory,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.memory.bytes(), self.lender.0.device.name())
    }
}

impl Lender {
    /// # Errors
    ///
    /// The GPU cannot be used.
    pub fn open(ordinal: usize) -> Result<Self> {
        let device = Device::open(ordinal)?;
        let unit = Unit::new(&units::NOT_FINITE);
        let not_finite = [device.function(&unit, "not_finite_2")?, device.function(&unit, "not_finite_4")?];
        let (chunk, staging) = (Mutex::new(device.alloc(size_of::<u32>())?), Mutex::new(Staging::new(&device)?));
        Ok(Self(Arc::new(LenderDevice { device, not_finite, chunk, staging })))
    }

    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Memory that holds given tensors. All that writes to it must be done.
    pub fn given(&self, memory: Memory) -> Arc<dyn DeviceMemory> {
        Arc::new(Given { lender: self.clone(), memory })
    }

    /// Memory for given tensors; `None`: the device has not so much to spare.
    pub fn spare(&self, bytes: usize) -> Result<Option<Memory>> {
        if self.0.device.free_bytes()? < bytes.saturating_add(SPARE) {
            return Ok(None);
        }
        match self.0.device.alloc(bytes) {
            Ok(memory) => Ok(Some(memory)),
            // Somebody else was faster.
            Err(Error::DeviceMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Copies these bytes of `memory` to the host.
    pub fn download(&self, memory: &Memory, range: Range<usize>) -> Result<Vec<u8>> {
        if range.len() < LEAST_STAGED {
            return self.0.device.download(memory, range);
        }
        // Whoever has it copies by threads that may come here again meanwhile, and must not wait for themselves.
        let mut staging = match self.0.staging.try_lock() {
            Ok(staging) => staging,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.0.device.download(memory, range),
        };
        let mut bytes = vec![0; range.len()];
        staging.download(&mut bytes, memory, std::iter::once(range))?;
        Ok(bytes)
    }

    /// As many blocks of 256 threads as are resident at once.
    fn blocks(&self) -> u32 {
        self.0.device.facts().multiprocessors * 8
    }

    fn chunk(&self) -> MutexGuard<'_, Memory> {
        self.0.chunk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceLender for Lender {
    fn uuid(&self) -> Result<String> {
        self.0.device.uuid()
    }

    fn lent(&self, address: u64, bytes: usize, keeper: Keeper) -> Result<Arc<dyn DeviceMemory>> {
        let memory = self.0.device.memory_of_another(address, bytes, keeper)?;
        self.0.device.wait_for_default_stream()?;
        Ok(self.given(memory))
    }

    fn opened(&self, handle: &IpcHandle) -> Result<Arc<dyn DeviceMemory>> {
        Ok(self.given(self.0.device.open_memory(handle)?))
    }

    fn wait_for(&self, event: &IpcHandle, deadline: Instant) -> Result<bool> {
        self.0.device.wait_for_event(event, deadline)
    }

    fn copied(&self, bytes: DeviceBytes<'_>) -> Result<MemoryBlock> {
        let Some(memory) = self.spare(bytes.len())? else { return Ok(MemoryBlock::Host(bytes.download()?)) };
        self.0.device.copy_from_address(&memory, 0, bytes.address(), bytes.len())?;
        self.0.device.synchronise()?;
        Ok(MemoryBlock::Device(self.given(memory)))
    }
}

impl DeviceMemory for Given {
    fn ordinal(&self) -> usize {
        self.lender.0.device.facts().ordinal
    }

    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn download(&self, range: Range<usize>) -> Result<Vec<u8>> {
        self.lender.download(&self.memory, range)
    }

    fn not_finite(&self, range: Range<usize>, dtype: Dtype, becomes: Dtype) -> Result<Option<usize>> {
        let LenderDevice { device, not_finite: [short, long], .. } = &*self.lender.0;
        let elements = (range.len() / dtype.bytes()) as u64;
        let kernel = if dtype.bytes() == 2 { short } else { long };
        // Held until it is read: checks take turns.
        let chunk = self.lender.chunk();
        device.upload(&chunk, 0, &u32::MAX.to_le_bytes())?;
        let args = Args::new().memory_at(&self.memory, range.start).u64(elements);
        let args = args.u32(dtype.not_finite_from(becomes)).memory(&chunk);
        device.launch(kernel, [self.lender.blocks(), 1, 1], 256, 0, &args);
        device.check()?;
        let found = device.download(&chunk, 0..size_of::<u32>())?;
        let found = u32::from_le_bytes(found.try_into().expect("as many bytes as were asked for"));
        if found == u32::MAX {
            return Ok(None);
        }
        let first = found as usize * CHUNK;
        let start = range.start + first * dtype.bytes();
        let bytes = device.download(&self.memory, start..range.end.min(start + CHUNK * dtype.bytes()))?;
        let view = WeightView { dtype, rows: 1, cols: bytes.len() / dtype.bytes(), bytes: &bytes };
        let place = (0..view.cols).find(|&i| !becomes.round(view.get(i)).is_finite());
        Ok(Some(first + place.unwrap_or(0)))
    }

    fn cast(&self, range: Range<usize>, from: Dtype, to: Dtype) -> Result<Arc<dyn DeviceMemory>> {
        let device = &self.lender.0.device;
        let elements = range.len() / from.bytes();
        let cast = device.function(&units::cast(from, to), "cast")?;
        let out = device.alloc(elements * to.bytes())?;
        let args = Args::new().memory_at(&self.memory, range.start).memory(&out).u64(elements as u64);
        device.launch(&cast, [self.lender.blocks(), 1, 1], 256, 0, &args);
        device.synchronise()?;
        Ok(self.lender.given(out))
    }

    fn columns(&self, range: Range<usize>, row: usize, columns: Range<usize>) -> Result<Arc<dyn DeviceMemory>> {
        let device = &self.lender.0.device;
        let rows = range.len() / row.max(1);
        let out = device.alloc(rows * columns.len())?;
        if rows * columns.len() > 0 {
            let to = RowsAt { memory: &out, first: 0, apart: columns.len() };
            let from = RowsAt { memory: &self.memory, first: range.start + columns.start, apart: row };
            device.copy_rows(to, from, columns.len(), rows)?;
        }
        device.synchronise()?;
        Ok(self.lender.given(out))
    }
}
