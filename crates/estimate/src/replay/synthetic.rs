//! Jobs of papers that are described by lengths only.

use std::time::Duration;

use super::job::{ReplayJob, ReplayRequest, poisson, unit};
use super::prompt::{TextRun, TracePrompt};

/// Tokens of a prompt and of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLengths {
    pub prompt: usize,
    pub output: usize,
}

/// A request of these texts, with so many tokens of each, that arrives at once.
pub(super) fn request(runs: &[(u64, usize)], output: usize) -> ReplayRequest {
    let runs = runs.iter().map(|&(text, tokens)| TextRun { text, tokens }).filter(|run| run.tokens > 0).collect();
    ReplayRequest { prompt: TracePrompt::Runs(runs), arrival: Duration::ZERO, samples: 1, output }
}

/// `groups` groups of `sharing` prompts: `prefix` tokens shared by the group and `distinct` own tokens per prompt. All
/// arrive at once, with the groups interleaved as in an unsorted list. BatchLLM's microbenchmarks (arXiv 2412.03594,
/// section 5.3).
pub fn micro(prefix: usize, distinct: usize, groups: usize, sharing: usize, output: usize) -> ReplayJob {
    let prompts = groups * sharing;
    let spread = (0..prompts as u64).map(|number| {
        let group = number % groups as u64;
        request(&[(group, prefix), (groups as u64 + number, distinct)], output)
    });
    ReplayJob::new(spread.collect())
}

/// Prompts of several levels, `(tokens, branching)` from the root: at each level, `branching` texts follow each text of
/// the level above. All arrive at once, interleaved as in an unsorted list.
pub fn nested(levels: &[(usize, usize)], output: usize) -> ReplayJob {
    let prompts: usize = levels.iter().map(|&(_, branching)| branching).product();
    let prompt = |number: usize| {
        // The digits of its number in the mixed base of the branchings select its texts.
        let (mut rest, mut path) = (number, 0);
        let runs = levels.iter().zip(0u64..).map(|(&(tokens, branching), level)| {
            path = path * branching as u64 + (rest % branching) as u64;
            rest /= branching;
            (level << 20 | path, tokens)
        });
        request(&runs.collect::<Vec<_>>(), output)
    };
    ReplayJob::new((0..prompts).map(prompt).collect())
}

/// BatchLLM's two industry shapes: `requests` prompts of `prefix` shared and `distinct` own tokens, on average
/// `sharing` per group. The paper gives means only; here group sizes and own lengths are exponential, and outputs
/// uniform from 0.5 to 1.5 times `output`, by the seed.
pub fn industry(prefix: usize, distinct: usize, sharing: f64, requests: usize, output: usize, seed: u64) -> ReplayJob {
    let exponential = |mean: f64, place: u64| -mean * (1.0 - unit(seed, place)).ln();
    let mut job = Vec::with_capacity(requests);
    let mut group = 0u64;
    while job.len() < requests {
        let size = (exponential(sharing, 3 * group).round() as usize).clamp(1, requests - job.len());
        for _ in 0..size {
            let place = (1 << 32) + 2 * job.len() as u64;
            let own = exponential(distinct as f64, place).round() as usize + 1;
            let output = (output as f64 * (0.5 + unit(seed, place + 1))).round() as usize;
            job.push(request(&[(group, prefix), ((1 << 20) + job.len() as u64, own)], output.max(1)));
        }
        group += 1;
    }
    // Shuffled, as in an unsorted list.
    let mut order: Vec<usize> = (0..job.len()).collect();
    order.sort_by(|&a, &b| unit(seed ^ 1, a as u64).total_cmp(&unit(seed ^ 1, b as u64)));
    ReplayJob::new(order.into_iter().map(|at| job[at].clone()).collect())
}

/// `requests` prompts of `prompt` tokens that share their first `shared` tokens, arriving at `rate` per second.
/// ChunkAttention's end-to-end table (arXiv 2402.15220, table 4).
pub fn shared_prompts(prompt: usize, shared: usize, output: usize, requests: usize, rate: f64, seed: u64) -> ReplayJob {
    let own = prompt.saturating_sub(shared);
    let requests = (1..=requests as u64).map(|number| request(&[(0, shared), (number, own)], output));
    ReplayJob::new(requests.collect()).arriving(poisson(rate, seed))
}

/// One request per element of `lengths` after a system prompt of `system` tokens, all at once. RelayAttention's
/// throughput and its timing of questions (arXiv 2402.14808, section 4).
pub fn behind_system_prompt(system: usize, lengths: &[RequestLengths]) -> ReplayJob {
    let requests = (1u64..).zip(lengths);
    ReplayJob::new(requests.map(|(number, own)| request(&[(0, system), (number, own.prompt)], own.output)).collect())
}

/// A short warm-up job of `requests` requests. It has decode steps of every multiple of eight rows up to 256, three
/// times in a row each, so that everything a device does only once is done, also what it does only for repeated steps:
/// the first of the three is new, the second is scheduled again as the ends of the others are collected, the third is
/// the second advanced by a token.
pub fn warm_up(requests: usize) -> ReplayJob {
    const LONGER: usize = 256;
    // The first token is sampled in the prompt's step.
    let output = |number: usize| if number <= LONGER { 1 + 3 * number.div_ceil(8) } else { 1 };
    ReplayJob::new((1..=requests).map(|number| request(&[(0, 64), (number as u64, 4)], output(number))).collect())
}

/// Requests after a system prompt of `system` tokens, with random elements of `lengths`, arriving at `rate` per second
/// for `seconds`. RelayAttention's curve (arXiv 2402.14808, section 4).
pub fn with_system_prompt(system: usize, lengths: &[RequestLengths], rate: f64, seconds: f64, seed: u64) -> ReplayJob {
    let until = Duration::from_secs_f64(seconds);
    let arrivals = poisson(rate, seed).take_while(|&arrival| arrival < until);
    let requests = (1u64..).zip(arrivals).map(|(number, arrival)| {
        let RequestLengths { prompt, output } = lengths[(unit(seed ^ 2, number) * lengths.len() as f64) as usize];
        ReplayRequest { arrival, ..request(&[(0, system), (number, prompt)], output) }
    });
    ReplayJob::new(requests.collect())
}
