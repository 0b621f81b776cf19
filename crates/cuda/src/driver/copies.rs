//! Copies to the device that run while it computes: a stream beside the device's own, which waits for them.

use cudarc::driver::result;
use cudarc::driver::sys::{CUevent_wait_flags, CUstream};

use super::device::Device;
use super::event::Event;
use super::memory::{Memory, Pinned};
use offshoot_core::error::Result;

/// A stream of copies.
pub struct CopyStream {
    device: Device,
    raw: CUstream,
    /// The end of the copy enqueued last.
    done: Event,
}

// SAFETY: a handle that the driver lets any thread use.
unsafe impl Send for CopyStream {}
// SAFETY: as above.
unsafe impl Sync for CopyStream {}

impl CopyStream {
    pub fn new(device: &Device) -> Result<Self> {
        let kind = result::stream::StreamKind::NonBlocking;
        let done = device.event()?;
        let raw = device.call("make a stream", || result::stream::create(kind))?;
        Ok(Self { device: device.clone(), raw, done })
    }

    /// Enqueues a copy of the first `bytes` bytes of page-locked memory to the device. It may begin at once: nothing
    /// that is enqueued and not done may use `to`. All that is enqueued on the device from now on waits for it, and so
    /// does who waits for the device.
    pub fn upload(&self, to: &Memory, from: &Pinned, bytes: usize) -> Result<()> {
        assert!(bytes <= to.bytes(), "{bytes} bytes copied to {} of device memory", to.bytes());
        let from = &from[..bytes];
        // SAFETY: both ranges hold as many bytes; `Pinned::drop` waits for the device, which waits for the copy.
        self.device.call("upload", || unsafe { result::memcpy_htod_async(to.address(), from, self.raw) })?;
        self.done.record_in(self.raw)?;
        let waits = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: streams and event live.
        self.device.call("wait for a copy", || unsafe {
            result::stream::wait_event(self.device.stream(), self.done.raw(), waits)
        })
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; the driver ends its copies first.
        self.device.call_logged("destroy a stream", || unsafe { result::stream::destroy(self.raw) });
    }
}
