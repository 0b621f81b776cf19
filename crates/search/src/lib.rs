//! Search drivers: blocking programs over `SamplingTree`, one per file. They share [`SearchJob`] (how to sample, how to
//! assess a text, where finished samples go) and the [`Outcome`] that they return.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

#![warn(missing_docs)]

mod assess;
pub mod best_of_n;
pub mod by_scorer;
mod calls;
pub mod choose;
pub mod confidence;
pub mod decide;
pub mod dvts;
pub mod entropy_branching;
pub mod evaluate;
mod job;
pub mod mcts;
mod model_scores;
mod outcome;
pub mod particles;
mod pointer;
pub mod rollout;
pub mod scorer;
pub mod select;
pub mod self_consistency;
pub mod settings;
pub mod step_beam;
pub mod steps;
pub mod stragglers;
pub mod tree;
pub mod tree_of_thought;
pub mod tree_po;
pub mod vote;

pub use assess::{Assess, Assessment, AssessmentRequest, Assessor};
pub use best_of_n::{best_of_n, sample};
pub use by_scorer::{best_by_scorer, vote_by_scorer};
pub use calls::CalledTools;
pub use choose::choose;
pub use dvts::dvts;
pub use entropy_branching::entropy_branching;
pub use job::{Record, SearchJob};
pub use mcts::mcts;
pub use model_scores::{ModelScores, OnScorerError, ScorerWork, why_unscored};
pub use outcome::{
    ChoiceScore, Details, FailedBranches, Outcome, Sample, SampleScore, Straggler, best_scored, first_with, tally,
    verdict_on, weighted_vote,
};
pub use particles::particle_gibbs;
pub use pointer::{JsonPointer, answer_text, number_answer};
pub use scorer::Scorer;
pub use self_consistency::{confident_self_consistency, self_consistency};
pub use step_beam::step_beam;
pub use stragglers::{finish_stragglers, release_stragglers};
pub use tree_of_thought::tree_of_thought;
pub use tree_po::tree_po;
