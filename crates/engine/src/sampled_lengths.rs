//! How long samples become, of which only a limit is known: for whoever orders or places prompts before they are
//! sampled.
//! `admission` estimates it for the branches that run, by the latest ones.

/// Expected output length as a fraction of the limit, over finished samples of unknown length.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledLengths {
    sampled: u64,
    /// The sum of their limits.
    most: u64,
}

impl SampledLengths {
    /// Records a finished sample, of at most `most` tokens.
    pub fn note(&mut self, sampled: usize, most: usize) {
        self.sampled += sampled as u64;
        self.most += most as u64;
    }

    /// Expected output length as a fraction of the limit; 1 before any sample has finished.
    pub fn share(self) -> f64 {
        if self.most == 0 { 1.0 } else { self.sampled as f64 / self.most as f64 }
    }

    /// Expected tokens of samples that have at most `most` together, or always so many (`is_exact`).
    pub fn expected(self, most: u64, is_exact: bool) -> u64 {
        if is_exact { most } else { (most as f64 * self.share()) as u64 }
    }
}
