//! Copies keys and values, and states, between the device and the prefix store, between steps: at most one chunk before
//! a step, so that no step waits for more than one copy.

use std::ops::Range;
use std::time::Duration;

use crate::branch::{Branch, KvHold};
use crate::cache::KvCache;
use crate::engine::Engine;
use crate::prefix_store::{Arrival, CHUNK_TOKENS, ChunkBytes, ReadChunk, ReadState};
use crate::schedule::ScheduledRow;
use crate::token_path::position;
use offshoot_backend::SavedPages;
use offshoot_core::error::Result;
use offshoot_core::ids::{BranchId, GroupIx, PageId, SegmentId};
use offshoot_kv::{PathMark, StatePlace};

impl KvCache {
    /// Looks up the given tokens of `branch`, which does not run, in the prefix store. If it has more of them than are
    /// computed, registers these and begins to read. One prefix is read at a time: while it is, a branch that lacks
    /// the end of a chunk waits, as it may share that prefix or have one of its own.
    pub fn begin_read(&mut self, branch: &Branch) -> ReadState {
        match (self.lacking(branch), &self.store) {
            (None, _) | (_, None) => ReadState::Nothing,
            (Some(_), Some(store)) if store.is_reading() => ReadState::UnderWay,
            (Some(lacking), Some(_)) => match self.try_read(branch, lacking) {
                Some(()) => ReadState::Begun,
                None => ReadState::Nothing,
            },
        }
    }

    /// The given tokens of `branch` of which keys and values are not computed, if a chunk ends among them.
    fn lacking(&self, branch: &Branch) -> Option<Range<usize>> {
        self.store.as_ref()?;
        match branch.hold {
            KvHold::Nothing => {}
            KvHold::Path(lease) if !lease.used => {}
            KvHold::Path(_) | KvHold::Swapped(_) => return None,
        }
        let upto = branch.need()?.match_upto.min(branch.given());
        if upto < CHUNK_TOKENS {
            return None;
        }
        let (path, rest) = self.look_up(branch, upto);
        let (_, computed) = self.prefix.known(path, &rest);
        (computed as usize / CHUNK_TOKENS < upto / CHUNK_TOKENS).then_some(computed as usize..upto)
    }

    fn try_read(&mut self, branch: &Branch, lacking: Range<usize>) -> Option<()> {
        let found = self.store.as_mut()?.find(branch, lacking.start, lacking.end)?;
        let segment = self.evicting(|cache| {
            let (path, rest) = cache.look_up(branch, found.end());
            cache.prefix.admit_behind(&mut cache.pages, path, &rest, u32::MAX)
        })?;
        let mark = self.prefix.mark(segment);
        self.store.as_mut()?.begin(found, segment, mark);
        Some(())
    }

    /// Whether the store is to have the state at `place`: the last whole chunk of its segment ends there, which is a
    /// prompt's or what prompts share. The segments of branches end where they happen to.
    pub fn stores_state(&self, place: StatePlace) -> bool {
        let StatePlace { segment, position } = place;
        self.store.is_some()
            && self.prefix.has_states()
            && (position as usize).is_multiple_of(CHUNK_TOKENS)
            && self.prefix.end(segment) as usize - (position as usize) < CHUNK_TOKENS
            && !self.prefix.is_open(segment)
    }

    /// The place of the state at `end` of the path of `segment`, if the store is to have it.
    fn stored_place(&self, segment: SegmentId, end: usize) -> Option<StatePlace> {
        let position = position(end);
        let place = StatePlace { segment: self.prefix.owner(segment, position - 1), position };
        self.stores_state(place).then_some(place)
    }

    /// Ends the store's lease on the prefix that is read; its branch holds it now.
    pub fn release_read(&mut self) {
        if let Some(segment) = self.store.as_mut().and_then(|store| store.take_lease()) {
            self.prefix.release(segment);
        }
    }

    /// Gives what ends at `end` slots in all groups, evicting pages without a lease. False if there are too few.
    pub fn lay_stored(&mut self, segment: SegmentId, end: usize) -> bool {
        self.evicting(|cache| cache.prefix.lay_upto(&mut cache.pages, segment, position(end))).is_some()
    }

    /// The pages of `positions` of the path of `segment`, which are whole pages, of one page group after the other;
    /// `None` if some were freed.
    fn whole_pages(&self, segment: SegmentId, positions: Range<usize>) -> Option<Vec<PageId>> {
        let page_tokens = self.prefix.page_tokens();
        let ends = positions.step_by(page_tokens as usize);
        // A page of two segments is listed by both or is two pages: the later one is read by what comes after it.
        let ends: Vec<u32> = ends.map(|first| position(first) + page_tokens - 1).collect();
        let all_exist = ends.iter().all(|&at| self.prefix.has_slots(segment, at));
        let of_group = |group| ends.iter().map(move |&at| self.prefix.slot_in(group, segment, at).page);
        all_exist.then(|| self.prefix.groups().iter().flat_map(of_group).collect())
    }

    /// The slots of `positions` that are not in their `whole_pages`, because two prompts part inside a page: number of
    /// the page, slots, and the page that they are in. Every slot exists.
    fn parted_slots(
        &self,
        segment: SegmentId,
        positions: Range<usize>,
        pages: &[PageId],
    ) -> Vec<(usize, Range<u32>, PageId)> {
        let (begin, page_tokens) = (positions.start, self.prefix.page_tokens());
        let of_group = positions.len() / page_tokens as usize;
        let mut parted: Vec<(usize, Range<u32>, PageId)> = Vec::new();
        for (number, &page) in pages.iter().enumerate() {
            let group = GroupIx::new(number / of_group);
            let first = position(begin + number % of_group * page_tokens as usize);
            for slot in 0..page_tokens {
                let found = self.prefix.slot_in(group, segment, first + slot).page;
                if found == page {
                    break; // The slots after it, too: a page's last part has its last slot.
                }
                match parted.last_mut() {
                    Some((of, slots, same)) if (*of, *same) == (number, found) => slots.end = slot + 1,
                    _ => parted.push((number, slot..slot + 1, found)),
                }
            }
        }
        parted
    }

    /// Whether all slots of these positions exist: `free_behind` may have freed some.
    pub fn has_slots(&self, segment: SegmentId, mut positions: Range<usize>) -> bool {
        positions.all(|at| self.prefix.has_slots(segment, position(at)))
    }
}

impl Engine {
    /// Copies what was read to the device: one chunk while branches run, else all that is there.
    pub(super) fn read_stored(&mut self) -> Result<()> {
        loop {
            let Some(store) = &mut self.cache.store else { return Ok(()) };
            match store.arrival() {
                Arrival::Nothing => return Ok(()),
                Arrival::End => self.scheduler.changed = true,
                Arrival::Chunk(chunk) => {
                    if !self.restore_chunk(chunk)? {
                        self.scheduler.changed = true;
                        self.cache.store.iter_mut().for_each(|store| store.stop_reading());
                    }
                    if self.scheduler.running() > 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// False if the chunk's path is gone, as its pages were needed for others.
    fn restore_chunk(&mut self, chunk: ReadChunk) -> Result<bool> {
        let ReadChunk { branch, mark, begin, bytes } = chunk;
        let Some(segment) = self.cache.prefix.marked(mark) else { return Ok(false) };
        let (computed, end) = (self.cache.prefix.computed(segment) as usize, begin + CHUNK_TOKENS);
        if computed >= end {
            return Ok(true); // Another branch has computed it.
        }
        if !self.lay_stored(branch, segment, end) {
            return Ok(false);
        }
        let restored = self.restore_positions(segment, begin..end, bytes)?;
        if restored {
            self.metrics.prompt_tokens_stored += (end - computed) as u64;
        }
        Ok(restored)
    }

    /// Copies the keys and values of `positions` of the path of `segment`, which are whole pages with slots, to the
    /// device, and the state after them if there is one. False if something before them is not computed, or a slot was
    /// freed.
    pub(super) fn restore_positions(
        &mut self,
        segment: SegmentId,
        positions: Range<usize>,
        bytes: ChunkBytes,
    ) -> Result<bool> {
        let (computed, end) = (self.cache.prefix.computed(segment) as usize, positions.end);
        let exists = computed >= positions.start && self.cache.has_slots(segment, positions.clone());
        let Some(pages) = self.cache.whole_pages(segment, positions.clone()).filter(|_| exists) else {
            return Ok(false);
        };
        // Slots of another page than the one that is restored must be computed already.
        let page_tokens = self.cache.prefix.page_tokens() as usize;
        let of_group = positions.len() / page_tokens;
        let end_of = |(page, slots, _): &(usize, Range<u32>, PageId)| {
            positions.start + page % of_group * page_tokens + slots.end as usize
        };
        if self.cache.parted_slots(segment, positions.clone(), &pages).iter().any(|parted| end_of(parted) > computed) {
            return Ok(false);
        }
        let saved = SavedPages::Bytes(bytes.pages);
        self.model.restore_pages(&saved, &pages)?;
        self.cache.prefix.mark_computed(segment, position(end));
        if let Some(saved) = bytes.state {
            self.restore_stored_state(segment, position(end), &saved)?;
        }
        Ok(true)
    }

    /// Copies the state at `position` of the path of `segment` to a slot that nobody counts on. If there is none, the
    /// tokens before are computed again.
    fn restore_stored_state(&mut self, segment: SegmentId, position: u32, saved: &[u8]) -> Result<()> {
        let place = StatePlace { segment: self.cache.prefix.owner(segment, position - 1), position };
        if self.cache.prefix.state_at(place.segment, position).is_none()
            && let Some(slot) = self.cache.prefix.keep_spare_state(place)
        {
            self.model.restore_state(saved, slot)?;
        }
        Ok(())
    }

    /// Gives the chunk that ends at `end` slots in all groups. If pages are short, those of prompts behind windows are
    /// freed, the chunks before among them. False if there are too few.
    fn lay_stored(&mut self, branch: BranchId, segment: SegmentId, end: usize) -> bool {
        if self.cache.lay_stored(segment, end) {
            return true;
        }
        let freed = self.scheduler.free_behind_prompts(branch, &mut self.branches, &mut self.cache);
        // The loaded step may read what is freed.
        self.scheduler.changed |= freed > 0;
        freed > 0 && self.cache.lay_stored(segment, end)
    }

    /// Waits a moment for a chunk if nothing else is to be done.
    pub(super) fn await_stored(&mut self) {
        if self.submitted.is_empty()
            && let Some(store) = &mut self.cache.store
        {
            store.wait();
        }
    }

    /// The chunks of given tokens that `rows`, not marked as computed yet, complete.
    pub(super) fn completed_chunks(&self, rows: &[ScheduledRow]) -> Vec<(BranchId, usize, SegmentId)> {
        let Some(store) = &self.cache.store else { return Vec::new() };
        let prefix = &self.cache.prefix;
        let ends = rows.iter().filter(|row| {
            let (position, segment) = (row.at.position as usize, row.at.segment);
            let branch = &self.branches[&row.branch];
            (position + 1).is_multiple_of(CHUNK_TOKENS)
                && store.keeps(branch)
                && branch.is_given(position)
                && prefix.computed(segment) <= row.at.position
                && !prefix.is_pending(segment)
                && branch.tokens.given_in(0..position + 1) == position + 1
        });
        ends.map(|row| (row.branch, row.at.position as usize + 1, row.at.segment)).collect()
    }

    /// Notes chunks to be saved.
    pub(super) fn note_chunks(&mut self, chunks: Vec<(BranchId, usize, SegmentId)>) {
        for (branch, end, segment) in chunks {
            let mark: PathMark = self.cache.prefix.mark(segment);
            let with_state = self.cache.stored_place(segment, end).is_some();
            if let Some(store) = &mut self.cache.store {
                store.note(&self.branches[&branch], end, mark, with_state);
            }
        }
    }

    /// Notes what pins share with prompts that were computed before: those were not theirs then.
    pub(super) fn note_pins(&mut self) {
        if self.cache.store.is_none() {
            return;
        }
        let prefix = &self.cache.prefix;
        let mut chunks = Vec::new();
        for id in self.scheduler.pins() {
            let branch = &self.branches[&id];
            let ends = (CHUNK_TOKENS..=branch.given()).step_by(CHUNK_TOKENS);
            if let Some(path) = branch.kept() {
                chunks.extend(ends.map(|end| (id, end, prefix.owner(path, position(end) - 1))));
            }
        }
        self.note_chunks(chunks);
    }

    /// Copies one chunk to host memory and hands it to the writer, if that has room.
    pub(super) fn save_stored(&mut self) -> Result<()> {
        while let Some(chunk) = self.cache.store.as_mut().and_then(|store| store.next_unsaved()) {
            let begin = chunk.end - CHUNK_TOKENS;
            // Its pages may be gone.
            let segment = self.cache.prefix.marked(chunk.mark).filter(|&id| self.cache.has_slots(id, begin..chunk.end));
            let Some(segment) = segment else { continue };
            let saved = self.save_positions(segment, begin..chunk.end, chunk.with_state);
            let Some(store) = &mut self.cache.store else { return Ok(()) };
            match saved {
                Ok(bytes) => {
                    store.write(chunk, bytes);
                    self.metrics.chunks_written += 1;
                }
                Err(error) => store.stop_writing(&error),
            }
            return Ok(());
        }
        Ok(())
    }

    /// The bytes of `positions` of the path of `segment`, which are whole pages whose slots exist, and those of the
    /// state after them if that is asked for and kept.
    pub(super) fn save_positions(
        &mut self,
        segment: SegmentId,
        positions: Range<usize>,
        with_state: bool,
    ) -> Result<ChunkBytes> {
        let end = position(positions.end);
        let pages = self.save_whole_pages(segment, positions)?.into_bytes();
        let slot = if with_state { self.cache.prefix.state_at(segment, end) } else { None };
        let state = slot.map(|slot| self.model.save_state(slot)).transpose()?;
        if let Some(slot) = slot {
            self.cache.prefix.note_stored(slot);
        }
        Ok(ChunkBytes { pages, state })
    }

    fn save_whole_pages(&mut self, segment: SegmentId, positions: Range<usize>) -> Result<SavedPages> {
        let pages = self.cache.whole_pages(segment, positions.clone()).expect("the caller found its slots");
        let parted = self.cache.parted_slots(segment, positions, &pages);
        let mut saved = self.model.save_pages(&pages)?;
        if !parted.is_empty() {
            let others: Vec<PageId> = parted.iter().map(|&(.., page)| page).collect();
            let others = self.model.save_pages(&others)?;
            for (from, (page, slots, _)) in parted.into_iter().enumerate() {
                self.model.join_pages(&mut saved, page, &others, from, slots);
            }
        }
        Ok(saved)
    }

    /// Saves a chunk, or waits a moment for the writer, while nothing runs. False if there is nothing to save.
    pub(super) fn save_while_idle(&mut self) -> Result<bool> {
        let is_left = |engine: &Self| engine.cache.store.as_ref().is_some_and(|store| store.has_unsaved());
        let before = self.metrics.chunks_written;
        self.save_stored()?;
        let left = is_left(self);
        if left && self.metrics.chunks_written == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(left)
    }

    /// Saves all chunks before the engine ends.
    pub(super) fn save_rest(&mut self) -> Result<()> {
        while self.save_while_idle()? {}
        Ok(())
    }
}
