//! The GPU's kernel that advances a step (kernels/ops/advance.cu) on the CPU: every row moves on by one token and, in
//! each page group, one slot.

use crate::emulator;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When};
use offshoot_cuda::compile::units;

const ANY: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
const ROWS: usize = 5;
const PADDED: usize = 8;
const GROUPS: usize = 3;
/// A word of a row that a request has sampled (kernels/token_word.cuh).
const SAMPLED: u32 = 1 << 31;

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

#[test]
fn rows_move_on_in_every_page_group() {
    let Some(kernel) = Emulated::compile(&units::advance(), "advance") else { return };
    let slots: Vec<u32> = (0..(GROUPS * PADDED) as u32).map(|word| 100 * word).collect();
    let (mut tokens, mut positions, mut moved) = ([7; PADDED], [40; PADDED], slots.clone());
    let mut memory = (tokens.as_mut_ptr(), positions.as_mut_ptr(), moved.as_mut_ptr());
    let (mut rows, mut groups, mut padded) = (ROWS as u32, GROUPS as u32, PADDED as u32);
    let args =
        [at(&mut memory.0), at(&mut memory.1), at(&mut memory.2), at(&mut rows), at(&mut groups), at(&mut padded)];
    // SAFETY: the arguments of the kernel, in its order, each with memory for what its head says.
    unsafe { kernel.launch(1, 256, 0, ANY, &args) };
    for row in 0..PADDED {
        let moves = row < ROWS;
        let token = if moves { SAMPLED | row as u32 } else { 7 };
        assert_eq!((tokens[row], positions[row]), (token, 40 + u32::from(moves)));
        for group in 0..GROUPS {
            let word = group * PADDED + row;
            assert_eq!(moved[word], slots[word] + u32::from(moves), "row {row} in group {group}");
        }
    }
}
