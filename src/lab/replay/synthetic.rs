//! Jobs that papers describe by lengths alone.

use std::time::Duration;

use super::job::{Job, Request, poisson, unit};
use super::prompt::{Prompt, Run};

/// Tokens of a prompt and of what is drawn after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    pub prompt: usize,
    pub output: usize,
}

fn request(runs: &[(u64, usize)], output: usize) -> Request {
    let runs = runs.iter().map(|&(text, tokens)| Run { text, tokens }).filter(|run| run.tokens > 0).collect();
    Request { prompt: Prompt::Runs(runs), arrival: Duration::ZERO, samples: 1, output }
}

/// `groups` groups of `sharing` prompts: `prefix` tokens shared by the group, `distinct` of each one's own. All at once, and the
/// groups' prompts spread as if nobody had sorted them. BatchLLM's microbenchmarks (arXiv 2412.03594, section 5.3).
pub fn micro(prefix: usize, distinct: usize, groups: usize, sharing: usize, output: usize) -> Job {
    let prompts = groups * sharing;
    let spread = (0..prompts as u64).map(|number| {
        let group = number % groups as u64;
        request(&[(group, prefix), (groups as u64 + number, distinct)], output)
    });
    Job::new(spread.collect())
}

/// Prompts of several levels, `(tokens, branching)` from the root: at each level so many texts follow each text of the level above.
/// All at once, and spread as if nobody had sorted them.
pub fn nested(levels: &[(usize, usize)], output: usize) -> Job {
    let prompts: usize = levels.iter().map(|&(_, branching)| branching).product();
    let prompt = |number: usize| {
        // The digits of its number, in the base that the branchings make, name its texts.
        let (mut rest, mut path) = (number, 0);
        let runs = levels.iter().zip(0u64..).map(|(&(tokens, branching), level)| {
            path = path * branching as u64 + (rest % branching) as u64;
            rest /= branching;
            (level << 20 | path, tokens)
        });
        request(&runs.collect::<Vec<_>>(), output)
    };
    Job::new((0..prompts).map(prompt).collect())
}

/// BatchLLM's two industry shapes: `requests` prompts of `prefix` shared and `distinct` own tokens, on average `sharing` a
/// group. Groups and lengths vary about their means as the paper does not say: group sizes and own lengths are exponential,
/// outputs between half and one and a half of `output`, by the seed.
pub fn industry(prefix: usize, distinct: usize, sharing: f64, requests: usize, output: usize, seed: u64) -> Job {
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
    // As if nobody had sorted them.
    let mut order: Vec<usize> = (0..job.len()).collect();
    order.sort_by(|&a, &b| unit(seed ^ 1, a as u64).total_cmp(&unit(seed ^ 1, b as u64)));
    Job::new(order.into_iter().map(|at| job[at].clone()).collect())
}

/// `requests` prompts of `prompt` tokens of which all share the first `shared`, arriving at `rate` a second. ChunkAttention's
/// end-to-end table (arXiv 2402.15220, table 4).
pub fn shared_prompts(prompt: usize, shared: usize, output: usize, requests: usize, rate: f64, seed: u64) -> Job {
    let own = prompt.saturating_sub(shared);
    let requests = (1..=requests as u64).map(|number| request(&[(0, shared), (number, own)], output));
    Job::new(requests.collect()).arriving(poisson(rate, seed))
}

/// A request for each of `lengths` behind a system prompt, all at once. RelayAttention's throughput and its timing of questions
/// (arXiv 2402.14808, section 4).
pub fn behind_system_prompt(system: usize, lengths: &[Lengths]) -> Job {
    let requests = (1u64..).zip(lengths);
    Job::new(requests.map(|(number, own)| request(&[(0, system), (number, own.prompt)], own.output)).collect())
}

/// `requests` requests that take little time, among them decode steps of any number of rows, in eights, up to 256, each number three
/// times in a row: so that what a device does only once is done, also what it does only for steps that recur. The first of the
/// three is new, the second is scheduled anew as the ends of the others are collected, the third is the second, advanced.
pub fn warm_up(requests: usize) -> Job {
    const LONGER: usize = 256;
    // The first token is drawn with the prompt.
    let output = |number: usize| if number <= LONGER { 1 + 3 * number.div_ceil(8) } else { 1 };
    Job::new((1..=requests).map(|number| request(&[(0, 64), (number as u64, 4)], output(number))).collect())
}

/// Requests behind a system prompt, of lengths drawn from `lengths`, arriving at `rate` for `seconds`. RelayAttention's curve
/// (arXiv 2402.14808, section 4).
pub fn with_system_prompt(system: usize, lengths: &[Lengths], rate: f64, seconds: f64, seed: u64) -> Job {
    let until = Duration::from_secs_f64(seconds);
    let arrivals = poisson(rate, seed).take_while(|&arrival| arrival < until);
    let requests = (1u64..).zip(arrivals).map(|(number, arrival)| {
        let Lengths { prompt, output } = lengths[(unit(seed ^ 2, number) * lengths.len() as f64) as usize];
        Request { arrival, ..request(&[(0, system), (number, prompt)], output) }
    });
    Job::new(requests.collect())
}
