//! (to be written)
pub mod decode;
pub mod machine;
