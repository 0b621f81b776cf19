//! The judge of a run: the model that answers the questions of the task's verdict objects. The one that the command
//! line names is taken, or else the task's, or else the run's own model. `drive` hands its scores to searches, `assess`
//! its grades.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::prepare::PreparedRun;
use crate::task::{AskedJudge, Item, JudgeChoice, Task, TaskPrompt, TaskVerdict};
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_core::setting::JUDGE_URL;
use offshoot_launch::Launched;
use offshoot_verdict::{Ask, EngineJudge, ItemVerdicts, JudgeIdentity, JudgePrompt, ServerJudge, ServerOptions};

/// Who answers the questions of a run's verdicts. No weights are loaded, and no server is asked.
#[derive(Debug)]
pub enum JudgeModel {
    /// The run's own model, in its own engine.
    Own,
    /// A server.
    Server(Box<ServerOptions>),
}

impl JudgeModel {
    /// The judge of a task, whose model is in the folder `model`; `None`: nothing is asked. `asked`: what the command
    /// line says of it.
    pub fn open(task: &Task, asked: &AskedJudge, model: &Path) -> Result<Option<JudgeModel>> {
        let mut verdicts = task.verdicts().into_iter().flatten().peekable();
        if verdicts.peek().is_none() {
            if asked.by.is_some() {
                let method = task.method.name();
                out::aside(format_args!(
                    "note: neither `{method}` nor `grade` of the task has a question for a judge (an object with \
                     `prompt`): the judge is not asked"
                ));
            }
            return Ok(None);
        }
        match task.judge.asked(asked)? {
            JudgeChoice::Own => Ok(Some(JudgeModel::Own)),
            JudgeChoice::Folder { path, .. } if is_same(&path, model) => Ok(Some(JudgeModel::Own)),
            JudgeChoice::Folder { path, .. } => {
                let expected = format!("the model's own folder, {}, or a server ({JUDGE_URL})", model.display());
                Err(Error::field(&task.path, "judge", expected, path.display().to_string()))
            }
            JudgeChoice::Server(server) => {
                verdicts.try_for_each(TaskVerdict::check_values)?;
                Ok(Some(JudgeModel::Server(server)))
            }
        }
    }

    /// Whether the run's own engine answers.
    pub fn is_own(&self) -> bool {
        matches!(self, JudgeModel::Own)
    }

    /// Connects to the server, where the judge is one.
    pub fn connect(&self) -> Result<Option<Arc<dyn Ask>>> {
        match self {
            JudgeModel::Own => Ok(None),
            JudgeModel::Server(options) => Ok(Some(Arc::new(ServerJudge::new((**options).clone())?))),
        }
    }

    /// The judge at work; `connected`: what [`connect`](Self::connect) returned.
    pub fn start(&self, connected: Option<Arc<dyn Ask>>, run: &PreparedRun, on: &Launched) -> Result<Arc<dyn Ask>> {
        match connected {
            Some(judge) => Ok(judge),
            None => {
                let name = run.model.file_name().unwrap_or(run.model.as_os_str()).to_string_lossy().into_owned();
                let identity = JudgeIdentity { name, digest: None };
                let special = run.task.special_text_of_questions();
                Ok(Arc::new(EngineJudge::new(on.engine.clone(), run.tokenizer.clone(), special, identity)?))
            }
        }
    }

    /// Who answers, in words.
    pub fn described(&self) -> String {
        match self {
            JudgeModel::Own => "the model itself".to_owned(),
            JudgeModel::Server(server) => match &server.model {
                Some(name) => format!("{name} at {}", server.url),
                None => format!("the only model at {}", server.url),
            },
        }
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// What tells a run's judge from others, in its manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgeRecord {
    /// The folder of its model; `None`: a server has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    #[serde(flatten)]
    pub identity: JudgeIdentity,
}

impl JudgeRecord {
    pub fn of_server(judge: &dyn Ask) -> JudgeRecord {
        JudgeRecord { folder: None, identity: judge.identity().clone() }
    }

    pub fn shown(&self) -> String {
        let JudgeIdentity { name, digest } = &self.identity;
        let place = self.folder.as_ref().map_or_else(String::new, |folder| format!(" in {}", folder.display()));
        let digest = digest.as_ref().map_or_else(String::new, |digest| format!(" ({digest})"));
        format!("{name}{place}{digest}")
    }
}

/// What `judge` is asked about the samples of an item by `verdict`.
///
/// # Errors
///
/// Words have values that a judge cannot give, or the item has no rubric.
pub fn verdicts_on(task: &Task, item: &Item, verdict: &TaskVerdict, judge: &Arc<dyn Ask>) -> Result<ItemVerdicts> {
    let rule = verdict.of_item(task.items_path(), item)?;
    let (prompt, of) = (verdict.clone(), item.clone());
    let write = move |more: &Map<String, Value>| {
        Ok(match prompt.prompt(&of, more)? {
            TaskPrompt::Levels(levels) => JudgePrompt::Text(levels.concat()),
            TaskPrompt::Chat { messages, options } => JudgePrompt::Chat { messages, options },
        })
    };
    Ok(ItemVerdicts::new(Arc::clone(judge), rule, Arc::new(write), key(task.sampling.seed, &item.id)))
}

/// What the draws of an item's comparisons follow from: the same whenever the item is judged.
fn key(seed: u64, id: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes()).update(id.as_bytes());
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
