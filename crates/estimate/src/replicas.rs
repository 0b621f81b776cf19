//! A job divided among replicas (`--devices`): where the tree is cut, what each replica computes, and which prompt
//! tokens are copied between devices or computed twice. A run cuts in the same way; a prompt with more samples than its
//! share is cut between them.

use serde::Serialize;

use super::job::PlannedJob;
use super::sharing::SamplePrompts;
use offshoot_core::figures::{count, counted};
use offshoot_core::ids::TokenId;
use offshoot_engine::{EngineFacts, PrefixCosts};
use offshoot_kv::{PromptParts, PromptTree, Prompts, TokenCosts};

#[derive(Debug, Serialize)]
pub struct JobReplicas {
    pub replicas: Vec<ReplicaPart>,
    /// Prompt tokens that one device computes, and all replicas together.
    pub tokens_of_one_device: u64,
    pub tokens_computed: u64,
    pub tokens_twice: u64,
    /// Prompt tokens that a replica copies from another one.
    pub tokens_copied: u64,
}

/// What one replica has.
#[derive(Debug, Serialize)]
pub struct ReplicaPart {
    /// The prompt at which it begins, by its number in the job from 0 on; `None`: it has none.
    pub first_prompt: Option<u32>,
    /// The tokens of that prompt that the replica before it computes, too; and those that are copied instead.
    pub computed_twice: u64,
    pub copied: u64,
    pub samples: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
}

/// Which tokens are copied, as replicas choose: whole pages of so many tokens.
#[derive(Clone, Copy, Debug)]
pub struct Copying {
    costs: PrefixCosts,
    page_tokens: u64,
}

impl Copying {
    pub fn of(facts: &EngineFacts) -> Self {
        Copying { costs: facts.prefix_costs, page_tokens: facts.page_tokens as u64 }
    }

    /// Tokens that are copied of `shared` tokens that two replicas need.
    fn copied(self, shared: u64) -> u64 {
        let whole = shared / self.page_tokens * self.page_tokens;
        let pays = usize::try_from(whole).is_ok_and(|whole| self.costs.copying_pays(whole));
        if pays { whole } else { 0 }
    }
}

/// The most that the largest part may have of an equal share, in hundredths, before prompts are cut between samples.
const MOST_PERCENT: u64 = 105;

impl JobReplicas {
    /// `tree`: of the job's prompts; `sample_tree`: of its samples.
    pub fn of(
        job: &PlannedJob,
        tree: &PromptTree,
        sample_tree: &PromptTree,
        replicas: usize,
        copying: Copying,
    ) -> Self {
        let draws = job.draws();
        let by_prompts = tree.parts(&draws, TokenCosts::default(), replicas);
        let work: u64 = by_prompts.parts.iter().map(|part| part.work).sum();
        let largest = by_prompts.parts.iter().map(|part| part.work).max().unwrap_or(0);
        if largest.saturating_mul(100 * replicas as u64) <= work.saturating_mul(MOST_PERCENT) {
            let samples_of = |prompt: u32| u64::from(job.per_prompt[prompt as usize].samples);
            return Self::of_cut(&by_prompts, |prompt| prompt, samples_of, job, copying);
        }
        let samples = SamplePrompts::of(job);
        let outputs: Vec<u64> = samples
            .prompts
            .iter()
            .map(|&prompt| draws[prompt as usize] / u64::from(job.per_prompt[prompt as usize].samples).max(1))
            .collect();
        let by_samples = sample_tree.parts(&outputs, TokenCosts::default(), replicas);
        Self::of_cut(&by_samples, |sample| samples.prompts[sample as usize], |_| 1, job, copying)
    }

    fn of_cut(
        cut: &PromptParts,
        prompt_of: impl Fn(u32) -> u32,
        samples_of: impl Fn(u32) -> u64,
        job: &PlannedJob,
        copying: Copying,
    ) -> Self {
        let tokens = |at: u32| -> &[TokenId] { job.prompts.tokens(prompt_of(at) as usize) };
        let mut before: Option<u32> = None;
        let mut replicas = Vec::new();
        for part in &cut.parts {
            let first = part.prompts.first().copied();
            let shared = match (before, first) {
                (Some(before), Some(first)) => {
                    tokens(before).iter().zip(tokens(first)).take_while(|(one, other)| one == other).count() as u64
                }
                _ => 0,
            };
            let copied = copying.copied(shared);
            before = part.prompts.last().copied().or(before);
            replicas.push(ReplicaPart {
                first_prompt: first.map(&prompt_of),
                computed_twice: shared - copied,
                copied,
                samples: part.prompts.iter().map(|&at| samples_of(at)).sum(),
                prompt_tokens: part.prompt_tokens - copied,
                output_tokens: part.output_tokens,
            });
        }
        let tokens_copied = replicas.iter().map(|replica| replica.copied).sum();
        Self {
            replicas,
            tokens_of_one_device: cut.distinct_tokens,
            tokens_computed: cut.prompt_tokens() - tokens_copied,
            tokens_twice: cut.tokens_twice() - tokens_copied,
            tokens_copied,
        }
    }

    /// Names and texts of the report's lines.
    pub fn lines(&self) -> Vec<(String, String)> {
        let times = self.tokens_computed as f64 / self.tokens_of_one_device.max(1) as f64;
        let all = format!(
            "{}: {} computed, {} of them twice, {} copied: {times:.3} x one device's",
            count(self.replicas.len() as u64),
            counted(self.tokens_computed, "prompt token"),
            count(self.tokens_twice),
            count(self.tokens_copied)
        );
        let part = |(number, part): (usize, &ReplicaPart)| {
            let begin = match part.first_prompt {
                Some(prompt) => {
                    let (twice, copied) = (count(part.computed_twice), count(part.copied));
                    format!("from prompt {prompt} on, {twice} of it again, {copied} copied")
                }
                None => "nothing".to_owned(),
            };
            let text = format!(
                "{begin}: {}, {} computed, {} sampled",
                counted(part.samples, "sample"),
                counted(part.prompt_tokens, "prompt token"),
                count(part.output_tokens)
            );
            (format!("device {}", number + 1), text)
        };
        std::iter::once(("devices".to_owned(), all)).chain(self.replicas.iter().enumerate().map(part)).collect()
    }
}
