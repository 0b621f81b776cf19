//! The kernels of grouped products for weights of one dtype, and which of them takes a launch.

use super::routes::Routes;
use crate::compile::elements::ExpertTiles;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::any_grid;
use offshoot_backend::Dtype;
use offshoot_core::error::Result;

/// The kernels for weights of one dtype.
pub struct ExpertKernels {
    device: Device,
    element: Dtype,
    any: Function,
    any_to_sums: Function,
    /// The kernels for 16-bit weights.
    products: Option<Products>,
}

/// Kernels that multiply panels, each without and with a gate.
struct Products {
    panels: Function,
    tiles: Vec<ProductKernel>,
}

/// A kernel whose tiles have up to `cap` places.
struct ProductKernel {
    cap: usize,
    plain: Function,
    gated: Function,
    threads: u32,
    shared: usize,
    blocks: u32,
}

impl ExpertKernels {
    /// Compiles the kernels, or takes them from the cache.
    pub fn load(device: &Device, element: Dtype) -> Result<Self> {
        let facts = device.facts();
        device.prepare(&units::experts(element, facts.major))?;
        let any = |out| device.function(&units::expert_linear_any(element, out), "expert_linear_any");
        let products = match element {
            Dtype::F32 => None,
            Dtype::F16 | Dtype::Bf16 => Some(Products {
                panels: device.function(&units::expert_panels(element), "expert_panels")?,
                tiles: ExpertTiles::of(facts.major)
                    .iter()
                    .map(|&tiles| ProductKernel::load(device, element, tiles))
                    .collect::<Result<_>>()?,
            }),
        };
        Ok(Self { any: any(element)?, any_to_sums: any(Dtype::F32)?, products, element, device: device.clone() })
    }

    /// The kernel that copies a matrix to panels. Only for 16-bit weights.
    pub(super) fn panels(&self) -> &Function {
        &self.products().panels
    }

    fn products(&self) -> &Products {
        self.products.as_ref().expect("16-bit weights have these kernels, and others no panels")
    }

    /// Launches the kernel with the smallest tiles that hold all places of an expert, of which there are at most as
    /// many as rows; else the one with the largest. Routers are uneven: tiles for the mean would read the weights of
    /// busy experts again and again.
    pub(super) fn launch(&self, args: Args, is_gated: bool, routes: &Routes) {
        let tiles = &self.products().tiles;
        let fitting = tiles.iter().find(|kernel| kernel.cap >= routes.rows());
        let kernel = fitting.or(tiles.last()).expect("every architecture has one");
        let function = if is_gated { &kernel.gated } else { &kernel.plain };
        let blocks = self.device.facts().multiprocessors * kernel.blocks;
        self.device.launch(function, [blocks, 1, 1], kernel.threads, kernel.shared, &args);
    }

    pub(super) fn launch_any(&self, args: Args, out: Dtype, outputs: usize, routes: &Routes) {
        let function = if out == self.element { &self.any } else { &self.any_to_sums };
        let (grid, threads) = any_grid(outputs, routes.places(), routes.multiplied());
        self.device.launch(function, grid, threads, 0, &args);
    }
}

impl ProductKernel {
    fn load(device: &Device, element: Dtype, tiles: ExpertTiles) -> Result<Self> {
        let ExpertTiles { cap, threads, shared, blocks, .. } = tiles;
        let kernel = |is_gated| device.function(&units::expert_linear(element, tiles, is_gated), tiles.name());
        Ok(Self { cap, plain: kernel(false)?, gated: kernel(true)?, threads, shared, blocks })
    }
}
