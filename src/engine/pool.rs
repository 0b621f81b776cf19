//! The size of the memory for keys and values, and of that for the states of delta-rule layers.

use crate::error::{Error, Result};
use crate::figures;

/// Allocated once weights and activations are in place; rounded down to whole pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PoolSize {
    /// This many bytes; an error if fewer are free.
    Bytes(usize),
    /// This share (0 to 1) of the free memory, at most `at_most` bytes.
    Share { of_free: f64, at_most: usize },
}

impl PoolSize {
    /// The bytes to allocate if `free` bytes are free.
    pub fn bytes(self, free: usize) -> Result<usize> {
        match self {
            PoolSize::Bytes(bytes) if bytes > free => {
                let expected = format!("at least {}", figures::bytes(bytes as u64));
                Err(Error::value("free memory for keys and values", expected, figures::bytes(free as u64)))
            }
            PoolSize::Bytes(bytes) => Ok(bytes),
            PoolSize::Share { of_free, at_most } => match (0.0..=1.0).contains(&of_free) {
                true => Ok(((free as f64 * of_free) as usize).min(at_most)),
                false => Err(Error::value("share of the free memory", "a number from 0 to 1", of_free.to_string())),
            },
        }
    }

    /// Bytes for keys and values, and the number of states, if `free` bytes are free and up to `most` states of
    /// `state_bytes` are useful. Both come from the same memory; keys and values have half of it at least, or all that
    /// is useful.
    pub fn with_states(self, free: usize, state_bytes: usize, most: usize) -> Result<(usize, usize)> {
        let (all, at_most) = match self {
            PoolSize::Bytes(_) => (self.bytes(free)?, usize::MAX),
            PoolSize::Share { of_free, at_most } => {
                (PoolSize::Share { of_free, at_most: usize::MAX }.bytes(free)?, at_most)
            }
        };
        let states = ((all - at_most.min(all / 2)) / state_bytes).min(most);
        Ok(((all - states * state_bytes).min(at_most), states))
    }
}

/// States that are useful beside so many branches: one for each, one that it continues, and those of a prompt. Half as
/// many branches run as there are states, so that no step evicts what another branch of it continues.
pub fn useful_states(branches: usize) -> usize {
    branches.saturating_mul(2).saturating_add(2)
}

/// Branches that may run beside so many states.
pub fn branches_with_states(states: usize) -> usize {
    states / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_take_what_keys_and_values_leave_but_no_more_than_half() {
        let share = |at_most| PoolSize::Share { of_free: 0.5, at_most };
        // Few keys and values are useful: the rest is for states, as many as are useful.
        assert_eq!(share(100).with_states(2000, 10, 1000).unwrap(), (100, 90));
        assert_eq!(share(100).with_states(2000, 10, 20).unwrap(), (100, 20));
        // Many are: they have half, and what states do not use.
        assert_eq!(share(usize::MAX).with_states(2000, 10, 1000).unwrap(), (500, 50));
        assert_eq!(PoolSize::Bytes(1000).with_states(2000, 10, 20).unwrap(), (800, 20));
        assert_eq!(PoolSize::Bytes(1000).with_states(2000, 600, 20).unwrap(), (1000, 0));
        assert!(PoolSize::Bytes(3000).with_states(2000, 10, 20).is_err());
    }
}
