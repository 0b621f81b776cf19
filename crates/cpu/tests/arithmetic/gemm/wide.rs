//! Many rows by quantised weights.

use offshoot_backend::{
    CodeFormat, Dtype, MatrixPart, OutputMode, QuantFormat, QuantSource, QuantView, RandomWeight, Rounding, Uniform,
};
use offshoot_cpu::gemm::{CpuWeights, GemmScratch, linear_stack};
use offshoot_cpu::{Cores, CpuBuffer, Isa};

fn product(cores: &Cores, w: &CpuWeights, rows: usize, numbers: &[f32]) -> Vec<f32> {
    let x = CpuBuffer { rows, width: w.cols, data: numbers.to_vec() };
    let mut out = CpuBuffer::new(rows, w.rows);
    linear_stack(cores, &mut GemmScratch::default(), &mut out, &x, w, None, OutputMode::Replace);
    out.data
}

/// Groups that are smaller and larger than a strip, that do not divide the inputs, and none; whole panels and half
/// ones.
#[test]
fn rows_have_the_bits_that_they_have_alone() {
    const OUTPUTS: usize = 50;
    let shapes = [
        (768, Some(32)),
        (304, Some(16)),
        (264, Some(88)),
        (200, Some(64)),
        (203, Some(64)),
        (1024, Some(512)),
        (600, None),
    ];
    let codes = [CodeFormat::Fp8, CodeFormat::Int8, CodeFormat::Int4, CodeFormat::Fp4];
    for (isa, codes) in Isa::available().into_iter().flat_map(|isa| codes.map(|codes| (isa, codes))) {
        let cores = Cores::new(isa);
        for (cols, group) in shapes {
            let numbers = Uniform { stream: 5, centre: 0.0, reach: 0.1 };
            let random = RandomWeight::of(Dtype::F32, OUTPUTS, cols, numbers);
            let zeros = codes == CodeFormat::Int4 && group != Some(32);
            let format = QuantFormat { codes, group, zeros, rounding: Rounding::Exact };
            let view = QuantView::of(format, OUTPUTS, cols, QuantSource::Random(random));
            let w = CpuWeights::pack(&[MatrixPart::Quantised(view)]);
            for rows in [13, 34] {
                let x: Vec<f32> = (0..rows * cols).map(|i| numbers.at(i)).collect();
                let found = product(&cores, &w, rows, &x);
                for (r, found) in found.chunks_exact(OUTPUTS).enumerate() {
                    let alone = product(&cores, &w, 1, &x[r * cols..][..cols]);
                    assert_eq!(alone, found, "{isa}: {format}, {cols} inputs, row {r} of {rows}");
                }
            }
        }
    }
}
