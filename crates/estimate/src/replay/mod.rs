//! Replays jobs through the real engine and scheduler, step by step: on a simulated device, to estimate the time of a
//! batch or a trace of arrivals without computing it, or on a real device by the wall clock
//! (`offshoot-lab bench batches`). Jobs consist of lengths and of synthetic texts (`prompt`); they come from recorded
//! traces (`read`) or are generated (`synthetic`). The device profile gives the time of a simulated step (see
//! `backend::sim`, also for its accuracy); the engine's own scheduler assigns the rows.

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

pub use job::{ReplayJob, ReplayRequest, poisson};
pub use model::{LoadedModel, ReplaySettings, SimulatedMachine, replay};
pub use policy::{BranchLimit, MOST_BRANCHES, Policy, PromptSharing, RequestOrder};
pub(crate) use policy::{PromptGroup, prompt_groups};
pub(crate) use prompt::synthetic_token;
pub use prompt::{TextRun, TracePrompt};
pub use rate::{RateSearch, Sustained, sustainable_rate};
pub use read::{read_lengths, read_trace};
pub use record::{JobRecord, ServedRequest, StepRecord, Totals};
pub use synthetic::{
    RequestLengths, behind_system_prompt, industry, micro, nested, shared_prompts, warm_up, with_system_prompt,
};
pub use time::{Span, Timekeeper, WallClock};
pub use trace::{TraceReplay, replay_trace};
