//! One GPU: its context, the stream on which everything is enqueued that is in no branch, and the errors of calls that
//! return none. Memory, events, functions, launches and graphs have files of their own; below them nobody sees the
//! driver.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUresult, CUstream, CUstream_st};

use super::mapped::MappedList;
use super::modules::Modules;
use crate::compile::Compiler;
use crate::discovery::libraries;
use crate::discovery::probe::{self, DeviceFacts};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::TENSOR_PARALLEL;

/// A GPU in use. Clones share it; the GPU is released when the last clone, and the last memory, event and graph
/// made from it, is dropped.
#[derive(Clone)]
pub struct Device(Arc<DeviceInner>);

struct DeviceInner {
    facts: DeviceFacts,
    handle: CUdevice,
    context: CUcontext,
    stream: CUstream,
    /// Where work goes instead while a branch is entered; else null.
    redirected: AtomicPtr<CUstream_st>,
    modules: Modules,
    mapped: MappedList,
    compiler: Compiler,
    /// The first error of a call that returns none.
    pending_error: Mutex<Option<Error>>,
}

// SAFETY: the driver's calls may come from any thread once the context is bound there, which `Device::bind` does before
// each.
unsafe impl Send for DeviceInner {}
// SAFETY: as above; the driver locks its own state, `pending_error` and `modules` lock theirs.
unsafe impl Sync for DeviceInner {}

impl Device {
    /// Opens GPU number `ordinal`. The error is one sentence: no driver, no such GPU, too old, a library missing (with
    /// the command that installs it).
    pub fn open(ordinal: usize) -> Result<Device> {
        let facts = probe::probe_one(ordinal)?;
        let unusable = |why| probe::no_device(ordinal, why);
        let compiler = Compiler::open(Some(facts.driver)).map_err(unusable)?;
        compiler.knows(&facts.arch).map_err(unusable)?;
        libraries::load_cublas_lt(facts.driver).map_err(unusable)?;
        let handle = probe::handle(ordinal)?;
        let refused = |error| probe::no_device(ordinal, format!("the driver refuses it: {}", probe::describe(error)));
        // SAFETY: `handle` comes from the driver; `DeviceInner::drop` releases the context.
        let context = unsafe { result::primary_ctx::retain(handle) }.map_err(refused)?;
        // SAFETY: the context was retained just now.
        let stream = unsafe { result::ctx::set_current(context) }
            .and_then(|()| result::stream::create(result::stream::StreamKind::NonBlocking));
        let stream = stream.map_err(|error| {
            // SAFETY: undoes the one `retain`.
            let released = unsafe { result::primary_ctx::release(handle) };
            log_failure("release the context", released);
            refused(error)
        })?;
        Ok(Device(Arc::new(DeviceInner {
            facts,
            handle,
            context,
            stream,
            redirected: AtomicPtr::default(),
            modules: Modules::default(),
            mapped: MappedList::default(),
            compiler,
            pending_error: Mutex::new(None),
        })))
    }

    pub fn facts(&self) -> &DeviceFacts {
        &self.0.facts
    }

    /// Bytes of device memory that an allocation could get now.
    pub fn free_bytes(&self) -> Result<usize> {
        let (free, _) = self.call("ask for the free memory", result::mem_get_info)?;
        Ok(free)
    }

    /// Lets kernels of this GPU read the memory of `peer`, a GPU of the same host. Nothing to do if they are one.
    ///
    /// # Errors
    ///
    /// The two cannot.
    pub fn read_memory_of(&self, peer: &Device) -> Result<()> {
        if self.0.facts.ordinal == peer.0.facts.ordinal {
            return Ok(());
        }
        let mut can = 0;
        // SAFETY: both handles come from the driver, which writes one word.
        self.call("ask for access to a peer", || unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut can, self.0.handle, peer.0.handle).result()
        })?;
        if can == 0 {
            let expected = format!("a GPU whose memory {} reads (through NVLink)", self.name());
            return Err(Error::value(TENSOR_PARALLEL, expected, peer.name()));
        }
        // SAFETY: the peer's context lives as long as `peer`; kernels read its memory only while both do.
        let enable = || unsafe { sys::cuCtxEnablePeerAccess(peer.0.context, 0).result() };
        self.call("read the memory of a peer", || match enable() {
            Err(error) if error.0 == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => other,
        })
    }

    /// Whether `peer` is joined to this GPU as closely as NVLink joins them, so that words which neighbouring threads
    /// store there at once arrive at once, too. Nothing joins a GPU to itself more closely.
    pub fn is_linked_to(&self, peer: &Device) -> Result<bool> {
        if self.0.facts.ordinal == peer.0.facts.ordinal {
            return Ok(true);
        }
        let mut linked = 0;
        // Atomic operations on another GPU's memory are native over NVLink, and not over PCIe (the driver's attribute).
        let atomics = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: both handles come from the driver, which writes one word.
        self.call("ask how a peer is joined", || unsafe {
            sys::cuDeviceGetP2PAttribute(&raw mut linked, atomics, self.0.handle, peer.0.handle).result()
        })?;
        Ok(linked != 0)
    }

    /// Waits until all that was enqueued is done.
    pub fn synchronise(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        self.call("wait for the stream", || unsafe { result::stream::synchronize(self.0.stream) })
    }

    /// Waits until all that was enqueued is done, also where an error is kept, before memory is given back that other
    /// devices write; errors are logged.
    pub fn settle(&self) {
        if let Err(error) = self.check() {
            log::warn!("{error}");
        }
        // SAFETY: the stream lives as long as `self`.
        self.call_logged("wait for the stream", || unsafe { result::stream::synchronize(self.0.stream) });
    }

    /// The first error of the launches since the last call. What goes wrong while a kernel runs is reported by the
    /// calls that wait.
    pub fn check(&self) -> Result<()> {
        match self.pending_error().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Keeps the error of an enqueue that returns none, for the next `check`.
    pub(crate) fn keep(&self, error: Error) {
        self.pending_error().get_or_insert(error);
    }

    /// The stream, for libraries that enqueue on it themselves (cuBLASLt); that of a branch that is entered.
    pub(crate) fn stream(&self) -> CUstream {
        let redirected = self.0.redirected.load(Ordering::Relaxed);
        if redirected.is_null() { self.0.stream } else { redirected }
    }

    /// Whether a branch is entered, to which launches then go.
    pub(crate) fn is_in_branch(&self) -> bool {
        !self.0.redirected.load(Ordering::Relaxed).is_null()
    }

    /// The stream beside which branches are.
    pub(super) fn main_stream(&self) -> CUstream {
        self.0.stream
    }

    /// Has work go to `stream`, or to the device's own again if that is null. Steps are captured by one thread.
    pub(super) fn redirect(&self, stream: CUstream) {
        self.0.redirected.store(stream, Ordering::Relaxed);
    }

    pub(super) fn context(&self) -> CUcontext {
        self.0.context
    }

    /// The GPU as the driver counts it.
    pub(super) fn number(&self) -> CUdevice {
        self.0.handle
    }

    pub(super) fn mapped(&self) -> &MappedList {
        &self.0.mapped
    }

    pub(super) fn modules(&self) -> &Modules {
        &self.0.modules
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.0.compiler
    }

    /// Makes the context current on this thread. Steps run on changing threads, so every call does so first: it costs
    /// less than remembering safely which thread has which context.
    pub(crate) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { result::ctx::set_current(self.0.context) }
    }

    /// A call that can fail: returns a kept error first, binds, and names the call in its own error.
    pub(super) fn call<T>(&self, doing: &str, call: impl FnOnce() -> Result<T, DriverError>) -> Result<T> {
        self.check()?;
        self.bind().and_then(|()| call()).map_err(|error| self.error(doing, error))
    }

    /// For `drop`, which cannot return an error: binds, calls, and only logs a failure.
    pub(super) fn call_logged(&self, doing: &str, call: impl FnOnce() -> Result<(), DriverError>) {
        log_failure(doing, self.bind().and_then(|()| call()));
    }

    /// The error of a refused call. Launches allocate too: modules and graphs are loaded when they are first used.
    pub(crate) fn error(&self, doing: &str, error: DriverError) -> Error {
        if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let free = result::mem_get_info().map_or(0, |(free, _)| free);
            return Error::DeviceMemory { device: self.name(), asked: None, free, total: self.facts().total_bytes };
        }
        Error::Cuda { device: self.name(), doing: doing.to_string(), why: probe::describe(error) }
    }

    /// "cuda:0 (NVIDIA H200)".
    pub(crate) fn name(&self) -> String {
        format!("cuda:{} ({})", self.0.facts.ordinal, self.0.facts.name)
    }

    fn pending_error(&self) -> std::sync::MutexGuard<'_, Option<Error>> {
        self.0.pending_error.lock().expect("nothing panics while it holds this lock")
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // SAFETY: the last user of context and stream; modules go first because they belong to the context.
        let closed = unsafe {
            result::ctx::set_current(self.context).and_then(|()| {
                self.modules.unload();
                result::stream::destroy(self.stream)?;
                result::primary_ctx::release(self.handle)
            })
        };
        log_failure("close the device", closed);
    }
}

fn log_failure(doing: &str, result: Result<(), DriverError>) {
    // The program is ending: the driver has given everything back already.
    let is_over = |error: &DriverError| error.0 == CUresult::CUDA_ERROR_DEINITIALIZED;
    if let Err(error) = result.or_else(|error| if is_over(&error) { Ok(()) } else { Err(error) }) {
        log::warn!("cannot {doing}: {}", probe::describe(error));
    }
}
