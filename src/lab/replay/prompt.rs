//! Prompts whose words do not matter: only which of their beginnings are the same.

use crate::ids::TokenId;
use crate::mix::{GOLDEN, mix};

/// The tokens of a prompt, or what they are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    Tokens(Vec<TokenId>),
    /// Runs one after another. Two runs of one text begin alike, as far as the shorter goes; those of two texts differ from
    /// their first tokens on (texts of numbers below the square of the vocabulary: from the first two).
    Runs(Vec<Run>),
}

/// The first `tokens` tokens of an endless text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub text: u64,
    pub tokens: usize,
}

impl Run {
    fn token(self, at: usize, vocab: u64) -> TokenId {
        let value = match at {
            0 => self.text,
            1 => self.text / vocab,
            _ => mix(self.text.wrapping_mul(GOLDEN).wrapping_add(at as u64)),
        };
        TokenId::new((value % vocab) as usize)
    }
}

impl Prompt {
    pub fn len(&self) -> usize {
        match self {
            Prompt::Tokens(tokens) => tokens.len(),
            Prompt::Runs(runs) => runs.iter().map(|run| run.tokens).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its tokens, in a vocabulary of `vocab`.
    pub fn tokens(&self, vocab: usize) -> Vec<TokenId> {
        match self {
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Runs(runs) => {
                runs.iter().flat_map(|&run| (0..run.tokens).map(move |at| run.token(at, vocab as u64))).collect()
            }
        }
    }

    /// Another prompt of the same length, that shares its first `shared` tokens with those of text `with`, and the rest with
    /// those of text `rest`.
    pub(super) fn replaced(&self, shared: usize, with: u64, rest: u64) -> Prompt {
        let runs = [Run { text: with, tokens: shared }, Run { text: rest, tokens: self.len() - shared }];
        Prompt::Runs(runs.into_iter().filter(|run| run.tokens > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(runs: &[(u64, usize)]) -> Prompt {
        Prompt::Runs(runs.iter().map(|&(text, tokens)| Run { text, tokens }).collect())
    }

    fn common(a: &Prompt, b: &Prompt) -> usize {
        let (a, b) = (a.tokens(100), b.tokens(100));
        a.iter().zip(&b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn prompts_share_what_their_runs_share() {
        let prompt = runs(&[(0, 50), (1, 20)]);
        assert_eq!(prompt.tokens(100).len(), 70);
        assert_eq!(common(&prompt, &runs(&[(0, 50), (2, 20)])), 50);
        assert_eq!(common(&prompt, &runs(&[(0, 30)])), 30);
        assert_eq!(common(&prompt, &runs(&[(101, 50)])), 0);
        assert!(common(&prompt, &runs(&[(100, 50)])) < 2, "100 begins as 0 does, in a vocabulary of 100");
    }

    #[test]
    fn what_is_replaced_shares_what_it_is_told_to() {
        let prompt = runs(&[(0, 50), (1, 20)]);
        for shared in [0, 10, 70] {
            let (a, b) = (prompt.replaced(shared, 3, 7), prompt.replaced(shared, 3, 8));
            assert_eq!((common(&a, &b), a.len(), b.len()), (shared, 70, 70));
        }
        assert_eq!(common(&prompt.replaced(50, 3, 7), &prompt.replaced(50, 4, 7)), 0);
    }
}
