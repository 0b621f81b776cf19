//! Random weights for benchmarks and tests. Each element depends on seed, tensor name and index only.

use offshoot_backend::{
    Dtype, MatrixPart, QuantFormat, QuantSource, QuantView, RandomWeight, Rounding, Uniform, WeightFormat,
};
use offshoot_core::mix::{GOLDEN, fnv1a, mix};

use super::super::config::ModelConfig;
use super::super::layout::TensorSpec;

/// A model's weights, generated from a seed.
pub struct RandomWeights {
    pub dtype: Dtype,
    pub seed: u64,
    /// Says which matrices are quantised.
    pub config: ModelConfig,
}

impl RandomWeights {
    /// The tensors of `specs`, to be stacked.
    pub fn parts(&self, specs: &[TensorSpec]) -> Vec<MatrixPart<'static>> {
        let part = |spec: &TensorSpec| self.part(spec, self.config.format(spec, self.dtype));
        specs.iter().map(part).collect()
    }

    /// A tensor in this format.
    pub fn part(&self, spec: &TensorSpec, format: WeightFormat) -> MatrixPart<'static> {
        let random = self.tensor(spec);
        match format {
            WeightFormat::Dense(_) | WeightFormat::Blocks(_) => MatrixPart::Random(random),
            WeightFormat::Quantised(format) => {
                // Zero points and static scales are those of codes made at load: none.
                let rounding = match format.rounding {
                    Rounding::Static { to } => Rounding::Dynamic { to, group: None },
                    rounding => rounding,
                };
                let format = QuantFormat { rounding, ..format };
                MatrixPart::Quantised(QuantView::of(format, random.rows, random.cols, QuantSource::Random(random)))
            }
        }
    }

    /// Matrices are uniform around zero with variance `1 / in`, which keeps the scale of activations from layer to
    /// layer. Norm weights are within 0.1 of one, biases within 0.1 of zero.
    ///
    /// Where the embedding table is not the output layer too, its variance is 1, and that of the matrices that write
    /// the residual stream is divided by their number, two a layer (Radford et al., "Language Models are Unsupervised
    /// Multitask Learners", section 2.3). A row then stays its own token's through all layers, and routers spread rows
    /// over the experts as trained ones do; otherwise rows behind one prompt become alike and choose the same few.
    fn tensor(&self, spec: &TensorSpec) -> RandomWeight {
        let inputs = spec.cols() as f32;
        let untied = !self.config.tied_embeddings;
        // Of numbers uniform in [-reach, reach).
        let reach = |variance: f32| (3.0 * variance).sqrt();
        let (centre, reach) = match spec.shape.len() {
            _ if spec.name.ends_with("bias") => (0.0, 0.1),
            1 => (1.0, 0.1),
            _ if untied && spec.is_embedding() => (0.0, reach(1.0)),
            _ if untied && spec.writes_residual() => {
                (0.0, reach(1.0 / (inputs * 2.0 * self.config.layers.len() as f32)))
            }
            _ => (0.0, reach(1.0 / inputs)),
        };
        let stream = mix((self.seed ^ fnv1a(spec.name.as_bytes())).wrapping_add(GOLDEN));
        let numbers = Uniform { stream, centre, reach };
        RandomWeight::of(self.dtype, spec.rows(), spec.cols(), numbers)
    }
}
