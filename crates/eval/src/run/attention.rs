//! `offshoot tree RUN --attention`: computes how a finished run's samples divide their attention among the levels of
//! the prompt. Replays the recorded tokens through the run's model (`model::Attribution`), writes `attention.jsonl`
//! next to the results and prints the shares. Nothing is sampled, and no result of the run changes.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde_json::{Map, Value};

use super::levels::mean_attention;
use super::manifest::Manifest;
use crate::journal::{AttentionFile, SampleAttention};
use crate::view::{RecordedItem, SampleEnd, ends, recorded};
use offshoot_backend::{LevelBounds, LevelMass, MOST_LEVELS};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{count, counted, percent, percentage};
use offshoot_core::ids::TokenId;
use offshoot_core::interrupt::Interrupt;
use offshoot_core::out::{self, Progress};
use offshoot_core::setting::{MODEL, TREES};
use offshoot_core::sorting::sort_by_number;
use offshoot_engine::FinishReason;
use offshoot_launch::{AttentionAlong, DeviceChoice, ModelSource};
use offshoot_model::ModelFolder;
use offshoot_model::hashes::hash_of_folder;
use offshoot_search::tree::{Trace, TraceNode};

/// Rows of a replayed step: enough for matrix products to reach nearly full speed.
const STEP_ROWS: usize = 512;

/// Advice if the tokens of samples are not recorded.
fn run_again() -> String {
    format!("run the task again with {TREES} (the same seed samples the same on the CPU)")
}

#[derive(Clone, Debug)]
pub struct AttentionOptions {
    /// The folder of a run's results.
    pub run: PathBuf,
    /// An item's id, or its number among the task's items; `None`: all of them.
    pub item: Option<String>,
    /// The model's folder, if it has moved since the run.
    pub model: Option<PathBuf>,
    pub device: DeviceChoice,
}

/// Computes and writes the attention. If `interrupt` asks to stop, nothing is written.
pub fn attention(options: &AttentionOptions, interrupt: &Interrupt) -> Result<()> {
    let run = &options.run;
    let manifest = Manifest::of(run, "the run")?;
    let job = AttentionJob::new(run, recorded(run, options.item.as_deref())?)?;
    let folder = model_of(&manifest, options)?;
    let model = ModelSource::folder(&folder)?;
    let mut loaded = options.device.open(Some(model))?.load(model)?;
    loaded.set_kv_dtype(manifest.kv_dtype);
    loaded.set_state_dtype(manifest.state_dtype);
    let found = replay(&mut *loaded.attribution(job.longest(), STEP_ROWS)?, &job, interrupt)?;
    let mut file = AttentionFile::read(run)?;
    found.iter().for_each(|sample| file.set(sample.clone()));
    file.write(run)?;
    out::text(table(&found, &job, options.item.is_some()))?;
    out::line(format_args!("{:<11} {}", "results", run.join(AttentionFile::NAME).display()))
}

/// The attention of every sample of the job, by item and number.
fn replay(model: &mut dyn AttentionAlong, job: &AttentionJob, interrupt: &Interrupt) -> Result<Vec<SampleAttention>> {
    let progress = Progress::new(job.items.len());
    let interrupted = interrupt.listen();
    let mut found = Vec::new();
    for item in in_token_order(&job.items, |item| &item.prompt) {
        for sample in in_token_order(&item.samples, |sample| &sample.tokens) {
            if interrupted.load(Ordering::Relaxed) {
                progress.finish();
                return Err(Error::Interrupted);
            }
            let masses = model.along(&item.prompt, item.bounds, &sample.tokens)?;
            found.push(SampleAttention {
                id: item.id.clone(),
                index: sample.index,
                tokens: sample.drawn.len(),
                attention: mean(sample.drawn.iter().map(|&token| &masses[token]), item.bounds.count()),
            });
            progress.sample_done(sample.drawn.len());
        }
        progress.item_done();
    }
    progress.finish();
    let places: HashMap<&str, u64> = job.items.iter().map(|item| &*item.id).zip(0..).collect();
    sort_by_number(&mut found, |sample: &SampleAttention| sample.index);
    sort_by_number(&mut found, |sample| places[&*sample.id]);
    Ok(found)
}

/// Opens the run's model.
fn model_of(manifest: &Manifest, options: &AttentionOptions) -> Result<ModelFolder> {
    if let Some(adapter) = &manifest.adapter {
        let expected = "a run without an adapter, whose attention can be computed again";
        return Err(Error::value("the run", expected, format!("one with {}", adapter.folder.display())));
    }
    let path = options.model.as_ref().unwrap_or(&manifest.model);
    let folder = ModelFolder::open(path)?;
    let hash = hash_of_folder(path)?;
    if hash != manifest.model_hash {
        let expected = format!("the run's, {} ({})", manifest.model.display(), manifest.model_hash);
        return Err(Error::value(format!("the model ({MODEL})"), expected, format!("{} ({hash})", path.display())));
    }
    folder.with(manifest.weights)
}

/// The samples that are replayed to attribute their attention to levels.
struct AttentionJob {
    items: Vec<AttentionItem>,
    /// Number of samples with tokens, including those that no tree records.
    samples: usize,
}

/// An item and those of its samples that its tree records.
struct AttentionItem {
    id: String,
    prompt: Vec<TokenId>,
    bounds: LevelBounds,
    samples: Vec<SamplePath>,
}

/// The tokens after the prompt up to the end of a sample.
struct SamplePath {
    index: u64,
    tokens: Vec<TokenId>,
    /// The positions of the sample's own tokens among them, rising.
    drawn: Vec<usize>,
}

impl AttentionJob {
    fn new(run: &Path, recorded: Vec<RecordedItem>) -> Result<Self> {
        let mut job = Self { items: Vec::new(), samples: 0 };
        let has_trees = recorded.iter().any(|item| item.tree.is_some());
        for item in recorded {
            let id = item.id();
            let samples: Vec<_> = item.samples.into_iter().filter(|sample| tokens_of(sample) > 0).collect();
            job.samples += samples.len();
            if let Some((file, trace)) = item.tree
                && !samples.is_empty()
            {
                job.items.push(AttentionItem::new(id, &file, &trace, &samples)?);
            }
        }
        if job.items.iter().any(|item| !item.samples.is_empty()) {
            return Ok(job);
        }
        let (expected, found) = match (job.samples, has_trees) {
            (0, _) => ("a sample with tokens".to_string(), "none".to_string()),
            (_, false) => (format!("trees of its items: {}", run_again()), "none".to_string()),
            (_, true) => {
                let found = format!("none of {}", counted(job.samples as u64, "sample"));
                (format!("samples with tokens that a tree records: {}", run_again()), found)
            }
        };
        Err(Error::value(run.display().to_string(), expected, found))
    }

    fn attributed(&self) -> usize {
        self.items.iter().map(|item| item.samples.len()).sum()
    }

    /// Tokens of the longest path, prompt included.
    fn longest(&self) -> usize {
        let longest = |item: &AttentionItem| {
            let own = item.samples.iter().map(|sample| sample.tokens.len()).max();
            item.prompt.len() + own.unwrap_or(0)
        };
        self.items.iter().map(longest).max().unwrap_or(0)
    }
}

impl AttentionItem {
    fn new(id: String, file: &Path, trace: &Trace, samples: &[Map<String, Value>]) -> Result<Self> {
        let root = &trace.nodes[0];
        let prompt = root.token_ids.clone().unwrap_or_default();
        if prompt.is_empty() {
            let expected = format!("the tokens of the prompt: {}", run_again());
            return Err(Error::field(file, "nodes[0].token_ids", expected, "nothing"));
        }
        let bounds = bounds_of(file, trace, prompt.len())?;
        let path = |(sample, end): (&Map<String, Value>, Option<SampleEnd>)| {
            let node = end.filter(|end| end.is_exact)?.node;
            SamplePath::new(trace, node, sample.get("index")?.as_u64()?, tokens_of(sample))
        };
        let samples = samples.iter().zip(ends(trace, samples)).filter_map(path).collect();
        Ok(Self { id, prompt, bounds, samples })
    }
}

/// The levels of the prompt, and one more for the sample's own text.
fn bounds_of(file: &Path, trace: &Trace, prompt: usize) -> Result<LevelBounds> {
    let Some(ends) = &trace.level_ends else {
        let expected = format!("where each level of the prompt ends: {}", run_again());
        return Err(Error::field(file, "level_ends", expected, "nothing"));
    };
    if ends.len() >= MOST_LEVELS {
        let expected = format!("at most {} levels of the prompt, the shared one included", MOST_LEVELS - 1);
        return Err(Error::field(file, "level_ends", expected, ends.len().to_string()));
    }
    let words: Option<Vec<u32>> = ends.iter().map(|&end| u32::try_from(end).ok()).collect();
    let bounds = words.filter(|_| ends.last() == Some(&prompt)).and_then(|ends| LevelBounds::behind(&ends));
    bounds.ok_or_else(|| {
        let expected = format!("ascending numbers, the last of them the prompt's {prompt} tokens");
        Error::field(file, "level_ends", expected, format!("{ends:?}"))
    })
}

fn tokens_of(sample: &Map<String, Value>) -> usize {
    sample.get("tokens").and_then(Value::as_u64).and_then(|tokens| usize::try_from(tokens).ok()).unwrap_or(0)
}

impl SamplePath {
    /// The path to `node`; the last `count` sampled tokens on it are the sample's. `None` if they are not recorded.
    fn new(trace: &Trace, node: usize, index: u64, count: usize) -> Option<Self> {
        let up = std::iter::successors(Some(&trace.nodes[node]), |node| Some(&trace.nodes[node.parent?]));
        let mut path: Vec<&TraceNode> = up.take_while(|node| node.parent.is_some()).collect();
        path.reverse();
        // Nodes below a question have another prompt.
        if path.iter().any(|node| node.asks) {
            return None;
        }
        let (mut tokens, mut drawn): (Vec<TokenId>, Vec<usize>) = Default::default();
        for node in path {
            let own: Range<usize> = tokens.len()..tokens.len() + node.tokens;
            tokens.extend(node.token_ids.as_ref()?);
            if tokens.len() != own.end {
                return None;
            }
            if node.finish.as_ref().is_some_and(|finish| *finish != FinishReason::Given) {
                drawn.extend(own);
            }
        }
        let drawn = drawn.split_off(drawn.len().checked_sub(count)?);
        Some(Self { index, tokens, drawn })
    }
}

/// Sorts the samples so that common prefixes follow each other and are computed once.
fn in_token_order<T>(all: &[T], tokens: impl Fn(&T) -> &Vec<TokenId>) -> Vec<&T> {
    let mut sorted: Vec<(&[TokenId], usize)> = all.iter().map(|one| &tokens(one)[..]).zip(0..).collect();
    sorted.sort();
    sorted.into_iter().map(|(_, place)| &all[place]).collect()
}

/// The mean over tokens (at least one) of the first `levels` levels.
fn mean<'a>(masses: impl Iterator<Item = &'a LevelMass>, levels: usize) -> Vec<f64> {
    let (mut sums, mut tokens) = ([0.0; MOST_LEVELS], 0);
    for mass in masses {
        sums.iter_mut().zip(mass).for_each(|(sum, &mass)| *sum += f64::from(mass));
        tokens += 1;
    }
    sums[..levels].iter().map(|sum| sum / f64::from(tokens)).collect()
}

/// A table with the mean over all samples and, if `each`, the shares of each sample.
fn table(found: &[SampleAttention], job: &AttentionJob, each: bool) -> String {
    let levels = job.items.iter().map(|item| item.bounds.count()).max().unwrap_or(1);
    let told = found.iter().map(|sample| (sample.tokens, sample.attention.as_slice()));
    let mean = mean_attention(told, levels).unwrap_or_default();
    let tokens: usize = found.iter().map(|sample| sample.tokens).sum();
    let of = match job.attributed() == job.samples {
        true => String::new(),
        false => format!(" of {} (no tree records the tokens of the others)", count(job.samples as u64)),
    };
    let (samples, tokens) = (counted(found.len() as u64, "sample"), counted(tokens as u64, "token"));
    let mut text = format!("{:<11} {samples}{of}, {tokens}: mean over tokens, layers and heads\n", "attention");
    let mut line = |what: &str, said: String| text += &format!("{:<11} {what}: {said}\n", "");
    for (level, share) in mean.iter().enumerate() {
        let name = if level + 1 == levels { "own text".to_string() } else { format!("prompt level {}", level + 1) };
        line(&name, percent(*share));
    }
    for sample in found.iter().filter(|_| each) {
        let shares: Vec<String> = sample.attention.iter().map(|&share| percentage(share)).collect();
        let tokens = counted(sample.tokens as u64, "token");
        line(&format!("sample {}", sample.index), format!("{} % of {tokens}", shares.join(" + ")));
    }
    text
}
