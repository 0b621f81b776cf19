//! The `offshoot` command as its users meet it.

#[path = "../../crates/launch/tests/pair/folders.rs"]
mod folders;
#[path = "../common/full.rs"]
mod full;
#[path = "../common/judge_server.rs"]
mod judge_server;
#[path = "../common/judging.rs"]
mod judging;
#[path = "../common/latent.rs"]
mod latent;
#[path = "../common/lora.rs"]
mod lora;
#[path = "../common/parquet.rs"]
mod parquet_files;
#[path = "../common/runs.rs"]
mod runs;
#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/signals.rs"]
mod signals;
#[path = "../common/skip.rs"]
mod skip;
#[path = "../common/watched.rs"]
mod watched;

mod adapter_runs;
mod attention_run;
mod batch_desk;
mod batch_echo;
mod batch_files;
mod batch_input;
mod cli;
mod deterministic;
mod dry_run;
mod forms;
mod judges;
mod latents;
mod mutated;
mod mutated_files;
mod mutation_seeds;
mod mutations;
mod output_files;
mod parquet_results;
mod plan_command;
mod prefix_store;
mod ready_tasks;
mod rescore;
mod resume;
mod rewards;
mod rollouts;
mod scored;
mod scorer_memory;
mod several_devices;
mod side_by_side;
mod strangers;
mod tensor_parallel;
mod tree_view;
