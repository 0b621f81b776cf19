//! Extends that allow the same tokens share one set, also those of other prompts: a device then holds it once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::bench::{Shape, decoder, draw, finishes, key, length, params, prompt, roomy, tokenizer};
use super::runner::{Watch, Watched};
use offshoot_backend::{AllowedTokens, StepBatch};
use offshoot_core::ids::TokenId;
use offshoot_engine::Engine;

/// The sets of allowed tokens of all requests that were submitted.
#[derive(Clone, Default)]
struct Sets(Arc<Mutex<Vec<Arc<AllowedTokens>>>>);

impl Watch for Sets {
    fn see(&mut self, batch: &StepBatch) {
        let sets = batch.requests.given().iter().filter_map(|request| request.allowed.clone());
        self.0.lock().unwrap().extend(sets);
    }
}

#[test]
fn extends_that_allow_the_same_tokens_share_one_set() {
    let (backend, decoder) = decoder(Shape::Full);
    let sets = Sets::default();
    let watched = Watched { model: decoder.on(backend), watch: sets.clone() };
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
    let sets = sets.0.lock().unwrap();
    let different: BTreeSet<*const AllowedTokens> = sets.iter().map(Arc::as_ptr).collect();
    assert_eq!((sets.len() > 5, different.len()), (true, 2), "five extends, two lists");
}
