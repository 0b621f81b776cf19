//! The vector operations that the kernels in `fold` are written over: sixteen f32 lanes of an instruction set
//! ([`FloatLanes`]).
#![expect(clippy::missing_safety_doc, reason = "a trait says it once for all of its functions")]

/// Rows (times heads of a group) that a kernel call folds at most, if their scores are in vector registers: those for a
/// tile fill 24 of AVX-512's 32.
pub const VECTOR_ROWS: usize = 6;

/// Rows that any kernel call folds at most.
pub const MOST_ROWS: usize = 16;

/// Sixteen f32 in registers.
///
/// # Safety
/// The processor has the instruction set of the type. Pointers are valid for sixteen f32, without alignment.
pub trait FloatLanes: Copy {
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// `self * b - c`, rounded once.
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// The first `R` lanes from memory for `R` f32. The others are finite.
    #[inline(always)]
    unsafe fn load_first<const R: usize>(from: *const f32) -> Self {
        let mut lanes = [0.0; 16];
        // SAFETY: the caller promises `R` f32, and the array has sixteen.
        unsafe {
            lanes[..R].copy_from_slice(std::slice::from_raw_parts(from, R));
            Self::load(lanes.as_ptr())
        }
    }
    /// Stores the first `R` lanes, in memory for as many.
    #[inline(always)]
    unsafe fn store_first<const R: usize>(self, to: *mut f32) {
        let mut lanes = [0.0; 16];
        // SAFETY: the caller promises `R` f32, and the array has sixteen.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::slice::from_raw_parts_mut(to, R).copy_from_slice(&lanes[..R]);
        }
    }
    /// The largest lane.
    unsafe fn largest(self) -> f32;
    /// In lane `r` the largest lane of `rows[r]`, of at most [`VECTOR_ROWS`].
    #[inline(always)]
    unsafe fn largest_each<const R: usize>(rows: [Self; R]) -> Self {
        let mut lanes = [0.0; 16];
        // SAFETY: the caller promises the instruction set; the array has sixteen lanes.
        unsafe {
            for (lane, row) in lanes.iter_mut().zip(rows) {
                *lane = row.largest();
            }
            Self::load(lanes.as_ptr())
        }
    }
    /// Sets lanes whose bit in `bits` is not set to -inf.
    unsafe fn hide_unset(self, bits: u16) -> Self;
    /// `self * 2^n` with `n` in the low bits of `shifted` (whose other set bits are at 22 and above); zero in lanes
    /// with `x < lowest`.
    unsafe fn times_power_of_two(self, shifted: Self, x: Self, lowest: Self) -> Self;
}
