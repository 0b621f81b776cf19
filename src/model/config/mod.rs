//! Facts of a model, read from config.json and generation_config.json. `families` knows what each architecture's name implies,
//! `rope` the ways to write a rotary embedding, `fields` how to complain. Tensors are `weights`'.

mod families;
mod fields;
mod rope;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::backend::{Dtype, HeadLayout};
use crate::error::{Error, Result};
use crate::ids::TokenId;

use super::layout::Layout;
pub use families::Family;
use fields::Fields;
pub use rope::{RopeConfig, RopeScaling};

/// Everything that distinguishes one decoder from another, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    pub layers: usize,
    pub heads: HeadLayout,
    /// Width inside the feed-forward part.
    pub intermediate: usize,
    pub vocab: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    pub norm: Norm,
    pub mlp: Mlp,
    pub biases: Biases,
    /// Query and key heads are normalised before they turn (Qwen3).
    pub head_norms: bool,
    /// Attention and feed-forward read the same normalised input and both add to the residual (Phi).
    pub parallel_residual: bool,
    /// The output layer is the embedding table.
    pub tied_embeddings: bool,
    /// Sliding window of each layer, where it hides anything.
    pub windows: Vec<Option<u32>>,
    pub rope: RopeConfig,
    /// What config.json announces. The tensors themselves may say otherwise and are right.
    pub dtype: Option<Dtype>,
    pub bos: Option<TokenId>,
    /// Any of them ends a text.
    pub eos: Vec<TokenId>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    Rms { eps: f32 },
    Layer { eps: f32 },
}

impl Norm {
    pub fn eps(self) -> f32 {
        match self {
            Norm::Rms { eps } | Norm::Layer { eps } => eps,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// `down(silu(gate x) * up x)`
    GatedSilu,
    /// `fc2(gelu(fc1 x))`
    Gelu,
}

/// Which linear layers have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    pub qkv: bool,
    pub out: bool,
    pub mlp: bool,
    pub head: bool,
}

impl ModelConfig {
    /// Reads a config.json; special tokens come from generation_config.json in the same folder, where it has them.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let json = read_json(path)?;
        let fields = Fields::of_file(path, &json)?;
        let mut config = families::read(&fields)?;
        families::read_special_tokens(&fields, &mut config)?;
        let generation = path.with_file_name("generation_config.json");
        if generation.is_file() {
            let json = read_json(&generation)?;
            families::read_special_tokens(&Fields::of_file(&generation, &json)?, &mut config)?;
        }
        Ok(config)
    }

    /// The same of a text that stands in no file.
    pub fn from_json(text: &str) -> Result<Self> {
        let path = Path::new("a built-in config.json");
        let json =
            serde_json::from_str(text).map_err(|fault| Error::format(path, format!("not valid JSON: {fault}")))?;
        let fields = Fields::of_file(path, &json)?;
        let mut config = families::read(&fields)?;
        families::read_special_tokens(&fields, &mut config)?;
        Ok(config)
    }

    /// The distinct windows, in order of the first layer that has them: each needs an attention plan of its own.
    pub fn window_kinds(&self) -> Vec<Option<u32>> {
        let mut kinds = Vec::new();
        for &window in &self.windows {
            if !kinds.contains(&window) {
                kinds.push(window);
            }
        }
        kinds
    }

    /// Weights in all; a tied embedding counts once.
    pub fn parameters(&self) -> usize {
        Layout::of(self).tensors().map(|tensor| tensor.elements()).sum()
    }

    /// Bytes of all weights where every tensor is of `dtype`.
    pub fn weight_bytes(&self, dtype: Dtype) -> usize {
        self.parameters() * dtype.bytes()
    }

    /// Bytes of one token's keys and values, all layers.
    pub fn kv_bytes_per_token(&self, element_bytes: usize) -> usize {
        2 * self.layers * self.heads.kv_heads * self.heads.head_dim * element_bytes
    }
}

/// A folder in Hugging Face layout whose config.json has been read.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    pub path: PathBuf,
    pub config: ModelConfig,
}

impl ModelFolder {
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if path.is_file() {
            return Err(Error::format(&path, "expected a model folder in Hugging Face layout, found a file"));
        }
        let config = ModelConfig::from_file(path.join("config.json"))?;
        Ok(Self { path, config })
    }
}

pub(super) fn read_json(path: &Path) -> Result<Value> {
    let text = fs::read(path).map_err(Error::io(path, "read"))?;
    serde_json::from_slice(&text).map_err(|fault| Error::format(path, format!("not valid JSON: {fault}")))
}
