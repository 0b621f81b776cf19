//! Lists the tensors of a checkpoint for a given config: names as in transformers, shapes, and the config field each
//! size comes from. `weights` loads them.

use super::config::{Activation, FeedForward, LayerNorms, LayerSpec, ModelConfig, Norm};
use crate::backend::HeadLayout;

/// A size and the field of config.json it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Dim {
    pub size: usize,
    pub field: &'static str,
}

/// A vector `[n]` or a matrix `[out, in]`.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<Dim>,
}

/// Matrices that are stacked into one, and their biases (all or none).
#[derive(Clone, Debug)]
pub struct LinearTensors {
    pub weights: Vec<TensorSpec>,
    pub biases: Vec<TensorSpec>,
}

/// The tensors of a norm.
#[derive(Clone, Debug)]
pub struct NormTensors {
    pub weight: TensorSpec,
    pub bias: Option<TensorSpec>,
}

/// The tensors of a layer.
#[derive(Clone, Debug)]
pub struct LayerTensors {
    pub attention_norm: NormTensors,
    pub qkv: LinearTensors,
    /// For query heads and for key heads.
    pub head_norms: Option<[TensorSpec; 2]>,
    pub out: LinearTensors,
    /// `None` if attention and feed-forward share one norm.
    pub feed_forward_norm: Option<NormTensors>,
    /// Gate and up if the feed-forward block is gated, else fc1.
    pub up: LinearTensors,
    pub down: LinearTensors,
}

/// The tensors of a model.
#[derive(Clone, Debug)]
pub struct Layout {
    pub embed: TensorSpec,
    pub layers: Vec<LayerTensors>,
    pub final_norm: NormTensors,
    /// The output layer; `None` if it is tied to the embedding table.
    pub head: Option<TensorSpec>,
    pub head_bias: Option<TensorSpec>,
}

impl TensorSpec {
    pub fn elements(&self) -> usize {
        self.shape.iter().map(|dim| dim.size).product()
    }

    pub fn rows(&self) -> usize {
        if self.shape.len() == 1 { 1 } else { self.shape[0].size }
    }

    pub fn cols(&self) -> usize {
        self.shape.last().map_or(1, |dim| dim.size)
    }

    /// For example `[4096, 11008] (hidden_size, intermediate_size)`.
    pub fn describe_shape(&self) -> String {
        let sizes: Vec<usize> = self.shape.iter().map(|dim| dim.size).collect();
        let fields: Vec<&str> = self.shape.iter().map(|dim| dim.field).collect();
        format!("{sizes:?} ({})", fields.join(", "))
    }
}

impl LinearTensors {
    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.weights.iter().chain(&self.biases)
    }
}

impl NormTensors {
    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

impl LayerTensors {
    pub fn linears(&self) -> [&LinearTensors; 4] {
        [&self.qkv, &self.out, &self.up, &self.down]
    }

    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        let norms = self.attention_norm.tensors().chain(self.feed_forward_norm.iter().flat_map(NormTensors::tensors));
        let linears = self.linears().into_iter().flat_map(LinearTensors::tensors);
        norms.chain(self.head_norms.iter().flatten()).chain(linears)
    }
}

impl Layout {
    pub fn of(config: &ModelConfig) -> Self {
        let hidden = Dim { size: config.hidden, field: "hidden_size" };
        let vocab = Dim { size: config.vocab, field: "vocab_size" };
        let layers = config.layers.iter().enumerate();
        Self {
            embed: matrix("model.embed_tokens", vocab, hidden),
            layers: layers.map(|(ix, spec)| layer(ix, spec, hidden)).collect(),
            final_norm: match config.final_norm {
                Norm::Rms { .. } => norm("model.norm", config.final_norm, hidden),
                Norm::Layer { .. } => norm("model.final_layernorm", config.final_norm, hidden),
            },
            head: (!config.tied_embeddings).then(|| matrix("lm_head", vocab, hidden)),
            head_bias: config.head_bias.then(|| vector("lm_head.bias", vocab)),
        }
    }

    /// Every tensor once.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        let layers = self.layers.iter().flat_map(LayerTensors::tensors);
        let end = self.final_norm.tensors().chain(&self.head).chain(&self.head_bias);
        std::iter::once(&self.embed).chain(layers).chain(end)
    }
}

fn q_width(heads: HeadLayout) -> Dim {
    Dim { size: heads.q_width(), field: "num_attention_heads * head_dim" }
}

fn kv_width(heads: HeadLayout) -> Dim {
    Dim { size: heads.kv_heads * heads.head_dim, field: "num_key_value_heads * head_dim" }
}

fn vector(name: &str, size: Dim) -> TensorSpec {
    TensorSpec { name: name.to_owned(), shape: vec![size] }
}

fn matrix(module: &str, rows: Dim, cols: Dim) -> TensorSpec {
    TensorSpec { name: format!("{module}.weight"), shape: vec![rows, cols] }
}

fn norm(module: &str, norm: Norm, width: Dim) -> NormTensors {
    let part = |name: &str| vector(&format!("{module}.{name}"), width);
    NormTensors { weight: part("weight"), bias: matches!(norm, Norm::Layer { .. }).then(|| part("bias")) }
}

fn linear(modules: &[(String, Dim)], cols: Dim, bias: bool) -> LinearTensors {
    let biased = if bias { modules } else { &[] };
    LinearTensors {
        weights: modules.iter().map(|(module, rows)| matrix(module, *rows, cols)).collect(),
        biases: biased.iter().map(|(module, rows)| vector(&format!("{module}.bias"), *rows)).collect(),
    }
}

fn layer(ix: usize, spec: &LayerSpec, hidden: Dim) -> LayerTensors {
    let at = |module: &str| format!("model.layers.{ix}.{module}");
    let attention = &spec.attention;
    let heads = attention.heads;
    let qkv = [
        (at("self_attn.q_proj"), q_width(heads)),
        (at("self_attn.k_proj"), kv_width(heads)),
        (at("self_attn.v_proj"), kv_width(heads)),
    ];
    let head_norm = |name: &str| vector(&at(name), Dim { size: heads.head_dim, field: "head_dim" });
    let (attention_norm, out, feed_forward_norm) = match spec.norms {
        LayerNorms::Sequential { attention, feed_forward } => {
            (attention, "self_attn.o_proj", Some(norm(&at("post_attention_layernorm"), feed_forward, hidden)))
        }
        LayerNorms::Parallel(norm) => (norm, "self_attn.dense", None),
    };
    let FeedForward::Dense { activation, width, bias } = spec.feed_forward;
    let inner = Dim { size: width, field: "intermediate_size" };
    let (up, down): (&[&str], _) = match activation {
        Activation::GatedSilu => (&["mlp.gate_proj", "mlp.up_proj"], "mlp.down_proj"),
        Activation::Gelu => (&["mlp.fc1"], "mlp.fc2"),
    };
    let up: Vec<_> = up.iter().map(|module| (at(module), inner)).collect();
    LayerTensors {
        attention_norm: norm(&at("input_layernorm"), attention_norm, hidden),
        qkv: linear(&qkv, hidden, attention.qkv_bias),
        head_norms: attention
            .head_norm
            .map(|_| [head_norm("self_attn.q_norm.weight"), head_norm("self_attn.k_norm.weight")]),
        out: linear(&[(at(out), hidden)], q_width(heads), attention.out_bias),
        feed_forward_norm,
        up: linear(&up, hidden, bias),
        down: linear(&[(at(down), hidden)], inner, bias),
    }
}
