//! Floor 8: jobs run through the real engine and scheduler on a modelled device: what a batch or a trace of arrivals would take,
//! step by step, without computing it. Jobs are made of lengths and of texts that are only named (`prompt`); they come from
//! recorded traces (`read`) or are invented (`invent`). How long a step takes is the device profile's, see
//! `backend::modelled`, which says how near that comes; who gets rows in it is the engine's own scheduler's.

mod drive;
mod invent;
mod job;
mod policy;
mod prompt;
mod rate;
mod read;
mod record;
mod replay;

pub use drive::{Machine, Settings, simulate};
pub use invent::{Lengths, industry, micro, nested, shared_prompts, with_system_prompt};
pub use job::{Job, Request, poisson};
pub use policy::{Branches, Order, Policy, Sharing};
pub use prompt::{Prompt, Run};
pub use rate::{Sustained, sustainable_rate};
pub use read::{read_lengths, read_trace};
pub use record::{RequestRecord, Simulation, StepRecord, Totals};
pub use replay::{Replay, replay};
