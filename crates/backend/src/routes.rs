//! The experts of each token, kept beside its keys and values on request ([`RouteShape`]): how many there are, and the
//! bytes that they take in a page.

use offshoot_core::ids::GroupIx;

/// Pages of routes are whole runs of so many bytes, as those of keys and values are.
const PAGE_UNIT: usize = 128;

/// What is kept of the experts chosen for each token: in its slot of the pages of `group` their ids, `[layers,
/// chosen]`, the likeliest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteShape {
    /// Layers with experts.
    pub layers: usize,
    /// Experts that each of them chooses for a token.
    pub chosen: usize,
    /// The largest number of experts of a layer.
    pub experts: usize,
    /// A page group that holds all positions.
    pub group: GroupIx,
}

impl RouteShape {
    /// Ids of a token.
    pub fn ids(&self) -> usize {
        self.layers * self.chosen
    }

    /// Bytes of an id, 1 or 2; the lower one first.
    pub fn id_bytes(&self) -> usize {
        if self.experts <= 1 << u8::BITS { 1 } else { 2 }
    }

    /// Bytes of a token.
    pub fn slot_bytes(&self) -> usize {
        self.ids() * self.id_bytes()
    }

    /// Bytes of a page of `slots` slots.
    pub fn page_bytes(&self, slots: u32) -> usize {
        (slots as usize * self.slot_bytes()).next_multiple_of(PAGE_UNIT)
    }

    /// The ids in the bytes of some tokens.
    pub fn decode(&self, bytes: &[u8]) -> Vec<u16> {
        match self.id_bytes() {
            1 => bytes.iter().map(|&id| u16::from(id)).collect(),
            _ => bytes.as_chunks().0.iter().map(|&id| u16::from_le_bytes(id)).collect(),
        }
    }

    /// Writes ids to as many times `id_bytes` bytes.
    pub fn encode(&self, ids: impl Iterator<Item = u32>, bytes: &mut [u8]) {
        for (id, bytes) in ids.zip(bytes.chunks_exact_mut(self.id_bytes())) {
            bytes.copy_from_slice(&id.to_le_bytes()[..bytes.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(experts: usize) -> RouteShape {
        RouteShape { layers: 3, chosen: 2, experts, group: GroupIx(0) }
    }

    #[test]
    fn ids_take_as_many_bytes_as_there_are_experts() {
        assert_eq!([1, 256, 257, 1024].map(|experts| shape(experts).slot_bytes()), [6, 6, 12, 12]);
        assert_eq!([16, 32].map(|slots| shape(512).page_bytes(slots)), [256, 384]);
        for (experts, ids) in [(256, [0, 255, 7, 1, 2, 3]), (512, [0, 255, 256, 511, 2, 3])] {
            let mut bytes = vec![0; shape(experts).slot_bytes()];
            shape(experts).encode(ids.into_iter(), &mut bytes);
            assert_eq!(shape(experts).decode(&bytes), ids.map(|id| id as u16));
        }
    }
}
