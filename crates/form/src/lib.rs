//! Forms that sampled texts must have: JSON, patterns, grammars, choices. Defines what a form is ([`Form`]), compiles
//! it for a vocabulary ([`FormCompiler`]), keeps a branch's place in it ([`FormState`]), and says which tokens may come
//! next ([`Forms`]). The grammars themselves are llguidance's. Who samples, and when the tokens of a form begin, is
//! left to the engine.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod chars;
mod compile;
mod endless;
mod forms;
mod gbnf;
mod grammar;
mod grammar_place;
mod inside;
mod json_options;
mod lanes;
#[cfg(test)]
mod library_tests;
mod limits;
mod mask;
mod masks;
mod place;
mod reasoning;
mod schema;
mod spec;
mod state;
mod trial;
mod vocabulary;
mod white_space;

pub use compile::{COMPILE_WAIT, CompileCall, CompiledForm, FORMS_AT_ONCE, FormCompiler, FormKey};
pub use forms::{FormCounts, Forms};
pub use json_options::JsonOptions;
pub use lanes::FormLimit;
pub use mask::StateMask;
pub use spec::{Form, FormBegin, SampleForm};
pub use state::FormState;
pub use trial::TRIAL;
pub use vocabulary::FormVocabulary;
