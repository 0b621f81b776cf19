//! Compares a model with golden cases: the largest difference of logits and of log-probabilities, and whether the
//! greedy tokens are the same. The golden tokens are fed even where the model would choose another one, so that one
//! difference does not cascade.

use std::fmt;
use std::path::Path;

use offshoot_backend::{Backend, Dtype, RoundingKind, WeightFormat};
use offshoot_core::error::Result;
use offshoot_core::figures::counted;
use offshoot_core::ids::TokenId;
use offshoot_kv::plan::LatentFormChoice;

use super::super::config::ModelConfig;
use super::super::decoder::Decoder;
use super::super::layout::Layout;
use super::super::sequence::Sequence;
use super::golden_file::{GoldenCase, read_golden};

/// Prompt tokens per step (odd, so that steps end anywhere in a page). Greedy tokens run one by one.
const PROMPT_CHUNK: usize = 37;

/// The result for all cases, printable.
#[derive(Clone, Debug)]
pub struct GoldenReport {
    pub dtype: Dtype,
    /// What activations of quantised matrices are rounded to; golden values come from unrounded ones.
    pub rounding: Option<RoundingKind>,
    pub cases: Vec<CaseReport>,
}

/// The result for one case.
#[derive(Clone, Debug)]
pub struct CaseReport {
    pub name: String,
    /// Largest difference of a logit after the prompt.
    pub logits: f32,
    /// Upper bound of `logits`, see [`tolerance`].
    pub tolerance: f32,
    /// Largest difference of a log-probability, over prompt and greedy tokens.
    pub logprobs: f32,
    /// The number of greedy tokens compared.
    pub greedy: usize,
    /// Where the model would choose another greedy token.
    pub misses: Vec<Miss>,
}

/// At greedy token `at` the file has `expected`, but the model chooses `found`, whose logit is larger by `gap`.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    pub at: usize,
    pub expected: TokenId,
    pub found: TokenId,
    pub gap: f32,
}

/// Compares with all cases of a golden file.
pub fn golden<B: Backend>(backend: &mut B, model: &mut Decoder<B>, path: &Path) -> Result<GoldenReport> {
    let cases = read_golden(path, model.config())?;
    golden_cases(backend, model, &cases)
}

/// Compares with all cases of a golden file, where a model with latent attention reads segments of so many tokens in
/// the form that `choice` chooses for each. Other models have no forms.
pub fn golden_in_forms<B: Backend>(
    backend: &mut B,
    model: &mut Decoder<B>,
    path: &Path,
    (choice, segment): (LatentFormChoice, u32),
) -> Result<GoldenReport> {
    let cases = read_golden(path, model.config())?;
    reported(backend, model, &cases, Some((choice, segment)))
}

pub fn golden_cases<B: Backend>(backend: &mut B, model: &mut Decoder<B>, cases: &[GoldenCase]) -> Result<GoldenReport> {
    reported(backend, model, cases, None)
}

/// `forms`: see [`golden_in_forms`]; `None`: as the model reads a sequence by itself.
fn reported<B: Backend>(
    backend: &mut B,
    model: &mut Decoder<B>,
    cases: &[GoldenCase],
    forms: Option<(LatentFormChoice, u32)>,
) -> Result<GoldenReport> {
    let rounding = coarsest_rounding(backend, model);
    let cases = cases.iter().map(|case| compare(backend, model, rounding, forms, case)).collect::<Result<_>>()?;
    Ok(GoldenReport { dtype: model.dtype(), rounding, cases })
}

/// The largest allowed difference of a logit from its golden value, if the largest golden logit is `scale`.
///
/// f32: 1e-3, about a hundred times what another order of summation makes at a width of some thousands (2^-24 a
/// rounding, a hundred of them in sequence, logits up to 20). Otherwise golden values come from f32 arithmetic on the
/// same weights, and ours differ by the rounding of keys, values and (bf16) activations: at most half a unit, 2^-11 or
/// 2^-8 of each, with a deviation of 0.58 of that. About 8 of them a layer, and less than a layer's at the end, add up
/// like a random walk: `0.58 * sqrt(8 * (layers + 1))`, here `2 * sqrt(layers + 1)`. The largest error of a vocabulary
/// is to its deviation as the largest logit is to a logit's, so that `scale` needs no further factor.
///
/// That holds as long as errors stay small on their way. A router's do not: where two experts are nearly tied, rounding
/// chooses the other one, and the result jumps. So mixtures of experts are compared in f32, see [`golden_dtype`].
pub fn tolerance(dtype: Dtype, layers: usize, scale: f32) -> f32 {
    let walk = 2.0 * (layers as f32 + 1.0).sqrt();
    match dtype {
        Dtype::F32 => 1e-3,
        Dtype::F16 => scale * walk / 2048.0,
        Dtype::Bf16 => scale * walk / 256.0,
    }
}

/// What is allowed besides where activations of quantised matrices are rounded and golden values come from unrounded
/// ones. Each of a layer's four products has inputs that are off by at most 2^-4 of themselves (e4m3), or by half a
/// unit, which is the 254th part of the largest input that shares its scale (int8): 2^-6 of a typical one, a quarter of
/// the largest. They add up as in [`tolerance`]: `0.58 * sqrt(4 * (layers + 1))` of them, here `1.2 * sqrt(layers +
/// 1)`.
fn rounding_tolerance(rounding: RoundingKind, layers: usize, scale: f32) -> f32 {
    let walk = 1.2 * (layers as f32 + 1.0).sqrt();
    match rounding {
        RoundingKind::Fp8 => scale * walk / 16.0,
        RoundingKind::Int8 => scale * walk / 64.0,
    }
}

/// The coarsest to which activations are rounded before this backend multiplies them by the model's matrices. Those
/// that it makes dense round none.
fn coarsest_rounding<B: Backend>(backend: &B, model: &Decoder<B>) -> Option<RoundingKind> {
    let config = model.config();
    let held = config.held_where(|format| config.is_multiplied(backend, format));
    let formats = held.quantisation.iter().flat_map(|how| how.formats());
    let mut kinds: Vec<_> = formats.filter_map(|format| format.rounding.to()).collect();
    if model.dtype() != Dtype::F32 && multiplies_blocks(&held) {
        kinds.push(RoundingKind::Int8);
    }
    [RoundingKind::Fp8, RoundingKind::Int8].into_iter().find(|kind| kinds.contains(kind))
}

/// Whether a matrix of the model is stored in blocks of GGUF. An embedding table alone is not multiplied.
fn multiplies_blocks(config: &ModelConfig) -> bool {
    let embed = Layout::of(config).embed.name;
    let is_multiplied = |name: &str| config.tied_embeddings || name != embed;
    let mut formats = config.formats.iter();
    formats.any(|(name, format)| matches!(format, WeightFormat::Blocks(_)) && is_multiplied(name))
}

/// The compute dtype in which a model must be compared with goldens; `None`: any.
pub fn golden_dtype(config: &ModelConfig) -> Option<Dtype> {
    config.layers.iter().any(|layer| layer.feed_forward.experts().is_some()).then_some(Dtype::F32)
}

fn compare<B: Backend>(
    backend: &mut B,
    model: &mut Decoder<B>,
    rounding: Option<RoundingKind>,
    forms: Option<(LatentFormChoice, u32)>,
    case: &GoldenCase,
) -> Result<CaseReport> {
    let (dtype, vocab, layers) = (model.dtype(), model.config().vocab, model.config().layers.len());
    let mut sequence = Sequence::new(backend, model, case.prompt.len() + case.greedy.len())?;
    if let Some((choice, segment)) = forms {
        sequence.read_in(choice, segment)?;
    }
    sequence.set_length(case.prompt.len())?;
    let mut logprobs = Largest::default();
    let mut next = Vec::new();
    let mut at = 0;
    for chunk in case.prompt.chunks(PROMPT_CHUNK) {
        let logits = sequence.extend(chunk, 0..chunk.len() as u32)?;
        for row in logits.chunks_exact(vocab) {
            at += 1;
            if let (Some(token), Some(expected)) = (case.prompt.get(at), case.prompt_logprobs.get(at - 1)) {
                logprobs.see(logprob(row, *token) as f32, *expected);
            }
        }
        next = logits[logits.len() - vocab..].to_vec();
    }
    let mut logits = Largest::default();
    for (token, expected) in &case.logits {
        logits.see(next[token.ix()], *expected);
    }
    let mut misses = Vec::new();
    for (at, &expected) in case.greedy.iter().enumerate() {
        let found = likeliest(&next);
        if found != expected {
            misses.push(Miss { at, expected, found, gap: next[found.ix()] - next[expected.ix()] });
        }
        if let Some(golden) = case.greedy_logprobs.get(at) {
            logprobs.see(logprob(&next, expected) as f32, *golden);
        }
        if at + 1 < case.greedy.len() {
            let upto = case.prompt.len() + at + 1;
            // Where longrope takes its other factors, transformers computes the whole sequence again.
            next = if sequence.set_length(upto)? {
                let tokens = [&case.prompt[..], &case.greedy[..=at]].concat();
                let last = u32::try_from(upto - 1).expect("a context has fewer than 2^32 tokens");
                sequence.extend(&tokens, last..last + 1)?
            } else {
                sequence.extend(&[expected], 0..1)?
            };
        }
    }
    let scale = case.logits.iter().fold(0.0f32, |scale, (_, logit)| scale.max(logit.abs()));
    Ok(CaseReport {
        name: case.name.clone(),
        logits: logits.0,
        tolerance: tolerance(dtype, layers, scale) + rounding.map_or(0.0, |to| rounding_tolerance(to, layers, scale)),
        logprobs: logprobs.0,
        greedy: case.greedy.len(),
        misses,
    })
}

/// The largest difference seen; infinite if one was NaN.
#[derive(Default)]
struct Largest(f32);

impl Largest {
    fn see(&mut self, found: f32, expected: f32) {
        let difference = (found - expected).abs();
        self.0 = if difference.is_nan() { f32::INFINITY } else { self.0.max(difference) };
    }
}

/// The token with the largest logit; on ties the smallest id.
pub(super) fn likeliest(logits: &[f32]) -> TokenId {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    TokenId::new((1..logits.len()).fold(0, better))
}

/// The natural logarithm of a token's probability.
pub(super) fn logprob(logits: &[f32], token: TokenId) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    f64::from(logits[token.ix()] - largest) - sum.ln()
}

/// Where a case fails.
struct Faults {
    logits: bool,
    logprobs: bool,
    /// Greedy tokens that are not allowed to be other ones.
    greedy: usize,
}

impl CaseReport {
    /// Whether the case misses none of its bounds.
    pub fn passes(&self, dtype: Dtype, rounding: Option<RoundingKind>) -> bool {
        matches!(self.faults(dtype, rounding), Faults { logits: false, logprobs: false, greedy: 0 })
    }

    /// Log-probabilities are differences of two values that may each be off by the tolerance. In f32, activations
    /// unrounded, another greedy token is a failure; else only if the two logits differ by more than rounding explains.
    fn faults(&self, dtype: Dtype, rounding: Option<RoundingKind>) -> Faults {
        let may_miss = may_miss(dtype, rounding);
        let explained = |miss: &Miss| may_miss && miss.gap <= 2.0 * self.tolerance;
        Faults {
            logits: self.logits > self.tolerance,
            logprobs: self.logprobs > 2.0 * self.tolerance,
            greedy: self.misses.iter().filter(|&miss| !explained(miss)).count(),
        }
    }
}

/// Whether rounding may choose another greedy token.
fn may_miss(dtype: Dtype, rounding: Option<RoundingKind>) -> bool {
    dtype != Dtype::F32 || rounding.is_some()
}

impl GoldenReport {
    pub fn passes(&self) -> bool {
        self.cases.iter().all(|case| case.passes(self.dtype, self.rounding))
    }
}

impl fmt::Display for GoldenReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            let faults = case.faults(self.dtype, self.rounding);
            let verdict = if case.passes(self.dtype, self.rounding) { "ok" } else { "FAILS" };
            let too_large = |fails: bool| if fails { ": too large" } else { "" };
            let CaseReport { logits, logprobs, tolerance, greedy, .. } = *case;
            writeln!(f, "{verdict:<6}{}", case.name)?;
            let said = too_large(faults.logits);
            writeln!(f, "      largest difference of logits {logits:.2e} (at most {tolerance:.2e}){said}")?;
            let (most, said) = (2.0 * tolerance, too_large(faults.logprobs));
            writeln!(f, "      largest difference of log-probabilities {logprobs:.2e} (at most {most:.2e}){said}")?;
            let said = match (faults.greedy, may_miss(self.dtype, self.rounding)) {
                (0, _) => String::new(),
                (_, false) => ": all must be".to_owned(),
                (other, true) => {
                    let others = counted(other as u64, "other token");
                    format!(": {others} ahead of the file's by more than {most:.2e}, which rounding does not explain")
                }
            };
            writeln!(f, "      greedy tokens: {} of {greedy} the same{said}", greedy - case.misses.len())?;
            if let Some(miss) = case.misses.first() {
                let Miss { at, expected, found, gap } = miss;
                writeln!(f, "      first other token: number {at}, {found} for {expected}, ahead by {gap:.2e}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report of a case with a tolerance of 0.01 and two other greedy tokens.
    fn report(dtype: Dtype, rounding: Option<RoundingKind>, gaps: [f32; 2]) -> GoldenReport {
        let token = TokenId::new;
        let miss = |gap| Miss { at: 3, expected: token(5), found: token(6), gap };
        let (logits, tolerance, logprobs, misses) = (0.005, 0.01, 0.02, gaps.map(miss).to_vec());
        let case = CaseReport { name: "case".to_owned(), logits, tolerance, logprobs, greedy: 20, misses };
        GoldenReport { dtype, rounding, cases: vec![case] }
    }

    #[test]
    fn a_report_says_what_fails() {
        let rounded = report(Dtype::F32, Some(RoundingKind::Fp8), [0.019, 0.03]);
        let said = rounded.to_string();
        assert!(!rounded.passes() && said.starts_with("FAILS case\n"), "{said}");
        let greedy = "18 of 20 the same: 1 other token ahead of the file's by more than 2.00e-2, which rounding";
        assert!(said.contains(greedy) && !said.contains("too large"), "{said}");

        let explained = report(Dtype::F32, Some(RoundingKind::Fp8), [0.019, 0.01]);
        assert!(explained.passes() && explained.to_string().contains("18 of 20 the same\n"), "{explained}");

        let exact = report(Dtype::F32, None, [0.001, 0.001]);
        assert!(!exact.passes() && exact.to_string().contains("18 of 20 the same: all must be\n"), "{exact}");

        let mut off = report(Dtype::Bf16, None, [0.0, 0.0]);
        off.cases[0].logits = f32::INFINITY;
        let said = off.to_string();
        assert!(!off.passes() && said.contains("logits inf (at most 1.00e-2): too large\n"), "{said}");
        assert!(said.contains("log-probabilities 2.00e-2 (at most 2.00e-2)\n"), "{said}");
    }
}
