//! (to be written)
pub mod decode;
