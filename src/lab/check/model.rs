//! `offshoot check --model`: prints the facts of a model folder and checks its arithmetic against golden files.
//! `model::check` compares; this file prints and returns whether everything holds.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::backend::{Backend, KvDtype};
use crate::error::Result;
use crate::ids::TokenId;
use crate::launch::{DeviceBackend, DeviceChoice, ModelSource, OnDevice};
use crate::model::ModelFolder;
use crate::model::check::{ConfigFacts, chunks, facts, golden, index_facts, kv_rounding};
use crate::out;
use crate::tokenizer::Tokenizer;

/// Length of the text for comparing chunks: two tiles plus `BEYOND_TILES` tokens, at least `CHUNK_TOKENS`; not a
/// multiple of a page.
const CHUNK_TOKENS: usize = 150;
const BEYOND_TILES: usize = 22;
/// Tokens sampled to measure the effect of rounded keys and values, if the context has as many.
const DRAWN_TOKENS: usize = 256;

/// The options of a model's check.
#[derive(Clone, Debug, Default)]
pub struct ModelCheck {
    /// The golden file to compare with.
    pub golden: Option<PathBuf>,
    /// Whether to use the deterministic mode.
    pub deterministic: bool,
    /// Storage format of keys and values; if it is not the model's dtype, its effect is reported.
    pub kv: KvDtype,
}

/// Prints the folder's facts and the results of its check; returns false if a golden test fails or chunks change a bit.
pub fn model(on: DeviceChoice, model: &Path, options: &ModelCheck) -> Result<bool> {
    let folder = ModelFolder::open(model)?;
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
    let opened = on.open(source.weight_bytes())?;
    fact("device", &opened)?;
    log::info!("loading {}", model.display());
    opened.with(Arithmetic { source, options })
}

/// Checks a model's arithmetic on a device; returns whether everything holds.
struct Arithmetic<'a> {
    source: ModelSource<'a>,
    options: &'a ModelCheck,
}

impl OnDevice for Arithmetic<'_> {
    type Output = bool;

    fn run<B: DeviceBackend>(self, backend: B) -> Result<bool> {
        arithmetic(backend, self.source, self.options)
    }
}

fn arithmetic<B: Backend>(mut backend: B, source: ModelSource<'_>, options: &ModelCheck) -> Result<bool> {
    let mut decoder = source.load(&mut backend)?;
    if options.deterministic {
        decoder.set_batch_invariant(&mut backend);
    }
    let vocab = decoder.config().vocab;
    let tokens = (2 * backend.tile() as usize + BEYOND_TILES).max(CHUNK_TOKENS).min(decoder.config().context);
    let tokens: Vec<_> = (0..tokens).map(|i| TokenId::new(i * 31 % vocab)).collect();
    let chunked = chunks(&mut backend, &mut decoder, &tokens)?;
    fact("chunks", &chunked)?;
    let mut holds = chunked.passes();
    if let Some(file) = &options.golden {
        let report = golden(&mut backend, &mut decoder, file)?;
        out::text(&report)?;
        holds &= report.passes();
    }
    if options.kv != KvDtype::Model {
        let tokens = DRAWN_TOKENS.min(decoder.config().context - 1);
        let rounding = kv_rounding(&mut backend, &mut decoder, options.kv, tokens)?;
        fact(&format!("{} kv", options.kv), rounding)?;
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
