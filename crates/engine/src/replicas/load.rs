//! Expected work, in units of the time that one token of a prompt takes; a sampled token counts as much, as in
//! `kv::TokenCosts`. What placing and taking over compare.

use std::ops::{AddAssign, SubAssign};

use crate::{Continuation, SampledLengths, Stop};

/// Tokens to compute and tokens to sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub prompt: u64,
    pub output: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.prompt += other.prompt;
        self.output += other.output;
    }
}

impl SubAssign for Work {
    fn sub_assign(&mut self, other: Work) {
        self.prompt -= other.prompt;
        self.output -= other.output;
    }
}

/// How fast a replica samples.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Rows below which a step takes no less time, because it reads all weights anyway.
    rows: u64,
}

impl Pace {
    /// A GPU multiplies about this many rows while it reads the weights (an H200 about 200, in 16 bits); a CPU few.
    pub fn of(is_async: bool) -> Self {
        Pace { rows: if is_async { 128 } else { 8 } }
    }

    /// The time of `work`, whose longest sample has `longest` tokens.
    pub fn time(self, work: Work, longest: u64) -> u64 {
        work.prompt + work.output.max(longest.saturating_mul(self.rows))
    }
}

/// The tokens to sample that an extend is expected to bring.
pub fn expected(lengths: SampledLengths, continuation: &Continuation, room: usize) -> u64 {
    let Continuation::Sampled { stop, .. } = continuation else { return 0 };
    let most = most_sampled(stop, room) as u64;
    match lengths.most {
        0 => most,
        _ if stop.is_exact() => most,
        all => ((most as f64 * lengths.sampled as f64 / all as f64) as u64).max(1),
    }
}

/// Most tokens that an extend samples where the context has `room` for so many.
pub fn most_sampled(stop: &Stop, room: usize) -> usize {
    stop.max_tokens.min(room)
}
