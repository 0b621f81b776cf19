//! Model folders and GGUF files: what is read and what is refused.

#[path = "../../../../tests/common/full.rs"]
mod full;
#[path = "../../../../tests/common/gguf.rs"]
mod gguf_files;
#[path = "../../../../tests/common/shared.rs"]
mod shared;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod delta_rule_configs;
mod gguf;
mod gguf_mutations;
mod known_fields;
mod latent_configs;
mod latent_experts;
mod model_configs;
mod model_errors;
mod model_mutations;
mod mxfp4_experts;
mod quantised_checkpoints;
