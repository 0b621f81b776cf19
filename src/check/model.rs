//! `offshoot check --model`: prints the facts of a model folder and holds its arithmetic against golden files. The comparing is
//! `model::check`'s; this file prints and says whether all of it holds.

use std::fmt::Display;
use std::path::Path;

use crate::backend::{Backend, DeviceChoice, Opened};
use crate::error::Result;
use crate::ids::TokenId;
use crate::model::check::{chunks, facts, golden};
use crate::model::{Decoder, ModelFolder};
use crate::out;
use crate::tokenizer::Tokenizer;

/// Tokens of the text by which chunks are compared: beyond two tiles, no multiple of a page, and so many at least.
const CHUNK_TOKENS: usize = 150;
const BEYOND_TILES: usize = 22;

/// Prints what the folder holds and how its arithmetic does; false where a golden is missed or chunks change a bit.
pub fn model(on: DeviceChoice, model: &Path, golden_file: Option<&Path>, deterministic: bool) -> Result<bool> {
    let folder = ModelFolder::open(model)?;
    let facts = facts(&folder)?;
    out::text(&facts)?;
    match Tokenizer::load(model) {
        Ok(tokenizer) => fact("tokenizer", format_args!("{} tokens", tokenizer.vocab_size()))?,
        Err(error) if has_no_tokenizer(model) => fact("tokenizer", format_args!("none: {error}"))?,
        Err(error) => return Err(error),
    }
    let opened = on.open(folder.config.weight_bytes(facts.dtype))?;
    fact("device", &opened)?;
    log::info!("loading {}", model.display());
    match opened {
        Opened::Cpu { cpu, .. } => arithmetic(cpu, &folder, golden_file, deterministic),
        Opened::Cuda(cuda) => arithmetic(*cuda, &folder, golden_file, deterministic),
    }
}

fn arithmetic<B: Backend>(
    mut backend: B,
    folder: &ModelFolder,
    golden_file: Option<&Path>,
    deterministic: bool,
) -> Result<bool> {
    let mut decoder = Decoder::load(&mut backend, folder)?;
    if deterministic {
        decoder.be_deterministic(&mut backend);
    }
    let vocab = decoder.config().vocab;
    let tokens = (2 * backend.tile() as usize + BEYOND_TILES).max(CHUNK_TOKENS).min(decoder.config().context);
    let tokens: Vec<_> = (0..tokens).map(|i| TokenId::new(i * 31 % vocab)).collect();
    let chunked = chunks(&mut backend, &mut decoder, &tokens)?;
    fact("chunks", &chunked)?;
    let mut holds = chunked.passes();
    if let Some(file) = golden_file {
        let report = golden(&mut backend, &mut decoder, file)?;
        out::text(&report)?;
        holds &= report.passes();
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
