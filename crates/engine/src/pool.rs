//! The size of the memory for keys and values, and of that for the states of recurrent layers. A model without
//! attention has no keys and values: its pages take no memory, and all of it is for states.

use crate::copies::CopyMemory;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures;
use offshoot_core::setting::{KV_MEMORY, MEMORY};

/// Allocated once weights and activations are in place; rounded down to whole pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PoolSize {
    /// This many bytes; an error if fewer are free.
    Bytes(usize),
    /// This share (0 to 1) of the free memory, at most `at_most` bytes.
    Share { of_free: f64, at_most: usize },
    /// This many bytes, states included, as several models divide what is free; at most `at_most` of them for keys and
    /// values. Fewer if fewer are free, as a device may round up what another model was given.
    Part { bytes: usize, at_most: usize },
}

impl PoolSize {
    /// The bytes to allocate if `free` bytes are free.
    pub fn bytes(self, free: usize) -> Result<usize> {
        match self {
            PoolSize::Bytes(bytes) if bytes > free => {
                let expected = format!("at least {}", figures::bytes(bytes as u64));
                let what = format!("free memory for keys and values ({KV_MEMORY})");
                Err(Error::value(what, expected, figures::bytes(free as u64)))
            }
            PoolSize::Bytes(bytes) => Ok(bytes),
            PoolSize::Part { bytes, at_most } => Ok(bytes.min(at_most).min(free)),
            PoolSize::Share { of_free, at_most } => match (0.0..=1.0).contains(&of_free) {
                true => Ok(((free as f64 * of_free) as usize).min(at_most)),
                false => {
                    let what = format!("share of the free memory ({MEMORY})");
                    Err(Error::value(what, "a number from 0 to 1", of_free.to_string()))
                }
            },
        }
    }

    /// How the memory is divided if `free` bytes are free and up to `branches` branches are to run at once, for a model
    /// whose pages have `page_bytes` and its states `state_bytes`, each 0 if it has none.
    ///
    /// # Errors
    ///
    /// Too little is free, or it does not hold the states of one branch.
    pub fn divide(self, free: usize, page_bytes: usize, state_bytes: usize, branches: usize) -> Result<PoolParts> {
        if state_bytes == 0 {
            let (pages, (all, _)) = (self.bytes(free)?, self.all_bytes(free)?);
            return Ok(PoolParts { pages, states: 0, branches, unused: all.saturating_sub(pages) });
        }
        let useful = useful_states(branches);
        let parts = self.with_states(free, page_bytes, state_bytes, useful)?;
        let fits = parts.states / STATES_OF_BRANCH;
        if fits == 0 {
            let least = 2 * STATES_OF_BRANCH * state_bytes;
            let expected = format!("at least {}, for the states of one branch", figures::bytes(least as u64));
            let (all, _) = self.all_bytes(free)?;
            let found = format!("{}, in which no branch fits", figures::bytes(all as u64));
            return Err(Error::kv_memory(expected, found));
        }
        if fits < branches {
            let state = figures::bytes(state_bytes as u64);
            log::warn!("{fits} of {branches} branches run at once: memory holds {} states of {state}", parts.states);
        }
        Ok(PoolParts { branches: branches.min(fits), ..parts })
    }

    /// The bytes for keys and values, and the states, of which up to `most` are useful. Both come from the same memory;
    /// keys and values have half of it at least, or all that is useful.
    fn with_states(self, free: usize, page_bytes: usize, state_bytes: usize, most: usize) -> Result<PoolParts> {
        let (all, at_most) = self.all_bytes(free)?;
        let at_most = if page_bytes == 0 { 0 } else { at_most };
        let states = ((all - at_most.min(all / 2)) / state_bytes).min(most);
        let left = all - states * state_bytes;
        let pages = left.min(at_most);
        Ok(PoolParts { pages, states, branches: most, unused: left - pages })
    }

    /// All bytes, for states too, and the most of them that are useful for keys and values.
    fn all_bytes(self, free: usize) -> Result<(usize, usize)> {
        match self {
            PoolSize::Bytes(_) => Ok((self.bytes(free)?, usize::MAX)),
            PoolSize::Part { bytes, at_most } => Ok((bytes.min(free), at_most)),
            PoolSize::Share { of_free, at_most } => {
                Ok((PoolSize::Share { of_free, at_most: usize::MAX }.bytes(free)?, at_most))
            }
        }
    }
}

/// The memory of a pool, divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolParts {
    /// Bytes for keys and values.
    pub pages: usize,
    pub states: usize,
    /// Branches that run at once.
    pub branches: usize,
    /// Bytes of the same memory that are useful for neither.
    pub unused: usize,
}

impl PoolParts {
    /// Bytes for keys and values beside these copies of latents, which have what is unused first.
    pub fn pages_beside(&self, copies: &CopyMemory) -> usize {
        self.pages.saturating_sub(copies.bytes().saturating_sub(self.unused))
    }
}

/// States that a branch needs in a step: the one that it continues and its own. Where there are so many for each, no
/// step evicts what another branch of it continues.
const STATES_OF_BRANCH: usize = 2;

/// The pages of a pool of so many bytes. Those of a model without attention take no memory: there are
/// [`EMPTY_PAGES`] of them.
pub fn pages_in(bytes: usize, page_bytes: usize) -> usize {
    bytes.checked_div(page_bytes).unwrap_or(EMPTY_PAGES)
}

/// Pages of a model without attention: more than the sequences of any engine fill, of 16 tokens and more each.
const EMPTY_PAGES: usize = 1 << 20;

/// States that are useful beside so many branches: theirs, and those of a prompt.
pub fn useful_states(branches: usize) -> usize {
    branches.saturating_add(1).saturating_mul(STATES_OF_BRANCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_take_what_keys_and_values_leave_but_no_more_than_half() {
        let share = |at_most| PoolSize::Share { of_free: 0.5, at_most };
        let divided = |pool: PoolSize, state_bytes, branches| {
            let PoolParts { pages, states, branches, .. } = pool.divide(2000, 1, state_bytes, branches).unwrap();
            (pages, states, branches)
        };
        // Few keys and values are useful: the rest is for states, as many as are useful.
        assert_eq!(divided(share(100), 10, 1000), (100, 90, 45));
        assert_eq!(divided(share(100), 10, 9), (100, 20, 9));
        // Many are: they have half, and what states do not use.
        assert_eq!(divided(share(usize::MAX), 10, 1000), (500, 50, 25));
        assert_eq!(divided(PoolSize::Bytes(1000), 10, 9), (800, 20, 9));
        assert_eq!(divided(PoolSize::Bytes(1000), 0, 9), (1000, 0, 9));
        assert!(PoolSize::Bytes(3000).divide(2000, 1, 10, 9).is_err());
        // A part of what is free is divided as a share of it.
        let part = |bytes, at_most| PoolSize::Part { bytes, at_most };
        assert_eq!(divided(part(1000, 100), 10, 1000), divided(share(100), 10, 1000));
        assert_eq!(divided(part(1000, 400), 0, 9), (400, 0, 9));
        // What a device has rounded up for another model is missing from it.
        assert_eq!(divided(part(2001, usize::MAX), 0, 9), (2000, 0, 9));
        assert_eq!(divided(part(2001, 100), 10, 9), (100, 20, 9));
    }

    #[test]
    fn models_without_attention_have_all_memory_for_states_and_pages_for_every_token() {
        let parts = PoolSize::Bytes(1000).divide(2000, 0, 10, 100).unwrap();
        assert_eq!((parts.pages, parts.states, parts.branches), (0, 100, 50));
        assert_eq!([pages_in(parts.pages, 0), pages_in(1000, 16), pages_in(0, 16)], [EMPTY_PAGES, 62, 0]);
    }

    #[test]
    fn where_no_branch_has_room_for_its_states_one_sentence_says_so() {
        let error = PoolSize::Bytes(1000 << 20).divide(2000 << 20, 1, 300 << 20, 9).unwrap_err().to_string();
        for said in [KV_MEMORY.name(), "1.17 GiB, for the states of one branch", "0.98 GiB, in which no branch fits"] {
            assert!(error.contains(said), "{error}");
        }
    }
}
