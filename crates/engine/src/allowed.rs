//! The tokens that an extend may sample: those allowed, also by the form of its text, without those that `bad_words`,
//! `min_tokens` and `logit_bias` ban. Extends that allow the same tokens share one set, so that a device holds it once.
//! Which tokens are banned at a position is left to `sampler`.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use crate::facts::EngineFacts;
use crate::request::Stop;
use offshoot_backend::AllowedTokens;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_form::StateMask;

/// Sets that are listed before the first sweep.
const FEW_SETS: usize = 16;

/// The sets of allowed tokens that extends have, each once.
#[derive(Default)]
pub(super) struct AllowedSets {
    /// The sets by their hash. A set that no extend has any more stays listed until the next sweep.
    sets: HashMap<u64, Vec<Weak<AllowedTokens>>>,
    /// How many there are.
    count: usize,
    /// How many there may be before the next sweep.
    room: usize,
}

impl AllowedSets {
    /// The set of these tokens of `vocab`: the one that another extend has, if one has the same.
    pub fn share(&mut self, tokens: Vec<TokenId>, vocab: usize) -> Arc<AllowedTokens> {
        self.share_set(AllowedTokens::new(tokens, vocab))
    }

    /// The set of these tokens, shared with the extends that allow the same ones; `None`: all tokens.
    pub fn share_allowed(&mut self, allowed: Allowed) -> Option<Arc<AllowedTokens>> {
        match allowed {
            Allowed::All => None,
            Allowed::Set(set) => Some(set),
            Allowed::New(set) => Some(self.share_set(set)),
        }
    }

    fn share_set(&mut self, set: AllowedTokens) -> Arc<AllowedTokens> {
        let same_hash = self.sets.entry(hash_of(&set)).or_default();
        if let Some(held) = same_hash.iter().filter_map(Weak::upgrade).find(|held| **held == set) {
            return held;
        }
        let set = Arc::new(set);
        same_hash.push(Arc::downgrade(&set));
        self.count += 1;
        if self.count > self.room {
            self.drop_unused();
        }
        set
    }

    /// The sweep: drops the sets that no extend has any more. As many new sets as are left may come before the next
    /// sweep, so that the cost for each set is constant on average.
    fn drop_unused(&mut self) {
        self.sets.retain(|_, sets| {
            sets.retain(|held| held.strong_count() > 0);
            !sets.is_empty()
        });
        self.count = self.sets.values().map(Vec::len).sum();
        self.room = 2 * self.count + FEW_SETS;
    }
}

/// A hash of a set's words, two at a time. Sets of equal hashes are compared, so that it need not be a strong one: it
/// is made for each row of a step whose set is a new one.
fn hash_of(set: &AllowedTokens) -> u64 {
    let pair = |words: &[u32]| words.iter().fold(0, |pair, &word| pair << 32 | u64::from(word));
    let add = |hash: u64, words: &[u32]| (hash.rotate_left(5) ^ pair(words)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    set.words().chunks(2).fold(0, add)
}

/// The tokens that a form and an extend allow, before bans.
pub(super) enum Allowed {
    All,
    /// The set of a form's mask, or of an extend.
    Set(Arc<AllowedTokens>),
    /// A set that no other extend need have.
    New(AllowedTokens),
}

impl Allowed {
    /// The tokens that a form allows by `mask` and an extend by `allowed`. Where the text of the form may end, so it
    /// may by the stop tokens of `stop`, and not by the model's own where `stop` ignores these.
    pub fn of(
        mask: Option<&StateMask>,
        allowed: Option<&Arc<AllowedTokens>>,
        stop: &Stop,
        facts: &EngineFacts,
    ) -> Self {
        let of_extend = || allowed.map_or(Allowed::All, |allowed| Allowed::Set(allowed.clone()));
        let Some((mask, of_form)) = mask.and_then(|mask| Some((mask, mask.allowed.as_ref()?))) else {
            return of_extend();
        };
        let stops = if mask.may_end { &stop.tokens[..] } else { &[] };
        let ignored = facts.eos.iter().filter(|_| stop.ignore_eos);
        let (added, removed): (Vec<TokenId>, Vec<TokenId>) = (
            stops.iter().copied().filter(|&token| !of_form.contains(token)).collect(),
            ignored.copied().filter(|token| !stops.contains(token) && of_form.contains(*token)).collect(),
        );
        if allowed.is_none() && added.is_empty() && removed.is_empty() {
            return Allowed::Set(of_form.clone());
        }
        let mut words = of_form.words().to_vec();
        added.iter().for_each(|token| words[token.ix() / 32] |= 1 << (token.ix() % 32));
        removed.iter().for_each(|token| words[token.ix() / 32] &= !(1 << (token.ix() % 32)));
        if let Some(allowed) = allowed {
            words.iter_mut().zip(allowed.words()).for_each(|(word, of_extend)| *word &= of_extend);
        }
        Allowed::New(AllowedTokens::from_words(words, facts.vocab))
    }

    /// The set; `None`: all tokens.
    pub fn set(&self) -> Option<&AllowedTokens> {
        match self {
            Allowed::All => None,
            Allowed::Set(set) => Some(set),
            Allowed::New(set) => Some(set),
        }
    }
}

/// What decides which tokens may be sampled next.
pub(super) struct Candidates<'a> {
    pub vocab: usize,
    /// `None`: all.
    pub allowed: Option<&'a AllowedTokens>,
    /// The tokens that each parameter bans.
    pub bans: [(&'static str, Vec<TokenId>); 3],
}

impl Candidates<'_> {
    /// An error that says what was `expected`, if no token is left.
    pub fn check(&self, expected: &str) -> Result<()> {
        let of_bans = self.bans.iter().map(|(name, tokens)| {
            let banned = tokens.iter().filter(|token| self.allowed.is_none_or(|allowed| allowed.contains(**token)));
            (*name, banned.copied().collect::<BTreeSet<TokenId>>())
        });
        let of_bans: Vec<(&str, BTreeSet<TokenId>)> = of_bans.filter(|(_, banned)| !banned.is_empty()).collect();
        let banned: BTreeSet<TokenId> = of_bans.iter().flat_map(|(_, banned)| banned).copied().collect();
        let all = self.allowed.map_or(self.vocab, AllowedTokens::count);
        if banned.len() < all {
            return Ok(());
        }
        let bans = of_bans.iter().map(|(name, banned)| format!("{name} bans {}", banned.len()));
        let found = match bans.collect::<Vec<_>>().join(", ") {
            bans if self.allowed.is_some() => format!("{all} allowed, of which {bans}"),
            bans => format!("{all} of the model, of which {bans}"),
        };
        let first = of_bans.first().map_or("allowed_token_ids", |(name, _)| *name);
        let what = if self.allowed.is_some() { "allowed_token_ids" } else { first };
        Err(Error::value(what, expected, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    #[test]
    fn equal_lists_share_one_set_while_somebody_has_it() {
        let mut sets = AllowedSets::default();
        let one = sets.share(tokens(&[3, 7, 40]), 50);
        let same = sets.share(tokens(&[40, 3, 7, 3]), 50);
        let other = sets.share(tokens(&[3, 7]), 50);
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!(sets.count, 2);
        drop((one, same));
        for id in 0..1000 {
            sets.share(tokens(&[id % 50, id / 50]), 50);
        }
        assert!(sets.count <= 4 + FEW_SETS, "what nobody has is forgotten: {} are left", sets.count);
        assert!(Arc::ptr_eq(&other, &sets.share(tokens(&[7, 3]), 50)), "what somebody has is not");
        let held: Vec<_> = (0..1000).map(|id| sets.share(tokens(&[id % 50, 50 + id / 50]), 100)).collect();
        let again = (0..1000).map(|id| sets.share(tokens(&[id % 50, 50 + id / 50]), 100));
        assert!(again.zip(&held).all(|(again, held)| Arc::ptr_eq(&again, held)));
    }

    #[test]
    fn nothing_left_names_who_bans() {
        let set = AllowedTokens::new(tokens(&[3, 7, 40]), 50);
        let bans = |words: &[u32], ends: &[u32], bias: &[u32]| {
            [("bad_words", tokens(words)), ("min_tokens", tokens(ends)), ("logit_bias", tokens(bias))]
        };
        let of = |allowed, bans| Candidates { vocab: 50, allowed, bans }.check("a token").map_err(|e| e.to_string());
        assert_eq!(of(Some(&set), bans(&[3, 7, 8, 9], &[8], &[3])), Ok(()));
        let all_banned = of(Some(&set), bans(&[3, 7, 8], &[40, 9], &[9]));
        let message =
            "allowed_token_ids: expected a token, found 3 allowed, of which bad_words bans 2, min_tokens bans 1";
        assert_eq!(all_banned, Err(message.to_owned()));
        let every: Vec<u32> = (0..50).collect();
        assert_eq!(of(None, bans(&every[1..], &[], &[7])), Ok(()));
        let message =
            "bad_words: expected a token, found 50 of the model, of which bad_words bans 49, logit_bias bans 1";
        assert_eq!(of(None, bans(&every[1..], &[], &[0])), Err(message.to_owned()));
    }
}
