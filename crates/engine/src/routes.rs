//! The experts that a mixture's layers have chosen for the tokens of a branch ([`TokenRoutes`]), as an extend's end
//! tells them. They lie beside keys and values, in the same slots, so that tokens which branches share are routed once;
//! this file reads them from there.
#![warn(missing_docs)]

use serde::{Deserialize, Serialize};

use crate::branch::{Branch, BranchWork};
use crate::engine::Engine;
use offshoot_core::error::Result;
use offshoot_core::ids::{BranchId, SegmentId};
use offshoot_kv::{KvSlot, PrefixTree};

/// The experts that were chosen for each of a branch's tokens, from its first one on, in each layer of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRoutes {
    /// `[tokens, expert_layers.len(), chosen]`
    ids: Vec<u16>,
    /// The layers with experts.
    expert_layers: Vec<usize>,
    /// Layers of the model.
    layers: usize,
    /// Experts of a layer that are chosen for a token.
    chosen: usize,
    /// Experts of a layer, at most.
    experts: usize,
}

impl TokenRoutes {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len() / (self.expert_layers.len() * self.chosen).max(1)
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Tokens, layers of the model, and experts chosen for a token in each: the shape of [`bytes`](Self::bytes).
    pub fn shape(&self) -> [usize; 3] {
        [self.len(), self.layers, self.chosen]
    }

    /// The layers of the model that have experts.
    pub fn expert_layers(&self) -> &[usize] {
        &self.expert_layers
    }

    /// Bytes of an id in [`bytes`](Self::bytes): 1 where no layer has more than 256 experts, else 2.
    pub fn id_bytes(&self) -> usize {
        if self.experts <= 1 << u8::BITS { 1 } else { 2 }
    }

    /// The experts of token number `token` in layer `layer` of the model, the likeliest first; none where that layer
    /// has no experts.
    pub fn experts(&self, token: usize, layer: usize) -> &[u16] {
        match self.expert_layers.binary_search(&layer) {
            Ok(number) => &self.ids[(token * self.expert_layers.len() + number) * self.chosen..][..self.chosen],
            Err(_) => &[],
        }
    }

    /// The ids of the tokens from number `from` on, by token, layer of the model and place, the likeliest first, the
    /// lower byte first; zeros in layers without experts, as trainers read them.
    pub fn bytes(&self, from: usize) -> Vec<u8> {
        let (of_layer, bytes) = (self.chosen * self.id_bytes(), self.id_bytes());
        let mut all = Vec::with_capacity(self.len().saturating_sub(from) * self.layers * of_layer);
        for token in from..self.len() {
            for layer in 0..self.layers {
                let end = all.len() + of_layer;
                for id in self.experts(token, layer) {
                    all.extend_from_slice(&id.to_le_bytes()[..bytes]);
                }
                all.resize(end, 0);
            }
        }
        all
    }
}

impl Engine {
    /// Reads the experts of the tokens of a branch that is about to end its extend, where its request asked for them.
    /// There are none of tokens whose keys and values the branch does not have: those of one that is cancelled while it
    /// waits.
    pub(super) fn note_routes(&mut self, id: BranchId) -> Result<()> {
        let Some(shape) = self.model_facts.routes else { return Ok(()) };
        let Some(branch) = self.branches.get(&id) else { return Ok(()) };
        let Some((segment, tokens)) = routed(branch, &self.cache.prefix) else { return Ok(()) };
        let slots = slots_of(&self.cache.prefix, segment, tokens);
        let config = self.model.config();
        let (expert_layers, layers) = (config.expert_layers(), config.layers.len());
        let ids = self.model.read_routes(&slots)?;
        let routes = TokenRoutes { ids, expert_layers, layers, chosen: shape.chosen, experts: shape.experts };
        if let Some(Branch { work: BranchWork::Sample(sampling), .. }) = self.branches.get_mut(&id) {
            sampling.routes = Some(routes);
        }
        Ok(())
    }
}

/// The segment at the end of a branch's path, and how many of its tokens were computed while they were sampled from:
/// all but the last one, which no other followed; `None` if they are not asked for, or not there.
fn routed(branch: &Branch, prefix: &PrefixTree) -> Option<(SegmentId, u32)> {
    let BranchWork::Sample(sampling) = &branch.work else { return None };
    let segment = branch.lease().filter(|_| sampling.rules.params.routes)?.segment;
    // One that is not kept followed the last token.
    let tokens = branch.tokens.len().saturating_sub(usize::from(sampling.stop_token.is_none()));
    let tokens = u32::try_from(tokens).expect("a context has fewer than 2^32 tokens");
    (prefix.computed(segment) >= tokens).then_some((segment, tokens))
}

/// The slots of the first tokens of a path, in the pages that hold all positions.
fn slots_of(prefix: &PrefixTree, segment: SegmentId, tokens: u32) -> Vec<KvSlot> {
    let parts = prefix.page_parts(segment, 0..tokens);
    let slots = parts.flat_map(|(_, page, positions)| {
        positions.map(move |position| KvSlot { page, slot: position % prefix.page_tokens() })
    });
    slots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_without_experts_have_zeros() {
        let routes = |experts| TokenRoutes {
            ids: vec![3, 1, 4, 0, 2, 5, 1, 2],
            expert_layers: vec![1, 3],
            layers: 4,
            chosen: 2,
            experts,
        };
        assert_eq!((routes(8).shape(), routes(8).id_bytes()), ([2, 4, 2], 1));
        assert_eq!(routes(8).bytes(0), [0, 0, 3, 1, 0, 0, 4, 0, 0, 0, 2, 5, 0, 0, 1, 2]);
        assert_eq!(routes(8).bytes(1), [0, 0, 2, 5, 0, 0, 1, 2]);
        assert_eq!(routes(300).bytes(1), [0, 0, 0, 0, 2, 0, 5, 0, 0, 0, 0, 0, 1, 0, 2, 0]);
        assert_eq!((routes(8).experts(0, 3), routes(8).experts(0, 2)), (&[4, 0][..], &[][..]));
        assert!(routes(8).bytes(2).is_empty());
    }
}
