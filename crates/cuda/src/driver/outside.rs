//! Device memory whose owner is not this backend: another library of this process, or another process, which names its
//! memory and its events by handles (CUDA IPC).

use std::ffi::c_void;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUstream};

use super::device::Device;
use super::memory::Memory;
use offshoot_backend::{IpcHandle, Keeper};
use offshoot_core::error::{Error, Result};

/// The default stream, which waits for all streams that do not say otherwise.
const DEFAULT_STREAM: CUstream = std::ptr::without_provenance_mut(1);

/// Between two questions whether an event has come: the first, and the longest.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Memory of another process, open here.
struct Opened {
    device: Device,
    address: CUdeviceptr,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the stream lives; opened in `open_memory`, closed once, when nothing is a part of it any more.
        self.device.call_logged("close the memory of another process", || unsafe {
            result::stream::synchronize(self.device.stream())?;
            sys::cuIpcCloseMemHandle(self.address).result()
        });
    }
}

impl Device {
    /// The UUID, as `8a7bc3e0-....`.
    pub fn uuid(&self) -> Result<String> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the driver writes 16 bytes.
        self.call("ask for the UUID", || unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, self.number()).result() })?;
        let hex: String = uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect();
        Ok([0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]).join("-"))
    }

    /// Memory on this GPU that another library of this process owns. `keeper` keeps it.
    pub fn memory_of_another(&self, address: u64, bytes: usize, keeper: Keeper) -> Result<Memory> {
        if let Some(beyond_first) = bytes.checked_sub(1) {
            self.check_own(address)?;
            let last = address.checked_add(beyond_first as u64).ok_or_else(|| {
                let found = format!("{bytes} bytes at {address:#x}, beyond all addresses");
                Error::value("device memory", format!("memory of {}", self.name()), found)
            })?;
            self.check_own(last)?;
        }
        Ok(Memory::of_another(self, address, bytes, keeper))
    }

    /// Refuses an address at which this GPU has no memory.
    fn check_own(&self, address: u64) -> Result<()> {
        let (mut kind, mut ordinal) = (0u32, -1i32);
        let mut attributes = [
            sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        let mut values = [(&raw mut kind).cast::<c_void>(), (&raw mut ordinal).cast::<c_void>()];
        // SAFETY: two attributes, whose values are one word each; the address is only looked up.
        self.call("look up an address", || unsafe {
            sys::cuPointerGetAttributes(2, attributes.as_mut_ptr(), values.as_mut_ptr(), address).result()
        })?;
        let is_own = kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32
            && usize::try_from(ordinal) == Ok(self.facts().ordinal);
        match is_own {
            true => Ok(()),
            false => {
                let found = format!("an address of memory type {kind} on device {ordinal}");
                Err(Error::value("device memory", format!("memory of {}", self.name()), found))
            }
        }
    }

    /// Memory of another process: all that `handle` names.
    pub fn open_memory(&self, handle: &IpcHandle) -> Result<Memory> {
        let handle = sys::CUipcMemHandle { reserved: handle.map(u8::cast_signed) };
        let lazily = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the driver writes one address, and takes the handle by value.
        self.call("open the memory of another process", || unsafe {
            sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, lazily).result()
        })?;
        let opened = Opened { device: self.clone(), address };
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the driver writes two words; memory was opened at the address.
        self.call("ask how large the memory of another process is", || unsafe {
            sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address).result()
        })?;
        let bytes = bytes - (address - base) as usize;
        Ok(Memory::of_another(self, address, bytes, Box::new(opened)))
    }

    /// Waits for an event of another process, until `deadline`. Returns whether it has come: that process may hang.
    pub fn wait_for_event(&self, handle: &IpcHandle, deadline: Instant) -> Result<bool> {
        let handle = sys::CUipcEventHandle { reserved: handle.map(u8::cast_signed) };
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: the driver writes one event, and takes the handle by value.
        self.call("open an event of another process", || unsafe {
            sys::cuIpcOpenEventHandle(&raw mut event, handle).result()
        })?;
        let mut pause = SHORTEST_PAUSE;
        let come = loop {
            // SAFETY: the event is open.
            let come = self.call("ask for an event of another process", || match unsafe { sys::cuEventQuery(event) } {
                sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                other => other.result().map(|()| true),
            });
            if !matches!(come, Ok(false)) || Instant::now() >= deadline {
                break come;
            }
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(2 * pause);
        };
        // SAFETY: the event was opened above, and is closed once.
        self.call_logged("close an event of another process", || unsafe { result::event::destroy(event) });
        come
    }

    /// Waits until all that others have enqueued on the default stream is done.
    pub fn wait_for_default_stream(&self) -> Result<()> {
        // SAFETY: the driver knows the default stream by this number.
        self.call("wait for the default stream", || unsafe { result::stream::synchronize(DEFAULT_STREAM) })
    }

    /// Enqueues a copy of `bytes` bytes from `from`, on this GPU or another one, to byte `at` of `to`. Panics if there
    /// is less room.
    pub fn copy_from_address(&self, to: &Memory, at: usize, from: u64, bytes: usize) -> Result<()> {
        assert!(at + bytes <= to.bytes(), "bytes {at} to {} of {}", at + bytes, to.bytes());
        // SAFETY: `to` has the bytes, and `DeviceMemory` says that they lie at the address.
        self.call("copy", || unsafe {
            sys::cuMemcpyAsync(to.address() + at as u64, from, bytes, self.stream()).result()
        })
    }
}
