//! Counts the tokens of a run by level: for each level of the prompts, root first, and for the samples below them, the
//! tokens without sharing and with every common prefix shared. It counts prompts and finished samples; the engine's own
//! counters hold what the engine did (such as prompts computed again after an eviction).

use crate::eval::report::{AttentionCoverage, LevelUse};
use crate::kv::PromptTree;
use crate::search::Sample;

use super::worker::Finished;
use super::{ItemPrompt, PreparedRun};

/// The levels of the prompts of `finished`, and the samples last; empty where nothing has finished. Also how many
/// samples have recorded attention; `None` where none has.
pub fn levels(
    prepared: &PreparedRun,
    finished: &[Finished],
    kv_bytes_per_token: u64,
) -> (Vec<LevelUse>, Option<AttentionCoverage>) {
    if finished.is_empty() {
        return (Vec::new(), None);
    }
    let mut uses: Vec<(u64, u64)> = Vec::new();
    let mut sampled = 0;
    let samples_of = |prompt: &ItemPrompt| {
        let at = finished.binary_search_by_key(&prompt.item.index, |item| item.index).ok()?;
        Some(&finished[at].outcome.samples)
    };
    let (prompts, samples): (Vec<_>, Vec<_>) =
        prepared.prompts.iter().filter_map(|prompt| Some((prompt, samples_of(prompt)?))).unzip();
    for sorted in PromptTree::new(prompts.as_slice()).sorted() {
        let (prompt, samples) = (prompts[sorted.prompt as usize], samples[sorted.prompt as usize]);
        // A choice among given answers draws nothing, and has its prompt computed all the same.
        add(prompt, samples.len().max(1) as u64, sorted.shared as usize, &mut uses);
        sampled += samples.iter().map(|sample| sample.tokens as u64).sum::<u64>();
    }
    uses.push((sampled, sampled));
    let last = uses.len();
    let told_by = samples.iter().copied().flatten();
    let told_by = told_by.filter_map(|sample| Some((sample.tokens, sample.attention.as_deref()?)));
    let attention = mean_attention(told_by, last);
    let level = |(ix, (unshared, shared)): (usize, (u64, u64))| LevelUse {
        level: if ix + 1 == last { "samples".to_string() } else { format!("prompt level {}", ix + 1) },
        tokens: shared,
        tokens_unshared: unshared,
        kv_bytes: shared * kv_bytes_per_token,
        kv_bytes_unshared: unshared * kv_bytes_per_token,
        attention: attention.as_ref().map(|parts| parts[ix]),
    };
    (uses.into_iter().enumerate().map(level).collect(), told(samples.into_iter().flatten()))
}

/// How many of `samples` have recorded attention; `None` where none has.
fn told<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<AttentionCoverage> {
    let mut told = AttentionCoverage { samples: 0, of: 0 };
    for sample in samples.filter(|sample| sample.tokens > 0) {
        told.samples += usize::from(sample.attention.is_some());
        told.of += 1;
    }
    (told.samples > 0).then_some(told)
}

/// The share of attention on each of `levels` levels, the own text last: the mean over the tokens of `samples`, each of
/// so many tokens with the shares of its levels; `None` where there are none.
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

/// Adds the levels of one prompt: all of its tokens once for each of its samples, and those behind the `shared` ones
/// with which an earlier prompt begins, too.
fn add(prompt: &ItemPrompt, samples: u64, shared: usize, uses: &mut Vec<(u64, u64)>) {
    for (ix, level) in prompt.levels.levels().enumerate() {
        if uses.len() == ix {
            uses.push((0, 0));
        }
        uses[ix].0 += samples * level.len() as u64;
        uses[ix].1 += level.end.saturating_sub(level.start.max(shared)) as u64;
    }
}
