//! Reads the configuration of a model: config.json and the files beside it, or the metadata of a GGUF file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::{ACTIVATIONS, WEIGHTS};
use offshoot_core::{hub, input};
use offshoot_gguf::Gguf;

use super::fields::Fields;
use super::model::ModelConfig;
use super::quantisation::{self, Quantisation, WeightChoice};
use super::{families, gguf};
use crate::layout::Layout;
use crate::weights::GgufModel;

/// What a model's path may be.
const EXPECTED: &str = "a model folder (config.json, *.safetensors, tokenizer.json) or a .gguf file";

/// A folder in Hugging Face layout whose config.json has been read, or a GGUF model whose metadata has.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    /// The folder, or the GGUF file.
    pub path: PathBuf,
    pub config: ModelConfig,
    /// The compute dtype of a GGUF model with quantised matrices, which have none; `None`: bf16. In f32, activations
    /// are not rounded.
    pub dtype: Option<Dtype>,
}

impl ModelFolder {
    /// # Errors
    ///
    /// `path` is neither; what its configuration says cannot be read, or is not supported.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if offshoot_gguf::files(&path)?.is_some() {
            let gguf = Gguf::open(&path)?;
            let config = gguf::read(&gguf)?;
            let model = GgufModel::new(gguf, &config, None)?;
            // What is wrong with a tensor is said where all are verified.
            let formats = model.formats(&Layout::of(&config)).unwrap_or_default();
            return Ok(Self { path, config: ModelConfig { formats: Arc::new(formats), ..config }, dtype: None });
        }
        let found = |what| Err(Error::format(&path, format!("expected {EXPECTED}, found {what}")));
        if path.is_file() {
            return found("another file");
        }
        if !path.exists() {
            return Err(Error::format(&path, hub::no_folder(&path)));
        }
        let file = path.join("config.json");
        if matches!(file.try_exists(), Ok(false)) {
            return found("no config.json");
        }
        let config = ModelConfig::from_file(file)?;
        Ok(Self { path, config, dtype: None })
    }

    /// The folder with the weights that the user asks for. Errors: the checkpoint is quantised already or a GGUF model.
    pub fn with(mut self, choice: WeightChoice) -> Result<Self> {
        if !choice.is_as_stored() && offshoot_gguf::files(&self.path)?.is_some() {
            let option = if choice.weights.is_some() { WEIGHTS } else { ACTIVATIONS };
            let expected = "a model folder with it; a GGUF model stays as it is stored";
            return Err(Error::value(option, expected, self.path.display().to_string()));
        }
        self.config = self.config.with(choice, &self.path)?;
        Ok(self)
    }
}

impl ModelConfig {
    /// Reads a config.json. Special tokens in a generation_config.json in the same folder take precedence.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let json = read_json(path)?;
        let fields = Fields::of_file(path, &json)?;
        let mut config = families::read(&fields)?;
        let model_opt = path.with_file_name("hf_quant_config.json");
        if config.quantisation.is_none() && model_opt.is_file() {
            let json = read_json(&model_opt)?;
            config.quantisation =
                quantisation::read_model_opt(&Fields::of_file(&model_opt, &json)?)?.map(Quantisation::Published);
        }
        let generation = path.with_file_name("generation_config.json");
        if generation.is_file() {
            let json = read_json(&generation)?;
            families::read_special_tokens(&Fields::of_file(&generation, &json)?, &mut config)?;
        }
        Ok(config)
    }

    /// Parses the text of a built-in config.json.
    pub fn from_json(text: &str) -> Result<Self> {
        let path = Path::new("a built-in config.json");
        let json =
            serde_json::from_str(text).map_err(|fault| Error::format(path, format!("not valid JSON: {fault}")))?;
        let fields = Fields::of_file(path, &json)?;
        families::read(&fields)
    }
}

/// The JSON of one of a model's files.
pub fn read_json(path: &Path) -> Result<Value> {
    let text = input::model_file(path)?;
    serde_json::from_slice(&text).map_err(|fault| Error::format(path, format!("not valid JSON: {fault}")))
}
