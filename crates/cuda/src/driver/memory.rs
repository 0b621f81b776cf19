//! Device memory, page-locked host memory, and copies between them. All copies are enqueued on the device's stream; the
//! docs name those that wait.

use std::ffi::c_void;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::NoUninit;
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};

use super::device::Device;
use super::mapped::Mapped;
use offshoot_backend::{Keeper, MemoryPart};
use offshoot_core::error::{Error, Result};

/// Bytes to which device memory is aligned.
pub const ALIGNED: usize = 256;

/// Device memory, aligned to [`ALIGNED`] bytes unless another owner lends it; freed with its last part, which waits for
/// the work that uses it.
pub struct Memory {
    device: Device,
    address: CUdeviceptr,
    bytes: usize,
    /// What it is a part of, which is freed with the last of its parts.
    whole: Arc<dyn Whole>,
}

/// Device memory that is freed at once, on drop.
trait Whole: Send + Sync {}

impl Whole for Allocated {}

impl Whole for Mapped {}

impl Whole for OfAnother {}

/// Memory that an owner outside of this backend keeps.
struct OfAnother {
    _keeper: Keeper,
}

struct Allocated {
    device: Device,
    address: CUdeviceptr,
}

impl Memory {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(super) fn of_mapped(device: &Device, mapped: &Arc<Mapped>, address: CUdeviceptr, bytes: usize) -> Self {
        Self { device: device.clone(), address, bytes, whole: mapped.clone() }
    }

    pub(super) fn of_another(device: &Device, address: CUdeviceptr, bytes: usize, keeper: Keeper) -> Self {
        Self { device: device.clone(), address, bytes, whole: Arc::new(OfAnother { _keeper: keeper }) }
    }

    /// The same memory once more, for what takes the place of what it holds.
    pub fn again(&self) -> Memory {
        Memory { device: self.device.clone(), whole: self.whole.clone(), ..*self }
    }

    /// The same memory once more, without its first `bytes` bytes. Panics where it has fewer.
    pub fn behind(&self, bytes: usize) -> Memory {
        let address = self.at(&(bytes..self.bytes));
        Memory { address, bytes: self.bytes - bytes, ..self.again() }
    }

    /// It as `parts` neighbours of equal size, a multiple of [`ALIGNED`] bytes.
    pub fn divided(self, parts: usize) -> Vec<Memory> {
        let share = self.bytes / parts;
        assert!(share.is_multiple_of(ALIGNED), "{parts} parts of {} bytes of device memory", self.bytes);
        let part =
            |number: usize| Memory { address: self.address + (number * share) as u64, bytes: share, ..self.again() };
        (0..parts).map(part).collect()
    }

    /// The address of `range`. Panics if it is out of bounds: ranges are computed here, never given by a user.
    fn at(&self, range: &Range<usize>) -> CUdeviceptr {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "bytes {range:?} of device memory of {} bytes",
            self.bytes
        );
        self.address + range.start as u64
    }
}

/// Rows of device memory: where the first begins, and how many bytes each begins behind the one before.
#[derive(Clone, Copy)]
pub struct RowsAt<'a> {
    pub memory: &'a Memory,
    pub first: usize,
    pub apart: usize,
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: allocated in `alloc`, freed once, as nothing is a part of it any more; the driver waits for work that
        // uses it.
        self.device.call_logged("free memory", || unsafe { result::free_sync(self.address) });
    }
}

/// Page-locked host memory: copies to and from the device are asynchronous. Its bytes must not be touched until such a
/// copy is done; wait for an event recorded after it.
pub struct Pinned {
    device: Device,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory that this value alone owns.
unsafe impl Send for Pinned {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Pinned {}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes from `start` were allocated and zeroed in `pinned`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the stream lives; waits for copies that still use these bytes, then frees them once.
        self.device.call_logged("free page-locked memory", || unsafe {
            result::stream::synchronize(self.device.stream())?;
            result::free_host(self.start.as_ptr().cast())
        });
    }
}

impl Device {
    /// Allocates device memory with unspecified contents. The error names the requested and the free bytes.
    pub fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.check()?;
        // SAFETY: the memory's owner frees it; nobody reads it as anything but bytes. The driver refuses 0 bytes.
        let address = self.bind().and_then(|()| unsafe { result::malloc_sync(bytes.max(1)) });
        let address = address.map_err(|error| self.shortage(bytes, error))?;
        let whole = Arc::new(Allocated { device: self.clone(), address });
        Ok(Memory { device: self.clone(), address, bytes, whole })
    }

    /// The memory of `old` where that has as many bytes, else new memory of `part`.
    pub fn alloc_over(&self, part: MemoryPart, old: Option<&Memory>, bytes: usize) -> Result<Memory> {
        match old.filter(|old| old.bytes == bytes) {
            Some(old) => Ok(old.again()),
            None => self.alloc_of(part, bytes),
        }
    }

    /// Allocates page-locked host memory, all zero.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        self.locked(bytes, 0)
    }

    /// Allocates page-locked host memory, all zero, which kernels of every GPU may read too, at its address.
    pub fn pinned_for_all(&self, bytes: usize) -> Result<Pinned> {
        self.locked(bytes, sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP)
    }

    fn locked(&self, bytes: usize, flags: u32) -> Result<Pinned> {
        self.check()?;
        let doing = format!("lock {bytes} bytes of host memory");
        // SAFETY: `Pinned` owns and frees what is allocated; the driver refuses 0 bytes.
        let start = self.bind().and_then(|()| unsafe { result::malloc_host(bytes.max(1), flags) });
        let start = start.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::LockedMemory { device: self.name(), asked: bytes },
            _ => self.error(&doing, error),
        })?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| Error::Internal(format!("the driver gave no address when asked to {doing}")))?;
        // SAFETY: `bytes` bytes from `start` were allocated just now.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { device: self.clone(), start, bytes })
    }

    /// Copies host memory to the device; `from` may be reused when it returns.
    pub fn upload(&self, to: &Memory, offset: usize, from: &[u8]) -> Result<()> {
        let at = to.at(&(offset..offset + from.len()));
        // SAFETY: both ranges hold `from.len()` bytes; the driver has read pageable memory when it returns.
        self.call("upload", || unsafe { result::memcpy_htod_async(at, from, self.stream()) })?;
        // The driver reads memory that it knows (a slice of `Pinned`) later.
        if is_known_to_driver(from) { self.synchronise() } else { Ok(()) }
    }

    /// Allocates memory that holds `values`.
    pub fn uploaded<T: NoUninit>(&self, values: &[T]) -> Result<Memory> {
        let memory = self.alloc(size_of_val(values))?;
        self.upload(&memory, 0, bytemuck::cast_slice(values))?;
        Ok(memory)
    }

    /// Allocates memory of zeros.
    pub fn zeroed(&self, bytes: usize) -> Result<Memory> {
        let memory = self.alloc(bytes)?;
        self.zero(&memory)?;
        Ok(memory)
    }

    /// Enqueues a copy of `range` of page-locked memory to the device.
    pub fn upload_pinned(&self, to: &Memory, offset: usize, from: &Pinned, range: Range<usize>) -> Result<()> {
        let at = to.at(&(offset..offset + range.len()));
        let from = &from[range];
        // SAFETY: both ranges hold as many bytes; `Pinned::drop` waits for the copy.
        self.call("upload", || unsafe { result::memcpy_htod_async(at, from, self.stream()) })
    }

    /// Enqueues a copy of `range` of device memory to page-locked memory.
    pub fn download_pinned(&self, to: &mut Pinned, offset: usize, from: &Memory, range: Range<usize>) -> Result<()> {
        let at = from.at(&range);
        let to = &mut to[offset..offset + range.len()];
        // SAFETY: both ranges hold as many bytes; `Pinned::drop` waits for the copy.
        self.call("download", || unsafe { result::memcpy_dtoh_async(to, at, self.stream()) })
    }

    /// Copies `range` of device memory to the host and waits for it.
    pub fn download(&self, from: &Memory, range: Range<usize>) -> Result<Vec<u8>> {
        let at = from.at(&range);
        let mut to = vec![0u8; range.len()];
        // SAFETY: both ranges hold as many bytes; `to` lives until the stream is done.
        self.call("download", || unsafe {
            let copied = result::memcpy_dtoh_async(&mut to, at, self.stream());
            result::stream::synchronize(self.stream()).and(copied)
        })?;
        Ok(to)
    }

    /// Enqueues a copy of `range` of device memory to other device memory. The two must not overlap.
    pub fn copy(&self, to: &Memory, to_offset: usize, from: &Memory, range: Range<usize>) -> Result<()> {
        let (source, target) = (from.at(&range), to.at(&(to_offset..to_offset + range.len())));
        // SAFETY: both ranges lie in their memory.
        self.call("copy", || unsafe { result::memcpy_dtod_async(target, source, range.len(), self.stream()) })
    }

    /// Enqueues a copy of `rows` rows of `width` bytes. The two must not overlap.
    pub fn copy_rows(&self, to: RowsAt<'_>, from: RowsAt<'_>, width: usize, rows: usize) -> Result<()> {
        let of = |of: &RowsAt<'_>| of.memory.at(&(of.first..of.first + (rows - 1) * of.apart + width));
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: of(&from),
            srcArray: std::ptr::null_mut(),
            srcPitch: from.apart,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: of(&to),
            dstArray: std::ptr::null_mut(),
            dstPitch: to.apart,
            WidthInBytes: width,
            Height: rows,
        };
        // SAFETY: all rows lie in their memory; the driver has read the description when it returns.
        self.call("copy rows", || unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.stream()).result() })
    }

    /// Enqueues a copy of the first `bytes` bytes of another GPU's memory to this one's.
    pub fn copy_of_peer(&self, to: &Memory, from: &Memory, bytes: usize) -> Result<()> {
        let (source, target) = (from.at(&(0..bytes)), to.at(&(0..bytes)));
        let (own, peer) = (to.device.context(), from.device.context());
        // SAFETY: both ranges lie in their memory, whose contexts live as long as they do.
        self.call("copy from a peer", || unsafe {
            sys::cuMemcpyPeerAsync(target, own, source, peer, bytes, self.stream()).result()
        })
    }

    /// Sets all bytes to zero.
    pub fn zero(&self, memory: &Memory) -> Result<()> {
        // SAFETY: the range is the whole memory.
        self.call("clear", || unsafe { result::memset_d8_async(memory.address, 0, memory.bytes, self.stream()) })
    }
}

/// Whether the driver knows this host memory (page-locked or managed), so that copies from it are asynchronous.
fn is_known_to_driver(memory: &[u8]) -> bool {
    let mut kind = 0u32;
    let mut attributes = [sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE];
    let mut values = [std::ptr::from_mut(&mut kind).cast::<c_void>()];
    // SAFETY: one attribute, whose value is one u32; the address is only looked up. Of memory that the driver does not
    // know this call says 0, where the one for a single attribute fails.
    let asked = unsafe {
        sys::cuPointerGetAttributes(1, attributes.as_mut_ptr(), values.as_mut_ptr(), memory.as_ptr() as CUdeviceptr)
    };
    asked == CUresult::CUDA_SUCCESS && kind != 0
}
