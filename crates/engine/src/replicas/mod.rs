//! Several engines of one model behind one [`EngineHandle`]: replicas, each with a device and keys and values of its
//! own. A router thread gives each branch that begins to one of them; what it becomes stays there, so that prefixes are
//! computed once, and what several replicas need is copied between them where that pays (`copying`). Samples do not
//! depend on the replica, so that everything above the handle works as with one engine. Which devices there are is left
//! to `launch`.

mod branch;
#[cfg(test)]
mod by_hand;
mod copying;
mod facts;
mod hearing;
mod load;
mod loan;
mod loss;
#[cfg(test)]
mod paused_together;
mod prefix;
mod questions;
mod queue;
mod replica;
mod router;
mod takeover;
mod together;

use crate::{EngineHandle, LivePlace, run_to_the_end};
use offshoot_core::error::{Error, Result};
use offshoot_core::memory::MemoryFault;

use router::Router;

/// One handle for these engines, which end with it. A single one is returned as it is.
///
/// # Errors
///
/// None are given, their arithmetic differs, or a thread cannot start.
pub fn join(engines: Vec<EngineHandle>) -> Result<EngineHandle> {
    let facts = facts::of_all(&engines)?;
    let mut engines = engines;
    if engines.len() == 1 {
        return Ok(engines.remove(0));
    }
    let live = LivePlace::before(engines.iter().map(EngineHandle::live_place).collect());
    let (handle, commands, exit_reason) = {
        let first = &engines[0];
        EngineHandle::publishing(facts, first.weights(), first.weight_form(), first.forms().clone(), live.clone())
    };
    let router = Router::new(engines, commands, live, handle.status_place());
    let work = move || {
        run_to_the_end(&exit_reason, || {
            if let Some(why) = router.run() {
                // As it is, without the words that an error would put before it.
                exit_reason.get_or_init(|| why);
            }
            Ok(())
        });
    };
    let thread = std::thread::Builder::new().name("router".to_owned()).spawn(work);
    let thread = thread
        .map_err(|error| Error::EngineStopped { why: format!("its router cannot start: {}", MemoryFault(&error)) })?;
    handle.set_thread(thread);
    Ok(handle)
}
