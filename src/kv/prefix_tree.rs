//! Radix tree of segments.
pub struct PrefixTree {}
