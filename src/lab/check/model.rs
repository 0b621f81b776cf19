//! `offshoot check --model`: prints the facts of a model folder and holds its arithmetic against golden files. The comparing is
//! `model::check`'s; this file prints and says whether all of it holds.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::backend::{Backend, KvDtype};
use crate::error::Result;
use crate::ids::TokenId;
use crate::launch::{Device, DeviceChoice, ModelSource, OnDevice};
use crate::model::ModelFolder;
use crate::model::check::{chunks, facts, golden, kv_rounding};
use crate::out;
use crate::tokenizer::Tokenizer;

/// Tokens of the text by which chunks are compared: beyond two tiles, no multiple of a page, and so many at least.
const CHUNK_TOKENS: usize = 150;
const BEYOND_TILES: usize = 22;
/// Tokens that are drawn to tell what rounded keys and values do, if the context has so many.
const DRAWN_TOKENS: usize = 256;

/// How a model's arithmetic is checked.
#[derive(Clone, Debug, Default)]
pub struct ModelCheck {
    /// What to hold it against.
    pub golden: Option<PathBuf>,
    /// Whether its arithmetic is to be exact.
    pub deterministic: bool,
    /// What keys and values are rounded to: where they are at all, it is said what that does.
    pub kv: KvDtype,
}

/// Prints what the folder holds and how its arithmetic does; false where a golden is missed or chunks change a bit.
pub fn model(on: DeviceChoice, model: &Path, options: &ModelCheck) -> Result<bool> {
    let folder = ModelFolder::open(model)?;
    let facts = facts(&folder)?;
    out::text(&facts)?;
    match Tokenizer::load(model) {
        Ok(tokenizer) => fact("tokenizer", format_args!("{} tokens", tokenizer.vocab_size()))?,
        Err(error) if has_no_tokenizer(model) => fact("tokenizer", format_args!("none: {error}"))?,
        Err(error) => return Err(error),
    }
    let source = ModelSource::folder_of(&folder, facts.weights);
    let opened = on.open(source.weight_bytes())?;
    fact("device", &opened)?;
    log::info!("loading {}", model.display());
    opened.with(Arithmetic { source, options })
}

/// Checks a model's arithmetic; whether all of it holds.
struct Arithmetic<'a> {
    source: ModelSource<'a>,
    options: &'a ModelCheck,
}

impl OnDevice for Arithmetic<'_> {
    type Output = bool;

    fn run<B: Device>(self, backend: B) -> Result<bool> {
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

fn fact(name: &str, value: impl Display) -> Result<()> {
    out::line(format_args!("{name:<12}{value}"))
}

/// A folder need not have a tokenizer to be checked; one that it has must be whole.
fn has_no_tokenizer(model: &Path) -> bool {
    ["tokenizer.json", "vocab.json", "merges.txt"].iter().all(|name| !model.join(name).exists())
}
