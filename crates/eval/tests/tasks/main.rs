//! Task files and their items.

#[path = "../../../../tests/common/parquet.rs"]
mod parquet_files;
#[path = "../../../../tests/common/shared.rs"]
mod shared;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod forms;
mod parquet_items;
mod same_answers;
mod task_files;
mod verdicts;
