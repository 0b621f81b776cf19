//! Linear layers: cuBLASLt for every shape it has an algorithm for, kernels/linear_any.cu for the rest. Descriptors and
//! algorithms are kept by shape, so that a steady step only enqueues.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::args::Args;
use super::buffer::Buffer;
use super::cublaslt::{Library, Operands, Product, Shape};
use super::device::Device;
use super::function::Function;
use super::ops::{LANE_BLOCK, lane_blocks, small};
use super::units;
use super::weights::{Matrix, Vector};
use crate::backend::Dtype;
use crate::error::Result;

/// Rows and columns of the outputs of a block of `linear_any`, as in the kernel.
const TILE: u32 = 16;

/// The products of weights of one element type.
pub struct Gemm {
    device: Device,
    library: Library,
    /// `None` where the library has no algorithm.
    products: HashMap<Shape, Option<Product>>,
    add_bias: ByOut,
    linear_any: ByOut,
    linear_any_accumulating: Function,
}

/// A kernel for results in the dtype of the weights, and for f32 ones.
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
    pub fn load(device: &Device, element: Dtype) -> Result<Self> {
        device.prepare(&units::gemm(element))?;
        let add_bias = |out| device.function(&units::add_bias(out), "add_bias");
        let linear_any = |out, accumulate| device.function(&units::linear_any(element, out, accumulate), "linear_any");
        Ok(Self {
            device: device.clone(),
            library: Library::open(device)?,
            products: HashMap::new(),
            add_bias: ByOut { operands: add_bias(element)?, sums: add_bias(Dtype::F32)? },
            linear_any: ByOut { operands: linear_any(element, false)?, sums: linear_any(Dtype::F32, false)? },
            linear_any_accumulating: linear_any(Dtype::F32, true)?,
        })
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
        assert_eq!(x.element, w.dtype, "linear: dtypes of operand and weights");
        assert!(bias.is_none_or(|bias| bias.len == w.outputs), "linear: length of the bias");
        if out.rows == 0 {
            return;
        }
        if let Err(error) = self.enqueue(out, x, w, bias, accumulate) {
            self.device.keep(error);
        }
    }

    /// The library adds the bias before it rounds. Where it cannot, or has the bias only in another dtype, a kernel of our own
    /// adds it after: then a result that is not f32 is rounded twice.
    fn enqueue(&mut self, out: &Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>, accumulate: bool) -> Result<()> {
        let Matrix { outputs, inner, dtype: element, .. } = *w;
        let shape = Shape { rows: out.rows, outputs, inner, element, out: out.element, accumulate, biased: false };
        let operands = Operands { out: out.memory(), x: x.memory(), w: &w.memory, bias: None };
        if let Some(bias) = bias.and_then(|bias| bias.as_dtype(out.element)) {
            let biased = Shape { biased: true, ..shape };
            if let Some(product) = planned(&mut self.products, &self.library, biased)? {
                return product.enqueue(&self.library, &Operands { bias: Some(bias), ..operands });
            }
        }
        match planned(&mut self.products, &self.library, shape)? {
            Some(product) => product.enqueue(&self.library, &operands)?,
            None => self.launch_linear_any(&shape, &operands),
        }
        if let Some(bias) = bias {
            self.launch_add_bias(out, bias);
        }
        Ok(())
    }

    fn launch_linear_any(&self, shape: &Shape, operands: &Operands<'_>) {
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

/// The product of `shape`, planned now if it is new; `None` where the library has none.
fn planned<'a>(
    products: &'a mut HashMap<Shape, Option<Product>>,
    library: &Library,
    shape: Shape,
) -> Result<Option<&'a Product>> {
    let product = match products.entry(shape) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => {
            let product = Product::plan(library, shape)?;
            if product.is_none() {
                log::debug!("cuBLASLt has no algorithm for {shape:?}");
            }
            new.insert(product)
        }
    };
    Ok(product.as_ref())
}
