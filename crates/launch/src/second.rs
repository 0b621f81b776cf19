//! The model that stands beside a generator: a scorer, whose values rate texts, an embedder, whose values are vectors
//! of texts, or a judge, which is asked about them. Which folders they have is defined in modules of their names; how
//! both models of a pair start is left to `pair`.
#![warn(missing_docs)]

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{EmbedderFolder, JudgeFolder, LaunchSizes, LaunchedJudge, ModelSource, ScorerFolder, ScorerOptions};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::{JUDGE, JUDGE_MEMORY, SCORER, SCORER_MEMORY, Setting};
use offshoot_engine::EngineHandle;
use offshoot_model::ModelRole;
use offshoot_score::ScorerModel;
use offshoot_text::Tokenizer;

/// The folder of the model beside a generator, read and checked; its weights are not loaded.
#[derive(Clone)]
pub enum SecondFolder {
    /// A model whose values rate texts.
    Scorer(Arc<ScorerFolder>),
    /// A model whose values are vectors of texts.
    Embedder(Arc<EmbedderFolder>),
    /// A model that is asked about texts.
    Judge(Arc<JudgeFolder>),
}

impl ScorerOptions {
    /// Whether the folder is an embedder's, and no form is asked for by which it would be a scorer.
    ///
    /// # Errors
    ///
    /// It is no model.
    pub fn is_embedder(&self) -> Result<bool> {
        Ok(self.form.is_none() && ModelRole::of(&self.path)? == ModelRole::Embedder)
    }

    /// As [`open`](Self::open), for whoever serves values of any kind: the folder may be an embedder's, too.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), or of [`EmbedderFolder::open`].
    pub fn open_values(&self) -> Result<SecondFolder> {
        Ok(match self.is_embedder()? {
            true => SecondFolder::Embedder(Arc::new(EmbedderFolder::open(&self.path, self.memory)?)),
            false => SecondFolder::Scorer(Arc::new(self.open()?)),
        })
    }
}

impl SecondFolder {
    /// The one of both that is there.
    ///
    /// # Errors
    ///
    /// Both are there.
    pub fn one_of(scorer: Option<Arc<ScorerFolder>>, judge: Option<Arc<JudgeFolder>>) -> Result<Option<SecondFolder>> {
        Self::either(scorer.map(SecondFolder::Scorer), judge)
    }

    /// The one of both that is there. `scorer`: a scorer or an embedder.
    ///
    /// # Errors
    ///
    /// Both are there.
    pub fn either(scorer: Option<SecondFolder>, judge: Option<Arc<JudgeFolder>>) -> Result<Option<SecondFolder>> {
        match (scorer, judge) {
            (Some(scorer), Some(judge)) => {
                let expected = format!(
                    "one model beside the model, where {} {} stands; the model itself (its own folder) or a server \
                     can judge",
                    scorer.kind(),
                    scorer.path().display()
                );
                Err(Error::value(JUDGE, expected, judge.path().display().to_string()))
            }
            (Some(scorer), None) => Ok(Some(scorer)),
            (None, judge) => Ok(judge.map(SecondFolder::Judge)),
        }
    }

    /// Which of the two it is.
    pub fn kind(&self) -> SecondKind {
        match self {
            SecondFolder::Scorer(_) => SecondKind::Scorer,
            SecondFolder::Embedder(_) => SecondKind::Embedder,
            SecondFolder::Judge(_) => SecondKind::Judge,
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        match self {
            SecondFolder::Scorer(scorer) => scorer.path(),
            SecondFolder::Embedder(embedder) => embedder.path(),
            SecondFolder::Judge(judge) => judge.path(),
        }
    }

    /// The model, for engines.
    pub fn source(&self) -> ModelSource<'_> {
        match self {
            SecondFolder::Scorer(scorer) => scorer.source(),
            SecondFolder::Embedder(embedder) => embedder.source(),
            SecondFolder::Judge(judge) => judge.source(),
        }
    }

    /// Its share of the memory for keys and values of both models, if the user gives one.
    pub fn memory(&self) -> Option<f64> {
        match self {
            SecondFolder::Scorer(scorer) => scorer.memory(),
            SecondFolder::Embedder(embedder) => embedder.memory(),
            SecondFolder::Judge(judge) => judge.memory(),
        }
    }

    /// The tokenizer that its engine needs: forms and texts of a judge's answers are made of its tokens; others are
    /// given tokens, and make none.
    pub(super) fn engine_tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        match self {
            SecondFolder::Scorer(_) | SecondFolder::Embedder(_) => None,
            SecondFolder::Judge(judge) => Some(judge.tokenizer()),
        }
    }
}

/// What the model beside a generator is. Displays as errors name it: "the scorer", "the judge".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondKind {
    /// A model whose values rate texts.
    Scorer,
    /// A model whose values are vectors of texts.
    Embedder,
    /// A model that is asked about texts.
    Judge,
}

impl SecondKind {
    /// Its name, without an article.
    pub fn name(self) -> &'static str {
        match self {
            SecondKind::Scorer => "scorer",
            SecondKind::Embedder => "embedder",
            SecondKind::Judge => "judge",
        }
    }

    /// The setting that names its folder.
    pub fn setting(self) -> Setting {
        match self {
            SecondKind::Scorer | SecondKind::Embedder => SCORER,
            SecondKind::Judge => JUDGE,
        }
    }

    /// The setting that says which share of the memory for keys and values it has.
    pub fn share(self) -> Setting {
        match self {
            SecondKind::Scorer | SecondKind::Embedder => SCORER_MEMORY,
            SecondKind::Judge => JUDGE_MEMORY,
        }
    }
}

impl fmt::Display for SecondKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {}", self.name())
    }
}

/// The model beside a generator, in memory.
pub enum LaunchedSecond {
    /// A model whose values rate texts.
    Scorer(Arc<ScorerModel>),
    /// A model whose values are vectors of texts.
    Embedder(EngineHandle),
    /// A model that is asked about texts.
    Judge(LaunchedJudge),
}

/// The sizes of the model beside a generator.
pub struct SecondSizes {
    /// What it is.
    pub kind: SecondKind,
    /// Its engine's sizes.
    pub sizes: Box<LaunchSizes>,
}

/// Whether both paths lead to one file or folder.
pub fn same_folder(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The last part of a path, however it is written.
pub(super) fn name_of_folder(path: &Path) -> Result<String> {
    let whole = path.canonicalize().map_err(Error::io(path, "read"))?;
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(name.unwrap_or_else(|| whole.display().to_string()))
}

/// The share of a model beside a generator, if it is in its range.
pub(super) fn checked_share(setting: Setting, share: Option<f64>) -> Result<Option<f64>> {
    match share.filter(|&share| !(share > 0.0 && share < 1.0)) {
        Some(share) => Err(Error::value(setting, "a number above 0 and below 1", share.to_string())),
        None => Ok(share),
    }
}
