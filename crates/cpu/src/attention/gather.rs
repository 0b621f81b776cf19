//! Gathers the slots of several pages into one. Needed where segments begin or end inside a page, because the kernels
//! read whole pages only. They read numbers, so codes of e4m3 become some here.

use std::ops::{BitAnd, BitOr, Not, Range};

use bytemuck::Pod;

use crate::kv::{CpuPageLayout, SLOTS, StoredAs};
use offshoot_backend::{Dtype, Values, of_e4m3};

/// A stored word that can be combined with another one under a bit mask.
trait MaskWord: Pod + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self> {
    /// The mask of element `element` in a word of `pair` elements.
    fn element(element: usize, pair: usize) -> Self;
}

impl MaskWord for u32 {
    fn element(element: usize, pair: usize) -> Self {
        match pair {
            1 => u32::MAX,
            _ => 0xffff << (16 * element),
        }
    }
}

impl MaskWord for u16 {
    fn element(_element: usize, _pair: usize) -> Self {
        u16::MAX
    }
}

/// Copies the keys and the values beside them in `slots` from page `from` to page `to`, which holds numbers whatever
/// `from` does. Other slots of `to` keep their contents, also where they share a word with a copied one.
pub fn copy_slots(layout: CpuPageLayout, to: &mut [u8], from: &[u8], slots: &Range<usize>) {
    match (layout.stored, layout.dtype) {
        (StoredAs::Dtype, Dtype::F16) => {
            copy_words::<u16>(layout, bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from), slots);
        }
        (StoredAs::Dtype, Dtype::F32 | Dtype::Bf16) => {
            copy_words::<u32>(layout, bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from), slots);
        }
        (StoredAs::Fp8, Dtype::F32) => widen_codes(layout, bytemuck::cast_slice_mut(to), from, slots, of_e4m3),
        (StoredAs::Fp8, Dtype::Bf16) => {
            // Exact: bf16 is the upper half of f32.
            let number = |code| (of_e4m3(code).to_bits() >> 16) as u16;
            widen_codes(layout, bytemuck::cast_slice_mut(to), from, slots, number);
        }
        (StoredAs::Fp8, Dtype::F16) => {
            let numbers: [half::f16; 256] = std::array::from_fn(|code| half::f16::from_f32(of_e4m3(code as u8)));
            widen_codes(layout, bytemuck::cast_slice_mut(to), from, slots, |code| numbers[usize::from(code)]);
        }
    }
}

/// Writes the numbers of the codes in `slots`, of keys that have values in them.
fn widen_codes<T: Pod>(
    layout: CpuPageLayout,
    to: &mut [T],
    from: &[u8],
    slots: &Range<usize>,
    number: impl Fn(u8) -> T,
) {
    let (row, lanes) = (SLOTS * layout.pair(), slots.start * layout.pair()..slots.end * layout.pair());
    for (to, from) in to.chunks_exact_mut(row).zip(from.chunks_exact(row)) {
        to[lanes.clone()].iter_mut().zip(&from[lanes.clone()]).for_each(|(to, &code)| *to = number(code));
    }
}

fn copy_words<T: MaskWord>(layout: CpuPageLayout, to: &mut [T], from: &[T], slots: &Range<usize>) {
    let pair = layout.pair();
    let key_words = layout.key_elements() / pair;
    let mut mask = [T::zeroed(); SLOTS];
    mask[slots.clone()].fill(!T::zeroed());
    let (to_keys, to_values) = to.split_at_mut(key_words);
    let (from_keys, from_values) = from.split_at(key_words);
    for (to, from) in to_keys.as_chunks_mut::<SLOTS>().0.iter_mut().zip(from_keys.as_chunks::<SLOTS>().0) {
        for lane in 0..SLOTS {
            to[lane] = (from[lane] & mask[lane]) | (to[lane] & !mask[lane]);
        }
    }
    if matches!(layout.values, Values::InKeys(_)) {
        return;
    }
    for row in slots.start / pair..slots.end.div_ceil(pair) {
        let taken = (0..pair).filter(|element| slots.contains(&(row * pair + element)));
        let mask = taken.fold(T::zeroed(), |mask, element| mask | T::element(element, pair));
        let words = row * layout.width..(row + 1) * layout.width;
        for (to, from) in to_values[words.clone()].iter_mut().zip(&from_values[words]) {
            *to = (*from & mask) | (*to & !mask);
        }
    }
}
