//! `offshoot check --model`: prints the facts of a model folder and checks its arithmetic against golden files.
//! `model::check` compares, `forks` tries forks at every offset; this file prints and returns whether everything holds.
//! `families` is `offshoot models`.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod families;
mod forks;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use offshoot_backend::{KvDtype, StateDtype};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::input;
use offshoot_core::out;
use offshoot_core::setting::{ACTIVATIONS, AGAINST, DETERMINISTIC, FORKS, KV_DTYPE, STATE_DTYPE, TEXT};
use offshoot_launch::{DeviceChoice, ModelOnDevice, ModelSource};
use offshoot_model::check::{
    ConfigFacts, Prediction, TextComparison, facts, golden_dtype, has_scores, index_facts, layer_differences,
};
use offshoot_model::{ModelFolder, ModelRole, WeightChoice};
use offshoot_text::{AddSpecial, Tokenizer};

pub use families::models;
pub use forks::{FORKED_TOKENS, ForkReport, forks};

/// Length of the text for comparing chunks: two tiles plus `BEYOND_TILES` tokens, at least `CHUNK_TOKENS`; not a
/// multiple of a page.
const CHUNK_TOKENS: usize = 150;
const BEYOND_TILES: usize = 22;
/// Tokens sampled to measure the effect of rounded keys and values, if the context has as many.
const DRAWN_TOKENS: usize = 256;

/// The options of a model's check.
#[derive(Clone, Debug, Default)]
pub struct ModelCheck {
    /// The golden file to compare with: of logits and tokens or, for a reward model, of scores.
    pub golden: Option<PathBuf>,
    /// Whether to use the deterministic mode.
    pub deterministic: bool,
    /// Storage format of keys and values; if it is not the model's dtype, its effect is reported.
    pub kv: KvDtype,
    /// Storage format of the states of recurrent layers; if it is not f32, its effect is reported.
    pub states: StateDtype,
    /// Number of scripts by which forks at every offset are compared with fresh computations.
    pub forks: Option<u64>,
    /// What dense weights become, and whether activations are rounded.
    pub weights: WeightChoice,
    /// What to compare with on a text.
    pub against: Option<Against>,
}

/// Another model, as it is stored, and a text.
#[derive(Clone, Debug)]
pub struct Against {
    pub model: PathBuf,
    pub text: PathBuf,
}

/// Prints the folder's facts and the results of its check; returns false if a golden test fails or chunks change a bit.
pub fn model(on: DeviceChoice, model: &Path, options: &ModelCheck) -> Result<bool> {
    let mut folder = opened(model, options)?.with(options.weights)?;
    if let (Some(_), Some(dtype)) = (&options.golden, golden_dtype(&folder.config)) {
        folder.config.compute = Some(dtype);
        log::warn!("a mixture of experts is compared with golden values in f32: rounding would choose other experts");
    }
    let facts = match facts(&folder) {
        Ok(facts) => facts,
        // A folder without weights, or with others: what its config says, then what is wrong.
        Err(error) => {
            out::text(ConfigFacts(&folder))?;
            if let Some(listed) = index_facts(&folder)? {
                fact("index", listed)?;
            }
            tokenizer_fact(model)?;
            return Err(error);
        }
    };
    out::text(&facts)?;
    tokenizer_fact(model)?;
    let source = ModelSource::folder_of(&folder, facts.dtype);
    let opened = on.open(Some(source))?;
    fact("device", &opened)?;
    log::info!("loading {}", model.display());
    let text = options.against.as_ref().map(|against| text_of(against, &folder)).transpose()?;
    let mut loaded = opened.load(source)?;
    if options.forks.is_some() && loaded.is_async() && !options.deterministic {
        let expected = format!("{DETERMINISTIC} on a GPU, where steps change bits without it");
        return Err(Error::value(FORKS, expected, "none"));
    }
    let mut holds = arithmetic(&mut *loaded, options)?;
    let predicted = text.as_ref().map(|text| loaded.predictions(text)).transpose()?;
    match options.forks {
        Some(scripts) => {
            loaded.set_kv_dtype(options.kv);
            loaded.set_state_dtype(options.states);
            let report = forks(loaded.into_runner(), FORKED_TOKENS, scripts, options.deterministic)?;
            fact("forks", &report)?;
            holds &= report.passes();
        }
        // The other model, which is loaded next, needs its memory.
        None => drop(loaded),
    }
    if let Some(((against, text), predicted)) = options.against.as_ref().zip(text).zip(predicted) {
        compare(on, &folder, against, &text, &predicted)?;
    }
    Ok(holds)
}

/// The model's folder, as what it is: with golden scores a scorer, whose class may be a generator's, as trl writes it.
/// Errors: it scores, and what is asked for samples tokens.
fn opened(model: &Path, options: &ModelCheck) -> Result<ModelFolder> {
    let golden_scores = options.golden.as_deref().map(has_scores).transpose()?.unwrap_or(false);
    if !golden_scores && ModelRole::of(model)? != ModelRole::Scorer {
        return ModelFolder::open(model);
    }
    let sampled = [
        (options.forks.is_some(), FORKS),
        (options.against.is_some(), AGAINST),
        (options.kv != KvDtype::Model, KV_DTYPE),
        (options.states != StateDtype::F32, STATE_DTYPE),
    ];
    match sampled.into_iter().find(|(is_set, _)| *is_set) {
        Some((_, setting)) => {
            let found = format!("{}, which scores texts", model.display());
            Err(Error::value(setting, "a model that predicts tokens", found))
        }
        None => ModelFolder::open_scorer(model, None),
    }
}

/// The tokens of a text, as many as both models' contexts hold.
fn text_of(against: &Against, folder: &ModelFolder) -> Result<Vec<TokenId>> {
    let Against { model: other, text } = against;
    let there = ModelFolder::open(other)?;
    let written = input::whole_text(text, offshoot_lines::open(text)?)?;
    let [own, others] = [&folder.path, other]
        .map(|path| Tokenizer::load(path).and_then(|tokenizer| tokenizer.encode(&written, AddSpecial::Yes)));
    let (mut tokens, others) = (own?, others?);
    if tokens != others {
        let expected = format!("a model with the tokens of {}", folder.path.display());
        return Err(Error::value(AGAINST, expected, "others for the text"));
    }
    let most = folder.config.context.min(there.config.context);
    tokens.truncate(most);
    if tokens.len() < 2 {
        return Err(Error::value(TEXT, "a text of two tokens or more", format!("{} tokens", tokens.len())));
    }
    Ok(tokens)
}

/// Prints how far the other model is away. `predicted`: what this one says of the text.
fn compare(
    on: DeviceChoice,
    folder: &ModelFolder,
    against: &Against,
    text: &[TokenId],
    predicted: &[Prediction],
) -> Result<()> {
    let other = ModelFolder::open(&against.model)?;
    let source = ModelSource::folder(&other)?;
    let there = on.open(Some(source))?.load(source)?.predictions(text)?;
    fact("against", format_args!("{}, {} tokens of {}", against.model.display(), text.len(), against.text.display()))?;
    out::text(TextComparison::of(predicted, &there))?;
    layer_differences(folder, &other)?.iter().try_for_each(|worst| fact("most apart", worst))
}

/// Checks a model's arithmetic; returns whether everything holds.
fn arithmetic(model: &mut dyn ModelOnDevice, options: &ModelCheck) -> Result<bool> {
    if options.deterministic {
        model.set_batch_invariant();
    }
    let (vocab, context) = (model.config().vocab, model.config().context);
    let tokens = (2 * model.tile() as usize + BEYOND_TILES).max(CHUNK_TOKENS).min(context);
    let tokens: Vec<_> = (0..tokens).map(|i| TokenId::new(i * 31 % vocab)).collect();
    let chunked = model.chunks(&tokens)?;
    fact("chunks", &chunked)?;
    let mut holds = chunked.passes();
    if let (Some(file), true) = (&options.golden, model.config().is_scorer()) {
        let report = model.scores(file)?;
        out::text(&report)?;
        holds &= report.passes();
    } else if let Some(file) = &options.golden {
        let report = model.golden(file)?;
        if let Some(rounding) = report.rounding {
            let unrounded = match model.config().quantisation {
                Some(_) => format!(" ({ACTIVATIONS} bf16: none is)"),
                // A GGUF model, which stays as it is stored.
                None => String::new(),
            };
            log::warn!(
                "activations are rounded to {rounding}: more is allowed beside golden values than where none is \
                 rounded{unrounded}"
            );
        }
        out::text(&report)?;
        holds &= report.passes();
    }
    let tokens = DRAWN_TOKENS.min(context - 1);
    if options.kv != KvDtype::Model {
        fact(&format!("{} kv", options.kv), model.kv_rounding(options.kv, tokens)?)?;
    }
    match model.config().state_dtype(options.states) {
        StateDtype::F32 if options.states == StateDtype::F32 => {}
        StateDtype::F32 => fact(&format!("{} states", options.states), "none: the model has no recurrent layers")?,
        states => fact(&format!("{states} states"), model.state_rounding(states, tokens)?)?,
    }
    Ok(holds)
}

fn tokenizer_fact(model: &Path) -> Result<()> {
    match Tokenizer::load(model) {
        Ok(tokenizer) => fact("tokenizer", format_args!("{} tokens", tokenizer.vocab_size())),
        Err(error) if Tokenizer::is_missing(model) => fact("tokenizer", format_args!("none: {error}")),
        Err(error) => Err(error),
    }
}

fn fact(name: &str, value: impl Display) -> Result<()> {
    out::line(format_args!("{name:<12}{value}"))
}
