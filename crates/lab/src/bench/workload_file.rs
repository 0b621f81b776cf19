//! Reads shapes of models and jobs to run on them: benches/workloads.json, which is built in, or a file of the same
//! form.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_model::ModelConfig;

const BUILT_IN: &str = include_str!("../../../../benches/workloads.json");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadFile {
    #[serde(rename = "note")]
    _note: Option<String>,
    /// Fields of config.json; missing ones have llama's values.
    shapes: BTreeMap<String, Map<String, Value>>,
    workloads: Map<String, Value>,
}

/// Limit of every count: keeps sums exact and descriptions of jobs small.
const MOST: usize = 1 << 20;

/// A job, or one for each shape.
#[derive(Deserialize)]
#[serde(untagged)]
enum WorkloadEntry {
    Same(WorkloadSizes),
    ByShape(BTreeMap<String, WorkloadSizes>),
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadSizes {
    levels: Vec<(usize, usize)>,
    samples: usize,
    generate: usize,
}

/// Prompts by levels `(tokens, branching)` from the root, `samples` continuations of each, of `generate` tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: String,
    pub levels: Vec<(usize, usize)>,
    pub samples: usize,
    pub generate: usize,
}

impl Workload {
    pub fn prompts(&self) -> usize {
        self.levels.iter().map(|&(_, branching)| branching).product()
    }

    pub fn continuations(&self) -> usize {
        self.prompts() * self.samples
    }

    /// Tokens of one finished branch.
    pub fn context(&self) -> usize {
        self.levels.iter().map(|&(tokens, _)| tokens).sum::<usize>() + self.generate
    }

    /// Tokens of KV memory at the end: whole pages of every node, and one more page per continuation to grow into,
    /// without which the last continuations would wait.
    pub fn kv_tokens(&self, page_tokens: usize) -> usize {
        let whole = |tokens: usize| (tokens.div_ceil(page_tokens) + 1) * page_tokens;
        let mut nodes = 1;
        let mut held = 0;
        for &(tokens, branching) in &self.levels {
            nodes *= branching;
            held += nodes * whole(tokens);
        }
        held + self.continuations() * (whole(self.generate) + page_tokens)
    }
}

/// The model of shape `shape`.
pub fn read_shape(file: Option<&Path>, shape: &str) -> Result<ModelConfig> {
    let (_, file) = read(file)?;
    config(shape_of(&file, shape)?)
}

/// The model of shape `shape`, and its jobs with these names (all if no name is given), in the file's order.
pub fn read_jobs(file: Option<&Path>, shape: &str, names: &[String]) -> Result<(ModelConfig, Vec<Workload>)> {
    let (path, file) = read(file)?;
    let fields = shape_of(&file, shape)?;
    if let Some(name) = names.iter().find(|name| !file.workloads.contains_key(*name)) {
        let known: Vec<&str> = file.workloads.keys().map(String::as_str).collect();
        return Err(Error::value("--workload", format!("one of {}", known.join(", ")), name));
    }
    let wanted = file.workloads.iter().filter(|(name, _)| names.is_empty() || names.contains(name));
    let jobs = wanted.map(|(name, entry)| job(path, shape, name, entry)).collect::<Result<Vec<_>>>()?;
    let jobs: Vec<Workload> = jobs.into_iter().flatten().collect();
    if jobs.is_empty() {
        return Err(Error::field(path, "workloads", format!("one for the shape {shape}"), "none"));
    }
    Ok((config(fields)?, jobs))
}

/// The file, and its name for messages.
fn read(path: Option<&Path>) -> Result<(&Path, WorkloadFile)> {
    let text = match path {
        Some(path) => input::text(path)?,
        None => BUILT_IN.to_owned(),
    };
    let path = path.unwrap_or(Path::new("the built-in workloads"));
    let file = serde_json::from_str(&text).map_err(|fault| Error::format(path, fault.to_string()))?;
    Ok((path, file))
}

fn shape_of<'a>(file: &'a WorkloadFile, shape: &str) -> Result<&'a Map<String, Value>> {
    file.shapes.get(shape).ok_or_else(|| {
        let known: Vec<&str> = file.shapes.keys().map(String::as_str).collect();
        Error::value("--shape", format!("one of {}", known.join(", ")), shape)
    })
}

/// The job of a workload; `None` if the workload does not have this shape.
fn job(path: &Path, shape: &str, name: &str, entry: &Value) -> Result<Option<Workload>> {
    let field = || format!("workloads.{name}");
    let expected = "levels, samples and generate, perhaps by shape";
    let entry =
        WorkloadEntry::deserialize(entry).map_err(|_| Error::field(path, field(), expected, entry.to_string()))?;
    let work = match entry {
        WorkloadEntry::Same(work) => Some(work),
        WorkloadEntry::ByShape(mut works) => works.remove(shape),
    };
    let Some(WorkloadSizes { levels, samples, generate }) = work else { return Ok(None) };
    let counts = levels.iter().flat_map(|&(tokens, branching)| [tokens, branching]).chain([samples, generate]);
    if let Some(count) = counts.into_iter().find(|count| !(1..=MOST).contains(count)) {
        return Err(Error::field(path, field(), format!("counts from 1 to {MOST}"), count.to_string()));
    }
    let branchings = levels.iter().map(|&(_, branching)| branching);
    let continuations = branchings.fold(samples, usize::saturating_mul);
    if levels.is_empty() || continuations > MOST {
        let found = format!("{} levels, {continuations} continuations", levels.len());
        return Err(Error::field(path, field(), format!("a level, and at most {MOST} continuations"), found));
    }
    Ok(Some(Workload { name: name.to_owned(), levels, samples, generate }))
}

/// A llama model with these fields.
fn config(fields: &Map<String, Value>) -> Result<ModelConfig> {
    let mut config = serde_json::json!({
        "model_type": "llama", "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "tie_word_embeddings": false,
    });
    config.as_object_mut().expect("it is an object").extend(fields.clone());
    ModelConfig::from_json(&config.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_jobs_are_what_their_levels_say() {
        let (config, jobs) = read_jobs(None, "llama3-8b", &[]).unwrap();
        let heads = config.heads().next().unwrap();
        assert_eq!((heads.q_heads, heads.kv_heads, heads.head_dim), (32, 8, 128));
        let apps = jobs.iter().find(|job| job.name == "apps_2level").unwrap();
        assert_eq!((apps.prompts(), apps.continuations(), apps.context()), (20, 2560, 2400 + 500 + 256));
        let (_, other) = read_jobs(None, "codellama-7b", &["apps_2level".to_owned()]).unwrap();
        assert_eq!(other[0].continuations(), 512);
        let batch = jobs.iter().find(|job| job.name == "batchllm_2000_200_sd16").unwrap();
        assert_eq!(batch.kv_tokens(1), 16 * 2001 + 256 * 201 + 256 * 102);
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert!(read_jobs(None, "llama9", &[]).unwrap_err().to_string().contains("codellama-7b"));
        assert!(read_jobs(None, "llama3-8b", &["x".to_owned()]).unwrap_err().to_string().contains("best_of_256"));
    }
}
