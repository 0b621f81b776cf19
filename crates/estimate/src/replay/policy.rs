//! Scheduling policies for a batch, defined by what is submitted: which prefixes may be shared, in which order prompts
//! arrive, and how many branches may run at once. The engine is the same for all of them.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::job::{ReplayJob, ReplayRequest};
use super::prompt::TracePrompt;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_kv::PromptTree;

/// Which prefixes prompts may share. Other common prefixes are replaced by different tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptSharing {
    None,
    /// One prefix per group, chosen as in BatchLLM; see `PromptTree::single_level_nodes`.
    SingleLevel,
    AllLevels,
}

/// The order of requests that arrive together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrder {
    Arrival,
    /// Depth-first over shared prefixes, highest ratio of output to prompt tokens first; see `PromptTree::order_by`.
    ByRatio,
}

/// Limit on branches that run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchLimit {
    AtMost(usize),
    /// As many as memory holds.
    ByMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub sharing: PromptSharing,
    pub order: RequestOrder,
    pub branches: BranchLimit,
}

/// Limit for `ByMemory`: the logits of all branches must fit in memory.
pub const MOST_BRANCHES: usize = 4096;

impl Policy {
    /// First come, first served, with an LRU cache of shared prefixes, and vLLM's limit of 256 sequences.
    pub const FCFS: Policy =
        Policy { sharing: PromptSharing::AllLevels, order: RequestOrder::Arrival, branches: BranchLimit::AtMost(256) };
    /// BatchLLM (arXiv 2412.03594): one shared level, groups by ratio, tokens batched by memory.
    pub const BATCHLLM: Policy =
        Policy { sharing: PromptSharing::SingleLevel, order: RequestOrder::ByRatio, branches: BranchLimit::ByMemory };
    /// All levels, depth-first by ratio, tokens batched by memory.
    pub const OURS: Policy =
        Policy { sharing: PromptSharing::AllLevels, order: RequestOrder::ByRatio, branches: BranchLimit::ByMemory };

    const WORDS: [(&str, Policy); 3] = [("fcfs", Policy::FCFS), ("batchllm", Policy::BATCHLLM), ("ours", Policy::OURS)];

    /// This policy with at most `most` branches at once.
    pub fn capped(self, most: usize) -> Policy {
        let branches = match self.branches {
            BranchLimit::AtMost(few) => few.min(most),
            BranchLimit::ByMemory => most.min(MOST_BRANCHES),
        };
        Policy { branches: BranchLimit::AtMost(branches), ..self }
    }

    /// Most branches of `job` that run at once, regardless of memory.
    pub fn max_branches(&self, job: &ReplayJob) -> usize {
        let most = match self.branches {
            BranchLimit::AtMost(most) => most,
            BranchLimit::ByMemory => MOST_BRANCHES,
        };
        most.min(job.samples()).max(1)
    }

    /// The requests of `job` in the order in which this policy submits them, each with its index in the job, and the
    /// time spent finding the order; for a model with `vocab` tokens.
    pub(super) fn submit(&self, job: &ReplayJob, vocab: usize) -> (Vec<(usize, ReplayRequest)>, Duration) {
        let mut spent = Duration::ZERO;
        let listed: Vec<(usize, ReplayRequest)> = self.replaced(job, vocab).into_iter().enumerate().collect();
        if self.order == RequestOrder::Arrival {
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

    /// The requests with prefixes that they may not share replaced by texts of their own.
    fn replaced(&self, job: &ReplayJob, vocab: usize) -> Vec<ReplayRequest> {
        let groups = match self.sharing {
            PromptSharing::AllLevels => return job.requests.clone(),
            PromptSharing::None => vec![PromptGroup::default(); job.requests.len()],
            PromptSharing::SingleLevel => {
                prompt_groups(&PromptTree::new(texts(job.requests.iter(), vocab).as_slice())).0
            }
        };
        let own = groups.iter().map(|group| group.number + 1).max().unwrap_or(0)..;
        let replaced = job.requests.iter().zip(groups).zip(own).map(|((request, group), own)| ReplayRequest {
            prompt: group.prompt(request.prompt.len(), own),
            ..request.clone()
        });
        replaced.collect()
    }
}

fn texts<'a>(requests: impl Iterator<Item = &'a ReplayRequest>, vocab: usize) -> Vec<Vec<TokenId>> {
    requests.map(|request| request.prompt.tokens(vocab)).collect()
}

/// The group of a prompt, and the length of the group's shared prefix in tokens.
#[derive(Clone, Copy, Default)]
pub struct PromptGroup {
    number: u64,
    shared: usize,
}

impl PromptGroup {
    /// One of its prompts, of `tokens` tokens: what the group shares, then text `own`.
    pub fn prompt(self, tokens: usize, own: u64) -> TracePrompt {
        TracePrompt::sharing(tokens, self.shared, self.number, own)
    }
}

/// The group of each prompt of a tree, and how many groups there are; a prompt without a group shares 0 tokens.
pub fn prompt_groups(tree: &PromptTree) -> (Vec<PromptGroup>, u64) {
    let mut groups = vec![PromptGroup::default(); tree.sorted().len()];
    let nodes = tree.single_level_nodes();
    for (number, &node) in (0u64..).zip(&nodes) {
        let node = &tree.nodes()[node as usize];
        for sorted in &tree.sorted()[node.prompts.start as usize..node.prompts.end as usize] {
            groups[sorted.prompt as usize] = PromptGroup { number, shared: node.end as usize };
        }
    }
    (groups, nodes.len() as u64)
}

/// The policy's name, or its parts if it has none.
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
