//! A weight matrix as the CPU keeps it: pieces of one format each, stacked. Parts of equal formats become one piece, so
//! most matrices have one. `pack` holds dense pieces, `quantised` those with scales, `blocks` those of GGUF files.

use super::blocks::{self, BlockPanels, BlockScratch};
use super::dense;
use super::drive::DenseScratch;
use super::pack::CpuMatrix;
use super::quantised::{self, QuantPanels, QuantScratch};
use crate::rows::for_rows;
use crate::team::Team;
use crate::{Cores, CpuBuffer};
use offshoot_backend::{BlockView, Elements, MatrixPart, OutputMode, all_quantised, with_bytes};
use offshoot_core::ids::TokenId;

/// Memory reused between linear layers.
#[derive(Default)]
pub struct GemmScratch {
    pub(super) dense: DenseScratch,
    pub(super) quantised: QuantScratch,
    pub(super) blocks: BlockScratch,
    /// The output of one piece of several.
    piece: CpuBuffer,
}

/// A matrix `[rows, cols]` (outputs, inputs).
pub struct CpuWeights {
    pub rows: usize,
    pub cols: usize,
    pieces: Vec<Piece>,
}

/// Neighbouring outputs whose weights are stored in one format.
pub enum Piece {
    Dense(CpuMatrix),
    Quantised(QuantPanels),
    Blocks(BlockPanels),
}

impl Piece {
    fn rows(&self) -> usize {
        match self {
            Piece::Dense(matrix) => matrix.rows,
            Piece::Quantised(panels) => panels.rows,
            Piece::Blocks(blocks) => blocks.rows,
        }
    }

    fn copy_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Piece::Dense(matrix) => matrix.copy_row(row, out),
            Piece::Quantised(panels) => panels.copy_row(row, out),
            Piece::Blocks(blocks) => blocks.copy_row(row, out),
        }
    }
}

impl CpuWeights {
    /// Stacks `parts`, which have equal `cols`.
    pub fn pack(parts: &[MatrixPart<'_>]) -> Self {
        let cols = parts.first().expect("a matrix has at least one part").cols();
        assert!(parts.iter().all(|part| part.cols() == cols), "stacked parts agree in width");
        let pieces: Vec<Piece> = parts.chunk_by(alike).map(piece).collect();
        Self { rows: parts.iter().map(MatrixPart::rows).sum(), cols, pieces }
    }

    /// The pieces from the first output on.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// All elements, as they were packed; `None` if they are codes, or of several dtypes.
    pub fn elements(&self) -> Option<Elements> {
        match &self.pieces[..] {
            [Piece::Dense(matrix)] => Some(matrix.elements()),
            _ => None,
        }
    }

    /// Row `row` as f32 numbers.
    fn copy_row(&self, mut row: usize, out: &mut [f32]) {
        for piece in &self.pieces {
            if row < piece.rows() {
                return piece.copy_row(row, out);
            }
            row -= piece.rows();
        }
        panic!("row {row} beyond a matrix of {} rows", self.rows);
    }
}

/// Whether two neighbouring parts can be one piece.
fn alike(a: &MatrixPart<'_>, b: &MatrixPart<'_>) -> bool {
    match (a, b) {
        (MatrixPart::Quantised(a), MatrixPart::Quantised(b)) => {
            (a.format, a.order, a.activations) == (b.format, b.order, b.activations)
        }
        (MatrixPart::Blocks(a), MatrixPart::Blocks(b)) => (a.kind, a.exact) == (b.kind, b.exact),
        _ => a.format() == b.format(),
    }
}

/// `parts` are alike.
fn piece(parts: &[MatrixPart<'_>]) -> Piece {
    let blocks = parts.iter().map(|part| match part {
        MatrixPart::Blocks(view) => Some(*view),
        _ => None,
    });
    if let Some(views) = all_quantised(parts) {
        return Piece::Quantised(QuantPanels::pack(&views));
    }
    if let Some(views) = blocks.collect::<Option<Vec<BlockView<'_>>>>() {
        return Piece::Blocks(BlockPanels::pack(&views));
    }
    Piece::Dense(with_bytes(parts, CpuMatrix::pack))
}

/// `out[r] = table[tokens[r]]`, as f32 numbers.
pub fn embed(team: &Team, out: &mut CpuBuffer, table: &CpuWeights, tokens: &[TokenId]) {
    assert_eq!((out.rows, out.width), (tokens.len(), table.cols), "embed: shape of the output");
    for_rows(team, out, |r, row| table.copy_row(tokens[r].ix(), row));
}

/// `out[r] += table[rows[r]]`
pub fn add_rows(team: &Team, out: &mut CpuBuffer, table: &CpuWeights, rows: &[u32]) {
    assert_eq!((out.rows, out.width), (rows.len(), table.cols), "add_positions: shape of the output");
    for_rows(team, out, |r, row| {
        let mut added = vec![0.0; row.len()];
        table.copy_row(rows[r] as usize, &mut added);
        row.iter_mut().zip(added).for_each(|(x, added)| *x += added);
    });
}

/// `out[r] = w x[r] (+ bias)`, or `out[r] += w x[r] (+ bias)`, by the pieces of `w`.
pub fn linear_stack(
    cores: &Cores,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &CpuWeights,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    assert_eq!((x.width, out.width, out.rows), (w.cols, w.rows, x.rows), "linear: shapes of input and output");
    assert!(bias.is_none_or(|bias| bias.len() == w.rows), "linear: length of the bias");
    if let [piece] = w.pieces() {
        return linear_piece(cores, scratch, out, x, piece, bias, mode);
    }
    let mut first = 0;
    for piece in w.pieces() {
        let rows = piece.rows();
        let mut own = std::mem::take(&mut scratch.piece);
        (own.rows, own.width) = (x.rows, rows);
        own.data.resize(x.rows * rows, 0.0);
        let bias = bias.map(|bias| &bias[first..first + rows]);
        linear_piece(cores, scratch, &mut own, x, piece, bias, OutputMode::Replace);
        for_rows(&cores.team, out, |r, out| {
            out[first..first + rows].iter_mut().zip(own.row(r)).for_each(|(out, y)| mode.put(out, *y));
        });
        scratch.piece = own;
        first += rows;
    }
}

fn linear_piece(
    cores: &Cores,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    piece: &Piece,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    match piece {
        Piece::Dense(matrix) => dense::linear(cores, &mut scratch.dense, out, x, matrix, bias, mode),
        Piece::Quantised(panels) => quantised::linear(cores, &mut scratch.quantised, out, x, panels, bias, mode),
        Piece::Blocks(blocks) => blocks::linear(cores, &mut scratch.blocks, out, x, blocks, bias, mode),
    }
}
