//! Ops that compute rows from rows, with random inputs: odd and even shapes, every dtype. Tolerances are stated at each
//! op; they follow from the rounding that the documentation of `Backend` allows: sums and intermediate results in f32,
//! stored values in the dtype of their buffer. Inputs are exactly representable in the dtype, but for those that a
//! product rounds.

mod activations;
mod experts;
mod four_bit;
mod gated_norm;
mod heads;
mod in_place;
mod latents;
pub(crate) mod linear;
pub(crate) mod lora;
mod norms;
mod pages;
pub(crate) mod quantised;
mod routed;
mod rows;
mod states;
mod suite;

use offshoot_backend::{Backend, Dtype};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

use self::suite::OpSuite;
use crate::case::CheckEffort;
use crate::report::{CheckReport, ReportRow};

/// Checks ops of one kind.
type OpCheck<B, D> = fn(&mut OpSuite<'_, B, D>, &mut Dice) -> Result<()>;

/// Runs every op; those of weights in codes with an effort of their own, as their definition takes most of the time.
/// `definition` is the backend whose results define the ops. `done` gets the rows of each kind of ops when they are
/// complete.
///
/// # Errors
///
/// A device's, or one of `done`.
pub fn ops<B: Backend, D: Backend>(
    backend: &mut B,
    definition: &mut D,
    (effort, of_codes): (CheckEffort, CheckEffort),
    report: &mut CheckReport,
    mut done: impl FnMut(&[ReportRow]) -> Result<()>,
) -> Result<()> {
    let kinds: [(OpCheck<B, D>, CheckEffort); 14] = [
        (rows::check, effort),
        (norms::check, effort),
        (linear::check, effort),
        (lora::check, effort),
        (heads::check, effort),
        (latents::check, effort),
        (activations::check, effort),
        (in_place::check, effort),
        (gated_norm::check, effort),
        (states::check, effort),
        (pages::check, effort),
        (experts::check, effort),
        (quantised::check, of_codes),
        (four_bit::check, of_codes),
    ];
    let mut dice = Dice::new(1);
    for dtype in Dtype::ALL {
        for (kind, effort) in kinds {
            report.part(&mut done, |report| {
                kind(&mut OpSuite { backend, definition, report, dtype, effort }, &mut dice)
            })?;
        }
    }
    Ok(())
}
