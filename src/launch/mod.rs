//! Assembles an engine, in one place: a device, its budgets and a model become an [`EngineHandle`]. Also `generate`,
//! which samples with it, and in which order the prompts of a job are begun. Searches, tasks and protocols are left to
//! its callers.

mod assemble;
mod budget;
mod device;
mod generate;
mod order;

pub use assemble::{Demand, Launch, Launched, ModelSource, Sizes, in_bytes, open};
pub use budget::{Budget, check_path};
pub use device::{Device, DeviceChoice, DeviceFacts, OnDevice, Opened, WhyNotCuda};
pub use generate::{GenerateEvent, Generation, Generator, PromptRequest, Release, SampleId, generate};
pub use order::{Draws, Order};
