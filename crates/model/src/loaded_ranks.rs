//! A model that several devices compute together ([`LoadedRanks`]): each has its share loaded, and every call of
//! [`StepRunner`] is one for each of them, on its own thread. The calls are compiled once, whatever the devices are.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::config::ModelConfig;
use super::decoder::Decoder;
use super::loaded::Loaded;
use super::lora::Adapter;
use super::runner::{KvRoom, RowValues, RunnerFacts, StepFailure, StepLimits, StepRunner};
use super::sleep::{Sleep, SleepParts, undone};
use super::update::{CheckedUpdate, WeightForm};
use offshoot_backend::ranks::members::Members;
use offshoot_backend::ranks::{Rank, Ranked, Ranks};
use offshoot_backend::{AdapterSlot, Backend, SampleRequest, SampledToken, SavedPages, StepBatch};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{PageId, StateId};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::NewPage;

/// A model that was loaded on each of its ranks.
pub struct LoadedRanks {
    config: ModelConfig,
    members: Members<Box<dyn RankRunner>>,
}

/// A rank's share of a model.
trait RankRunner: StepRunner {
    /// The rank's number.
    fn number(&self) -> usize;

    /// The halves of an update: each rank loads it, then all put it in force or none does.
    fn load_update(&mut self, update: &CheckedUpdate<'_>) -> Result<()>;
    fn end_update(&mut self, is_loaded: bool);

    /// The slots that the rank has in its own page, of `slots` of a page of all ranks.
    fn own_slots(&self, slots: Range<u32>) -> Range<u32>;

    /// See `Loaded::stage_adapter`.
    fn stage_adapter(&mut self, adapter: &Adapter) -> Result<()>;
    fn put_adapter(&mut self, slot: AdapterSlot);
    fn drop_staged(&mut self);

    /// See `Loaded::sample_late`.
    fn sample_late(&mut self, requests: Vec<SampleRequest>) -> Result<(), StepFailure>;

    /// Those of `slots` whose experts it reads for all ranks, which choose alike: their numbers among these, and the
    /// rank's own slots. Each is read by one rank.
    fn slots_to_read(&self, slots: &[KvSlot]) -> (Vec<usize>, Vec<KvSlot>);
}

impl<B: Ranked> RankRunner for Loaded<Rank<B>> {
    fn number(&self) -> usize {
        self.backend().number()
    }

    fn load_update(&mut self, update: &CheckedUpdate<'_>) -> Result<()> {
        self.load_update(update)
    }

    fn end_update(&mut self, is_loaded: bool) {
        self.end_update(is_loaded);
    }

    fn own_slots(&self, slots: Range<u32>) -> Range<u32> {
        self.backend().own_slots(slots)
    }

    fn stage_adapter(&mut self, adapter: &Adapter) -> Result<()> {
        Loaded::stage_adapter(self, adapter)
    }

    fn put_adapter(&mut self, slot: AdapterSlot) {
        Loaded::put_adapter(self, slot);
    }

    fn drop_staged(&mut self) {
        Loaded::drop_staged(self);
    }

    fn sample_late(&mut self, requests: Vec<SampleRequest>) -> Result<(), StepFailure> {
        Loaded::sample_late(self, requests)
    }

    fn slots_to_read(&self, slots: &[KvSlot]) -> (Vec<usize>, Vec<KvSlot>) {
        // The first ranks that divide positions have all of them.
        let reads = self.backend().number() < self.backend().sharing();
        let own = |(number, &at): (usize, &KvSlot)| {
            let own = self.backend().own_slots(at.slot..at.slot + 1);
            (!own.is_empty()).then_some((number, KvSlot { page: at.page, slot: own.start }))
        };
        slots.iter().enumerate().filter(|_| reads).filter_map(own).unzip()
    }
}

impl LoadedRanks {
    /// Loads a model's shares, each by `load`, for an engine.
    ///
    /// # Errors
    ///
    /// Those of `load`, or no thread can be started.
    pub fn start<B: Ranked>(
        ranks: Ranks<B>,
        load: impl Fn(&mut Rank<B>) -> Result<Decoder<Rank<B>>> + Sync,
    ) -> Result<Box<dyn StepRunner>> {
        let members = ranks.start(|mut rank| {
            let decoder = load(&mut rank)?;
            Ok(Box::new(Loaded::new(rank, decoder)) as Box<dyn RankRunner>)
        })?;
        let config = members.of(0).config().clone();
        Ok(Box::new(Self { config, members }))
    }

    /// The least that a rank has.
    fn least(&self, bytes: impl Fn(&dyn RankRunner) -> Result<usize>) -> Result<usize> {
        let each = (0..self.members.count()).map(|rank| bytes(&**self.members.of(rank))).collect::<Result<Vec<_>>>()?;
        Ok(each.into_iter().min().expect("there is a rank"))
    }

    /// Each rank submits, or samples late requests, or none does. An error of one that has begun ends them all: others
    /// wait for it.
    fn submit_each(
        &self,
        submit: impl Fn(&mut dyn RankRunner) -> Result<(), StepFailure> + Sync,
    ) -> Result<(), StepFailure> {
        let submitted = self.members.try_together(|loaded| match submit(&mut **loaded) {
            Err(StepFailure { error, has_begun: true }) => Err(error),
            submitted => Ok(submitted.err().map(|failure| failure.error)),
        });
        let failed = submitted.map_err(|error| StepFailure { error, has_begun: true })?.into_iter().flatten();
        // The reason, not what those say which wait for another one.
        match failed.min_by_key(|error| matches!(error, Error::Internal(_))) {
            Some(error) => Err(StepFailure::before(error)),
            None => Ok(()),
        }
    }
}

impl StepRunner for LoadedRanks {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn facts(&self) -> RunnerFacts {
        self.members.of(0).facts()
    }

    fn free_bytes(&self) -> Result<usize> {
        self.least(|loaded| loaded.free_bytes())
    }

    fn kv_room(&self) -> Result<usize> {
        self.least(|loaded| loaded.kv_room())
    }

    fn prepare(&mut self, limits: StepLimits) -> Result<()> {
        self.members.try_each(|loaded| loaded.prepare(limits)).map(drop)
    }

    fn allocate(&mut self, room: KvRoom) -> Result<()> {
        self.members.try_each(|loaded| loaded.allocate(room)).map(drop)
    }

    fn clear(&mut self) {
        self.members.each(|loaded| loaded.clear());
    }

    fn weight_form(&self) -> Arc<WeightForm> {
        self.members.of(0).weight_form()
    }

    fn apply_update(&mut self, update: &CheckedUpdate<'_>) -> Result<()> {
        let loaded = self.members.each(|loaded| loaded.load_update(update));
        let loaded = loaded.into_iter().collect::<Result<Vec<()>>>();
        self.members.each(|rank| rank.end_update(loaded.is_ok()));
        loaded.map(drop)
    }

    fn has_weights(&self) -> bool {
        (0..self.members.count()).all(|rank| self.members.of(rank).has_weights())
    }

    fn sleep(&mut self, sleep: Sleep) -> Result<()> {
        let before = self.asleep();
        let slept: Result<()> = self.members.each(|loaded| loaded.sleep(sleep)).into_iter().collect();
        // Those that could sleep wake again.
        slept.map_err(|error| undone(&error, self.wake(sleep.parts().without(before))))
    }

    fn asleep(&self) -> SleepParts {
        let ranks = 0..self.members.count();
        ranks.fold(SleepParts::NONE, |all, rank| all.and(self.members.of(rank).asleep()))
    }

    fn wake(&mut self, parts: SleepParts) -> Result<()> {
        self.members.each(|loaded| loaded.wake(parts)).into_iter().collect()
    }

    fn submit(&mut self, batch: StepBatch) -> Result<(), StepFailure> {
        self.submit_each(|loaded| loaded.submit(batch.clone()))
    }

    fn submit_advanced(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> Result<(), StepFailure> {
        self.submit_each(|loaded| loaded.submit_advanced(uniforms, new_pages))
    }

    /// Every rank gets the requests: each has all logits, and samples all of them.
    fn sample(&mut self, requests: Vec<SampleRequest>) -> Result<()> {
        self.submit_each(|loaded| loaded.sample_late(requests.clone())).map_err(|failure| failure.error)
    }

    /// All ranks draw the same tokens; the first one's are returned. An error if they do not: their keys and values
    /// would be those of different texts from here on.
    fn collect(&mut self) -> Result<Vec<Option<SampledToken>>> {
        let mut each = self.members.try_together(|loaded| loaded.collect())?;
        let first = each.swap_remove(0);
        let token = |sample: &Option<SampledToken>| sample.as_ref().map(|sample| sample.token);
        let tokens = |samples: &[Option<SampledToken>]| samples.iter().map(token).collect::<Vec<_>>();
        match each.iter().all(|other| tokens(other) == tokens(&first)) {
            true => Ok(first),
            false => {
                let count = self.members.count();
                Err(Error::Internal(format!("the {count} devices of one model drew different tokens")))
            }
        }
    }

    /// Every rank computes all values; the first one's are returned.
    fn collect_values(&mut self) -> Result<RowValues> {
        Ok(self.members.try_together(|loaded| loaded.collect_values())?.swap_remove(0))
    }

    fn idle(&self) -> Option<Duration> {
        None
    }

    fn save_pages(&mut self, pages: &[PageId]) -> Result<SavedPages> {
        Ok(SavedPages::Ranks(self.members.try_each(|loaded| loaded.save_pages(pages))?))
    }

    fn restore_pages(&mut self, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        let count = self.members.count();
        self.members.try_each(|loaded| loaded.restore_pages(&saved.of_rank(loaded.number(), count), pages)).map(drop)
    }

    fn read_routes(&mut self, slots: &[KvSlot]) -> Result<Vec<u16>> {
        let read = self.members.try_each(|loaded| {
            let (numbers, own) = loaded.slots_to_read(slots);
            let ids = if own.is_empty() { Vec::new() } else { loaded.read_routes(&own)? };
            Ok((numbers, ids))
        })?;
        let of_slot = self.facts().routes.map_or(0, |routes| routes.ids());
        let mut all = vec![0; slots.len() * of_slot];
        for (numbers, ids) in read {
            for (number, ids) in numbers.into_iter().zip(ids.chunks_exact(of_slot.max(1))) {
                all[number * of_slot..][..of_slot].copy_from_slice(ids);
            }
        }
        Ok(all)
    }

    fn join_pages(&self, saved: &mut SavedPages, page: usize, others: &SavedPages, from: usize, slots: Range<u32>) {
        for (rank, saved) in saved.of_ranks_mut().iter_mut().enumerate() {
            let loaded = self.members.of(rank);
            let own = loaded.own_slots(slots.clone());
            if !own.is_empty() {
                loaded.join_pages(saved, page, &others.of_rank(rank, self.members.count()), from, own);
            }
        }
    }

    /// One rank's share after the other's.
    fn save_state(&mut self, slot: StateId) -> Result<Vec<u8>> {
        Ok(self.members.try_each(|loaded| loaded.save_state(slot))?.concat())
    }

    fn restore_state(&mut self, saved: &[u8], slot: StateId) -> Result<()> {
        let share = saved.len() / self.members.count();
        let own = |rank: usize| &saved[rank * share..][..share];
        self.members.try_each(|loaded| loaded.restore_state(own(loaded.number()), slot)).map(drop)
    }

    /// All ranks have room for their shares, or none changes.
    fn load_adapter(&mut self, slot: AdapterSlot, adapter: &Adapter) -> Result<()> {
        // No error of these ends the ranks: each goes on with the adapters that it had.
        let staged: Result<()> = self.members.each(|loaded| loaded.stage_adapter(adapter)).into_iter().collect();
        self.members.each(|loaded| match &staged {
            Ok(()) => loaded.put_adapter(slot),
            Err(_) => loaded.drop_staged(),
        });
        staged
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<()> {
        self.members.each(|loaded| loaded.unload_adapter(slot)).into_iter().collect()
    }
}
