//! Forms that sampled texts must have: JSON, patterns, grammars, choices. Defines what a form is ([`Form`]), compiles it
//! for a vocabulary, and says which tokens may come next behind those that were sampled. The grammars themselves are
//! llguidance's. Who samples, and when the tokens of a form begin, is left to the engine.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod gbnf;
mod json_style;
mod spec;

pub use json_style::JsonStyle;
pub use spec::{Form, FormBegin, SampleForm};
