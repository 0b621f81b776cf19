//! Sorts prompts by tokens and computes the longest common prefix of neighbours, by a merge sort that never compares
//! tokens again which it knows to be equal (W. Ng and K. Kakehi, "Merging string sequences by longest common prefixes",
//! 2008). It reads each prompt up to where it differs from its neighbours, plus one token per level of merging.

use offshoot_core::ids::TokenId;

/// Runs of fewer prompts are sorted on one thread.
const PARALLEL_FROM: usize = 256;

/// A prompt in sorted order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SortedPrompt {
    /// Its index by arrival.
    pub prompt: u32,
    /// Length of the longest common prefix with the prompt before it (and so with any prompt before it); 0 for the
    /// first.
    pub shared: u32,
}

/// All prompts in lexicographic order of tokens, equal ones by arrival.
pub fn by_tokens(prompts: &[&[TokenId]]) -> Vec<SortedPrompt> {
    let count = u32::try_from(prompts.len()).expect("prompts are counted in u32");
    let mut sorted: Vec<SortedPrompt> = (0..count).map(|prompt| SortedPrompt { prompt, shared: 0 }).collect();
    sort(prompts, &mut sorted, &mut vec![SortedPrompt::default(); count as usize]);
    sorted
}

/// Sorts `run`. `spare` has the same length; its contents are overwritten.
fn sort(prompts: &[&[TokenId]], run: &mut [SortedPrompt], spare: &mut [SortedPrompt]) {
    if run.len() < 2 {
        return;
    }
    let middle = run.len() / 2;
    let (left, right) = run.split_at_mut(middle);
    let (spare_left, spare_right) = spare.split_at_mut(middle);
    if left.len() < PARALLEL_FROM {
        sort(prompts, left, spare_left);
        sort(prompts, right, spare_right);
    } else {
        rayon::join(|| sort(prompts, left, spare_left), || sort(prompts, right, spare_right));
    }
    merge(prompts, left, right, spare);
    run.copy_from_slice(spare);
}

/// Merges two sorted runs, `left` first where prompts are equal.
fn merge(prompts: &[&[TokenId]], left: &[SortedPrompt], right: &[SortedPrompt], merged: &mut [SortedPrompt]) {
    let (mut left, mut right) = (Head::of(left), Head::of(right));
    for next in merged {
        let from_left = match (left.prompt(), right.prompt()) {
            // The one that shares more tokens with the last merged prompt comes first.
            (Some(_), Some(_)) if left.shared != right.shared => left.shared > right.shared,
            (Some(a), Some(b)) => {
                let (a, b) = (prompts[a as usize], prompts[b as usize]);
                let known = left.shared as usize;
                let shared = known + common_prefix(&a[known..], &b[known..]);
                let left_first = shared == a.len() || shared < b.len() && a[shared] < b[shared];
                let later = if left_first { &mut right } else { &mut left };
                later.shared = u32::try_from(shared).expect("a prompt's tokens are counted in u32");
                left_first
            }
            (left, _) => left.is_some(),
        };
        *next = if from_left { left.take() } else { right.take() };
    }
}

/// The part of a run not merged yet.
struct Head<'a> {
    run: &'a [SortedPrompt],
    /// Tokens that its first prompt shares with the last merged prompt.
    shared: u32,
}

impl<'a> Head<'a> {
    fn of(run: &'a [SortedPrompt]) -> Self {
        Self { run, shared: 0 }
    }

    fn prompt(&self) -> Option<u32> {
        self.run.first().map(|first| first.prompt)
    }

    /// Removes and returns the first prompt.
    fn take(&mut self) -> SortedPrompt {
        let taken = SortedPrompt { prompt: self.run[0].prompt, shared: self.shared };
        self.run = &self.run[1..];
        self.shared = self.run.first().map_or(0, |next| next.shared);
        taken
    }
}

/// Length of the longest common prefix.
fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    const AT_ONCE: usize = 16;
    let (chunks_a, _) = a.as_chunks::<AT_ONCE>();
    let (chunks_b, _) = b.as_chunks::<AT_ONCE>();
    // Branch-free within a chunk, so that it compiles to a few vector instructions.
    let differ = |(a, b): &(&[TokenId; AT_ONCE], &[TokenId; AT_ONCE])| {
        a.iter().zip(b.iter()).fold(0, |bits, (a, b)| bits | (a.0 ^ b.0)) != 0
    };
    let equal = AT_ONCE * chunks_a.iter().zip(chunks_b).take_while(|pair| !differ(pair)).count();
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}
