//! Tile registers (AMX): whether this process may use them, their shapes, and the instructions on them, one function
//! each. A tile has up to 16 rows of 64 bytes. The kernels that compute with tiles are those of `gemm` and `attention`.
//!
//! Tiles keep what they hold from one function here to the next: the compiler itself has no use for tile registers.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Rows of a tile, and its words of 32 bits in a row.
pub const TILE_ROWS: usize = 16;

/// Whether the processor multiplies bf16 tiles and the system lets this process do so. Linux wants to be asked first,
/// as it then saves 8 KB more for each thread; on other systems the path does not exist.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_tiles() && permitted())
}

fn has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILES) == BF16 | TILES
}

#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but what this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Rows and words of each tile register, as the processor reads them (palette 1).
#[repr(C, align(64))]
pub struct TileShapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileShapes {
    /// Registers of `[rows, words]`, each at most [`TILE_ROWS`].
    pub const fn new(shapes: [[usize; 2]; 8]) -> Self {
        let mut new = TileShapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut i = 0;
        while i < shapes.len() {
            let [rows, words] = shapes[i];
            assert!(1 <= rows && rows <= TILE_ROWS, "a tile has 1 to 16 rows");
            assert!(1 <= words && words <= TILE_ROWS, "a row of a tile has 1 to 16 words");
            new.rows[i] = rows as u8;
            new.row_bytes[i] = 4 * words as u16;
            i += 1;
        }
        new
    }
}

/// While this exists, the calling thread's tile registers have the shapes it was made with. Shaping them takes some 100
/// ns, more than a product of tiles: once for many kernel calls, not in each.
pub struct ShapedTiles(PhantomData<*mut ()>);

impl ShapedTiles {
    /// # Safety
    /// [`available`] is true, and no other `ShapedTiles` of this thread exists.
    #[inline]
    pub unsafe fn new(shapes: &TileShapes) -> Self {
        // SAFETY: `shapes` has the 64 bytes that the instruction reads and copies, which are valid by construction.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, readonly, preserves_flags)) };
        Self(PhantomData)
    }
}

impl Drop for ShapedTiles {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the tile registers are in use, since this exists; the system has less to save without them.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// Tile `T` becomes zero.
///
/// # Safety
/// As for all functions here: [`ShapedTiles`] exists, and gave the tiles shapes that fit each other.
#[inline(always)]
pub unsafe fn zero<const T: u8>() {
    // SAFETY: promised by the caller.
    unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem, preserves_flags)) };
}

/// Loads tile `T` from rows that are `stride` bytes apart.
///
/// # Safety
/// As above; memory is readable for all rows of the tile's shape.
#[inline(always)]
pub unsafe fn load<const T: u8>(from: *const u8, stride: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        asm!("tileloadd tmm{t}, [{from} + 1*{stride}]", t = const T, from = in(reg) from, stride = in(reg) stride,
            options(nostack, readonly, preserves_flags));
    }
}

/// Stores tile `T` to rows that are `stride` bytes apart.
///
/// # Safety
/// As above; memory is writable for all rows of the tile's shape.
#[inline(always)]
pub unsafe fn store<const T: u8>(to: *mut u8, stride: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        asm!("tilestored [{to} + 1*{stride}], tmm{t}", t = const T, to = in(reg) to, stride = in(reg) stride,
            options(nostack, preserves_flags));
    }
}

/// Brings a cache line into the first-level cache, owned by this core. The address need not be valid. All processors
/// with tile registers have the instruction; the compiler uses it only for a feature that stable Rust cannot name.
#[inline(always)]
pub fn prefetch_for_writing(address: *const u8) {
    // SAFETY: a prefetch reads and writes nothing, whatever the address.
    unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) };
}

/// Adds to tile `C` (f32) the product of the bf16 tiles `A`, `[rows][words][2]`, and `B`, `[words][columns][2]`: for
/// each element two chains of fused multiply-adds, over the first and over the second of each pair, whose sum is added.
/// Subnormal numbers count as zeros.
///
/// # Safety
/// As above.
#[inline(always)]
pub unsafe fn add_product<const C: u8, const A: u8, const B: u8>() {
    // SAFETY: promised by the caller.
    unsafe {
        asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
            options(nostack, nomem, preserves_flags));
    }
}

/// The functions for tiles whose numbers are constants once the loops of their callers are unrolled.
pub mod numbered {
    macro_rules! numbered {
        ($number:expr, $($tile:literal)+ => $call:ident $arguments:tt) => {
            match $number {
                $($tile => super::$call::<$tile> $arguments,)+
                _ => unreachable!("no such tile register"),
            }
        };
    }

    /// See [`super::zero`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn zero(tile: usize) {
        // SAFETY: promised by the caller.
        unsafe { numbered!(tile, 0 1 2 3 => zero()) }
    }

    /// See [`super::load`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn load(tile: usize, from: *const u8, stride: usize) {
        // SAFETY: promised by the caller.
        unsafe { numbered!(tile, 0 1 2 3 4 5 6 7 => load(from, stride)) }
    }

    /// See [`super::store`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn store(tile: usize, to: *mut u8, stride: usize) {
        // SAFETY: promised by the caller.
        unsafe { numbered!(tile, 0 1 2 3 => store(to, stride)) }
    }

    /// See [`super::add_product`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn add_product(sums: usize, a: usize, b: usize) {
        macro_rules! of {
            ($($c:literal $a:literal $b:literal,)+) => {
                match (sums, a, b) {
                    // SAFETY: promised by the caller.
                    $(($c, $a, $b) => unsafe { super::add_product::<$c, $a, $b>() },)+
                    _ => unreachable!("no such product"),
                }
            };
        }
        of!(0 4 5, 1 4 6, 2 4 7, 3 4 5, 0 4 6, 1 4 7, 2 5 6, 1 5 6, 3 5 7, 2 4 6, 3 4 6, 0 5 7, 1 5 7, 2 5 7,)
    }
}
