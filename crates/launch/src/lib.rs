//! Starts engines: [`Launch`] turns a device, or several, their budgets and a model into an
//! [`EngineHandle`](offshoot_engine::EngineHandle). Also defines `generate`, which samples with an engine, and
//! [`PromptOrder`], the order in which the prompts of a job start, [`work_ahead`], which computes results, such as
//! encoded prompts, in advance, [`ModelOnDevice`], a model without an engine, [`SecondFolder`], a scorer, an embedder
//! or a judge beside a model, and [`UpdateFolder`], new weights for one that is loaded. Searches, tasks and protocols
//! are left to the callers.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod ahead;
mod assemble;
mod budget;
mod device;
mod devices;
mod embedder;
mod generate;
mod gpu;
mod judge;
mod model_on_device;
mod options;
mod order;
mod pair;
mod ranks;
mod scorer;
mod second;
mod several;
mod shares;
mod source;
mod update;
mod work;

pub use ahead::{LOOK_AHEAD, guarded, work_ahead};
pub use assemble::{Demand, Launch, LaunchSizes, Launched, in_bytes, open};
pub use budget::{EngineBudget, MoreTokens, check_path};
pub use device::{DeviceChoice, Opened, WhyNotCuda};
pub use devices::Devices;
pub use embedder::EmbedderFolder;
pub use generate::{
    AsRequest, BeginOptions, ChoicesRequest, FormBegun, Generation, GenerationEvent, Generator, PromptRequest,
    RefusedPrompt, Release, SampleId, generate,
};
pub use gpu::{TrainerLink, device_lender, gpu_names, trainer_link};
pub use judge::{JudgeFolder, JudgeFolderOptions, LaunchedJudge};
pub use model_on_device::{AttentionAlong, ModelOnDevice};
pub use offshoot_engine::AdapterLimits;
pub use options::{EngineOptions, PrefixFolder};
pub use order::{OutputTokens, PromptOrder, TextKey};
pub use pair::{LaunchedScorer, beside_second};
pub use scorer::{ScorerFolder, ScorerOptions};
pub use second::{LaunchedSecond, SecondFolder, SecondKind, SecondSizes, same_folder};
pub use source::ModelSource;
pub use update::UpdateFolder;
pub use work::{DeviceBackend, DeviceKind, OnBackend, OnDevice};
