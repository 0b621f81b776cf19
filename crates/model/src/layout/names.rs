//! The names of a layer's tensors.

use super::tensors::{Dim, NormTensors, norm};
use crate::config::{LayerSpec, ModelConfig, Modules, Norm};

/// Makes the tensors of layer `ix`.
pub struct LayerNames<'a> {
    pub ix: usize,
    pub hidden: Dim,
    pub config: &'a ModelConfig,
    pub spec: &'a LayerSpec,
}

impl LayerNames<'_> {
    pub fn at(&self, module: &str) -> String {
        format!("model.layers.{}.{module}", self.ix)
    }

    pub fn modules(&self) -> &Modules {
        &self.config.modules
    }

    pub fn norm(&self, module: &str, kind: Norm) -> NormTensors {
        norm(&self.at(module), kind, self.hidden)
    }
}
