//! The tokens of a branch, prompt first. Tokens up to the last fork are shared with the forks and never copied; later
//! ones are the branch's own. Records which tokens were sampled, and in which form the last ones are, and counts
//! occurrences once for all branches that share a run. What the engine does with tokens is left to the rest of it.

use std::borrow::Cow;
use std::ops::{Index, Range};
use std::sync::{Arc, OnceLock, Weak};

use crate::path_adapters::PathAdapters;
use crate::path_form::{PathForm, ReadyForm};
use crate::token_counts::{RunCounts, TokenCounts};
use offshoot_core::ids::{AdapterVersion, TokenId};
use offshoot_form::FormState;
use offshoot_kv::CacheSalt;

/// The position at which so many tokens end.
pub(super) fn position(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("positions fit u32, as contexts do")
}

/// A shared run, except the last one, has at least this many tokens: a path of n tokens has at most n/256 + 2 runs, and
/// a fork copies fewer than 256 tokens beside those that came after the previous fork.
const SHORT: usize = 256;

/// Consecutive tokens.
#[derive(Default)]
struct TokenRun {
    tokens: Vec<TokenId>,
    /// Ranges of sampled tokens, by index in the run; rising and not adjacent. The others were given.
    sampled: Vec<Range<usize>>,
    counts: OnceLock<Arc<RunCounts>>,
}

impl TokenRun {
    /// Number of sampled tokens among the first `upto`.
    fn sampled_before(&self, upto: usize) -> usize {
        let begun = self.sampled.iter().take_while(|range| range.start < upto);
        begun.map(|range| range.end.min(upto) - range.start).sum()
    }

    fn is_sampled(&self, at: usize) -> bool {
        let after = self.sampled.partition_point(|range| range.start <= at);
        after > 0 && self.sampled[after - 1].contains(&at)
    }

    fn push_sampled(&mut self, token: TokenId) {
        let at = self.tokens.len();
        self.tokens.push(token);
        self.note_sampled(at..at + 1);
    }

    fn note_sampled(&mut self, new: Range<usize>) {
        match self.sampled.last_mut() {
            Some(last) if last.end == new.start => last.end = new.end,
            _ => self.sampled.push(new),
        }
    }

    /// Removes all but the first `len` tokens.
    fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.sampled.retain_mut(|range| {
            range.end = range.end.min(len);
            range.start < range.end
        });
    }

    /// This run followed by `next`.
    fn joined(&self, next: TokenRun) -> TokenRun {
        let mut joined =
            TokenRun { tokens: self.tokens.clone(), sampled: self.sampled.clone(), counts: OnceLock::new() };
        let begin = joined.tokens.len();
        joined.tokens.extend(next.tokens);
        next.sampled.into_iter().for_each(|range| joined.note_sampled(begin + range.start..begin + range.end));
        joined
    }

    fn count(&self) -> RunCounts {
        let mut counts = RunCounts::default();
        for (at, &token) in self.tokens.iter().enumerate() {
            counts.add(token, self.is_sampled(at));
        }
        counts
    }
}

/// A run that several branches may share, and the position after its last token.
#[derive(Clone)]
struct SharedRun {
    run: Arc<TokenRun>,
    end: usize,
}

pub(crate) struct TokenPath {
    /// Prompts of other salts share no keys and values with this one, though their tokens are the same.
    salt: Option<CacheSalt>,
    adapters: PathAdapters,
    /// From position 0 on, without gaps; none is empty.
    shared: Arc<[SharedRun]>,
    /// The branch's own tokens, after the shared ones.
    own: TokenRun,
    /// The form that its last tokens are in, and that an extend under the same form goes on with.
    form: Option<PathForm>,
}

/// The beginning that a path shares with others, as long as one of them lives.
pub(crate) struct SharedBeginning(Weak<[SharedRun]>);

impl TokenPath {
    /// A path of given tokens without a salt.
    #[cfg(test)]
    pub fn new(tokens: Vec<TokenId>) -> Self {
        Self::of(None, None, tokens)
    }

    /// A path of given tokens, all computed with `adapter`.
    pub fn of(salt: Option<CacheSalt>, adapter: Option<AdapterVersion>, tokens: Vec<TokenId>) -> Self {
        let own = TokenRun { tokens, ..TokenRun::default() };
        TokenPath { salt, adapters: PathAdapters::of(adapter), shared: Arc::default(), own, form: None }
    }

    /// This path, whose last tokens are in a form.
    pub fn in_form(self, form: Option<PathForm>) -> Self {
        TokenPath { form, ..self }
    }

    /// A path of the same tokens for another branch. All forks share one copy, which the first of them makes.
    pub fn fork(&mut self) -> Self {
        self.share();
        let (adapters, shared, form) = (self.adapters.clone(), self.shared.clone(), self.form.clone());
        TokenPath { salt: self.salt, adapters, shared, own: TokenRun::default(), form }
    }

    /// Turns the own tokens into a shared run.
    fn share(&mut self) {
        if self.own.tokens.is_empty() {
            return;
        }
        let end = self.len();
        let mut own = std::mem::take(&mut self.own);
        let mut runs = self.shared.to_vec();
        if let Some(short) = runs.pop_if(|last| last.run.tokens.len() < SHORT) {
            own = short.run.joined(own);
        }
        runs.push(SharedRun { run: Arc::new(own), end });
        self.shared = runs.into();
    }

    pub fn salt(&self) -> Option<CacheSalt> {
        self.salt
    }

    /// Which adapters its tokens are computed with.
    pub fn adapters(&self) -> &PathAdapters {
        &self.adapters
    }

    /// The adapter that the next token is sampled under.
    pub fn adapter(&self) -> Option<AdapterVersion> {
        self.adapters.last()
    }

    /// Has what follows sampled under `adapter`: its last token, whose logits the next one is sampled from, is computed
    /// with it, too.
    pub fn set_adapter(&mut self, adapter: Option<AdapterVersion>) {
        if adapter != self.adapter() {
            self.adapters = self.adapters.set_from(self.len().saturating_sub(1), adapter);
        }
    }

    /// Puts a version of an adapter in the place of another one.
    pub fn replace_adapter(&mut self, from: AdapterVersion, to: AdapterVersion) {
        self.adapters = self.adapters.replaced(from, to);
    }

    pub fn len(&self) -> usize {
        self.shared_len() + self.own.tokens.len()
    }

    /// All tokens, prompt first; copied only if they lie in several runs.
    pub fn all(&self) -> Cow<'_, [TokenId]> {
        self.slice(0..self.len())
    }

    /// Number of tokens shared with the branch it was forked from and with its last fork.
    pub fn shared_len(&self) -> usize {
        self.shared.last().map_or(0, |last| last.end)
    }

    pub fn beginning(&self) -> SharedBeginning {
        SharedBeginning(Arc::downgrade(&self.shared))
    }

    /// Whether the first `shared_len` tokens are the same memory as `beginning`. Compares no tokens.
    pub fn begins_with(&self, beginning: &SharedBeginning) -> bool {
        !self.shared.is_empty() && std::ptr::addr_eq(beginning.0.as_ptr(), Arc::as_ptr(&self.shared))
    }

    /// The run that holds `position` (`own` is the last one), and its first position. Logarithmic in the number of
    /// runs.
    fn run_at(&self, position: usize) -> (&TokenRun, usize) {
        let before = self.shared.partition_point(|shared| shared.end <= position);
        let begin = before.checked_sub(1).map_or(0, |last| self.shared[last].end);
        (self.shared.get(before).map_or(&self.own, |shared| &shared.run), begin)
    }

    pub fn get(&self, position: usize) -> Option<&TokenId> {
        let (run, begin) = self.run_at(position);
        run.tokens.get(position - begin)
    }

    /// The tokens at `positions`, copied only if they lie in several runs. Panics if they are out of range.
    pub fn slice(&self, positions: Range<usize>) -> Cow<'_, [TokenId]> {
        let (run, begin) = self.run_at(positions.start);
        if let Some(tokens) = run.tokens.get(positions.start - begin..positions.end - begin) {
            return Cow::Borrowed(tokens);
        }
        Cow::Owned(positions.map(|position| self[position]).collect())
    }

    /// Appends a sampled token.
    pub fn push_sampled(&mut self, token: TokenId) {
        self.own.push_sampled(token);
        if let Some(form) = &mut self.form {
            form.state.push(token);
        }
    }

    /// Appends given tokens, behind which nothing goes on in the form of those before them.
    pub fn give(&mut self, tokens: &[TokenId]) {
        self.own.tokens.extend_from_slice(tokens);
        self.form = None;
    }

    /// Removes the last tokens, so that `len` are left. Panics if they are shared.
    pub fn take_back(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        let left = len.checked_sub(self.shared_len()).expect("what others share is not taken back");
        self.own.truncate(left);
        if let Some(mut form) = self.form.take() {
            form.go_back(&self.slice(form.from()..len));
            self.form = Some(form);
        }
    }

    /// Has the tokens that are sampled next in a form, or in none. They go on in the one that the last tokens are in if
    /// that is the same.
    pub fn set_form(&mut self, ready: Option<&ReadyForm>) {
        let goes_on = |form: &PathForm| ready.is_some_and(|ready| form.goes_on_with(ready));
        if !self.form.as_ref().is_some_and(goes_on) {
            self.form = ready.map(|ready| PathForm::of(ready.clone(), self.len(), &[]));
        }
    }

    /// The state in which an extend under this form goes on, or begins.
    pub fn state_under(&self, ready: &ReadyForm) -> FormState {
        match &self.form {
            Some(form) if form.goes_on_with(ready) => form.state.clone(),
            _ => ready.behind(&[]),
        }
    }

    /// Ends the form of the last tokens: its text is complete.
    pub fn end_form(&mut self) {
        self.form = None;
    }

    /// The extend that sampled the last tokens has ended, and with it their form, if it goes no further.
    pub fn end_extend(&mut self) {
        self.form.take_if(|form| form.ends_with_extend());
    }

    /// Lends the form, until [`put_form`](Self::put_form).
    pub fn take_form(&mut self) -> Option<PathForm> {
        self.form.take()
    }

    /// Puts back what [`take_form`](Self::take_form) has lent.
    pub fn put_form(&mut self, form: PathForm) {
        self.form = Some(form);
    }

    pub fn is_sampled(&self, position: usize) -> bool {
        let (run, begin) = self.run_at(position);
        run.is_sampled(position - begin)
    }

    /// Number of given tokens at `positions`.
    pub fn given_in(&self, positions: Range<usize>) -> usize {
        positions.len() - (self.sampled_before(positions.end) - self.sampled_before(positions.start))
    }

    fn sampled_before(&self, upto: usize) -> usize {
        let (mut sampled, mut begin) = (0, 0);
        for SharedRun { run, end } in &*self.shared {
            sampled += run.sampled_before(upto.saturating_sub(begin));
            begin = *end;
        }
        sampled + self.own.sampled_before(upto.saturating_sub(begin))
    }

    /// How often each token occurs. Shared runs are counted once, on the first call.
    pub(super) fn count_tokens(&self) -> TokenCounts {
        let counts = |shared: &SharedRun| shared.run.counts.get_or_init(|| Arc::new(shared.run.count())).clone();
        TokenCounts::new(self.shared.iter().map(counts).collect(), self.own.count())
    }
}

impl Index<usize> for TokenPath {
    type Output = TokenId;

    fn index(&self, position: usize) -> &TokenId {
        let (run, begin) = self.run_at(position);
        &run.tokens[position - begin]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Compares a path with the list of its tokens, each with whether it was sampled.
    fn check(path: &TokenPath, all: &[(TokenId, bool)]) -> Result<(), TestCaseError> {
        prop_assert_eq!(path.len(), all.len());
        prop_assert_eq!(path.get(all.len()), None);
        for (position, &(token, sampled)) in all.iter().enumerate() {
            prop_assert_eq!((path[position], path.is_sampled(position)), (token, sampled));
        }
        for first in (0..all.len()).step_by(37) {
            for end in (first..=all.len()).step_by(41) {
                let tokens: Vec<TokenId> = all[first..end].iter().map(|&(token, _)| token).collect();
                prop_assert_eq!(&*path.slice(first..end), tokens.as_slice());
                let given = all[first..end].iter().filter(|&&(_, sampled)| !sampled).count();
                prop_assert_eq!(path.given_in(first..end), given);
            }
        }
        let mut counts = RunCounts::default();
        all.iter().for_each(|&(token, sampled)| counts.add(token, sampled));
        let whole = TokenCounts::new(Vec::new(), counts);
        prop_assert_eq!(path.count_tokens().seen(), whole.seen());
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_path_in_runs_is_the_path_in_one_list(
            prompt in 1_usize..400,
            // Tokens of each round, whether they are sampled, and whether the path is forked after them.
            turns in prop::collection::vec((0_usize..300, any::<bool>(), any::<bool>()), 0..8),
        ) {
            let mut next = (0..).map(|n: usize| TokenId::new(n * 7 % 31));
            let mut all: Vec<(TokenId, bool)> = next.by_ref().take(prompt).map(|token| (token, false)).collect();
            let mut path = TokenPath::new(all.iter().map(|&(token, _)| token).collect());
            for (tokens, sampled, forked) in turns {
                let new: Vec<TokenId> = next.by_ref().take(tokens).collect();
                match sampled {
                    true => {
                        new.iter().chain([&TokenId(0)]).for_each(|&token| path.push_sampled(token));
                        path.take_back(path.len() - 1);
                    }
                    false => {
                        path.give(&new);
                        path.give(&[TokenId(0)]);
                        path.take_back(path.len() - 1);
                    }
                }
                all.extend(new.into_iter().map(|token| (token, sampled)));
                if forked {
                    let fork = path.fork();
                    check(&path, &all)?;
                    path = fork;
                }
                check(&path, &all)?;
            }
            prop_assert!(path.shared.len() <= path.len() / SHORT + 2);
        }
    }

    #[test]
    fn forks_share_the_prompt_and_what_was_counted_of_it() {
        let mut root = TokenPath::new((0..100_000).map(|n| TokenId(n % 5000)).collect());
        let prompt = root.own.tokens.as_ptr();
        let mut forks: Vec<TokenPath> = (0..4096).map(|_| root.fork()).collect();
        let first = forks[0].count_tokens();
        for (sampled, fork) in (0..).zip(&mut forks) {
            assert_eq!(fork.slice(0..100_000).as_ptr(), prompt, "the prompt is where it was given");
            fork.push_sampled(TokenId(sampled));
            assert!(fork.count_tokens().shares_with(&first), "the prompt is counted once");
            // A fork of a fork copies no more than what its parent sampled.
            let beneath = fork.fork();
            assert_eq!(beneath.slice(0..100_000).as_ptr(), prompt);
            assert!(beneath.begins_with(&fork.beginning()) && !beneath.begins_with(&root.beginning()));
        }
        // Where tokens are sampled and forked one by one, few are copied with each fork.
        let mut path = TokenPath::new(vec![TokenId(0)]);
        for _ in 1..20_000 {
            path.push_sampled(TokenId(1));
            path = path.fork();
        }
        assert!(path.shared.len() <= 20_000 / SHORT + 2, "{} runs", path.shared.len());
        assert!(path.shared.iter().all(|shared| shared.run.tokens.len() <= SHORT));
    }
}
