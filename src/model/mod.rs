//! Floor 4: Hugging Face folders become one decoder. `config` turns config.json into facts, `layout` says which tensors
//! those facts ask for, `weights` finds them or draws random ones, and `decoder` runs one forward for all families over
//! a `Backend`; what distinguishes the families is data. Which tokens run when, and what is drawn from the logits, is
//! the engine's.

mod activations;
mod attribution;
pub mod check;
pub mod config;
pub mod decoder;
mod layout;
mod parts;
mod rope;
mod sequence;
pub mod weights;

pub use attribution::Attribution;
pub use config::{ModelConfig, ModelFolder};
pub use decoder::Decoder;
pub use sequence::Sequence;
