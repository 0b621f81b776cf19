//! Values made of keys that hold them, at once and by panels: those of the tile's slots, zeros in all others.

use offshoot_backend::{Dtype, HeadLayout, Values};
use offshoot_cpu::Isa;
use offshoot_cpu::attention::in_keys::{InKeys, PANEL};
use offshoot_cpu::attention::path::{LANES, TileView};
use offshoot_cpu::attention::tiles::PAGES;
use offshoot_cpu::kv::{CpuPageLayout, SLOTS};

/// Keys and values as they would be stored beside each other, of words of 32 bits.
fn layouts(dtype: Dtype, head_dim: usize, value_dim: usize) -> [CpuPageLayout; 2] {
    [Values::InKeys(value_dim), Values::Beside(value_dim)].map(|values| {
        CpuPageLayout::new(dtype, &HeadLayout { q_heads: 1, kv_heads: 1, head_dim, values, expanded: false })
    })
}

/// Element `i` of the words of a page.
fn element(words: &[u32], pair: usize, i: usize) -> u32 {
    match pair {
        1 => words[i],
        _ => words[i / 2] >> (16 * (i % 2)) & 0xffff,
    }
}

#[test]
fn values_are_those_of_the_tile_and_zeros_elsewhere() {
    if !Isa::available().contains(&Isa::Avx2) {
        return;
    }
    for (head_dim, value_dim) in [(576, 512), (2, 2), (18, 2), (24, 16), (40, 40), (152, 136), (32, 18), (64, 50)] {
        for (dtype, lanes) in [(Dtype::F32, 0..64), (Dtype::F32, 3..41), (Dtype::Bf16, 0..64), (Dtype::Bf16, 5..38)] {
            let [in_keys, beside] = layouts(dtype, head_dim, value_dim);
            let pair = in_keys.pair();
            let values = InKeys::of(in_keys, pair).expect("values lie in keys");
            let words = in_keys.key_elements() / pair;
            let keys: Vec<u32> = (1u32..).take(PAGES * words).map(|i| i.wrapping_mul(0x9e37_79b9) | 0x1_0001).collect();
            let page = |page: usize| &keys[page * words..][..words];
            // The third page has none of the tile's slots.
            let present = [true, true, lanes.end > 2 * SLOTS, lanes.end > 3 * SLOTS];
            let pointer = |at: usize| if present[at] { page(at).as_ptr().cast() } else { std::ptr::null() };
            let mut view = TileView { keys: [0, 1, 2, 3].map(pointer), values: [std::ptr::null(); PAGES] };
            let mut made = vec![u32::MAX; PAGES * values.words()];
            // SAFETY: the processor has AVX2, and the pages are whole.
            unsafe { values.fill(&mut view, &lanes, &mut made) };
            let panels: Vec<[u32; LANES * PANEL]> = (0..values.panels())
                .map(|panel| {
                    let mut made = [u32::MAX; LANES * PANEL];
                    // SAFETY: as above.
                    unsafe { values.fill_panel(panel, &view.keys.map(|keys| keys.cast()), &lanes, &mut made) };
                    made
                })
                .collect();
            for at in (0..PAGES).filter(|&at| present[at]) {
                let made = &made[at * values.words()..][..values.words()];
                assert_eq!(view.values[at], made.as_ptr().cast());
                for (slot, i) in (0..SLOTS).flat_map(|slot| (0..value_dim).map(move |i| (slot, i))) {
                    let found = element(made, pair, beside.value(slot, i) - beside.key_elements());
                    let stored = element(page(at), pair, in_keys.value(slot, i));
                    let lane = at * SLOTS + slot;
                    let expected = if lanes.contains(&lane) { stored } else { 0 };
                    let in_panel = (lane / pair * PANEL + i % PANEL) * pair + lane % pair;
                    let found = [found, element(&panels[i / PANEL], pair, in_panel)];
                    let what = format!("{dtype}, {value_dim} of {head_dim}, {lanes:?}: page {at}, slot {slot}");
                    assert_eq!(found, [expected; 2], "{what}");
                }
            }
        }
    }
}
