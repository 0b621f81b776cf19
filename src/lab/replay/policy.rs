//! Ways to run a batch, as plain differences of what is submitted: what may be shared, in which order prompts come, how many
//! branches may grow at once. The engine is the same under all of them.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::job::{Job, Request};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::kv::PromptTree;

/// What prompts may share with each other. What may not be shared is replaced by other tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    None,
    /// One beginning a group, as BatchLLM chooses it; see `PromptTree::single_level_nodes`.
    SingleLevel,
    AllLevels,
}

/// The order of requests that arrive together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Arrival,
    /// Depth-first over what they share, what draws most for its prompt first; see `PromptTree::order_by`.
    ByRatio,
}

/// How many branches may grow at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branches {
    AtMost(usize),
    /// As many as memory holds.
    ByMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub sharing: Sharing,
    pub order: Order,
    pub branches: Branches,
}

/// Branches that nobody limits: their logits must still fit.
pub const MOST_BRANCHES: usize = 4096;

impl Policy {
    /// First come, first served, with what was used last kept for who shares it, and vLLM's limit of 256 sequences.
    pub const FCFS: Policy =
        Policy { sharing: Sharing::AllLevels, order: Order::Arrival, branches: Branches::AtMost(256) };
    /// BatchLLM (arXiv 2412.03594): one shared level, groups by ratio, tokens batched by memory.
    pub const BATCHLLM: Policy =
        Policy { sharing: Sharing::SingleLevel, order: Order::ByRatio, branches: Branches::ByMemory };
    /// All levels, depth-first by ratio, tokens batched by memory.
    pub const OURS: Policy =
        Policy { sharing: Sharing::AllLevels, order: Order::ByRatio, branches: Branches::ByMemory };

    const WORDS: [(&str, Policy); 3] = [("fcfs", Policy::FCFS), ("batchllm", Policy::BATCHLLM), ("ours", Policy::OURS)];

    /// The same with no more than `most` branches at once.
    pub fn capped(self, most: usize) -> Policy {
        let branches = match self.branches {
            Branches::AtMost(few) => few.min(most),
            Branches::ByMemory => most.min(MOST_BRANCHES),
        };
        Policy { branches: Branches::AtMost(branches), ..self }
    }

    /// Branches of `job` that it lets grow at once, however much memory there is.
    pub fn max_branches(&self, job: &Job) -> usize {
        let most = match self.branches {
            Branches::AtMost(most) => most,
            Branches::ByMemory => MOST_BRANCHES,
        };
        most.min(job.samples()).max(1)
    }

    /// The requests of `job` in the order in which this policy submits them, each with its place in the job, and what it took to
    /// find that order; for a model of `vocab` tokens.
    pub(super) fn submit(&self, job: &Job, vocab: usize) -> (Vec<(usize, Request)>, Duration) {
        let mut spent = Duration::ZERO;
        let listed: Vec<(usize, Request)> = self.replaced(job, vocab).into_iter().enumerate().collect();
        if self.order == Order::Arrival {
            return (listed, spent);
        }
        let mut ordered = Vec::with_capacity(listed.len());
        for together in listed.chunk_by(|(_, a), (_, b)| a.arrival == b.arrival) {
            if let [alone] = together {
                ordered.push(alone.clone());
                continue;
            }
            let draws: Vec<u64> =
                together.iter().map(|(_, request)| (request.samples * request.output) as u64).collect();
            let texts = texts(together.iter().map(|(_, request)| request), vocab);
            let began = Instant::now();
            let order = PromptTree::new(texts.as_slice()).order_by(&draws);
            spent += began.elapsed();
            ordered.extend(order.into_iter().map(|at| together[at as usize].clone()));
        }
        (ordered, spent)
    }

    /// The requests with what they may not share replaced by texts of their own.
    fn replaced(&self, job: &Job, vocab: usize) -> Vec<Request> {
        let groups = match self.sharing {
            Sharing::AllLevels => return job.requests.clone(),
            Sharing::None => vec![Group::default(); job.requests.len()],
            Sharing::SingleLevel => groups(&texts(job.requests.iter(), vocab)),
        };
        let own = groups.iter().map(|group| group.number + 1).max().unwrap_or(0)..;
        let replaced = job.requests.iter().zip(groups).zip(own).map(|((request, group), own)| Request {
            prompt: request.prompt.replaced(group.shared, group.number, own),
            ..request.clone()
        });
        replaced.collect()
    }
}

fn texts<'a>(requests: impl Iterator<Item = &'a Request>, vocab: usize) -> Vec<Vec<TokenId>> {
    requests.map(|request| request.prompt.tokens(vocab)).collect()
}

/// A group of prompts, and the tokens that they share.
#[derive(Clone, Copy, Default)]
struct Group {
    number: u64,
    shared: usize,
}

/// The group of each prompt; those that have none share nothing.
fn groups(prompts: &[Vec<TokenId>]) -> Vec<Group> {
    let tree = PromptTree::new(prompts);
    let mut groups = vec![Group::default(); prompts.len()];
    for (number, node) in (0u64..).zip(tree.single_level_nodes()) {
        let node = &tree.nodes()[node as usize];
        for sorted in &tree.sorted()[node.prompts.start as usize..node.prompts.end as usize] {
            groups[sorted.prompt as usize] = Group { number, shared: node.end as usize };
        }
    }
    groups
}

/// The policy's word, or what it consists of.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Policy::WORDS.iter().find(|(_, policy)| policy == self) {
            Some((word, _)) => f.pad(word),
            None => write!(f, "{:?}, {:?}, {:?}", self.sharing, self.order, self.branches),
        }
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Policy::WORDS.iter().find(|(word, _)| *word == text).map(|(_, policy)| *policy);
        known.ok_or_else(|| Error::value("policy", "fcfs, batchllm or ours", text))
    }
}
