//! The tokens that a row may sample, as one bit for each token of the vocabulary. Requests share a set; who makes sets,
//! and lets requests of equal ones share one, is left to the engine.

use offshoot_core::ids::TokenId;

/// Bits of a word.
const BITS: usize = u32::BITS as usize;

/// A set of tokens that may be sampled; all others have a score of -inf. A request names its set, which may be another
/// one in each step.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct AllowedTokens {
    /// Bit `t % 32` of word `t / 32` stands for token `t`. Bits past the vocabulary are 0.
    words: Vec<u32>,
    vocab: usize,
}

impl AllowedTokens {
    /// The set of `tokens`, of a vocabulary of `vocab`. Panics on a token that is not below it.
    pub fn new(tokens: impl IntoIterator<Item = TokenId>, vocab: usize) -> Self {
        let mut words = vec![0; vocab.div_ceil(BITS)];
        for token in tokens {
            assert!(token.ix() < vocab, "allowed tokens: token {token} of {vocab}");
            words[token.ix() / BITS] |= 1 << (token.ix() % BITS);
        }
        Self { words, vocab }
    }

    /// The set whose [`words`](Self::words) are these. Bits past the vocabulary are cleared, missing words are 0.
    pub fn from_words(mut words: Vec<u32>, vocab: usize) -> Self {
        words.resize(vocab.div_ceil(BITS), 0);
        if let Some(last) = words.last_mut().filter(|_| !vocab.is_multiple_of(BITS)) {
            *last &= (1 << (vocab % BITS)) - 1;
        }
        Self { words, vocab }
    }

    /// Whether `token` is one of them.
    pub fn contains(&self, token: TokenId) -> bool {
        self.words.get(token.ix() / BITS).is_some_and(|word| word >> (token.ix() % BITS) & 1 == 1)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// One bit for each token of the vocabulary: bit `t % 32` of word `t / 32` is 1 for a token `t` of the set.
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_a_bit_for_each_token() {
        let set = AllowedTokens::new([0, 31, 32, 69, 69].map(TokenId), 70);
        assert_eq!(set.words(), [1 << 31 | 1, 1, 1 << 5]);
        let found: Vec<u32> = (0..96).filter(|&token| set.contains(TokenId(token))).collect();
        assert_eq!((found, set.count(), set.vocab()), (vec![0, 31, 32, 69], 4, 70));
        assert_eq!(AllowedTokens::new([], 64).words(), [0, 0]);
    }

    #[test]
    fn words_make_the_set_that_has_them() {
        let of = |words: &[u32], vocab| AllowedTokens::from_words(words.to_vec(), vocab);
        assert_eq!(of(&[1, u32::MAX], 34), AllowedTokens::new([0, 32, 33].map(TokenId), 34));
        assert_eq!(of(&[2, 0, 7], 64), AllowedTokens::new([TokenId(1)], 64));
        assert_eq!(of(&[2], 64), AllowedTokens::new([TokenId(1)], 64));
        assert_eq!(of(&[u32::MAX], 32).count(), 32);
    }

    #[test]
    #[should_panic(expected = "token 70 of 70")]
    fn a_token_past_the_vocabulary_is_in_no_set() {
        AllowedTokens::new([TokenId(70)], 70);
    }
}
