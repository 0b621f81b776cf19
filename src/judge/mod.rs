//! The judge: runs untrusted candidate programs against a problem's tests in an operating-system sandbox and says what a
//! contest's judge says. A verdict is made here and in checker processes of our own, never from what a candidate claims. Reading
//! problems is `task`'s; what a verdict is worth to a search is the search's.

pub mod sandbox;
mod verdict;

pub use verdict::{Judgement, TestVerdict, Verdict};
