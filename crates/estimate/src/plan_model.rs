//! The model of an estimate: its configuration and its tokenizer, without weights.

use std::path::{Path, PathBuf};

use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::MODEL;
use offshoot_model::check::check_stored;
use offshoot_model::{ModelConfig, ModelFolder, WeightChoice};
use offshoot_text::Tokenizer;

/// A model without its weights.
#[derive(Debug)]
pub struct PlanModel {
    pub path: PathBuf,
    pub config: ModelConfig,
    /// Dtype of weights, keys and values.
    pub dtype: Dtype,
}

impl PlanModel {
    /// A model folder, a GGUF file, or a config.json alone, with the weights that the user asks for.
    pub fn open(path: &Path, dtype: Option<Dtype>, weights: WeightChoice) -> Result<Self> {
        let config = match is_config(path) {
            true => ModelConfig::from_file(path)?.with(weights, path)?,
            false => of_folder(ModelFolder::open(path)?, weights)?,
        };
        Ok(Self::of(path, config, dtype))
    }

    pub fn of(path: &Path, config: ModelConfig, dtype: Option<Dtype>) -> Self {
        let dtype = dtype.or(config.dtype).unwrap_or(Dtype::Bf16);
        Self { path: path.to_path_buf(), config, dtype }
    }

    /// The tokenizer, for prompts given as text.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match is_config(&self.path) {
            true => Err(Error::value(MODEL, "a folder with a tokenizer, for prompts come as text", "a config.json")),
            false => Tokenizer::load(&self.path),
        }
    }
}

/// The configuration of a folder with the weights that the user asks for. Refuses what a run would refuse, as far as
/// the folder has weights or an index of them.
pub fn of_folder(folder: ModelFolder, weights: WeightChoice) -> Result<ModelConfig> {
    let folder = folder.with(weights)?;
    check_stored(&folder)?;
    Ok(folder.config)
}

/// Whether the path is that of a config.json rather than of a model.
fn is_config(path: &Path) -> bool {
    path.is_file() && path.extension().is_none_or(|kind| !kind.eq_ignore_ascii_case("gguf"))
}
