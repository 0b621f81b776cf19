//! The ops: every code path of the CPU compared with the definition.

mod delta_rule;
mod ops;
mod quantised_products;
mod sampling;
mod tree_attention;
