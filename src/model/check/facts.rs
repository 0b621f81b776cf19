//! What was read of a model folder, for people: configuration and checkpoint headers; no weight is loaded.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::backend::Dtype;
use crate::error::Result;

use super::super::config::{Mlp, ModelConfig, ModelFolder, Norm};
use super::super::layout::Layout;
use super::super::weights::Checkpoint;

/// Printable.
#[derive(Clone, Debug)]
pub struct Facts {
    pub path: PathBuf,
    pub config: ModelConfig,
    /// Of the matrices, as the tensors have it.
    pub dtype: Dtype,
    pub files: usize,
    pub tensors: usize,
    pub tensor_bytes: usize,
    /// Tensors of each element type.
    pub dtypes: BTreeMap<String, usize>,
}

/// Reads the headers of all files and holds every tensor against config.json.
pub fn facts(folder: &ModelFolder) -> Result<Facts> {
    let checkpoint = Checkpoint::open(&folder.path)?;
    let layout = Layout::of(&folder.config);
    checkpoint.verify(&layout)?;
    Ok(Facts {
        path: folder.path.clone(),
        config: folder.config.clone(),
        dtype: checkpoint.dtype(&layout)?,
        files: checkpoint.files(),
        tensors: checkpoint.tensors(),
        tensor_bytes: checkpoint.bytes(),
        dtypes: checkpoint.dtypes(),
    })
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (config, heads) = (&self.config, self.config.heads);
        let mut line = |name: &str, text: String| writeln!(f, "{name:<12}{text}");
        line("folder", self.path.display().to_string())?;
        line("family", config.family.to_string())?;
        line("layers", format!("{} of width {}, {}", config.layers, config.hidden, residual(config)))?;
        let head_norms = if config.head_norms { ", normalised queries and keys" } else { "" };
        let (q, kv, dim) = (heads.q_heads, heads.kv_heads, heads.head_dim);
        line("heads", format!("{q} query, {kv} key and value, of {dim}{head_norms}"))?;
        line("mlp", format!("{} of width {}", mlp(config.mlp), config.intermediate))?;
        line("norm", norm(config.norm))?;
        line("biases", biases(config))?;
        line("rope", config.rope.to_string())?;
        line("context", format!("{} tokens, {}", config.context, windows(config)))?;
        let tied = if config.tied_embeddings { "tied to the output layer" } else { "apart from the output layer" };
        line("vocabulary", format!("{} tokens, embeddings {tied}", config.vocab))?;
        line("special", special_tokens(config))?;
        line("parameters", count(config.parameters()))?;
        let dtypes: Vec<String> = self.dtypes.iter().map(|(dtype, tensors)| format!("{tensors} {dtype}")).collect();
        let (files, tensors, bytes) = (self.files, self.tensors, self.tensor_bytes);
        let plural = if files == 1 { "" } else { "s" };
        line("weights", format!("{bytes} bytes, {tensors} tensors ({}) in {files} file{plural}", dtypes.join(", ")))?;
        line("kv", format!("{} bytes a token", config.kv_bytes_per_token(self.dtype.bytes())))
    }
}

fn residual(config: &ModelConfig) -> &'static str {
    if config.parallel_residual { "attention and mlp in parallel" } else { "attention, then mlp" }
}

fn mlp(mlp: Mlp) -> &'static str {
    match mlp {
        Mlp::GatedSilu => "gated silu",
        Mlp::Gelu => "gelu",
    }
}

fn norm(norm: Norm) -> String {
    match norm {
        Norm::Rms { eps } => format!("rms, epsilon {eps}"),
        Norm::Layer { eps } => format!("layer norm with bias, epsilon {eps}"),
    }
}

fn biases(config: &ModelConfig) -> String {
    let biases = config.biases;
    let all =
        [(biases.qkv, "q k v"), (biases.out, "attention output"), (biases.mlp, "mlp"), (biases.head, "output layer")];
    let present: Vec<&str> = all.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    if present.is_empty() { "none".to_owned() } else { present.join(", ") }
}

fn windows(config: &ModelConfig) -> String {
    let kinds = config.window_kinds().into_iter().map(|kind| {
        let layers = config.windows.iter().filter(|window| **window == kind).count();
        match kind {
            None => format!("full attention in {layers} layers"),
            Some(window) => format!("a window of {window} in {layers} layers"),
        }
    });
    kinds.collect::<Vec<_>>().join(", ")
}

fn special_tokens(config: &ModelConfig) -> String {
    let bos = config.bos.map_or("none".to_owned(), |id| id.to_string());
    let eos: Vec<String> = config.eos.iter().map(ToString::to_string).collect();
    format!("bos {bos}, eos {}", if eos.is_empty() { "none".to_owned() } else { eos.join(" or ") })
}

/// `6738415616 (6.74 B)`
fn count(n: usize) -> String {
    match n as f64 {
        x if x >= 1e9 => format!("{n} ({:.2} B)", x / 1e9),
        x if x >= 1e6 => format!("{n} ({:.1} M)", x / 1e6),
        _ => n.to_string(),
    }
}
