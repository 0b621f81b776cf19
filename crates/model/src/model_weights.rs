//! The weights of a model, from its folder or a seed, before they are loaded on a backend.

use std::sync::Arc;

use offshoot_backend::Dtype;
use offshoot_core::error::Result;

use super::config::{ModelConfig, ModelFolder, Modules};
use super::layout::Layout;
use super::update::WeightForm;
use super::weights::{self, RandomWeights, WeightSource};

/// The weights of a model, from which decoders are loaded.
pub struct ModelWeights {
    pub(super) config: ModelConfig,
    /// The compute dtype.
    pub(super) dtype: Dtype,
    pub(super) layout: Layout,
    /// The names of its tensors as its family publishes them.
    published: Modules,
    pub(super) source: WeightSource<'static>,
}

impl ModelWeights {
    /// The weights of a folder, by memory map. All tensors are checked against config.json.
    pub fn open(folder: &ModelFolder) -> Result<Self> {
        let (checkpoint, config, layout, dtype) = weights::open_verified(folder)?;
        checkpoint.note_left_out(&layout);
        let converts = config.compute.is_some();
        let source = WeightSource::Checkpoint { checkpoint, dtype, converts, update: None };
        Ok(Self { config, dtype, layout, published: folder.config.modules, source })
    }

    /// What updates of these weights are checked by.
    pub(super) fn form(&self) -> Result<Arc<WeightForm>> {
        let formats = match &self.source {
            WeightSource::Checkpoint { checkpoint, .. } => Some(Arc::new(checkpoint.formats(&self.layout)?)),
            WeightSource::Random(_) => None,
        };
        Ok(WeightForm::new(self.config.clone(), self.dtype, self.published, formats))
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Random ones of `dtype`, generated from `seed`.
    pub fn random(config: ModelConfig, dtype: Dtype, seed: u64) -> Self {
        let layout = Layout::of(&config);
        let source = WeightSource::Random(Box::new(RandomWeights { dtype, seed, config: config.clone() }));
        Self { published: config.modules, config, dtype, layout, source }
    }
}
