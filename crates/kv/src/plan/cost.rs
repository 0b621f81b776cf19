//! What a planner knows of the model and the device, and the cost of a plan's parts on a backend. Each backend names
//! its [`CostModel`]; only `balanced` uses it.

use serde::{Deserialize, Serialize};

use super::latents::{FormCosts, ItemRows, LatentHints, LatentRates};
use offshoot_core::ids::GroupIx;

/// Facts of the model and the device that a planner needs.
#[derive(Clone, Copy, Debug)]
pub struct PlanHints {
    /// See *Whole tiles* in the docs of `plan`. A multiple of the page size, or 1.
    pub tile: u32,
    /// Page group of the layers this plan is for.
    pub group: GroupIx,
    /// Sliding window of these layers.
    pub window: Option<u32>,
    pub q_heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Bytes of one stored key or value element.
    pub kv_element_bytes: u32,
    /// The expanded form of latent attention; `None`: attention is not latent.
    pub latents: Option<LatentHints>,
    pub cost: CostModel,
}

/// Cost of an item, in nanoseconds of the whole device, for one layer: `item + kv bytes * kv_byte + states * state
/// bytes * state_byte + rows * tokens * (a constant)`. The last term, the multiplications, is the same for every
/// division of the work and is left out, except where rows are computed in tiles: a partly filled tile costs as much as
/// a full one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Per item: looking up its tiles, pages and queries.
    pub item: f64,
    /// Per byte of keys and values that an item reads.
    pub kv_byte: f64,
    /// Per byte of a row's state (`o`, `m`, `l` of all heads, f32) that an item loads and stores.
    pub state_byte: f64,
    /// When items are split; `None` if the backend itself divides long items.
    pub split: Option<Split>,
    /// Cost of items that are computed in tiles of several rows; `None` if all items cost by their bytes.
    pub tiles: Option<Tiles>,
    /// What tokens of latent attention cost, in place of `kv_byte` and of the tokens of `tiles`.
    pub latents: LatentRates,
}

/// An item with more packed rows (rows x query heads of a group) than memory-bound kernels handle is cut to tiles, one
/// for each key head and `rows` packed rows. A tile costs by its tokens, not their bytes, which tiles of other rows
/// have brought into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// Packed rows up to which an item costs by its bytes.
    pub narrow_rows: u32,
    /// Packed rows of a tile.
    pub rows: u32,
    /// Per tile, in nanoseconds of the whole device.
    #[serde(rename = "start_ns")]
    pub start: f64,
    /// Per token of a tile.
    #[serde(rename = "token_ns")]
    pub token: f64,
    /// Per token of a tile that is at most half full.
    #[serde(rename = "half_token_ns")]
    pub half_token: f64,
}

/// An item is split if it is more than a given part of the step's work and longer than a given number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    pub parts: u64,
    pub tokens: u32,
}

/// Bytes per nanosecond of an H200's memory, measured: 4.3 TB/s.
const H200_BYTES: f64 = 4300.0;
const H200_MULTIPROCESSORS: f64 = 132.0;

impl CostModel {
    /// Measured on 2 cores of an Intel Xeon with AVX-512 BF16 (2 MB of second-level cache each), bf16 keys and values,
    /// trunks of 2,048 tokens under 2 to 512 rows, heads (query/key/width) 32/8/128, 9/3/64 and 32/32/128. One item
    /// more took 0.5 to 1.0 us under 2 rows and was lost in the noise under more: states are folded in place, tile by
    /// tile, so that it does not matter where an item ends. A byte read once more took 0.001 to 0.013 ns, as the cores
    /// multiply while it comes from cache.
    pub const CPU: CostModel = CostModel {
        item: 1000.0,
        kv_byte: 0.005,
        state_byte: 0.0,
        split: Some(Split { parts: 64, tokens: 512 }),
        tiles: None,
        latents: LatentRates::CPU,
    };

    /// For an H200; what other GPUs have, `of_gpu` says. Keys and values, and states, move at the speed of memory; a
    /// state is written by its item and read by the merge. From a time measured for heads of 128 and 16,384 tokens
    /// under 8,192 packed rows: one of 132 multiprocessors takes 1.05 us for 64 tokens of a full tile. Estimated: a
    /// half full tile takes 0.6 of that, and a tile 3 us to begin and to end.
    pub const CUDA: CostModel = CostModel {
        item: 0.0,
        kv_byte: 1.0 / H200_BYTES,
        state_byte: 2.0 / H200_BYTES,
        split: None,
        tiles: Some(Tiles {
            narrow_rows: 8,
            rows: 128,
            start: 3000.0 / H200_MULTIPROCESSORS,
            token: 1050.0 / 64.0 / H200_MULTIPROCESSORS,
            half_token: 630.0 / 64.0 / H200_MULTIPROCESSORS,
        }),
        latents: LatentRates::CUDA,
    };

    /// This model for a device on which items of few rows are cut to tiles too.
    pub fn wide_only(self) -> Self {
        Self { tiles: self.tiles.map(|tiles| Tiles { narrow_rows: 0, ..tiles }), ..self }
    }

    /// Fixed cost of an item of `rows` rows, in nanoseconds.
    pub(super) fn start(&self, hints: &PlanHints, rows: usize) -> f64 {
        match self.tiles {
            Some(tiles) => self.item + tiles.start * tiles.count(hints, rows) as f64,
            None => self.item,
        }
    }

    /// Cost of each token of an item with these rows, in nanoseconds.
    pub(super) fn token(&self, hints: &PlanHints, item: ItemRows) -> f64 {
        if let Some(forms) = FormCosts::of(hints) {
            return forms.least(item);
        }
        match self.tiles {
            Some(tiles) if hints.packed(item.rows) > u64::from(tiles.narrow_rows) => tiles.token(hints, item.rows),
            _ => hints.token_bytes() as f64 * self.kv_byte,
        }
    }

    /// Cost of the partial states of such an item's rows, one each, in nanoseconds.
    pub(super) fn states(&self, hints: &PlanHints, item: ItemRows) -> f64 {
        let bytes = FormCosts::of(hints).map_or(hints.state_bytes(), |forms| forms.state_bytes(item));
        (item.rows as u64 * bytes) as f64 * self.state_byte
    }
}

impl Tiles {
    fn count(&self, hints: &PlanHints, rows: usize) -> u64 {
        hints.packed(rows).div_ceil(u64::from(self.rows)) * u64::from(hints.kv_heads)
    }

    fn token(&self, hints: &PlanHints, rows: usize) -> f64 {
        let (full, rest) = (hints.packed(rows) / u64::from(self.rows), hints.packed(rows) % u64::from(self.rows));
        let last = match rest {
            0 => 0.0,
            rest if 2 * rest <= u64::from(self.rows) => self.half_token,
            _ => self.token,
        };
        f64::from(hints.kv_heads) * (full as f64 * self.token + last)
    }
}
