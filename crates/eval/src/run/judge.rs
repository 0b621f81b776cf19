//! The judge of a run: the model that answers the questions of the task's verdict objects. The one that the command
//! line names is taken, or else the task's, or else the run's own model. `drive` hands its scores to searches, `assess`
//! its grades.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::manifest::absolute;
use super::prepare::PreparedRun;
use crate::task::{AskedJudge, Item, JudgeChoice, Task, TaskPrompt, TaskVerdict};
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_form::{Form, FormCompiler};
use offshoot_launch::{JudgeFolder, Launched, LaunchedJudge};
use offshoot_model::ModelFolder;
use offshoot_text::{Message, Tokenizer};
use offshoot_verdict::{
    Ask, EngineJudge, ItemVerdicts, JudgeIdentity, JudgePrompt, ServerJudge, ServerOptions, WantedAnswer,
};

/// The judge of a run, before its weights are loaded or its server is asked.
pub enum JudgeModel {
    /// The run's own model, in its own engine.
    Own,
    /// A model that is loaded beside it.
    Folder(Arc<JudgeFolder>),
    /// A server.
    Server(Box<ServerOptions>),
}

impl JudgeModel {
    /// The judge of a task, whose model is in the folder `model`; `None`: nothing is asked. `asked`: what the command
    /// line says of it.
    pub fn open(task: &Task, asked: &AskedJudge, model: &Path) -> Result<Option<JudgeModel>> {
        let verdicts: Vec<&TaskVerdict> = task.verdicts().into_iter().flatten().collect();
        if verdicts.is_empty() {
            if asked.is_given() || task.source.get("judge").is_some_and(|judge| !judge.is_null()) {
                let method = task.method.name();
                out::aside(format_args!(
                    "note: neither `{method}` nor `grade` of the task has a question for a judge (an object with \
                     `prompt`): the judge is not asked"
                ));
            }
            return Ok(None);
        }
        let judge = match task.judge.asked(asked)? {
            JudgeChoice::Own => JudgeModel::Own,
            JudgeChoice::Folder(folder) if folder.is_the_model(model) => JudgeModel::Own,
            JudgeChoice::Folder(folder) => JudgeModel::Folder(Arc::new(folder.open()?)),
            JudgeChoice::Server(server) => JudgeModel::Server(server),
        };
        if !judge.is_own() {
            verdicts.into_iter().try_for_each(TaskVerdict::check_values)?;
        }
        Ok(Some(judge))
    }

    /// Whether the run's own engine answers.
    pub fn is_own(&self) -> bool {
        matches!(self, JudgeModel::Own)
    }

    /// The model that is loaded beside the run's own; `None`: none is.
    pub fn folder(&self) -> Option<&Arc<JudgeFolder>> {
        match self {
            JudgeModel::Folder(folder) => Some(folder),
            JudgeModel::Own | JudgeModel::Server(_) => None,
        }
    }

    /// Refuses a schema that the judge's tokens cannot keep, before weights are loaded: no answer would come. What JSON
    /// a server can write is its own affair; words that its tokens cannot tell apart are refused. `tokenizer` and
    /// `folder`: of the run's own model.
    pub fn check(&self, task: &Task, item: &Item, tokenizer: &Arc<Tokenizer>, folder: &ModelFolder) -> Result<()> {
        let (tokenizer, config) = match self {
            JudgeModel::Own => (tokenizer, &folder.config),
            JudgeModel::Folder(folder) => (folder.tokenizer(), folder.config()),
            JudgeModel::Server(server) => return check_words(server, task, item),
        };
        for verdict in task.verdicts().into_iter().flatten().filter(|verdict| verdict.own_question().is_none()) {
            // A group has two texts at least.
            let asked = verdict.of_item(task.items_path(), item)?;
            let WantedAnswer::Json { schema, .. } = asked.wanted(2)? else { continue };
            let compiler = FormCompiler::new(tokenizer.clone(), config.eos.clone(), config.vocab);
            compiler.compile(&Arc::new(Form::Json(Value::clone(&schema)))).map_err(|error| match error {
                Error::Value { expected, found, .. } => {
                    let expected = format!("answers that the judge's tokens can write: {expected}");
                    Error::field(&task.path, verdict.key(), expected, found)
                }
                other => other,
            })?;
        }
        Ok(())
    }

    /// What writes its chats; `None`: a server does.
    fn tokenizer<'a>(&'a self, run: &'a PreparedRun) -> Option<&'a Tokenizer> {
        match self {
            JudgeModel::Own => Some(&run.tokenizer),
            JudgeModel::Folder(folder) => Some(folder.tokenizer()),
            JudgeModel::Server(_) => None,
        }
    }

    /// Connects to the server, where the judge is one.
    pub fn connect(&self) -> Result<ConnectedJudge> {
        Ok(match self {
            JudgeModel::Own => ConnectedJudge::Own,
            JudgeModel::Folder(folder) => ConnectedJudge::Folder(Arc::clone(folder)),
            JudgeModel::Server(options) => ConnectedJudge::Server(Arc::new(ServerJudge::open((**options).clone())?)),
        })
    }

    /// Who answers, in words.
    pub fn described(&self) -> String {
        match self {
            JudgeModel::Own => "the model itself".to_owned(),
            JudgeModel::Folder(folder) => folder.path().display().to_string(),
            JudgeModel::Server(server) => match &server.model {
                Some(name) => format!("{name} at {}", server.url),
                None => format!("the only model at {}", server.url),
            },
        }
    }
}

/// Refuses words of the task's verdicts of which a server says no probabilities.
fn check_words(server: &ServerOptions, task: &Task, item: &Item) -> Result<()> {
    for verdict in task.verdicts().into_iter().flatten() {
        let wanted = verdict.of_item(task.items_path(), item)?.wanted(2)?;
        server.check_answer(&wanted).map_err(|error| match error {
            Error::Value { expected, found, .. } => Error::field(&task.path, verdict.key(), expected, found),
            other => other,
        })?;
    }
    Ok(())
}

/// A run's judge that is connected, where it is a server; a model of ours is not loaded yet.
pub enum ConnectedJudge {
    /// The run's own model, in its own engine.
    Own,
    /// A model that is loaded beside it.
    Folder(Arc<JudgeFolder>),
    /// A server, which has said that it has the model.
    Server(Arc<dyn Ask>),
}

impl ConnectedJudge {
    /// What the run's manifest says of it; `None`: it is the run's own model.
    pub fn record(&self) -> Result<Option<JudgeRecord>> {
        match self {
            ConnectedJudge::Own => Ok(None),
            ConnectedJudge::Folder(folder) => {
                let identity =
                    JudgeIdentity { name: folder.name().to_owned(), digest: Some(folder.digest().to_owned()) };
                Ok(Some(JudgeRecord { folder: Some(absolute(folder.path())?), identity }))
            }
            ConnectedJudge::Server(judge) => Ok(Some(JudgeRecord::of_server(&**judge))),
        }
    }

    /// The judge at work, on the engine that it needs.
    pub fn start(self, run: &PreparedRun, on: &Launched) -> Result<Arc<dyn Ask>> {
        let special = run.task.special_text_of_questions();
        match self {
            ConnectedJudge::Server(judge) => Ok(judge),
            ConnectedJudge::Folder(_) => {
                let LaunchedJudge { engine, tokenizer, name, digest } =
                    on.judge().expect("a run's engine starts with the judge's folder that was prepared");
                let identity = JudgeIdentity { name: name.clone(), digest: Some(digest.clone()) };
                Ok(Arc::new(EngineJudge::new(engine.clone(), tokenizer.clone(), special, identity)?))
            }
            ConnectedJudge::Own => {
                let name = run.model.file_name().unwrap_or(run.model.as_os_str()).to_string_lossy().into_owned();
                let identity = JudgeIdentity { name, digest: None };
                let (engine, adapter) = (on.engine.clone(), run.adapter_in(&on.engine)?);
                Ok(Arc::new(EngineJudge::with_adapter(engine, run.tokenizer.clone(), special, identity, adapter)?))
            }
        }
    }
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

    /// Whether both answer alike: a copy of a model's folder does under another name.
    pub fn is_same(&self, other: &JudgeRecord) -> bool {
        match (&self.identity.digest, &other.identity.digest) {
            (Some(one), Some(other)) => one == other,
            (None, None) => self.identity.name == other.identity.name,
            _ => false,
        }
    }

    pub fn shown(&self) -> String {
        let JudgeIdentity { name, digest } = &self.identity;
        let place = self.folder.as_ref().map_or_else(String::new, |folder| format!(" in {}", folder.display()));
        let digest = digest.as_ref().map_or_else(String::new, |digest| format!(" ({digest})"));
        format!("{name}{place}{digest}")
    }
}

/// What a run asks its judge, before it begins.
pub struct PlannedQuestions {
    /// The most questions; `None`: as many as there will be thoughts.
    pub most: Option<usize>,
    /// The dotted path of the key that asks the first one, and how that reads.
    pub first: (String, String),
}

impl PlannedQuestions {
    /// The questions of a run about these items; `None`: it asks none.
    pub fn of(run: &PreparedRun, items: &[&Item]) -> Result<Option<PlannedQuestions>> {
        let (task, method) = (&run.task, &run.task.method);
        let [of_method, of_grade] = task.verdicts();
        let graded = Some(method.samples() as usize);
        let asked = [(of_method, method.most_scored()), (of_grade, graded)];
        let asked: Vec<_> = asked.into_iter().filter_map(|(verdict, texts)| Some((verdict?, texts))).collect();
        let (Some((verdict, _)), Some(item)) = (asked.first(), items.first()) else { return Ok(None) };
        let mut most = Some(0_usize);
        for (verdict, texts) in &asked {
            let each = |item: &Item, texts| match verdict.own_question() {
                // Values that a judge cannot give are the model's own.
                Some(_) => Ok(texts),
                None => verdict.of_item(task.items_path(), item).map(|verdict| verdict.questions(texts)),
            };
            let more = match (*texts, verdict.is_of_items()) {
                (None, _) => None,
                (Some(texts), true) => {
                    let each = items.iter().map(|item| each(item, texts)).collect::<Result<Vec<usize>>>()?;
                    each.into_iter().try_fold(0_usize, |all, one| all.checked_add(one))
                }
                (Some(texts), false) => each(item, texts)?.checked_mul(items.len()),
            };
            most = most.zip(more).and_then(|(most, more)| most.checked_add(more));
        }
        let tokenizer = run.judge.as_ref().and_then(|judge| judge.tokenizer(run));
        let text = match (verdict.first_prompt(task.items_path(), item)?, tokenizer) {
            (prompt, Some(tokenizer)) => prompt.text(tokenizer)?,
            (TaskPrompt::Levels(levels), None) => levels.concat(),
            // A server has its own template.
            (TaskPrompt::Chat { messages, .. }, None) => {
                let turn = |turn: &Message| {
                    format!("[{}]\n{}", turn.role().unwrap_or_default(), turn.last_text().unwrap_or_default())
                };
                messages.iter().map(turn).collect::<Vec<_>>().join("\n")
            }
        };
        Ok(Some(PlannedQuestions { most, first: (verdict.key().to_owned(), text) }))
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
