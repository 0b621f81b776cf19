//! The walk of a linear layer. Threads take contiguous shares of the panels. Within a share each few panels are
//! multiplied by all rows before the next ones, strip of inputs by strip, group of rows by group: weights come from
//! memory once and are fetched a strip ahead, a strip of them stays in the first cache, activations in the second.
//! Kernels only multiply; their sums get bias and residual here.

use rayon::prelude::*;

use super::operand::{Operand, ROW_STRIDE, Strip, arrange, strips};
use super::pack::{Line, PANEL};
use super::{Into, Matrix};
use crate::backend::Dtype;
use crate::backend::cpu::rows::for_each_isa;
use crate::backend::cpu::{Buffer, Isa};

/// Activations multiplied in one walk over the weights: half of a second cache of 2 MB, as words.
const RESIDENT_WORDS: usize = 256 * 1024;

/// Shares of the panels that each thread gets, on average, when rows are many.
const SHARES: usize = 4;

/// The kernels of an instruction set.
pub struct Kernels {
    /// Most rows of a group.
    pub rows: usize,
    /// How many panels a kernel takes at once for groups of at most so many rows.
    pub panels: fn(rows: usize) -> usize,
    pub operand: fn(Dtype) -> Operand,
    /// The kernel for exactly so many rows and panels.
    pub kernel: fn(Dtype, rows: usize, panels: usize) -> Kernel,
}

/// Adds the products of a tile to its sums.
///
/// # Safety
/// The processor has the kernel's instruction set, and the tile's pointers are good for its shape.
pub type Kernel = unsafe fn(&Tile);

/// A strip of one group of rows times some panels.
pub struct Tile {
    /// Activations: rows are [`ROW_STRIDE`] words apart.
    pub a: *const u32,
    /// The strip in the first panel; that of the next one begins `panel_bytes` later.
    pub w: *const u8,
    pub panel_bytes: usize,
    pub words: usize,
    /// `[rows][panels * 16]`.
    pub sums: *mut f32,
    /// Whether the sums hold those of the strips before.
    pub resume: bool,
    /// The next strip in its first panel. After every `ahead_every` words a kernel fetches one more cache line of each
    /// panel of it into the second cache. Perhaps past the end of the weights: a fetch is only a hint.
    pub ahead: *const u8,
    pub ahead_every: usize,
}

/// Rows `first .. first + rows` of the walk, which a kernel takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    first: usize,
    rows: usize,
}

/// Divides `rows` rows into the fewest groups of at most `most`, as equal as can be.
fn groups(rows: usize, most: usize) -> impl ExactSizeIterator<Item = Group> {
    let count = rows.div_ceil(most);
    (0..count).map(move |g| Group { first: g * rows / count, rows: (g + 1) * rows / count - g * rows / count })
}

#[derive(Default)]
pub struct Scratch {
    operands: Vec<u32>,
    /// The sums of each share.
    sums: Vec<Vec<f32>>,
}

#[allow(clippy::too_many_arguments)]
pub fn linear(
    isa: Isa,
    kernels: &Kernels,
    scratch: &mut Scratch,
    out: &mut Buffer,
    x: &Buffer,
    w: &Matrix,
    bias: Option<&[f32]>,
    into: Into,
) {
    if w.rows == 0 || x.rows == 0 {
        return;
    }
    let operand = (kernels.operand)(w.dtype());
    let most = (RESIDENT_WORDS / operand.words(w.cols).max(1)).max(kernels.rows);
    for rows in groups(x.rows, most) {
        arrange(isa, &mut scratch.operands, x, rows.first, rows.rows, operand);
        let walk = Walk {
            isa,
            kernels,
            w,
            operand,
            operands: &scratch.operands,
            first_row: rows.first,
            rows: rows.rows,
            groups: groups(rows.rows, kernels.rows).collect(),
            bias,
            into,
        };
        walk.run(&mut scratch.sums, out);
    }
}

/// One walk over all panels, for as many rows as stay in cache.
struct Walk<'a> {
    isa: Isa,
    kernels: &'a Kernels,
    w: &'a Matrix,
    operand: Operand,
    operands: &'a [u32],
    first_row: usize,
    rows: usize,
    groups: Vec<Group>,
    bias: Option<&'a [f32]>,
    into: Into,
}

impl Walk<'_> {
    fn run(&self, sums: &mut Vec<Vec<f32>>, out: &mut Buffer) {
        // Few rows: one share a thread, so that each fetches ahead without a break. Many: more, so that a thread that
        // was held up leaves its last ones to others.
        let shares_wanted = rayon::current_num_threads() * if self.groups.len() == 1 { 1 } else { SHARES };
        let most_rows = self.rows.div_ceil(self.groups.len());
        let at_once = (self.kernels.panels)(most_rows);
        // Shares of whole kernel calls, so that only the last one has a rest.
        let panels = self.w.panels();
        let share = panels.div_ceil(at_once).div_ceil(shares_wanted) * at_once;
        sums.resize_with(panels.div_ceil(share), Vec::new);
        let out = Columns::of(out);
        sums.par_iter_mut().enumerate().for_each(|(i, sums)| {
            let end = ((i + 1) * share).min(panels);
            let mut panel = i * share;
            while panel < end {
                let count = if panel + at_once <= end { at_once } else { 1 };
                self.panels(panel, count, sums, &out);
                panel += count;
            }
        });
    }

    /// Multiplies `count` panels from `first` on by all rows.
    fn panels(&self, first: usize, count: usize, sums: &mut Vec<f32>, out: &Columns) {
        sums.resize(self.rows * count * PANEL, 0.0);
        for strip in strips(self.operand.words(self.w.cols)) {
            self.strip(strip, first, count, sums);
        }
        for (r, sums) in sums.chunks_exact(count * PANEL).enumerate() {
            self.store(sums, self.first_row + r, first, out);
        }
    }

    /// Adds the products of one strip of `count` panels from `first` on to the sums of all rows.
    fn strip(&self, strip: Strip, first: usize, count: usize, sums: &mut [f32]) {
        let panel_bytes = self.w.panel_lines() * size_of::<Line>();
        let weights: &[u8] = bytemuck::cast_slice(&self.w.lines()[first * self.w.panel_lines()..]);
        assert!(
            weights.len() >= count * panel_bytes && sums.len() == self.rows * count * PANEL,
            "panels, and their sums"
        );
        let word_bytes = self.word_bytes();
        let end = strip.first + strip.words;
        let next = if end < self.operand.words(self.w.cols) { end * word_bytes } else { count * panel_bytes };
        let operands = &self.operands[strip.index * self.rows * ROW_STRIDE..];
        for group in &self.groups {
            let kernel = (self.kernels.kernel)(self.w.dtype(), group.rows, count);
            // Each group fetches its part of the next strip.
            let fetched = group.first * strip.words / self.rows * word_bytes / size_of::<Line>() * size_of::<Line>();
            let tile = Tile {
                a: operands[group.first * ROW_STRIDE..][..group.rows * ROW_STRIDE].as_ptr(),
                w: weights[strip.first * word_bytes..].as_ptr(),
                panel_bytes,
                words: strip.words,
                sums: sums[group.first * count * PANEL..][..group.rows * count * PANEL].as_mut_ptr(),
                resume: strip.index > 0,
                ahead: weights.as_ptr().wrapping_add(next + fetched),
                ahead_every: self.groups.len() * size_of::<Line>() / word_bytes,
            };
            // SAFETY: `a` holds the group's rows of the strip, `w` the strip of `count` panels, and the sums its tile.
            unsafe { kernel(&tile) };
        }
    }

    /// Bytes of a panel that belong to one word of an operand's row.
    fn word_bytes(&self) -> usize {
        match (self.w.dtype(), self.operand) {
            (Dtype::F16, _) | (_, Operand::RoundedF32) => 2 * PANEL,
            (Dtype::F32 | Dtype::Bf16, _) => 4 * PANEL,
        }
    }

    /// Puts a row's sums of the panels from `panel` on, with bias and residual, into the output.
    fn store(&self, sums: &[f32], row: usize, panel: usize, out: &Columns) {
        let from = panel * PANEL;
        let width = sums.len().min(self.w.rows - from);
        let bias = self.bias.map(|bias| &bias[from..][..width]);
        // SAFETY: threads have different panels, so no two of them hold the same columns.
        let out = unsafe { out.of_row(row, from, width) };
        finish(self.isa, out, &sums[..width], bias, self.into);
    }
}

for_each_isa! {
    /// `out = sums (+ bias)` or `out += sums (+ bias)`.
    fn finish(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, into: Into) = finish_loop;
}

#[inline(always)]
fn finish_loop(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, into: Into) {
    match (bias, into) {
        (None, Into::Replace) => out.copy_from_slice(sums),
        (None, Into::Add) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
        (Some(bias), Into::Replace) => out.iter_mut().zip(sums).zip(bias).for_each(|((out, sum), b)| *out = sum + b),
        (Some(bias), Into::Add) => out.iter_mut().zip(sums).zip(bias).for_each(|((out, sum), b)| *out += sum + b),
    }
}

/// The output, whose columns are divided among threads.
struct Columns {
    data: *mut f32,
    width: usize,
    len: usize,
}

// SAFETY: threads reach the output through `of_row` alone, whose callers take different columns.
unsafe impl Sync for Columns {}

impl Columns {
    fn of(out: &mut Buffer) -> Self {
        Self { data: out.data.as_mut_ptr(), width: out.width, len: out.data.len() }
    }

    /// # Safety
    /// The buffer lives, and nobody else holds these columns of this row.
    #[allow(clippy::mut_from_ref)]
    unsafe fn of_row(&self, row: usize, from: usize, width: usize) -> &mut [f32] {
        let at = row * self.width + from;
        assert!(from + width <= self.width && at + width <= self.len, "columns lie in the output");
        // SAFETY: within the buffer by the line above; alone by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_cover_all_rows_and_differ_by_one_row_at_most() {
        for rows in 0..100 {
            let mut next = 0;
            for group in groups(rows, 14) {
                assert_eq!(group.first, next);
                assert!(group.rows <= 14 && group.rows >= rows / rows.div_ceil(14));
                next += group.rows;
            }
            assert_eq!(next, rows);
        }
    }
}
