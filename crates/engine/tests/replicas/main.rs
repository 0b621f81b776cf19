//! Several engines behind one handle: that each branch has one engine, that nothing depends on which, and what happens
//! when one ends. Engines are scripted, or small real ones.

#[path = "../../../../tests/common/patience.rs"]
mod patience;

mod lending;
mod losses;
mod placing;
mod real;
mod script;
mod trees;
