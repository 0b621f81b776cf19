//! The runs of each table: a paper's job, defined by lengths, and the variants in which it is run.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::options::{BatchesOptions, Table};
use offshoot_core::error::{Error, Result};
use offshoot_estimate::replay::{
    BranchLimit, MOST_BRANCHES, Policy, PromptSharing, ReplayJob, RequestLengths, RequestOrder, behind_system_prompt,
    industry, micro, nested, read_lengths, shared_prompts, with_system_prompt,
};
use offshoot_kv::plan::Planner;

/// A variant of a run: the scheduling policy and the planner.
#[derive(Clone, Copy, Debug)]
pub struct RunVariant {
    pub name: &'static str,
    pub policy: Policy,
    pub planner: Planner,
}

impl RunVariant {
    const fn by(name: &'static str, policy: Policy) -> Self {
        Self { name, policy, planner: Planner::Balanced }
    }
}

const OURS: RunVariant = RunVariant::by("ours", Policy::OURS);
/// Every row reads its whole path by itself.
const FLAT_PLAN: RunVariant = RunVariant { planner: Planner::Flat, ..RunVariant::by("ours-flat-plan", Policy::OURS) };
/// Every request computes its whole prompt.
const UNSHARED: RunVariant = RunVariant::by("ours-unshared", Policy { sharing: PromptSharing::None, ..Policy::OURS });
const BY_ARRIVAL: RunVariant =
    RunVariant::by("ours-by-arrival", Policy { order: RequestOrder::Arrival, ..Policy::OURS });
const COUNTED: RunVariant =
    RunVariant::by("ours-256-branches", Policy { branches: BranchLimit::AtMost(256), ..Policy::OURS });

impl Table {
    fn ways(self) -> Vec<RunVariant> {
        match self {
            Table::Batchllm => {
                vec![OURS, RunVariant::by("fcfs", Policy::FCFS), RunVariant::by("batchllm", Policy::BATCHLLM)]
            }
            Table::Ablation => vec![OURS, BY_ARRIVAL, COUNTED, UNSHARED, FLAT_PLAN],
            Table::Chunk => vec![OURS],
            Table::Relay | Table::Mmlu => vec![OURS, FLAT_PLAN, UNSHARED],
            Table::Rate => vec![OURS, FLAT_PLAN],
        }
    }
}

pub enum Measurement {
    /// A job; `rate`: requests per second, if they arrive over time.
    Job { job: ReplayJob, rate: Option<f64> },
    /// A search for the sustainable rate of requests of these lengths after a system prompt of `system` tokens.
    Rate { system: usize, lengths: Arc<[RequestLengths]> },
}

impl Measurement {
    /// Most branches that run at once, if memory suffices.
    pub fn most_samples(&self) -> usize {
        match self {
            Measurement::Job { job, .. } => job.samples().min(MOST_BRANCHES),
            Measurement::Rate { .. } => MOST_BRANCHES,
        }
    }
}

pub struct BatchRun {
    pub table: Table,
    pub job: String,
    pub way: RunVariant,
    pub measurement: Arc<Measurement>,
}

impl fmt::Display for BatchRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, {}", self.table, self.job, self.way.name)
    }
}

pub const SEED: u64 = 1;
/// Most requests of a job.
const MOST: usize = 1 << 20;
/// Output tokens of each of BatchLLM's requests.
const DRAWN: usize = 100;

/// The requested runs, table by table.
///
/// # Errors
///
/// An unknown name of a job or variant; more requests than a job may have; a missing or invalid file of lengths.
pub fn runs(options: &BatchesOptions) -> Result<Vec<BatchRun>> {
    let span = options.span().as_secs_f64();
    if let Some(rate) = options.rates.iter().find(|&&rate| rate * span > MOST as f64) {
        let expected = format!("at most {MOST} requests in {span} s");
        return Err(Error::value("--rate", expected, rate.to_string()));
    }
    let mut all = Vec::new();
    for &table in &options.tables {
        for (job, measurement) in measurements(table, options)? {
            let measurement = Arc::new(measurement);
            all.extend(table.ways().into_iter().map(|way| BatchRun {
                table,
                job: job.clone(),
                way,
                measurement: measurement.clone(),
            }));
        }
    }
    let of_job = |run: &BatchRun, name: &str| run.job.starts_with(name);
    let of_way = |run: &BatchRun, name: &str| run.way.name == name;
    only("--job", &options.jobs, &mut all, of_job, |run| &run.job)?;
    only("--way", &options.ways, &mut all, of_way, |run| run.way.name)?;
    Ok(all)
}

/// Keeps the runs that match one of `names`; all if there are no names.
fn only(
    option: &str,
    names: &[String],
    runs: &mut Vec<BatchRun>,
    goes_by: impl Fn(&BatchRun, &str) -> bool,
    name_of: impl Fn(&BatchRun) -> &str,
) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| !runs.iter().any(|run| goes_by(run, name))) {
        let mut known: Vec<&str> = runs.iter().map(name_of).collect();
        known.sort_unstable();
        known.dedup();
        return Err(Error::value(option, format!("one of {}", known.join(", ")), unknown));
    }
    runs.retain(|run| names.is_empty() || names.iter().any(|name| goes_by(run, name)));
    Ok(())
}

/// The jobs of a table, by name.
fn measurements(table: Table, options: &BatchesOptions) -> Result<Vec<(String, Measurement)>> {
    let at_most = |requests: usize| options.most_requests().min(requests);
    let at_once = |(name, job): (String, ReplayJob)| (name, Measurement::Job { job, rate: None });
    Ok(match table {
        Table::Batchllm => {
            let industry = [industry_1100(at_most(3000)), industry_770(at_most(1000))];
            let all = industry.into_iter().chain(microbenchmarks(at_most(1024))).chain([four_levels(at_most(1024))]);
            all.map(at_once).collect()
        }
        Table::Ablation => vec![at_once(industry_1100(at_most(3000)))],
        Table::Chunk => chunk(options),
        Table::Relay => {
            let lengths = spread(lengths(options.lengths.as_deref(), "--lengths", table)?, at_most(1000));
            let job = |system| (format!("system-{system}"), behind_system_prompt(system, &lengths));
            SYSTEM_PROMPTS.map(job).map(at_once).into()
        }
        Table::Rate => {
            let lengths: Arc<[RequestLengths]> = lengths(options.lengths.as_deref(), "--lengths", table)?.into();
            let measurements =
                SYSTEM_PROMPTS.into_iter().flat_map(|system| rate_measurements(system, &lengths, options));
            measurements.collect()
        }
        Table::Mmlu => {
            let questions = lengths(options.questions.as_deref(), "--questions", table)?;
            let questions = spread(questions, at_most(usize::MAX));
            let job = |examples| (format!("behind-{examples}"), behind_system_prompt(examples, &questions));
            [0, 500, 1000, 2000].map(job).map(at_once).into()
        }
    })
}

/// One run per requested rate, or a search for the sustainable rate.
fn rate_measurements(
    system: usize,
    lengths: &Arc<[RequestLengths]>,
    options: &BatchesOptions,
) -> Vec<(String, Measurement)> {
    let name = format!("system-{system}");
    if options.rates.is_empty() {
        return vec![(name, Measurement::Rate { system, lengths: lengths.clone() })];
    }
    let at = |&rate: &f64| {
        let mut job = with_system_prompt(system, lengths, rate, options.span().as_secs_f64(), SEED);
        job.requests.truncate(options.most_requests());
        (name.clone(), Measurement::Job { job, rate: Some(rate) })
    };
    options.rates.iter().map(at).collect()
}

/// RelayAttention's lengths of system prompts (arXiv 2402.14808, section 4).
const SYSTEM_PROMPTS: [usize; 6] = [64, 128, 256, 512, 1024, 2048];

/// BatchLLM's microbenchmarks (arXiv 2412.03594, section 5.3).
fn microbenchmarks(requests: usize) -> impl Iterator<Item = (String, ReplayJob)> {
    let shapes =
        [4, 16].into_iter().flat_map(|sharing| [(2000, 200), (1000, 1000), (200, 2000)].map(|shape| (sharing, shape)));
    shapes.map(move |(sharing, (prefix, distinct))| {
        let groups = (requests / sharing).max(1);
        let mut job = micro(prefix, distinct, groups, sharing, DRAWN);
        job.requests.truncate(requests);
        (format!("{prefix}-{distinct}-x{sharing}"), job)
    })
}

/// BatchLLM's industry shapes (section 5.4).
fn industry_1100(requests: usize) -> (String, ReplayJob) {
    ("industry-1100-400".to_owned(), industry(1100, 400, 7.0, requests, DRAWN, SEED))
}

fn industry_770(requests: usize) -> (String, ReplayJob) {
    ("industry-770-978".to_owned(), industry(770, 978, 11.4, requests, DRAWN, SEED))
}

/// Prompts like those of tasks with examples and several questions about each text: more than one level is shared.
fn four_levels(requests: usize) -> (String, ReplayJob) {
    let texts = (requests / 64).clamp(1, 16);
    let mut job = nested(&[(1000, 1), (800, texts), (400, 8), (100, 8)], DRAWN);
    job.requests.truncate(requests);
    ("four-levels".to_owned(), job)
}

/// Default request rates of ChunkAttention's table, per second.
const CHUNK_RATES: [f64; 2] = [1.0, 4.0];

/// ChunkAttention's jobs (arXiv 2402.15220, section 4.2): 512 output tokens, with all of the prompt shared or none of
/// it.
fn chunk(options: &BatchesOptions) -> Vec<(String, Measurement)> {
    let mut measurements = Vec::new();
    for (prompt, shared) in [(1024, 0), (1024, 1024), (2048, 0), (2048, 2048), (4096, 0), (4096, 4096)] {
        for &rate in if options.rates.is_empty() { &CHUNK_RATES[..] } else { &options.rates } {
            let arriving = ((rate * options.span().as_secs_f64()).round() as usize).max(1);
            let requests = arriving.min(options.most_requests());
            let job = shared_prompts(prompt, shared, 512, requests, rate, SEED);
            measurements.push((format!("prompt-{prompt}-shared-{shared}"), Measurement::Job { job, rate: Some(rate) }));
        }
    }
    measurements
}

fn lengths(path: Option<&Path>, option: &str, table: Table) -> Result<Vec<RequestLengths>> {
    let path = path.ok_or_else(|| Error::value(option, format!("a file for the table {table}"), "none"))?;
    read_lengths(path)
}

/// At most `at_most` elements, evenly spread over the list.
fn spread(lengths: Vec<RequestLengths>, at_most: usize) -> Vec<RequestLengths> {
    let count = lengths.len().min(at_most);
    (0..count).map(|number| lengths[number * lengths.len() / count]).collect()
}
