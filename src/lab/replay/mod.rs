//! Jobs replayed through the real engine and scheduler, step by step: on a simulated device, which says what a batch or a trace of
//! arrivals would take without computing it, or on a real one by the wall clock (`bench batches`). Jobs are made of lengths and of
//! texts that are only named (`prompt`); they come from recorded traces (`read`) or are synthetic (`synthetic`). How long a
//! simulated step takes is the device profile's, see `backend::sim`, which says how near that comes; who gets rows in it is the
//! engine's own scheduler's.

mod drive;
mod job;
mod model;
mod policy;
mod prompt;
mod rate;
mod read;
mod record;
mod synthetic;
mod time;
mod trace;

pub use job::{Job, Request, poisson};
pub use model::{LoadedModel, Machine, Settings, replay};
pub use policy::{Branches, MOST_BRANCHES, Order, Policy, Sharing};
pub use prompt::{Prompt, Run};
pub use rate::{RateSearch, Sustained, sustainable_rate};
pub use read::{read_lengths, read_trace};
pub use record::{JobRecord, RequestRecord, StepRecord, Totals};
pub use synthetic::{
    Lengths, behind_system_prompt, industry, micro, nested, shared_prompts, warm_up, with_system_prompt,
};
pub use time::{Span, Timekeeper, WallClock};
pub use trace::{TraceReplay, replay_trace};
