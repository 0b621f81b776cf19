//! Whole models on every code path of the CPU: goldens, families, formats, ranks.

#[path = "../../../../tests/common/full.rs"]
mod full;
#[path = "../../../../tests/common/gguf.rs"]
mod gguf_files;
#[path = "../../../../tests/common/shared.rs"]
mod shared;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod batch_invariance;
mod config_changes;
mod device_tensors;
mod families;
mod gguf;
mod gguf_latents;
mod goldens;
mod goldens_2026;
mod late;
mod latent_goldens;
mod lora;
mod quantised;
mod ranks;
mod recurrent;
mod routes;
mod scorers;
mod updates;
