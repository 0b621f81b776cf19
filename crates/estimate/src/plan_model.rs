//! The model of an estimate: its configuration and its tokenizer, without weights.

use std::path::{Path, PathBuf};

use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::MODEL;
use offshoot_model::check::stored_dtype;
use offshoot_model::{ModelConfig, ModelFolder, WeightChoice};
use offshoot_text::Tokenizer;

/// A model without its weights.
#[derive(Debug)]
pub struct PlanModel {
    pub path: PathBuf,
    pub config: ModelConfig,
    /// Dtype of weights, keys and values: what the user asks for, else that of the tensors, else the config's.
    pub dtype: Dtype,
}

impl PlanModel {
    /// A model folder, a GGUF file, or a config.json alone, with the weights that the user asks for.
    pub fn open(path: &Path, dtype: Option<Dtype>, weights: WeightChoice) -> Result<Self> {
        if !is_config(path) {
            return Self::of_folder(ModelFolder::open(path)?, dtype, weights);
        }
        let config = ModelConfig::from_file(path)?.with(weights, path)?;
        Ok(Self { dtype: dtype.or(config.dtype).unwrap_or(Dtype::Bf16), path: path.to_path_buf(), config })
    }

    /// A folder with the weights that the user asks for. Refuses what a run would refuse, as far as the folder has
    /// weights or an index of them.
    pub fn of_folder(folder: ModelFolder, dtype: Option<Dtype>, weights: WeightChoice) -> Result<Self> {
        let folder = folder.with(weights)?;
        let dtype = match (dtype, stored_dtype(&folder)?) {
            (Some(dtype), _) | (None, Some(dtype)) => dtype,
            (None, None) => folder.config.dtype.unwrap_or(Dtype::Bf16),
        };
        Ok(Self { path: folder.path, config: folder.config, dtype })
    }

    /// The tokenizer, for prompts given as text.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match is_config(&self.path) {
            true => Err(Error::value(MODEL, "a folder with a tokenizer, for prompts come as text", "a config.json")),
            false => Tokenizer::load(&self.path),
        }
    }
}

/// Whether the path is that of a config.json rather than of a model.
fn is_config(path: &Path) -> bool {
    path.is_file() && path.extension().is_none_or(|kind| !kind.eq_ignore_ascii_case("gguf"))
}
