//! The walk of a linear layer. Threads take contiguous shares of the panels. Within a share each few panels are multiplied by
//! all rows before the next ones, strip of inputs by strip, group of rows by group: weights come from memory once and are
//! fetched a strip ahead, a strip of them stays in the first cache, activations in the second. Kernels only multiply; their
//! sums get bias and residual here.

use rayon::prelude::*;

use super::operand::{Operand, ROW_STRIDE, Strip, arrange, strips};
use super::pack::{Line, PANEL};
use super::{Into, Matrix};
use crate::backend::Dtype;
use crate::backend::cpu::rows::for_each_isa;
use crate::backend::cpu::{Buffer, Isa};

/// Activations multiplied in one walk over the weights: half of a second cache of 2 MB, as words.
const RESIDENT_WORDS: usize = 256 * 1024;
/// From this many row groups on, half-precision strips are widened once to memory instead of once a group in registers.
const WIDEN_FROM_GROUPS: usize = 3;

/// The kernels of an instruction set.
pub struct Kernels {
    /// Most rows of a group.
    pub rows: usize,
    /// How many panels a kernel takes at once for groups of at most so many rows.
    pub panels: fn(rows: usize) -> usize,
    pub operand: fn(Dtype) -> Operand,
    /// The kernel for exactly so many rows and panels.
    pub kernel: fn(Dtype, rows: usize, panels: usize) -> Kernel,
    /// Widens a strip of a panel to f32, where kernels would otherwise do so in registers.
    pub widen: fn(Dtype) -> Option<Widen>,
}

/// Adds the products of a tile to its sums.
///
/// # Safety
/// The processor has the kernel's instruction set, and the tile's pointers are good for its shape.
pub type Kernel = unsafe fn(&Tile);

/// Widens as many bytes of a panel as fill `out`.
///
/// # Safety
/// The processor has the instruction set.
pub type Widen = unsafe fn(strip: &[u8], out: &mut [f32]);

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
    pub ahead: Ahead,
}

/// What to fetch into the second cache while a kernel runs: after every `every` words, one cache line of each panel of the
/// next strip, whose first panel begins at `from`.
#[derive(Clone, Copy)]
pub struct Ahead {
    pub from: *const u8,
    pub panel_bytes: usize,
    pub every: usize,
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
    shares: Vec<Share>,
}

/// A thread's own memory.
#[derive(Default)]
struct Share {
    sums: Vec<f32>,
    widened: Vec<f32>,
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
    let operand = (kernels.operand)(w.dtype);
    let most = (RESIDENT_WORDS / operand.words(w.cols).max(1)).max(kernels.rows);
    for rows in groups(x.rows, most) {
        arrange(&mut scratch.operands, x, rows.first, rows.rows, operand);
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
        walk.run(&mut scratch.shares, out);
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
    fn run(&self, shares: &mut Vec<Share>, out: &mut Buffer) {
        let threads = rayon::current_num_threads();
        let most_rows = self.rows.div_ceil(self.groups.len());
        let at_once = (self.kernels.panels)(most_rows);
        // Shares of whole kernel calls, so that only the last one has a rest.
        let panels = self.w.panels();
        let share = panels.div_ceil(at_once).div_ceil(threads) * at_once;
        shares.resize_with(threads, Share::default);
        let out = Columns::of(out);
        shares.par_iter_mut().enumerate().for_each(|(thread, memory)| {
            let end = ((thread + 1) * share).min(panels);
            let mut panel = thread * share;
            while panel < end {
                let count = if panel + at_once <= end { at_once } else { 1 };
                self.panels(panel, count, memory, &out);
                panel += count;
            }
        });
    }

    /// Multiplies `count` panels from `first` on by all rows.
    fn panels(&self, first: usize, count: usize, memory: &mut Share, out: &Columns) {
        let panel_bytes = self.w.panel_lines() * size_of::<Line>();
        let weights: &[u8] = bytemuck::cast_slice(self.w.lines());
        let weights = &weights[first * panel_bytes..];
        memory.sums.resize(self.rows * count * PANEL, 0.0);
        let words = self.operand.words(self.w.cols);
        let word_bytes = self.word_bytes();
        for strip in strips(words) {
            let after = strip.first + strip.words;
            let next = if after < words { after * word_bytes } else { count * panel_bytes };
            let from = weights.as_ptr().wrapping_add(next);
            let ahead = Ahead { from, panel_bytes, every: self.groups.len() * size_of::<Line>() / word_bytes };
            self.strip(strip, count, &weights[strip.first * word_bytes..], panel_bytes, ahead, memory);
        }
        for (r, sums) in memory.sums.chunks_exact(count * PANEL).enumerate() {
            self.store(sums, self.first_row + r, first, out);
        }
    }

    /// Bytes of a panel that belong to one word of an operand's row.
    fn word_bytes(&self) -> usize {
        match (self.w.dtype, self.operand) {
            (Dtype::F16, _) | (_, Operand::RoundedF32) => 2 * PANEL,
            (Dtype::F32 | Dtype::Bf16, _) => 4 * PANEL,
        }
    }

    /// Adds the products of one strip of `count` panels, which begins at `weights`, to the sums of all rows.
    fn strip(&self, strip: Strip, count: usize, weights: &[u8], panel_bytes: usize, ahead: Ahead, memory: &mut Share) {
        let (mut dtype, mut panel_bytes, mut w) = (self.w.dtype, panel_bytes, weights.as_ptr());
        if self.groups.len() >= WIDEN_FROM_GROUPS
            && let Some(widen) = (self.kernels.widen)(dtype)
        {
            memory.widened.resize(count * strip.words * PANEL, 0.0);
            for (p, out) in memory.widened.chunks_exact_mut(strip.words * PANEL).enumerate() {
                // SAFETY: the owner of these kernels chose `widen` for an instruction set that the processor has.
                unsafe { widen(&weights[p * panel_bytes..][..strip.words * self.word_bytes()], out) };
            }
            (dtype, panel_bytes, w) =
                (Dtype::F32, strip.words * PANEL * size_of::<f32>(), memory.widened.as_ptr().cast());
        }
        assert!(memory.sums.len() >= self.rows * count * PANEL, "sums for all rows");
        let operands = &self.operands[strip.index * self.rows * ROW_STRIDE..];
        for group in &self.groups {
            let kernel = (self.kernels.kernel)(dtype, group.rows, count);
            let fetched = group.first * strip.words / self.rows * self.word_bytes() / size_of::<Line>();
            let tile = Tile {
                a: operands[group.first * ROW_STRIDE..][..group.rows * ROW_STRIDE].as_ptr(),
                w,
                panel_bytes,
                words: strip.words,
                sums: memory.sums[group.first * count * PANEL..].as_mut_ptr(),
                resume: strip.first > 0,
                ahead: Ahead { from: ahead.from.wrapping_add(fetched * size_of::<Line>()), ..ahead },
            };
            // SAFETY: `a` holds the group's rows, `w` the strips of `count` panels, and the sums its tile.
            unsafe { kernel(&tile) };
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
