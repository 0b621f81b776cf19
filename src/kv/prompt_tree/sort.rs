//! Prompts in the order of their tokens, each with what it shares with the one before it: a merge sort that never
//! compares tokens twice which it knows to be equal (W. Ng and K. Kakehi, "Merging string sequences by longest common
//! prefixes", 2008). It looks at each prompt's tokens up to where the prompt differs from its neighbours, and once for
//! each level of merging at one more.

use crate::ids::TokenId;

use super::Prompts;

/// Prompts that one core sorts alone.
const ALONE: usize = 256;

/// A prompt in the order of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    pub prompt: u32,
    /// Tokens that it begins with as the prompt before it does: as any prompt before it does. 0 for the first.
    pub shared: u32,
}

/// All prompts by tokens, a prompt before those that it begins, equal ones as they arrived.
pub fn by_tokens<P: Prompts + ?Sized>(prompts: &P) -> Vec<Sorted> {
    let count = u32::try_from(prompts.count()).expect("prompts are counted in u32");
    let mut sorted: Vec<Sorted> = (0..count).map(|prompt| Sorted { prompt, shared: 0 }).collect();
    sort(prompts, &mut sorted, &mut vec![Sorted::default(); count as usize]);
    sorted
}

/// Sorts `run`; `spare` is as long, and is left in any order.
fn sort<P: Prompts + ?Sized>(prompts: &P, run: &mut [Sorted], spare: &mut [Sorted]) {
    if run.len() < 2 {
        return;
    }
    let middle = run.len() / 2;
    let (left, right) = run.split_at_mut(middle);
    let (spare_left, spare_right) = spare.split_at_mut(middle);
    if left.len() < ALONE {
        sort(prompts, left, spare_left);
        sort(prompts, right, spare_right);
    } else {
        rayon::join(|| sort(prompts, left, spare_left), || sort(prompts, right, spare_right));
    }
    merge(prompts, left, right, spare);
    run.copy_from_slice(spare);
}

/// Merges two sorted runs, `left` first where prompts are equal.
fn merge<P: Prompts + ?Sized>(prompts: &P, left: &[Sorted], right: &[Sorted], merged: &mut [Sorted]) {
    let (mut left, mut right) = (Head::of(left), Head::of(right));
    for next in merged {
        let from_left = match (left.prompt(), right.prompt()) {
            // What shares more with the prompt put out last stands nearer to it.
            (Some(_), Some(_)) if left.shared != right.shared => left.shared > right.shared,
            (Some(a), Some(b)) => {
                let (a, b) = (prompts.tokens(a as usize), prompts.tokens(b as usize));
                let known = left.shared as usize;
                let shared = known + common(&a[known..], &b[known..]);
                let left_first = shared == a.len() || shared < b.len() && a[shared] < b[shared];
                let behind = if left_first { &mut right } else { &mut left };
                behind.shared = u32::try_from(shared).expect("a prompt's tokens are counted in u32");
                left_first
            }
            (left, _) => left.is_some(),
        };
        *next = if from_left { left.take() } else { right.take() };
    }
}

/// The rest of a run that is merged.
struct Head<'a> {
    run: &'a [Sorted],
    /// Tokens that its first prompt shares with the prompt put out last.
    shared: u32,
}

impl<'a> Head<'a> {
    fn of(run: &'a [Sorted]) -> Self {
        Self { run, shared: 0 }
    }

    fn prompt(&self) -> Option<u32> {
        self.run.first().map(|first| first.prompt)
    }

    /// Puts out the first prompt: the next one shares with it what the run says.
    fn take(&mut self) -> Sorted {
        let taken = Sorted { prompt: self.run[0].prompt, shared: self.shared };
        self.run = &self.run[1..];
        self.shared = self.run.first().map_or(0, |next| next.shared);
        taken
    }
}

/// Tokens with which both begin.
fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    const AT_ONCE: usize = 16;
    let (chunks_a, _) = a.as_chunks::<AT_ONCE>();
    let (chunks_b, _) = b.as_chunks::<AT_ONCE>();
    // Without a branch within, so that a chunk is a few vector instructions.
    let differ = |(a, b): &(&[TokenId; AT_ONCE], &[TokenId; AT_ONCE])| {
        a.iter().zip(b.iter()).fold(0, |bits, (a, b)| bits | (a.0 ^ b.0)) != 0
    };
    let equal = AT_ONCE * chunks_a.iter().zip(chunks_b).take_while(|pair| !differ(pair)).count();
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}
