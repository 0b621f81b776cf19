//! The folder of a scorer: its configuration, form, tokenizer and head, read and checked before any weights are loaded.
//! How it is started, alone or beside a generator, is left to `pair`.
#![warn(missing_docs)]

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::ModelSource;
use super::second::{checked_share, name_of_folder};
use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::SCORER_MEMORY;
use offshoot_model::check::facts;
use offshoot_model::hashes::hash_of_folder;
use offshoot_model::{ModelConfig, ModelFolder, ModelRole, WeightChoice};
use offshoot_score::{FormChoice, HeadFacts, ResolvedForm, ScoreForm, ScorerConfig, ScorerIdentity, names_that_fit};
use offshoot_text::Tokenizer;

/// What a user says of the scorer beside a generator.
#[derive(Clone, Debug, PartialEq)]
pub struct ScorerOptions {
    /// Its folder.
    pub path: PathBuf,
    /// Its form; `None`: the one in its folder, or that of its class.
    pub form: Option<FormChoice>,
    /// Its share of the memory for keys and values of both models, in (0, 1); `None`: as much as holds texts of the
    /// length that the generator's part holds.
    pub memory: Option<f64>,
}

impl ScorerOptions {
    /// A scorer whose form and memory follow from its folder.
    pub fn new(path: impl Into<PathBuf>) -> ScorerOptions {
        ScorerOptions { path: path.into(), form: None, memory: None }
    }

    /// Reads and checks its folder.
    ///
    /// # Errors
    ///
    /// See [`ScorerFolder::open`]; or its share of the memory is out of its range.
    pub fn open(&self) -> Result<ScorerFolder> {
        let memory = checked_share(SCORER_MEMORY, self.memory)?;
        Ok(ScorerFolder { memory, ..ScorerFolder::open(&self.path, self.form.as_ref())? })
    }
}

/// A scorer whose weights are not loaded.
pub struct ScorerFolder {
    folder: ModelFolder,
    dtype: Dtype,
    tokenizer: Arc<Tokenizer>,
    form: ScoreForm,
    head: HeadFacts,
    identity: ScorerIdentity,
    memory: Option<f64>,
}

impl ScorerFolder {
    /// Reads the folder of a scorer. `form`: the form that is asked for, in place of the folder's own or its class's.
    ///
    /// # Errors
    ///
    /// The folder is no model whose values can be computed; its form is unknown, or asks for a tag, a word, a column or
    /// a chat template that is not there, or words of a model with a head; a tensor is missing or has another shape.
    pub fn open(path: &Path, form: Option<&FormChoice>) -> Result<ScorerFolder> {
        if !path.join("config.json").is_file() {
            // It is refused: as a GGUF file, or as no model.
            ModelFolder::open_scorer(path, None)?;
        }
        let config = ScorerConfig::read(path)?;
        let form = ScoreForm::of_model(form, path, config.class())?;
        let role = ModelRole::of(path)?;
        if role == ModelRole::Scorer && form.reads_words() {
            return Err(words_of_a_head(&form, config.class()));
        }
        let tokenizer = Arc::new(Tokenizer::load(path)?);
        let words = form.words(&tokenizer)?;
        let folder = ModelFolder::open_scorer(path, words.as_deref());
        let folder =
            folder.map_err(|error| if role == ModelRole::Generator { no_head(&form, error) } else { error })?;
        let dtype = facts(&folder)?.dtype;
        let head = config.head(folder.config.outputs());
        let identity = identity(path, &form)?;
        let scorer = ScorerFolder { folder, dtype, tokenizer, form, head, identity, memory: None };
        scorer.resolved()?;
        Ok(scorer)
    }

    /// Its form, which fits its tokenizer and its head.
    ///
    /// # Errors
    ///
    /// None that [`open`](Self::open) has not had.
    pub fn resolved(&self) -> Result<ResolvedForm> {
        ResolvedForm::new(&self.form, self.tokenizer.clone(), &self.head, SystemTime::now())
    }

    /// The model, for engines.
    pub fn source(&self) -> ModelSource<'_> {
        ModelSource::folder_of(&self.folder, self.dtype)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder.path
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.folder.config
    }

    /// Its tokenizer, which need not be the generator's.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The longest text in tokens, question and answer together.
    pub fn context(&self) -> usize {
        self.folder.config.context
    }

    /// What tells it from others in records.
    pub fn identity(&self) -> &ScorerIdentity {
        &self.identity
    }

    /// Its share of the memory for keys and values beside a generator; see [`ScorerOptions::memory`].
    pub fn memory(&self) -> Option<f64> {
        self.memory
    }

    /// The folder with the weights that the user asks for.
    ///
    /// # Errors
    ///
    /// See [`ModelFolder::with`].
    pub(super) fn with(self, weights: WeightChoice) -> Result<ScorerFolder> {
        Ok(ScorerFolder { folder: self.folder.with(weights)?, ..self })
    }
}

/// The error of a form that reads words, of a model whose class has a head in place of them.
fn words_of_a_head(form: &ScoreForm, class: &str) -> Error {
    let expected = format!("one that reads the values of a head, as {class} has one: {}", names_that_fit(false));
    let found = format!("{}, which reads a language model's words", shown(form));
    Error::value("form of a scorer", expected, found)
}

/// What is wrong with a language model that is to have a head, and which forms need none.
fn no_head(form: &ScoreForm, error: Error) -> Error {
    match error {
        Error::Format { path, what } if !form.reads_words() => {
            let forms = names_that_fit(true);
            let what =
                format!("{what}, and {} reads their values; a language model's words are read by {forms}", shown(form));
            Error::Format { path, what }
        }
        other => other,
    }
}

fn shown(form: &ScoreForm) -> String {
    form.built_in_name().map_or_else(|| "a form of its own".to_owned(), |name| format!("\"{name}\""))
}

/// The folder's name, the form's, and a digest of both.
fn identity(path: &Path, form: &ScoreForm) -> Result<ScorerIdentity> {
    let named = form.built_in_name().unwrap_or("custom").to_owned();
    let name = name_of_folder(path)?;
    let form = serde_json::to_string(form).map_err(|error| Error::Internal(format!("a form as JSON: {error}")))?;
    let digest = blake3::hash(format!("{}\n{form}", hash_of_folder(path)?).as_bytes());
    Ok(ScorerIdentity { name, form: named, digest: digest.to_hex().to_string() })
}

/// The folder, its form, and what its head computes.
impl fmt::Display for ScorerFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, form {}, {}", self.path().display(), self.identity.form, self.folder.config.output)
    }
}
