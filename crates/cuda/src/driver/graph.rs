//! A captured sequence of launches and copies that is enqueued with one call. Addresses and grids are fixed; values
//! that vary from launch to launch are read from memory.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    CUgraphExec, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::device::Device;
use offshoot_core::error::Result;

/// A captured graph, ready to launch. Its owner keeps the memory and functions that it uses.
pub struct Graph {
    device: Device,
    raw: CUgraphExec,
}

// SAFETY: the driver lets any thread use it, one at a time; `launch` takes the device's stream, which orders launches.
unsafe impl Send for Graph {}

impl Device {
    /// Records what `ops` enqueue instead of running it. `ops` must not wait for the device, and copies from host
    /// memory must be from page-locked memory that outlives the graph.
    pub fn capture(&self, ops: impl FnOnce() -> Result<()>) -> Result<Graph> {
        // Relaxed: kernels may be loaded and memory allocated by `ops`; only this stream is recorded.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives.
        self.call("start a graph", || unsafe { result::stream::begin_capture(self.stream(), mode) })?;
        let recorded = ops().and_then(|()| self.check());
        // SAFETY: the capture was begun above; it must end even when `ops` failed.
        let graph = self.bind().and_then(|()| unsafe { result::stream::end_capture(self.stream()) });
        let instantiated = graph.and_then(|graph| {
            if graph.is_null() {
                return Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
            }
            // SAFETY: the graph was made just now and is destroyed once; what is made of it does not need it.
            unsafe {
                let exec = result::graph::instantiate(graph, CUgraphInstantiate_flags(0));
                result::graph::destroy(graph).and(exec)
            }
        });
        let graph = instantiated.map(|raw| Graph { device: self.clone(), raw });
        recorded?;
        graph.map_err(|error| self.error("capture a graph", error))
    }

    /// Whether enqueued work is now recorded instead of run.
    pub fn is_capturing(&self) -> Result<bool> {
        // SAFETY: the stream lives.
        let status = self.call("ask about a graph", || unsafe { result::stream::is_capturing(self.stream()) })?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

impl Graph {
    /// Brings it to the device, which its first launch does otherwise, and waits for that.
    pub fn upload(&self) -> Result<()> {
        // SAFETY: graph and stream live.
        self.device.call("upload a graph", || unsafe { result::graph::upload(self.raw, self.device.stream()) })?;
        self.device.synchronise()
    }

    /// Enqueues all that was captured.
    pub fn launch(&self) -> Result<()> {
        // SAFETY: graph and stream live.
        self.device.call("launch a graph", || unsafe { result::graph::launch(self.raw, self.device.stream()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `capture`, destroyed once; the driver lets a running launch end.
        self.device.call_logged("destroy a graph", || unsafe { result::graph::exec_destroy(self.raw) });
    }
}
