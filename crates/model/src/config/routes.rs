//! Which experts of a model can be kept for each token ([`ModelConfig::route_shape`]), beside its keys and values.

use super::groups::LayerPages;
use super::layer::ExpertsSpec;
use super::model::ModelConfig;
use offshoot_backend::RouteShape;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::GroupIx;
use offshoot_core::setting::RETURN_ROUTED_EXPERTS;

impl ModelConfig {
    /// The numbers of the layers with experts.
    pub fn expert_layers(&self) -> Vec<usize> {
        let has_experts = |&layer: &usize| self.layers[layer].feed_forward.experts().is_some();
        (0..self.layers.len()).filter(has_experts).collect()
    }

    /// What is kept of the experts of each token where that is asked for.
    ///
    /// # Errors
    ///
    /// There are no experts, layers choose different numbers of them, or all layers have a window, so that pages do not
    /// last as long as their tokens.
    pub fn route_shape(&self) -> Result<RouteShape> {
        let refused = |expected: &str, found: &str| Err(Error::value(RETURN_ROUTED_EXPERTS, expected, found));
        let experts: Vec<&ExpertsSpec> = self.layers.iter().filter_map(|layer| layer.feed_forward.experts()).collect();
        let Some(first) = experts.first() else {
            return refused("a model with mixtures of experts", "a model without any");
        };
        let chosen = first.router.chosen;
        if experts.iter().any(|experts| experts.router.chosen != chosen) {
            return refused("layers that all choose equally many experts for a token", "layers that do not");
        }
        if !LayerPages::of(self).has_all_positions() {
            return refused(
                "a layer whose keys and values of all positions are kept",
                "layers that all have a sliding window, behind which pages are freed",
            );
        }
        let most = experts.iter().map(|experts| experts.routed()).max().unwrap_or(first.routed());
        Ok(RouteShape { layers: experts.len(), chosen, experts: most, group: GroupIx(0) })
    }
}
