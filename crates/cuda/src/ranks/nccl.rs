//! NCCL, found at run time: it gathers where NVLink does not join the GPUs, and its sums are compared with
//! our own. Only what that takes is bound. It must not use NVLink multicast, which `NCCL_NVLS_ENABLE=0` in the
//! environment says; without that it is not used. The bindings of `cudarc` do not serve: their loader never tries
//! `libnccl.so.2`, as NCCL is named, and panics at a missing symbol, where `Nccl` gives an error in a sentence.

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream;
use libloading::Library;

use crate::discovery::libraries;
use crate::driver::device::Device;
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;
use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};

/// The variable that keeps NCCL from multicast, and its value.
pub const NO_MULTICAST: (&str, &str) = ("NCCL_NVLS_ENABLE", "0");

/// 2.10.3, the first with bf16.
const OLDEST: c_int = 21_003;

pub(super) type Comm = *mut c_void;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type CommInitAll = unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int;
type CommAbort = unsafe extern "C" fn(Comm) -> c_int;
type AllGather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> c_int;
type Group = unsafe extern "C" fn() -> c_int;
pub(super) type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
type GetErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// `ncclSum`, `ncclInt8`, and what NCCL calls dtypes: these numbers are the same in all versions from `OLDEST` on.
pub(super) const SUM: c_int = 0;
const BYTES: c_int = 0;

pub(super) fn number_of(dtype: Dtype) -> c_int {
    match dtype {
        Dtype::F16 => 6,
        Dtype::F32 => 7,
        Dtype::Bf16 => 9,
    }
}

/// A communicator of GPUs of this process, one rank each.
pub struct Nccl {
    library: Arc<Library>,
    version: c_int,
    ranks: Vec<RankComm>,
    is_over: AtomicBool,
    /// Ends of the ranks.
    ending: Mutex<Vec<JoinHandle<()>>>,
}

struct RankComm {
    device: Device,
    comm: Comm,
    /// Held by who calls NCCL with it.
    calls: Mutex<()>,
}

/// How long an end waits for a call: one that waits for a rank which has failed does not return before the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a drop waits for the ends: they wait for captured graphs.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

// SAFETY: a communicator may be used from any thread, by one at a time, whoever holds its lock; but for its end, which
// NCCL lets another thread call beside the call that it is to end.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

impl Nccl {
    /// Connects these GPUs. The error is one sentence: it is missing, too old, or may use multicast.
    pub fn open(devices: &[Device]) -> Result<Self> {
        let first = devices.first().ok_or_else(|| unusable("no GPU to connect".to_owned()))?;
        let (library, version) = load(first)?;
        let mut nccl =
            Nccl { library, version, ranks: Vec::new(), is_over: AtomicBool::new(false), ending: Mutex::default() };
        let mut ranks: Vec<Comm> = vec![ptr::null_mut(); devices.len()];
        let ordinals: Vec<c_int> = devices.iter().map(|device| device.facts().ordinal as c_int).collect();
        // SAFETY: as many places and ordinals as the second argument says.
        let status = unsafe {
            let connect = function::<CommInitAll>(&nccl.library, b"ncclCommInitAll\0")?;
            connect(ranks.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr())
        };
        nccl.check("connect the GPUs", status)?;
        let ranks = devices.iter().cloned().zip(ranks);
        nccl.ranks = ranks.map(|(device, comm)| RankComm { device, comm, calls: Mutex::default() }).collect();
        Ok(nccl)
    }

    /// `2.28.3`
    pub fn version(&self) -> String {
        name(self.version)
    }

    /// Enqueues on `device`, that of `rank`: the first `count` elements of `x`, of its dtype, become their sum over all
    /// ranks. Called by the rank's own thread, as all ranks do.
    pub fn all_reduce(&self, device: &Device, rank: usize, x: &Buffer, count: usize) -> Result<()> {
        assert!(count <= x.rows * x.width, "all_reduce: elements of a buffer");
        let (comm, _calls) = self.comm(device, rank)?;
        let at = x.memory().address() as *mut c_void;
        // SAFETY: `count` elements lie at the address, which the stream's work may change; the communicator is that of
        // this rank.
        let status = unsafe {
            let all_reduce = function::<AllReduce>(&self.library, b"ncclAllReduce\0")?;
            all_reduce(at, at, count, number_of(x.element), SUM, comm, device.stream())
        };
        self.check("add up", status)
    }

    /// Enqueues on `device`, that of `rank`: each rank's share of `memory`, of `share` bytes and in the order of the
    /// ranks, becomes what that rank has there. Called by the rank's own thread, as all ranks do.
    pub fn gather(&self, device: &Device, rank: usize, memory: &Memory, share: usize) -> Result<()> {
        assert!(self.ranks.len() * share <= memory.bytes(), "gather: shares of all ranks");
        let (comm, _calls) = self.comm(device, rank)?;
        let at = memory.address();
        // SAFETY: as many bytes lie at the address, which the stream's work may change; the communicator is that of
        // this rank.
        let status = unsafe {
            let gather = function::<AllGather>(&self.library, b"ncclAllGather\0")?;
            let own = (at + (rank * share) as u64) as *const c_void;
            gather(own, at as *mut c_void, share, BYTES, comm, device.stream())
        };
        self.check("gather", status)
    }

    /// Enqueues `gather` on all ranks, by one thread.
    pub fn gather_on_all(&self, devices: &[Device], memories: &[Memory], share: usize) -> Result<()> {
        let group = |name: &[u8]| -> Result<()> {
            // SAFETY: NCCL's functions that begin and end a group of calls of one thread have this signature.
            let status = unsafe { function::<Group>(&self.library, name)?() };
            self.check("group calls", status)
        };
        group(b"ncclGroupStart\0")?;
        let mut each = devices.iter().zip(memories).enumerate();
        let called = each.try_for_each(|(rank, (device, memory))| self.gather(device, rank, memory, share));
        group(b"ncclGroupEnd\0").and(called)
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The rank's communicator, while nobody else calls with it; with the device's context current.
    fn comm(&self, device: &Device, rank: usize) -> Result<(Comm, MutexGuard<'_, ()>)> {
        let RankComm { comm, calls, .. } = &self.ranks[rank];
        let calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_over() {
            return Err(Error::Internal("another rank has ended NCCL".to_owned()));
        }
        device.bind().map_err(|error| device.error("call NCCL", error))?;
        Ok((*comm, calls))
    }

    /// Ends it on all ranks, also where one waits for another; it is not used again. What it has is given back once no
    /// captured graph names it any more, for which only a drop waits.
    pub fn abort(&self) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let until = Instant::now() + PATIENCE;
        for RankComm { device, comm, calls } in &self.ranks {
            let is_called = || matches!(calls.try_lock(), Err(TryLockError::WouldBlock));
            while is_called() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            let ended = EndingCommunicator { library: self.library.clone(), device: device.clone(), comm: *comm };
            match thread::Builder::new().name("end of NCCL".to_owned()).spawn(move || ended.abort()) {
                Ok(end) => self.ending.lock().unwrap_or_else(PoisonError::into_inner).push(end),
                Err(error) => log::warn!("NCCL cannot end: {error}"),
            }
        }
    }

    fn check(&self, doing: &str, status: c_int) -> Result<()> {
        check(&self.library, self.version, doing, status)
    }
}

/// The library, for this GPU, and its version. The error is one sentence: it is missing, too old, or may use multicast.
pub(super) fn load(device: &Device) -> Result<(Arc<Library>, c_int)> {
    let (variable, value) = NO_MULTICAST;
    if env::var(variable).as_deref() != Ok(value) {
        return Err(unusable(format!("{variable} is not {value}, so it might use NVLink multicast")));
    }
    let library = libraries::load_nccl(device.facts().driver).map_err(unusable)?;
    let mut version = 0;
    // SAFETY: NCCL's function of this name has this signature, in all versions.
    let asked = unsafe { function::<GetVersion>(&library, b"ncclGetVersion\0")?(&raw mut version) };
    if asked != 0 || version < OLDEST {
        let expected = "NCCL 2.10.3 or newer".to_owned();
        return Err(Error::value("NCCL", expected, format!("version {}", name(version))));
    }
    Ok((Arc::new(library), version))
}

fn unusable(why: String) -> Error {
    Error::value("NCCL", "one that can be used", why)
}

/// An error in NCCL's own words, unless this is the status of a success.
pub(super) fn check(library: &Library, version: c_int, doing: &str, status: c_int) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: a text that NCCL owns.
    let why = function::<GetErrorString>(library, b"ncclGetErrorString\0")
        .map(|text| unsafe { CStr::from_ptr(text(status)) }.to_string_lossy().into_owned())?;
    Err(Error::value("NCCL", format!("a version that can {doing}"), format!("{}: {why}", name(version))))
}

/// NCCL writes 2.28.3 as 22803, and 2.8.4 as 2804.
fn name(version: c_int) -> String {
    let (major, rest) = if version < 10_000 { (1000, 100) } else { (10_000, 100) };
    format!("{}.{}.{}", version / major, version % major / rest, version % rest)
}

/// A function of NCCL, whose signature the caller answers for.
pub(super) fn function<'a, F>(library: &'a Library, name: &[u8]) -> Result<libloading::Symbol<'a, F>> {
    // SAFETY: only looked up; each caller names the signature that NCCL documents.
    unsafe { library.get::<F>(name) }.map_err(|error| {
        let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
        Error::value("NCCL", format!("a library with {name}"), libraries::loaders_text(error))
    })
}

/// A communicator with what it needs to end. Nobody calls it any more, but for a call that waits for a rank which has
/// failed.
pub(super) struct EndingCommunicator {
    pub library: Arc<Library>,
    pub device: Device,
    pub comm: Comm,
}

// SAFETY: the last thread that uses the communicator has it; beside a call that still waits NCCL lets another thread
// end it.
unsafe impl Send for EndingCommunicator {}

impl EndingCommunicator {
    pub fn abort(self) {
        let abort = function::<CommAbort>(&self.library, b"ncclCommAbort\0");
        // SAFETY: a communicator that lives: it ends once.
        let status = abort.map(|abort| unsafe { abort(self.comm) });
        if !matches!(status, Ok(0)) {
            log::warn!("NCCL cannot end on {}", self.device.name());
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.abort();
        let until = Instant::now() + LAST_PATIENCE;
        for end in mem::take(self.ending.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            while !end.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            match end.is_finished() {
                true => drop(end.join()),
                false => log::warn!("NCCL has not ended: captured graphs still name it"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_names() {
        assert_eq!([name(22_803), name(21_003), name(2804)], ["2.28.3", "2.10.3", "2.8.4"]);
    }
}
