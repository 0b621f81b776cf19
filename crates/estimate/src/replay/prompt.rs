//! Synthetic prompts: only the lengths of their common prefixes matter.

use offshoot_core::ids::TokenId;
use offshoot_core::mix::{GOLDEN, mix};

/// The tokens of a prompt, or runs of synthetic text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TracePrompt {
    Tokens(Vec<TokenId>),
    /// Concatenated runs. Two runs of the same text share the prefix of the shorter one; runs of different texts differ
    /// from the first token on, or the second.
    Runs(Vec<TextRun>),
}

/// The first `tokens` tokens of an endless text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRun {
    pub text: u64,
    pub tokens: usize,
}

/// The token at `at` of an endless text. Texts with different ordinals differ from the first token on (ordinals below
/// the square of the vocabulary: within the first two tokens).
pub fn synthetic_token(text: u64, ordinal: u64, at: usize, vocab: usize) -> TokenId {
    let vocab = vocab as u64;
    let value = match at {
        0 => ordinal,
        1 => ordinal / vocab,
        _ => mix(text.wrapping_mul(GOLDEN).wrapping_add(at as u64)),
    };
    TokenId::new((value % vocab) as usize)
}

impl TracePrompt {
    pub fn len(&self) -> usize {
        match self {
            TracePrompt::Tokens(tokens) => tokens.len(),
            TracePrompt::Runs(runs) => runs.iter().map(|run| run.tokens).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its tokens, in a vocabulary of `vocab`.
    pub fn tokens(&self, vocab: usize) -> Vec<TokenId> {
        match self {
            TracePrompt::Tokens(tokens) => tokens.clone(),
            TracePrompt::Runs(runs) => {
                let tokens = |&TextRun { text, tokens }: &TextRun| {
                    (0..tokens).map(move |at| synthetic_token(text, text, at, vocab))
                };
                runs.iter().flat_map(tokens).collect()
            }
        }
    }

    /// A prompt of `tokens` tokens, `shared` of them of text `with`, the others of text `rest`.
    pub fn sharing(tokens: usize, shared: usize, with: u64, rest: u64) -> TracePrompt {
        let runs = [TextRun { text: with, tokens: shared }, TextRun { text: rest, tokens: tokens - shared }];
        TracePrompt::Runs(runs.into_iter().filter(|run| run.tokens > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(runs: &[(u64, usize)]) -> TracePrompt {
        TracePrompt::Runs(runs.iter().map(|&(text, tokens)| TextRun { text, tokens }).collect())
    }

    fn common(a: &TracePrompt, b: &TracePrompt) -> usize {
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
        for shared in [0, 10, 70] {
            let (a, b) = (TracePrompt::sharing(70, shared, 3, 7), TracePrompt::sharing(70, shared, 3, 8));
            assert_eq!((common(&a, &b), a.len(), b.len()), (shared, 70, 70));
        }
        assert_eq!(common(&TracePrompt::sharing(70, 50, 3, 7), &TracePrompt::sharing(70, 50, 4, 7)), 0);
    }
}
