//! Describes a model folder for people, from its configuration and checkpoint headers. Loads no weights.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::backend::{Dtype, HeadLayout, WeightFormat};
use crate::error::Result;

use super::super::config::{Activation, FeedForward, LayerNorms, LayerSpec, ModelConfig, ModelFolder, Norm, kinds};
use super::super::layout::Layout;
use super::super::weights::Checkpoint;

/// The description of a model folder, printable.
#[derive(Clone, Debug)]
pub struct Facts {
    pub path: PathBuf,
    pub config: ModelConfig,
    /// The storage format of the layers' matrices, as found in the tensors.
    pub weights: WeightFormat,
    pub files: usize,
    pub tensors: usize,
    pub tensor_bytes: usize,
    /// The number of tensors of each element type.
    pub dtypes: BTreeMap<String, usize>,
}

impl Facts {
    /// The compute dtype.
    pub fn dtype(&self) -> Dtype {
        self.weights.compute_dtype()
    }
}

/// Reads the headers of all files and checks every tensor against config.json.
pub fn facts(folder: &ModelFolder) -> Result<Facts> {
    let checkpoint = Checkpoint::open(&folder.path)?;
    let layout = Layout::of(&folder.config);
    checkpoint.verify(&layout)?;
    Ok(Facts {
        path: folder.path.clone(),
        config: folder.config.clone(),
        weights: checkpoint.format(&layout)?,
        files: checkpoint.files(),
        tensors: checkpoint.tensors(),
        tensor_bytes: checkpoint.bytes(),
        dtypes: checkpoint.dtypes(),
    })
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        let mut line = |name: &str, text: String| writeln!(f, "{name:<12}{text}");
        line("folder", self.path.display().to_string())?;
        line("family", config.family.to_string())?;
        let order = by_layer(config, |layer| order(&layer.norms).to_owned());
        line("layers", format!("{} of width {}, {order}", config.layers.len(), config.hidden))?;
        line("heads", by_layer(config, |layer| heads(layer.attention.heads, layer.attention.head_norm)))?;
        line("mlp", by_layer(config, |layer| feed_forward(layer.feed_forward)))?;
        line("norm", norm(config.final_norm))?;
        line("biases", biases(config))?;
        line("rope", by_layer(config, |layer| layer.attention.rope.to_string()))?;
        line("context", format!("{} tokens, {}", config.context, windows(config)))?;
        let tied = if config.tied_embeddings { "tied to the output layer" } else { "apart from the output layer" };
        line("vocabulary", format!("{} tokens, embeddings {tied}", config.vocab))?;
        line("special", special_tokens(config))?;
        line("parameters", count(config.parameters()))?;
        let dtypes: Vec<String> = self.dtypes.iter().map(|(dtype, tensors)| format!("{tensors} {dtype}")).collect();
        let (files, tensors, bytes) = (self.files, self.tensors, self.tensor_bytes);
        let plural = if files == 1 { "" } else { "s" };
        line("weights", format!("{bytes} bytes, {tensors} tensors ({}) in {files} file{plural}", dtypes.join(", ")))?;
        line("kv", format!("{} bytes a token", config.kv_bytes_per_token(|_| self.dtype().bytes())))
    }
}

/// The description of all layers if it is the same; else each distinct one with its number of layers.
fn by_layer(config: &ModelConfig, describe: impl Fn(&LayerSpec) -> String) -> String {
    let all: Vec<String> = config.layers.iter().map(describe).collect();
    match kinds(all.iter()).as_slice() {
        [one] => (*one).clone(),
        several => {
            let of = |kind: &&String| format!("{kind} in {} layers", all.iter().filter(|other| other == kind).count());
            several.iter().map(of).collect::<Vec<_>>().join("; ")
        }
    }
}

fn order(norms: &LayerNorms) -> &'static str {
    match norms {
        LayerNorms::Sequential { .. } => "attention, then mlp",
        LayerNorms::Parallel(_) => "attention and mlp in parallel",
    }
}

fn heads(heads: HeadLayout, head_norm: Option<f32>) -> String {
    let HeadLayout { q_heads, kv_heads, head_dim } = heads;
    let normalised = if head_norm.is_some() { ", normalised queries and keys" } else { "" };
    format!("{q_heads} query, {kv_heads} key and value, of {head_dim}{normalised}")
}

fn feed_forward(kind: FeedForward) -> String {
    let FeedForward::Dense { activation, width, .. } = kind;
    let activation = match activation {
        Activation::GatedSilu => "gated silu",
        Activation::Gelu => "gelu",
    };
    format!("{activation} of width {width}")
}

fn norm(norm: Norm) -> String {
    match norm {
        Norm::Rms { eps } => format!("rms, epsilon {eps}"),
        Norm::Layer { eps } => format!("layer norm with bias, epsilon {eps}"),
    }
}

fn biases(config: &ModelConfig) -> String {
    let any = |has: fn(&LayerSpec) -> bool| config.layers.iter().any(has);
    let in_mlp = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForward::Dense { bias: true, .. });
    let all = [
        (any(|layer| layer.attention.qkv_bias), "q k v"),
        (any(|layer| layer.attention.out_bias), "attention output"),
        (any(in_mlp), "mlp"),
        (config.head_bias, "output layer"),
    ];
    let present: Vec<&str> = all.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    if present.is_empty() { "none".to_owned() } else { present.join(", ") }
}

fn windows(config: &ModelConfig) -> String {
    let windows = || config.layers.iter().map(|layer| layer.attention.window);
    let kinds = kinds(windows()).into_iter().map(|kind| {
        let layers = windows().filter(|window| *window == kind).count();
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

/// For example `6738415616 (6.74 B)`.
fn count(n: usize) -> String {
    match n as f64 {
        x if x >= 1e9 => format!("{n} ({:.2} B)", x / 1e9),
        x if x >= 1e6 => format!("{n} ({:.1} M)", x / 1e6),
        _ => n.to_string(),
    }
}
