//! The task file's key `judge`: the model that is asked about samples where the method or `grade` has a verdict object.
//! By default that is the run's own model. The verdict objects say what is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::source::values::TaskPath;
use crate::source::{Place, read_text};
use crate::task::Task;
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::{JUDGE_KEY_FILE, JUDGE_MODEL, JUDGE_URL};
use offshoot_launch::JudgeFolderOptions;
use offshoot_search::OnScorerError;
use offshoot_verdict::{JudgeKey, ServerOptions};

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "a path, or an object with `model` or `url`"))]
pub(crate) enum JudgeModelSettings {
    Model(TaskPath),
    Keys(Box<JudgeModelKeys>),
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct JudgeModelKeys {
    /// The folder of a model that is loaded beside the run's own (or --judge).
    model: Option<TaskPath>,
    /// With `model`: the share of the memory for keys and values that the judge has (or --judge-memory; default: as
    /// much as holds texts of the length that the model's part holds).
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1, "x-expected" = "a number above 0, below 1"))]
    memory: Option<f64>,
    /// A server of the OpenAI protocol, up to /v1 (or --judge-url). Its key stands in a file (--judge-key-file) or in
    /// OFFSHOOT_JUDGE_KEY.
    #[schemars(extend("x-expected" = "an address, such as \"https://host/v1\""))]
    url: Option<String>,
    /// With `url`: the server's name of the model (or --judge-model; default: that of its only one).
    name: Option<String>,
    /// With `url`: questions at once (default: 16).
    #[schemars(range(min = 1, max = 1024))]
    requests: Option<u32>,
    /// With `url`: seconds that an answer may take (default: 60).
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 86_400, "x-expected" = "seconds above 0, at most a day"))]
    timeout: Option<f64>,
    /// With `url`: how often a request that failed is sent again (default: 3).
    #[schemars(range(max = 100))]
    retries: Option<u32>,
    /// With `url`: keys that each request has beside or in place of its own; null takes one away.
    #[schemars(extend("x-expected" = "an object of keys of a request"))]
    request: Option<Map<String, Value>>,
    /// What becomes of a sample that the judge cannot judge.
    #[serde(default)]
    on_error: OnScorerError,
}

/// Questions that a server is asked at once, where nothing else is said.
const REQUESTS: u32 = 16;
/// Seconds that an answer of a server may take, where nothing else is said.
const TIMEOUT: f64 = 60.0;
/// How often a failed request is sent again, where nothing else is said.
const RETRIES: u32 = 3;

/// The environment's variable with the key for a judge's server.
const KEY_VARIABLE: &str = "OFFSHOOT_JUDGE_KEY";

/// The judge of a task. By default it is the run's own model.
#[derive(Clone, Debug, Default)]
pub struct TaskJudge {
    /// Who answers.
    pub by: JudgeChoice,
    /// What becomes of a sample that it cannot judge.
    pub on_error: OnScorerError,
}

/// Who answers the questions of verdicts.
#[derive(Clone, Debug, Default)]
pub enum JudgeChoice {
    /// The run's own model.
    #[default]
    Own,
    /// The model in a folder, which is loaded beside the run's own.
    Folder(JudgeFolderOptions),
    /// A server of the OpenAI protocol.
    Server(Box<ServerOptions>),
}

/// What a user says of the judge, in place of what the task says.
#[derive(Clone, Debug, Default)]
pub struct AskedJudge {
    /// Who answers; `None`: the task's.
    pub by: Option<AskedBy>,
    /// The server's name of the model.
    pub name: Option<String>,
    /// What the server is shown.
    pub key: AskedKey,
}

/// Where the key is that a server is shown. It is read only where a server is asked.
#[derive(Clone, Debug, Default)]
pub enum AskedKey {
    /// It is shown none.
    #[default]
    None,
    /// This one.
    Given(JudgeKey),
    /// In a file.
    File(PathBuf),
    /// In the environment's OFFSHOOT_JUDGE_KEY, if there is one.
    Environment,
}

impl AskedKey {
    /// # Errors
    ///
    /// The file cannot be read; what is there is no key.
    fn read(&self) -> Result<Option<JudgeKey>> {
        match self {
            AskedKey::None => Ok(None),
            AskedKey::Given(key) => Ok(Some(key.clone())),
            AskedKey::File(file) => JudgeKey::new(&read_text(file)?).map(Some),
            AskedKey::Environment => match std::env::var(KEY_VARIABLE) {
                Ok(key) if !key.is_empty() => JudgeKey::new(&key).map(Some),
                _ => Ok(None),
            },
        }
    }
}

impl AskedJudge {
    /// Whether the user says anything of a judge. The environment's key may be there for other commands.
    pub fn is_given(&self) -> bool {
        let has_key = matches!(self.key, AskedKey::Given(_) | AskedKey::File(_));
        self.by.is_some() || self.name.is_some() || has_key
    }
}

/// Who is to answer, as a user says it.
#[derive(Clone, Debug, PartialEq)]
pub enum AskedBy {
    /// A model in a folder.
    Folder(JudgeFolderOptions),
    /// The address of a server.
    Url(String),
}

impl TaskJudge {
    /// `place`: of the key `judge`.
    pub(crate) fn new(place: &Place<'_>, settings: JudgeModelSettings) -> Result<TaskJudge> {
        let keys = match settings {
            JudgeModelSettings::Model(model) => {
                let by = JudgeChoice::Folder(JudgeFolderOptions::new(place.source.resolve(&model.0)));
                return Ok(TaskJudge { by, on_error: OnScorerError::default() });
            }
            JudgeModelSettings::Keys(keys) => *keys,
        };
        let JudgeModelKeys { model, memory, url, name, requests, timeout, retries, request, on_error } = keys;
        let of_server = [
            ("name", name.is_some()),
            ("requests", requests.is_some()),
            ("timeout", timeout.is_some()),
            ("retries", retries.is_some()),
            ("request", request.is_some()),
        ];
        let of_server = of_server.iter().find(|(_, is_given)| *is_given).map(|(key, _)| *key);
        let by = match (model, url) {
            (Some(_), Some(_)) => return Err(place.wrong_as("`model` or `url`", "both")),
            (_, None) if of_server.is_some() => {
                let key = of_server.expect("it was looked at");
                return Err(place.key(key).wrong("nothing where no `url` names a server"));
            }
            (None, _) if memory.is_some() => {
                return Err(place.key("memory").wrong("nothing where no `model` names a folder"));
            }
            (None, None) => JudgeChoice::Own,
            (Some(model), None) => {
                JudgeChoice::Folder(JudgeFolderOptions { path: place.source.resolve(&model.0), memory })
            }
            (None, Some(url)) => {
                let server = ServerOptions {
                    model: name,
                    requests: requests.unwrap_or(REQUESTS) as usize,
                    timeout: Duration::from_secs_f64(timeout.unwrap_or(TIMEOUT)),
                    retries: retries.unwrap_or(RETRIES),
                    request: request.unwrap_or_default(),
                    ..of_url(url)
                };
                server.check().map_err(|error| match error {
                    Error::Value { expected, found, .. } => place.key("url").wrong_as(expected, found),
                    other => other,
                })?;
                JudgeChoice::Server(Box::new(server))
            }
        };
        Ok(TaskJudge { by, on_error })
    }

    /// Who answers, where a user says `asked`. A server's address and name of the model replace the task's; the other
    /// settings of the task's server stay.
    ///
    /// # Errors
    ///
    /// The address is none, there is no server of which the asked name or key could be, or the key cannot be read.
    pub fn asked(&self, asked: &AskedJudge) -> Result<JudgeChoice> {
        let by = match &asked.by {
            None => self.by.clone(),
            Some(AskedBy::Folder(folder)) => JudgeChoice::Folder(folder.clone()),
            Some(AskedBy::Url(url)) => {
                let server = match &self.by {
                    JudgeChoice::Server(server) => ServerOptions { url: url.clone(), ..(**server).clone() },
                    JudgeChoice::Own | JudgeChoice::Folder(_) => of_url(url.clone()),
                };
                server.check().map_err(|error| match error {
                    Error::Value { expected, found, .. } => Error::value(JUDGE_URL, expected, found),
                    other => other,
                })?;
                JudgeChoice::Server(Box::new(server))
            }
        };
        match by {
            JudgeChoice::Server(server) => {
                let (model, key) = (asked.name.clone().or(server.model.clone()), asked.key.read()?);
                Ok(JudgeChoice::Server(Box::new(ServerOptions { model, key, ..*server })))
            }
            _ if asked.name.is_some() => {
                let found = asked.name.clone().unwrap_or_default();
                Err(Error::value(JUDGE_MODEL, format!("a server by {JUDGE_URL} or the task's `judge.url`"), found))
            }
            by => match &asked.key {
                AskedKey::File(file) => {
                    let expected = format!("none, as no server judges ({JUDGE_URL} or the task's `judge.url`)");
                    Err(Error::value(JUDGE_KEY_FILE, expected, file.display().to_string()))
                }
                AskedKey::None | AskedKey::Given(_) | AskedKey::Environment => Ok(by),
            },
        }
    }
}

impl Task {
    /// The judge's folder, where a run of the task with the model in `model` loads one beside it. `asked`: the one that
    /// the user names, in place of the task's.
    pub fn judge_folder_options(&self, asked: Option<&JudgeFolderOptions>, model: &Path) -> Option<JudgeFolderOptions> {
        self.verdicts().into_iter().flatten().next()?;
        let folder = match (asked, &self.judge.by) {
            (Some(asked), _) => asked,
            (None, JudgeChoice::Folder(folder)) => folder,
            (None, JudgeChoice::Own | JudgeChoice::Server(_)) => return None,
        };
        (!folder.is_the_model(model)).then(|| folder.clone())
    }
}

/// The server at an address, with what is usual.
fn of_url(url: String) -> ServerOptions {
    ServerOptions {
        url,
        model: None,
        key: None,
        requests: REQUESTS as usize,
        timeout: Duration::from_secs_f64(TIMEOUT),
        retries: RETRIES,
        request: Map::new(),
    }
}
