//! Floor 4: one decoder for all model families, loaded from Hugging Face folders. `config` parses config.json, `layout`
//! lists the tensors a config requires, `weights` loads them or generates random ones, and `decoder` runs the forward
//! pass over a `Backend`. Families differ by data only. `runner` defines the steps that an engine asks of a model,
//! `loaded` implements them on any backend, `loaded_ranks` on several devices together. The engine decides which tokens
//! run when and how tokens are sampled.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod activations;
mod attribution;
pub mod check;
pub mod config;
mod conversions;
mod copies;
pub mod decoder;
mod feed_forward;
pub mod hashes;
mod inputs;
mod latent;
mod layer;
mod layout;
mod loaded;
mod loaded_ranks;
mod loader;
mod lora;
mod model_weights;
mod operands;
mod parts;
mod recurrent;
mod rope;
mod runner;
mod sequence;
mod sizes;
mod sleep;
mod update;
pub mod weights;

pub use attribution::Attribution;
pub use config::{
    ActivationChoice, Difference, EmbedderPooling, MadeFormat, ModelConfig, ModelFolder, ModelRole, OutputHead,
    Quantisation, SharedKeys, ValueHead, ValueLayer, WeightChoice, WhyCopied,
};
pub use decoder::Decoder;
pub use loaded::Loaded;
pub use loaded_ranks::LoadedRanks;
pub use lora::{Adapter, AdapterTensor};
pub use model_weights::ModelWeights;
pub use runner::{KvRoom, RowValues, RunnerFacts, StepFailure, StepLimits, StepRunner};
pub use sequence::Sequence;
pub use sleep::{Sleep, SleepParts, SleepTags, WeightSleep};
pub use update::{CheckedUpdate, UpdateScope, WeightForm};
pub use weights::{TensorData, TensorDtype, TensorFolder, TensorSource, TensorView, TensorsInMemory};
