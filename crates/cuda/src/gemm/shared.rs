//! Algorithms of products that several GPUs choose alike: the first of them chooses, the others wait for its choice.
//! What all compute has the same bits then, and each of them multiplies as fast as one GPU alone.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::algorithm::Algorithm;
use super::cublaslt::GemmShape;
use offshoot_core::error::{Error, Result};

/// The choices of all.
#[derive(Default)]
pub struct SharedChoices {
    state: Mutex<State>,
    chosen: Condvar,
}

#[derive(Default)]
struct State {
    has_ended: bool,
    /// Every choice for a shape, from the first on, with the shape itself: keys have no bias, which only one GPU adds
    /// to a sum.
    choices: HashMap<GemmShape, Vec<Choice>>,
}

#[derive(Clone, Copy)]
struct Choice {
    shape: GemmShape,
    /// `None`: the library has none.
    algorithm: Option<Algorithm>,
}

impl SharedChoices {
    /// Wakes those that wait, now and later: the first one will choose no more.
    pub fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        self.chosen.notify_all();
    }
}

/// One GPU's part in it.
pub struct Sharing {
    choices: Arc<SharedChoices>,
    is_first: bool,
    /// How often each shape was chosen for.
    times: HashMap<GemmShape, usize>,
    /// The first shape of each key.
    leaders: HashMap<GemmShape, GemmShape>,
}

/// What another GPU has chosen.
pub(super) enum Chosen {
    Algorithm(Option<Algorithm>),
    /// For a product with a bias, or without one, where this one is not so.
    ForAnother,
}

fn key(shape: GemmShape) -> GemmShape {
    GemmShape { biased: false, ..shape }
}

impl Sharing {
    pub fn new(choices: Arc<SharedChoices>, is_first: bool) -> Self {
        Self { choices, is_first, times: HashMap::new(), leaders: HashMap::new() }
    }

    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether the choice for a shape is shared: that for the first one of its key is. Another one differs by its bias
    /// and may exist on some GPUs only, so each of them chooses by itself.
    pub(super) fn shares(&mut self, shape: GemmShape) -> bool {
        *self.leaders.entry(key(shape)).or_insert(shape) == shape
    }

    /// Tells the others what was chosen.
    pub(super) fn tell(&self, shape: GemmShape, algorithm: Option<Algorithm>) {
        let mut state = self.choices.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.choices.entry(key(shape)).or_default().push(Choice { shape, algorithm });
        self.choices.chosen.notify_all();
    }

    /// What the first GPU has chosen, the first time for a shape what it chose the first time, and so on.
    ///
    /// # Errors
    ///
    /// It has failed.
    pub(super) fn hear(&mut self, shape: GemmShape) -> Result<Chosen> {
        let times = self.times.entry(key(shape)).or_default();
        let mut state = self.choices.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(choice) = state.choices.get(&key(shape)).and_then(|choices| choices.get(*times)) {
                *times += 1;
                return Ok(match choice.shape == shape {
                    true => Chosen::Algorithm(choice.algorithm),
                    false => Chosen::ForAnother,
                });
            }
            if state.has_ended {
                return Err(Error::Internal("the device that chooses algorithms for others has failed".to_owned()));
            }
            state = self.choices.chosen.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::{Dtype, WeightFormat};

    fn shape(rows: usize, biased: bool) -> GemmShape {
        let (weights, compute, out) = (WeightFormat::Dense(Dtype::Bf16), Dtype::Bf16, Dtype::Bf16);
        GemmShape { rows, outputs: 8, inner: 8, weights, compute, out, accumulate: false, biased }
    }

    #[test]
    fn a_shape_that_only_some_have_is_not_waited_for() {
        // Two layers, both with a bias on the first GPU; on the other one the second has none.
        let choices = Arc::new(SharedChoices::default());
        let mut first = Sharing::new(choices.clone(), true);
        let mut other = Sharing::new(choices, false);
        assert!(first.shares(shape(1, true)) && first.shares(shape(1, true)));
        first.tell(shape(1, true), None);
        assert!(other.shares(shape(1, true)));
        assert!(matches!(other.hear(shape(1, true)), Ok(Chosen::Algorithm(None))));
        assert!(!other.shares(shape(1, false)), "nobody would tell");
        assert!(other.shares(shape(2, false)), "of other rows");
    }

    #[test]
    fn others_hear_each_choice_in_turn_and_an_end() {
        let choices = Arc::new(SharedChoices::default());
        let first = Sharing::new(choices.clone(), true);
        let mut other = Sharing::new(choices.clone(), false);
        first.tell(shape(1, false), None);
        first.tell(shape(2, true), None);
        assert!(matches!(other.hear(shape(2, false)), Ok(Chosen::ForAnother)));
        assert!(matches!(other.hear(shape(1, false)), Ok(Chosen::Algorithm(None))));
        let waits = std::thread::spawn(move || other.hear(shape(1, false)).map(|_| ()));
        choices.end();
        let error = waits.join().expect("no panic").expect_err("nobody chooses a second time");
        assert!(error.to_string().contains("has failed"), "{error}");
    }
}
