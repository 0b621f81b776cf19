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
    /// Whether the text has its form, so that it may end here. The tokens that end a text are then among `allowed`; of
    /// them those alone that a grammar names here as its last.
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

/// A mask as a worker computes it, before its set is shared.
pub(crate) struct RawMask {
    pub words: Vec<u32>,
    /// A hash of `words`.
    pub hash: u64,
    pub forced: Option<TokenId>,
    pub may_end: bool,
    pub only_end: bool,
}

impl RawMask {
    /// The mask of the tokens of `set`, if any, of `ends`, by which the text may end here (`None`: it may not), and of
    /// `more`.
    pub fn new(
        set: Option<&SimpleVob>,
        ends: Option<&[TokenId]>,
        more: &[TokenId],
        vocabulary: &FormVocabulary,
    ) -> RawMask {
        let mut words = set.map_or_else(Vec::new, |set| set.as_slice().to_vec());
        words.resize(vocabulary.vocab.div_ceil(32), 0);
        // The set may have the ends, too: what else there is, is looked for without them.
        vocabulary.ends.iter().for_each(|end| words[end.ix() / 32] &= !(1 << (end.ix() % 32)));
        let goes_on = words.iter().any(|&word| word != 0) || !more.is_empty();
        let may_end = ends.is_some();
        ends.unwrap_or_default().iter().chain(more).for_each(|token| words[token.ix() / 32] |= 1 << (token.ix() % 32));
        RawMask { hash: hash(&words), forced: only(&words), may_end, only_end: may_end && !goes_on, words }
    }
}

/// The only token of a set, if it has one token.
fn only(words: &[u32]) -> Option<TokenId> {
    let mut found = words.iter().enumerate().filter(|(_, word)| **word != 0);
    match (found.next(), found.next()) {
        (Some((at, word)), None) if word.is_power_of_two() => {
            Some(TokenId::new(32 * at + word.trailing_zeros() as usize))
        }
        _ => None,
    }
}

/// A hash of words, by which equal sets are found; they are compared then.
pub(crate) fn hash(words: &[u32]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    /// Parts that are hashed beside each other, as each waits for its last product.
    const PARTS: usize = 4;
    let step = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(ODD);
    let (chunks, rest) = words.as_chunks::<{ 2 * PARTS }>();
    let mut parts = [0_u64; PARTS];
    for chunk in chunks {
        for (part, at) in parts.iter_mut().zip((0..).step_by(2)) {
            *part = step(*part, u64::from(chunk[at]) << 32 | u64::from(chunk[at + 1]));
        }
    }
    parts.into_iter().chain(rest.iter().copied().map(u64::from)).fold(0, step)
}
