//! Weights drawn from a seed, for benchmarks and tests: each element depends on seed, tensor name and index alone.

use crate::backend::{Dtype, RandomWeight, Uniform};
use crate::mix::{GOLDEN, fnv1a, mix};

use super::super::layout::TensorSpec;

pub struct RandomWeights {
    pub dtype: Dtype,
    pub seed: u64,
}

impl RandomWeights {
    /// Uniform around zero with variance `1 / in` (so that activations neither grow nor fade from layer to layer); norm
    /// weights lie around one, biases within 0.1 of zero.
    pub fn tensor(&self, spec: &TensorSpec) -> RandomWeight {
        let (centre, reach) = match spec.shape.len() {
            2 => (0.0, (3.0 / spec.cols() as f32).sqrt()),
            _ if spec.name.ends_with(".bias") => (0.0, 0.1),
            _ => (1.0, 0.1),
        };
        let stream = mix((self.seed ^ fnv1a(spec.name.as_bytes())).wrapping_add(GOLDEN));
        let numbers = Uniform { stream, centre, reach };
        RandomWeight { dtype: self.dtype, rows: spec.rows(), cols: spec.cols(), numbers }
    }
}
