//! What lies on the device and how it gets there: activations, weights, pages of keys and values, states, the small
//! lists of a step, and large copies through page-locked memory. Raw allocations are `driver::memory`'s.

pub mod buffer;
pub mod four_bit;
pub mod fp8;
pub mod kv;
pub mod lent;
pub mod sleep;
pub mod staged;
pub mod staging;
pub mod states;
pub mod weights;
