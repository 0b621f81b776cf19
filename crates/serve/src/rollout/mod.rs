//! The verbs by which a trainer drives the server: pauses, weight updates, sleep, adapters, and samples from token ids
//! to token ids, in the shapes that trainers for `vllm serve` send and read. There are none unless the server is
//! started for rollouts. `routes` has the paths; what a pause or an update does to requests in progress is the
//! engine's.
//!
//! A verb that fails says so with a status below 500: trainers send a request again when they see one from 500 up,
//! which would be another update. Only requests for samples that find the engine paused get 503.

mod adapters;
mod forms;
mod generate;
mod info;
mod pause;
mod pending;
mod routes;
mod rpc;
mod sleep;
mod transfer;
mod update;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use offshoot_backend::Dtype;
use offshoot_core::error::Error;
use offshoot_openai::protocol::{Refusal, RefusalKind};

pub use pause::Admission;
pub use routes::routes;

use pending::PendingUpdate;

/// What the user of a server for rollouts chooses.
#[derive(Clone, Debug)]
pub struct RolloutOptions {
    /// A file with one operators' key per line; `None`: the environment's.
    pub keys: Option<PathBuf>,
    /// How long a trainer may say nothing in the middle of a weight update.
    pub update_timeout: Duration,
    /// Whether samples of token ids have their sampling masks without being asked.
    pub sampling_masks: bool,
}

/// A server's state for rollouts.
pub struct Rollout {
    facts: RolloutFacts,
    pending: Arc<PendingUpdate>,
    /// As [`RolloutOptions`] has it.
    sampling_masks: bool,
}

/// What verbs need to know of the engine.
pub struct RolloutFacts {
    /// The folder or file of the model that the server was started with.
    pub model: PathBuf,
    /// The dtype in which the model computes, and how many devices compute it together.
    pub dtype: Dtype,
    pub ranks: usize,
    /// The GPU that receives what a trainer broadcasts; `None`: the engine has none.
    pub gpu: Option<usize>,
    /// Whether computed prefixes are kept on disk.
    pub keeps_prefixes: bool,
    /// Most bytes of the tensors of an update.
    pub most_bytes: usize,
}

impl RolloutFacts {
    /// The dtype as torch calls it.
    fn torch_dtype(&self) -> &'static str {
        match self.dtype {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
        }
    }

    /// How trainers that ask may send tensors.
    fn backend(&self) -> &'static str {
        if self.gpu.is_some() { "nccl" } else { "bodies" }
    }
}

impl Rollout {
    pub fn new(options: &RolloutOptions, facts: RolloutFacts) -> Self {
        let pending = Arc::new(PendingUpdate::new(options.update_timeout, facts.most_bytes));
        Rollout { pending, facts, sampling_masks: options.sampling_masks }
    }

    /// Names of the model beside those that are served: trainers send its folder's path.
    pub fn paths(&self) -> Vec<String> {
        let whole = self.facts.model.canonicalize().ok();
        let paths = [Some(&self.facts.model), whole.as_ref()].into_iter().flatten();
        paths.map(|path| path.display().to_string()).collect()
    }
}

/// An engine's error as the answer of a verb, which is never sent again by itself: with the paths of files, which are
/// the operator's concern.
fn failed(error: &Error) -> Refusal {
    let refusal = Refusal::of(error);
    let kind = match refusal.kind {
        RefusalKind::Internal | RefusalKind::Unavailable => RefusalKind::Conflict,
        kind => kind,
    };
    Refusal { kind, message: error.to_string(), ..refusal }
}
