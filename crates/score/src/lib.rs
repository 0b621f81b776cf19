//! Forms of reward models, as data: how a question and an answer become the tokens that such a model reads, at which of
//! these tokens its values are read, and how values become scores. A form is found by its name, by the checkpoint's
//! class or in a file of the model folder. A reward model on an engine of its own scores the answers of searches by
//! such a form, as a tree whose common beginnings are computed once.
//!
//! What a text has of special tokens' texts is encoded as plain text, and values are read where rendering put a tag,
//! never where a token happens to look like one. So nothing that an answer says moves the places that are read.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.
#![warn(missing_docs)]

mod aggregate;
mod choice;
mod config;
mod expected;
mod form;
mod frame;
mod marked;
mod model;
mod output;
mod parts;
mod placing;
mod plain;
mod rendered;
mod resolved;
mod scale;
mod scorer;
pub mod scripted;
mod step_end;
mod words;
mod work;

pub use aggregate::Aggregate;
pub use choice::{FORM_FILE, FormChoice, built_in_names, names_that_fit};
pub use config::ScorerConfig;
pub use expected::expected_value;
pub use form::{
    Activation, ChatForm, ChatRead, Column, FormText, Output, PlainForm, PlainRead, ScoreForm, StepParts, StepTags,
    TokenName,
};
pub use model::ScorerModel;
pub use output::HeadFacts;
pub use rendered::{ReadPlace, Rendered, StepScore, StepScores};
pub use resolved::ResolvedForm;
pub use scale::Scale;
pub use scorer::{ScoredTree, ScorerIdentity, TextScorer, TextScores};
pub use scripted::{ScriptedAnswer, ScriptedScore, ScriptedScorer};
pub use step_end::StepEnd;
