//! Kernels of `kernels/` on the CPU: their sources with every function that wraps an instruction turned into a call of
//! the emulator (`translate`), compiled by the machine's C++ compiler (`compile`) and run thread by thread
//! (emulator.cpp). What a kernel is given and what it should compute is the caller's.

mod compile;
mod translate;

use std::ffi::{CStr, c_char, c_uint, c_void};

use offshoot_cuda::compile::elements::PageLayout;
use offshoot_cuda::compile::unit::Unit;

/// Where byte `byte` of the row in `slot` lies among the rows of a swizzled page (kernels/kv_page.cuh): the definition.
pub fn swizzled_place(slot: usize, byte: usize, row_bytes: usize) -> usize {
    if row_bytes > 256 {
        return byte / 128 * 32 * 128 + swizzled_place(slot, byte % 128, 128);
    }
    // Groups of chunks that fill rows, and rows until chunks meet in a bank.
    let group = [8, 4, 2, 1].into_iter().find(|group| row_bytes.is_multiple_of(16 * group)).expect("whole chunks");
    let turn = slot / (8 / group) % group;
    let (chunk, within) = (byte / 16, byte % 16);
    slot * row_bytes + (chunk ^ turn) * 16 + within
}

/// The byte at which element `element` of `width` of the row in `slot` begins among the rows of a page.
pub fn page_place(layout: PageLayout, slot: usize, element: usize, width: usize, element_bytes: usize) -> usize {
    let (byte, row_bytes) = (element * element_bytes, width * element_bytes);
    match layout {
        PageLayout::Plain => slot * row_bytes + byte,
        PageLayout::Swizzled => swizzled_place(slot, byte, row_bytes),
        PageLayout::Panels => {
            let panel = 64 * element_bytes;
            byte / panel * 32 * panel + swizzled_place(slot, byte % panel, panel)
        }
    }
}

/// When asynchronous work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// When it is asked for.
    AtOnce,
    /// When somebody waits for it.
    Late,
}

/// One of the schedules that a kernel must serve.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub copies: When,
    pub products: When,
    /// Decides in which order late work is done.
    pub seed: u32,
    /// The warp of each block that goes on for some turns whenever no other can, and waits then.
    pub held: Option<u32>,
}

/// What kernels are launched with, as `Launch` of emulator.hpp.
#[repr(C)]
struct Launch {
    grid: c_uint,
    threads: c_uint,
    first: c_uint,
    row: c_uint,
    dynamic_bytes: usize,
    beside: c_uint,
    copies_late: c_uint,
    products_late: c_uint,
    seed: c_uint,
    held_warp: c_uint,
}

/// `Launch::held_warp` where no warp is held: there is none of this number.
const NONE_HELD: c_uint = c_uint::MAX;

type Launcher = unsafe extern "C" fn(&Launch, *const *const *mut c_void) -> *const c_char;

/// One kernel of a unit, compiled. Any thread may launch it, several at a time.
#[derive(Clone, Copy)]
pub struct Emulated {
    launcher: Launcher,
}

impl Emulated {
    /// `None`, and a word on standard error, where there is no C++ compiler.
    pub fn compile(unit: &Unit, kernel: &str) -> Option<Self> {
        let library = compile::library(unit)?;
        // SAFETY: `compile` defines it so, and never closes the library.
        let launcher = unsafe { library.get::<Launcher>(compile::launcher_name(kernel).as_bytes()) };
        let launcher = *launcher.unwrap_or_else(|error| panic!("{unit} has no kernel {kernel}: {error}"));
        Some(Self { launcher })
    }

    /// Launches the kernel. `args`: the address of each argument. Panics where the kernel does what no GPU allows, or
    /// never ends.
    ///
    /// # Safety
    /// The arguments are of the kernel's types, and point to as much memory as it reads and writes.
    pub unsafe fn launch(&self, grid: u32, threads: u32, shared_bytes: usize, how: Schedule, args: &[*mut c_void]) {
        let late = |when| c_uint::from(when == When::Late);
        let (copies_late, products_late) = (late(how.copies), late(how.products));
        let launch = Launch {
            grid,
            threads,
            first: 0,
            row: 0,
            dynamic_bytes: shared_bytes,
            beside: 1,
            copies_late,
            products_late,
            seed: how.seed,
            held_warp: how.held.unwrap_or(NONE_HELD),
        };
        // SAFETY: the caller answers for the arguments.
        unsafe { self.run(&launch, &[args.as_ptr()], &how) };
    }

    /// Launches the kernel with a grid of two dimensions, whose blocks need no other block: some of them at a time.
    ///
    /// # Safety
    /// As of `launch`.
    pub unsafe fn launch_grid(&self, grid: [u32; 2], threads: u32, how: Schedule, args: &[*mut c_void]) {
        const AT_A_TIME: u32 = 8;
        let late = |when| c_uint::from(when == When::Late);
        for row in 0..grid[1] {
            for first in (0..grid[0]).step_by(AT_A_TIME as usize) {
                let launch = Launch {
                    grid: AT_A_TIME.min(grid[0] - first),
                    threads,
                    first,
                    row,
                    dynamic_bytes: 0,
                    beside: 1,
                    copies_late: late(how.copies),
                    products_late: late(how.products),
                    seed: how.seed,
                    held_warp: how.held.unwrap_or(NONE_HELD),
                };
                // SAFETY: the caller answers for the arguments.
                unsafe { self.run(&launch, &[args.as_ptr()], &how) };
            }
        }
    }

    /// Launches the kernel once for each of `args`, on as many GPUs that see each other's memory; `seed` decides in
    /// which order their threads run.
    ///
    /// # Safety
    /// As of `launch`.
    pub unsafe fn launch_beside(&self, grid: u32, threads: u32, seed: u32, args: &[Vec<*mut c_void>]) {
        let args: Vec<*const *mut c_void> = args.iter().map(|args| args.as_ptr()).collect();
        let beside = args.len() as c_uint;
        let launch = Launch {
            grid,
            threads,
            first: 0,
            row: 0,
            dynamic_bytes: 0,
            beside,
            copies_late: 1,
            products_late: 0,
            seed,
            held_warp: NONE_HELD,
        };
        // SAFETY: as in `launch`.
        unsafe { self.run(&launch, &args, &seed) };
    }

    /// Panics with what the launch says.
    ///
    /// # Safety
    /// There are arguments of the kernel for each of `launch.beside`.
    unsafe fn run(&self, launch: &Launch, args: &[*const *mut c_void], how: &dyn std::fmt::Debug) {
        // SAFETY: the caller says so.
        let fault = unsafe { (self.launcher)(launch, args.as_ptr()) };
        if !fault.is_null() {
            // SAFETY: `run` of emulator.cpp returns null, or a string that lives until this thread's next launch.
            let fault = unsafe { CStr::from_ptr(fault) };
            panic!("{how:?}: {}", fault.to_string_lossy());
        }
    }
}
