//! Linear layers: cuBLASLt for every shape it has an algorithm for, kernels/ops/linear_any.cu for the rest. Descriptors
//! and algorithms are kept by shape, so that a steady step only enqueues.

pub mod algorithm;
mod autotune;
mod batch_invariant;
pub mod chooser;
pub mod cublaslt;
mod ranking;
pub mod tune_cache;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::algorithm::Algorithm;
use self::chooser::{AlgorithmPolicy, Chooser};
use self::cublaslt::{Description, GemmOperands, GemmShape, Library};
use crate::backend::cuda::compile::units;
use crate::backend::cuda::driver::args::Args;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::function::Function;
use crate::backend::cuda::driver::grid::{LANE_BLOCK, lane_blocks, small};
use crate::backend::cuda::driver::memory::Memory;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::weights::{Matrix, Vector};
use crate::backend::{Dtype, WeightFormat};
use crate::error::Result;

/// Rows and columns of the outputs of a block of `linear_any`, as in the kernel.
const TILE: u32 = 16;

/// Weights remembered per shape, used in turn while a product is timed.
const SIBLINGS: usize = 8;

/// The products of weights in one format.
pub struct Gemm {
    device: Device,
    library: Library,
    chooser: Chooser,
    /// Whether algorithms may be timed now: the products enqueued now will recur.
    may_tune: bool,
    /// `None` if the library has no algorithm.
    products: HashMap<GemmShape, Option<PlannedProduct>>,
    /// Weights by outputs and inner width.
    siblings: HashMap<(usize, usize), Vec<Weak<Memory>>>,
    add_bias: ByOut,
    linear_any: ByOut,
    linear_any_accumulating: Function,
}

/// A product of one shape, ready to enqueue.
struct PlannedProduct {
    description: Description,
    algorithm: Algorithm,
    /// Whether it was chosen while timing was allowed; if not, it is chosen again when timing is.
    settled: bool,
}

/// The kernels for results in the compute dtype and in f32.
struct ByOut {
    operands: Function,
    sums: Function,
}

impl ByOut {
    fn of(&self, out: Dtype) -> &Function {
        if out == Dtype::F32 { &self.sums } else { &self.operands }
    }
}

impl Gemm {
    /// Uses the library's first choices until `choose` is called.
    pub fn load(device: &Device, weights: WeightFormat) -> Result<Self> {
        let element = weights.dense().expect("products of dense matrices");
        device.prepare(&units::gemm(element))?;
        let add_bias = |out| device.function(&units::add_bias(out), "add_bias");
        let linear_any = |out, accumulate| device.function(&units::linear_any(element, out, accumulate), "linear_any");
        let library = Library::open(device)?;
        Ok(Self {
            device: device.clone(),
            chooser: Chooser::new(&library, AlgorithmPolicy::First),
            library,
            may_tune: true,
            products: HashMap::new(),
            siblings: HashMap::new(),
            add_bias: ByOut { operands: add_bias(element)?, sums: add_bias(Dtype::F32)? },
            linear_any: ByOut { operands: linear_any(element, false)?, sums: linear_any(Dtype::F32, false)? },
            linear_any_accumulating: linear_any(Dtype::F32, true)?,
        })
    }

    /// Sets how algorithms are chosen, also for known products.
    pub fn choose(&mut self, choosing: AlgorithmPolicy) {
        self.products.clear();
        self.chooser = Chooser::new(&self.library, choosing);
    }

    /// Sets whether algorithms of unsettled products may be timed. A graph captured before keeps its algorithms.
    pub fn may_tune(&mut self, may_tune: bool) {
        self.may_tune = may_tune;
    }

    /// Remembers weights as long as they live; those of one shape are used in turn while a product is timed.
    pub fn remember(&mut self, w: &Matrix) {
        let siblings = self.siblings.entry((w.outputs, w.inner)).or_default();
        siblings.retain(|memory| memory.strong_count() > 0);
        if siblings.len() < SIBLINGS {
            siblings.push(Arc::downgrade(&w.memory));
        }
    }

    /// `out[r] = w x[r] (+ bias)`. An error is kept for the device's next check.
    pub fn linear(&mut self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>) {
        self.product(out, x, w, bias, false);
    }

    /// `out[r] += w x[r] (+ bias)`; `out` is f32. An error is kept for the device's next check.
    pub fn linear_add(&mut self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>) {
        assert_eq!(out.element, Dtype::F32, "linear_add: sums are f32");
        self.product(out, x, w, bias, true);
    }

    fn product(&mut self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>, accumulate: bool) {
        assert_eq!((out.rows, out.width, x.width), (x.rows, w.outputs, w.inner), "linear: shapes");
        assert_eq!(x.element, w.element(), "linear: dtype of the operand and format of the weights");
        assert!(bias.is_none_or(|bias| bias.len == w.outputs), "linear: length of the bias");
        if out.rows == 0 {
            return;
        }
        if let Err(error) = self.enqueue(out, x, w, bias, accumulate) {
            self.device.keep(error);
        }
    }

    /// The library adds the bias before rounding. If it cannot, or the bias has another dtype, a kernel of our own adds
    /// it afterwards, and a result that is not f32 is rounded twice.
    fn enqueue(&mut self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>, accumulate: bool) -> Result<()> {
        let Matrix { outputs, inner, format: weights, .. } = *w;
        let (rows, compute, result) = (out.rows, x.element, out.element);
        let shape = GemmShape { rows, outputs, inner, weights, compute, out: result, accumulate, biased: false };
        let operands = GemmOperands { out: out.memory(), x: x.memory(), w: &w.memory, bias: None };
        if let Some(bias) = bias.and_then(|bias| bias.as_dtype(out.element)) {
            let biased = GemmShape { biased: true, ..shape };
            if self.by_library(biased, GemmOperands { bias: Some(bias), ..operands })? {
                return Ok(());
            }
        }
        if !self.by_library(shape, operands)? {
            self.launch_linear_any(&shape, &operands);
        }
        if let Some(bias) = bias {
            self.launch_add_bias(out, bias);
        }
        Ok(())
    }

    /// Enqueues the product of `shape`, choosing its algorithm if it is new or not settled. Returns whether the library
    /// has one.
    fn by_library(&mut self, shape: GemmShape, operands: GemmOperands<'_>) -> Result<bool> {
        let is_planned =
            |product: &Option<PlannedProduct>| product.as_ref().is_none_or(|it| it.settled || !self.may_tune);
        let (begun, is_to_plan) = (Instant::now(), !self.products.get(&shape).is_some_and(is_planned));
        if is_to_plan {
            let product = self.plan(shape, operands)?;
            if product.is_none() {
                log::debug!("cuBLASLt has no algorithm for {shape:?}");
            }
            self.products.insert(shape, product);
        }
        let Some(PlannedProduct { description, algorithm, .. }) = &self.products[&shape] else { return Ok(false) };
        let planned = begun.elapsed();
        description.enqueue(&self.library, algorithm, &operands)?;
        if is_to_plan {
            // The library loads a kernel on its first call.
            let ms = |elapsed: Duration| 1e3 * elapsed.as_secs_f64();
            let (planned, called) = (ms(planned), ms(begun.elapsed() - planned));
            log::debug!("{shape:?} by {algorithm}: planned in {planned:.1} ms, first called in {called:.1} ms");
        }
        Ok(true)
    }

    fn plan(&mut self, shape: GemmShape, operands: GemmOperands<'_>) -> Result<Option<PlannedProduct>> {
        let siblings = self.siblings.get(&(shape.outputs, shape.inner)).into_iter().flatten();
        let siblings: Vec<Arc<Memory>> = siblings.filter_map(Weak::upgrade).collect();
        let description = Description::new(&self.library, shape)?;
        let mut algorithm =
            |may_tune| self.chooser.algorithm(&self.library, &description, operands, &siblings, may_tune);
        let algorithm = match algorithm(self.may_tune) {
            Err(error) if error.is_shortage() && self.may_tune => {
                log::debug!("{shape:?} goes as the library recommends: {error}");
                algorithm(false)?
            }
            found => found?,
        };
        Ok(algorithm.map(|algorithm| PlannedProduct { description, algorithm, settled: self.may_tune }))
    }

    fn launch_linear_any(&self, shape: &GemmShape, operands: &GemmOperands<'_>) {
        let kernel = if shape.accumulate { &self.linear_any_accumulating } else { self.linear_any.of(shape.out) };
        let (rows, outputs) = (small(shape.rows), small(shape.outputs));
        let args = Args::new().memory(operands.out).memory(operands.x).memory(operands.w);
        let args = args.u32(rows).u32(outputs).u32(small(shape.inner));
        self.device.launch(kernel, [outputs.div_ceil(TILE), rows.div_ceil(TILE), 1], TILE * TILE, 0, &args);
    }

    fn launch_add_bias(&self, out: &Buffer, bias: &Vector) {
        let width = small(out.width);
        let args = Args::new().memory(out.memory()).memory(&bias.memory).u32(width);
        let grid = [small(out.rows), lane_blocks(width), 1];
        self.device.launch(self.add_bias.of(out.element), grid, LANE_BLOCK, 0, &args);
    }
}
