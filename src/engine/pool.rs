//! The size of the memory for keys and values.

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
}
