//! Memory as the kernels find it: elements in their formats, and the keys and values of a forest in pages.

use std::collections::BTreeMap;

use float8::F8E4M3;
use half::{bf16, f16};
use offshoot_backend::{Dtype, HeadLayout, KvDtype};
use offshoot_cases::setting::Setting;
use offshoot_cuda::compile::elements::{KvElement, PageLayout};
use offshoot_fixtures::forests::{GrownForest, context};
use offshoot_kv::KvSlot;

use super::PAGE;
use crate::emulator::page_place;

pub(super) fn bits(dtype: Dtype, x: f32) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f32(x).to_bits(),
        Dtype::Bf16 => bf16::from_f32(x).to_bits(),
        Dtype::F32 => unreachable!("the kernel has no f32"),
    }
}

pub(super) fn value(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f32(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f32(),
        Dtype::F32 => unreachable!("the kernel has no f32"),
    }
}

/// Memory at a multiple of 16 bytes.
pub(super) struct Aligned<T> {
    pub(super) memory: Vec<T>,
    pub(super) from: usize,
    pub(super) len: usize,
}

impl<T: Copy> Aligned<T> {
    pub(super) fn of(values: &[T], room: usize, filler: T) -> Self {
        let mut memory = vec![filler; values.len() + room + 16];
        let from = memory.as_ptr().align_offset(16);
        memory[from..from + values.len()].copy_from_slice(values);
        Aligned { memory, from, len: values.len() + room }
    }

    pub(super) fn at(&mut self) -> *mut T {
        self.memory[self.from..].as_mut_ptr()
    }

    pub(super) fn values(&self) -> &[T] {
        &self.memory[self.from..][..self.len]
    }
}

/// An element of keys and values as the kernel finds it, in its first `element_bytes`.
pub(super) fn stored(setting: &Setting, x: f32) -> [u8; 2] {
    match setting.kv {
        KvDtype::Model => bits(setting.dtype, x).to_le_bytes(),
        KvDtype::Fp8 => [F8E4M3::from_f32(x).to_bits(); 2],
    }
}

pub(super) fn element_bytes(setting: &Setting) -> usize {
    match kept(setting.kv) {
        KvElement::Fp8 => 1,
        KvElement::Plain | KvElement::Rounded => 2,
    }
}

pub(super) fn kept(kv: KvDtype) -> KvElement {
    match kv {
        KvDtype::Model => KvElement::Plain,
        KvDtype::Fp8 => KvElement::Fp8,
    }
}

/// Keys and values of a layer, none of them a number.
pub(super) fn no_kv(setting: &Setting, pages: usize) -> Vec<u8> {
    let element = stored(setting, f32::NAN);
    let elements = pages * PAGE * setting.heads.stored_width();
    element[..element_bytes(setting)].repeat(elements)
}

/// Where a stored element of a token, by its place among all of the token's key heads, then value heads, lies in a
/// layer's pages.
pub(super) fn place(setting: &Setting, layout: PageLayout, slot: KvSlot, element: usize) -> usize {
    let HeadLayout { kv_heads, head_dim, .. } = setting.heads;
    let of_head = setting.heads.stored_width() / kv_heads;
    let (head, width, before, element) = match element.checked_sub(kv_heads * head_dim) {
        None => (element / head_dim, head_dim, 0, element % head_dim),
        Some(value) => {
            let width = of_head - head_dim;
            (value / width, width, head_dim, value % width)
        }
    };
    let run = ((slot.page.ix() * kv_heads + head) * of_head + before) * PAGE;
    let bytes = element_bytes(setting);
    run * bytes + page_place(layout, slot.slot as usize, element, width, bytes)
}

/// The slots that rows of a forest see, each once, by page and place there.
pub(super) fn seen_slots(grown: &GrownForest) -> BTreeMap<(u32, u32), KvSlot> {
    let contexts = (0..grown.rows.len()).flat_map(|row| context(&grown.forest, row));
    contexts.map(|slot| (number_of(slot), slot)).collect()
}

pub(super) fn number_of(slot: KvSlot) -> (u32, u32) {
    (slot.page.0, slot.slot)
}

/// Keys and values of a layer, `[page][kv head][keys, values beside them][32][width]`; what no row sees is not a
/// number.
pub(super) fn kv(setting: &Setting, layout: PageLayout, grown: &GrownForest) -> Vec<u8> {
    kv_where(setting, layout, grown, Some)
}

/// The same of those that `stored_at` gives a slot.
pub(super) fn kv_where(
    setting: &Setting,
    layout: PageLayout,
    grown: &GrownForest,
    stored_at: impl Fn(KvSlot) -> Option<KvSlot>,
) -> Vec<u8> {
    let pages = grown.forest.pages.iter().map(|page| page.ix() + 1).max().unwrap_or(0);
    let (mut kv, bytes) = (no_kv(setting, pages), element_bytes(setting));
    for (slot, own) in seen_slots(grown).into_values().filter_map(|slot| Some((slot, stored_at(slot)?))) {
        for (i, x) in setting.kv(slot).enumerate() {
            let at = place(setting, layout, own, i);
            kv[at..][..bytes].copy_from_slice(&stored(setting, x)[..bytes]);
        }
    }
    kv
}
