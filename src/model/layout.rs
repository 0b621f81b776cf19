//! Which tensors a checkpoint of a given config holds: names as transformers writes them, shapes, and where each size comes
//! from. Nothing is read here; `weights` fetches what is listed.

use super::config::{Mlp, ModelConfig, Norm};

/// A size and the field of config.json that says it.
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
pub struct LinearSpec {
    pub weights: Vec<TensorSpec>,
    pub biases: Vec<TensorSpec>,
}

#[derive(Clone, Debug)]
pub struct NormSpec {
    pub weight: TensorSpec,
    pub bias: Option<TensorSpec>,
}

#[derive(Clone, Debug)]
pub struct LayerSpec {
    pub attention_norm: NormSpec,
    pub qkv: LinearSpec,
    /// Of query heads and of key heads.
    pub head_norms: Option<[TensorSpec; 2]>,
    pub out: LinearSpec,
    /// Absent where attention and feed-forward share one norm.
    pub mlp_norm: Option<NormSpec>,
    /// Gate and up where the feed-forward part is gated, else fc1.
    pub up: LinearSpec,
    pub down: LinearSpec,
}

#[derive(Clone, Debug)]
pub struct Layout {
    pub embed: TensorSpec,
    pub layers: Vec<LayerSpec>,
    pub final_norm: NormSpec,
    /// Absent where the embedding table serves.
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

    /// `[4096, 11008] (hidden_size, intermediate_size)`
    pub fn describe_shape(&self) -> String {
        let sizes: Vec<usize> = self.shape.iter().map(|dim| dim.size).collect();
        let fields: Vec<&str> = self.shape.iter().map(|dim| dim.field).collect();
        format!("{sizes:?} ({})", fields.join(", "))
    }
}

impl LinearSpec {
    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.weights.iter().chain(&self.biases)
    }
}

impl NormSpec {
    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

impl LayerSpec {
    pub fn linears(&self) -> [&LinearSpec; 4] {
        [&self.qkv, &self.out, &self.up, &self.down]
    }

    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        let norms = self.attention_norm.tensors().chain(self.mlp_norm.iter().flat_map(NormSpec::tensors));
        let linears = self.linears().into_iter().flat_map(LinearSpec::tensors);
        norms.chain(self.head_norms.iter().flatten()).chain(linears)
    }
}

impl Layout {
    pub fn of(config: &ModelConfig) -> Self {
        let names = Names { config };
        Self {
            embed: names.matrix("model.embed_tokens", names.vocab(), names.hidden()),
            layers: (0..config.layers).map(|layer| names.layer(layer)).collect(),
            final_norm: names.norm(match config.norm {
                Norm::Rms { .. } => "model.norm",
                Norm::Layer { .. } => "model.final_layernorm",
            }),
            head: (!config.tied_embeddings).then(|| names.matrix("lm_head", names.vocab(), names.hidden())),
            head_bias: config.biases.head.then(|| names.vector("lm_head.bias", names.vocab())),
        }
    }

    /// Every tensor once.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        let layers = self.layers.iter().flat_map(LayerSpec::tensors);
        let end = self.final_norm.tensors().chain(&self.head).chain(&self.head_bias);
        std::iter::once(&self.embed).chain(layers).chain(end)
    }
}

/// Builds specs from a config.
struct Names<'a> {
    config: &'a ModelConfig,
}

impl Names<'_> {
    fn hidden(&self) -> Dim {
        Dim { size: self.config.hidden, field: "hidden_size" }
    }

    fn vocab(&self) -> Dim {
        Dim { size: self.config.vocab, field: "vocab_size" }
    }

    fn intermediate(&self) -> Dim {
        Dim { size: self.config.intermediate, field: "intermediate_size" }
    }

    fn q_width(&self) -> Dim {
        Dim { size: self.config.heads.q_width(), field: "num_attention_heads * head_dim" }
    }

    fn kv_width(&self) -> Dim {
        let heads = self.config.heads;
        Dim { size: heads.kv_heads * heads.head_dim, field: "num_key_value_heads * head_dim" }
    }

    fn head_dim(&self) -> Dim {
        Dim { size: self.config.heads.head_dim, field: "head_dim" }
    }

    fn vector(&self, name: &str, size: Dim) -> TensorSpec {
        TensorSpec { name: name.to_owned(), shape: vec![size] }
    }

    fn matrix(&self, module: &str, rows: Dim, cols: Dim) -> TensorSpec {
        TensorSpec { name: format!("{module}.weight"), shape: vec![rows, cols] }
    }

    fn norm(&self, module: &str) -> NormSpec {
        let vector = |part: &str| self.vector(&format!("{module}.{part}"), self.hidden());
        let bias = matches!(self.config.norm, Norm::Layer { .. }).then(|| vector("bias"));
        NormSpec { weight: vector("weight"), bias }
    }

    fn linear(&self, modules: &[(String, Dim)], cols: Dim, bias: bool) -> LinearSpec {
        let biased = if bias { modules } else { &[] };
        LinearSpec {
            weights: modules.iter().map(|(module, rows)| self.matrix(module, *rows, cols)).collect(),
            biases: biased.iter().map(|(module, rows)| self.vector(&format!("{module}.bias"), *rows)).collect(),
        }
    }

    fn layer(&self, layer: usize) -> LayerSpec {
        let config = self.config;
        let at = |module: &str| format!("model.layers.{layer}.{module}");
        let qkv = [
            (at("self_attn.q_proj"), self.q_width()),
            (at("self_attn.k_proj"), self.kv_width()),
            (at("self_attn.v_proj"), self.kv_width()),
        ];
        let head_norm = |name: &str| self.vector(&at(name), self.head_dim());
        let out = if config.parallel_residual { "self_attn.dense" } else { "self_attn.o_proj" };
        let (up, down): (&[&str], _) = match config.mlp {
            Mlp::GatedSilu => (&["mlp.gate_proj", "mlp.up_proj"], "mlp.down_proj"),
            Mlp::Gelu => (&["mlp.fc1"], "mlp.fc2"),
        };
        let up: Vec<_> = up.iter().map(|module| (at(module), self.intermediate())).collect();
        LayerSpec {
            attention_norm: self.norm(&at("input_layernorm")),
            qkv: self.linear(&qkv, self.hidden(), config.biases.qkv),
            head_norms: config
                .head_norms
                .then(|| [head_norm("self_attn.q_norm.weight"), head_norm("self_attn.k_norm.weight")]),
            out: self.linear(&[(at(out), self.hidden())], self.q_width(), config.biases.out),
            mlp_norm: (!config.parallel_residual).then(|| self.norm(&at("post_attention_layernorm"))),
            up: self.linear(&up, self.hidden(), config.biases.mlp),
            down: self.linear(&[(at(down), self.hidden())], self.intermediate(), config.biases.mlp),
        }
    }
}
