//! Reads the rotary embedding of a kind of layers from config.json, in both notations: `rope_theta` with `rope_scaling`
//! (transformers 4) and `rope_parameters` (transformers 5), which may hold one rope for each kind of layers.
//! `model::rope` computes tables from it.

use std::fmt;

use offshoot_backend::RopePairs;
use offshoot_core::error::Result;

use super::fields::{Fields, LARGEST_CONTEXT};

/// A rotary embedding. The first `rotary` elements of a head are rotated, of latent attention the last; `theta` is the
/// base of the wavelengths. `score_factor` multiplies the scores of latent attention; it is 1 for other attention.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f64,
    pub rotary: usize,
    pub pairs: RopePairs,
    pub scaling: RopeScaling,
    pub score_factor: f64,
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
    /// Each pair's wavelength is multiplied by its own factor: `short` in runs up to `original_context` tokens, `long`
    /// in longer ones. `attention_factor` multiplies cosines and sines.
    Long {
        short: Vec<f64>,
        long: Vec<f64>,
        original_context: usize,
        attention_factor: f64,
    },
    /// Each pair's wavelength is multiplied by its own factor.
    Factors(Vec<f64>),
    /// The rotated pairs are the fastest ones of a head that is rotated as a whole: pair `i` is made of elements `i`
    /// and `i + head_dim / 2` (Gemma 4).
    Proportional {
        factor: f64,
        head_dim: usize,
    },
}

const PARTIAL: &str = "partial_rotary_factor";
const ALL_DIM: &str = "mscale_all_dim";
const SUPPORTED: &str = "one of default, linear, dynamic, llama3, yarn, longrope, proportional";

/// The kinds of layers, as `layer_types` and `rope_parameters` name them; those with attention may have ropes of their
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    Full,
    Sliding,
    /// A recurrent layer, which has no rope.
    Linear,
    /// A layer that mixes no positions.
    None,
}

impl LayerKind {
    /// The kinds with attention.
    pub const WITH_ATTENTION: [LayerKind; 2] = [LayerKind::Full, LayerKind::Sliding];

    pub fn name(self) -> &'static str {
        match self {
            LayerKind::Full => "full_attention",
            LayerKind::Sliding => "sliding_attention",
            LayerKind::Linear => "linear_attention",
            LayerKind::None => "none",
        }
    }
}

/// What a family implies about the ropes of one kind of layers.
#[derive(Clone, Copy, Debug)]
pub struct RopeDefaults {
    /// The field of the base in the older notation, if it counts for these layers, and its value if no field says it.
    pub theta_field: Option<&'static str>,
    pub theta: f64,
    /// The fraction of a head that is rotated if the config does not say.
    pub fraction: f64,
    /// Whether a plain or stretched rope may turn a part of a head only; a proportional one always may.
    pub partial: bool,
    /// Whether `rope_scaling` of the older notation applies to these layers.
    pub scaled: bool,
    /// Whether the kinds "su" and "yarn" mean longrope (Phi-3).
    pub is_phi3: bool,
    pub pairs: RopePairs,
    /// Whether `mscale_all_dim` multiplies scores, too (latent attention).
    pub scales_scores: bool,
}

impl RopeConfig {
    /// The rope of layers of this kind, with heads of `head_dim`.
    pub(super) fn read(
        fields: &Fields<'_>,
        kind: LayerKind,
        defaults: RopeDefaults,
        head_dim: usize,
        context: usize,
    ) -> Result<Self> {
        let flat = fields.object("rope_parameters")?;
        let by_kind =
            flat.as_ref().is_some_and(|flat| LayerKind::WITH_ATTENTION.iter().any(|kind| flat.is_written(kind.name())));
        let parameters = match flat {
            Some(flat) if by_kind => Some(flat.required_object(kind.name(), "the rope of these layers")?),
            flat => flat,
        };
        let old = if defaults.scaled { fields.object("rope_scaling")? } else { None };
        // As in transformers, the older notation goes first where both are written.
        let scaling_fields = old.as_ref().filter(|old| !old.all().is_empty()).or(parameters.as_ref());
        let number = |name: &str| -> Result<Option<f64>> {
            let nested = scaling_fields.map(|p| p.positive(name)).transpose()?.flatten();
            Ok(nested.or(fields.positive(name)?))
        };
        let theta = scaling_fields.map(|p| p.positive("rope_theta")).transpose()?.flatten();
        let beside = defaults.theta_field.map(|name| fields.positive(name)).transpose()?.flatten();
        let theta = theta.or(beside).unwrap_or(defaults.theta);
        if theta <= 1.0 {
            let field = defaults.theta_field.unwrap_or("rope_parameters.rope_theta");
            return Err(fields.error(field, "a number above 1", theta.to_string()));
        }
        let kind = scaling_fields.map(rope_kind).transpose()?.map_or("default", |(_, kind)| kind);
        let is_proportional = kind == "proportional";
        let mut fraction = number(PARTIAL)?.unwrap_or(defaults.fraction);
        if !(is_proportional || defaults.partial) {
            fraction = whole_head(fields, kind, fraction)?;
        }
        let mut rotary = (head_dim as f64 * fraction) as usize;
        if is_proportional {
            rotary = 2 * ((head_dim as f64 * fraction / 2.0) as usize);
        }
        if rotary == 0 || rotary > head_dim || !rotary.is_multiple_of(2) {
            let expected =
                format!("a fraction of head_dim ({head_dim}) that gives an even number of elements to rotate");
            return Err(fields.error(PARTIAL, expected, format!("{fraction} ({rotary} elements)")));
        }
        let scaling = match scaling_fields {
            Some(scaling) => RopeScaling::read(scaling, fields, context, rotary, head_dim, defaults.is_phi3)?,
            None => RopeScaling::Plain,
        };
        let theta = match scaling_fields.filter(|_| kind == "dynamic").map(|scaling| scaling.positive("alpha")) {
            Some(alpha) => alpha?.map_or(theta, |alpha| theta * alpha.powf(rotary as f64 / (rotary as f64 - 2.0))),
            None => theta,
        };
        let score_factor = match scaling_fields.filter(|_| defaults.scales_scores && kind != "default") {
            Some(fields) => score_factor(fields, &scaling)?,
            None => 1.0,
        };
        Ok(Self { theta, rotary, pairs: defaults.pairs, scaling, score_factor })
    }

    /// Whether sequences of at most these lengths have different wavelengths.
    pub fn differs_by_length(&self, longest: usize, other: usize) -> bool {
        match self.scaling {
            RopeScaling::Long { original_context, .. } => (longest > original_context) != (other > original_context),
            _ => false,
        }
    }

    /// The context that the scaling allows, or `max_position_embeddings` if that is longer. Configs with linear or yarn
    /// scaling commonly leave `max_position_embeddings` at the length of the first training.
    pub(super) fn context(&self, max_position_embeddings: usize) -> usize {
        let reach = match &self.scaling {
            RopeScaling::Plain
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Long { .. }
            | RopeScaling::Factors(_)
            | RopeScaling::Proportional { .. } => 0.0,
            RopeScaling::Linear { factor } => max_position_embeddings as f64 * factor,
            RopeScaling::Yarn { factor, original_context, .. } => *original_context as f64 * factor,
        };
        max_position_embeddings.max((reach as usize).min(LARGEST_CONTEXT))
    }
}

impl RopeScaling {
    /// `model`: the fields around those of the rope.
    fn read(
        fields: &Fields<'_>,
        model: &Fields<'_>,
        context: usize,
        rotary: usize,
        head_dim: usize,
        is_phi3: bool,
    ) -> Result<Self> {
        let (field, kind) = rope_kind(fields)?;
        let factor = || {
            let factor = fields.positive("factor")?;
            let factor = factor.ok_or_else(|| fields.error("factor", format!("a number ({kind} rope)"), "nothing"))?;
            if factor < 1.0 {
                return Err(fields.error("factor", "a number from 1", factor.to_string()));
            }
            Ok(factor)
        };
        match kind {
            // "dynamic" stretches beyond the context only, which sequences never are. "mrope" has three positions for
            // each token, which are the same in a text.
            "default" | "dynamic" | "mrope" => Ok(Self::Plain),
            "linear" => Ok(Self::Linear { factor: factor()? }),
            "llama3" => Self::llama3(fields, factor()?, context),
            "longrope" => Self::longrope(fields, model, context, rotary, is_phi3),
            "su" | "yarn" if is_phi3 => Self::longrope(fields, model, context, rotary, is_phi3),
            // "deepseek_yarn": Sarvam's name for it.
            "yarn" | "deepseek_yarn" => Self::yarn(fields, context),
            "proportional" => Ok(Self::Proportional { factor: fields.positive("factor")?.unwrap_or(1.0), head_dim }),
            other => Err(fields.error(field, SUPPORTED, format!("\"{other}\""))),
        }
    }

    /// Phi-3 has `original_max_position_embeddings` beside the rope, others inside it.
    fn longrope(fields: &Fields<'_>, model: &Fields<'_>, context: usize, rotary: usize, is_phi3: bool) -> Result<Self> {
        let original = "original_max_position_embeddings";
        let beside = if is_phi3 { model.size(original, LARGEST_CONTEXT)? } else { None };
        let original_context = match beside {
            Some(size) => size,
            None => fields.size(original, LARGEST_CONTEXT)?.unwrap_or(context),
        };
        let factor = fields.positive("factor")?.unwrap_or(context as f64 / original_context as f64);
        let attention_factor = match fields.positive("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original_context as f64).ln()).sqrt(),
        };
        let factors = |name: &str| {
            let expected = format!("{} numbers above 0, one for each rotated pair", rotary / 2);
            let list = fields.list(name)?.ok_or_else(|| fields.error(name, expected.clone(), "nothing"))?;
            let numbers: Vec<f64> =
                list.iter().filter_map(serde_json::Value::as_f64).filter(|x| *x > 0.0 && x.is_finite()).collect();
            if list.len() == rotary / 2 && numbers.len() == list.len() {
                Ok(numbers)
            } else {
                Err(fields.error(name, expected, format!("{} of {} values", numbers.len(), list.len())))
            }
        };
        Ok(Self::Long {
            short: factors("short_factor")?,
            long: factors("long_factor")?,
            original_context,
            attention_factor,
        })
    }

    fn llama3(fields: &Fields<'_>, factor: f64, context: usize) -> Result<Self> {
        let required = |name| {
            fields.positive(name)?.ok_or_else(|| fields.error(name, "a number above 0 (llama3 rope)", "nothing"))
        };
        let (low_freq_factor, high_freq_factor) = (required("low_freq_factor")?, required("high_freq_factor")?);
        if high_freq_factor <= low_freq_factor {
            let expected = format!("more than low_freq_factor ({low_freq_factor})");
            return Err(fields.error("high_freq_factor", expected, high_freq_factor.to_string()));
        }
        let original_context = fields.size("original_max_position_embeddings", LARGEST_CONTEXT)?.unwrap_or(context);
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
        let term = |mscale: f64| yarn_term(factor, mscale);
        let attention_factor = match fields.positive("attention_factor")? {
            Some(given) => given,
            None => match (scale(fields, "mscale")?, scale(fields, ALL_DIM)?) {
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

/// What latent attention multiplies its scores by where a rope of any kind is stretched and has `mscale_all_dim`: the
/// square of its term for all elements of queries and keys, of which yarn itself multiplies those that it turns.
fn score_factor(fields: &Fields<'_>, scaling: &RopeScaling) -> Result<f64> {
    let Some(all_dim) = scale(fields, ALL_DIM)? else { return Ok(1.0) };
    let factor = match *scaling {
        RopeScaling::Linear { factor }
        | RopeScaling::Llama3 { factor, .. }
        | RopeScaling::Yarn { factor, .. }
        | RopeScaling::Proportional { factor, .. } => factor,
        RopeScaling::Plain | RopeScaling::Long { .. } | RopeScaling::Factors(_) => {
            let expected = format!("a number ({ALL_DIM} multiplies scores by its logarithm)");
            fields.positive("factor")?.ok_or_else(|| fields.error("factor", expected, "nothing"))?
        }
    };
    Ok(yarn_term(factor.max(1.0), all_dim).powi(2))
}

/// How much yarn with this factor enlarges what `mscale` stands for.
fn yarn_term(factor: f64, mscale: f64) -> f64 {
    0.1 * mscale * factor.ln() + 1.0
}

/// The fraction that a family rotates which rotates whole heads: all. transformers ignores the field where the rope is
/// plain, and cannot compute one that is stretched.
fn whole_head(fields: &Fields<'_>, kind: &str, fraction: f64) -> Result<f64> {
    match (fraction == 1.0 || fields.is_metadata(), kind) {
        (true, _) => Ok(fraction),
        (false, "default") => {
            log::warn!("{PARTIAL} {fraction} is ignored, as in transformers: models of this family rotate whole heads");
            Ok(1.0)
        }
        (false, kind) => {
            let expected = format!("1 (models of this family rotate whole heads, with a {kind} rope too)");
            Err(fields.error(PARTIAL, expected, fraction.to_string()))
        }
    }
}

/// The field that names the kind of a rope, and the kind.
fn rope_kind<'a>(fields: &Fields<'a>) -> Result<(&'static str, &'a str)> {
    Ok(match fields.text("rope_type")? {
        Some(kind) => ("rope_type", kind),
        None => ("type", fields.text("type")?.unwrap_or("default")),
    })
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
            RopeScaling::Long { original_context, attention_factor, .. } => {
                write!(f, "longrope, original context {original_context}, attention factor {attention_factor:.4}")?
            }
            RopeScaling::Factors(factors) => {
                let most = factors.iter().copied().fold(0.0, f64::max);
                write!(f, "wavelengths by factors of their own, up to {most}")?
            }
            RopeScaling::Proportional { factor, .. } => write!(f, "proportional, factor {factor}")?,
        }
        write!(f, ", theta {}, rotates {} elements of a head", self.theta, self.rotary)
    }
}
