//! What a rank has of a stack of matrices or vectors: rows or columns of each part.

use std::borrow::Cow;
use std::ops::Range;

use crate::backend::{BlockView, MatrixPart, QuantView, RandomWeight, Uniform, WeightView};

/// The share of rank `rank` of `ranks` in each of neighbouring segments of these widths, as ranges of all.
pub fn shares(segments: &[usize], rank: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    segments.iter().scan(0, move |first, &width| {
        let (begin, own) = (*first, width / ranks);
        *first += width;
        Some(begin + rank * own..begin + (rank + 1) * own)
    })
}

/// These rows of a stack of parts.
pub fn rows<'a>(parts: &[MatrixPart<'a>], ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<MatrixPart<'a>> {
    cut(parts, MatrixPart::rows, ranges, |part, rows| rows_of(part, rows))
}

/// These elements of concatenated vectors.
pub fn elements<'a>(vectors: &[WeightView<'a>], ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<WeightView<'a>> {
    let length = |view: &WeightView<'_>| view.rows * view.cols;
    cut(vectors, length, ranges, |view, range| {
        let size = view.dtype.bytes();
        WeightView { rows: 1, cols: range.len(), bytes: &view.bytes[range.start * size..range.end * size], ..*view }
    })
}

/// `of(part, range)` for each part that a range meets, in order.
fn cut<T>(
    parts: &[T],
    length: impl Fn(&T) -> usize,
    ranges: impl IntoIterator<Item = Range<usize>>,
    of: impl Fn(&T, Range<usize>) -> T,
) -> Vec<T> {
    let mut found = Vec::new();
    for range in ranges {
        let mut first = 0;
        for part in parts {
            let end = first + length(part);
            let (from, to) = (range.start.max(first), range.end.min(end));
            if from < to {
                found.push(of(part, from - first..to - first));
            }
            first = end;
        }
    }
    found
}

fn rows_of<'a>(part: &MatrixPart<'a>, range: Range<usize>) -> MatrixPart<'a> {
    let rows = range.len();
    match *part {
        MatrixPart::Dense(view) => {
            let row = view.cols * view.dtype.bytes();
            MatrixPart::Dense(WeightView { rows, bytes: &view.bytes[range.start * row..range.end * row], ..view })
        }
        MatrixPart::Random(random) => {
            // Number `i` follows from the sum of the stream and `i`.
            let stream = random.numbers.stream.wrapping_add((range.start * random.cols) as u64);
            MatrixPart::Random(RandomWeight { rows, numbers: Uniform { stream, ..random.numbers }, ..random })
        }
        MatrixPart::Quantised(view) => {
            MatrixPart::Quantised(QuantView { first: view.first + range.start * view.step, rows, ..view })
        }
        MatrixPart::Blocks(view) => {
            let row = view.kind.row_bytes(view.cols);
            MatrixPart::Blocks(BlockView { rows, bytes: &view.bytes[range.start * row..range.end * row], ..view })
        }
    }
}

/// Columns of a dense part, `[rows, range]`. Panics if it is of another form.
pub struct Columns<'a> {
    bytes: Cow<'a, [u8]>,
    of: WeightView<'a>,
}

impl<'a> Columns<'a> {
    /// All of the part's bytes, from which `view` cuts.
    pub fn of(part: &MatrixPart<'a>) -> Self {
        match *part {
            MatrixPart::Dense(view) => Self { bytes: Cow::Borrowed(view.bytes), of: view },
            MatrixPart::Random(random) => Self { bytes: Cow::Owned(random.generate()), of: random.view(&[]) },
            MatrixPart::Quantised(_) | MatrixPart::Blocks(_) => {
                panic!("inputs of {} are not divided, which `Backend::multiplies` says", part.format())
            }
        }
    }

    /// The bytes of columns `range`, row after row.
    pub fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let (size, row) = (self.of.dtype.bytes(), self.of.cols * self.of.dtype.bytes());
        let rows = self.bytes.chunks_exact(row.max(1)).take(self.of.rows);
        rows.flat_map(|row| &row[range.start * size..range.end * size]).copied().collect()
    }

    /// A view of what `bytes` gave for `width` columns.
    pub fn view<'b>(&self, width: usize, bytes: &'b [u8]) -> WeightView<'b> {
        WeightView { dtype: self.of.dtype, rows: self.of.rows, cols: width, bytes }
    }
}
