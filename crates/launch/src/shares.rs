//! How the memory for keys and values is divided between a generator and the model beside it.
#![warn(missing_docs)]

/// What a model can use of the memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PoolDemand {
    /// Tokens of text.
    pub tokens: TextTokens,
    pub bytes_per_token: usize,
    /// Bytes of the states of delta-rule layers that are useful; 0 if the model has none.
    pub states: usize,
    /// Bytes of the fewest pages.
    pub least: usize,
}

/// The tokens of a model's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextTokens {
    /// The most that the model can use.
    pub useful: usize,
    /// Those by which memory is divided where there is less than both models can use.
    pub expected: usize,
}

impl TextTokens {
    /// Texts whose tokens are known, or without an end that is known.
    pub fn known(tokens: usize) -> TextTokens {
        TextTokens { useful: tokens, expected: tokens }
    }
}

impl PoolDemand {
    /// All bytes that it can use.
    fn bytes(self) -> usize {
        self.kv_bytes().saturating_add(self.states)
    }

    /// Those of keys and values.
    pub fn kv_bytes(self) -> usize {
        self.tokens.useful.saturating_mul(self.bytes_per_token)
    }

    /// Bytes that are expected, for shares: without an end where no end of the tokens is known.
    fn weight(self) -> f64 {
        self.tokens.expected as f64 * self.bytes_per_token as f64 + self.states as f64
    }
}

/// The bytes of the generator and of the second model, of `total`. `share`: the second's share, if it is given; else
/// each has what it can use, or, where that is more than there is, a part in proportion to what is expected: both then
/// hold texts of one length. What the generator cannot use of its part is the second's.
pub(super) fn divided(total: usize, generator: PoolDemand, second: PoolDemand, share: Option<f64>) -> [usize; 2] {
    let of_second = match share {
        Some(share) => (total as f64 * share) as usize,
        None if generator.bytes().saturating_add(second.bytes()) <= total => second.bytes(),
        None => {
            let part = (total as f64 * (second.weight() / (generator.weight() + second.weight()))) as usize;
            part.max(total.saturating_sub(generator.bytes())).min(second.bytes())
        }
    };
    let of_second = of_second.min(total);
    [generator.bytes().min(total - of_second), second.bytes().min(of_second)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn demand(tokens: TextTokens, bytes_per_token: usize) -> PoolDemand {
        PoolDemand { tokens, bytes_per_token, states: 0, least: 0 }
    }

    #[test]
    fn each_has_what_it_can_use_or_both_hold_texts_of_one_length() {
        let demand = |tokens, bytes_per_token| demand(TextTokens::known(tokens), bytes_per_token);
        assert_eq!(divided(10_000, demand(100, 32), demand(110, 8), None), [3200, 880]);
        // Four parts of five, and one.
        assert_eq!(divided(10_000, demand(usize::MAX, 32), demand(usize::MAX, 8), None), [8000, 2000]);
        assert_eq!(divided(2_000, demand(100, 32), demand(100, 8), None), [1600, 400]);
        // A share is the second's whatever the texts are, but nobody has more than he can use.
        assert_eq!(divided(10_000, demand(usize::MAX, 32), demand(usize::MAX, 8), Some(0.5)), [5000, 5000]);
        assert_eq!(divided(10_000, demand(100, 32), demand(100, 8), Some(0.5)), [3200, 800]);
        assert_eq!(divided(10_000, demand(usize::MAX, 32), demand(100, 8), Some(0.5)), [5000, 800]);
        // States count.
        let states = PoolDemand { states: 800, ..demand(100, 8) };
        assert_eq!(divided(1_600, demand(100, 16), states, None), [800, 800]);
        assert_eq!(divided(0, demand(1, 1), demand(1, 1), None), [0, 0]);
    }

    #[test]
    fn texts_of_unknown_length_have_what_the_generator_cannot_use() {
        let questions = demand(TextTokens { useful: 5_000, expected: 100 }, 8);
        let samples = |tokens| demand(TextTokens::known(tokens), 32);
        // The generator's 3,200 bytes are its own, and the rest is for questions, as far as they can be useful.
        assert_eq!(divided(10_000, samples(100), questions, None), [3200, 6800]);
        assert_eq!(divided(100_000, samples(100), questions, None), [3200, 40_000]);
        // Where the generator can use all, both have parts by what is expected: four of five, and one.
        assert_eq!(divided(2_000, samples(100), questions, None), [1600, 400]);
        // What questions cannot use of their part is the generator's.
        let few = demand(TextTokens { useful: 10, expected: 100 }, 8);
        assert_eq!(divided(2_000, samples(100), few, None), [1920, 80]);
    }
}
