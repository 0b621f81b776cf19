//! What planners know of latent attention, and what a token costs in each of its forms. In the absorbed form all heads
//! read one latent and multiply much; in the expanded form each head reads a key and a value of its own, from a copy
//! that is made of the latent.

use serde::{Deserialize, Serialize};

use super::{CopyRoom, PlanHints};
use crate::CopyStore;

/// Latent attention, beside [`PlanHints`], whose heads are those of the absorbed form: `head_dim` is the width of a
/// latent and its rotated part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHints {
    /// Elements of an expanded key that are not rotated, and of those that are.
    pub nope: u32,
    pub rope: u32,
    /// Elements of an expanded value.
    pub value: u32,
    /// The tile of plans that read copies. These have items only if it divides that of the absorbed form.
    pub tile: u32,
    /// Bytes of an element of a copy.
    pub copy_element_bytes: u32,
    /// Whether there may be copies. If not, all is absorbed.
    pub has_copies: bool,
}

/// Rates of latent attention, in nanoseconds of the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentRates {
    /// Per byte that an item reads, or that is written of a copy.
    #[serde(rename = "byte_ns")]
    pub byte: f64,
    /// Per byte of latents that an item reads, beside the above: they become operands once for all of its rows. 0 where
    /// products take them as they are stored.
    #[serde(rename = "converted_byte_ns")]
    pub converted: f64,
    /// Per product of attention, a multiplication with its addition.
    #[serde(rename = "product_ns")]
    pub product: f64,
    /// Per product that expands latents.
    #[serde(rename = "expanding_product_ns")]
    pub expanding: f64,
    /// Rows of a tile, which costs as much when it is not full: rows times heads of one key, so that the absorbed form
    /// fills it with few rows.
    pub rows: u32,
    /// Per step and layer that reads copies at all.
    #[serde(rename = "start_ns")]
    pub start: f64,
}

impl LatentRates {
    /// Measured on two cores with AVX-512 in the absorbed form, 32 rows of 12 heads above 2,112 latents of 512 + 64: a
    /// layer took 6.7 ms if the rows shared 2,048 of them, 11.6 if not, of which follow the times of a product and of a
    /// converted byte. A product that expands was measured to take 0.025 ns of one thread. Bytes are estimated, at 28
    /// GB a second.
    pub const CPU: LatentRates = LatentRates {
        byte: 1.0 / 28.0,
        converted: 0.067,
        product: 1.0 / 138.0,
        expanding: 1.0 / 80.0,
        rows: 1,
        start: 2000.0,
    };

    /// Measured on an H200 in the absorbed form: 620 TFLOP/s, two operations a product, under 1,024 rows of 128 heads;
    /// 4.0 TB/s where each row reads latents of its own; 15 us for one more attention in the same layer. 2,048 latents
    /// are expanded in 29 us for 16 heads and in 192 us for 128: within an eighth of what their products take at 400
    /// TFLOP/s and their bytes beside them.
    pub const CUDA: LatentRates = LatentRates {
        byte: 1.0 / 4000.0,
        converted: 0.0,
        product: 1.0 / 310_000.0,
        expanding: 1.0 / 200_000.0,
        rows: 64,
        start: 15_000.0,
    };
}

/// Steps for which a copy that is kept is expected to serve rows that decode: a part of its cost belongs to each.
const SERVED_STEPS: f64 = 32.0;

/// The rows of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemRows {
    pub rows: usize,
    /// Whether some are a prompt's: the next step has other rows, so a copy that is made for these must pay at once.
    pub has_prompt: bool,
}

impl ItemRows {
    /// A row that decodes.
    pub const ONE: ItemRows = ItemRows { rows: 1, has_prompt: false };
}

impl PlanHints {
    /// Whether items may be read from copies, for which there is such room.
    pub(super) fn may_copy(&self, room: &CopyRoom<'_>) -> bool {
        let may = |latents: LatentHints| latents.has_copies && self.tile.is_multiple_of(latents.tile);
        self.latents.is_some_and(may) && room.pages != CopyRoom::NONE.pages
    }

    /// These hints without copies of latents; `None`: they have none.
    pub(super) fn without_copies(&self) -> Option<PlanHints> {
        let latents = self.latents.filter(|latents| latents.has_copies)?;
        Some(PlanHints { latents: Some(LatentHints { has_copies: false, ..latents }), ..*self })
    }
}

/// What a token of an item costs, in nanoseconds.
pub(super) struct FormCosts<'a> {
    hints: &'a PlanHints,
    latents: LatentHints,
}

impl<'a> FormCosts<'a> {
    /// `None`: the hints are not those of latent attention.
    pub fn of(hints: &'a PlanHints) -> Option<Self> {
        hints.latents.map(|latents| Self { hints, latents })
    }

    /// Nanoseconds of a token that is read in the absorbed form, under so many rows.
    pub fn absorbed(&self, rows: usize) -> f64 {
        let widths = self.hints.head_dim + self.hints.value_dim();
        let packed = self.in_tiles(rows as u64 * u64::from(self.hints.q_heads));
        let bytes = self.hints.token_bytes();
        self.longer(bytes, packed * u64::from(widths)) + bytes as f64 * self.hints.cost.latents.converted
    }

    /// Nanoseconds of a token that is read from a copy, under so many rows.
    pub fn copied(&self, rows: usize) -> f64 {
        let LatentHints { nope, rope, value, .. } = self.latents;
        let packed = u64::from(self.hints.q_heads) * self.in_tiles(rows as u64);
        self.longer(self.hints.copied_token_bytes(), packed * u64::from(nope + rope + value))
    }

    /// Nanoseconds of a token that is expanded to a copy.
    pub fn expanded(&self) -> f64 {
        let (rates, LatentHints { nope, value, .. }) = (&self.hints.cost.latents, self.latents);
        let of_head = u64::from(self.hints.value_dim()) * u64::from(nope + value);
        let products = u64::from(self.hints.q_heads) * of_head;
        let bytes = self.hints.token_bytes() + self.hints.copied_token_bytes();
        products as f64 * rates.expanding + bytes as f64 * rates.byte
    }

    /// What a copy of such a store, which is not there yet, costs one step of such an item.
    pub fn made(&self, store: CopyStore, item: ItemRows) -> f64 {
        match store {
            CopyStore::Kept if !item.has_prompt => self.expanded() / SERVED_STEPS,
            CopyStore::Kept | CopyStore::Again => self.expanded(),
        }
    }

    /// One more partial state for each of so many rows: of an item that is cut in two.
    pub fn states(&self, rows: usize) -> f64 {
        rows as f64 * self.hints.state_bytes() as f64 * self.hints.cost.state_byte
    }

    /// In the form that costs least, if copies are kept that are not there yet.
    pub fn least(&self, item: ItemRows) -> f64 {
        let absorbed = self.absorbed(item.rows);
        self.copied_anew(item).map_or(absorbed, |copied| absorbed.min(copied))
    }

    /// Bytes of a row's partial state in the form that costs least.
    pub fn state_bytes(&self, item: ItemRows) -> u64 {
        match self.copied_anew(item).is_some_and(|copied| copied < self.absorbed(item.rows)) {
            true => 4 * u64::from(self.hints.q_heads) * (u64::from(self.latents.value) + 2),
            false => self.hints.state_bytes(),
        }
    }

    /// Nanoseconds of a token that is read from a copy which is not there yet; `None`: such an item gets none.
    fn copied_anew(&self, item: ItemRows) -> Option<f64> {
        let may = self.latents.has_copies && item.rows > 1;
        may.then(|| self.copied(item.rows) + self.made(CopyStore::Kept, item))
    }

    /// So many rows, rounded up to whole tiles.
    fn in_tiles(&self, rows: u64) -> u64 {
        rows.next_multiple_of(u64::from(self.hints.cost.latents.rows))
    }

    /// Nanoseconds of reading bytes and of computing products at the same time: the longer of the two.
    fn longer(&self, bytes: u64, products: u64) -> f64 {
        let rates = &self.hints.cost.latents;
        (bytes as f64 * rates.byte).max(products as f64 * rates.product)
    }
}
