//! Offshoot samples trees from language models. A *sampling tree* (few-shot prompt, problem, candidate answers; or
//! thoughts that grow and are pruned) becomes multi-level attention: at every node the queries of all its descendants
//! meet the node's keys and values in one product, read once; partial results merge through their log-sum-exp.
//!
//! # Rooms
//! Rooms are crates below `crates/`, and use only crates below them. This package is the library's face and the command.
//!
//! ```text
//! cli (here)             what the user typed
//! lab                    offshoot-lab, a program of its own: check: a device compared with its definition; bench
//! estimate (replay)      what a job will cost, before it runs; jobs through the scheduler, on a simulated device or by
//!                        the clock
//! serve                  the server: connections, the queue, kept branches, the page
//! openai                 requests and answers in that protocol, one by one and in batches
//! eval                   a task from its file to results: task, answer, benchmark, statistics, run, journal, report, view,
//!                        scoring (samples made elsewhere)
//! inspect                what a model folder holds, and whether it computes what it should
//! args                   options that several commands share
//! search (tree)          SamplingTree: fork, extend, score, prune; drivers: ordinary programs over a tree
//! launch                 devices, their memory and a model become an engine
//! engine (replicas)      the step loop; no type parameter: ends in an EngineHandle; several behind one handle
//! model                  one decoder for all families over a Backend, and the steps that engines ask of it
//! cpu, cuda, sim         the ops, in clear loops and fast; on GPUs; a device that only keeps time
//! backend                the ops, defined in prose; weights; tensor parallelism
//! judge                  verdicts on programs, each in a sandbox
//! text                   tokenizers and chat templates
//! kv (plan)              segments and pages; Forest -> AttentionPlan (integers only)
//! gguf                   files of that format
//! lines                  files of lines, gzipped or not
//! core                   ids, error, figures, file_kind, json, input, out, mix, dice, mapped, bundled, bounded, setting
//! cases (fixtures)       the list of cases that the ops of every backend are checked by; data for tests
//! features               no code: third crates' features, the same whichever of these is tested
//! ```
//!
//! # The flow of the data
//! task file → items → prompts → tokens → `SamplingTree` (the search's record) → engine branches → segments of the
//! prefix tree → `Forest` → `AttentionPlan` → logits → tokens → thoughts → answers, votes, verdicts → `samples.jsonl` →
//! summary.
//!
//! Sharing or not sharing a prefix is only a different plan: same model, same sampler; on the CPU the same bits.
//!
//! # Words
//! *page* (KV memory) · *segment* (prefix-tree node: a run of tokens and its pages; open = one writer, sealed =
//! shareable) · *forest* (segments live in one step, depth-first) · *row* (one query token of a step) · *span*
//! (contiguous KV of one segment) · *work item* (rows × spans → partial) · *partial* (o, m, l) · *tile* (the absolute
//! positions a reduction breaks at) · *plan* · *step* · *branch* (engine-side leaf) · *node* (of the sampling tree) ·
//! *thought* (text of a node) · *frontier*. Log-sum-exps and log-probabilities are natural.
//!
//! # Example
//! ```no_run
//! use offshoot::engine::{SamplingParams, Stop};
//! use offshoot::tokenizer::AddSpecial;
//! use offshoot::tree::SamplingTree;
//!
//! fn main() -> offshoot::Result<()> {
//!     let (engine, tokenizer) = offshoot::open("tasks/models/demo".as_ref())?;
//!     let question = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:";
//!     let prompt = tokenizer.encode(question, AddSpecial::Yes)?;
//!     let mut tree = SamplingTree::new(engine, "pens", 1, prompt, question.to_string())?;
//!     let answers = tree.fork(tree.root(), 8)?;
//!     tree.extend(&answers, &SamplingParams::default(), &Stop::max_tokens(100))?;
//!     for node in answers {
//!         println!("{}", tree.node(node).text);
//!     }
//!     Ok(())
//! }
//! ```

#[cfg(feature = "command")]
pub mod cli;

pub use offshoot_core::{Error, Result, bounded, error, figures, ids, setting};
pub use offshoot_engine as engine;
#[cfg(feature = "eval")]
pub use offshoot_eval as eval;
#[cfg(feature = "judge")]
pub use offshoot_judge as judge;
pub use offshoot_kv::{self as kv, plan};
pub use offshoot_launch::{self as launch, open};
pub use offshoot_model as model;
#[cfg(feature = "serve")]
pub use offshoot_openai as openai;
pub use offshoot_search::{self as search, tree};
pub use offshoot_text as tokenizer;

/// If this process was started as a helper (of the judge, or of bounded work), becomes it and never returns. To be the
/// first line of `main` of a program that judges programs, or that has strangers' templates bounded in memory and time.
pub fn enter_if_helper() {
    #[cfg(feature = "judge")]
    offshoot_judge::sandbox::enter_if_helper();
    offshoot_core::bounded::enter_if_helper(&[
        #[cfg(feature = "eval")]
        &offshoot_eval::task::TEMPLATES,
        &offshoot_text::CHAT_TEMPLATES,
    ]);
}
