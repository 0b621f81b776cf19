//! Counts the tokens of a run by level: for each level of the prompts, root first, and for the samples below them, the
//! tokens without sharing and with every common prefix shared. It counts prompts and finished samples; the engine's own
//! counters hold what the engine did (such as prompts computed again after an eviction).

use crate::report::LevelUse;
use offshoot_kv::DistinctTokens;
use offshoot_text::LevelTokens;

use super::outcome::Finished;

/// The tokens of prompts by level, counted one prompt after another.
#[derive(Default)]
pub struct LevelCounts {
    /// Finds the tokens that a prompt shares with earlier ones.
    seen: DistinctTokens,
    /// For each level, its tokens without and with sharing.
    uses: Vec<(u64, u64)>,
}

impl LevelCounts {
    /// Adds a prompt: without sharing, each token counts once per sample; with sharing, each token that no earlier
    /// prompt shares counts once.
    pub fn add(&mut self, prompt: &LevelTokens, samples: usize) {
        let shared = self.seen.insert(&prompt.tokens);
        // A choice among given answers samples nothing, but its prompt is computed.
        let samples = samples.max(1) as u64;
        for (ix, level) in prompt.levels().enumerate() {
            if self.uses.len() == ix {
                self.uses.push((0, 0));
            }
            self.uses[ix].0 += samples * level.len() as u64;
            self.uses[ix].1 += level.end.saturating_sub(level.start.max(shared)) as u64;
        }
    }
}

/// The levels of the prompts of `finished`, counted by `counts`, and the samples last; empty if nothing has finished.
pub fn levels(counts: LevelCounts, finished: &[Finished], kv_bytes_per_token: u64) -> Vec<LevelUse> {
    if finished.is_empty() {
        return Vec::new();
    }
    let mut uses = counts.uses;
    let sampled = finished.iter().flat_map(|item| &item.outcome.samples).map(|sample| sample.tokens as u64).sum();
    uses.push((sampled, sampled));
    let last = uses.len();
    let level = |(ix, (unshared, shared)): (usize, (u64, u64))| LevelUse {
        level: if ix + 1 == last { "samples".to_string() } else { format!("prompt level {}", ix + 1) },
        tokens: shared,
        tokens_unshared: unshared,
        kv_bytes: shared * kv_bytes_per_token,
        kv_bytes_unshared: unshared * kv_bytes_per_token,
    };
    uses.into_iter().enumerate().map(level).collect()
}

/// The share of attention on each of `levels` levels, the own text last: the mean over the tokens of `samples`, each
/// given by its number of tokens and its shares; `None` without samples.
pub fn mean_attention<'a, T: Copy + Into<f64> + 'a>(
    samples: impl Iterator<Item = (usize, &'a [T])>,
    levels: usize,
) -> Option<Vec<f64>> {
    let (mut sums, mut tokens) = (vec![0.0; levels], 0.0);
    for (weight, shares) in samples {
        let Some((own, prompt)) = shares.split_last() else { continue };
        let weight = weight as f64;
        sums.iter_mut().zip(prompt).for_each(|(sum, &share)| *sum += weight * share.into());
        sums[levels - 1] += weight * (*own).into();
        tokens += weight;
    }
    (tokens > 0.0).then(|| sums.into_iter().map(|sum| sum / tokens).collect())
}
