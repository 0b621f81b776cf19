//! A second stream beside the device's own, in which a part of a graph is captured that may be computed at the same
//! time as another part.

use cudarc::driver::result;
use cudarc::driver::sys::CUstream;

use super::device::Device;
use super::event::Event;
use offshoot_core::error::Result;

/// A stream that begins where `fork` was called and ends where `join` is.
pub struct Branch {
    device: Device,
    stream: CUstream,
    forked: Event,
    joined: Event,
}

// SAFETY: a handle that the driver lets any thread use.
unsafe impl Send for Branch {}
// SAFETY: as above.
unsafe impl Sync for Branch {}

/// While it lives, what is enqueued on the device goes to the branch.
pub struct InBranch<'a>(&'a Device);

impl Device {
    pub fn branch(&self) -> Result<Branch> {
        let (forked, joined) = (self.event()?, self.event()?);
        let stream = self.call("make a stream", || result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(Branch { device: self.clone(), stream, forked, joined })
    }
}

impl Branch {
    /// Has the branch begin behind all that is enqueued so far. Nothing may be in the branch.
    pub fn fork(&self) -> Result<()> {
        self.forked.record()
    }

    /// Enqueues in the branch from now on.
    pub fn enter(&self) -> Result<InBranch<'_>> {
        let inside = InBranch(&self.device);
        self.device.redirect(self.stream);
        self.device.wait_for(&self.forked)?;
        Ok(inside)
    }

    /// Has what is enqueued in the branch from now on wait for all that is enqueued beside it so far.
    pub fn wait_for_main(&self) -> Result<()> {
        self.forked.record_in(self.device.main_stream())?;
        self.device.wait_for(&self.forked)
    }

    /// Has all that is enqueued from now on begin behind the branch, which was left.
    pub fn join(&self) -> Result<()> {
        self.joined.record_in(self.stream)?;
        self.device.wait_for(&self.joined)
    }
}

impl Drop for InBranch<'_> {
    fn drop(&mut self) {
        self.0.redirect(std::ptr::null_mut());
    }
}

impl Drop for Branch {
    fn drop(&mut self) {
        // SAFETY: made in `branch`, destroyed once; the driver lets what is enqueued end.
        self.device.call_logged("destroy a stream", || unsafe { result::stream::destroy(self.stream) });
    }
}
