//! The runs of each table: a job of a paper, by its lengths, and the ways in which it is run.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::BatchesOptions;
use crate::error::{Error, Result};
use crate::lab::replay::{
    Branches, Job, Lengths, MOST_BRANCHES, Order, Policy, Sharing, behind_system_prompt, industry, micro, nested,
    read_lengths, shared_prompts, with_system_prompt,
};
use crate::plan::Planner;

/// A table of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// BatchLLM's microbenchmarks and industry shapes, and a job of four levels, under three policies
    Batchllm,
    /// One of BatchLLM's industry shapes without order, memory-centric batching, sharing, or plans that read shared pages once
    Ablation,
    /// ChunkAttention's: requests that arrive over time, with a shared prompt or without
    Chunk,
    /// RelayAttention's throughput: answers of recorded lengths behind a system prompt, all at once
    Relay,
    /// RelayAttention's rate: how many such requests a second can come
    Rate,
    /// RelayAttention's timing of questions behind examples, one token drawn each
    Mmlu,
}

/// As it is given on the command line.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no table is hidden");
        write!(f, "{}", value.get_name())
    }
}

/// How a job is run.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub name: &'static str,
    pub policy: Policy,
    pub planner: Planner,
}

impl Way {
    const fn by(name: &'static str, policy: Policy) -> Self {
        Self { name, policy, planner: Planner::Balanced }
    }
}

const OURS: Way = Way::by("ours", Policy::OURS);
/// Every row reads its whole path by itself.
const FLAT_PLAN: Way = Way { planner: Planner::Flat, ..Way::by("ours-flat-plan", Policy::OURS) };
/// Every request computes its whole prompt.
const UNSHARED: Way = Way::by("ours-unshared", Policy { sharing: Sharing::None, ..Policy::OURS });
const BY_ARRIVAL: Way = Way::by("ours-by-arrival", Policy { order: Order::Arrival, ..Policy::OURS });
const COUNTED: Way = Way::by("ours-256-branches", Policy { branches: Branches::AtMost(256), ..Policy::OURS });

impl Table {
    fn ways(self) -> Vec<Way> {
        match self {
            Table::Batchllm => {
                vec![OURS, Way::by("fcfs", Policy::FCFS), Way::by("batchllm", Policy::BATCHLLM)]
            }
            Table::Ablation => vec![OURS, BY_ARRIVAL, COUNTED, UNSHARED, FLAT_PLAN],
            Table::Chunk => vec![OURS],
            Table::Relay | Table::Mmlu => vec![OURS, FLAT_PLAN, UNSHARED],
            Table::Rate => vec![OURS, FLAT_PLAN],
        }
    }
}

pub enum Work {
    /// `rate`: requests a second, where they arrive over time.
    Job { job: Job, rate: Option<f64> },
    /// A rate to be found, of requests of these lengths behind `system` tokens.
    Rate { system: usize, lengths: Arc<[Lengths]> },
}

impl Work {
    /// Branches that may grow at once, if memory suffices.
    pub fn most_samples(&self) -> usize {
        match self {
            Work::Job { job, .. } => job.samples().min(MOST_BRANCHES),
            Work::Rate { .. } => MOST_BRANCHES,
        }
    }
}

pub struct Run {
    pub table: Table,
    pub job: String,
    pub way: Way,
    pub work: Arc<Work>,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, {}", self.table, self.job, self.way.name)
    }
}

pub const SEED: u64 = 1;
/// Requests of a job at most, whatever is asked.
const MOST: usize = 1 << 20;
/// Tokens drawn by each of BatchLLM's requests.
const DRAWN: usize = 100;

/// The runs asked for, a table after another.
///
/// # Errors
/// A name that no job or way of the tables has; more requests than a job may have; a file of lengths that is missing or wrong.
pub fn runs(options: &BatchesOptions) -> Result<Vec<Run>> {
    let span = options.span.as_secs_f64();
    if let Some(rate) = options.rates.iter().find(|&&rate| rate * span > MOST as f64) {
        let expected = format!("at most {MOST} requests in {span} s");
        return Err(Error::value("--rate", expected, rate.to_string()));
    }
    let mut all = Vec::new();
    for &table in &options.tables {
        for (job, work) in works(table, options)? {
            let work = Arc::new(work);
            all.extend(table.ways().into_iter().map(|way| Run { table, job: job.clone(), way, work: work.clone() }));
        }
    }
    let of_job = |run: &Run, name: &str| run.job.starts_with(name);
    let of_way = |run: &Run, name: &str| run.way.name == name;
    only("--job", &options.jobs, &mut all, of_job, |run| &run.job)?;
    only("--way", &options.ways, &mut all, of_way, |run| run.way.name)?;
    Ok(all)
}

/// Leaves the runs that go by one of `names`; all where there are no names.
fn only(
    option: &str,
    names: &[String],
    runs: &mut Vec<Run>,
    goes_by: impl Fn(&Run, &str) -> bool,
    name_of: impl Fn(&Run) -> &str,
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
fn works(table: Table, options: &BatchesOptions) -> Result<Vec<(String, Work)>> {
    let at_most = |requests: usize| options.requests.unwrap_or(usize::MAX).min(requests);
    let at_once = |(name, job): (String, Job)| (name, Work::Job { job, rate: None });
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
            let lengths: Arc<[Lengths]> = lengths(options.lengths.as_deref(), "--lengths", table)?.into();
            let works = SYSTEM_PROMPTS.into_iter().flat_map(|system| rate_works(system, &lengths, options));
            works.collect()
        }
        Table::Mmlu => {
            let questions = lengths(options.questions.as_deref(), "--questions", table)?;
            let questions = spread(questions, at_most(usize::MAX));
            let job = |examples| (format!("behind-{examples}"), behind_system_prompt(examples, &questions));
            [0, 500, 1000, 2000].map(job).map(at_once).into()
        }
    })
}

/// The rates asked for, or the one to be found.
fn rate_works(system: usize, lengths: &Arc<[Lengths]>, options: &BatchesOptions) -> Vec<(String, Work)> {
    let name = format!("system-{system}");
    if options.rates.is_empty() {
        return vec![(name, Work::Rate { system, lengths: lengths.clone() })];
    }
    let at = |&rate: &f64| {
        let mut job = with_system_prompt(system, lengths, rate, options.span.as_secs_f64(), SEED);
        job.requests.truncate(options.requests.unwrap_or(usize::MAX));
        (name.clone(), Work::Job { job, rate: Some(rate) })
    };
    options.rates.iter().map(at).collect()
}

/// RelayAttention's lengths of system prompts (arXiv 2402.14808, section 4).
const SYSTEM_PROMPTS: [usize; 6] = [64, 128, 256, 512, 1024, 2048];

/// BatchLLM's microbenchmarks (arXiv 2412.03594, section 5.3).
fn microbenchmarks(requests: usize) -> impl Iterator<Item = (String, Job)> {
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
fn industry_1100(requests: usize) -> (String, Job) {
    ("industry-1100-400".to_owned(), industry(1100, 400, 7.0, requests, DRAWN, SEED))
}

fn industry_770(requests: usize) -> (String, Job) {
    ("industry-770-978".to_owned(), industry(770, 978, 11.4, requests, DRAWN, SEED))
}

/// Prompts as those of tasks with examples and several questions on each text: more than one level is shared.
fn four_levels(requests: usize) -> (String, Job) {
    let texts = (requests / 64).clamp(1, 16);
    let mut job = nested(&[(1000, 1), (800, texts), (400, 8), (100, 8)], DRAWN);
    job.requests.truncate(requests);
    ("four-levels".to_owned(), job)
}

/// Requests a second of ChunkAttention's table, where no others are asked for.
const CHUNK_RATES: [f64; 2] = [1.0, 4.0];

/// ChunkAttention's (arXiv 2402.15220, section 4.2): 512 tokens drawn, all of the prompt shared or nothing of it.
fn chunk(options: &BatchesOptions) -> Vec<(String, Work)> {
    let mut works = Vec::new();
    for (prompt, shared) in [(1024, 0), (1024, 1024), (2048, 0), (2048, 2048), (4096, 0), (4096, 4096)] {
        for &rate in if options.rates.is_empty() { &CHUNK_RATES[..] } else { &options.rates } {
            let arriving = ((rate * options.span.as_secs_f64()).round() as usize).max(1);
            let requests = arriving.min(options.requests.unwrap_or(usize::MAX));
            let job = shared_prompts(prompt, shared, 512, requests, rate, SEED);
            works.push((format!("prompt-{prompt}-shared-{shared}"), Work::Job { job, rate: Some(rate) }));
        }
    }
    works
}

fn lengths(path: Option<&Path>, option: &str, table: Table) -> Result<Vec<Lengths>> {
    let path = path.ok_or_else(|| Error::value(option, format!("a file for the table {table}"), "none"))?;
    read_lengths(path)
}

/// So many of them at most, from all over the list.
fn spread(lengths: Vec<Lengths>, at_most: usize) -> Vec<Lengths> {
    let count = lengths.len().min(at_most);
    (0..count).map(|number| lengths[number * lengths.len() / count]).collect()
}
