//! How long samples become, of which only a limit is known: for whoever orders or places prompts before they are
//! sampled.
//! `admission` estimates it for the branches that run, by the latest ones.

/// The lengths of finished samples, as sums: from them follows the expected output length as a fraction of the limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledLengths {
    /// Tokens sampled.
    pub sampled: u64,
    /// The sum of the limits; 0 before any sample has finished.
    pub most: u64,
}

impl SampledLengths {
    /// Records a finished sample, of at most `most` tokens.
    pub fn note(&mut self, sampled: usize, most: usize) {
        self.sampled += sampled as u64;
        self.most += most as u64;
    }
}
