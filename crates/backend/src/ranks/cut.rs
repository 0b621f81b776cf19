//! What a rank has of a stack of matrices or vectors: rows or columns of each part.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::{
    BlockView, DeviceBytes, DeviceMemory, DeviceView, Dtype, HeldPart, MatrixPart, QuantView, RandomWeight, Segment,
    WeightFormat, WeightView,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::TENSOR_PARALLEL;

/// The share of rank `rank` of `ranks` in each of neighbouring segments, as ranges of all. `sharing`: see
/// [`Segment::share`]. Panics if one has none.
pub fn shares(segments: &[Segment], rank: usize, ranks: usize, sharing: usize) -> impl Iterator<Item = Range<usize>> {
    segments.iter().scan(0, move |first, segment| {
        let begin = *first;
        *first += segment.width;
        let own = segment
            .share(rank, ranks, sharing)
            .expect("`Rank::portion` divides segments that have a share for each rank");
        Some(begin + own.start..begin + own.end)
    })
}

/// These rows of a stack of parts.
pub fn rows<'a>(parts: &[HeldPart<'a>], ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<HeldPart<'a>> {
    let of = |held: &HeldPart<'a>, rows| HeldPart { part: rows_of(&held.part, rows), ..*held };
    cut(parts, |held| held.part.rows(), ranges, of)
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
        MatrixPart::Device(view) => MatrixPart::Device(view.rows(range)),
        MatrixPart::Random(random) => MatrixPart::Random(random.rows(range)),
        MatrixPart::Quantised(view) => {
            MatrixPart::Quantised(QuantView { first: view.first + range.start * view.step, rows, ..view })
        }
        MatrixPart::Blocks(view) => {
            let row = view.kind.row_bytes(view.cols);
            MatrixPart::Blocks(BlockView { rows, bytes: &view.bytes[range.start * row..range.end * row], ..view })
        }
    }
}

/// These columns of a part: stored dense ones, and those of a part that becomes dense, as bytes of their own; codes as
/// a view of the same source; random ones are still to be generated.
///
/// # Errors
///
/// Inputs that share a scale would be divided.
pub fn columns<'a>(held: &HeldPart<'a>, range: Range<usize>) -> Result<ColumnsOf<'a>> {
    let HeldPart { part, becomes } = *held;
    let dense = |dtype, bytes| ColumnsOf::Dense { dtype, rows: part.rows(), cols: range.len(), bytes };
    if let Some(dtype) = becomes {
        return Ok(dense(dtype, part.dense_bytes(dtype, range.clone())));
    }
    Ok(match part {
        MatrixPart::Dense(view) => dense(view.dtype, dense_columns(&view, range.clone())),
        MatrixPart::Device(view) => {
            let DeviceView { dtype, rows, cols, bytes } = view;
            match bytes.columns(cols * dtype.bytes(), range.start * dtype.bytes()..range.end * dtype.bytes()) {
                Ok(memory) => ColumnsOf::Device { dtype, rows, cols: range.len(), memory },
                // The weights that these replace may be gone already: the host has room.
                Err(Error::DeviceMemory { .. }) => {
                    let bytes = bytes.download()?;
                    dense(dtype, dense_columns(&WeightView { dtype, rows, cols, bytes: &bytes }, range.clone()))
                }
                Err(error) => return Err(error),
            }
        }
        MatrixPart::Random(random) => ColumnsOf::Random(random.columns(range)),
        MatrixPart::Quantised(view) => {
            assert!(view.order.is_none(), "an order of inputs, which `ORDERS_INPUTS` denies");
            let group = view.format.group.map_or(1, |group| group as usize);
            if !range.start.is_multiple_of(group) || !range.len().is_multiple_of(group) {
                let expected = format!("whole groups of {group} inputs on each");
                let found = format!("{} of {}", range.len(), view.cols);
                return Err(Error::value(
                    format!("inputs of a quantised layer under {TENSOR_PARALLEL}"),
                    expected,
                    found,
                ));
            }
            let first_col = view.first_col + range.start;
            ColumnsOf::Quantised(QuantView { first_col, cols: range.len(), ..view })
        }
        MatrixPart::Blocks(_) => panic!("inputs of {} are not divided, which `multiplies` says", part.format()),
    })
}

/// Some columns of a part.
pub enum ColumnsOf<'a> {
    Dense { dtype: Dtype, rows: usize, cols: usize, bytes: Vec<u8> },
    Device { dtype: Dtype, rows: usize, cols: usize, memory: Arc<dyn DeviceMemory> },
    Random(RandomWeight),
    Quantised(QuantView<'a>),
}

impl ColumnsOf<'_> {
    pub fn part(&self) -> HeldPart<'_> {
        let part = match self {
            ColumnsOf::Dense { dtype, rows, cols, bytes } => {
                MatrixPart::Dense(WeightView { dtype: *dtype, rows: *rows, cols: *cols, bytes })
            }
            ColumnsOf::Device { dtype, rows, cols, memory } => MatrixPart::Device(DeviceView {
                dtype: *dtype,
                rows: *rows,
                cols: *cols,
                bytes: DeviceBytes::whole(&**memory),
            }),
            ColumnsOf::Random(random) => MatrixPart::Random(*random),
            ColumnsOf::Quantised(view) => MatrixPart::Quantised(*view),
        };
        HeldPart { part, becomes: None }
    }
}

/// Rows of `width` bytes, which `fill` writes.
fn bytes_of_rows(rows: usize, width: usize, fill: impl Fn(usize, &mut [u8]) + Sync) -> Vec<u8> {
    let mut bytes = vec![0; rows * width];
    bytes.par_chunks_exact_mut(width.max(1)).enumerate().for_each(|(row, own)| fill(row, own));
    bytes
}

/// These columns of a dense matrix.
pub(super) fn dense_columns(view: &WeightView<'_>, columns: Range<usize>) -> Vec<u8> {
    let size = view.dtype.bytes();
    bytes_of_rows(view.rows, columns.len() * size, |row, own| {
        own.copy_from_slice(&view.bytes[(row * view.cols + columns.start) * size..][..own.len()]);
    })
}

/// `width` columns of each part.
pub(super) fn columns_of<'a>(parts: &[HeldPart<'a>], first: usize, width: usize) -> Result<Vec<ColumnsOf<'a>>> {
    parts.iter().map(|part| columns(part, first..first + width)).collect()
}

/// Whether the inputs of experts of this width are divided into so many parts where they are stored as `format`.
pub fn divides_experts(format: WeightFormat, width: usize, parts: usize) -> bool {
    match format {
        WeightFormat::Dense(_) => true,
        WeightFormat::Quantised(format) => width.is_multiple_of(parts * format.group.map_or(1, |group| group as usize)),
        WeightFormat::Blocks(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Uniform;

    /// Device memory as a test plays it; `has_room`: whether the device has more.
    #[derive(Debug)]
    struct Played {
        bytes: Vec<u8>,
        has_room: bool,
    }

    impl DeviceMemory for Played {
        fn ordinal(&self) -> usize {
            0
        }

        fn address(&self) -> u64 {
            0
        }

        fn bytes(&self) -> usize {
            self.bytes.len()
        }

        fn download(&self, range: Range<usize>) -> Result<Vec<u8>> {
            Ok(self.bytes[range].to_vec())
        }

        fn not_finite(&self, _: Range<usize>, _: Dtype, _: Dtype) -> Result<Option<usize>> {
            Ok(None)
        }

        fn cast(&self, _: Range<usize>, _: Dtype, _: Dtype) -> Result<Arc<dyn DeviceMemory>> {
            Err(Error::Internal("nothing is rounded".to_owned()))
        }

        fn columns(&self, range: Range<usize>, row: usize, columns: Range<usize>) -> Result<Arc<dyn DeviceMemory>> {
            let cut = self.bytes[range].chunks(row).flat_map(|row| &row[columns.clone()]).copied().collect();
            match self.has_room {
                true => Ok(Arc::new(Played { bytes: cut, has_room: true })),
                false => Err(Error::DeviceMemory { device: "cuda:0".to_owned(), asked: None, free: 0, total: 1 }),
            }
        }
    }

    fn bytes_of(part: &MatrixPart<'_>) -> Vec<u8> {
        match part {
            MatrixPart::Dense(view) => view.bytes.to_vec(),
            MatrixPart::Device(view) => view.bytes.download().expect("it does not fail"),
            _ => panic!("it is dense"),
        }
    }

    #[test]
    fn a_random_part_is_cut_as_what_is_generated_of_it() {
        let numbers = Uniform { stream: u64::MAX - 3, centre: 0.5, reach: 2.0 };
        let random = RandomWeight::of(Dtype::F16, 6, 5, numbers);
        let bytes = random.generate();
        let parts = [MatrixPart::Random(random), MatrixPart::Dense(random.view(&bytes))];
        let [drawn, stored] = parts.map(|part| {
            let own = rows(&[HeldPart { part, becomes: None }], std::iter::once(2..6))[0];
            let own = columns(&own, 1..4).unwrap();
            // Rows of columns, which a rank of a stack may have.
            rows(&[own.part()], std::iter::once(1..3))[0].part.dense_bytes(Dtype::F32, 0..3)
        });
        assert_eq!(drawn, stored);
    }

    #[test]
    fn a_part_on_a_device_is_cut_as_one_of_the_host() {
        let (dtype, rows_count, cols) = (Dtype::Bf16, 6, 4);
        let bytes: Vec<u8> = (0..rows_count * cols * 2).map(|i| i as u8).collect();
        let devices = [true, false].map(|has_room| Played { bytes: [&[99, 98, 97], &bytes[..]].concat(), has_room });
        let [roomy, full] = devices.each_ref().map(|device| {
            let at = DeviceBytes::whole(device).part(3..3 + bytes.len());
            MatrixPart::Device(DeviceView { dtype, rows: rows_count, cols, bytes: at })
        });
        let parts = [MatrixPart::Dense(WeightView { dtype, rows: rows_count, cols, bytes: &bytes }), roomy, full];
        let [host, roomy, full] = parts.map(|part| {
            let held = HeldPart { part, becomes: None };
            // A rank's rows, and some columns of the first ones.
            let own = rows(&[held, held], [1..3, 4..9]);
            let columns: Vec<_> = own.iter().map(|held| columns(held, 1..3).expect("nothing shares a scale")).collect();
            let of = |held: &HeldPart<'_>| (held.part.rows(), held.part.cols(), bytes_of(&held.part));
            let columns = columns.iter().map(|columns| of(&columns.part())).collect::<Vec<_>>();
            (own.iter().map(of).collect::<Vec<_>>(), columns)
        });
        assert_eq!((&roomy, &full), (&host, &host));
        assert_eq!(host.0.iter().map(|(rows, ..)| rows).sum::<usize>(), 7);
    }
}
