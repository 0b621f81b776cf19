//! The output of an estimate, as text and as JSON.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::decode_step::KvReads;
use super::device::{DescribedDevice, RankSizes, StateSizes};
use super::explain::ExplainedNode;
use super::job::PlannedJob;
use super::parts::JobParts;
use super::plan_model::PlanModel;
use super::pool::{Pool, Wave};
use super::predict::Prediction;
use super::replicas::JobReplicas;
use super::second::{SecondAs, SecondWork};
use super::sharing::{SharingCost, TreeLevel};
use offshoot_backend::Dtype;
use offshoot_core::figures::{bytes, count, counted, saved, seconds, times};
use offshoot_engine::CopyMemory;
use offshoot_kv::PromptTree;

#[derive(Debug, Serialize)]
pub struct JobEstimate {
    pub job: JobSizes,
    pub model: ModelSizes,
    pub device: String,
    /// Branches that grow at once.
    pub branches: usize,
    pub pool: Pool,
    /// Sizes of the states of models with recurrent layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub states: Option<StateSizes>,
    /// Memory for copies of latents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopyMemory>,
    /// With `--tensor-parallel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RankSizes>,
    /// The scorer or the judge beside the model.
    #[serde(flatten)]
    pub second: Option<SecondAs<SecondWork>>,
    /// Levels of the tree, from the roots down.
    pub levels: Vec<TreeLevel>,
    pub sharing: Vec<SharingCost>,
    /// Bytes of keys and values of all samples at once, in whole pages: with sharing, and without.
    pub kv_bytes: u64,
    pub kv_bytes_unshared: u64,
    pub waves: Vec<WaveSizes>,
    /// A decode step of the first wave, half way through; `None` if every sample ends with its first token.
    pub decode_step: Option<KvReads>,
    /// With `--parts`: the job cut for several processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<JobParts>,
    /// With `--devices`: the job divided among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<JobReplicas>,
    /// With `--explain`: all nodes, depth-first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<ExplainedNode>>,
    pub predictions: Vec<Prediction>,
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct JobSizes {
    pub input: String,
    pub prompts: usize,
    pub samples: u64,
    /// Tokens of all prompts, each counted once.
    pub prompt_tokens: u64,
    pub distinct_prompt_tokens: u64,
    pub nodes: usize,
    pub drawn_tokens: u64,
}

impl JobSizes {
    pub fn of(input: &Path, job: &PlannedJob, tree: &PromptTree) -> Self {
        Self {
            input: input.display().to_string(),
            prompts: job.per_prompt.len(),
            samples: job.samples(),
            prompt_tokens: tree.logical_tokens(),
            distinct_prompt_tokens: tree.distinct_tokens(),
            nodes: tree.nodes().len(),
            drawn_tokens: job.draws().iter().sum(),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct ModelSizes {
    pub path: String,
    pub dtype: Dtype,
    /// How the device holds its matrices.
    pub weights: String,
    /// On the device, which may make quantised matrices dense.
    pub weight_bytes: u64,
    /// Bytes of the weights that one token uses: without the experts it does not choose.
    pub active_weight_bytes: u64,
    pub kv_bytes_per_token: u64,
}

impl ModelSizes {
    pub fn of(model: &PlanModel, device: &DescribedDevice) -> Self {
        let map_copies = device.machine.profile.backend.latent_map_copies();
        Self {
            path: model.path.display().to_string(),
            dtype: model.dtype,
            weights: match &device.held.quantisation {
                Some(how) => how.to_string(),
                None if device.held.formats.values().any(|format| format.dense().is_none()) => {
                    "as GGUF stores them".to_owned()
                }
                None => model.dtype.to_string(),
            },
            weight_bytes: device.held.held_bytes(model.dtype, map_copies) as u64,
            active_weight_bytes: device.held.weight_bytes_read(1, model.dtype) as u64,
            kv_bytes_per_token: device.kv_bytes_per_token as u64,
        }
    }
}

impl fmt::Display for ModelSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (weights, kv) = (bytes(self.weight_bytes), bytes(self.kv_bytes_per_token));
        write!(f, "{}, {weights} of weights ({})", self.path, self.weights)?;
        if self.active_weight_bytes < self.weight_bytes {
            write!(f, " (a token uses {})", bytes(self.active_weight_bytes))?;
        }
        write!(f, ", {kv} of keys and values a token")
    }
}

#[derive(Debug, Serialize)]
pub struct WaveSizes {
    /// Prompts that have samples in it.
    pub prompts: usize,
    pub samples: u64,
    pub kv_bytes: u64,
}

impl WaveSizes {
    pub fn of(wave: &Wave, pool: &Pool) -> Self {
        Self { prompts: wave.shares.len(), samples: wave.samples(), kv_bytes: wave.pages * pool.page_bytes }
    }
}

/// Most waves that are listed one by one.
const FEW_WAVES: usize = 8;

impl fmt::Display for JobEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, model, pool, .. } = self;
        let mut line = |name: &str, text: String| writeln!(f, "{name:<13}{text}");
        let (prompts, samples) = (counted(job.prompts as u64, "prompt"), counted(job.samples, "sample"));
        line("job", format!("{}: {prompts}, {samples}", job.input))?;
        line("model", model.to_string())?;
        let room = format!("{} for the keys and values of {} tokens", bytes(pool.bytes()), count(pool.tokens()));
        line("device", format!("{}; {room}, {} branches at once", self.device, count(self.branches as u64)))?;
        if let Some(StateSizes { states, state_bytes }) = self.states {
            let all = bytes(states * state_bytes);
            line(
                "states",
                format!("{all} for {} of {}, whatever a sequence's length", count(states), bytes(state_bytes)),
            )?;
        }
        if let Some(copies) = &self.copies {
            line("copies", copies.to_string())?;
        }
        for (name, text) in self.second.iter().flat_map(SecondAs::lines) {
            line(name, text)?;
        }
        let (all, distinct) = (counted(job.prompt_tokens, "token"), count(job.distinct_prompt_tokens));
        line("prompts", format!("{all}, {distinct} of them distinct, in {}", counted(job.nodes as u64, "node")))?;
        let drawn = counted(job.drawn_tokens, "token");
        line("samples", format!("{drawn}, the limit or the expected length of each"))?;
        for (number, level) in self.levels.iter().enumerate() {
            let from = if level.has_deeper { "from " } else { "" };
            line(&format!("{from}depth {}", number + 1), level_text(level, model.kv_bytes_per_token))?;
        }
        for (number, sharing) in self.sharing.iter().enumerate() {
            let (asked, computed) = (count(sharing.tokens_asked), count(sharing.tokens_computed));
            let name = if number == 0 { "saving" } else { "" };
            let saved = saved(sharing.tokens_computed, sharing.tokens_asked);
            line(name, format!("{:<13} {saved:>7}  {computed} of {asked} prompt tokens computed", sharing.policy))?;
        }
        let ratio = times(self.kv_bytes, self.kv_bytes_unshared);
        let unshared = bytes(self.kv_bytes_unshared);
        line("kv held", format!("{} for all at once; {unshared} without sharing: {ratio} x", bytes(self.kv_bytes)))?;
        line("kv read", reads_text(self.decode_step.as_ref()))?;
        line("waves", waves_text(&self.waves, job.prompts))?;
        for (number, prediction) in self.predictions.iter().enumerate() {
            line(if number == 0 { "predicted" } else { "" }, prediction_text(prediction))?;
        }
        if let Some(sizes) = &self.ranks {
            line("each device", sizes.to_string())?;
        }
        let parts = self.parts.iter().flat_map(JobParts::lines);
        for (name, text) in parts.chain(self.replicas.iter().flat_map(JobReplicas::lines)) {
            line(&name, text)?;
        }
        for note in &self.notes {
            line("note", note.clone())?;
        }
        if let Some(nodes) = &self.nodes {
            match &self.decode_step {
                Some(step) => {
                    writeln!(f, "\neach node, and how a decode step of {} reads it:", counted(step.rows, "row"))?;
                }
                None => writeln!(f, "\neach node; there is no decode step:")?,
            }
            nodes.iter().try_for_each(|node| writeln!(f, "{node}"))?;
        }
        Ok(())
    }
}

fn level_text(level: &TreeLevel, kv: u64) -> String {
    format!(
        "{}: {} of {} tokens ({} saved), {} of {}",
        counted(level.nodes, "node"),
        count(level.tokens),
        count(level.tokens_unshared),
        saved(level.tokens, level.tokens_unshared),
        bytes(level.tokens * kv),
        bytes(level.tokens_unshared * kv)
    )
}

fn reads_text(reads: Option<&KvReads>) -> String {
    let Some(reads) = reads else {
        return "there is no decode step: every sample ends with its first token".to_string();
    };
    format!(
        "{} by a decode step of {} with the balanced plan; {} with one shared level; {} by a flat plan: {} x",
        bytes(reads.balanced),
        counted(reads.rows, "row"),
        bytes(reads.single),
        bytes(reads.flat),
        times(reads.balanced, reads.flat)
    )
}

/// Describes waves by their prompts, or by their samples if a prompt is split over several waves.
fn waves_text(waves: &[WaveSizes], prompts: usize) -> String {
    let are_whole = waves.iter().map(|wave| wave.prompts).sum::<usize>() == prompts;
    let sizes = waves.iter().map(|wave| if are_whole { wave.prompts as u64 } else { wave.samples });
    let each: Vec<String> = sizes.take(FEW_WAVES).map(count).collect();
    let what = if are_whole { "prompts" } else { "samples" };
    let more = if waves.len() > FEW_WAVES { " + ..." } else { "" };
    match waves {
        [_] => "1: all fits in memory at once".to_string(),
        _ => format!("{} of {}{more} {what}", count(waves.len() as u64), each.join(" + ")),
    }
}

fn prediction_text(prediction: &Prediction) -> String {
    let totals = &prediction.totals;
    let again = match totals.tokens_recomputed {
        0 => String::new(),
        again => format!(", {} again", counted(again, "token")),
    };
    format!(
        "{:<15} {:>9} ({} before the cool-down), {} of {}, {} computed{again}, at most {} held by {} at once \
         (limit: {})",
        prediction.policy,
        seconds(totals.seconds),
        seconds(totals.seconds_before_cool_down),
        counted(totals.steps as u64, "step"),
        counted(prediction.tokens_per_step.round() as u64, "token"),
        counted(totals.prompt_tokens_computed, "prompt token"),
        bytes(totals.kv_bytes_peak),
        count(totals.most_running as u64),
        count(prediction.branches as u64)
    )
}
