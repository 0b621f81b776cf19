//! Keys and values of all layers, in pages of 32 slots, and the memory of `states`. This file says how pages follow
//! each other and kernels/kv_page.cuh how rows lie in one; the prefix tree decides which page holds which token.
//!
//! # Layout
//! One allocation: `[layer][page][kv_head][keys, values][32 slots][width]`, with the heads of each layer. So a page of
//! one head is two runs, keys and values, each contiguous and, since a head has a whole number of 16-bit pairs, a
//! multiple of 128 bytes, or of fp8, which only pages of heads of 64 or 128 and of latents hold ([`KvElement`]), one of
//! 64. Where values lie in the keys, it is the run of keys alone. The order within a run depends on who reads it
//! ([`PageLayout`]). Behind all layers follow the experts of the tokens, if they are kept:
//! `[page][32 slots][layer][chosen]` (`RouteShape`).

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::OnceLock;

use super::staging::Staging;
use super::states::{self, LayerStates, States};
use crate::compile::elements::{HeadWidths, KvElement, PageLayout};
use crate::compile::unit::Unit;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use offshoot_backend::{Dtype, HeadLayout, KvShape, MemoryPart, RouteShape, Values};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures;
use offshoot_core::ids::{LayerIx, PageId, StateId};
use offshoot_kv::plan::Member;
use offshoot_kv::{KvSlot, LayerPlace};

pub const PAGE_TOKENS: u32 = 32;

/// Bytes of a row of a panel of 16-bit elements, as in kernels/kv_page.cuh; of fp8 half as many.
const PANEL_ROW_BYTES: usize = 128;

/// Device bytes through which saved pages pass, or one page where that has more.
const PACKED: usize = 32 << 20;

pub struct Kv {
    device: Device,
    memory: Memory,
    shape: KvShape,
    parts: Vec<PartPages>,
    /// The states of delta-rule layers.
    states: States,
    routes: Option<RoutePages>,
    kv_save: Function,
    kv_restore: Function,
    /// `[P][part][page bytes of the part]` on their way to or from the host.
    packed: Memory,
    /// Their ids, a word each.
    packed_ids: Memory,
}

/// The experts of all tokens, if they are kept.
struct RoutePages {
    shape: RouteShape,
    keep: Function,
}

impl RoutePages {
    fn page_bytes(&self) -> usize {
        self.shape.page_bytes(PAGE_TOKENS)
    }
}

/// One part of all pages: a layer of each page group, or of some.
struct PartPages {
    heads: HeadLayout,
    kv_element: KvElement,
    layout: PageLayout,
    /// Bytes that one page takes.
    page_bytes: usize,
    /// The kernels that append: one, and that which prepares rows before, where there is one for these heads.
    append: Function,
    prepare: Option<Function>,
    /// The kernel that gathers latents, where these are pages of latents.
    gather: Option<Function>,
    /// The kernel that stores expanded latents of an element type, once it was asked for.
    store_expanded: OnceLock<(KvElement, Function)>,
}

/// The element type of pages with these heads.
pub type ElementOf<'a> = &'a dyn Fn(HeadLayout) -> KvElement;

/// Names the order of `[P][part][page bytes of the part]` in this file, beside the page's own ([`PageLayout`]).
pub const LAYOUT: &str = "cuda pages 2";

/// Elements of a value that lies beside its key; 0 if it lies in the key.
pub fn value_beside(heads: HeadLayout) -> usize {
    match heads.values {
        Values::Beside(width) => width,
        Values::InKeys(_) => 0,
    }
}

/// Bytes that one page takes in one layer.
pub fn layer_page_bytes(heads: HeadLayout, dtype: Dtype, kv_element: KvElement) -> usize {
    PAGE_TOKENS as usize * heads.stored_width() * kv_element.element_bytes(dtype)
}

/// Bytes that one page takes, all layers of a page group.
pub fn page_bytes(shape: &KvShape, element_of: ElementOf<'_>) -> usize {
    let part = |heads| layer_page_bytes(heads, shape.dtype, element_of(heads));
    shape.parts().into_iter().map(part).sum::<usize>() + route_page_bytes(shape)
}

/// Bytes that the experts of a page's tokens take.
fn route_page_bytes(shape: &KvShape) -> usize {
    shape.routes.map_or(0, |routes| routes.page_bytes(PAGE_TOKENS))
}

/// Bytes that [`Kv::new`] allocates beside those of the pool's pages and states.
pub fn overhead_bytes(shape: &KvShape, element_of: ElementOf<'_>) -> usize {
    let page_bytes = page_bytes(shape, element_of);
    let packed = packed_pages(page_bytes, shape.pages) * page_bytes;
    packed + packed_ids(shape, page_bytes) * size_of::<u32>() + states::overhead_bytes(&shape.states)
}

/// Pages of which there is room for the ids: those that pass to the host at a time, whole or only with experts.
fn packed_ids(shape: &KvShape, page_bytes: usize) -> usize {
    let whole = packed_pages(page_bytes, shape.pages);
    match route_page_bytes(shape) {
        0 => whole,
        of_routes => whole.max((whole * page_bytes / of_routes).min(shape.pages)),
    }
}

/// Pages that pass to or from the host at a time, of `pages` in all. Those of a model without attention are empty.
fn packed_pages(page_bytes: usize, pages: usize) -> usize {
    PACKED.checked_div(page_bytes).unwrap_or(1).clamp(1, pages.max(1))
}

/// Slot word of a row that is not stored, as in kernels/kv_page.cuh: a padded one.
pub const NO_SLOT: u32 = u32::MAX;

/// Where the rows of a step are stored.
#[derive(Clone, Copy)]
pub struct SlotWords<'a> {
    /// A [`slot_word`] for each row: memory, and the byte in it.
    pub words: (&'a Memory, usize),
    /// Who stores its own rows alone.
    pub member: Member,
}

/// A slot as kernels read it, of a page that so many members divide. Panics where the slots of all are too many for
/// words.
pub fn slot_word(slot: KvSlot, members: u32) -> u32 {
    let page_tokens = members * PAGE_TOKENS;
    debug_assert!(slot.slot < page_tokens);
    let first = slot.page.0.checked_mul(page_tokens).expect("members share fewer slots than there are words");
    first + slot.slot
}

impl Kv {
    /// Pages and states of unspecified contents: a slot is written before it is read.
    pub fn new(device: &Device, shape: &KvShape, element_of: ElementOf<'_>) -> Result<Self> {
        assert!(shape.pages < (u32::MAX / PAGE_TOKENS) as usize, "{} pages: slots are words", shape.pages);
        let unit = Unit::new(&units::KV_PAGES);
        let part = |&heads: &HeadLayout| {
            let kv_element = element_of(heads);
            let layout = PageLayout::of(device.facts().major, shape.dtype, HeadWidths::of(heads));
            let (append, name) = units::kv_append(shape.dtype, kv_element, layout);
            let page_bytes = layer_page_bytes(heads, shape.dtype, kv_element);
            let append = device.function(&append, name)?;
            let prepare = match heads.values {
                Values::InKeys(_) => Some((units::prepare_latents(shape.dtype, kv_element, layout), "prepare_latents")),
                Values::Beside(_) if heads.has_even_values() => {
                    Some((units::prepare_heads(shape.dtype, kv_element, layout), "prepare_heads"))
                }
                Values::Beside(_) => None,
            };
            let prepare = prepare.map(|(unit, name)| device.function(&unit, name)).transpose()?;
            let gather = match heads.values {
                Values::InKeys(_) => {
                    Some(device.function(&units::gather_latents(shape.dtype, kv_element), "gather_latents")?)
                }
                Values::Beside(_) => None,
            };
            let store_expanded = OnceLock::new();
            Ok(PartPages { heads, kv_element, layout, page_bytes, append, prepare, gather, store_expanded })
        };
        let parts = shape.parts().iter().map(part).collect::<Result<Vec<_>>>()?;
        let routes =
            |shape| Ok::<_, Error>(RoutePages { shape, keep: device.function(&units::route_keep(), "route_keep")? });
        let page_bytes = parts.iter().map(|part| part.page_bytes).sum::<usize>() + route_page_bytes(shape);
        let pages = packed_pages(page_bytes, shape.pages);
        Ok(Self {
            memory: device.alloc_of(MemoryPart::Kv, shape.pages * page_bytes)?,
            states: States::new(device, &shape.states)?,
            routes: shape.routes.map(routes).transpose()?,
            kv_save: device.function(&unit, "kv_save")?,
            kv_restore: device.function(&unit, "kv_restore")?,
            packed: device.alloc(pages * page_bytes)?,
            packed_ids: device.alloc(packed_ids(shape, page_bytes) * size_of::<u32>())?,
            device: device.clone(),
            shape: shape.clone(),
            parts,
        })
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The states of delta-rule layer `layer`.
    pub fn states(&self, layer: LayerIx) -> LayerStates<'_> {
        self.states.layer(layer)
    }

    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// The heads of the layer with that number among those that store keys and values.
    pub fn heads(&self, layer: LayerIx) -> HeadLayout {
        self.part(layer).heads
    }

    pub fn kv_element(&self, layer: LayerIx) -> KvElement {
        self.part(layer).kv_element
    }

    /// The kernel that appends to a layer.
    pub(crate) fn append(&self, layer: LayerIx) -> &Function {
        &self.part(layer).append
    }

    /// The kernel that prepares the heads of rows for a layer, if there is one.
    pub(crate) fn prepare_heads(&self, layer: LayerIx) -> Option<&Function> {
        let part = self.part(layer);
        part.prepare.as_ref().filter(|_| part.heads.has_even_values())
    }

    /// The kernel that prepares latents for a layer. Only where values lie in the keys.
    pub(crate) fn prepare_latents(&self, layer: LayerIx) -> &Function {
        let part = self.part(layer);
        let kernel = part.prepare.as_ref().filter(|_| matches!(part.heads.values, Values::InKeys(_)));
        kernel.expect("latents are prepared for a layer whose values lie in the keys")
    }

    /// The kernel that gathers the latents of a layer. Only where values lie in the keys.
    pub(crate) fn gather_latents(&self, layer: LayerIx) -> &Function {
        self.part(layer).gather.as_ref().expect("latents are gathered from a layer whose values lie in the keys")
    }

    /// The kernel that stores expanded latents, whose own element type is `latents`, in a layer's pages; an error if it
    /// cannot be loaded, which it is when it is first asked for.
    pub(crate) fn store_expanded(&self, layer: LayerIx, latents: KvElement) -> Result<&Function> {
        let part = self.part(layer);
        if part.store_expanded.get().is_none() {
            assert_eq!(part.kv_element, KvElement::Plain, "copies of latents have the compute dtype");
            let unit = units::store_expanded(self.shape.dtype, latents, part.layout);
            let loaded = self.device.function(&unit, "store_expanded")?;
            // Whoever else has loaded it meanwhile has loaded the same.
            let _ = part.store_expanded.set((latents, loaded));
        }
        let (of, loaded) = part.store_expanded.get().expect("it was loaded above");
        assert_eq!(*of, latents, "expand_latents: latents of one element type");
        Ok(loaded)
    }

    /// How rows lie in the pages of a layer.
    pub(crate) fn layout(&self, layer: LayerIx) -> PageLayout {
        self.part(layer).layout
    }

    /// The page group of a layer, and its part of that group's pages.
    pub fn place(&self, layer: LayerIx) -> LayerPlace {
        let places = &self.shape.places;
        *places.get(layer.ix()).unwrap_or_else(|| panic!("layer {layer} of {}", places.len()))
    }

    fn part(&self, layer: LayerIx) -> &PartPages {
        &self.parts[self.place(layer).part]
    }

    /// Bytes that one page takes in the parts before this one.
    fn bytes_before(&self, part: usize) -> usize {
        self.parts[..part].iter().map(|part| part.page_bytes).sum()
    }

    /// Bytes that one page takes, all parts and the experts of its tokens.
    fn page_bytes(&self) -> usize {
        self.bytes_before(self.parts.len()) + route_page_bytes(&self.shape)
    }

    fn route_pages(&self) -> &RoutePages {
        self.routes.as_ref().expect("experts are kept and read only where `KvShape::routes` says so")
    }

    /// What is kept of the tokens' experts. Only where something is.
    pub fn routes(&self) -> RouteShape {
        self.route_pages().shape
    }

    /// The byte of `memory` at which the tokens' experts begin.
    pub(crate) fn routes_at(&self) -> usize {
        self.bytes_before(self.parts.len()) * self.shape.pages
    }

    /// The kernel that keeps the experts of rows.
    pub(crate) fn route_keep(&self) -> &Function {
        &self.route_pages().keep
    }

    /// Copies the experts kept in `slots` to host memory, and waits for them.
    pub fn read_routes(&self, slots: &[KvSlot], staging: &mut Staging) -> Result<Vec<u16>> {
        let routes = self.route_pages();
        let (page_bytes, slot_bytes) = (routes.page_bytes(), routes.shape.slot_bytes());
        let at_once = packed_ids(&self.shape, self.page_bytes());
        let mut ids = Vec::with_capacity(slots.len() * routes.shape.ids());
        let mut runs = slots.chunk_by(|a, b| a.page == b.page).peekable();
        while runs.peek().is_some() {
            let runs: Vec<&[KvSlot]> = runs.by_ref().take(at_once).collect();
            let pages: Vec<PageId> = runs.iter().map(|run| run[0].page).collect();
            self.upload_ids(&pages)?;
            self.launch_part(&self.kv_save, pages.len(), (self.routes_at(), 0), [page_bytes, page_bytes], 1);
            let mut bytes = host_bytes(pages.len() * page_bytes)?;
            let from = std::iter::once(0..bytes.len());
            staging.download(&mut bytes, &self.packed, from)?;
            for (run, page) in runs.into_iter().zip(bytes.chunks_exact(page_bytes)) {
                run.iter().for_each(|at| {
                    ids.extend(routes.shape.decode(&page[at.slot as usize * slot_bytes..][..slot_bytes]));
                });
            }
        }
        Ok(ids)
    }

    /// The byte of `memory` at which the part of a layer begins, in the pages of all groups.
    pub fn layer_at(&self, layer: LayerIx) -> usize {
        self.bytes_before(self.place(layer).part) * self.shape.pages
    }

    /// Copies `pages` to host memory, and waits for them.
    pub fn save(&self, pages: &[PageId], staging: &mut Staging) -> Result<Vec<u8>> {
        let page_bytes = self.page_bytes();
        let mut bytes = host_bytes(pages.len() * page_bytes)?;
        let at_once = packed_pages(page_bytes, self.shape.pages);
        for (pages, bytes) in pages.chunks(at_once).zip(bytes.chunks_mut((at_once * page_bytes).max(1))) {
            self.upload_ids(pages)?;
            self.launch(&self.kv_save, pages.len());
            let from = std::iter::once(0..bytes.len());
            staging.download(bytes, &self.packed, from)?;
        }
        Ok(bytes)
    }

    /// Enqueues the copy of what was saved into `pages`, in the same order. `saved` may be dropped when it returns.
    pub fn restore(&self, saved: &[u8], pages: &[PageId], staging: &mut Staging) -> Result<()> {
        let page_bytes = self.page_bytes();
        assert_eq!(saved.len(), pages.len() * page_bytes, "restore: as many pages as were saved");
        let at_once = packed_pages(page_bytes, self.shape.pages);
        for (pages, bytes) in pages.chunks(at_once).zip(saved.chunks((at_once * page_bytes).max(1))) {
            staging.upload(&self.packed, 0, bytes)?;
            self.upload_ids(pages)?;
            self.launch(&self.kv_restore, pages.len());
        }
        self.device.check()
    }

    /// Copies the state in `slot` to host memory, and waits for it.
    pub fn save_state(&self, slot: StateId, staging: &mut Staging) -> Result<Vec<u8>> {
        let mut bytes = host_bytes(self.shape.states.state_bytes())?;
        staging.download(&mut bytes, self.states.memory(), self.states.parts_of(slot))?;
        Ok(bytes)
    }

    /// Enqueues the copy of a saved state into `slot`. `saved` may be dropped when it returns.
    pub fn restore_state(&self, saved: &[u8], slot: StateId, staging: &mut Staging) -> Result<()> {
        assert_eq!(saved.len(), self.shape.states.state_bytes(), "restore_state: a state of these layers");
        let mut saved = saved;
        for part in self.states.parts_of(slot) {
            let (bytes, rest) = saved.split_at(part.len());
            staging.upload(self.states.memory(), part.start, bytes)?;
            saved = rest;
        }
        self.device.check()
    }

    /// Overwrites `slots` of page number `page` of `saved` with those of page number `from` of `others`: a slot is a
    /// row of each run of keys and of values, or of each of a run's panels, whatever the order within it.
    pub fn join(&self, saved: &mut [u8], page: usize, others: &[u8], from: usize, slots: Range<u32>) {
        let page_bytes = self.page_bytes();
        let (mut to, mut from) =
            (&mut saved[page * page_bytes..][..page_bytes], &others[from * page_bytes..][..page_bytes]);
        for part in &self.parts {
            for row in row_bytes(part.heads, self.shape.dtype, part.kv_element, part.layout) {
                let rows = slots.start as usize * row..slots.end as usize * row;
                let (to_run, to_rest) = to.split_at_mut(PAGE_TOKENS as usize * row);
                let (from_run, from_rest) = from.split_at(PAGE_TOKENS as usize * row);
                to_run[rows.clone()].copy_from_slice(&from_run[rows]);
                (to, from) = (to_rest, from_rest);
            }
        }
        if let Some(routes) = self.shape.routes {
            let slots = slots.start as usize * routes.slot_bytes()..slots.end as usize * routes.slot_bytes();
            to[slots.clone()].copy_from_slice(&from[slots]);
        }
    }

    fn upload_ids(&self, pages: &[PageId]) -> Result<()> {
        assert!(pages.iter().all(|page| page.ix() < self.shape.pages), "a page of the pool");
        let ids: Vec<u32> = pages.iter().map(|page| page.0).collect();
        self.device.upload(&self.packed_ids, 0, bytemuck::cast_slice(&ids))
    }

    /// Launches a kernel of kernels/ops/kv_pages.cu for each run of parts of one size, and for the tokens' experts.
    fn launch(&self, function: &Function, pages: usize) {
        let mut first = 0;
        for run in self.parts.chunk_by(|a, b| a.page_bytes == b.page_bytes) {
            let before = self.bytes_before(first);
            let at = (before * self.shape.pages, before);
            self.launch_part(function, pages, at, [self.page_bytes(), run[0].page_bytes], run.len());
            first += run.len();
        }
        if let Some(routes) = &self.routes {
            let at = (self.routes_at(), self.bytes_before(self.parts.len()));
            self.launch_part(function, pages, at, [self.page_bytes(), routes.page_bytes()], 1);
        }
    }

    /// Launches such a kernel for `parts` neighbouring parts of one size. `at`: where the first begins in `memory`, and
    /// in a page of `packed`; `bytes`: those of a page of `packed`, and of a part of a page.
    fn launch_part(&self, function: &Function, pages: usize, at: (usize, usize), bytes: [usize; 2], parts: usize) {
        let args = Args::new().memory_at(&self.memory, at.0).memory_at(&self.packed, at.1).memory(&self.packed_ids);
        let [packed, part] = bytes.map(|bytes| small(bytes / 16));
        let args = args.u32(small(self.shape.pages)).u32(packed).u32(part);
        self.device.launch(function, [small(pages), small(parts), 1], 256, 0, &args);
    }
}

/// For each run of keys or values of a page, or each panel of one (kernels/kv_page.cuh), the bytes of a row.
fn row_bytes(
    heads: HeadLayout,
    dtype: Dtype,
    kv_element: KvElement,
    layout: PageLayout,
) -> impl Iterator<Item = usize> {
    let run = move |width: usize| {
        let row = width * kv_element.element_bytes(dtype);
        let of_panel = if kv_element == KvElement::Fp8 { PANEL_ROW_BYTES / 2 } else { PANEL_ROW_BYTES };
        match layout {
            PageLayout::Swizzled if row <= 2 * PANEL_ROW_BYTES => repeat_n(row, 1),
            PageLayout::Swizzled | PageLayout::Panels => repeat_n(of_panel, row / of_panel),
            PageLayout::Plain => repeat_n(row, 1),
        }
    };
    let beside = value_beside(heads);
    let of_head = [heads.head_dim].into_iter().chain((beside > 0).then_some(beside));
    repeat_n(of_head, heads.kv_heads).flatten().flat_map(run)
}

/// Host memory, all zero; an error where there is none.
fn host_bytes(bytes: usize) -> Result<Vec<u8>> {
    let mut memory = Vec::new();
    let expected = || format!("{} for saved keys and values", figures::bytes(bytes as u64));
    memory.try_reserve_exact(bytes).map_err(|_| Error::value("free host memory", expected(), "less"))?;
    memory.resize(bytes, 0);
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_core::ids::GroupIx;

    fn shape(layers: usize, kv_heads: usize, head_dim: usize, pages: usize) -> KvShape {
        let heads = HeadLayout::new(4 * kv_heads, kv_heads, head_dim);
        KvShape::uniform(layers, heads, Dtype::Bf16, pages)
    }

    #[test]
    fn a_page_counts_keys_and_values_of_all_heads_and_layers() {
        // llama3-8b: 2 * 8 heads * 128 * 2 bytes = 4 KiB a token and layer
        let bytes = |element| page_bytes(&shape(32, 8, 128, 100), &|_| element);
        assert_eq!(bytes(KvElement::Plain), 32 * 32 * 4096);
        assert_eq!(bytes(KvElement::Rounded), 32 * 32 * 4096);
        assert_eq!(bytes(KvElement::Fp8), 32 * 32 * 2048);
    }

    #[test]
    fn experts_are_part_of_a_page() {
        let routes = RouteShape { layers: 48, chosen: 8, experts: 128, group: GroupIx(0) };
        let plain = shape(48, 4, 128, 10_000);
        let kept = KvShape { routes: Some(routes), ..plain.clone() };
        let [plain, kept_bytes] = [&plain, &kept].map(|shape| page_bytes(shape, &|_| KvElement::Plain));
        assert_eq!(kept_bytes, plain + 32 * 48 * 8);
        // Where only they are read, many pages of them pass to the host at a time.
        assert_eq!((packed_pages(kept_bytes, 10_000), packed_ids(&kept, kept_bytes)), (10, 2570));
    }

    #[test]
    fn layers_may_differ_in_their_heads_and_elements() {
        let (narrow, wide) = (shape(1, 2, 64, 1).heads[0], shape(1, 1, 512, 1).heads[0]);
        let mixed = KvShape::one_group(vec![narrow, wide, narrow], Dtype::Bf16, 1);
        let element = |heads: HeadLayout| if heads == wide { KvElement::Rounded } else { KvElement::Fp8 };
        assert_eq!(page_bytes(&mixed, &element), 2 * (2 * 32 * 2 * 64) + 2 * 32 * 512 * 2);
    }

    #[test]
    fn pages_are_whole_chunks_whatever_the_head() {
        for head_dim in (2..=512).step_by(2) {
            let bytes = page_bytes(&shape(1, 1, head_dim, 1), &|_| KvElement::Plain);
            assert_eq!(bytes % 128, 0, "head_dim {head_dim}");
        }
        for head_dim in [64, 128] {
            let bytes = page_bytes(&shape(1, 1, head_dim, 1), &|_| KvElement::Fp8);
            assert_eq!(bytes % 128, 0, "head_dim {head_dim}");
        }
        for width in [18, 24, 320, 576] {
            let latents = HeadLayout {
                q_heads: 4,
                kv_heads: 1,
                head_dim: width,
                values: Values::InKeys(width - 8),
                expanded: false,
            };
            let bytes = page_bytes(&KvShape::uniform(1, latents, Dtype::Bf16, 1), &|_| KvElement::Fp8);
            assert_eq!((bytes, bytes % 64), (PAGE_TOKENS as usize * width, 0), "latents of {width}");
        }
    }

    #[test]
    fn rows_of_all_runs_and_panels_make_a_page() {
        let latents = HeadLayout { head_dim: 576, values: Values::InKeys(512), ..HeadLayout::new(16, 1, 576) };
        let expanded = HeadLayout { head_dim: 192, values: Values::Beside(128), ..HeadLayout::new(2, 2, 192) };
        for (heads, kv_element, rows) in [
            (HeadLayout::new(4, 1, 128), KvElement::Fp8, vec![128; 2]),
            (HeadLayout::new(4, 1, 256), KvElement::Plain, vec![128; 8]),
            (expanded, KvElement::Plain, vec![128; 2 * (3 + 2)]),
            (latents, KvElement::Plain, vec![128; 9]),
            (latents, KvElement::Fp8, vec![64; 9]),
        ] {
            let layout = PageLayout::of(9, Dtype::Bf16, HeadWidths::of(heads));
            let found: Vec<usize> = row_bytes(heads, Dtype::Bf16, kv_element, layout).collect();
            assert_eq!(found, rows, "{heads}, {kv_element:?}");
            let page = layer_page_bytes(heads, Dtype::Bf16, kv_element);
            assert_eq!(PAGE_TOKENS as usize * found.iter().sum::<usize>(), page, "{heads}, {kv_element:?}");
        }
    }

    #[test]
    fn pages_are_swizzled_on_hopper_alone_and_where_its_kernel_reads_them() {
        for major in [8, 9, 10, 12] {
            for (dtype, head_dim) in [Dtype::F32, Dtype::F16, Dtype::Bf16]
                .into_iter()
                .flat_map(|dtype| [16, 64, 80, 96, 128, 192, 256, 512].map(|dim| (dtype, dim)))
            {
                let is_read = major == 9 && dtype != Dtype::F32 && [64, 80, 96, 128, 256, 512].contains(&head_dim);
                let expected = if is_read { PageLayout::Swizzled } else { PageLayout::Plain };
                assert_eq!(
                    PageLayout::of(major, dtype, HeadWidths::even(head_dim)),
                    expected,
                    "{major}.x, {dtype:?}, heads of {head_dim}"
                );
            }
        }
    }

    #[test]
    fn pages_pass_to_the_host_many_at_a_time_and_at_least_one() {
        let packed = |shape: KvShape, element| packed_pages(page_bytes(&shape, &|_| element), shape.pages);
        assert_eq!(packed(shape(32, 8, 128, 100), KvElement::Plain), 8);
        assert_eq!(packed(shape(32, 8, 128, 100), KvElement::Fp8), 16);
        assert_eq!(packed(shape(32, 8, 128, 3), KvElement::Plain), 3, "no more than there are");
        assert_eq!(packed(shape(80, 64, 256, 100), KvElement::Plain), 1, "a page larger than the usual buffer");
    }

    #[test]
    fn a_slot_word_names_page_and_slot() {
        assert_eq!(slot_word(KvSlot { page: PageId(3), slot: 31 }, 1), 3 * 32 + 31);
        assert_eq!(slot_word(KvSlot { page: PageId(3), slot: 65 }, 4), 3 * 128 + 65);
    }

    #[test]
    fn the_kernels_have_pages_of_the_same_size() {
        assert_eq!(PAGE_TOKENS, 32);
        let kernels = include_str!("../../../../kernels/kv_page.cuh");
        assert!(kernels.contains("PAGE_TOKENS = 32;"));
        assert!(kernels.contains(&format!("PANEL_ROW_BYTES = {PANEL_ROW_BYTES};")));
    }
}
