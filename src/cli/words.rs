//! The words of options that the command alone has.

use crate::args::words::Word;
use crate::estimate::Predict;
use crate::eval::run::ResultFormat;
use crate::eval::scoring::ExtractMode;

pub(super) const RESULT_FORMATS: &[Word<ResultFormat>] = &[
    ("jsonl", ResultFormat::Jsonl, "JSON lines alone"),
    ("parquet", ResultFormat::Parquet, "JSON lines, and the same as Parquet"),
];

pub(super) const EXTRACT_MODES: &[Word<ExtractMode>] = &[
    ("auto", ExtractMode::Auto, "A fenced block if there is one and the text should be a complete program"),
    ("none", ExtractMode::None, "The whole text"),
    ("fence", ExtractMode::Fence, "A fenced block, even if samples continue a prompt"),
];

pub(super) const PREDICTIONS: &[Word<Predict>] = &[
    ("auto", Predict::Auto, "If the prediction takes only seconds"),
    ("always", Predict::Always, ""),
    ("never", Predict::Never, ""),
];
