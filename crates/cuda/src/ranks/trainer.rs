//! A communicator of NCCL with another process, a trainer: the trainer is its rank 0 and broadcasts, this process is
//! one other rank and receives into device memory, or by it into host memory where the device has too little to spare.
//! How the two found each other is left to the caller.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::nccl::{AllReduce, Comm, EndingCommunicator, SUM, check, function, load, number_of};
use crate::driver::device::Device;
use crate::driver::memory::Memory;
use crate::memory::lent::Lender;
use offshoot_backend::{Dtype, MemoryBlock};
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
    lender: Lender,
    comm: Comm,
    /// Held by who calls NCCL with the communicator.
    calls: Mutex<()>,
    is_over: AtomicBool,
    /// Device memory through which blocks pass to the host, where the device has none to spare for them.
    passage: Mutex<Option<Memory>>,
}

/// How long the end waits for a call that enqueues: one that waits for the trainer does not return before the end.
const LAST_CALL: Duration = Duration::from_secs(1);

// SAFETY: a communicator may be used from any thread, by one at a time, whoever holds `calls`; but for its end, which
// NCCL lets another thread call beside a call that waits.
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
        let lender = Lender::open(ordinal)?;
        let joined = within(patience, "join the trainer's communicator", move || {
            let shared = Shared::join(lender, id, rank, world)?;
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
    pub fn receive(&mut self, bytes: usize) -> Result<MemoryBlock> {
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
    fn join(lender: Lender, id: [u8; 128], rank: usize, world: usize) -> Result<Shared> {
        let device = lender.device();
        let (library, version) = load(device)?;
        device.bind().map_err(|error| device.error("call NCCL", error))?;
        let mut comm: Comm = ptr::null_mut();
        // SAFETY: one place, and an id of NCCL's size by value.
        let status = unsafe {
            let join = function::<CommInitRank>(&library, b"ncclCommInitRank\0")?;
            let id = UniqueId(id.map(|byte| byte as c_char));
            join(&raw mut comm, world as c_int, id, rank as c_int)
        };
        check(&library, version, "join a trainer", status)?;
        let (calls, is_over) = (Mutex::default(), AtomicBool::new(false));
        Ok(Shared { library, version, lender, comm, calls, is_over, passage: Mutex::default() })
    }

    fn device(&self) -> &Device {
        self.lender.device()
    }

    /// Ends the communicator, once, also where a call waits for the trainer.
    fn end(&self) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        // From here on no call begins; one that has begun either returns soon, or waits for the trainer.
        let until = Instant::now() + LAST_CALL;
        let is_called = || matches!(self.calls.try_lock(), Err(TryLockError::WouldBlock));
        while is_called() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let (library, device) = (self.library.clone(), self.device().clone());
        EndingCommunicator { library, device, comm: self.comm }.abort();
    }

    /// Calls NCCL with the communicator unless that has ended. `call` enqueues on the device's stream and does not
    /// wait.
    fn enqueue(&self, doing: &str, call: impl FnOnce(Comm, CUstream) -> Result<c_int>) -> Result<()> {
        let _calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_over.load(Ordering::Acquire) {
            return Err(Error::value("the trainer's communicator", "one that is in use", "one that has failed"));
        }
        self.device().bind().map_err(|error| self.device().error("call NCCL", error))?;
        check(&self.library, self.version, doing, call(self.comm, self.device().stream())?)
    }

    /// What all ranks do first: they add up one number.
    fn add_up_one(&self) -> Result<()> {
        let one = self.device().alloc(size_of::<f32>())?;
        let at = one.address() as *mut c_void;
        self.enqueue("add up", |comm, stream| {
            let add_up = function::<AllReduce>(&self.library, b"ncclAllReduce\0")?;
            // SAFETY: one number lies at the address, which the stream's work may change; the communicator lives.
            Ok(unsafe { add_up(at, at, 1, number_of(Dtype::F32), SUM, comm, stream) })
        })?;
        self.device().synchronise()
    }

    /// The next broadcast fills the first `bytes` bytes of `memory`, which is waited for.
    fn broadcast(&self, doing: &str, memory: &Memory, bytes: usize) -> Result<()> {
        assert!(bytes <= memory.bytes(), "a broadcast of {bytes} bytes into {}", memory.bytes());
        let at = memory.address() as *mut c_void;
        self.enqueue(doing, |comm, stream| {
            let broadcast = function::<Broadcast>(&self.library, b"ncclBroadcast\0")?;
            // SAFETY: as many bytes lie at the address, which the stream's work may change; the communicator lives.
            Ok(unsafe { broadcast(at, at, bytes, BYTES, TRAINER, comm, stream) })
        })?;
        self.device().synchronise()
    }

    fn receive(&self, bytes: usize) -> Result<MemoryBlock> {
        const DOING: &str = "receive a broadcast";
        if let Some(memory) = self.lender.spare(bytes)? {
            self.broadcast(DOING, &memory, bytes)?;
            return Ok(MemoryBlock::Device(self.lender.given(memory)));
        }
        let mut passage = self.passage.lock().unwrap_or_else(PoisonError::into_inner);
        if passage.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            *passage = None;
            *passage = Some(self.device().alloc(bytes)?);
        }
        let memory = passage.as_ref().expect("it was allocated above");
        self.broadcast(DOING, memory, bytes)?;
        self.lender.download(memory, 0..bytes).map(MemoryBlock::Host)
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
            let memory = self.device().alloc(bytes.len())?;
            self.device().upload(&memory, 0, bytes)?;
            self.broadcast("broadcast", &memory, bytes.len())
        }
    }

    fn bytes_of(block: MemoryBlock) -> Vec<u8> {
        match block {
            MemoryBlock::Host(bytes) => bytes,
            MemoryBlock::Device(memory) => memory.download(0..memory.bytes()).expect("the device works"),
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
            let trainer = Shared::join(Lender::open(0)?, id, 0, 2)?;
            trainer.add_up_one()?;
            sent.iter().try_for_each(|block| trainer.send(block))?;
            // It lives on, and says no more, until the other has given up.
            let _ = silence.recv();
            Ok::<(), Error>(())
        });
        let mut comm = TrainerComm::join(1, id, 1, 2, PATIENCE).expect("both join");
        for block in &blocks {
            let received = comm.receive(block.len()).expect("it is broadcast");
            assert!(matches!(received, MemoryBlock::Device(_)), "an idle GPU has memory to spare");
            assert!(bytes_of(received) == *block, "{} bytes", block.len());
        }
        comm.patience = Duration::from_millis(500);
        assert!(comm.receive(8).is_err_and(|error| error.to_string().contains("silent")));
        assert!(comm.receive(8).is_err_and(|error| error.to_string().contains("failed")));
        drop(done);
        trainer.join().expect("no panic").expect("the trainer sends");
    }
}
