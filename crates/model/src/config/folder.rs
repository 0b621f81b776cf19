//! Reads the configuration of a model: config.json and the files beside it, or the metadata of a GGUF file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::setting::{ACTIVATIONS, WEIGHTS};
use offshoot_core::{hub, input};
use offshoot_gguf::Gguf;

use super::bare_words;
use super::embedder;
use super::families::ModelRole;
use super::fields::{Fields, LARGEST_WIDTH};
use super::model::ModelConfig;
use super::output::OutputHead;
use super::quantisation::{self, Quantisation, WeightChoice};
use super::{families, gguf};
use crate::layout::Layout;
use crate::weights::{self, GgufModel};

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
        let config = ModelConfig::from_file(config_file(&path)?)?;
        Ok(Self { path, config, dtype: None })
    }

    /// Opens a folder as a scorer: its values are computed by the module that its tensors name (`score`,
    /// `v_head.summary` and others); or they are the logits of the tokens `words`, in this order, for which every model
    /// that predicts tokens is taken.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open). The folder has no head or several; a word is no token of the vocabulary; or the
    /// model is a GGUF file.
    pub fn open_scorer(path: impl Into<PathBuf>, words: Option<&[TokenId]>) -> Result<Self> {
        let path = path.into();
        if offshoot_gguf::files(&path)?.is_some() {
            let expected = "a folder with config.json and *.safetensors, as values of GGUF files are not computed";
            return Err(Error::value("a scorer", expected, path.display().to_string()));
        }
        let file = config_file(&path)?;
        let role = if words.is_some() { ModelRole::Generator } else { ModelRole::Scorer };
        let mut config = ModelConfig::from_file_as(&file, role)?;
        config.output = match words {
            None => OutputHead::Values(weights::value_head_of(&path, &config, labels(&file)?)?),
            Some([]) => return Err(Error::value("the tokens whose logits are values", "at least one", "none")),
            Some(words) => match words.iter().find(|word| word.ix() >= config.vocab) {
                Some(word) => {
                    let expected = format!("tokens below the model's vocabulary of {}", config.vocab);
                    return Err(Error::value("the tokens whose logits are values", expected, word.to_string()));
                }
                None => OutputHead::TokenLogits(words.to_vec()),
            },
        };
        Ok(Self { path, config, dtype: None })
    }

    /// Opens a folder as an embedder: the values at a token are its row behind the final norm, the vector of the text
    /// up to there.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open). The model's class reads in both directions or scores; its final norm is a layer
    /// norm; or it is a GGUF file.
    pub fn open_embedder(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if offshoot_gguf::files(&path)?.is_some() {
            let expected = "a folder with config.json and *.safetensors, as vectors of GGUF files are not computed";
            return Err(Error::value("an embedder", expected, path.display().to_string()));
        }
        let config = ModelConfig::from_file_as(&config_file(&path)?, ModelRole::Embedder)?;
        if config.final_norm.is_layer_norm() {
            let expected = "a model whose final norm is an RMS norm: its rows are the vectors";
            return Err(Error::value("an embedder", expected, path.display().to_string()));
        }
        Ok(Self { path, config: ModelConfig { output: OutputHead::Hidden, ..config }, dtype: None })
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

impl ModelRole {
    /// What the model at `path` is for, by the class in its config.json; a generator whose folder has the modules of
    /// sentence-transformers is an embedder. A GGUF model is a generator.
    ///
    /// # Errors
    ///
    /// `path` is no model, or its config.json cannot be read.
    pub fn of(path: &Path) -> Result<Self> {
        if offshoot_gguf::files(path)?.is_some() {
            return Ok(Self::Generator);
        }
        let file = config_file(path)?;
        let json = read_json(&file)?;
        let role = families::role(&Fields::of_file(&file, &json)?)?;
        Ok(if role == Self::Generator && embedder::pools(path) { Self::Embedder } else { role })
    }
}

/// The config.json of a model folder.
fn config_file(path: &Path) -> Result<PathBuf> {
    let found = |what| Err(Error::format(path, format!("expected {EXPECTED}, found {what}")));
    if path.is_file() {
        return found("another file");
    }
    if !path.exists() {
        return Err(Error::format(path, hub::no_folder(path)));
    }
    let file = path.join("config.json");
    if matches!(file.try_exists(), Ok(false)) { found("no config.json") } else { Ok(file) }
}

/// The number of values that config.json gives a scorer, if it does.
fn labels(file: &Path) -> Result<Option<usize>> {
    let json = read_json(file)?;
    let fields = Fields::of_file(file, &json)?;
    if fields.flag("do_normalize")? == Some(true) {
        return Err(fields.error("do_normalize", "false: values are not normalised by a mean and deviation", "true"));
    }
    fields.size("num_labels", LARGEST_WIDTH)
}

impl ModelConfig {
    /// Reads the config.json of a generator. Special tokens in a generation_config.json in the same folder take
    /// precedence.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_file_as(path.as_ref(), ModelRole::Generator)
    }

    fn from_file_as(path: &Path, role: ModelRole) -> Result<Self> {
        let json = read_json(path)?;
        let fields = Fields::of_file(path, &json)?;
        let mut config = families::read(&fields, role)?;
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
        families::read(&fields, ModelRole::Generator)
    }
}

/// The JSON of one of a model's files.
pub fn read_json(path: &Path) -> Result<Value> {
    let text = input::model_file(path)?;
    serde_json::from_slice(&text).or_else(|fault| {
        let quoted = std::str::from_utf8(&text).ok().and_then(bare_words::quoted);
        let read = quoted.and_then(|text| serde_json::from_str(&text).ok());
        read.ok_or_else(|| Error::format(path, format!("not valid JSON: {fault}")))
    })
}
