//! Attention by tile registers: scores and sums are those of the instruction's definition.

use half::bf16;
use offshoot_backend::Scoring;
use offshoot_core::dice::Dice;
use offshoot_cpu::Isa;
use offshoot_cpu::amx::TILE_ROWS;
use offshoot_cpu::attention::amx::{AmxBf16, HALF, Sums, score};
use offshoot_cpu::attention::fold::AlignedRows;
use offshoot_cpu::attention::lanes::MOST_ROWS;
use offshoot_cpu::attention::path::{Geometry, KernelPath, LANES, Prefetch, RowStates, TileView, VisibleLanes};
use offshoot_cpu::attention::tiles::PAGES;
use offshoot_cpu::kv::SLOTS;

use crate::bf16_dot;
use crate::skip::skipped;

/// Words of two bf16 numbers near 1, of either sign.
fn words(count: usize, seed: u64) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    let mut number = || u32::from(bf16::from_f32(dice.number()).to_bits());
    (0..count).map(|_| number() | number() << 16).collect()
}

/// Scores are chains of [`bf16_dot::tile_dot`]s over 32 elements, the last over 16 where they are no multiple; sums
/// of values shrink and grow by those over the 16 lanes of each page; for all numbers of pages and of panels.
#[test]
fn scores_and_sums_are_those_of_the_instruction_s_definition() {
    if !Isa::available().contains(&Isa::Amx) {
        return skipped("this processor has no AMX");
    }
    for head_dim in [16, 32, 48, 80, 128] {
        let scoring = Scoring::<'_, Vec<f32>> { scale: 0.1, softcap: None, sinks: None };
        let geometry = Geometry::new(head_dim, head_dim, 2, &scoring);
        let (key_words, page_words) = (head_dim / 2, head_dim / 2 * SLOTS);
        let q = words(TILE_ROWS * key_words, 1);
        let (keys, values) = (words(PAGES * page_words, 2), words(PAGES * page_words, 3));
        let pages = |of: &[u32]| -> Vec<*const u32> { of.chunks(page_words).map(<[u32]>::as_ptr).collect() };
        let mut numerators = AlignedRows::<u32, LANES, TILE_ROWS>::uninit();
        let numerator_words = words(TILE_ROWS * LANES, 4);
        let mut scores = AlignedRows::<f32, LANES, TILE_ROWS>::uninit();
        let (before, shrinks) = (1.5f32, [0.75; MOST_ROWS]);
        let mut o = vec![before; TILE_ROWS * head_dim];
        let states = RowStates {
            count: TILE_ROWS,
            q: q.as_ptr(),
            m: std::ptr::null_mut(),
            l: std::ptr::null_mut(),
            o: o.as_mut_ptr(),
        };
        // SAFETY: the processor has AMX; all operands are as large as the kernel's shapes say.
        unsafe {
            numerator_words.as_ptr().copy_to_nonoverlapping(numerators.at(0, 0), numerator_words.len());
            AmxBf16::around(&mut || {
                score::<3>(&geometry, q.as_ptr(), &pages(&keys)[..3], &[], scores.at(0, 0));
                let sums = Sums {
                    geometry: &geometry,
                    rows: &states,
                    shrinks: &shrinks,
                    values: &pages(&values),
                    numerators: numerators.at(0, 0),
                    prefetch: &[],
                };
                sums.add_all();
            });
        }
        for (r, lane) in (0..TILE_ROWS).flat_map(|r| (0..3 * SLOTS).map(move |lane| (r, lane))) {
            let key = |word: usize| keys[lane / SLOTS * page_words + word * SLOTS + lane % SLOTS];
            let own = (0..key_words).step_by(TILE_ROWS).fold(0.0, |sum, first| {
                let part = first..key_words.min(first + TILE_ROWS);
                bf16_dot::tile_dot(sum, q[r * key_words..][part.clone()].iter().copied(), part.map(key))
            });
            // SAFETY: the score was stored.
            let found = unsafe { scores.at(r, lane).read() };
            assert_eq!(found.to_bits(), own.to_bits(), "{head_dim}: score of row {r}, lane {lane}");
        }
        for (r, i) in (0..TILE_ROWS).flat_map(|r| (0..head_dim).map(move |i| (r, i))) {
            let own = (0..PAGES).fold(0.0, |sum, page| {
                let pairs = &numerator_words[r * LANES + page * HALF..][..HALF];
                let value = |pair: usize| values[page * page_words + pair * head_dim + i];
                bf16_dot::tile_dot(sum, pairs.iter().copied(), (0..HALF).map(value))
            });
            let own = before.mul_add(shrinks[r], own);
            assert_eq!(o[r * head_dim + i].to_bits(), own.to_bits(), "{head_dim}: sum {i} of row {r}");
        }
    }
}

/// The states of some rows after two tiles.
struct Folded {
    m: Vec<f32>,
    l: Vec<f32>,
    o: Vec<f32>,
}

/// One row has the bits that it has among 16, whatever a tile hides from it; but for the sign of zeros, see
/// `tile_order`.
#[test]
fn one_row_is_folded_as_it_is_among_others() {
    if !Isa::available().contains(&Isa::Amx) {
        return skipped("this processor has no AMX");
    }
    for head_dim in [16, 32, 48, 64, 80, 96, 128, 256] {
        let scoring = Scoring::<'_, Vec<f32>> { scale: 0.3, softcap: None, sinks: None };
        let geometry = Geometry::new(head_dim, head_dim, 2, &scoring);
        let (key_words, page_words) = (head_dim / 2, head_dim / 2 * SLOTS);
        let q = words(2 * TILE_ROWS * key_words, 1);
        let (keys, values) = (words(2 * PAGES * page_words, 2), words(2 * PAGES * page_words, 3));
        let page = |of: &[u32], tile: usize| -> [*const u32; PAGES] {
            std::array::from_fn(|page| of[(tile * PAGES + page) * page_words..].as_ptr())
        };
        let fold = |row: usize, count: usize, visible: &VisibleLanes| {
            let mut states =
                Folded { m: vec![f32::MIN; count], l: vec![0.0; count * SLOTS], o: vec![0.0; count * head_dim] };
            for tile in 0..2 {
                let view = TileView { keys: page(&keys, tile), values: page(&values, tile) };
                let rows = RowStates {
                    count,
                    q: q[row * key_words..].as_ptr(),
                    m: states.m.as_mut_ptr(),
                    l: states.l.as_mut_ptr(),
                    o: states.o.as_mut_ptr(),
                };
                // SAFETY: the processor has AMX; all operands are as large as the kernel's shapes say, and 15 more
                // rows of queries can be read.
                unsafe {
                    AmxBf16::around(&mut || AmxBf16::fold(&geometry, &view, &rows, visible, &[Prefetch::none(); 3]));
                }
            }
            states
        };
        for lanes in [0..LANES, 0..1, 5..6, 3..40, 17..LANES, 20..29] {
            // The other rows see all, or less.
            for others in [0..LANES, lanes.start..lanes.start + 1] {
                let of = |row: usize| if row == 3 { lanes.clone() } else { others.clone() };
                let among = fold(0, TILE_ROWS, &VisibleLanes::of((0..TILE_ROWS).map(of)));
                let alone = fold(3, 1, &VisibleLanes::of(std::iter::once(lanes.clone())));
                let bits = |of: &[f32]| of.iter().map(|x| (x + 0.0).to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&alone.m), bits(&among.m[3..4]), "{head_dim}, {lanes:?}: maximum");
                assert_eq!(bits(&alone.l), bits(&among.l[3 * SLOTS..4 * SLOTS]), "{head_dim}, {lanes:?}: sums");
                let own = &among.o[3 * head_dim..4 * head_dim];
                assert_eq!(bits(&alone.o), bits(own), "{head_dim}, {lanes:?}: values");
            }
        }
    }
}
