//! Keys and values of all layers, in pages of 32 slots. This file says how pages follow each other and
//! kernels/kv_page.cuh how rows lie in one; the prefix tree decides which page holds which token.
//!
//! # Layout
//! One allocation: `[layer][page][kv_head][keys, values][32 slots][head_dim]`. So a page of one head is two runs, keys
//! and values, each contiguous and, since a head has a whole number of 16-bit pairs, a multiple of 128 bytes: also of
//! fp8, which only pages of heads of 64 or 128 hold ([`KvElement`]). Within a row the order depends on who reads it
//! ([`PageLayout`]).

use std::ops::Range;

use super::staging::Staging;
use crate::backend::cuda::compile::elements::{KvElement, PageLayout};
use crate::backend::cuda::compile::unit::Unit;
use crate::backend::cuda::compile::units;
use crate::backend::cuda::driver::args::Args;
use crate::backend::cuda::driver::device::Device;
use crate::backend::cuda::driver::function::Function;
use crate::backend::cuda::driver::memory::Memory;
use crate::backend::{Dtype, HeadLayout, KvShape, SavedBytes};
use crate::error::{Error, Result};
use crate::figures;
use crate::ids::{LayerIx, PageId};
use crate::kv::KvSlot;

pub const PAGE_TOKENS: u32 = 32;

/// Device bytes through which saved pages pass, or one page where that has more.
const PACKED: usize = 32 << 20;

pub struct Kv {
    device: Device,
    memory: Memory,
    shape: KvShape,
    /// Of all layers.
    heads: HeadLayout,
    kv_element: KvElement,
    append: Function,
    kv_save: Function,
    kv_restore: Function,
    /// `[P][layer][page bytes of the layer]` on their way to or from the host.
    packed: Memory,
    /// Their ids, `[P]` words.
    packed_ids: Memory,
}

/// Keys and values of some pages, all layers, in host memory.
pub struct SavedPages {
    bytes: Vec<u8>,
    pages: usize,
}

/// Names the order of `[P][layer][page bytes of the layer]` in this file, beside the page's own ([`PageLayout`]).
pub const LAYOUT: &str = "cuda pages 1";

impl SavedBytes for SavedPages {
    fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn from_bytes(bytes: Vec<u8>, pages: usize) -> Self {
        SavedPages { bytes, pages }
    }
}

/// The heads of all layers: one layout of pages, and one set of attention kernels, serves a whole model here.
pub fn same_heads(heads: &[HeadLayout]) -> Result<HeadLayout> {
    let first = heads[0];
    match heads.iter().find(|&&other| other != first) {
        None => Ok(first),
        Some(other) => {
            let found = format!("{first} and {other} (heads of queries / of keys x width)");
            Err(Error::value("the heads of the model's layers", "the same in all layers, on a GPU", found))
        }
    }
}

/// Bytes that one page takes in one layer.
pub fn layer_page_bytes(heads: HeadLayout, dtype: Dtype, kv_element: KvElement) -> usize {
    2 * heads.kv_heads * PAGE_TOKENS as usize * heads.head_dim * kv_element.element_bytes(dtype)
}

/// Bytes that one page takes, all layers.
pub fn page_bytes(shape: &KvShape, kv_element: KvElement) -> usize {
    shape.heads.iter().map(|&heads| layer_page_bytes(heads, shape.dtype, kv_element)).sum()
}

/// Bytes that [`Kv::new`] allocates beside those of the pool's pages.
pub fn overhead_bytes(shape: &KvShape, kv_element: KvElement) -> usize {
    let pages = packed_pages(shape, kv_element);
    pages * (page_bytes(shape, kv_element) + size_of::<u32>())
}

fn packed_pages(shape: &KvShape, kv_element: KvElement) -> usize {
    (PACKED / page_bytes(shape, kv_element)).clamp(1, shape.pages.max(1))
}

/// Slot word of a padded row, as in kernels/ops/kv_append.cu: its key and value are left out.
pub const NO_SLOT: u32 = u32::MAX;

/// A slot as kernels read it.
pub fn slot_word(slot: KvSlot) -> u32 {
    debug_assert!(slot.slot < PAGE_TOKENS);
    slot.page.0 * PAGE_TOKENS + slot.slot
}

impl Kv {
    /// Pages of unspecified contents: a slot is written before it is read. An error where layers differ in their heads.
    pub fn new(device: &Device, shape: &KvShape, kv_element: KvElement) -> Result<Self> {
        assert!(shape.pages < (u32::MAX / PAGE_TOKENS) as usize, "{} pages: slots are words", shape.pages);
        let unit = Unit::new(&units::KV_PAGES);
        let (pages, heads) = (packed_pages(shape, kv_element), same_heads(&shape.heads)?);
        let layout = PageLayout::of(device.facts().major, shape.dtype, heads.head_dim);
        let (append, name) = units::kv_append(shape.dtype, kv_element, layout);
        Ok(Self {
            memory: device.alloc(shape.pages * page_bytes(shape, kv_element))?,
            append: device.function(&append, name)?,
            kv_save: device.function(&unit, "kv_save")?,
            kv_restore: device.function(&unit, "kv_restore")?,
            packed: device.alloc(pages * page_bytes(shape, kv_element))?,
            packed_ids: device.alloc(pages * size_of::<u32>())?,
            device: device.clone(),
            shape: shape.clone(),
            heads,
            kv_element,
        })
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Of all layers.
    pub fn heads(&self) -> HeadLayout {
        self.heads
    }

    /// Bytes that one page takes in one layer.
    fn layer_page_bytes(&self) -> usize {
        layer_page_bytes(self.heads, self.shape.dtype, self.kv_element)
    }

    pub fn kv_element(&self) -> KvElement {
        self.kv_element
    }

    /// The kernel that appends.
    pub(in crate::backend::cuda) fn append(&self) -> &Function {
        &self.append
    }

    /// The byte of `memory` at which a layer begins.
    pub fn layer_at(&self, layer: LayerIx) -> usize {
        assert!(layer.ix() < self.shape.layers(), "layer {layer} of {}", self.shape.layers());
        layer.ix() * self.shape.pages * self.layer_page_bytes()
    }

    /// Copies `pages` to host memory, and waits for them.
    pub fn save(&self, pages: &[PageId], staging: &mut Staging) -> Result<SavedPages> {
        let page_bytes = page_bytes(&self.shape, self.kv_element);
        let mut bytes = host_bytes(pages.len() * page_bytes)?;
        let at_once = packed_pages(&self.shape, self.kv_element);
        for (pages, bytes) in pages.chunks(at_once).zip(bytes.chunks_mut(at_once * page_bytes)) {
            self.upload_ids(pages)?;
            self.launch(&self.kv_save, pages.len(), &self.packed, &self.memory);
            staging.download(bytes, &self.packed)?;
        }
        Ok(SavedPages { bytes, pages: pages.len() })
    }

    /// Enqueues the copy of what was saved into `pages`, in the same order. `saved` may be dropped when it returns.
    pub fn restore(&self, saved: &SavedPages, pages: &[PageId], staging: &mut Staging) -> Result<()> {
        assert_eq!(saved.pages, pages.len(), "restore: as many pages as were saved");
        let page_bytes = page_bytes(&self.shape, self.kv_element);
        let at_once = packed_pages(&self.shape, self.kv_element);
        for (pages, bytes) in pages.chunks(at_once).zip(saved.bytes.chunks(at_once * page_bytes)) {
            staging.upload(&self.packed, 0, bytes)?;
            self.upload_ids(pages)?;
            self.launch(&self.kv_restore, pages.len(), &self.memory, &self.packed);
        }
        self.device.check()
    }

    /// Overwrites `slots` of page number `page` of `saved` with those of page number `from` of `others`: a slot is a row
    /// of each run of keys and of values, whatever the order within it.
    pub fn join(&self, saved: &mut SavedPages, page: usize, others: &SavedPages, from: usize, slots: Range<u32>) {
        let page_bytes = page_bytes(&self.shape, self.kv_element);
        let row = self.heads.head_dim * self.kv_element.element_bytes(self.shape.dtype);
        let rows = slots.start as usize * row..slots.end as usize * row;
        let (to, from) = (&mut saved.bytes[page * page_bytes..][..page_bytes], &others.bytes[from * page_bytes..]);
        let run = PAGE_TOKENS as usize * row;
        for (to, from) in to.chunks_exact_mut(run).zip(from.chunks_exact(run)) {
            to[rows.clone()].copy_from_slice(&from[rows.clone()]);
        }
    }

    fn upload_ids(&self, pages: &[PageId]) -> Result<()> {
        assert!(pages.iter().all(|page| page.ix() < self.shape.pages), "a page of the pool");
        let ids: Vec<u32> = pages.iter().map(|page| page.0).collect();
        self.device.upload(&self.packed_ids, 0, bytemuck::cast_slice(&ids))
    }

    fn launch(&self, function: &Function, pages: usize, to: &Memory, from: &Memory) {
        let small = |count: usize| u32::try_from(count).expect("page counts and sizes are below 2^32");
        let layer_pages = small(self.shape.pages);
        let chunks = small(self.layer_page_bytes() / 16);
        let args = Args::new().memory(to).memory(from).memory(&self.packed_ids).u32(layer_pages).u32(chunks);
        self.device.launch(function, [small(pages), small(self.shape.layers()), 1], 256, 0, &args);
    }
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

    fn shape(layers: usize, kv_heads: usize, head_dim: usize, pages: usize) -> KvShape {
        let heads = HeadLayout { q_heads: 4 * kv_heads, kv_heads, head_dim };
        KvShape::uniform(layers, heads, Dtype::Bf16, pages)
    }

    #[test]
    fn a_page_counts_keys_and_values_of_all_heads_and_layers() {
        // llama3-8b: 2 * 8 heads * 128 * 2 bytes = 4 KiB a token and layer
        assert_eq!(page_bytes(&shape(32, 8, 128, 100), KvElement::Plain), 32 * 32 * 4096);
        assert_eq!(page_bytes(&shape(32, 8, 128, 100), KvElement::Rounded), 32 * 32 * 4096);
        assert_eq!(page_bytes(&shape(32, 8, 128, 100), KvElement::Fp8), 32 * 32 * 2048);
    }

    #[test]
    fn layers_that_differ_in_their_heads_are_refused_by_name() {
        let (narrow, wide) = (shape(1, 1, 64, 1).heads[0], shape(1, 1, 128, 1).heads[0]);
        assert_eq!(same_heads(&[wide, wide]).expect("they are the same"), wide);
        let error = same_heads(&[wide, narrow]).expect_err("they differ").to_string();
        assert!(error.contains("64") && error.contains("128") && error.contains("GPU"), "{error}");
    }

    #[test]
    fn pages_are_whole_chunks_whatever_the_head() {
        for head_dim in (2..=256).step_by(2) {
            assert_eq!(page_bytes(&shape(1, 1, head_dim, 1), KvElement::Plain) % 128, 0, "head_dim {head_dim}");
        }
        for head_dim in [64, 128] {
            assert_eq!(page_bytes(&shape(1, 1, head_dim, 1), KvElement::Fp8) % 128, 0, "head_dim {head_dim}");
        }
    }

    #[test]
    fn pages_are_swizzled_on_hopper_alone_and_where_its_kernel_reads_them() {
        for major in [8, 9, 10, 12] {
            for (dtype, head_dim) in [Dtype::F32, Dtype::F16, Dtype::Bf16]
                .into_iter()
                .flat_map(|dtype| [16, 64, 80, 128, 256].map(|dim| (dtype, dim)))
            {
                let is_read = major == 9 && dtype != Dtype::F32 && [64, 128].contains(&head_dim);
                let expected = if is_read { PageLayout::Swizzled } else { PageLayout::Plain };
                assert_eq!(
                    PageLayout::of(major, dtype, head_dim),
                    expected,
                    "{major}.x, {dtype:?}, heads of {head_dim}"
                );
            }
        }
    }

    #[test]
    fn pages_pass_to_the_host_many_at_a_time_and_at_least_one() {
        assert_eq!(packed_pages(&shape(32, 8, 128, 100), KvElement::Plain), 8);
        assert_eq!(packed_pages(&shape(32, 8, 128, 100), KvElement::Fp8), 16);
        assert_eq!(packed_pages(&shape(32, 8, 128, 3), KvElement::Plain), 3, "no more than there are");
        assert_eq!(packed_pages(&shape(80, 64, 256, 100), KvElement::Plain), 1, "a page larger than the usual buffer");
    }

    #[test]
    fn a_slot_word_names_page_and_slot() {
        assert_eq!(slot_word(KvSlot { page: PageId(3), slot: 31 }), 3 * 32 + 31);
    }

    #[test]
    fn the_kernels_have_pages_of_the_same_size() {
        assert_eq!(PAGE_TOKENS, 32);
        assert!(include_str!("../../../../kernels/kv_page.cuh").contains("PAGE_TOKENS = 32;"));
    }
}
