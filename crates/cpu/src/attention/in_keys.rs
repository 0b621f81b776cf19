//! Values that lie in keys ([`Values::InKeys`]): they are stored once, as keys, and a task writes those of a tile as
//! the kernels read values, once for all of its rows: all at once, or panel by panel. Slots that are no part of the
//! tile become zeros, so what they hold never enters a sum.

use std::arch::x86_64::*;
use std::ops::Range;

use super::path::{LANES, TileView};
use super::tiles::PAGES;
use crate::kv::{CpuPageLayout, SLOTS};
use offshoot_backend::Values;

/// Words of a row that one block has, and rows of a block.
const BLOCK: usize = 8;

/// Elements of a value in one panel.
pub const PANEL: usize = 64;

/// The shape of a page's keys that hold values, and of the values.
#[derive(Clone, Copy)]
pub struct InKeys {
    /// Words of a key.
    key_words: usize,
    /// Elements of a word: f32, or two neighbours of 16 bits.
    pair: usize,
    /// Elements of a value.
    value_dim: usize,
    /// `value_dim`, rounded up to whole vectors.
    width: usize,
}

impl InKeys {
    /// The shape of a page whose keys have words of `pair` elements; `None` if values lie beside keys.
    pub fn of(layout: CpuPageLayout, pair: usize) -> Option<Self> {
        let CpuPageLayout { head_dim, width, values, .. } = layout;
        match values {
            Values::Beside(_) => None,
            Values::InKeys(value_dim) => Some(Self { key_words: head_dim / pair, pair, value_dim, width }),
        }
    }

    /// Words of a page's values.
    pub fn words(&self) -> usize {
        SLOTS / self.pair * self.width
    }

    /// Writes the values of a tile's pages to `to`, for which there is room for [`InKeys::words`] of each, and points
    /// `view` to them. `lanes`: those of the tile.
    ///
    /// # Safety
    /// The processor has AVX2. The pages of `view` that are there have whole keys, of words of 32 bits.
    pub unsafe fn fill(&self, view: &mut TileView<u8>, lanes: &Range<usize>, to: &mut [u32]) {
        for (page, to) in to.chunks_exact_mut(self.words()).enumerate().take(PAGES) {
            if view.keys[page].is_null() {
                continue;
            }
            // SAFETY: promised by the caller.
            unsafe { self.part(0..self.value_dim, view.keys[page].cast(), to, self.width) };
            self.clear_others(slots_of(page, lanes), to, self.width);
            view.values[page] = to.as_ptr().cast();
        }
        debug_assert!(lanes.end <= LANES);
    }

    /// Panels of a value.
    pub fn panels(&self) -> usize {
        self.width.div_ceil(PANEL)
    }

    /// Writes panel number `panel` of a tile's values to `to`: `[LANES / pair][PANEL]` words. What pages without the
    /// tile's lanes have there stays.
    ///
    /// # Safety
    /// As for `fill`.
    pub unsafe fn fill_panel(
        &self,
        panel: usize,
        keys: &[*const u32; PAGES],
        lanes: &Range<usize>,
        to: &mut [u32; LANES * PANEL],
    ) {
        let elements = panel * PANEL..self.value_dim.min((panel + 1) * PANEL);
        let of_page = SLOTS / self.pair * PANEL;
        for page in lanes.start / SLOTS..lanes.end.div_ceil(SLOTS) {
            let to = &mut to[page * of_page..][..of_page];
            // SAFETY: promised by the caller.
            unsafe { self.part(elements.clone(), keys[page], to, PANEL) };
            self.clear_others(slots_of(page, lanes), to, PANEL);
        }
    }

    /// Writes these elements of a page's values to `to`, whose rows have `stride` words.
    ///
    /// # Safety
    /// As for `fill`.
    unsafe fn part(&self, elements: Range<usize>, keys: *const u32, to: &mut [u32], stride: usize) {
        let first = elements.start / self.pair;
        // Words of keys that hold values, and those up to which whole blocks are taken.
        let words = elements.end.div_ceil(self.pair) - first;
        let whole = words.next_multiple_of(BLOCK).min((self.key_words - first) / BLOCK * BLOCK);
        // SAFETY: promised by the caller; the keys have as many words from `first` on.
        unsafe {
            let keys = keys.add(first * SLOTS);
            match self.pair {
                1 => singles(keys, words, whole, to, stride),
                _ => pairs(keys, words, whole, to, stride),
            }
        }
    }

    /// Zeros in all slots but these.
    fn clear_others(&self, slots: Range<usize>, to: &mut [u32], stride: usize) {
        if slots == (0..SLOTS) {
            return;
        }
        for (row, words) in to.chunks_exact_mut(stride).enumerate() {
            let is_in = |element: usize| slots.contains(&(row * self.pair + element));
            let mask = match (self.pair, is_in(0), self.pair == 2 && is_in(1)) {
                (1, true, _) | (_, true, true) => continue,
                (_, true, false) => 0x0000_ffff,
                (_, false, true) => 0xffff_0000,
                (_, false, false) => 0,
            };
            words.iter_mut().for_each(|word| *word &= mask);
        }
    }
}

/// The slots of page `page` that are among the lanes of a tile.
fn slots_of(page: usize, lanes: &Range<usize>) -> Range<usize> {
    let first = page * SLOTS;
    let slot = |lane: usize| lane.clamp(first, first + SLOTS) - first;
    slot(lanes.start)..slot(lanes.end)
}

/// Keys `[words][16]` to values `[16][stride]`, of one element per word; the first `whole` words by blocks, as there is
/// room for whole vectors.
///
/// # Safety
/// The processor has AVX2. `keys` is valid for the longer of both.
#[target_feature(enable = "avx2")]
unsafe fn singles(keys: *const u32, words: usize, whole: usize, to: &mut [u32], stride: usize) {
    for first in (0..whole).step_by(BLOCK) {
        for slot in [0, BLOCK] {
            // SAFETY: the keys have as many words.
            let rows = unsafe { transposed(keys.add(first * SLOTS + slot)) };
            for (i, row) in rows.into_iter().enumerate() {
                let to = &mut to[(slot + i) * stride + first..][..BLOCK];
                // SAFETY: `to` has as many words.
                unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), row) };
            }
        }
    }
    for (word, slot) in (whole..words).flat_map(|word| (0..SLOTS).map(move |slot| (word, slot))) {
        // SAFETY: the keys have as many words.
        to[slot * stride + word] = unsafe { *keys.add(word * SLOTS + slot) };
    }
}

/// Keys `[words][16][2]` to values `[16 / 2][stride][2]`, of pairs of elements; see [`singles`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2")]
unsafe fn pairs(keys: *const u32, words: usize, whole: usize, to: &mut [u32], stride: usize) {
    let low = _mm256_set1_epi32(0x0000_ffff);
    for first in (0..whole).step_by(BLOCK) {
        for slot in [0, BLOCK] {
            // SAFETY: the keys have as many words.
            let rows = unsafe { transposed(keys.add(first * SLOTS + slot)) };
            for (i, [a, b]) in rows.as_chunks::<2>().0.iter().enumerate() {
                let firsts = _mm256_or_si256(_mm256_and_si256(*a, low), _mm256_slli_epi32::<16>(*b));
                let seconds = _mm256_or_si256(_mm256_srli_epi32::<16>(*a), _mm256_andnot_si256(low, *b));
                let even = _mm256_unpacklo_epi32(firsts, seconds);
                let odd = _mm256_unpackhi_epi32(firsts, seconds);
                let to = &mut to[(slot / 2 + i) * stride + 2 * first..][..2 * BLOCK];
                // SAFETY: `to` has as many words.
                unsafe {
                    _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm256_permute2x128_si256::<0x20>(even, odd));
                    let to = to.as_mut_ptr().add(BLOCK);
                    _mm256_storeu_si256(to.cast(), _mm256_permute2x128_si256::<0x31>(even, odd));
                }
            }
        }
    }
    for (word, row) in (whole..words).flat_map(|word| (0..SLOTS / 2).map(move |row| (word, row))) {
        // SAFETY: the keys have as many words.
        let [a, b] = [0, 1].map(|odd| unsafe { *keys.add(word * SLOTS + 2 * row + odd) });
        let to = &mut to[row * stride + 2 * word..][..2];
        to[0] = a & 0xffff | b << 16;
        to[1] = a >> 16 | b & 0xffff_0000;
    }
}

/// Eight words of each of eight slots, from eight neighbouring words of keys: row `i` of the result is that of slot
/// `i`.
///
/// # Safety
/// The processor has AVX2. `keys` is valid for seven times sixteen and eight words.
#[target_feature(enable = "avx2")]
unsafe fn transposed(keys: *const u32) -> [__m256i; BLOCK] {
    // SAFETY: promised by the caller.
    let rows: [__m256i; BLOCK] = std::array::from_fn(|i| unsafe { _mm256_loadu_si256(keys.add(i * SLOTS).cast()) });
    let mut twos = rows;
    for i in 0..BLOCK / 2 {
        twos[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        twos[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut fours = twos;
    for i in 0..BLOCK / 4 {
        let [a, b, c, d] = [twos[4 * i], twos[4 * i + 1], twos[4 * i + 2], twos[4 * i + 3]];
        fours[4 * i] = _mm256_unpacklo_epi64(a, c);
        fours[4 * i + 1] = _mm256_unpackhi_epi64(a, c);
        fours[4 * i + 2] = _mm256_unpacklo_epi64(b, d);
        fours[4 * i + 3] = _mm256_unpackhi_epi64(b, d);
    }
    let mut eights = fours;
    for i in 0..BLOCK / 2 {
        eights[i] = _mm256_permute2x128_si256::<0x20>(fours[i], fours[i + 4]);
        eights[i + 4] = _mm256_permute2x128_si256::<0x31>(fours[i], fours[i + 4]);
    }
    eights
}
