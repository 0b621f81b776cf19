//! Compares a scorer with a golden file of another implementation's scores: `prompt` (token ids), `positions` (tokens
//! of the prompt, from 0) and `scores` (for each position a list, one number for each value of the model). Files hold
//! values as they are, their sigmoids or their softmax, as the published model's own code gives them, and do not say
//! which: the one that is nearest is compared, and named.

use std::fmt;
use std::path::Path;

use serde_json::Value;

use offshoot_backend::Backend;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

use super::super::config::{ModelConfig, read_json};
use super::super::decoder::Decoder;
use super::super::sequence::Sequence;
use super::golden::tolerance;

/// Prompt tokens per step: odd, so that steps end anywhere in a page.
const CHUNK: usize = 37;

/// A prompt and the scores expected at some of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct GoldenScores {
    pub prompt: Vec<TokenId>,
    /// Tokens of the prompt, from 0.
    pub positions: Vec<usize>,
    /// For each position as many numbers as the model has values.
    pub scores: Vec<Vec<f64>>,
}

/// What a golden file's scores are of a model's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreScale {
    Values,
    Sigmoids,
    Softmax,
}

/// The result of a comparison, printable.
#[derive(Clone, Debug)]
pub struct ScoreReport {
    pub positions: usize,
    /// Values of a position.
    pub width: usize,
    pub scale: ScoreScale,
    /// The largest difference of a score; infinite if one is NaN.
    pub difference: f64,
    /// Upper bound of `difference`.
    pub tolerance: f64,
}

impl ScoreScale {
    const ALL: [Self; 3] = [Self::Values, Self::Sigmoids, Self::Softmax];

    /// The scores of a row of values.
    pub fn scores(self, values: &[f32]) -> Vec<f64> {
        let values = values.iter().map(|&value| f64::from(value));
        match self {
            Self::Values => values.collect(),
            Self::Sigmoids => values.map(|value| 1.0 / (1.0 + (-value).exp())).collect(),
            Self::Softmax => {
                let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = values.map(|value| (value - largest).exp()).collect();
                let sum: f64 = powers.iter().sum();
                powers.iter().map(|power| power / sum).collect()
            }
        }
    }
}

/// Whether a golden file is one for a scorer.
///
/// # Errors
///
/// The file cannot be read, or is no JSON.
pub fn has_scores(path: &Path) -> Result<bool> {
    Ok(read_json(path)?.get("scores").is_some())
}

/// Reads a golden file for a scorer.
///
/// # Errors
///
/// The file cannot be read, or is not one for this model.
pub fn read_scores(path: &Path, config: &ModelConfig) -> Result<GoldenScores> {
    let json = read_json(path)?;
    let list = |field: &str, expected: &str| match json.get(field).and_then(Value::as_array) {
        Some(list) if !list.is_empty() => Ok(list),
        _ => Err(Error::field(path, field, expected, "nothing of the kind")),
    };
    let below = |field: &str, most: usize, what: &str| {
        let expected = format!("a list of {what} below {most}");
        let number = |value: &Value| {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|number| *number < most);
            number.ok_or_else(|| Error::field(path, field, &expected, value.to_string()))
        };
        list(field, &expected)?.iter().map(number).collect::<Result<Vec<_>>>()
    };
    let prompt: Vec<TokenId> = below("prompt", config.vocab, "token ids")?.into_iter().map(TokenId::new).collect();
    if prompt.len() > config.context {
        let what = format!("{}: `prompt`", path.display());
        return Err(Error::ContextTooLong { what, tokens: prompt.len(), context: config.context });
    }
    let positions = below("positions", prompt.len(), "places of the prompt")?;
    let expected = format!("a list for each position, of {} numbers, the model's values", config.outputs());
    let of_position = |scores: &Value| {
        let numbers = scores.as_array().and_then(|scores| scores.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        let numbers = numbers.filter(|numbers| numbers.len() == config.outputs());
        numbers.ok_or_else(|| Error::field(path, "scores", &expected, scores.to_string()))
    };
    let scores = list("scores", &expected)?.iter().map(of_position).collect::<Result<Vec<_>>>()?;
    match scores.len() == positions.len() {
        true => Ok(GoldenScores { prompt, positions, scores }),
        false => {
            let expected = format!("{} lists (positions)", positions.len());
            Err(Error::field(path, "scores", expected, scores.len().to_string()))
        }
    }
}

/// Compares a scorer with a golden file.
///
/// # Errors
///
/// The golden file does not fit the model (see [`read_scores`]), or the device fails.
pub fn scores<B: Backend>(backend: &mut B, model: &mut Decoder<B>, path: &Path) -> Result<ScoreReport> {
    let golden = read_scores(path, model.config())?;
    let (dtype, width, layers) = (model.dtype(), model.config().outputs(), model.config().layers.len());
    let mut sequence = Sequence::new(backend, model, golden.prompt.len())?;
    let mut values = Vec::with_capacity(golden.prompt.len() * width);
    for chunk in golden.prompt.chunks(CHUNK) {
        let rows = u32::try_from(chunk.len()).expect("a chunk is short");
        values.extend(sequence.extend(chunk, 0..rows)?);
    }
    let rows: Vec<&[f32]> = golden.positions.iter().map(|&at| &values[at * width..][..width]).collect();
    let difference = |scale: ScoreScale| {
        let pairs =
            rows.iter().zip(&golden.scores).flat_map(|(row, expected)| scale.scores(row).into_iter().zip(expected));
        let each = pairs.map(|(found, expected)| (found - expected).abs());
        each.fold(0.0, |most: f64, difference| if difference.is_nan() { f64::INFINITY } else { most.max(difference) })
    };
    let all = ScoreScale::ALL.map(|scale| (scale, difference(scale)));
    let (scale, difference) = all.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b)).expect("there are three scales");
    let largest = rows.iter().copied().flatten().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let tolerance = f64::from(tolerance(dtype, layers, largest));
    Ok(ScoreReport { positions: rows.len(), width, scale, difference, tolerance })
}

impl ScoreReport {
    pub fn passes(&self) -> bool {
        self.difference <= self.tolerance
    }
}

impl fmt::Display for ScoreScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Values => "values as they are",
            Self::Sigmoids => "sigmoids of values",
            Self::Softmax => "the softmax of values",
        })
    }
}

impl fmt::Display for ScoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { positions, width, scale, difference, tolerance } = self;
        writeln!(
            f,
            "{:<6}{positions} positions of {width} scores: {scale}",
            if self.passes() { "ok" } else { "FAILS" }
        )?;
        writeln!(f, "      largest difference of scores {difference:.2e} (at most {tolerance:.2e})")
    }
}
