//! Describes a model folder for people, from its configuration and checkpoint headers. Loads no weights.

use std::fmt;
use std::path::{Path, PathBuf};

use offshoot_backend::{Dtype, Gate, HeadLayout, LatentHeads, StateDtype};
use offshoot_core::error::Result;

use super::super::config::{
    Activation, AttentionSpec, DenseSpec, ExpertsSpec, FeedForward, KeySource, LatentSpec, LayerNorms, LayerSpec,
    Mixer, ModelConfig, ModelFolder, Norm, kinds,
};
use super::super::weights::{self, FileFacts, IndexFacts, compare_index};

/// The description of a model folder, printable.
#[derive(Clone, Debug)]
pub struct Facts {
    pub path: PathBuf,
    pub config: ModelConfig,
    /// The compute dtype, as found in the tensors.
    pub dtype: Dtype,
    pub stored: FileFacts,
}

/// Reads the headers of all files and checks every tensor against config.json.
pub fn facts(folder: &ModelFolder) -> Result<Facts> {
    let (files, config, _, dtype) = weights::open_verified(folder)?;
    Ok(Facts { path: folder.path.clone(), config, dtype, stored: files.facts() })
}

/// The compute dtype of a model's tensors, which are checked as they are before they are loaded. `None`: files are
/// missing; the names in its index are checked, if it has one.
pub fn stored_dtype(folder: &ModelFolder) -> Result<Option<Dtype>> {
    match weights::are_there(folder)? {
        true => facts(folder).map(|facts| Some(facts.dtype)),
        false => index_facts(folder).map(|_| None),
    }
}

/// What a config.json alone says, printable.
pub struct ConfigFacts<'a>(pub &'a ModelFolder);

/// Says what the index of a folder lists, whose weights may be missing. Errors: the index lacks a tensor that
/// config.json asks for, or has one of the model's that it does not ask for.
pub fn index_facts(folder: &ModelFolder) -> Result<Option<String>> {
    let said = |IndexFacts { tensors, left_out, bytes }| {
        let beside = if left_out == 0 { String::new() } else { format!(" ({left_out} outside the text model)") };
        let bytes = bytes.map_or_else(String::new, |bytes| format!("; {bytes} bytes in all"));
        format!("{tensors} tensors{beside}, all that config.json asks for among them{bytes}")
    };
    Ok(compare_index(&folder.path, &folder.config)?.map(said))
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, text: String) -> fmt::Result {
    writeln!(f, "{name:<12}{text}")
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileFacts { files, tensors, bytes, dtypes } = &self.stored;
        let dtypes: Vec<String> = dtypes.iter().map(|(dtype, tensors)| format!("{tensors} {dtype}")).collect();
        let plural = if *files == 1 { "" } else { "s" };
        let weights = format!("{bytes} bytes, {tensors} tensors ({}) in {files} file{plural}", dtypes.join(", "));
        lines(f, &self.path, &self.config, Some((self.dtype, weights)))
    }
}

impl fmt::Display for ConfigFacts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelFolder { path, config, .. } = self.0;
        let weights = |dtype: Dtype| {
            (dtype, format!("{} bytes in {}", config.weight_bytes(dtype), format!("{dtype:?}").to_lowercase()))
        };
        lines(f, path, config, config.dtype.map(weights))
    }
}

/// `weights`: the compute dtype, and what is known of the weights.
fn lines(
    f: &mut fmt::Formatter<'_>,
    path: &Path,
    config: &ModelConfig,
    weights: Option<(Dtype, String)>,
) -> fmt::Result {
    line(f, "folder", path.display().to_string())?;
    config_lines(f, config)?;
    let Some((dtype, weights)) = weights else { return Ok(()) };
    line(f, "weights", weights)?;
    line(f, "kv", format!("{} bytes a token", config.kv_bytes_per_token(|_| dtype.bytes())))?;
    match config.state_bytes(StateDtype::default()) {
        0 => Ok(()),
        bytes => line(f, "state", format!("{bytes} bytes a sequence, whatever its length")),
    }
}

fn config_lines(f: &mut fmt::Formatter<'_>, config: &ModelConfig) -> fmt::Result {
    let mut line = |name: &str, text: String| line(f, name, text);
    line("family", config.family.to_string())?;
    let order = by_layer(config, |layer| order(&layer.norms).to_owned());
    line("layers", format!("{} of width {}, {order}", config.layers.len(), config.hidden))?;
    line("heads", by_layer(config, heads))?;
    line("mlp", by_layer(config, |layer| feed_forward(&layer.feed_forward)))?;
    line("norm", norm(config.final_norm))?;
    line("biases", biases(config))?;
    line(
        "rope",
        by_layer(config, |layer| {
            let attention = layer.attention();
            let rope = attention.and_then(|of| of.rope.as_ref()).map_or("none".to_owned(), ToString::to_string);
            match attention.and_then(|of| of.growth) {
                None => rope,
                Some(growth) => format!("{rope}, queries grow from position {}", growth.original_context),
            }
        }),
    )?;
    line("context", format!("{} tokens, {}", config.context, windows(config)))?;
    let tied = if config.tied_embeddings { "tied to the output layer" } else { "apart from the output layer" };
    line("vocabulary", format!("{} tokens, embeddings {tied}", config.vocab))?;
    if config.is_scorer() {
        line("computes", config.output.to_string())?;
    }
    line("special", special_tokens(config))?;
    let (all, active) = (config.parameters(), config.active_parameters());
    let active = if active < all { format!(", of which a token uses {}", count(active)) } else { String::new() };
    line("parameters", format!("{}{active}", count(all)))?;
    match &config.quantisation {
        Some(how) => line("quantised", format!("{how}; activations {}", how.activations())),
        None => Ok(()),
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
        LayerNorms::Sequential { attention, .. } => match (attention.before(), attention.after()) {
            (_, None) => "attention, then mlp",
            (None, Some(_)) => "attention, then mlp, norms after both",
            (Some(_), Some(_)) => "attention, then mlp, norms before and after both",
        },
        LayerNorms::Parallel(_) => "attention and mlp in parallel",
        LayerNorms::ParallelOfTwo { .. } => "attention and mlp in parallel, a norm before each",
    }
}

fn heads(layer: &LayerSpec) -> String {
    match &layer.mixer {
        Mixer::Attention(attention) => attention_heads(attention),
        Mixer::Recurrent(recurrent) => recurrent.to_string(),
        Mixer::None => "none".to_owned(),
    }
}

fn attention_heads(attention: &AttentionSpec) -> String {
    let HeadLayout { q_heads, kv_heads, head_dim, .. } = attention.heads;
    let mut text = match attention.keys {
        KeySource::Latent(LatentSpec { heads: LatentHeads { heads, rank, nope, rope, value }, .. }) => {
            format!("{heads} of {nope} + {rope}, values of {value}, from latents of {rank}")
        }
        _ => format!("{q_heads} query, {kv_heads} key and value, of {head_dim}"),
    };
    if attention.head_norm.is_some() {
        text += ", normalised queries and keys";
    }
    match attention.keys {
        KeySource::Projected | KeySource::Latent(_) => {}
        KeySource::KeysAreValues => text += ", keys are values",
        KeySource::OfLayer(_) => text += ", keys and values of an earlier layer",
    }
    if attention.gate.is_some() {
        text += ", a gate for each query";
    }
    if attention.sinks {
        text += ", sinks";
    }
    if let Some(cap) = attention.softcap {
        text += &format!(", scores capped at {cap}");
    }
    text
}

fn feed_forward(block: &FeedForward) -> String {
    match block {
        FeedForward::Dense(block) => dense(block),
        FeedForward::Experts(block) => experts(block),
        FeedForward::DenseAndExperts { dense: block, experts: beside, .. } => {
            format!("{} beside {}", dense(block), experts(beside))
        }
        FeedForward::SharedExpert { shared, experts: chosen, .. } => {
            format!("{}, and one of width {} for all", experts(chosen), shared.width)
        }
        FeedForward::Opens { dense: block, experts: beside } => {
            format!("{}; {}, carried to the next layer", dense(block), experts(beside))
        }
        FeedForward::Closes(block) => format!("{}, and what is carried", dense(block)),
        FeedForward::None => "none".to_owned(),
    }
}

fn dense(block: &DenseSpec) -> String {
    format!("{} of width {}", activation_name(block.activation), block.width)
}

fn experts(block: &ExpertsSpec) -> String {
    let ExpertsSpec { router, width, activation, .. } = block;
    let activation = activation_name(*activation);
    let mut text = format!("{} of {} experts, {activation} of width {width}", router.chosen, block.routed());
    if let Some(latent) = block.latent {
        text += &format!(" on rows of {latent}");
    }
    if let Some(groups) = router.groups {
        text += &format!(", from {} of {} groups", groups.chosen, groups.count);
    }
    if router.identities > 0 {
        text += &format!(", of which {} give their input", router.identities);
    }
    text
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Gated(Gate::Silu) => "gated silu",
        Activation::Gated(Gate::Gelu) => "gated gelu",
        Activation::Gated(Gate::Clamped) => "clamped gated silu",
        Activation::Gelu => "gelu",
        Activation::GeluErf => "gelu of erf",
        Activation::ReluSquared => "squared relu",
        Activation::Xielu => "xielu",
    }
}

fn norm(norm: Norm) -> String {
    match norm {
        Norm::Rms { eps } => format!("rms, epsilon {eps}"),
        Norm::RmsPlusOne { eps } => format!("rms by one plus the weights, epsilon {eps}"),
        Norm::Layer { eps } => format!("layer norm with bias, epsilon {eps}"),
        Norm::LayerPlusOne { eps } => format!("layer norm by one plus the weights, with bias, epsilon {eps}"),
        Norm::LayerNoBias { eps } => format!("layer norm without bias, epsilon {eps}"),
    }
}

fn biases(config: &ModelConfig) -> String {
    let any = |has: fn(&LayerSpec) -> bool| config.layers.iter().any(has);
    let in_mlp = |layer: &LayerSpec| {
        let (dense, experts) = (layer.feed_forward.dense(), layer.feed_forward.experts());
        dense.is_some_and(|dense| dense.bias) || experts.is_some_and(|experts| experts.bias)
    };
    let all = [
        (any(|layer| layer.attention().is_some_and(|of| of.qkv_bias)), "q k v"),
        (any(|layer| layer.attention().is_some_and(|of| of.out_bias)), "attention output"),
        (any(in_mlp), "mlp"),
        (config.head_bias, "output layer"),
    ];
    let present: Vec<&str> = all.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    if present.is_empty() { "none".to_owned() } else { present.join(", ") }
}

fn windows(config: &ModelConfig) -> String {
    let windows = || config.attention().map(|attention| attention.window);
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
