//! Offshoot samples trees from language models.

pub mod backend;
pub mod bench;
pub mod cli;
pub mod engine;
pub mod error;
pub mod ids;
pub mod journal;
pub mod kv;
pub mod model;
pub mod plan;
pub mod report;
pub mod run;
//pub mod search;
pub mod task;
pub mod tokenizer;
pub mod tree;

pub use error::{Error, Result};
