//! Reads, states and products of a plan, counted from its integers.

use super::{AttentionPlan, LatentHints, PlanHints};

/// Counts for one layer with the plan's window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanStats {
    /// Bytes of keys and values that the items read, each item once.
    pub kv_bytes_read: u64,
    /// Bytes that a flat plan of the same step would read: the rows of each segment read their whole context.
    pub flat_kv_bytes: u64,
    pub items: usize,
    /// Partial states: rows of all items.
    pub partials: usize,
    /// Rows x tokens of all items: products per query head, masked or not.
    pub row_tokens: u64,
}

impl PlanHints {
    /// Bytes of the keys and values of one token, one layer.
    pub fn token_bytes(&self) -> u64 {
        let stored = match self.latents {
            Some(_) => u64::from(self.kv_heads) * u64::from(self.head_dim),
            None => 2 * u64::from(self.kv_heads) * u64::from(self.head_dim),
        };
        stored * u64::from(self.kv_element_bytes)
    }

    /// Bytes of a token's copy, one layer; 0 if the attention has no latents.
    pub fn copied_token_bytes(&self) -> u64 {
        let of_latents = |latents: LatentHints| {
            let width = latents.nope + latents.rope + latents.value;
            u64::from(self.q_heads) * u64::from(width) * u64::from(latents.copy_element_bytes)
        };
        self.latents.map_or(0, of_latents)
    }

    /// Elements of a value.
    pub(super) fn value_dim(&self) -> u32 {
        self.latents.map_or(self.head_dim, |latents| self.head_dim - latents.rope)
    }

    /// Packed rows: one for each head of a group.
    pub(super) fn packed(&self, rows: usize) -> u64 {
        rows as u64 * u64::from(self.q_heads / self.kv_heads)
    }

    /// Bytes of the partial state of one row: `o`, `m` and `l` of all query heads, f32.
    pub fn state_bytes(&self) -> u64 {
        4 * u64::from(self.q_heads) * (u64::from(self.value_dim()) + 2)
    }
}

impl PlanStats {
    /// Follows `AttentionPlan::advance` of a plan of `rows` rows: each reads one token more.
    pub fn advance(&mut self, hints: &PlanHints, rows: usize) {
        let tokens = rows as u64;
        self.kv_bytes_read += tokens * hints.token_bytes();
        self.flat_kv_bytes += tokens * hints.token_bytes();
        self.row_tokens += tokens;
    }
}

impl AttentionPlan {
    pub fn stats(&self, hints: &PlanHints) -> PlanStats {
        let mut stats = PlanStats {
            flat_kv_bytes: self.flat_kv_tokens * hints.token_bytes(),
            items: self.items.len(),
            ..PlanStats::default()
        };
        for item in &self.items {
            let tokens: u64 = self.spans_of(item).iter().map(|span| u64::from(span.tokens)).sum();
            stats.kv_bytes_read += tokens * hints.token_bytes();
            stats.partials += item.rows.len();
            stats.row_tokens += tokens * item.rows.len() as u64;
        }
        stats
    }
}
