//! What the parts of a plan cost a backend. A backend names its [`CostModel`]; `balanced` alone decides by it.

/// What an item costs, in nanoseconds of the whole device, for one layer:
/// `item + kv bytes * kv_byte + states * state bytes * state_byte + rows * tokens * (a constant)`.
/// The last term is the multiplications, which no division of the work changes; so it has no part in the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Each item: its tiles, pages and queries are looked up.
    pub item: f64,
    /// Each byte of keys and values that an item reads.
    pub kv_byte: f64,
    /// Each byte of a row's state (`o`, `m`, `l` of all heads, f32) that an item takes up and puts down again.
    pub state_byte: f64,
    /// When items are split; `None` where the backend itself divides long items.
    pub split: Option<Split>,
}

/// An item is split when it is more than this part of the step's work and longer than so many tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    pub parts: u64,
    pub tokens: u32,
}

/// Bytes that an H200 moves in a nanosecond: it was measured to read its memory at 4.3 TB/s.
const H200_BYTES: f64 = 4300.0;

impl CostModel {
    /// Measured on 2 cores of an Intel Xeon with AVX-512 BF16 (2 MB of second-level cache each), bf16 keys and values,
    /// trunks of 2,048 tokens under 2 to 512 rows, heads (query/key/width) 32/8/128, 9/3/64 and 32/32/128. One item more
    /// took 0.5 to 1.0 us under 2 rows and was lost in the noise under more: states are folded in place, tile by tile, so
    /// that it does not matter where an item ends. A byte read once more took 0.001 to 0.013 ns, as the cores multiply
    /// while it comes from cache.
    pub const CPU: CostModel =
        CostModel { item: 1000.0, kv_byte: 0.005, state_byte: 0.0, split: Some(Split { parts: 64, tokens: 512 }) };

    /// Derived for an H200, not measured. An item starts a tile for each key head, say 8, and a tile holds one of 132
    /// multiprocessors for about 1 us before its first bytes are there. Keys and values, and states, move at the speed of
    /// memory; a state is written by its item and read by the merge.
    pub const CUDA: CostModel =
        CostModel { item: 8.0 * 1000.0 / 132.0, kv_byte: 1.0 / H200_BYTES, state_byte: 2.0 / H200_BYTES, split: None };
}
