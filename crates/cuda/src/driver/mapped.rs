//! Device memory that can be given back to the driver while its addresses stay reserved: a range of addresses, and
//! memory that is mapped there while it is awake. Captured graphs name the addresses, so they stay valid. What memory
//! held is lost when it sleeps; `memory::sleep` keeps copies where they are needed.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemGenericAllocationHandle, CUresult};

use super::device::Device;
use super::memory::Memory;
use offshoot_backend::MemoryPart;
use offshoot_core::error::{Error, Result};

/// Less than this is allocated at once and never sleeps: memory is mapped in units of 2 MiB.
const LEAST: usize = 1 << 20;

/// A range of addresses, and what is mapped there.
pub struct Mapped {
    device: Device,
    address: CUdeviceptr,
    /// Whole units.
    bytes: usize,
    part: MemoryPart,
    /// `None`: it sleeps.
    handle: Mutex<Option<CUmemGenericAllocationHandle>>,
}

impl Mapped {
    fn handle(&self) -> MutexGuard<'_, Option<CUmemGenericAllocationHandle>> {
        self.handle.lock().expect("nothing panics while it holds this lock")
    }

    pub fn is_awake(&self) -> bool {
        self.handle().is_some()
    }

    /// Gives the memory back to the driver; nothing that was enqueued may use it any more. After an error it is awake
    /// unless only the last step failed, which gives back what is mapped nowhere any more.
    pub fn sleep(&self) -> Result<()> {
        let mut handle = self.handle();
        let Some(mapped) = *handle else { return Ok(()) };
        // SAFETY: mapped in `wake`, with this size; the caller has waited for what was enqueued.
        self.device.call("unmap memory", || unsafe { sys::cuMemUnmap(self.address, self.bytes).result() })?;
        *handle = None;
        // SAFETY: made in `map`, given back once, and mapped nowhere.
        self.device.call("free memory", || unsafe { sys::cuMemRelease(mapped).result() })
    }

    /// Maps memory of unspecified contents at the same addresses.
    pub fn wake(&self) -> Result<()> {
        let mut handle = self.handle();
        if handle.is_none() {
            let mapped = self.device.bind().and_then(|()| self.map());
            *handle = Some(mapped.map_err(|error| self.device.shortage(self.bytes, error))?);
        }
        Ok(())
    }

    fn map(&self) -> Result<CUmemGenericAllocationHandle, DriverError> {
        let (properties, mut handle) = (properties(&self.device), 0);
        // SAFETY: the driver writes one handle, and reads the description before it returns.
        unsafe { sys::cuMemCreate(&raw mut handle, self.bytes, &raw const properties, 0).result()? };
        // SAFETY: zeros are valid for this plain description, whose fields are set below.
        let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
        access.location = properties.location;
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // SAFETY: the addresses are reserved, of as many bytes as the memory has, and nothing is mapped there.
        let mapped = unsafe { sys::cuMemMap(self.address, self.bytes, 0, handle, 0).result() };
        // SAFETY: memory was mapped there just now; the driver reads the description before it returns.
        let set = || unsafe { sys::cuMemSetAccess(self.address, self.bytes, &raw const access, 1).result() };
        let undone = match mapped.map(|()| set()) {
            Ok(Ok(())) => return Ok(handle),
            Ok(Err(error)) => {
                // SAFETY: memory was mapped there above.
                self.device
                    .call_logged("unmap memory", || unsafe { sys::cuMemUnmap(self.address, self.bytes).result() });
                error
            }
            Err(error) => error,
        };
        // SAFETY: the handle was created above, and is given back once.
        self.device.call_logged("free memory", || unsafe { sys::cuMemRelease(handle).result() });
        Err(undone)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let handle = self.handle().take();
        // SAFETY: nothing is a part of this memory any more; what was enqueued is waited for before it is unmapped.
        self.device.call_logged("free mapped memory", || unsafe {
            if let Some(handle) = handle {
                sys::cuStreamSynchronize(self.device.stream()).result()?;
                sys::cuMemUnmap(self.address, self.bytes).result()?;
                sys::cuMemRelease(handle).result()?;
            }
            sys::cuMemAddressFree(self.address, self.bytes).result()
        });
    }
}

/// Memory of one GPU, which kernels of that GPU read and write.
fn properties(device: &Device) -> sys::CUmemAllocationProp {
    // SAFETY: zeros are valid for this plain description, and mean nothing but defaults.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device.number();
    properties
}

/// The mapped memory of a device.
#[derive(Default)]
pub struct MappedList(Mutex<Vec<Weak<Mapped>>>);

impl MappedList {
    fn add(&self, mapped: &Arc<Mapped>) {
        let mut list = self.0.lock().expect("nothing panics while it holds this lock");
        list.retain(|mapped| mapped.strong_count() > 0);
        list.push(Arc::downgrade(mapped));
    }

    fn of(&self, part: MemoryPart) -> Vec<Arc<Mapped>> {
        let list = self.0.lock().expect("nothing panics while it holds this lock");
        list.iter().filter_map(Weak::upgrade).filter(|mapped| mapped.part == part).collect()
    }
}

impl Device {
    /// Allocates device memory of `part` with unspecified contents, which can sleep unless it is small.
    pub fn alloc_of(&self, part: MemoryPart, bytes: usize) -> Result<Memory> {
        if bytes < LEAST {
            return self.alloc(bytes);
        }
        self.check()?;
        let (properties, mut unit) = (properties(self), 0);
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the driver writes one word, and reads the description before it returns.
        self.call("ask for the unit of memory", || unsafe {
            sys::cuMemGetAllocationGranularity(&raw mut unit, &raw const properties, least).result()
        })?;
        let (whole, mut address) = (bytes.next_multiple_of(unit.max(1)), 0);
        // SAFETY: the driver writes one address.
        self.call("reserve addresses", || unsafe {
            sys::cuMemAddressReserve(&raw mut address, whole, 0, 0, 0).result()
        })?;
        let mapped = Mapped { device: self.clone(), address, bytes: whole, part, handle: Mutex::new(None) };
        // An error frees the addresses.
        mapped.wake()?;
        let mapped = Arc::new(mapped);
        self.mapped().add(&mapped);
        Ok(Memory::of_mapped(self, &mapped, address, bytes))
    }

    /// Memory of `part` that can sleep.
    pub fn mapped_of(&self, part: MemoryPart) -> Vec<(Memory, Arc<Mapped>)> {
        let whole = |mapped: Arc<Mapped>| (Memory::of_mapped(self, &mapped, mapped.address, mapped.bytes), mapped);
        self.mapped().of(part).into_iter().map(whole).collect()
    }

    /// The error of an allocation that the driver refused.
    pub(super) fn shortage(&self, bytes: usize, error: DriverError) -> Error {
        match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::DeviceMemory {
                device: self.name(),
                asked: Some(bytes),
                free: self.free_bytes().unwrap_or(0),
                total: self.facts().total_bytes,
            },
            _ => self.error(&format!("allocate {bytes} bytes"), error),
        }
    }
}
