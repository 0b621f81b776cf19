//! Offshoot samples trees from language models. A *sampling tree* (few-shot prompt, problem, candidate answers; or thoughts that
//! grow and are pruned) becomes multi-level attention: at every node the queries of all its descendants meet the node's keys and
//! values in one product, read once; partial results merge through their log-sum-exp.
//!
//! # Floors
//! A floor uses only floors below it (`tests/floors.rs` holds the drawing to that):
//!
//! ```text
//! 9  main, cli                          what the user typed
//! 8  run, report, journal, batch, view  a task or requests from file to results; what searches did
//! 8  scoring                            samples made elsewhere, judged
//! 8  forecast                           what a job will come to, without running it
//! 8  bench, check                       measuring; holding a device to its definition
//! 8  simulate                           jobs through the scheduler on a modelled device
//! 7  search, judge                      drivers: ordinary programs over a tree; verdicts on programs
//! 6  tree                               SamplingTree: fork, extend, score, prune
//! 5  engine                             the step loop; ends in a non-generic EngineHandle
//! 4  model                              one decoder for all families over a Backend
//! 3  backend                            the ops, defined once in prose, in clear loops, and fast; and as times alone
//! 2  plan                               Forest -> AttentionPlan (integers only)
//! 1  kv (integers only) | task, tokenizer (text only)
//! 0  ids, error, figures, out, mix
//! ```
//!
//! # The way of the data
//! task file → items → prompts → tokens → `SamplingTree` (the search's record) → engine branches → segments of the prefix
//! tree → `Forest` → `AttentionPlan` → logits → tokens → thoughts → answers, votes, verdicts → `samples.jsonl` → summary.
//!
//! Sharing or not sharing a prefix is only a different plan: same model, same sampler; on the CPU the same bits.
//!
//! # Words
//! *page* (KV memory) · *segment* (prefix-tree node: a run of tokens and its pages; open = one writer, sealed = shareable) ·
//! *forest* (segments live in one step, depth-first) · *row* (one query token of a step) · *span* (contiguous KV of one
//! segment) · *work item* (rows × spans → partial) · *partial* (o, m, l) · *tile* (the absolute positions a reduction breaks
//! at) · *plan* · *step* · *branch* (engine-side leaf) · *node* (of the sampling tree) · *thought* (text of a node) ·
//! *frontier*. Log-sum-exps and log-probabilities are natural.
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

pub mod backend;
pub mod bundled;
pub mod cli;
pub mod engine;
pub mod error;
pub mod eval;
pub mod figures;
mod hashes;
pub mod ids;
pub mod json;
pub mod judge;
pub mod kv;
pub mod lab;
pub mod launch;
mod mix;
pub mod model;
pub mod openai;
pub mod out;
pub mod plan;
pub mod search;
pub mod tokenizer;
pub mod tree;

pub use error::{Error, Result};
pub use launch::open;
