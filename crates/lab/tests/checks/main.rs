//! Devices compared with the definition of every op: the CPU, whose answers are known, and GPUs where there are some;
//! and what the command line of `offshoot-lab` refuses.

#[path = "../../../../tests/common/full.rs"]
mod full;
#[path = "../common/lab.rs"]
mod lab;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod command;
mod cuda_beside;
mod cuda_members;
mod deterministic;
mod device_check;
mod kernels;
mod long_decode;
mod quick;
