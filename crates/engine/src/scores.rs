//! Scores that branches share through the prefix tree: what one branch has scored or sampled, another takes over. Which
//! scores a step computes is left to `schedule`.

use std::ops::Range;

use crate::branch::{Branch, BranchWork};
use crate::cache::KvCache;
use crate::records::TokenRecord;
use crate::token_path::position;
use crate::weights::Versions;
use offshoot_backend::Distribution;
use offshoot_kv::TokenScore;

impl KvCache {
    /// Keeps a score of the token at `at` of the path of `branch`, if it holds that and the score follows from what the
    /// branch is computed with now.
    pub fn keep_score(&mut self, branch: &Branch, at: usize, score: TokenScore, versions: Versions) {
        if let Some(segment) = branch.kept().filter(|_| versions == self.versions(branch)) {
            self.prefix.keep_score(segment, position(at), score);
        }
    }

    /// Keeps the scores of the tokens that `branch` has sampled in the extend that is about to end.
    pub fn keep_sampled(&mut self, branch: &Branch) {
        let BranchWork::Sample(sampling) = &branch.work else { return };
        let (begin, top_of) = (sampling.rules.begin, sampling.rules.params.top_of());
        let tokens = branch.tokens.slice(begin..begin + sampling.records.len());
        for (ix, record) in sampling.records.of_tokens(0, tokens.iter().copied()).enumerate() {
            let Some(versions) = Versions::of_token(&sampling.weights, &sampling.adapters, ix) else { continue };
            self.keep_score(branch, begin + ix, kept(record, top_of), versions);
        }
    }

    /// Takes over the values of a running `branch` that are kept by now, or its next scores, but for the last token's:
    /// the branch ends with a request of its own. No scores while it has requests in flight, which come first.
    pub fn take_over_known(&mut self, branch: &mut Branch) {
        self.take_over_values(branch);
        let BranchWork::Score(scoring) = &branch.work else { return };
        if scoring.requested == scoring.records.len() {
            self.take_over(branch, branch.tokens.len() - 1);
        }
    }

    /// Takes over the next scores of `branch` up to position `upto`. Whether all of them are kept.
    pub fn take_over(&mut self, branch: &mut Branch, upto: usize) -> bool {
        let (segment, versions) = (branch.kept(), self.versions(branch));
        let BranchWork::Score(scoring) = &mut branch.work else { return false };
        let next = scoring.next();
        if let (Some(segment), Some(tops)) = (segment.filter(|_| next < upto), scoring.shared_tops()) {
            let tokens = branch.tokens.slice(next..upto);
            let scores = self.prefix.scores(segment, positions(next, upto), tops);
            scores.zip(&*tokens).for_each(|(score, &token)| scoring.take_over(token, score, tops, versions));
        }
        self.scores_reused += (scoring.next() - next) as u64;
        scoring.next() == upto
    }

    /// Takes over all scores of `branch`, which holds no rows yet, if they are all kept. Otherwise none.
    pub fn take_over_all(&mut self, branch: &mut Branch) -> bool {
        let BranchWork::Score(scoring) = &branch.work else { return false };
        let Some(tops) = scoring.shared_tops() else { return false };
        let (path, rest) = self.look_up(branch, branch.tokens.len());
        let known = self.prefix.known_path(path, &rest);
        let (len, versions) = (branch.tokens.len(), self.versions(branch));
        let Some((segment, _)) = known.filter(|&(_, known)| known as usize == len) else { return false };
        let BranchWork::Score(scoring) = &mut branch.work else { return false };
        let tokens = branch.tokens.slice(scoring.next()..len);
        let scores: Vec<&TokenScore> = self.prefix.scores(segment, positions(scoring.next(), len), tops).collect();
        if scores.len() < tokens.len() {
            return false;
        }
        scores.iter().zip(&*tokens).for_each(|(score, &token)| scoring.take_over(token, score, tops, versions));
        self.scores_reused += scores.len() as u64;
        true
    }
}

/// What is kept of a record for others: of ranks and likeliest tokens only those by the model's own distribution.
pub(super) fn kept(record: TokenRecord<'_>, top_of: Distribution) -> TokenScore {
    match top_of {
        Distribution::Model => TokenScore::new(record.logprob, record.rank, record.top),
        Distribution::Drawn => TokenScore::new(record.logprob, None, &[]),
    }
}

fn positions(from: usize, upto: usize) -> Range<u32> {
    position(from)..position(upto)
}
