//! Launches of kernels on a device's stream.

use std::ffi::c_void;
use std::fmt;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    self, CUlaunchAttribute, CUlaunchAttributeID as LaunchAttribute, CUlaunchAttributeValue as LaunchValue,
    CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterSize, CUlaunchConfig,
};

use super::args::Args;
use super::device::Device;
use super::function::Function;

/// The first generation whose kernels may begin early.
const HOPPER: u32 = 9;

impl Device {
    /// Enqueues a kernel: `grid` blocks of `block` threads with `shared` bytes of dynamic shared memory. An error is
    /// kept for the next `check`. A grid without blocks is nothing to do. Panics when `args` do not fit the kernel's
    /// parameters.
    pub fn launch(&self, function: &Function, grid: [u32; 3], block: u32, shared: usize, args: &Args) {
        let launched = |parameters: &mut [*mut c_void]| {
            let [x, y, z] = grid;
            // SAFETY: function and stream live; the arguments are as many and as large as the parameters, and the
            // driver reads them before it returns. That addresses and grids suit the kernel is for its launcher to see
            // to.
            unsafe {
                let (shared, stream) = (small_bytes(shared), self.stream());
                result::launch_kernel(function.raw(), (x, y, z), (block, 1, 1), shared, stream, parameters)
            }
        };
        if !grid.contains(&0) {
            self.enqueue(function, &format_args!("grid {grid:?}, {block} threads, {shared}"), args, launched);
        }
    }

    /// Enqueues a kernel as `launch` does: `grid[0]` blocks in clusters of `grid[1]`. The kernel may begin before the
    /// one in front of it has ended: it waits for that one itself before it reads what others write
    /// (kernels/overlap.cuh). What it reads before was written before that one began. GPUs before Hopper, which have no
    /// clusters, begin it behind that one. Panics if the clusters do not divide the blocks.
    pub fn launch_early(&self, function: &Function, grid: [u32; 2], block: u32, shared: usize, args: &Args) {
        let [blocks, cluster] = grid;
        if self.facts().major < HOPPER {
            assert_eq!(cluster, 1, "{function}: clusters on {}", self.name());
            return self.launch(function, [blocks, 1, 1], block, shared, args);
        }
        assert!(blocks.is_multiple_of(cluster), "{function}: {blocks} blocks in clusters of {cluster}");
        let attribute = |id, value| CUlaunchAttribute { id, pad: [0; 4], value };
        let clusters = LaunchValue { clusterDim: ClusterSize { x: cluster, y: 1, z: 1 } };
        let early = LaunchValue { programmaticStreamSerializationAllowed: 1 };
        let mut attributes = [
            attribute(LaunchAttribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, clusters),
            attribute(LaunchAttribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, early),
        ];
        let config = CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: small_bytes(shared),
            hStream: self.stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let launched = |parameters: &mut [*mut c_void]| {
            // SAFETY: as in `launch`; the attributes live.
            unsafe { sys::cuLaunchKernelEx(&config, function.raw(), parameters.as_mut_ptr(), std::ptr::null_mut()) }
                .result()
        };
        if blocks > 0 {
            let how = format_args!("{blocks} blocks in clusters of {cluster}, {block} threads, {shared}");
            self.enqueue(function, &how, args, launched);
        }
    }

    fn enqueue(
        &self,
        function: &Function,
        how: &fmt::Arguments<'_>,
        args: &Args,
        launch: impl FnOnce(&mut [*mut c_void]) -> std::result::Result<(), DriverError>,
    ) {
        function.assert_takes(args);
        let mut parameters = args.addresses();
        if let Err(error) = self.bind().and_then(|()| launch(&mut parameters)) {
            let what = format!("launch {function} with {how} bytes shared");
            self.keep(self.error(&what, error));
        }
    }
}

/// What no kernel can have is refused by the driver.
fn small_bytes(shared: usize) -> u32 {
    u32::try_from(shared).unwrap_or(u32::MAX)
}
