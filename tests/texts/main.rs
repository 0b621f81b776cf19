//! Files and texts: tasks, models, tokenizers, documents, and the project's own drawing of its rooms.

#[path = "../common/full.rs"]
mod full;
#[path = "../common/gguf.rs"]
mod gguf_files;
#[path = "../common/parquet.rs"]
mod parquet_files;
#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/skip.rs"]
mod skip;

mod delta_rule_configs;
mod documents;
mod documents_of_the_project;
mod floors;
mod floors_cuda;
mod gguf;
mod gguf_mutations;
mod model_configs;
mod model_errors;
mod model_mutations;
mod mxfp4_experts;
mod parquet_items;
mod quantised_checkpoints;
mod settings;
mod task_files;
mod tokenizers;
