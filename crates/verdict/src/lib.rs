//! Verdicts of judges: a judge is a model that is asked about samples, and a verdict is what it is asked and how its
//! answer becomes a score from 0 to 1. This crate defines verdicts as data, plans their questions, asks a judge for
//! answers, and computes the scores. How prompts are written, and the task keys that describe verdicts, are left to its
//! callers.
//!
//! Samples are judged one by one, criterion by criterion, in pairs or in groups. Pairs and groups are drawn by a key of
//! the item, from the set of distinct texts alone: a resumed run asks the same questions, whatever the order in which
//! samples finish.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.
#![warn(missing_docs)]

mod answer;
mod ask;
mod compare;
mod draw;
mod engine;
mod gather;
mod groups;
mod item;
mod memo;
mod pairs;
mod question;
mod rubric;
pub mod scripted;
mod server;
mod tree;
mod verdict;

pub use answer::{AnswerRule, ScoreField, WordValues};
pub use ask::{Ask, JudgeCounts, JudgeIdentity, Reply};
pub use engine::EngineJudge;
pub use groups::GroupRule;
pub use item::{ItemVerdicts, TextVerdict, Then, WritePrompt};
pub use pairs::{PairAnswer, PairRule, WinnerField};
pub use question::{Answered, JudgeAnswer, JudgePrompt, Question, WantedAnswer};
pub use rubric::{Criterion, RubricRule, points_in_prompts};
pub use scripted::ScriptedJudge;
pub use server::{JudgeKey, ServerJudge, ServerOptions};
pub use verdict::Verdict;
