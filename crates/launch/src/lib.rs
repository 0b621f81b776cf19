//! Starts engines: [`Launch`] turns a device, or several, their budgets and a model into an
//! [`EngineHandle`](offshoot_engine::EngineHandle). Also defines `generate`, which samples with an engine, and
//! [`PromptOrder`], the order in which the prompts of a job start, and [`work_ahead`], which computes results, such as
//! encoded prompts, in advance. Searches, tasks and protocols are left to the callers.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod ahead;
mod assemble;
mod budget;
mod device;
mod devices;
mod generate;
mod gpu;
mod options;
mod order;
mod ranks;
mod several;

pub use ahead::{LOOK_AHEAD, guarded, work_ahead};
pub use assemble::{Demand, Launch, LaunchSizes, Launched, ModelSource, PrefixFolder, in_bytes, open};
pub use budget::{EngineBudget, MoreTokens, check_path};
pub use device::{DeviceBackend, DeviceChoice, DeviceKind, OnBackend, OnDevice, Opened, WhyNotCuda};
pub use devices::Devices;
pub use generate::{
    AsRequest, BeginOptions, ChoicesRequest, Generation, GenerationEvent, Generator, PromptRequest, RefusedPrompt,
    Release, SampleId, generate,
};
pub use options::EngineOptions;
pub use order::{OutputTokens, PromptOrder, TextKey};
