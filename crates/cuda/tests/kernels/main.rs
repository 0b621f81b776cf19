//! The CUDA backend without and with a GPU: kernels emulated and, where there is one, run.

#[path = "../../../../tests/common/full.rs"]
mod full;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod cuda_device;
mod cuda_given;
mod cuda_ops;
mod cuda_steps;
mod device_plan;
mod emulated_advance;
mod emulated_append;
mod emulated_attention;
mod emulated_exchanges;
mod emulated_experts;
mod emulated_four_bit;
mod emulated_fp8;
mod emulated_given;
mod emulated_heads;
mod emulated_latents;
mod emulated_levels;
mod emulated_lora;
mod emulated_sampling;
mod emulated_states;
mod emulator;
