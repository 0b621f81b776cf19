//! Weights drawn from a seed, for benchmarks and tests: each element depends on seed, tensor name and index alone.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::backend::{Dtype, Uniform};
use crate::mix::{GOLDEN, fnv1a, mix};

use super::super::layout::TensorSpec;
use super::Tensor;

pub struct RandomWeights {
    pub dtype: Dtype,
    pub seed: u64,
}

impl RandomWeights {
    /// Uniform around zero with variance `1 / in` (so that activations neither grow nor fade from layer to layer); norm
    /// weights lie around one, biases within 0.1 of zero.
    pub fn draw(&self, spec: &TensorSpec) -> Uniform {
        let (centre, reach) = match spec.shape.len() {
            2 => (0.0, (3.0 / spec.cols() as f32).sqrt()),
            _ if spec.name.ends_with(".bias") => (0.0, 0.1),
            _ => (1.0, 0.1),
        };
        let stream = mix((self.seed ^ fnv1a(spec.name.as_bytes())).wrapping_add(GOLDEN));
        Uniform { stream, centre, reach }
    }

    /// What `draw` says, rounded to the dtype.
    pub fn tensor(&self, spec: &TensorSpec) -> Tensor<'static> {
        let drawn = self.draw(spec);
        let width = self.dtype.bytes();
        let mut bytes = vec![0; spec.elements() * width];
        const CHUNK: usize = 1 << 14;
        bytes.par_chunks_mut(CHUNK * width).enumerate().for_each(|(chunk, bytes)| {
            for (i, element) in bytes.chunks_exact_mut(width).enumerate() {
                let x = drawn.at(chunk * CHUNK + i);
                match self.dtype {
                    Dtype::F32 => element.copy_from_slice(&x.to_le_bytes()),
                    Dtype::F16 => element.copy_from_slice(&half::f16::from_f32(x).to_le_bytes()),
                    Dtype::Bf16 => element.copy_from_slice(&half::bf16::from_f32(x).to_le_bytes()),
                }
            }
        });
        Tensor { dtype: self.dtype, rows: spec.rows(), cols: spec.cols(), bytes: Cow::Owned(bytes) }
    }
}
