//! A communicator of NCCL with another process, a trainer: the trainer is its rank 0 and broadcasts, this process is
//! one other rank and receives into host memory. How the two found each other is left to the caller.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::nccl::{AllReduce, Comm, EndingCommunicator, SUM, check, function, load, number_of};
use crate::driver::device::Device;
use crate::driver::memory::Memory;
use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([c_char; 128]);

type CommInitRank = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
type Broadcast = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;

/// `ncclUint8`.
const BYTES: c_int = 1;
/// The rank that broadcasts.
const TRAINER: c_int = 0;

/// A communicator with a trainer, on a GPU of this process.
pub struct TrainerComm {
    shared: Arc<Shared>,
    /// How long a trainer may take for one call.
    patience: Duration,
}

struct Shared {
    library: Arc<Library>,
    version: c_int,
    device: Device,
    comm: Comm,
    is_over: AtomicBool,
}

// SAFETY: a communicator may be used from any thread, by one at a time: `TrainerComm` calls with it by `&mut self` and
// waits for each call; but for its end, which NCCL lets another thread call beside a call that still waits.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl TrainerComm {
    /// Joins the communicator of this id as rank `rank` of `world`, and takes part in its first sum, of one number.
    ///
    /// # Errors
    ///
    /// NCCL or the GPU cannot be used, or the others do not join within `patience`.
    pub fn join(ordinal: usize, id: [u8; 128], rank: usize, world: usize, patience: Duration) -> Result<TrainerComm> {
        let device = Device::open(ordinal)?;
        let joined = within(patience, "join the trainer's communicator", move || {
            let shared = Shared::join(device, id, rank, world)?;
            shared.add_up_one()?;
            Ok(shared)
        })?;
        Ok(TrainerComm { shared: Arc::new(joined), patience })
    }

    /// The next `bytes` bytes that the trainer broadcasts.
    ///
    /// # Errors
    ///
    /// The device lacks memory or fails, or the trainer does not broadcast them in time; nothing comes any more then.
    pub fn receive(&mut self, bytes: usize) -> Result<Vec<u8>> {
        if self.shared.is_over.load(Ordering::Acquire) {
            return Err(Error::value("the trainer's communicator", "one that is in use", "one that has failed"));
        }
        let shared = self.shared.clone();
        let received = within(self.patience, "receive from the trainer", move || shared.receive(bytes));
        // A call that still waits ends with the communicator.
        received.inspect_err(|_| self.shared.end())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn join(device: Device, id: [u8; 128], rank: usize, world: usize) -> Result<Shared> {
        let (library, version) = load(&device)?;
        device.bind().map_err(|error| device.error("call NCCL", error))?;
        let mut comm: Comm = ptr::null_mut();
        // SAFETY: one place, and an id of NCCL's size by value.
        let status = unsafe {
            let join = function::<CommInitRank>(&library, b"ncclCommInitRank\0")?;
            let id = UniqueId(id.map(|byte| byte as c_char));
            join(&raw mut comm, world as c_int, id, rank as c_int)
        };
        check(&library, version, "join a trainer", status)?;
        Ok(Shared { library, version, device, comm, is_over: AtomicBool::new(false) })
    }

    /// Ends the communicator, once, also where a call waits for the trainer.
    fn end(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            EndingCommunicator { library: self.library.clone(), device: self.device.clone(), comm: self.comm }.abort();
        }
    }

    /// What all ranks do first: they add up one number.
    fn add_up_one(&self) -> Result<()> {
        let one = self.memory(size_of::<f32>())?;
        let at = one.address() as *mut c_void;
        // SAFETY: one number lies at the address, which the stream's work may change.
        let status = unsafe {
            let add_up = function::<AllReduce>(&self.library, b"ncclAllReduce\0")?;
            add_up(at, at, 1, number_of(Dtype::F32), SUM, self.comm, self.device.stream())
        };
        check(&self.library, self.version, "add up", status)?;
        self.device.synchronise()
    }

    fn receive(&self, bytes: usize) -> Result<Vec<u8>> {
        let memory = self.memory(bytes)?;
        let at = memory.address() as *mut c_void;
        // SAFETY: as many bytes lie at the address, which the stream's work may change.
        let status = unsafe {
            let broadcast = function::<Broadcast>(&self.library, b"ncclBroadcast\0")?;
            broadcast(at, at, bytes, BYTES, TRAINER, self.comm, self.device.stream())
        };
        check(&self.library, self.version, "receive a broadcast", status)?;
        self.device.download(&memory, 0..bytes)
    }

    fn memory(&self, bytes: usize) -> Result<Memory> {
        self.device.bind().map_err(|error| self.device.error("call NCCL", error))?;
        self.device.alloc(bytes)
    }
}

/// What `work` returns, if it does so in time. A thread that waits for a trainer which is gone waits on by itself.
fn within<T: Send + 'static>(
    patience: Duration,
    doing: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = sync_channel(1);
    let named = thread::Builder::new().name("trainer".to_owned());
    // Who waited may be gone.
    named.spawn(move || drop(sender.send(work()))).map_err(Error::io("a thread", "start"))?;
    receiver.recv_timeout(patience).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => {
            let expected = format!("one that answers within {} s, to {doing}", patience.as_secs_f64());
            Err(Error::value("a trainer", expected, "one that is silent"))
        }
        RecvTimeoutError::Disconnected => {
            Err(Error::Internal("the thread that waits for a trainer panicked".to_owned()))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::probe::probe;

    type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;

    const PATIENCE: Duration = Duration::from_secs(120);

    impl Shared {
        /// Broadcasts as a trainer does.
        fn send(&self, bytes: &[u8]) -> Result<()> {
            let memory = self.memory(bytes.len())?;
            self.device.upload(&memory, 0, bytes)?;
            let at = memory.address() as *mut c_void;
            // SAFETY: as many bytes lie at the address.
            let status = unsafe {
                let broadcast = function::<Broadcast>(&self.library, b"ncclBroadcast\0")?;
                broadcast(at, at, bytes.len(), BYTES, TRAINER, self.comm, self.device.stream())
            };
            check(&self.library, self.version, "broadcast", status)?;
            self.device.synchronise()
        }
    }

    /// A new id, made on the first of two GPUs, or why there is none.
    fn new_id() -> Result<[u8; 128]> {
        let gpus = probe()?.into_iter().filter(|gpu| gpu.is_ok()).count();
        if gpus < 2 {
            return Err(Error::value("GPUs", "two, for a trainer and an engine", gpus.to_string()));
        }
        let (library, version) = load(&Device::open(0)?)?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: one place of the id's size.
        let status = unsafe { function::<GetUniqueId>(&library, b"ncclGetUniqueId\0")?(&raw mut id) };
        check(&library, version, "make an id", status)?;
        Ok(id.0.map(|byte| byte as u8))
    }

    #[test]
    fn cuda_what_a_trainer_broadcasts_is_received_and_a_silent_one_is_left() {
        let id = match new_id() {
            Ok(id) => id,
            Err(why) => return crate::skip::skipped(why),
        };
        let blocks: Vec<Vec<u8>> =
            [1, 4097, 3 << 20].map(|bytes| (0..bytes).map(|at| (at % 251) as u8).collect()).into();
        let (done, silence) = std::sync::mpsc::channel::<()>();
        let sent = blocks.clone();
        let trainer = thread::spawn(move || {
            let trainer = Shared::join(Device::open(0)?, id, 0, 2)?;
            trainer.add_up_one()?;
            sent.iter().try_for_each(|block| trainer.send(block))?;
            // It lives on, and says no more, until the other has given up.
            let _ = silence.recv();
            Ok::<(), Error>(())
        });
        let mut comm = TrainerComm::join(1, id, 1, 2, PATIENCE).expect("both join");
        for block in &blocks {
            assert!(comm.receive(block.len()).expect("it is broadcast") == *block, "{} bytes", block.len());
        }
        comm.patience = Duration::from_millis(500);
        assert!(comm.receive(8).is_err_and(|error| error.to_string().contains("silent")));
        assert!(comm.receive(8).is_err_and(|error| error.to_string().contains("failed")));
        drop(done);
        trainer.join().expect("no panic").expect("the trainer sends");
    }
}
