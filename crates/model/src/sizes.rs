//! The number of a model's weights, and their bytes: of all, and of those that some rows read.

use offshoot_backend::Dtype;

use super::config::{LayerSpec, ModelConfig};
use super::layout::{LayerTensors, Layout, TensorSpec};

impl ModelConfig {
    /// The number of weights; a tied embedding counts once.
    pub fn parameters(&self) -> usize {
        Layout::of(self).tensors().map(|tensor| tensor.elements()).sum()
    }

    /// The number of weights without the experts that a row does not choose.
    pub fn active_parameters(&self) -> usize {
        self.read(1, TensorSpec::elements)
    }

    /// Bytes of the weights without the experts that none of `rows` rows chooses: the mean over choices that are
    /// independent and equally likely. `dtype`: that of the tensors that are not quantised.
    pub fn weight_bytes_read(&self, rows: usize, dtype: Dtype) -> usize {
        self.read(rows, |tensor| self.format(tensor, dtype).bytes(tensor.rows(), tensor.cols()))
    }

    /// The sum of `size` over all tensors without the experts that none of `rows` rows chooses.
    fn read(&self, rows: usize, size: impl Fn(&TensorSpec) -> usize) -> usize {
        let idle = |tensors: &LayerTensors, layer: &LayerSpec| {
            let Some((experts, spec)) = tensors.experts.as_ref().zip(layer.feed_forward.experts()) else { return 0 };
            let one = experts.matrices().map(&size).sum::<usize>() / spec.count;
            let chosen = spec.router.experts_chosen(spec.count, rows);
            one * spec.count - (one as f64 * chosen).round() as usize
        };
        let layout = Layout::of(self);
        let idle: usize = layout.layers.iter().zip(&self.layers).map(|(t, layer)| idle(t, layer)).sum();
        layout.tensors().map(&size).sum::<usize>() - idle
    }

    /// Bytes of all weights as a device holds them that has the maps of latents in memory `map_copies` times
    /// (`Backend::latent_map_copies`), dense in the compute dtype `dtype`.
    pub fn held_bytes(&self, dtype: Dtype, map_copies: usize) -> usize {
        let layout = Layout::of(self);
        let maps = layout.layers.iter().filter_map(|layer| Some(layer.latent.as_ref()?.maps.elements()));
        self.weight_bytes(dtype) + (map_copies - 1) * maps.sum::<usize>() * dtype.bytes()
    }

    /// Bytes of all weights; `dtype`: that of the tensors that are not quantised.
    pub fn weight_bytes(&self, dtype: Dtype) -> usize {
        Layout::of(self).tensors().map(|tensor| self.format(tensor, dtype).bytes(tensor.rows(), tensor.cols())).sum()
    }
}
