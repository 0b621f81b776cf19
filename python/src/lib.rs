//! The native half of the Python package `offshoot`: engines, tokenizers, running generations, sampling trees,
//! searches, tensors and jobs as Python objects. It translates types and errors, releases the interpreter while it
//! waits, and guards against use after `fork`. The shapes that scripts know (`LLM`, `SamplingParams`, `RequestOutput`)
//! are the Python half's.

mod arrow;
mod embedder;
mod engine;
mod errors;
mod events;
mod forms;
mod generation;
mod judging;
mod params;
mod parts;
mod pooling;
mod process;
mod rollouts;
mod samples;
mod scorer;
mod search;
mod tables;
mod tensors;
mod tokenizer;
mod tree;

use std::path::PathBuf;

use pyo3::prelude::*;

/// Has the command `offshoot` at this path do what is bounded in memory and time: strangers' templates.
#[pyfunction]
fn use_helper(command: PathBuf) {
    offshoot_core::bounded::use_helper(command);
}

/// What `LLM` calls a setting.
fn keyword(setting: &str) -> String {
    let keyword = match setting {
        "context" => "max_model_len",
        "gpu_memory" => "gpu_memory_utilization",
        "max_branches" => "max_num_seqs",
        "return_routed_experts" => "enable_return_routed_experts",
        "tensor_parallel" => "tensor_parallel_size",
        same => same,
    };
    keyword.to_string()
}

#[pymodule]
mod _offshoot {
    #[pymodule_export]
    use super::embedder::NativeEmbedder;
    #[pymodule_export]
    use super::engine::{Context, Engine};
    #[pymodule_export]
    use super::events::{NativeFinish, SampleFailed, SampleFinished, SampleRecords, SampleTokens, SampledToken};
    #[pymodule_export]
    use super::forms::{NativeCalls, NativeForm, NativePointer};
    #[pymodule_export]
    use super::generation::{Generation, Request};
    #[pymodule_export]
    use super::judging::Judge;
    #[pymodule_export]
    use super::params::Sampling;
    #[pymodule_export]
    use super::parts::{PromptPart, PromptParts, batch_tokens, prompt_parts, text_keys};
    #[pymodule_export]
    use super::rollouts::{NativeTrie, TrieBuilder, TrieTable};
    #[pymodule_export]
    use super::samples::Samples;
    #[pymodule_export]
    use super::scorer::{AnswerScores, NativeScorer, model_role};
    #[pymodule_export]
    use super::search::{Assessed, Found, SearchPrompt, search};
    #[pymodule_export]
    use super::tables::Records;
    #[pymodule_export]
    use super::tensors::Tensors;
    #[pymodule_export]
    use super::tokenizer::NativeTokenizer;
    #[pymodule_export]
    use super::tree::{Growth, NodeFailed, NodeFinished, Tree};
    #[pymodule_export]
    use super::use_helper;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::process::start_log();
        offshoot::cli::show_bars();
        offshoot_core::setting::spell(super::keyword);
        Ok(())
    }
}
