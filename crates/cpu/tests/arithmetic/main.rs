//! The ops: every code path of the CPU compared with the definition, and the parts that the ops are made of. Their
//! tests are here, not inside the library, since it takes a minute to compile and would be compiled once more for them.

#[cfg(target_arch = "x86_64")]
mod attention {
    mod amx;
    mod head_tasks;
    mod in_keys;
    mod tiles;
    mod walk;
}
mod bf16_dot;
#[cfg(target_arch = "x86_64")]
mod bf16_hardware;
#[cfg(target_arch = "x86_64")]
mod exp;
mod fabric;
#[path = "../../../../tests/common/full.rs"]
mod full;
mod gemm {
    #[cfg(target_arch = "x86_64")]
    mod amx;
    #[cfg(target_arch = "x86_64")]
    mod block_kernels;
    mod block_panels;
    mod lines_ahead;
    mod operand;
    mod row_groups;
    mod shares;
    mod wide;
}
mod isa;
mod kv;
mod ops;
mod quantised_products;
mod records;
mod rows;
mod sampling;
mod scores;
#[cfg(target_arch = "x86_64")]
#[path = "../../../../tests/common/skip.rs"]
mod skip;
mod states;
mod team;
mod tree_attention;
