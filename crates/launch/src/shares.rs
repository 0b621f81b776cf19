//! How the memory for keys and values is divided between a generator and the model beside it.
#![warn(missing_docs)]

/// What a model can use of the memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PoolDemand {
    /// Tokens of text.
    pub tokens: TextTokens,
    pub bytes_per_token: usize,
    /// Bytes of the states of recurrent layers that are useful; 0 if the model has none.
    pub states: usize,
    /// Bytes of the fewest pages, and of one for each part of a text's keys and values.
    pub least: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
}

/// The tokens of a model's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextTokens {
    /// The most that the model can use.
    pub useful: usize,
    /// Those by which memory is divided where there is less than both models can use.
    pub expected: usize,
    /// Those of the longest text; `None`: it is not known.
    pub longest: Option<usize>,
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

    /// Bytes with which the longest text is read, states included: they have half of the memory at most.
    fn of_longest(self) -> usize {
        let Some(longest) = self.tokens.longest else { return self.least };
        let pages = longest.saturating_add(2 * self.page_tokens).saturating_mul(self.bytes_per_token);
        let states = self.states.min(pages);
        pages.saturating_add(states).max(self.least).min(self.bytes())
    }

    /// Bytes that are expected, for shares: without an end where no end of the tokens is known.
    fn weight(self) -> f64 {
        self.tokens.expected as f64 * self.bytes_per_token as f64 + self.states as f64
    }
}

/// The bytes of the generator and of the second model, of `total`. `share`: the second's share, if it is given; else
/// each has what it can use, or, where that is more than there is, a part in proportion to what is expected: both then
/// hold texts of one length. What the generator cannot use of its part is the second's, and where both longest texts
/// fit, neither has less than its own needs.
pub(super) fn divided(total: usize, generator: PoolDemand, second: PoolDemand, share: Option<f64>) -> [usize; 2] {
    let of_second = match share {
        Some(share) => (total as f64 * share) as usize,
        None if generator.bytes().saturating_add(second.bytes()) <= total => second.bytes(),
        None => {
            let part = (total as f64 * (second.weight() / (generator.weight() + second.weight()))) as usize;
            let part = part.max(total.saturating_sub(generator.bytes())).min(second.bytes());
            let [of_first, of_second] = [generator, second].map(PoolDemand::of_longest);
            match of_first.saturating_add(of_second) <= total {
                true => part.clamp(of_second, total - of_first),
                false => part,
            }
        }
    };
    let of_second = of_second.min(total);
    [generator.bytes().min(total - of_second), second.bytes().min(of_second)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(tokens: TextTokens, bytes_per_token: usize) -> PoolDemand {
        PoolDemand { tokens, bytes_per_token, states: 0, least: 0, page_tokens: 1 }
    }

    fn known(tokens: usize) -> TextTokens {
        TextTokens { useful: tokens, expected: tokens, longest: None }
    }

    #[test]
    fn each_has_what_it_can_use_or_both_hold_texts_of_one_length() {
        let demand = |tokens, bytes_per_token| demand(known(tokens), bytes_per_token);
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
        let questions = demand(TextTokens { useful: 5_000, expected: 100, longest: None }, 8);
        let samples = |tokens| demand(known(tokens), 32);
        // The generator's 3,200 bytes are its own, and the rest is for questions, as far as they can be useful.
        assert_eq!(divided(10_000, samples(100), questions, None), [3200, 6800]);
        assert_eq!(divided(100_000, samples(100), questions, None), [3200, 40_000]);
        // Where the generator can use all, both have parts by what is expected: four of five, and one.
        assert_eq!(divided(2_000, samples(100), questions, None), [1600, 400]);
        // What questions cannot use of their part is the generator's.
        let few = demand(TextTokens { useful: 10, expected: 100, longest: None }, 8);
        assert_eq!(divided(2_000, samples(100), few, None), [1920, 80]);
    }

    #[test]
    fn both_hold_their_longest_texts_where_these_fit() {
        let texts =
            |longest, bytes_per_token| demand(TextTokens { longest: Some(longest), ..known(1000) }, bytes_per_token);
        // States make the generator's part much larger; 38 tokens of a text and two pages of one token are 320 bytes.
        let generator = PoolDemand { states: 100_000, ..texts(8, 32) };
        assert_eq!(divided(2_000, generator, texts(38, 8), None), [1680, 320]);
        let unknown = PoolDemand { tokens: known(1000), ..generator };
        assert_eq!(divided(2_000, unknown, demand(known(1000), 8), None), [1886, 114]);
        // A share that the user gives is kept.
        assert_eq!(divided(2_000, generator, texts(38, 8), Some(0.1)), [1800, 200]);
        // Of two that do not fit, neither goes first.
        assert_eq!(divided(300, texts(8, 32), texts(38, 8), None), [240, 60]);
    }
}
