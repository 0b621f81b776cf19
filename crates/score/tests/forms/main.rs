//! Forms against the texts that the published models' own programs make of a question and an answer, and reward models
//! that score trees of answers by them.

#[path = "../../../../tests/common/shared.rs"]
mod shared;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod bundled;
mod faults;
mod hostile;
mod published;
mod renderings;
mod tokenizers;
mod trees;
