//! Rows of a quantised matrix, whatever its packing: the codes one to a byte, the scales and zero points.

use super::QuantFormat;
use super::rounding::ActivationScale;
use super::source::{QuantRow, QuantSource};

/// A quantised matrix `[rows, cols]` (outputs, inputs), as stored or to be made.
#[derive(Clone, Copy, Debug)]
pub struct QuantView<'a> {
    pub format: QuantFormat,
    pub rows: usize,
    pub cols: usize,
    pub source: QuantSource<'a>,
    /// Outputs of the source, the first of them that is a row here, and the distance to the next.
    pub source_rows: usize,
    pub first: usize,
    pub step: usize,
    /// Inputs of the source, and the first of them that is a column here, which begins a group.
    pub source_cols: usize,
    pub first_col: usize,
    /// Where the groups' inputs are not neighbours (GPTQ's `desc_act`): the inputs in the order of their groups. Codes
    /// are read in this order, and activations must be put into it.
    pub order: Option<&'a [u32]>,
    pub activations: ActivationScale,
}

impl<'a> QuantView<'a> {
    /// A view of all rows of `source`, without an order of inputs and scales of activations.
    pub fn of(format: QuantFormat, rows: usize, cols: usize, source: QuantSource<'a>) -> Self {
        let activations = ActivationScale::default();
        let (source_rows, source_cols) = (rows, cols);
        Self {
            format,
            rows,
            cols,
            source,
            source_rows,
            first: 0,
            step: 1,
            source_cols,
            first_col: 0,
            order: None,
            activations,
        }
    }

    /// Reads row `row` into `out`.
    pub fn read_row(&self, row: usize, out: &mut QuantRow) {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        let shape = [self.source_rows, self.source_cols];
        self.source.read_row(self.format, shape, self.first + row * self.step, out);
        if self.cols < self.source_cols {
            keep(&mut out.codes, self.first_col, self.cols);
            if let Some(group) = self.format.group {
                let (first, groups) = (self.first_col / group as usize, self.format.groups(self.cols));
                keep(&mut out.scales, first, groups);
                if !out.zeros.is_empty() {
                    keep(&mut out.zeros, first, groups);
                }
            }
        }
        if let Some(order) = self.order {
            out.codes = order.iter().map(|&k| out.codes[k as usize]).collect();
        }
    }

    /// Row `row` as numbers, inputs in the order of the model. `scratch` holds its codes.
    pub fn numbers(&self, row: usize, scratch: &mut QuantRow, out: &mut [f32]) {
        self.read_row(row, scratch);
        let group = self.format.group_inputs(self.cols).max(1);
        for (k, code) in scratch.codes.iter().enumerate() {
            let input = self.order.map_or(k, |order| order[k] as usize);
            let zero = scratch.zeros.get(k / group).copied();
            out[input] = self.format.codes.number(*code, zero) * scratch.scale(k / group);
        }
    }
}

/// The view that has row `row` of the stack of `views`, and which of its rows that is.
pub fn row_of_stack<'a, 'b>(views: &'a [QuantView<'b>], mut row: usize) -> (&'a QuantView<'b>, usize) {
    for view in views {
        if row < view.rows {
            return (view, row);
        }
        row -= view.rows;
    }
    panic!("row {row} is behind the last part")
}

/// Leaves `count` elements from `first` on.
fn keep<T>(all: &mut Vec<T>, first: usize, count: usize) {
    all.truncate(first + count);
    all.drain(..first);
}
