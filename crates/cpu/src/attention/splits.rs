//! Where the sums of a row are split: at tiles and sections of absolute positions.

/// Positions folded at once. Tiles are aligned to absolute positions, so a row's sums are split at the same places
/// whatever the planner, the siblings or the chunking.
pub const TILE: u32 = 64;

/// Positions with a softmax state of their own; also aligned to absolute positions. So threads can share the context of
/// a single row, and the bits do not depend on whether they do. Merging takes 2 to 3 % of the time of folding so many.
pub const SECTION: u32 = 1024;
