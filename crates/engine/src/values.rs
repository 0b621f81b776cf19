//! Values of positions, of an engine whose model is a scorer: an extend asks for those of some tokens of its branch, of
//! given ones or of earlier ones. This file defines what such an extend knows ([`ValuesState`]), takes over what others
//! have computed from the prefix tree, and commits what a step has. Which rows a step computes is left to `schedule`.
//!
//! # No value is computed twice
//! A branch takes over what is kept for its path, and leaves out the rows that another branch has requested and not
//! collected ([`ValueClaims`](crate::claims::ValueClaims)). It looks again before each step. If what another one was to
//! compute did not come, because that branch was cancelled or preempted, it requests the row itself. A branch whose
//! values are all kept by then ends without a row.

use std::sync::Arc;

use crate::branch::{Branch, BranchWork, KvHold};
use crate::cache::KvCache;
use crate::engine::Engine;
use crate::events::EventSender;
use crate::request::{FinishReason, PositionValues};
use crate::schedule::LogitsRequest;
use crate::text::BranchText;
use crate::token_path::position;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;
use offshoot_core::mix::IdMap;
use offshoot_model::RowValues;

/// An extend by given tokens that asks for values.
pub(super) struct ValuesState {
    pub events: EventSender,
    /// Length of the branch before it. The given tokens, of which there may be none, are at the branch's end already.
    pub begin: usize,
    /// The positions whose values are asked for, rising.
    at: Arc<[u32]>,
    /// What is known of the values of each position in `at`.
    found: Vec<KnownValues>,
    /// Number of entries of `found` that are read without a gap, from the first on.
    leading: usize,
    /// Empty until the end.
    text: BranchText,
}

/// What is known of the values of a position.
enum KnownValues {
    Missing,
    /// A row of a step that is not collected will have them.
    Requested,
    Read(Box<[f32]>),
}

impl ValuesState {
    /// Nothing is known of the values at the positions `at`, which rise.
    pub fn new(events: EventSender, begin: usize, at: Arc<[u32]>, text: BranchText) -> Self {
        let found = at.iter().map(|_| KnownValues::Missing).collect();
        ValuesState { events, begin, at, found, leading: 0, text }
    }

    /// End of the tokens that must be computed: behind the last position whose values are asked for.
    pub fn end(&self) -> usize {
        self.at.last().map_or(0, |&last| last as usize + 1)
    }

    /// The positions from the first one on whose values are not read, with what is known of them.
    fn open(&self) -> impl Iterator<Item = (u32, &KnownValues)> {
        self.at[self.leading..].iter().copied().zip(&self.found[self.leading..])
    }

    /// The positions whose values are neither read nor requested, rising.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        self.open().filter(|(_, found)| matches!(found, KnownValues::Missing)).map(|(at, _)| at)
    }

    /// The positions whose values are requested and not collected, rising.
    pub fn requested(&self) -> impl Iterator<Item = u32> {
        self.open().filter(|(_, found)| matches!(found, KnownValues::Requested)).map(|(at, _)| at)
    }

    /// Whether all values are read.
    pub fn is_complete(&self) -> bool {
        self.leading == self.at.len()
    }

    /// Records that a row of a submitted step has the values at `position`.
    pub fn note_requested(&mut self, position: u32) {
        self.set(position, KnownValues::Requested);
    }

    /// Records the values at `position`, which were missing or requested.
    pub fn read(&mut self, position: u32, values: Box<[f32]>) {
        self.set(position, KnownValues::Read(values));
        while matches!(self.found.get(self.leading), Some(KnownValues::Read(_))) {
            self.leading += 1;
        }
    }

    fn set(&mut self, position: u32, found: KnownValues) {
        let entry = self.at.binary_search(&position).expect("only positions that were asked for are requested");
        self.found[entry] = found;
    }

    /// Forgets all values: they do not follow from the weights that are in force now.
    pub fn restart(&mut self) {
        self.leading = 0;
        self.found.fill_with(|| KnownValues::Missing);
    }

    /// Requests again what is requested.
    pub fn request_again(&mut self) {
        for found in self.found.iter_mut().filter(|found| matches!(found, KnownValues::Requested)) {
            *found = KnownValues::Missing;
        }
    }

    /// Length of the branch if the extend ends now: with the given tokens up to the last one of those whose values are
    /// read without a gap.
    pub fn kept_end(&self, len: usize) -> usize {
        let read = self.leading.checked_sub(1).map_or(0, |last| self.at[last] as usize + 1);
        if self.is_complete() { len } else { read.max(self.begin) }
    }

    /// What the end of the extend is made from: who hears of it, its text, and the values that are read without a gap.
    pub fn into_end(self) -> (EventSender, BranchText, Vec<PositionValues>) {
        let read = self.at.iter().zip(self.found).map_while(|(&at, found)| match found {
            KnownValues::Read(values) => Some(PositionValues { at, values }),
            KnownValues::Missing | KnownValues::Requested => None,
        });
        (self.events, self.text, read.collect())
    }
}

impl KvCache {
    /// Reads the missing values of `branch` that are kept for its path, which it runs on.
    pub fn take_over_values(&mut self, branch: &mut Branch) {
        let Some(segment) = branch.kept() else { return };
        if let BranchWork::Values(values) = &mut branch.work {
            let known: Vec<(u32, Box<[f32]>)> = {
                let kept = self.prefix.kept_values(segment, values.missing());
                kept.map(|(at, kept)| (at, kept.into())).collect()
            };
            self.values_reused += known.len() as u64;
            known.into_iter().for_each(|(at, kept)| values.read(at, kept));
        }
    }

    /// Reads the missing values of `branch` that are kept for its tokens, of which it may hold no rows yet.
    pub fn look_up_values(&mut self, branch: &mut Branch) {
        let BranchWork::Values(values) = &branch.work else { return };
        let (path, rest) = self.look_up(branch, values.end());
        let Some((segment, end)) = self.prefix.known_path(path, &rest) else { return };
        let missing = values.missing().take_while(|&at| at < end);
        let known: Vec<(u32, Box<[f32]>)> =
            self.prefix.kept_values(segment, missing).map(|(at, kept)| (at, kept.into())).collect();
        let BranchWork::Values(values) = &mut branch.work else { return };
        self.values_reused += known.len() as u64;
        known.into_iter().for_each(|(at, kept)| values.read(at, kept));
    }

    /// Has a branch that needs a row once more, one that it has computed, match its tokens anew when it runs: what the
    /// windows before that row read may have been freed behind it.
    fn match_for_rows_again(&mut self, branch: &mut Branch) {
        let Some(first) = branch.need().map(|need| position(need.logits_from)) else { return };
        if let KvHold::Path(lease) = &mut branch.hold
            && first < self.prefix.computed(lease.segment)
        {
            (lease.own, lease.used) = (false, false);
            self.count_unshared(branch);
        }
    }

    /// Keeps the values of the token at `at` of the path of `branch`, if it holds that.
    fn keep_values(&mut self, branch: &Branch, at: u32, values: &[f32]) {
        if let Some(segment) = branch.kept() {
            self.prefix.keep_values(segment, at, values);
        }
    }
}

impl Engine {
    /// Begins an extend that asks for values: takes over what is kept of them, and queues the branch for the rest.
    pub(super) fn begin_values(&mut self, id: BranchId, values: ValuesState) {
        let branch = self.branches.get_mut(&id).expect("the caller found it");
        branch.begin(BranchWork::Values(Box::new(values)));
        self.cache.look_up_values(branch);
        self.metrics.values_reused = self.cache.values_reused;
        if branch.has_all_values() {
            return self.end_read(&[id]);
        }
        self.cache.match_for_rows_again(branch);
        self.begin_work(id);
    }

    /// Ends the running extends whose values are all kept by now.
    pub(super) fn end_known_values(&mut self) {
        if self.facts.values.is_none() {
            return;
        }
        let mut ended = Vec::new();
        for id in self.scheduler.running_branches() {
            let branch = self.branches.get_mut(&id).expect("only branches run");
            self.cache.take_over_values(branch);
            if branch.has_all_values() {
                ended.push(id);
            }
        }
        self.metrics.values_reused = self.cache.values_reused;
        for &id in &ended {
            self.scheduler.note_end(self.branches.get_mut(&id).expect("it runs"), false);
        }
        self.end_read(&ended);
        self.retire(ended);
    }

    /// Sends the ends of extends all of whose values were taken over.
    fn end_read(&mut self, ids: &[BranchId]) {
        if ids.is_empty() {
            return;
        }
        for id in ids {
            let branch = self.branches.get_mut(id).expect("the caller found it");
            if let BranchWork::Values(values) = &branch.work
                && let Some(last) = values.end().checked_sub(1)
            {
                self.metrics.prompt_tokens_logical += branch.count_given(last);
            }
        }
        // Counters are published before the event is sent.
        self.publish();
        for id in ids {
            self.branches.get_mut(id).expect("the caller found it").finish(FinishReason::Given);
        }
    }

    /// Commits a collected step of a scorer. `rows` has one row for each of `requests`. Values of branches that have
    /// ended or restarted are discarded.
    pub(super) fn commit_values(&mut self, requests: &[LogitsRequest], rows: &RowValues) {
        let (mut ended, mut failed) = (Vec::new(), IdMap::default());
        for (request, row) in requests.iter().zip(rows.rows()) {
            let is_current =
                |branch: &&mut Branch| branch.awaits(request.generation) && !failed.contains_key(&branch.id);
            let Some(branch) = self.branches.get_mut(&request.branch).filter(is_current) else { continue };
            self.metrics.prompt_tokens_logical += branch.count_given(request.position);
            let at = position(request.position);
            if !row.iter().all(|value| value.is_finite()) {
                self.scheduler.note_end(branch, true);
                failed.insert(request.branch, no_number(request.position));
                continue;
            }
            self.metrics.values_read += 1;
            self.cache.keep_values(branch, at, row);
            if let BranchWork::Values(values) = &mut branch.work {
                values.read(at, row.into());
            }
            if branch.has_all_values() {
                self.scheduler.note_end(branch, false);
                ended.push(request.branch);
            }
        }
        // Counters are published before the events are sent.
        self.publish();
        for id in &ended {
            self.branches.get_mut(id).expect("it was there just now").finish(FinishReason::Given);
        }
        for (id, error) in failed {
            self.branches.get_mut(&id).expect("it was there just now").fail(error);
            ended.push(id);
        }
        self.retire(ended);
    }
}

/// Checks the positions whose values an extend of a scorer asks for, of a branch of `len` tokens.
pub(super) fn check_positions(at: &[u32], len: usize) -> Result<()> {
    if let Some(two) = at.windows(2).find(|two| two[0] >= two[1]) {
        let found = format!("{} behind {}", two[1], two[0]);
        return Err(Error::value("positions of values", "rising ones", found));
    }
    match at.last().filter(|&&last| last as usize >= len) {
        Some(last) => {
            let expected = format!("positions below {len}, the length of the branch with its given tokens");
            Err(Error::value("positions of values", expected, last.to_string()))
        }
        None => Ok(()),
    }
}

/// The error of a scorer's values that are NaN or infinite.
fn no_number(position: usize) -> Error {
    let what = format!("the scorer's values at position {position}");
    Error::value(what, "finite numbers", "NaN or infinity, as its weights hold")
}
