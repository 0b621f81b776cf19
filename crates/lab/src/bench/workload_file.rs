//! Reads shapes of models and jobs to run on them: benches/workloads.json, which is built in, or a file of the same
//! form.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use offshoot_core::dice::Dice;
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
    generate: Generate,
}

/// Prompts by levels `(tokens, branching)` from the root, and `samples` continuations of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub name: String,
    pub levels: Vec<(usize, usize)>,
    pub samples: usize,
    pub generate: Generate,
}

/// How many tokens the continuations of a job have: each the same number, or each a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Generate {
    Each(usize),
    LogNormal(LogNormal),
}

/// Numbers whose natural logarithms are normally distributed, rounded to whole ones from 1 to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogNormal {
    /// Mean and standard deviation of the logarithms.
    pub log_mean: f64,
    pub log_deviation: f64,
    pub most: usize,
    /// The same seed gives the same numbers on every machine.
    pub seed: u64,
}

impl LogNormal {
    /// `count` of them.
    pub fn draw(&self, count: usize) -> Vec<usize> {
        let mut dice = Dice::new(self.seed);
        let mut number = || {
            // Box and Muller's way to a normally distributed number.
            let (size, angle) = (1.0 - dice.uniform(), std::f64::consts::TAU * dice.uniform());
            let normal = (-2.0 * size.ln()).sqrt() * angle.cos();
            (self.log_mean + self.log_deviation * normal).exp().round().clamp(1.0, self.most as f64) as usize
        };
        (0..count).map(|_| number()).collect()
    }

    /// # Errors
    ///
    /// Logarithms that no length has, as a sentence's end.
    fn check(&self) -> std::result::Result<(), String> {
        let LogNormal { log_mean, log_deviation, .. } = *self;
        match (0.0..=20.0).contains(&log_mean) && (0.0..=20.0).contains(&log_deviation) {
            true => Ok(()),
            false => Err(format!("log_mean {log_mean} and log_deviation {log_deviation}")),
        }
    }
}

impl Generate {
    /// The most tokens that a continuation may have.
    pub fn most(&self) -> usize {
        match self {
            Generate::Each(tokens) => *tokens,
            Generate::LogNormal(lengths) => lengths.most,
        }
    }
}

impl Workload {
    pub fn prompts(&self) -> usize {
        self.levels.iter().map(|&(_, branching)| branching).product()
    }

    pub fn continuations(&self) -> usize {
        self.prompts() * self.samples
    }

    /// Tokens of one prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.levels.iter().map(|&(tokens, _)| tokens).sum()
    }

    /// Tokens of the longest finished branch that there may be.
    pub fn context(&self) -> usize {
        self.prompt_tokens() + self.generate.most()
    }

    /// Tokens of every continuation: those of the first prompt, then those of the second, and so on.
    pub fn lengths(&self) -> Vec<usize> {
        match self.generate {
            Generate::Each(tokens) => vec![tokens; self.continuations()],
            Generate::LogNormal(lengths) => lengths.draw(self.continuations()),
        }
    }

    /// Tokens of KV memory of all continuations when they have ended: whole pages of every node, and one more page per
    /// continuation to grow into, without which the last continuations would wait.
    pub fn kv_tokens(&self, page_tokens: usize) -> usize {
        let whole = |tokens: usize| (tokens.div_ceil(page_tokens) + 1) * page_tokens;
        let mut nodes = 1;
        let mut held = 0;
        for &(tokens, branching) in &self.levels {
            nodes *= branching;
            held += nodes * whole(tokens);
        }
        held + self.lengths().into_iter().map(|tokens| whole(tokens) + page_tokens).sum::<usize>()
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
    if let Generate::LogNormal(lengths) = generate {
        let expected = "log_mean and log_deviation from 0 to 20";
        lengths.check().map_err(|found| Error::field(path, field(), expected, found))?;
    }
    let counts = levels.iter().flat_map(|&(tokens, branching)| [tokens, branching]).chain([samples, generate.most()]);
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

    /// The figures that benches/README.md states.
    #[test]
    fn drawn_lengths_have_the_stated_quantiles() {
        let (_, jobs) = read_jobs(None, "llama3-8b", &["groups_400".to_owned()]).unwrap();
        let mut lengths = jobs[0].lengths();
        assert_eq!(lengths, jobs[0].lengths(), "the same in every run");
        let sum: usize = lengths.iter().sum();
        lengths.sort_unstable();
        let at = |share: f64| lengths[(share * lengths.len() as f64) as usize];
        assert_eq!((lengths.len(), sum, lengths[0], lengths[2047]), (2048, 1_034_632, 2, 8192));
        assert_eq!([0.1, 0.25, 0.5, 0.75, 0.9, 0.99].map(at), [37, 85, 216, 509, 1126, 5427]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert!(read_jobs(None, "llama9", &[]).unwrap_err().to_string().contains("codellama-7b"));
        assert!(read_jobs(None, "llama3-8b", &["x".to_owned()]).unwrap_err().to_string().contains("best_of_256"));
    }
}
