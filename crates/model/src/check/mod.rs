//! The library part of `offshoot check` for model folders: a description of the folder, a comparison with golden files
//! of logits or of a scorer's values, batch invariance under chunking, the effect of rounded keys and values, and a
//! comparison with another model on a text. Reports are printable; the command line decides exit codes.

mod against;
mod chunks;
mod compared;
mod facts;
mod golden;
mod golden_file;
mod rounding;
mod scores;

pub use against::{LayerDifference, Prediction, TextComparison, layer_differences, predictions};
pub use chunks::{ChunkReport, chunks};
pub use compared::{COMPARISONS, Comparison};
pub use facts::{ConfigFacts, Facts, facts, index_facts, stored_dtype};
pub use golden::{CaseReport, GoldenReport, Miss, golden, golden_cases, golden_dtype, golden_in_forms, tolerance};
pub use golden_file::{GoldenCase, read_golden};
pub use rounding::{RoundingReport, kv_rounding, state_rounding};
pub use scores::{GoldenScores, ScoreReport, ScoreScale, has_scores, read_scores, scores};
