//! Adapters: what is added to a row is the same among rows of other adapters and of none.

use super::differences::{Rows, alone};
use crate::case::CheckEffort;
use crate::ops::linear::Destination;
use crate::ops::lora::TestLora;
use crate::report::CheckReport;
use offshoot_backend::{Backend, Dtype};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

const ROWS: [usize; 9] = [1, 2, 7, 8, 9, 16, 33, 64, 200];

/// Inputs, outputs of each part, and the largest rank.
const SHAPES: [(usize, &[usize], usize); 5] =
    [(40, &[33, 8], 5), (193, &[300], 16), (256, &[256, 64, 64], 16), (1025, &[96, 96], 64), (2312, &[80, 40], 24)];

pub fn lora<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let mut dice = Dice::new(5);
    for dtype in Dtype::ALL {
        let (shapes, rows) = match effort {
            CheckEffort::Quick => (&SHAPES[..2], &ROWS[..7]),
            CheckEffort::Full => (&SHAPES[..], &ROWS[..]),
        };
        for &(inputs, outputs, rank) in shapes {
            for into in [Destination::Operands, Destination::Added] {
                let most = rows[rows.len() - 1];
                let all = TestLora::random(&mut dice, dtype, most, inputs, outputs, rank, into, false);
                let part = |part: Rows| all.of_rows(part).compute(backend);
                let differences = alone(rows, all.shape.outputs(), &mut dice, part)?;
                let case = format_args!("{inputs} -> {outputs:?}, rank {rank} at most, into {into:?}");
                differences.file(report, "alone, add_lora", dtype, case);
            }
        }
    }
    Ok(())
}
