//! Reads the rotary embedding from config.json, in both notations: `rope_theta` with `rope_scaling` (transformers 4)
//! and `rope_parameters` (transformers 5). `model::rope` computes tables from it.

use std::fmt;

use crate::error::Result;

use super::fields::{Fields, LARGEST_CONTEXT};

/// A rotary embedding. The first `rotary` elements of a head are rotated; `theta` is the base of the wavelengths.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f64,
    pub rotary: usize,
    pub scaling: RopeScaling,
}

/// How wavelengths are stretched for contexts longer than `original_context`, the one of the model's first training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    Plain,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: usize,
    },
    /// `attention_factor` multiplies cosines and sines.
    Yarn {
        factor: f64,
        original_context: usize,
        beta_fast: f64,
        beta_slow: f64,
        truncate: bool,
        attention_factor: f64,
    },
}

const SUPPORTED: &str = "one of default, linear, llama3, yarn";

impl RopeConfig {
    /// `default_fraction`: the fraction of a head that is rotated if the config does not say (1, or 0.5 for Phi).
    pub(super) fn read(fields: &Fields<'_>, head_dim: usize, context: usize, default_fraction: f64) -> Result<Self> {
        let parameters = fields.object("rope_parameters")?;
        let scaling = match &parameters {
            Some(parameters) => RopeScaling::read(parameters, context)?,
            None => match fields.object("rope_scaling")? {
                Some(scaling) => RopeScaling::read(&scaling, context)?,
                None => RopeScaling::Plain,
            },
        };
        let number = |name: &str| -> Result<Option<f64>> {
            let nested = parameters.as_ref().map(|p| p.positive(name)).transpose()?.flatten();
            Ok(nested.or(fields.positive(name)?))
        };
        let theta = number("rope_theta")?.unwrap_or(10_000.0);
        if theta <= 1.0 {
            return Err(fields.error("rope_theta", "a number above 1", theta.to_string()));
        }
        let fraction = number("partial_rotary_factor")?.unwrap_or(default_fraction);
        let rotary = (head_dim as f64 * fraction) as usize;
        if rotary == 0 || rotary > head_dim || !rotary.is_multiple_of(2) {
            let expected =
                format!("a fraction of head_dim ({head_dim}) that gives an even number of elements to rotate");
            return Err(fields.error("partial_rotary_factor", expected, format!("{fraction} ({rotary} elements)")));
        }
        Ok(Self { theta, rotary, scaling })
    }

    /// The context that the scaling allows, or `max_position_embeddings` if that is longer. Configs with linear or yarn
    /// scaling commonly leave `max_position_embeddings` at the length of the first training.
    pub(super) fn context(&self, max_position_embeddings: usize) -> usize {
        let reach = match &self.scaling {
            RopeScaling::Plain | RopeScaling::Llama3 { .. } => 0.0,
            RopeScaling::Linear { factor } => max_position_embeddings as f64 * factor,
            RopeScaling::Yarn { factor, original_context, .. } => *original_context as f64 * factor,
        };
        max_position_embeddings.max((reach as usize).min(LARGEST_CONTEXT))
    }
}

impl RopeScaling {
    fn read(fields: &Fields<'_>, context: usize) -> Result<Self> {
        let by_layer_type = ["full_attention", "sliding_attention"].into_iter().find(|kind| fields.is_written(kind));
        if let Some(kind) = by_layer_type {
            return Err(fields.error(kind, "one rope for all layers", "a rope for each kind of layer"));
        }
        let (field, kind) = match fields.text("rope_type")? {
            Some(kind) => ("rope_type", kind),
            None => ("type", fields.text("type")?.unwrap_or("default")),
        };
        let factor = || {
            let factor = fields.positive("factor")?;
            let factor = factor.ok_or_else(|| fields.error("factor", format!("a number ({kind} rope)"), "nothing"))?;
            if factor < 1.0 {
                return Err(fields.error("factor", "a number from 1", factor.to_string()));
            }
            Ok(factor)
        };
        match kind {
            "default" => Ok(Self::Plain),
            "linear" => Ok(Self::Linear { factor: factor()? }),
            "llama3" => Self::llama3(fields, factor()?),
            "yarn" => Self::yarn(fields, context),
            other => Err(fields.error(field, SUPPORTED, format!("\"{other}\""))),
        }
    }

    fn llama3(fields: &Fields<'_>, factor: f64) -> Result<Self> {
        let required = |name| {
            fields.positive(name)?.ok_or_else(|| fields.error(name, "a number above 0 (llama3 rope)", "nothing"))
        };
        let (low_freq_factor, high_freq_factor) = (required("low_freq_factor")?, required("high_freq_factor")?);
        if high_freq_factor <= low_freq_factor {
            let expected = format!("more than low_freq_factor ({low_freq_factor})");
            return Err(fields.error("high_freq_factor", expected, high_freq_factor.to_string()));
        }
        let original_context = fields.required_size("original_max_position_embeddings", LARGEST_CONTEXT)?;
        Ok(Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
    }

    /// `factor` defaults to the ratio of the two context lengths, `attention_factor` to the paper's `0.1 ln(factor) +
    /// 1` or, if `mscale` and `mscale_all_dim` are given, to the ratio of two such terms (as in DeepSeek).
    fn yarn(fields: &Fields<'_>, context: usize) -> Result<Self> {
        let original_context = fields.size("original_max_position_embeddings", LARGEST_CONTEXT)?.unwrap_or(context);
        let factor = fields.positive("factor")?.unwrap_or(context as f64 / original_context as f64);
        if factor < 1.0 {
            return Err(fields.error("factor", "a number from 1", factor.to_string()));
        }
        let term = |mscale: f64| 0.1 * mscale * factor.ln() + 1.0;
        let attention_factor = match fields.positive("attention_factor")? {
            Some(given) => given,
            None => match (scale(fields, "mscale")?, scale(fields, "mscale_all_dim")?) {
                (Some(mscale), Some(all_dim)) => term(mscale) / term(all_dim),
                _ => term(1.0),
            },
        };
        let beta_fast = fields.positive("beta_fast")?.unwrap_or(32.0);
        let beta_slow = fields.positive("beta_slow")?.unwrap_or(1.0);
        let truncate = fields.flag("truncate")?.unwrap_or(true);
        Ok(Self::Yarn { factor, original_context, beta_fast, beta_slow, truncate, attention_factor })
    }
}

/// Reads `mscale` or `mscale_all_dim`; zero means absent, as in transformers.
fn scale(fields: &Fields<'_>, name: &str) -> Result<Option<f64>> {
    match fields.value(name).and_then(serde_json::Value::as_f64) {
        Some(0.0) => Ok(None),
        _ => fields.positive(name),
    }
}

impl fmt::Display for RopeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scaling {
            RopeScaling::Plain => write!(f, "plain")?,
            RopeScaling::Linear { factor } => write!(f, "linear, factor {factor}")?,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => write!(
                f,
                "llama3, factor {factor}, frequency factors {low_freq_factor} to {high_freq_factor}, original context \
                 {original_context}"
            )?,
            RopeScaling::Yarn { factor, original_context, attention_factor, .. } => write!(
                f,
                "yarn, factor {factor}, original context {original_context}, attention factor {attention_factor:.4}"
            )?,
        }
        write!(f, ", theta {}, rotates {} elements of a head", self.theta, self.rotary)
    }
}
