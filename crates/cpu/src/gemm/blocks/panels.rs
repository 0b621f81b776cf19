//! The layout of weights from GGUF files: panels of 16 outputs, as dense ones have, so that 16 outputs are multiplied
//! at once. Rows are laid out anew when they are loaded, bit for bit and in as many bytes; `codes` says where codes
//! lie. Scales stay as they are stored, two bytes of 16 outputs side by side, and become f32 numbers panel by panel
//! when they are used.

use memmap2::MmapMut;
use rayon::prelude::*;

use super::codes::{CodeLines, LINE, WORDS, raised_by};
use crate::gemm::pack::{PANEL, zeroed};
use offshoot_backend::BlockView;
use offshoot_gguf::{CodedBlock, LIFTED, TensorType, half, half_power_of_two};

/// A matrix `[rows, cols]` (outputs, inputs), the last panel padded with zeros.
pub struct BlockPanels {
    pub rows: usize,
    pub cols: usize,
    pub kind: TensorType,
    /// Whether activations stay as they are.
    pub exact: bool,
    /// `[panels][cols / 32]` groups of lines.
    codes: MmapMut,
    /// `[panels][blocks]`, each `[bytes / 2][16][2]`, or `[16]` where a block has one byte of scales.
    heads: Vec<u8>,
}

/// The scales of a panel as numbers: an element is `scale * code - least`.
#[derive(Default)]
pub struct PanelScales {
    /// `[cols / 32 * splits][16]`
    pub scales: Vec<[f32; PANEL]>,
    /// `[cols / 32 * splits][16]`, or empty.
    pub least: Vec<[f32; PANEL]>,
}

impl BlockPanels {
    /// Stacks `views`, which agree in all but their rows and bytes. Each row is read once.
    pub fn pack(views: &[BlockView<'_>]) -> Self {
        let BlockView { kind, cols, exact, .. } = *views.first().expect("a matrix has at least one part");
        let width = kind.row_bytes(cols);
        for view in views {
            assert_eq!(view.bytes.len(), view.rows * width, "a part's bytes fit its shape");
        }
        let rows: usize = views.iter().map(|view| view.rows).sum();
        let sources: Vec<&[u8]> = views.iter().flat_map(|view| view.bytes.chunks_exact(width.max(1))).collect();
        let panels = rows.div_ceil(PANEL);
        let code_bytes = cols / LIFTED * CodeLines::of(kind).bytes();
        let head_bytes = cols / kind.block_elements() * scale_bytes(kind) * PANEL;
        let mut codes = zeroed(panels * code_bytes / LINE);
        let mut heads = vec![0; panels * head_bytes];
        codes
            .par_chunks_exact_mut(code_bytes.max(1))
            .zip(heads.par_chunks_exact_mut(head_bytes.max(1)))
            .zip(sources.par_chunks(PANEL))
            .for_each_init(CodedBlock::default, |block, ((codes, heads), rows)| {
                for (lane, row) in rows.iter().enumerate() {
                    put_row(kind, row, lane, block, codes, heads);
                }
            });
        Self { rows, cols, kind, exact, codes, heads }
    }

    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Groups of 32 inputs.
    pub fn groups(&self) -> usize {
        self.cols / LIFTED
    }

    /// Scales of a group: one, or one for each half of it.
    pub fn splits(&self) -> usize {
        CodeLines::of(self.kind).splits()
    }

    /// Bytes of a panel's codes.
    pub fn panel_bytes(&self) -> usize {
        self.groups() * CodeLines::of(self.kind).bytes()
    }

    /// The codes of panel `p` and all that follow.
    pub fn codes_from(&self, p: usize) -> &[u8] {
        &self.codes[p * self.panel_bytes()..]
    }

    /// Reads the scales of panel `p` behind those that `out` has.
    #[inline(always)]
    pub fn read_scales(&self, p: usize, out: &mut PanelScales) {
        let kind = self.kind;
        let bytes = scale_bytes(kind) * PANEL;
        let (blocks, splits) = (self.cols / kind.block_elements(), kind.block_elements() / LIFTED * self.splits());
        let scales = appended(&mut out.scales, blocks * splits);
        let leasts = if kind.has_least() { blocks * splits } else { 0 };
        let leasts = appended(&mut out.least, leasts);
        let heads = &self.heads[p * blocks * bytes..][..blocks * bytes];
        for (i, (block, scales)) in heads.chunks_exact(bytes).zip(scales.chunks_exact_mut(splits)).enumerate() {
            match kind {
                TensorType::Mxfp4 => {
                    for (lane, scale) in scales[0].iter_mut().enumerate() {
                        *scale = half_power_of_two(block[lane]);
                    }
                }
                TensorType::Q2K => read_nibbles(block, scales, &mut leasts[i * 16..][..16]),
                TensorType::Q3K => read_q3_k(block, scales),
                TensorType::Iq4Xs => read_iq4_xs(block, scales),
                TensorType::Q4K | TensorType::Q5K => read_256(block, scales, &mut leasts[i * 8..][..8]),
                TensorType::Q6K => read_signed(block, scales),
                _ => {
                    scales[0] = halves(block, 0);
                    if kind.has_least() {
                        leasts[i] = halves(block, 1);
                        for least in &mut leasts[i] {
                            *least = -*least;
                        }
                    }
                }
            }
        }
    }

    /// The elements of group `g` of panel `p`, as numbers: `[32][16]`. `scales`: those of the panel.
    #[inline(always)]
    pub fn numbers(&self, p: usize, g: usize, scales: &PanelScales, out: &mut [[f32; PANEL]; LIFTED]) {
        let lines = CodeLines::of(self.kind);
        let mut codes = [[0; LINE]; WORDS];
        lines.unpack(&self.codes_from(p)[g * lines.bytes()..][..lines.bytes()], &mut codes);
        let (splits, raised) = (self.splits(), raised_by(self.kind));
        for (k, out) in out.iter_mut().enumerate() {
            let scales = &scales.scales[g * splits + k * splits / LIFTED];
            for (lane, out) in out.iter_mut().enumerate() {
                *out = scales[lane] * f32::from(i16::from(codes[k / 4][lane * 4 + k % 4]) - raised);
            }
        }
        if self.kind.has_least() {
            for (k, out) in out.iter_mut().enumerate() {
                let least = &scales.least[g * splits + k * splits / LIFTED];
                out.iter_mut().zip(least).for_each(|(out, least)| *out -= least);
            }
        }
    }

    /// Row `row` as numbers.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        let (p, lane) = (row / PANEL, row % PANEL);
        let mut scales = PanelScales::default();
        self.read_scales(p, &mut scales);
        let mut numbers = [[0.0; PANEL]; LIFTED];
        for (g, out) in out.chunks_exact_mut(LIFTED).enumerate() {
            self.numbers(p, g, &scales, &mut numbers);
            out.iter_mut().zip(&numbers).for_each(|(out, numbers)| *out = numbers[lane]);
        }
    }
}

/// Lays out a row of blocks as output `lane` of a panel.
fn put_row(kind: TensorType, row: &[u8], lane: usize, coded: &mut CodedBlock, codes: &mut [u8], heads: &mut [u8]) {
    let (lines, raised) = (CodeLines::of(kind), raised_by(kind));
    let (elements, scale_bytes, [first, second]) = (kind.block_elements(), scale_bytes(kind), kind.scale_bytes());
    let places = codes.chunks_exact_mut(elements / LIFTED * lines.bytes());
    let heads = heads.chunks_exact_mut(scale_bytes * PANEL);
    for ((block, codes), head) in row.chunks_exact(kind.block_bytes()).zip(places).zip(heads) {
        coded.read(kind, block);
        let own = coded.codes[..elements].chunks_exact(LIFTED);
        for (own, codes) in own.zip(codes.chunks_exact_mut(lines.bytes())) {
            for (k, code) in own.iter().enumerate() {
                lines.put(codes, k, lane, (i16::from(*code) + raised) as u8);
            }
        }
        // Bytes of scales lie in pairs; MXFP4 has one.
        let pair = scale_bytes.min(2);
        for (j, byte) in block[first.clone()].iter().chain(&block[second.clone()]).enumerate() {
            head[(j / pair * PANEL + lane) * pair + j % pair] = *byte;
        }
    }
}

/// Bytes of the scales and smallest values of a block.
fn scale_bytes(kind: TensorType) -> usize {
    kind.scale_bytes().iter().map(ExactSizeIterator::len).sum()
}

/// Makes `list` longer by `more` entries, and returns those.
fn appended(list: &mut Vec<[f32; PANEL]>, more: usize) -> &mut [[f32; PANEL]] {
    let first = list.len();
    list.resize(first + more, [0.0; PANEL]);
    &mut list[first..]
}

// Loops over 16 outputs, not iterators or closures: these stay calls, which lack the instruction set of the caller.

/// Bytes `2 j` and `2 j + 1` of the scales of 16 outputs.
#[inline(always)]
fn pairs(block: &[u8], j: usize) -> [u32; PANEL] {
    let (bytes, mut pairs) = (&block[j * 2 * PANEL..][..2 * PANEL], [0; PANEL]);
    for lane in 0..PANEL {
        pairs[lane] = u32::from(u16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]));
    }
    pairs
}

/// Byte `j` of the scales of 16 outputs.
#[inline(always)]
fn bytes(block: &[u8], j: usize) -> [u32; PANEL] {
    let mut bytes = pairs(block, j / 2);
    for byte in &mut bytes {
        *byte = *byte >> (j % 2 * 8) & 255;
    }
    bytes
}

/// Pair `j` as f16.
#[inline(always)]
fn halves(block: &[u8], j: usize) -> [f32; PANEL] {
    let (pairs, mut numbers) = (pairs(block, j), [0.0; PANEL]);
    for lane in 0..PANEL {
        numbers[lane] = half(pairs[lane]);
    }
    numbers
}

/// The scales and smallest values of Q4_K and Q5_K; `gguf::CodedBlock` describes their bits.
#[inline(always)]
fn read_256(block: &[u8], scales: &mut [[f32; PANEL]], leasts: &mut [[f32; PANEL]]) {
    let (of_scales, of_leasts) = (halves(block, 0), halves(block, 1));
    for j in 0..4 {
        // The first four have six bits of a byte, the other four two of that and four of another one.
        let (scale, least, both) = (bytes(block, 4 + j), bytes(block, 8 + j), bytes(block, 12 + j));
        for lane in 0..PANEL {
            let number = |six_bits: u32| six_bits.cast_signed() as f32;
            scales[j][lane] = of_scales[lane] * number(scale[lane] & 63);
            leasts[j][lane] = of_leasts[lane] * number(least[lane] & 63);
            scales[j + 4][lane] = of_scales[lane] * number(both[lane] & 15 | scale[lane] >> 6 << 4);
            leasts[j + 4][lane] = of_leasts[lane] * number(both[lane] >> 4 | least[lane] >> 6 << 4);
        }
    }
}

/// The scales and smallest values of Q2_K, and two f16 behind them.
#[inline(always)]
fn read_nibbles(block: &[u8], scales: &mut [[f32; PANEL]], leasts: &mut [[f32; PANEL]]) {
    let (of_scales, of_leasts) = (halves(block, 8), halves(block, 9));
    for j in 0..16 {
        let bytes = bytes(block, j);
        for lane in 0..PANEL {
            scales[j][lane] = of_scales[lane] * (bytes[lane] & 15).cast_signed() as f32;
            leasts[j][lane] = of_leasts[lane] * (bytes[lane] >> 4).cast_signed() as f32;
        }
    }
}

/// The scales of Q3_K, and an f16 behind them; `gguf::CodedBlock` describes their bits.
#[inline(always)]
fn read_q3_k(block: &[u8], scales: &mut [[f32; PANEL]]) {
    let of_scales = halves(block, 6);
    for (j, scales) in scales.iter_mut().enumerate() {
        let (low, high) = (bytes(block, j % 8), bytes(block, 8 + j % 4));
        for lane in 0..PANEL {
            let bits = low[lane] >> (j / 8 * 4) & 15 | (high[lane] >> (j / 4 * 2) & 3) << 4;
            scales[lane] = of_scales[lane] * (bits.cast_signed() - 32) as f32;
        }
    }
}

/// The scales of IQ4_XS, likewise, behind their f16.
#[inline(always)]
fn read_iq4_xs(block: &[u8], scales: &mut [[f32; PANEL]]) {
    let (of_scales, high) = (halves(block, 0), pairs(block, 1));
    for (j, scales) in scales.iter_mut().enumerate() {
        let low = bytes(block, 4 + j / 2);
        for lane in 0..PANEL {
            let bits = low[lane] >> (j % 2 * 4) & 15 | (high[lane] >> (2 * j) & 3) << 4;
            scales[lane] = of_scales[lane] * (bits.cast_signed() - 32) as f32;
        }
    }
}

/// The scales of Q6_K: signed bytes, and an f16 behind them.
#[inline(always)]
fn read_signed(block: &[u8], scales: &mut [[f32; PANEL]]) {
    let of_scales = halves(block, 8);
    for (j, scales) in scales.iter_mut().enumerate() {
        let bytes = bytes(block, j);
        for lane in 0..PANEL {
            scales[lane] = of_scales[lane] * ((bytes[lane] << 24).cast_signed() >> 24) as f32;
        }
    }
}
