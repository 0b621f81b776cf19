//! What a form state allows, and how it is computed from a matcher's answer.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;
use offshoot_backend::AllowedTokens;
use offshoot_core::ids::TokenId;

use crate::vocabulary::FormVocabulary;

/// What a form state allows.
#[derive(Clone, Debug)]
pub struct StateMask {
    /// The tokens that may come next. `None`: all, as before the form begins. Equal sets of one [`Forms`] are one set.
    ///
    /// [`Forms`]: crate::Forms
    pub allowed: Option<Arc<AllowedTokens>>,
    /// The token that must come next: the only one of `allowed`.
    pub forced: Option<TokenId>,
    /// Whether the text has its form, so that it may end here. The tokens that end a text are then among `allowed`.
    pub may_end: bool,
    /// Whether the text must end here: it may end, and no token but those that end a text is allowed.
    pub only_end: bool,
}

impl StateMask {
    /// The mask of a text whose form has not begun: all tokens but those `banned`.
    pub(crate) fn free(banned: &[TokenId], vocab: usize) -> StateMask {
        let tokens = (0..vocab).map(TokenId::new).filter(|token| !banned.contains(token));
        let allowed = (!banned.is_empty()).then(|| Arc::new(AllowedTokens::new(tokens, vocab)));
        StateMask { allowed, forced: None, may_end: false, only_end: false }
    }

    /// Whether no token is allowed and the text may not end either: a dead end.
    pub fn is_dead_end(&self) -> bool {
        !self.may_end && self.allowed.as_ref().is_some_and(|allowed| allowed.words().iter().all(|&word| word == 0))
    }
}

/// A mask as a worker computes it: its set is not shared yet.
pub(crate) struct RawMask {
    pub words: Vec<u32>,
    /// Of the words.
    pub hash: u64,
    pub forced: Option<TokenId>,
    pub may_end: bool,
    pub only_end: bool,
}

impl RawMask {
    /// The mask of the tokens of `set`, if any, where the text `may_end`, and of those that `more` adds.
    pub fn new(set: Option<&SimpleVob>, may_end: bool, more: &[TokenId], vocabulary: &FormVocabulary) -> RawMask {
        let mut words = vec![0_u32; vocabulary.vocab.div_ceil(32)];
        if let Some(set) = set {
            for (word, found) in words.iter_mut().zip(set.as_slice()) {
                *word = *found;
            }
        }
        let ends = &vocabulary.ends;
        let inner = words.iter().map(|word| word.count_ones() as usize).sum::<usize>()
            - ends.iter().filter(|end| words[end.ix() / 32] >> (end.ix() % 32) & 1 == 1).count();
        if may_end {
            ends.iter().for_each(|end| words[end.ix() / 32] |= 1 << (end.ix() % 32));
        }
        more.iter().for_each(|token| words[token.ix() / 32] |= 1 << (token.ix() % 32));
        let mut tokens = words.iter().zip(0_u32..).filter(|(word, _)| **word != 0);
        let forced = match (tokens.next(), tokens.next()) {
            (Some((word, ix)), None) if word.count_ones() == 1 => Some(TokenId(32 * ix + word.trailing_zeros())),
            _ => None,
        };
        let hash = words
            .iter()
            .fold(0_u64, |hash, &word| (hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x517c_c1b7_2722_0a95));
        RawMask { hash, forced, may_end, only_end: may_end && inner == 0 && more.is_empty(), words }
    }
}
