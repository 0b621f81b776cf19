//! What a prefix costs an engine that needs it: computed, or copied from another engine that has it.

/// Estimated seconds that a prefix costs an engine: computed, or copied from another engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefixCosts {
    /// Seconds to compute a token of a prompt.
    pub computed_token: f64,
    /// Seconds to copy a token's keys and values to host memory and from there into another engine's pool.
    pub copied_token: f64,
    /// Seconds of each copied prefix, however short, in which both engines stop between two steps; and of its state.
    pub copied_prefix: f64,
}

/// The delay of a copy, in seconds: a step is awaited on each of two devices.
const ASYNC_DELAY: f64 = 2e-3;
/// The delay of a copy, in seconds, where a step ends before the next one is prepared.
const SYNC_DELAY: f64 = 2e-4;

impl PrefixCosts {
    /// `bytes_per_token`: of keys and values; `computed_token`: see there; `host_bytes`: bytes per second between host
    /// memory and a pool, one way.
    pub fn new(
        bytes_per_token: usize,
        state_bytes: usize,
        computed_token: f64,
        host_bytes: f64,
        is_async: bool,
    ) -> Self {
        let copied = |bytes: usize| 2.0 * bytes as f64 / host_bytes;
        let delay = if is_async { ASYNC_DELAY } else { SYNC_DELAY };
        PrefixCosts {
            computed_token,
            copied_token: copied(bytes_per_token),
            copied_prefix: delay + copied(state_bytes),
        }
    }

    /// The costs of an engine that copies wherever it can: for checks.
    pub fn copying_at_any_cost(self) -> Self {
        PrefixCosts { copied_token: 0.0, copied_prefix: 0.0, ..self }
    }

    /// Whether copying so many tokens is faster than computing them.
    pub fn copying_pays(&self, tokens: usize) -> bool {
        let tokens = tokens as f64;
        self.copied_prefix + tokens * self.copied_token < tokens * self.computed_token
    }

    /// The number of tokens that take as long to compute as it takes to bring so many that another engine has: those
    /// themselves where copying does not pay.
    pub(crate) fn brought(&self, tokens: u64) -> u64 {
        match usize::try_from(tokens).is_ok_and(|tokens| self.copying_pays(tokens)) {
            true => ((self.copied_prefix + tokens as f64 * self.copied_token) / self.computed_token) as u64,
            false => tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prefixes_are_copied_and_short_ones_computed() {
        // 8 billion parameters, 128 KiB a token, an H200: 23 us to compute a token, 5 us to copy it, and 2 ms.
        let costs = PrefixCosts::new(128 << 10, 0, 2.0 * 8e9 / 700e12, 50e9, true);
        assert!(costs.copying_pays(2400) && costs.copying_pays(128));
        assert!(!costs.copying_pays(100) && !costs.copying_pays(0));
        assert_eq!(costs.brought(100), 100);
        assert!((600..700).contains(&costs.brought(2400)), "{}", costs.brought(2400));
        // A state of 100 MB takes 4 ms more.
        let with_state = PrefixCosts::new(128 << 10, 100 << 20, 2.0 * 8e9 / 700e12, 50e9, true);
        assert!(with_state.copying_pays(384) && !with_state.copying_pays(320));
        assert!(costs.copying_at_any_cost().copying_pays(1));
    }
}
