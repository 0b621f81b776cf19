//! Prefixes that engines of one model lend each other, so that what one has computed is not computed again by another
//! (`replicas`). The lender copies whole pages, and the state after them, to host memory as soon as they are computed,
//! by the copies that swaps use. The borrower copies them into its own pool, where they are cached as if it had
//! computed them: with devices of one arithmetic the bits are the same. Nothing waits here: who waits for a prefix, and
//! for how long, is left to the router.

use std::ops::Range;
use std::sync::Arc;

use crate::branch::Branch;
use crate::cache::KvCache;
use crate::engine::Engine;
use crate::lent::{Lend, LentPart, PendingLend};
use crate::prefix_store::ChunkBytes;
use crate::token_path::position;
use offshoot_core::error::Result;
use offshoot_core::ids::{SegmentId, TokenId};
use offshoot_kv::{PathStart, StatePlace};

/// Bytes of a part: few enough to be held in host memory, and so many that the header of most jobs is one part.
const PART_BYTES: usize = 512 << 20;

/// Pages of a part where prefixes are copied at any cost, so that checks see several parts.
const CHECKED_PAGES: usize = 4;

/// Prefixes whose last states are left behind, the latest first.
const MOST_NOTED: usize = 16;

/// More turns of the engine than these in which nothing of a prefix is computed, and it counts as not being computed:
/// whoever computes it waits for room, or was preempted.
const STALLED: u32 = 16;

/// What there is of a prefix.
#[derive(Clone, Copy)]
struct Lendable {
    segment: SegmentId,
    /// Position up to which it is computed.
    computed: usize,
}

impl KvCache {
    /// Where prompts without a salt and an adapter begin: others are not lent.
    fn plain(&self) -> PathStart {
        PathStart::Root(self.origin(None))
    }

    fn lendable(&self, tokens: &[TokenId]) -> Option<Lendable> {
        let (segment, matched) = self.prefix.known_path(self.plain(), tokens)?;
        Some(Lendable { segment, computed: self.prefix.computed(segment).min(matched) as usize })
    }

    /// The last whole page's end in `positions` at which a prefix can be continued: any, or the last with a state if
    /// the model has some. `positions.start` if there is none.
    fn continued_end(&self, segment: SegmentId, positions: Range<usize>) -> usize {
        let page_tokens = self.prefix.page_tokens() as usize;
        let end = positions.end / page_tokens * page_tokens;
        let mut ends = (positions.start + page_tokens..=end).rev().step_by(page_tokens);
        let is_continued =
            |&at: &usize| !self.prefix.has_states() || self.prefix.state_at(segment, position(at)).is_some();
        ends.find(is_continued).unwrap_or(positions.start)
    }
}

impl Engine {
    pub(super) fn lend(&mut self, lend: Lend) {
        let is_noted = self.lent_prefixes.iter().any(|tokens| Arc::ptr_eq(tokens, &lend.tokens));
        if self.cache.prefix.has_states() && !is_noted {
            self.lent_prefixes.truncate(MOST_NOTED - 1);
            self.lent_prefixes.insert(0, lend.tokens.clone());
        }
        self.lends.push(PendingLend { lend, computed: 0, turns: 0 });
    }

    /// Tokens of a part: whole pages.
    fn part_tokens(&self) -> usize {
        let bytes_of_page = self.facts.page_groups.count() * self.facts.page_bytes;
        // A state at the end of a prefix may go while the parts before it are copied.
        let is_checked = self.config.swap_at_any_cost && !self.cache.prefix.has_states();
        let pages = match is_checked {
            true => CHECKED_PAGES,
            false => (PART_BYTES / bytes_of_page.max(1)).max(1),
        };
        pages * self.facts.page_tokens
    }

    /// The position up to which the prefix is lent: its end; or, if the model has states and all of it is computed,
    /// that of the last state that is kept.
    fn lent_end(&self, lend: &Lend) -> usize {
        let end = lend.tokens.len();
        let found = if self.cache.prefix.has_states() { self.cache.lendable(&lend.tokens) } else { None };
        let computed = found.filter(|found| found.computed >= end);
        computed.map_or(end, |Lendable { segment, .. }| self.cache.continued_end(segment, lend.from..end))
    }

    /// The position up to which the next part is asked for.
    fn part_end(&self, lend: &Lend) -> usize {
        self.lent_end(lend).min(lend.from + self.part_tokens())
    }

    /// Answers a request for what is computed by now, or for what nobody computes: one, as steps wait for the copy; or
    /// all, if nothing is computed before the next command (`is_idle`).
    pub(super) fn serve_lends(&mut self, is_idle: bool) {
        let mut at = 0;
        while at < self.lends.len() {
            if self.is_due(at) || is_idle {
                let PendingLend { lend, .. } = self.lends.remove(at);
                let part = self.lent_part(&lend);
                // A borrower that is gone wants nothing.
                drop(lend.reply.send(part));
                if !is_idle {
                    return;
                }
            } else {
                at += 1;
            }
        }
    }

    /// Whether a request is to be answered now.
    fn is_due(&mut self, at: usize) -> bool {
        let lend = &self.lends[at].lend;
        let tokens = &lend.tokens[..self.part_end(lend)];
        let computed = self.cache.lendable(tokens).map_or(0, |found| found.computed);
        if computed >= tokens.len() || !self.is_computing(tokens) {
            return true;
        }
        let pending = &mut self.lends[at];
        pending.turns = if computed > pending.computed { 0 } else { pending.turns + 1 };
        pending.computed = computed;
        pending.turns > STALLED
    }

    /// Whether a branch without a salt will have computed these tokens without an adapter when its work ends.
    fn is_computing(&self, tokens: &[TokenId]) -> bool {
        let last = tokens.len() - 1;
        let begins = |branch: &Branch| {
            !branch.rests()
                && branch.tokens.salt().is_none()
                && branch.tokens.adapters().first().is_none_or(|first| first >= tokens.len())
                && branch.tokens.get(last) == Some(&tokens[last])
                && *branch.tokens.slice(0..tokens.len()) == *tokens
        };
        self.branches.values().any(begins)
    }

    /// Copies what is computed of the part to host memory; an empty part if there is nothing, or no memory for it.
    fn lent_part(&mut self, lend: &Lend) -> LentPart {
        let (from, asked) = (lend.from, self.part_end(lend));
        let found = self.cache.lendable(&lend.tokens[..asked]).and_then(|Lendable { segment, computed }| {
            let end = match computed >= asked {
                true => asked,
                false => self.cache.continued_end(segment, from..computed.max(from)),
            };
            (end > from && self.cache.has_slots(segment, from..end)).then_some((segment, from..end))
        });
        let whole = self.lent_end(lend);
        let is_last_at = |end: usize| end < asked || end == whole;
        let saved = found.and_then(|(segment, positions)| {
            let with_state = is_last_at(positions.end) && self.cache.prefix.has_states();
            match self.save_positions(segment, positions.clone(), with_state) {
                Ok(bytes) => Some((positions, bytes)),
                Err(error) => {
                    log::warn!("a prefix is computed twice, for it cannot be copied: {error}");
                    None
                }
            }
        });
        let nothing = || (from..from, ChunkBytes { pages: Vec::new(), state: None });
        let (positions, bytes) = saved.unwrap_or_else(nothing);
        let is_last = is_last_at(positions.end);
        if is_last {
            self.lent_prefixes.retain(|tokens| !Arc::ptr_eq(tokens, &lend.tokens));
        }
        LentPart {
            positions,
            is_last,
            layout: self.model_facts.page_layout.clone(),
            weights: self.cache.weights,
            bytes,
        }
    }

    /// Notes the places of the states at the ends of prefixes of which more is to be lent, so that the next step leaves
    /// them behind.
    pub(super) fn note_lent_states(&mut self) {
        let (prefix, start) = (&self.cache.prefix, self.cache.plain());
        let place = |tokens: &Arc<[TokenId]>| {
            let (segment, matched) = prefix.known_path(start, tokens)?;
            let end = (matched as usize == tokens.len()).then_some(matched)?;
            Some(StatePlace { segment: prefix.owner(segment, end - 1), position: end })
        };
        self.cache.lent_states = self.lent_prefixes.iter().filter_map(place).collect();
    }

    /// Takes a part of a prefix, of which `tokens` are the tokens up to its end, into the pool, where it is cached.
    /// False if other weights have computed it, there is no room for it, or what comes before it is gone.
    pub(super) fn borrow_part(&mut self, tokens: &[TokenId], part: LentPart) -> Result<bool> {
        let LentPart { positions, layout, weights, bytes, .. } = part;
        if weights != self.cache.weights {
            return Ok(false);
        }
        let (end, start) = (positions.end, self.cache.plain());
        let (_, computed) = self.cache.prefix.known(start, &tokens[..end]);
        let computed = computed as usize;
        if computed >= end {
            return Ok(true);
        }
        let pages = positions.len() / self.facts.page_tokens * self.facts.page_groups.count();
        let is_alike = layout == self.model_facts.page_layout && bytes.pages.len() == pages * self.facts.page_bytes;
        if !is_alike || computed < positions.start {
            return Ok(false);
        }
        let admit = |cache: &mut KvCache| cache.prefix.admit_behind(&mut cache.pages, start, &tokens[..end], u32::MAX);
        let Some(segment) = self.cache.evicting(admit) else { return Ok(false) };
        let is_laid = self.cache.lay_stored(segment, end);
        let is_taken = is_laid && self.restore_positions(segment, positions, bytes)?;
        self.cache.prefix.release(segment);
        if is_taken {
            self.metrics.prompt_tokens_copied += (end - computed) as u64;
        }
        // Who waits may have what it waits for.
        self.scheduler.changed = true;
        Ok(is_taken)
    }
}
