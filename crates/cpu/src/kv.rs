//! Storage for the keys and values of all layers, in pages of 16 slots. Only this file knows the layout of a page. The
//! prefix tree decides which page holds which token; attention decides what is read.
//!
//! # Layout
//! One zeroed mapping per layer, `[kv_head][page]`; the system backs it with memory as pages are first written. A page
//! of one head holds its keys, then its values. Vector lanes are slots for keys and dimensions for values, so neither
//! `q . k` nor `p . v` sums across lanes:
//!
//! | dtype    | keys              | values                  |
//! |----------|-------------------|-------------------------|
//! | f32, f16 | `[d][16]`         | `[16][width]`           |
//! | bf16     | `[d / 2][16][2]`  | `[16 / 2][width][2]`    |
//!
//! `width` is the elements of a value, rounded up to a multiple of 16. Values that lie in the keys ([`Values::InKeys`])
//! are not stored apart: the first elements of a key are its value. bf16 elements lie in pairs along the summed
//! dimension, as the dot product instruction reads them. A pair of slots is always multiplied as a whole, with a factor
//! of zero for a hidden slot. Zero times an infinity or NaN left by an earlier token would give NaN, so writing an even
//! slot clears such a value in the odd slot of its pair.
//!
//! fp8 keys and values are rounded when they are appended, but not copies of latents. Of those whose values lie in the
//! keys, latents, a page holds the codes, a byte each, in the places that elements of the weights' dtype would have;
//! the fast paths widen a tile's pages before they read them. Others are stored in the weights' dtype.

use std::ops::Range;

use memmap2::MmapMut;

use super::experts::CpuRoutes;
use super::memory::{CacheLevel, prefetch_line};
use super::rows::{bf16_bits, for_each_isa};
use super::states::LayerStates;
use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{Dtype, HeadLayout, KvDtype, KvShape, RouteShape, Values, e4m3, e4m3_code, of_e4m3};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{GroupIx, LayerIx, PageId, StateId};
use offshoot_core::memory::MemoryFault;
use offshoot_kv::{KvSlot, LayerPlace};

pub const PAGE_TOKENS: u32 = 16;

/// `PAGE_TOKENS` as a `usize`.
pub const SLOTS: usize = PAGE_TOKENS as usize;

/// Appends of fewer elements run on the calling thread: a worker would come too late.
const PARALLEL_ELEMENTS: usize = 1 << 12;

/// Words of a key that are rounded before they are stored.
const ROUNDED: usize = 512;

/// What a page holds of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredAs {
    /// A number of the layout's dtype.
    Dtype,
    /// A code of e4m3.
    Fp8,
}

/// Layout of one head's page. All indices count elements from the start of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPageLayout {
    /// The dtype of elements as kernels read them.
    pub dtype: Dtype,
    pub stored: StoredAs,
    /// Elements of a key.
    pub head_dim: usize,
    pub values: Values,
    /// Elements from one value row to the next, if values lie beside the keys: those of a value, rounded up to whole
    /// vectors.
    pub width: usize,
}

impl CpuPageLayout {
    /// The layout for each key head of `heads`, stored in `dtype`.
    pub fn new(dtype: Dtype, heads: &HeadLayout) -> Self {
        let (head_dim, value_dim) = (heads.head_dim, heads.value_dim());
        assert!(head_dim.is_multiple_of(2), "keys of {head_dim} elements, an odd number");
        let fits = !heads.values_in_keys() || value_dim <= head_dim;
        assert!(fits, "values of {value_dim} elements in keys of {head_dim}");
        let width = value_dim.next_multiple_of(SLOTS);
        Self { dtype, stored: StoredAs::Dtype, head_dim, values: heads.values, width }
    }

    /// This layout with elements that are stored as `kv` says.
    pub fn rounded_to(self, kv: KvDtype) -> Self {
        let stored = match (kv, self.values) {
            (KvDtype::Fp8, Values::InKeys(_)) => StoredAs::Fp8,
            (KvDtype::Model, _) | (KvDtype::Fp8, Values::Beside(_)) => StoredAs::Dtype,
        };
        Self { stored, ..self }
    }

    /// The layout of a page whose codes have become numbers.
    pub fn widened(self) -> Self {
        Self { stored: StoredAs::Dtype, ..self }
    }

    /// Elements stored side by side along the summed dimension: 2 for bf16, else 1.
    pub fn pair(&self) -> usize {
        match self.dtype {
            Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::F16 => 1,
        }
    }

    /// Elements of a page's keys. The values follow them.
    pub fn key_elements(&self) -> usize {
        self.head_dim * SLOTS
    }

    /// Elements of a page's values beside its keys.
    pub fn value_elements(&self) -> usize {
        match self.values {
            Values::Beside(_) => SLOTS * self.width,
            Values::InKeys(_) => 0,
        }
    }

    pub fn elements(&self) -> usize {
        self.key_elements() + self.value_elements()
    }

    pub fn element_bytes(&self) -> usize {
        match self.stored {
            StoredAs::Dtype => self.dtype.bytes(),
            StoredAs::Fp8 => 1,
        }
    }

    pub fn bytes(&self) -> usize {
        self.elements() * self.element_bytes()
    }

    /// Index of element `i` of the key in `slot`.
    pub fn key(&self, slot: usize, i: usize) -> usize {
        let pair = self.pair();
        (i / pair * SLOTS + slot) * pair + i % pair
    }

    /// Index of element `i` of the value in `slot`.
    pub fn value(&self, slot: usize, i: usize) -> usize {
        let pair = self.pair();
        match self.values {
            Values::Beside(_) => self.key_elements() + (slot / pair * self.width + i) * pair + slot % pair,
            Values::InKeys(_) => self.key(slot, i),
        }
    }

    /// Indices of what is stored of the token in `slot`.
    fn token(&self, slot: usize) -> impl Iterator<Item = usize> {
        let beside = match self.values {
            Values::Beside(value_dim) => value_dim,
            Values::InKeys(_) => 0,
        };
        (0..self.head_dim).map(move |i| self.key(slot, i)).chain((0..beside).map(move |i| self.value(slot, i)))
    }
}

/// Keys and values of all layers. Layers of several page groups keep theirs in the same part of different pages.
pub struct KvStore {
    /// The compute dtype, which elements are stored in.
    dtype: Dtype,
    /// What elements are rounded to first.
    kv: KvDtype,
    pages: usize,
    /// The place of each stored layer.
    places: Vec<LayerPlace>,
    parts: Vec<PartStore>,
    /// The states of each recurrent layer.
    states: Vec<LayerStates>,
    routes: Option<RouteStore>,
}

/// The experts of all tokens, if they are kept.
struct RouteStore {
    shape: RouteShape,
    /// `[page]`
    map: MmapMut,
}

impl RouteStore {
    fn page_bytes(&self) -> usize {
        self.shape.page_bytes(PAGE_TOKENS)
    }

    /// The byte at which the ids of a slot begin.
    fn at(&self, at: KvSlot) -> usize {
        at.page.ix() * self.page_bytes() + at.slot as usize * self.shape.slot_bytes()
    }

    fn page(&self, page: PageId) -> Range<usize> {
        page.ix() * self.page_bytes()..(page.ix() + 1) * self.page_bytes()
    }
}

/// One part of all pages.
struct PartStore {
    heads: HeadLayout,
    layout: CpuPageLayout,
    /// `[kv_head][page]`
    map: MmapMut,
}

impl PartStore {
    /// Byte offsets of `pages` in the mapping, `[kv_head][page]`. `capacity`: pages per head in the pool.
    fn offsets(&self, capacity: usize, pages: &[PageId]) -> impl Iterator<Item = usize> {
        let page_bytes = self.layout.bytes();
        let heads = (0..self.heads.kv_heads).map(move |head| head * capacity * page_bytes);
        heads.flat_map(move |head| pages.iter().map(move |page| head + page.ix() * page_bytes))
    }
}

/// Names the layouts of pages and of saved pages in this file; changes with them.
pub const LAYOUT: &str = "cpu pages 1";

impl KvStore {
    /// Bytes that one page takes in all parts and heads, of keys and values that are rounded to `kv`.
    pub fn page_bytes(shape: &KvShape, kv: KvDtype) -> usize {
        let layout = |heads: &HeadLayout| CpuPageLayout::new(shape.dtype, heads).rounded_to(kv);
        let part = |heads: &HeadLayout| heads.kv_heads * layout(heads).bytes();
        let routes = shape.routes.map_or(0, |routes| routes.page_bytes(PAGE_TOKENS));
        shape.parts().iter().map(part).sum::<usize>() + routes
    }

    /// Maps address space for `shape.pages` zeroed pages. Errors: the system refuses a mapping of that size.
    pub fn new(shape: &KvShape, kv: KvDtype) -> Result<Self> {
        let part = |&heads: &HeadLayout| {
            let layout = CpuPageLayout::new(shape.dtype, &heads).rounded_to(kv);
            Ok(PartStore { heads, layout, map: mapped(shape, kv, heads.kv_heads * shape.pages * layout.bytes())? })
        };
        let parts = shape.parts().iter().map(part).collect::<Result<_>>()?;
        let states = LayerStates::all(&shape.states);
        let routes = |routes: RouteShape| {
            let map = mapped(shape, kv, shape.pages * routes.page_bytes(PAGE_TOKENS))?;
            Ok::<_, Error>(RouteStore { shape: routes, map })
        };
        let (places, routes) = (shape.places.clone(), shape.routes.map(routes).transpose()?);
        Ok(Self { dtype: shape.dtype, kv, pages: shape.pages, places, parts, states, routes })
    }

    /// The states of recurrent layer `layer`.
    pub fn states(&mut self, layer: LayerIx) -> &mut LayerStates {
        &mut self.states[layer.ix()]
    }

    /// The page group of a layer.
    pub fn group(&self, layer: LayerIx) -> GroupIx {
        self.places[layer.ix()].group
    }

    fn part(&self, layer: LayerIx) -> &PartStore {
        &self.parts[self.places[layer.ix()].part]
    }

    /// The compute dtype.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn heads(&self, layer: LayerIx) -> HeadLayout {
        self.part(layer).heads
    }

    pub fn layout(&self, layer: LayerIx) -> CpuPageLayout {
        self.part(layer).layout
    }

    /// All pages of one head of one layer, those of other page groups too, back to back, as words of type `T` (see
    /// `StoredWord`).
    pub fn head<T: bytemuck::Pod>(&self, layer: LayerIx, kv_head: usize) -> &[T] {
        let PartStore { layout, map, .. } = self.part(layer);
        let bytes = self.pages * layout.bytes();
        bytemuck::cast_slice(&map[kv_head * bytes..][..bytes])
    }

    /// The key of one token, widened to f32: `head_dim` values.
    pub fn key(&self, layer: LayerIx, kv_head: usize, at: KvSlot) -> Vec<f32> {
        self.token(layer, kv_head, at, self.heads(layer).head_dim, |layout, i| layout.key(at.slot as usize, i))
    }

    /// The keys of these tokens, widened to f32: `[slots, head_dim]`.
    pub fn keys(&self, layer: LayerIx, kv_head: usize, slots: &[KvSlot]) -> Vec<f32> {
        let mut all = Vec::with_capacity(slots.len() * self.heads(layer).head_dim);
        for of_page in slots.chunk_by(|a, b| a.page == b.page) {
            let keys = self.page_keys(layer, kv_head, of_page[0].page);
            let keys = keys.as_chunks::<SLOTS>().0;
            of_page.iter().for_each(|at| all.extend(keys.iter().map(|lanes| lanes[at.slot as usize])));
        }
        all
    }

    /// The keys of one page, widened to f32: `[head_dim][SLOTS]`. Slots without a token hold arbitrary values.
    pub fn page_keys(&self, layer: LayerIx, kv_head: usize, page: PageId) -> Vec<f32> {
        let layout = self.layout(layer);
        let keys = page.ix() * layout.elements()..page.ix() * layout.elements() + layout.key_elements();
        match (layout.stored, layout.dtype) {
            (StoredAs::Fp8, _) => {
                let stored = &self.head::<u8>(layer, kv_head)[keys];
                let element = |at: usize| of_e4m3(stored[layout.key(at % SLOTS, at / SLOTS)]);
                (0..stored.len()).map(element).collect()
            }
            (StoredAs::Dtype, Dtype::F32) => self.head::<f32>(layer, kv_head)[keys].to_vec(),
            (StoredAs::Dtype, Dtype::F16) => {
                self.head::<half::f16>(layer, kv_head)[keys].iter().map(|x| x.to_f32()).collect()
            }
            (StoredAs::Dtype, Dtype::Bf16) => {
                let stored = &self.head::<half::bf16>(layer, kv_head)[keys];
                let element = |at: usize| stored[layout.key(at % SLOTS, at / SLOTS)].to_f32();
                (0..stored.len()).map(element).collect()
            }
        }
    }

    /// The value of one token, widened to f32: `HeadLayout::value_dim` values.
    pub fn value(&self, layer: LayerIx, kv_head: usize, at: KvSlot) -> Vec<f32> {
        self.token(layer, kv_head, at, self.heads(layer).value_dim(), |layout, i| layout.value(at.slot as usize, i))
    }

    /// `count` elements of one token, at the indices that `element` gives, widened to f32.
    fn token(
        &self,
        layer: LayerIx,
        kv_head: usize,
        at: KvSlot,
        count: usize,
        element: impl Fn(&CpuPageLayout, usize) -> usize,
    ) -> Vec<f32> {
        let layout = self.layout(layer);
        let base = at.page.ix() * layout.elements();
        let elements = (0..count).map(|i| base + element(&layout, i));
        match (layout.stored, layout.dtype) {
            (StoredAs::Fp8, _) => elements.map(|i| of_e4m3(self.head::<u8>(layer, kv_head)[i])).collect(),
            (StoredAs::Dtype, Dtype::F32) => elements.map(|i| self.head::<f32>(layer, kv_head)[i]).collect(),
            (StoredAs::Dtype, Dtype::F16) => {
                elements.map(|i| self.head::<half::f16>(layer, kv_head)[i].to_f32()).collect()
            }
            (StoredAs::Dtype, Dtype::Bf16) => {
                elements.map(|i| self.head::<half::bf16>(layer, kv_head)[i].to_f32()).collect()
            }
        }
    }

    fn route_store(&self) -> &RouteStore {
        self.routes.as_ref().expect(KEEPS_ROUTES)
    }

    /// What is kept of the tokens' experts. Only where something is.
    pub fn routes(&self) -> RouteShape {
        self.route_store().shape
    }

    /// See `Backend::keep_routes`; `rows`: rows of the step with their slots.
    pub fn keep_routes(&mut self, layer: LayerIx, routes: &CpuRoutes, rows: impl Iterator<Item = (usize, KvSlot)>) {
        let store = self.routes.as_mut().expect(KEEPS_ROUTES);
        let layer_bytes = store.shape.chosen * store.shape.id_bytes();
        for (row, at) in rows {
            let first = store.at(at) + layer.ix() * layer_bytes;
            store.shape.encode(routes.chosen(row), &mut store.map[first..first + layer_bytes]);
        }
    }

    /// See `Backend::read_routes`.
    pub fn read_routes(&self, slots: &[KvSlot]) -> Vec<u16> {
        let store = self.route_store();
        let bytes = |&at: &KvSlot| &store.map[store.at(at)..][..store.shape.slot_bytes()];
        slots.iter().flat_map(|at| store.shape.decode(bytes(at))).collect()
    }

    /// Copies all parts and heads of `pages`, `[part][kv_head][page]`, then the experts of their tokens, `[page]`.
    pub fn save(&self, pages: &[PageId]) -> Vec<u8> {
        let mut saved = Vec::new();
        for part in &self.parts {
            for at in part.offsets(self.pages, pages) {
                saved.extend_from_slice(&part.map[at..at + part.layout.bytes()]);
            }
        }
        if let Some(routes) = &self.routes {
            pages.iter().for_each(|&page| saved.extend_from_slice(&routes.map[routes.page(page)]));
        }
        saved
    }

    /// Overwrites `slots` of page number `page` of `saved` with those of page number `from` of `others`.
    pub fn join(&self, saved: &mut [u8], page: usize, others: &[u8], from: usize, slots: Range<u32>) {
        let part_bytes = |part: &PartStore| part.heads.kv_heads * part.layout.bytes();
        let of_routes = self.routes.as_ref().map_or(0, RouteStore::page_bytes);
        let all = self.parts.iter().map(part_bytes).sum::<usize>() + of_routes;
        let (to_pages, from_pages) = (saved.len() / all, others.len() / all);
        let mut before = 0;
        for part in &self.parts {
            let (layout, element) = (part.layout, part.layout.element_bytes());
            for head in 0..part.heads.kv_heads {
                let to = before * to_pages + (head * to_pages + page) * layout.bytes();
                let from = before * from_pages + (head * from_pages + from) * layout.bytes();
                let indices = slots.clone().flat_map(|slot| layout.token(slot as usize));
                for at in indices.map(|index| index * element) {
                    saved[to + at..][..element].copy_from_slice(&others[from + at..][..element]);
                }
            }
            before += part_bytes(part);
        }
        if let Some(routes) = &self.routes {
            let slots =
                slots.start as usize * routes.shape.slot_bytes()..slots.end as usize * routes.shape.slot_bytes();
            let (to, from) = (before * to_pages + page * of_routes, before * from_pages + from * of_routes);
            saved[to..][slots.clone()].copy_from_slice(&others[from..][slots]);
        }
    }

    /// Writes saved pages to `pages`, in the same order and number.
    pub fn restore(&mut self, saved: &[u8], pages: &[PageId]) {
        let mut saved = saved;
        for part in &mut self.parts {
            let offsets: Vec<usize> = part.offsets(self.pages, pages).collect();
            for at in offsets {
                let (bytes, rest) = saved.split_at(part.layout.bytes());
                part.map[at..at + bytes.len()].copy_from_slice(bytes);
                saved = rest;
            }
        }
        if let Some(routes) = &mut self.routes {
            for &page in pages {
                let (bytes, rest) = saved.split_at(routes.page_bytes());
                let at = routes.page(page);
                routes.map[at].copy_from_slice(bytes);
                saved = rest;
            }
        }
        assert!(saved.is_empty(), "restore: as many pages as were saved");
    }

    /// Copies the state in `slot`, one layer after the other.
    pub fn save_state(&self, slot: StateId) -> Vec<u8> {
        let mut saved = Vec::new();
        self.states.iter().for_each(|layer| layer.save(slot, &mut saved));
        saved
    }

    /// Writes a saved state to `slot`.
    pub fn restore_state(&mut self, saved: &[u8], slot: StateId) {
        let left = self.states.iter_mut().fold(saved, |saved, layer| layer.restore(slot, saved));
        assert!(left.is_empty(), "restore_state: a state of these layers");
    }

    /// Stores the key and value heads of row `r` of `qkv` (`[R, qkv_width]`) in `slots[r]` of `layer`, rounded to the
    /// KV dtype. Rows that go to one page must come in rising order of slot.
    pub fn append(&mut self, cores: &Cores, layer: LayerIx, qkv: &CpuBuffer, slots: &[KvSlot]) {
        let heads = self.heads(layer);
        assert_eq!((qkv.rows, qkv.width), (slots.len(), heads.qkv_width()), "kv_append: shape of qkv");
        self.append_behind(cores, layer, qkv, heads.q_width(), slots);
    }

    /// As `append`, of rows whose keys and values begin at element `first`, to the end of the row.
    pub fn append_behind(&mut self, cores: &Cores, layer: LayerIx, rows: &CpuBuffer, first: usize, slots: &[KvSlot]) {
        let part = self.places[layer.ix()].part;
        let PartStore { heads, layout, map } = &mut self.parts[part];
        let (heads, layout) = (*heads, *layout);
        let shape = (slots.len(), first + heads.stored_width());
        assert_eq!((rows.rows, rows.width), shape, "shape of the rows that are stored");
        let rounded;
        let rows = match (heads.kv_dtype(self.kv), layout.stored) {
            (KvDtype::Model, _) | (KvDtype::Fp8, StoredAs::Fp8) => rows,
            (KvDtype::Fp8, StoredAs::Dtype) => {
                rounded = rounded_to_e4m3(rows, first);
                &rounded
            }
        };
        let bytes = self.pages * layout.bytes();
        if bytes == 0 {
            assert!(slots.is_empty(), "a slot in an empty pool");
            return;
        }
        let write = |(kv_head, pages): (usize, &mut [u8])| {
            let values = first + heads.kv_heads * heads.head_dim + kv_head * heads.value_dim();
            let columns = HeadColumns { key: first + kv_head * heads.head_dim, value: values };
            append_head(cores.isa, layout, columns, pages, rows, slots);
        };
        if slots.len() * heads.stored_width() / 2 < PARALLEL_ELEMENTS {
            map.chunks_exact_mut(bytes).take(heads.kv_heads).enumerate().for_each(write);
        } else {
            cores.team.for_chunks(&mut map[..heads.kv_heads * bytes], bytes, |kv_head, pages| write((kv_head, pages)));
        }
    }
}

const KEEPS_ROUTES: &str = "experts are kept and read only where `KvShape::routes` says so";

/// Zeroed address space for one part of `shape`. Errors: the system refuses a mapping of that size.
fn mapped(shape: &KvShape, kv: KvDtype, bytes: usize) -> Result<MmapMut> {
    // An empty pool maps one byte: a mapping of zero bytes is an error.
    MmapMut::map_anon(bytes.max(1)).map_err(|source| no_memory(shape, kv, &source))
}

fn no_memory(shape: &KvShape, kv: KvDtype, source: &std::io::Error) -> Error {
    let bytes = KvStore::page_bytes(shape, kv) * shape.pages;
    Error::value(
        "memory for keys and values",
        "a size that the system can map",
        format!("{bytes} bytes: {}", MemoryFault(source)),
    )
}

/// A copy of `rows` with the elements from `first` on rounded to e4m3, which every dtype represents exactly.
fn rounded_to_e4m3(rows: &CpuBuffer, first: usize) -> CpuBuffer {
    let mut rounded = rows.clone();
    for row in rounded.data.chunks_exact_mut(rows.width) {
        row[first..].iter_mut().for_each(|x| *x = e4m3(*x));
    }
    rounded
}

/// Where a key head's key begins in a row, and its value, if values lie beside keys.
#[derive(Clone, Copy)]
struct HeadColumns {
    key: usize,
    value: usize,
}

for_each_isa! {
    /// Appends all rows of one head. `pages`: all pages of that head.
    fn append_head(
        layout: CpuPageLayout,
        columns: HeadColumns,
        pages: &mut [u8],
        rows: &CpuBuffer,
        slots: &[KvSlot],
    ) {
        match (layout.stored, layout.dtype) {
            (StoredAs::Dtype, Dtype::F32) => {
                append_rows::<f32>(layout, columns, bytemuck::cast_slice_mut(pages), rows, slots);
            }
            (StoredAs::Dtype, Dtype::F16) => {
                append_rows::<half::f16>(layout, columns, bytemuck::cast_slice_mut(pages), rows, slots);
            }
            (StoredAs::Dtype, Dtype::Bf16) => {
                append_rows::<Bf16Pair>(layout, columns, bytemuck::cast_slice_mut(pages), rows, slots);
            }
            (StoredAs::Fp8, Dtype::F32 | Dtype::F16) => append_rows::<u8>(layout, columns, pages, rows, slots),
            (StoredAs::Fp8, Dtype::Bf16) => {
                append_rows::<CodePair>(layout, columns, bytemuck::cast_slice_mut(pages), rows, slots);
            }
        }
    }
}

/// A word of a page: one element, or a pair of neighbours.
trait StoredWord: bytemuck::Pod {
    /// The word of the key elements `x`: one element, or two where they are stored in pairs.
    fn of_key(x: &[f32]) -> Self;
    /// `self` with the value element of `slot` replaced by `x`. If `slot` is the even one of a pair and the odd element
    /// is not finite, the latter becomes zero.
    fn with_value(self, slot: usize, x: f32) -> Self;
}

impl StoredWord for f32 {
    #[inline(always)]
    fn of_key(x: &[f32]) -> Self {
        x[0]
    }

    fn with_value(self, _slot: usize, x: f32) -> Self {
        x
    }
}

impl StoredWord for half::f16 {
    #[inline(always)]
    fn of_key(x: &[f32]) -> Self {
        Self::from_f32(x[0])
    }

    fn with_value(self, _slot: usize, x: f32) -> Self {
        Self::from_f32(x)
    }
}

/// Two bf16 elements, the first in the low half.
type Bf16Pair = u32;

impl StoredWord for Bf16Pair {
    #[inline(always)]
    fn of_key(x: &[f32]) -> Self {
        bf16_bits(x[0]) | bf16_bits(x[1]) << 16
    }

    #[inline(always)]
    fn with_value(self, slot: usize, x: f32) -> Self {
        match slot % 2 {
            0 if self & 0x7f80_0000 == 0x7f80_0000 => bf16_bits(x),
            0 => (self & 0xffff_0000) | bf16_bits(x),
            _ => (self & 0xffff) | bf16_bits(x) << 16,
        }
    }
}

/// A code of e4m3.
impl StoredWord for u8 {
    #[inline(always)]
    fn of_key(x: &[f32]) -> Self {
        e4m3_code(x[0])
    }

    fn with_value(self, _slot: usize, x: f32) -> Self {
        e4m3_code(x)
    }
}

/// Codes of two elements, in order.
type CodePair = [u8; 2];

impl StoredWord for CodePair {
    #[inline(always)]
    fn of_key(x: &[f32]) -> Self {
        [e4m3_code(x[0]), e4m3_code(x[1])]
    }

    fn with_value(mut self, slot: usize, x: f32) -> Self {
        self[slot % 2] = e4m3_code(x);
        self
    }
}

#[inline(always)]
fn append_rows<T: StoredWord>(
    layout: CpuPageLayout,
    columns: HeadColumns,
    pages: &mut [T],
    rows: &CpuBuffer,
    slots: &[KvSlot],
) {
    let (d, pair) = (layout.head_dim, layout.pair());
    let page_words = layout.elements() / pair;
    let mut rounded = [T::zeroed(); ROUNDED];
    for (r, at) in slots.iter().enumerate() {
        let row = rows.row(r);
        let slot = at.slot as usize;
        if let Some(next) = slots.get(r + 1).filter(|next| next.page != at.page) {
            let page = &pages[next.page.ix() * page_words..][..page_words];
            let (keys, values) = page.split_at(layout.key_elements() / pair);
            let values = values.get(next.slot as usize / pair * layout.width..).unwrap_or_default();
            let values = &values[..layout.width.min(values.len())];
            let lines = keys.chunks(SLOTS).chain(values.chunks(SLOTS));
            lines.for_each(|line| prefetch_line(line.as_ptr().cast(), CacheLevel::Second));
        }
        let page = &mut pages[at.page.ix() * page_words..][..page_words];
        let (keys, values) = page.split_at_mut(layout.key_elements() / pair);
        let key = row[columns.key..][..d].chunks(ROUNDED * pair);
        for (x, lanes) in key.zip(keys.as_chunks_mut::<SLOTS>().0.chunks_mut(ROUNDED)) {
            // Rounded apart from the scattered stores, so that this loop vectorises.
            let rounded = &mut rounded[..lanes.len()];
            rounded.iter_mut().zip(x.chunks_exact(pair)).for_each(|(word, x)| *word = T::of_key(x));
            lanes.iter_mut().zip(rounded).for_each(|(lanes, word)| lanes[slot] = *word);
        }
        if let Values::Beside(value_dim) = layout.values {
            for (word, &x) in values[slot / pair * layout.width..].iter_mut().zip(&row[columns.value..][..value_dim]) {
                *word = word.with_value(slot, x);
            }
        }
    }
}
