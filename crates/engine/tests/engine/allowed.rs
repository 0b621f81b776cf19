//! Extends that allow the same tokens share one set, also those of other prompts: a device then holds it once.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::bench::{Shape, decoder, draw, finishes, key, length, params, prompt, roomy, tokenizer};
use offshoot_backend::{AdapterSlot, AllowedTokens, SampledToken, SavedPages, StepBatch};
use offshoot_core::error::Result;
use offshoot_core::ids::{PageId, StateId, TokenId};
use offshoot_engine::Engine;
use offshoot_kv::KvSlot;
use offshoot_kv::plan::NewPage;
use offshoot_model::{
    Adapter, CheckedUpdate, ModelConfig, RunnerFacts, Sleep, SleepParts, StepFailure, StepLimits, StepRunner,
    WeightForm,
};

/// The sets of allowed tokens of all requests that were submitted.
type Sets = Arc<Mutex<Vec<Arc<AllowedTokens>>>>;

/// A model that notes the sets of its steps.
struct Watched {
    model: Box<dyn StepRunner>,
    sets: Sets,
}

impl StepRunner for Watched {
    fn submit(&mut self, batch: StepBatch) -> Result<(), StepFailure> {
        let sets = batch.requests.iter().filter_map(|request| request.allowed.clone());
        self.sets.lock().unwrap().extend(sets);
        self.model.submit(batch)
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn facts(&self) -> RunnerFacts {
        self.model.facts()
    }

    fn free_bytes(&self) -> Result<usize> {
        self.model.free_bytes()
    }

    fn kv_room(&self) -> Result<usize> {
        self.model.kv_room()
    }

    fn prepare(&mut self, limits: StepLimits) -> Result<()> {
        self.model.prepare(limits)
    }

    fn allocate(&mut self, pages: usize, states: usize) -> Result<()> {
        self.model.allocate(pages, states)
    }

    fn clear(&mut self) {
        self.model.clear();
    }

    fn weight_form(&self) -> Arc<WeightForm> {
        self.model.weight_form()
    }

    fn apply_update(&mut self, update: &CheckedUpdate<'_>) -> Result<()> {
        self.model.apply_update(update)
    }

    fn has_weights(&self) -> bool {
        self.model.has_weights()
    }

    fn sleep(&mut self, sleep: Sleep) -> Result<()> {
        self.model.sleep(sleep)
    }

    fn asleep(&self) -> SleepParts {
        self.model.asleep()
    }

    fn wake(&mut self, parts: SleepParts) -> Result<()> {
        self.model.wake(parts)
    }

    fn load_adapter(&mut self, slot: AdapterSlot, adapter: &Adapter) -> Result<()> {
        self.model.load_adapter(slot, adapter)
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<()> {
        self.model.unload_adapter(slot)
    }

    fn submit_advanced(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> Result<(), StepFailure> {
        self.model.submit_advanced(uniforms, new_pages)
    }

    fn collect(&mut self) -> Result<Vec<Option<SampledToken>>> {
        self.model.collect()
    }

    fn idle(&self) -> Option<Duration> {
        self.model.idle()
    }

    fn save_pages(&mut self, pages: &[PageId]) -> Result<SavedPages> {
        self.model.save_pages(pages)
    }

    fn restore_pages(&mut self, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        self.model.restore_pages(saved, pages)
    }

    fn read_routes(&mut self, slots: &[KvSlot]) -> Result<Vec<u16>> {
        self.model.read_routes(slots)
    }

    fn join_pages(&self, saved: &mut SavedPages, page: usize, others: &SavedPages, from: usize, slots: Range<u32>) {
        self.model.join_pages(saved, page, others, from, slots);
    }

    fn save_state(&mut self, slot: StateId) -> Result<Vec<u8>> {
        self.model.save_state(slot)
    }

    fn restore_state(&mut self, saved: &[u8], slot: StateId) -> Result<()> {
        self.model.restore_state(saved, slot)
    }
}

#[test]
fn extends_that_allow_the_same_tokens_share_one_set() {
    let (backend, decoder) = decoder(Shape::Full);
    let sets = Sets::default();
    let watched = Watched { model: decoder.on(backend), sets: sets.clone() };
    let engine = Engine::start(Box::new(watched), Some(tokenizer()), roomy()).unwrap();
    let root = engine.root(prompt(3, 18)).unwrap();
    let other = engine.root(prompt(4, 9)).unwrap();
    let samples = engine.fork(root, 3).unwrap();
    let only = |ids: [u32; 3]| params().allowed(ids.map(TokenId));
    let of_root = (0..).zip(&samples).map(|(i, &sample)| draw(sample, key("root", i), only([97, 98, 200]), length(6)));
    let of_other = draw(other, key("other", 0), only([200, 97, 98]), length(6));
    let another = draw(root, key("another", 0), only([97, 98, 99]), length(6));
    let allowed: Vec<u32> = [97, 98, 99, 200].to_vec();
    for finish in finishes(&engine, of_root.chain([of_other, another]).collect()) {
        assert!(finish.tokens.iter().all(|token| allowed.contains(&token.0)), "{:?}", finish.tokens);
    }
    let sets = sets.lock().unwrap();
    let different: BTreeSet<*const AllowedTokens> = sets.iter().map(Arc::as_ptr).collect();
    assert_eq!((sets.len() > 5, different.len()), (true, 2), "five extends, two lists");
}
