//! What engines have in common, and what they have together.

use crate::{EngineFacts, EngineHandle};
use offshoot_core::error::{Error, Result};

/// The facts of all engines behind one handle.
pub fn of_all(engines: &[EngineHandle]) -> Result<EngineFacts> {
    let Some((first, others)) = engines.split_first() else {
        return Err(Error::value("devices", "at least one", "none"));
    };
    let mut all = first.facts().clone();
    for other in others {
        let other = other.facts();
        if other.arithmetic != all.arithmetic {
            let expected = format!("devices of one kind, as the first one ({})", all.arithmetic);
            return Err(Error::value("devices", expected, other.arithmetic.clone()));
        }
        let sizes = |facts: &EngineFacts| {
            (facts.vocab, facts.values, facts.page_tokens, facts.page_bytes, facts.batch_invariant, facts.adapters)
        };
        if sizes(other) != sizes(&all) {
            let expected = format!("replicas of one model with one format of keys and values, as on {}", all.device);
            return Err(Error::value("devices", expected, other.device.clone()));
        }
        all.context = all.context.min(other.context);
        all.pool_pages = all.pool_pages.min(other.pool_pages);
        all.states = all.states.min(other.states);
        all.window_pages = all.window_pages.max(other.window_pages);
        all.max_branches += other.max_branches;
        all.replicas += other.replicas;
    }
    all.device = described(engines);
    Ok(all)
}

/// "2 replicas: cuda:0, NVIDIA H200, ...; cuda:1, ...", equal ones once.
fn described(engines: &[EngineHandle]) -> String {
    let mut devices: Vec<&str> = engines.iter().map(|engine| engine.facts().device.as_str()).collect();
    let count = devices.len();
    devices.dedup();
    match count {
        1 => devices[0].to_owned(),
        _ => format!("{count} replicas: {}", devices.join("; ")),
    }
}
