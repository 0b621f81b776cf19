//! What was asked about single texts of an item, so that each is asked about once, however many samples have it and
//! whenever they come.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use crate::gather::same;
use crate::item::{TextVerdict, Then};
use offshoot_core::error::Result;

/// The verdicts on texts with further fields, by both.
#[derive(Default)]
pub(crate) struct Memo(Mutex<HashMap<String, Asked>>);

/// A text that was asked about.
enum Asked {
    /// These wait for the verdict, in the order in which they came.
    Waiting(Vec<Then>),
    /// The verdict on it.
    Judged(Result<TextVerdict>),
}

impl Memo {
    /// Hands the verdict on a text with these fields to `then`, now or once it is there. `ask` asks for it, and is
    /// called if nobody has asked before.
    pub fn of_text(self: &Arc<Self>, text: &str, extra: &Map<String, Value>, then: Then, ask: impl FnOnce(Then)) {
        let name = serde_json::json!([text, extra]).to_string();
        let mut memo = self.lock();
        match memo.get_mut(&name) {
            Some(Asked::Waiting(waiting)) => waiting.push(then),
            Some(Asked::Judged(verdict)) => {
                let verdict = copy(verdict);
                drop(memo);
                then(verdict);
            }
            None => {
                memo.insert(name.clone(), Asked::Waiting(vec![then]));
                drop(memo);
                let memo = Arc::clone(self);
                ask(Box::new(move |verdict| memo.note(name, verdict)));
            }
        }
    }

    /// Hands a verdict to all that wait for it.
    fn note(&self, name: String, verdict: Result<TextVerdict>) {
        let judged = Asked::Judged(copy(&verdict));
        let Some(Asked::Waiting(waiting)) = self.lock().insert(name, judged) else { return };
        waiting.into_iter().for_each(|then| then(copy(&verdict)));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Asked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An equal verdict, for another sample with the text.
fn copy(verdict: &Result<TextVerdict>) -> Result<TextVerdict> {
    match verdict {
        Ok(verdict) => Ok(verdict.clone()),
        Err(error) => Err(same(error)),
    }
}
