//! Events: marks in the stream to wait for and to measure time between.

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};

use super::device::Device;
use offshoot_core::error::Result;

/// A mark in the device's stream.
pub struct Event {
    device: Device,
    raw: CUevent,
}

// SAFETY: a handle that the driver lets any thread use.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Device {
    pub fn event(&self) -> Result<Event> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let raw = self.call("make an event", || result::event::create(flags))?;
        Ok(Event { device: self.clone(), raw })
    }

    /// Has all that is enqueued from now on begin when the mark is reached, which may be one in another stream of the
    /// same GPU. Recording it again later changes nothing for what waits.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event live; both are of the GPU's primary context.
        self.call("wait for another stream", || unsafe { result::stream::wait_event(self.stream(), event.raw, flags) })
    }
}

impl Event {
    /// Marks the end of all work enqueued so far. Recording again moves the mark.
    pub fn record(&self) -> Result<()> {
        self.record_in(self.device.stream())
    }

    /// Marks the end of all work enqueued so far, for `drop`: an error is logged, and one that is kept stays.
    pub fn record_logged(&self) {
        // SAFETY: event and stream live.
        self.device.call_logged("record an event", || unsafe { result::event::record(self.raw, self.device.stream()) });
    }

    /// Marks the end of all work enqueued so far in `stream`, one of the device.
    pub(super) fn record_in(&self, stream: CUstream) -> Result<()> {
        // SAFETY: event and stream live.
        self.device.call("record an event", || unsafe { result::event::record(self.raw, stream) })
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Waits until the mark is reached. An event never recorded counts as reached.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event lives.
        self.device.call("wait for an event", || unsafe { result::event::synchronize(self.raw) })
    }

    /// Microseconds that `work` takes on the device: it is enqueued between this mark and `after`, which is waited for.
    pub fn us_until(&self, after: &Event, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.record()?;
        work()?;
        after.record()?;
        after.wait()?;
        self.elapsed_us(after)
    }

    /// Microseconds from this mark to `later`, both reached.
    pub fn elapsed_us(&self, later: &Event) -> Result<f64> {
        type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
        let mut milliseconds = 0f32;
        // SAFETY: the driver is loaded; every one since CUDA 4 has this function with this signature (its second
        // version, which the bindings name, is missing before CUDA 12.8). Both events live.
        self.device.call("time two events", || unsafe {
            let elapsed = sys::culib().get::<ElapsedTime>(b"cuEventElapsedTime\0");
            elapsed.expect("every driver has it")(&mut milliseconds, self.raw, later.raw).result()
        })?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `Device::event`, destroyed once.
        self.device.call_logged("destroy an event", || unsafe { result::event::destroy(self.raw) });
    }
}
