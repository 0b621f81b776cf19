//! Floor 5: the step loop. Defines the requests, the events and the channel client (`EngineHandle`) that everything above is
//! built on, and hides the model, the backend and the prefix tree behind one thread. What a search does with branches is
//! floor 6's affair.

pub mod coins;
pub mod handle;
pub mod metrics;
pub mod request;
pub mod scripted;

pub use coins::{CoinKey, ForkKind};
pub use handle::{EngineFacts, EngineHandle, Extension};
pub use metrics::Metrics;
pub use request::{Continuation, Event, Extend, Finish, FinishReason, SamplingParams, Stop};
pub use scripted::{ScriptedCall, ScriptedReply};
