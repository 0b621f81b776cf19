//! How the memory for keys and values is divided between a generator and the scorer beside it.
#![warn(missing_docs)]

/// What a model can use of the memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PoolDemand {
    /// Tokens of text.
    pub tokens: usize,
    pub bytes_per_token: usize,
    /// Bytes of the states of delta-rule layers that are useful; 0 if the model has none.
    pub states: usize,
    /// Bytes of the fewest pages.
    pub least: usize,
}

impl PoolDemand {
    /// All bytes that it can use.
    fn bytes(self) -> usize {
        self.kv_bytes().saturating_add(self.states)
    }

    /// Those of keys and values.
    pub fn kv_bytes(self) -> usize {
        self.tokens.saturating_mul(self.bytes_per_token)
    }

    /// As `bytes`, for shares: without an end where no end of the tokens is known.
    fn weight(self) -> f64 {
        self.tokens as f64 * self.bytes_per_token as f64 + self.states as f64
    }
}

/// The bytes of the generator and of the scorer, of `total`. `share`: the scorer's share, if it is given; else each has
/// what it can use, or, where that is more than there is, a part in proportion: both then hold texts of one length.
pub(super) fn divided(total: usize, generator: PoolDemand, scorer: PoolDemand, share: Option<f64>) -> [usize; 2] {
    let all = generator.bytes().saturating_add(scorer.bytes());
    let of_scorer = match share {
        Some(share) => (total as f64 * share) as usize,
        None if all <= total => scorer.bytes(),
        None => (total as f64 * (scorer.weight() / (generator.weight() + scorer.weight()))) as usize,
    };
    let of_scorer = of_scorer.min(total);
    [generator.bytes().min(total - of_scorer), scorer.bytes().min(of_scorer)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_what_it_can_use_or_both_hold_texts_of_one_length() {
        let demand = |tokens, bytes_per_token| PoolDemand { tokens, bytes_per_token, states: 0, least: 0 };
        assert_eq!(divided(10_000, demand(100, 32), demand(110, 8), None), [3200, 880]);
        // Four parts of five, and one.
        assert_eq!(divided(10_000, demand(usize::MAX, 32), demand(usize::MAX, 8), None), [8000, 2000]);
        assert_eq!(divided(2_000, demand(100, 32), demand(100, 8), None), [1600, 400]);
        // A share is the scorer's whatever the texts are, but nobody has more than he can use.
        assert_eq!(divided(10_000, demand(usize::MAX, 32), demand(usize::MAX, 8), Some(0.5)), [5000, 5000]);
        assert_eq!(divided(10_000, demand(100, 32), demand(100, 8), Some(0.5)), [3200, 800]);
        assert_eq!(divided(10_000, demand(usize::MAX, 32), demand(100, 8), Some(0.5)), [5000, 800]);
        // States count.
        let states = PoolDemand { states: 800, ..demand(100, 8) };
        assert_eq!(divided(1_600, demand(100, 16), states, None), [800, 800]);
        assert_eq!(divided(0, demand(1, 1), demand(1, 1), None), [0, 0]);
    }
}
