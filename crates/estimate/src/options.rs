//! The options of `offshoot plan`, as the command line hands them over. Nothing is checked here.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use offshoot_backend::Dtype;
use offshoot_launch::{EngineBudget, JudgeFolderOptions, ScorerOptions};

/// The options of `offshoot plan`.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// A task file (.json), or lines of prompts or of OpenAI Batch requests.
    pub input: PathBuf,
    /// A model folder or a config.json; `None`: the task's.
    pub model: Option<PathBuf>,
    /// Dtype of weights, keys and values; `None`: the config's.
    pub dtype: Option<Dtype>,
    pub limit: Option<usize>,
    pub samples: Option<u32>,
    /// `key=value` changes to the task file.
    pub set: Vec<String>,
    /// Upper limit of the expected tokens per sample.
    pub output_tokens: Option<u32>,
    /// A built-in profile's name or a file; `None`: the default, and the output says so.
    pub device_profile: Option<String>,
    pub budget: EngineBudget,
    /// A scorer beside the model, with which it divides the device's memory.
    pub scorer: Option<ScorerOptions>,
    /// A judge beside the model, in the scorer's place.
    pub judge: Option<JudgeFolderOptions>,
    pub predict: Predict,
    /// Also cuts the job into so many parts for several processes.
    pub parts: Option<usize>,
    /// Also divides it among so many replicas.
    pub replicas: Option<usize>,
    /// So many devices compute the model together.
    pub ranks: Option<usize>,
    /// Also reports how attention treats each node.
    pub explain: bool,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

/// Whether the job is run on the simulated device, to predict its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Predict {
    /// If the prediction takes only seconds.
    #[default]
    Auto,
    Always,
    Never,
}
