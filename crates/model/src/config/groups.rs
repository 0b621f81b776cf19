//! Puts the layers that store keys and values in page groups (`kv::PageGroups`): layers without a window, which need
//! all positions, apart from those with one, so that pages behind the window can be freed. Also says which kinds of
//! attention the layers have, and the bytes of what they store.

use super::layer::{AttentionKind, AttentionSpec, LayerSpec, kinds};
use super::model::ModelConfig;
use offshoot_backend::{Backend, Dtype, HeadLayout, KvShape, StateShape};
use offshoot_core::ids::GroupIx;
use offshoot_kv::{LayerPlace, PageGroups, Window};

/// Most page groups of a model: each has a plan of its own in every step.
const MOST_GROUPS: usize = 8;

/// In which group, and in which part of its pages, each layer keeps its keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPages {
    /// The number of groups that hold all positions, and of those with a window.
    all: usize,
    windowed: usize,
    /// The longest window of the latter.
    window: Option<u32>,
    /// The place of each layer that stores keys and values, in order.
    pub places: Vec<LayerPlace>,
}

impl ModelConfig {
    /// The kinds of attention, in order of the first layer of each. Each needs its own attention plan.
    pub fn attention_kinds(&self) -> Vec<AttentionKind> {
        kinds(self.attention_by_layer().into_iter().flatten())
    }

    /// The kind of attention of each layer; `None` for those without.
    pub fn attention_by_layer(&self) -> Vec<Option<AttentionKind>> {
        let LayerPages { places, .. } = LayerPages::of(self);
        let kind = |(layer, stored): (&LayerSpec, usize)| {
            let &AttentionSpec { heads, window, .. } = layer.attention()?;
            Some(AttentionKind { heads, window, group: places[stored].group })
        };
        self.layers.iter().zip(self.stored_layers()).map(kind).collect()
    }

    /// How many layers have this kind of attention.
    pub fn layers_of(&self, kind: AttentionKind) -> usize {
        self.attention_by_layer().into_iter().flatten().filter(|&of_layer| of_layer == kind).count()
    }

    /// The page groups of the layers, of which pages are freed behind windows in whole tiles of the backend.
    pub fn page_groups<B: Backend>(&self, backend: &B) -> PageGroups {
        LayerPages::of(self).groups(backend.tile().max(backend.page_tokens()))
    }

    /// The memory for keys and values, with no room for states.
    pub fn kv_shape(&self, dtype: Dtype, pages: usize) -> KvShape {
        let places = LayerPages::of(self).places;
        let states = StateShape { layers: self.states().collect(), ..StateShape::default() };
        KvShape { heads: self.stored_heads().collect(), places, dtype, pages, states, routes: None }
    }

    /// Bytes of one token's keys and values or latents in all layers, with parts of pages that no layer uses.
    /// `element_bytes`: bytes per element in layers with these heads.
    pub fn kv_bytes_per_token(&self, element_bytes: impl Fn(HeadLayout) -> usize) -> usize {
        let bytes = |heads: HeadLayout| heads.stored_width() * element_bytes(heads);
        let of_layers = self.stored_heads().map(bytes).sum::<usize>();
        let unused = LayerPages::of(self).unused_parts();
        of_layers + unused * self.stored_heads().next().map_or(0, bytes)
    }

    /// Bytes of keys and values of a token on all devices that compute together.
    pub fn kv_bytes_per_token_on<B: Backend>(&self, backend: &B, dtype: Dtype) -> usize {
        self.kv_bytes_per_token(|heads| backend.kv_copies(heads) * backend.kv_element_bytes(heads, dtype))
    }
}

impl LayerPages {
    /// The pages in which the layers of a model keep their keys and values. Layers with and without a window are in
    /// groups of their own if all have the same heads, so that any layer can use any part of a page. Otherwise a page
    /// holds all layers.
    pub fn of(config: &ModelConfig) -> Self {
        let windows = stored_windows(config);
        let longest = windows.iter().copied().flatten().max();
        let windowed = windows.iter().flatten().count();
        let mut heads = config.stored_heads();
        let first = heads.next();
        let is_even = heads.all(|heads| Some(heads) == first);
        let (all, parts) = (windows.len() - windowed, windows.len());
        let (Some(window), true, true) = (longest, is_even, windowed < parts) else {
            let places = (0..parts).map(|part| LayerPlace { group: GroupIx(0), part }).collect();
            let is_windowed = windowed == parts && parts > 0;
            let (all, windowed) = if is_windowed { (0, 1) } else { (1, 0) };
            return LayerPages { all, windowed, window: longest.filter(|_| is_windowed), places };
        };
        let parts = parts_of_a_page(all, windowed);
        let groups = [all.div_ceil(parts), windowed.div_ceil(parts)];
        let mut next = [0, 0];
        let place = |window: &Option<u32>| {
            let reach = usize::from(window.is_some());
            let number = next[reach];
            next[reach] += 1;
            let group = GroupIx::new(reach * groups[0] + number / parts);
            LayerPlace { group, part: number % parts }
        };
        let places = windows.iter().map(place).collect();
        LayerPages { all: groups[0], windowed: groups[1], window: Some(window), places }
    }

    /// Whether the pages of the first group hold all positions.
    pub fn has_all_positions(&self) -> bool {
        self.all > 0
    }

    /// Parts of the pages of all groups that no layer uses. If there are any, all layers have the same heads.
    pub fn unused_parts(&self) -> usize {
        let parts = self.places.iter().map(|place| place.part + 1).max().unwrap_or(0);
        (self.all + self.windowed) * parts - self.places.len()
    }

    /// The groups. `unit`: positions that are freed at a time.
    pub fn groups(&self, unit: u32) -> PageGroups {
        match self.window {
            Some(tokens) => PageGroups::mixed(self.all, self.windowed, Window { tokens, unit }),
            None => PageGroups::ONE,
        }
    }
}

/// For each layer that stores keys and values the longest window of the layers that read them; `None` if one has none.
fn stored_windows(config: &ModelConfig) -> Vec<Option<u32>> {
    let mut windows: Vec<Option<u32>> = vec![Some(0); config.stored_heads().count()];
    for (layer, stored) in config.layers.iter().zip(config.stored_layers()) {
        let Some(of_reader) = layer.attention().map(|attention| attention.window) else { continue };
        windows[stored] = windows[stored].zip(of_reader).map(|(longest, window)| longest.max(window));
    }
    windows
}

/// The number of layers that share a page, so that groups of so many waste little: parts of the last group of each
/// reach stay empty. The waste of a short text, which needs all groups, counts as much as that of a long one, which
/// needs those that hold all positions; of equals, the fewest groups.
fn parts_of_a_page(all: usize, windowed: usize) -> usize {
    let groups = |layers: usize, parts: usize| layers.div_ceil(parts);
    let cost = |parts: usize| {
        let (long, short) = (groups(all, parts) * parts, (groups(all, parts) + groups(windowed, parts)) * parts);
        // Both in proportion to what is needed; integers, so that equals are equal.
        (long * short, groups(all, parts) + groups(windowed, parts))
    };
    let few = |parts: &usize| groups(all, *parts) + groups(windowed, *parts) <= MOST_GROUPS;
    let most = all.max(windowed);
    (1..=most).filter(few).min_by_key(|&parts| cost(parts)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_parts_of_pages_stay_empty() {
        // Layers without and with a window: gpt-oss, Gemma 2, OLMo 3, Gemma 3 of 12B, 4B, 1B and 27B parameters.
        let shapes = [(12, 12), (21, 21), (8, 24), (8, 40), (5, 29), (4, 22), (10, 52)];
        let parts: Vec<_> = shapes.iter().map(|&(all, windowed)| parts_of_a_page(all, windowed)).collect();
        assert_eq!(parts, [12, 21, 8, 8, 5, 4, 10]);
        // One full layer among many: no more groups than are planned for.
        assert!(99_usize.div_ceil(parts_of_a_page(1, 99)) < MOST_GROUPS);
    }
}
