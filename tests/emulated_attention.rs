//! Tree attention's Hopper kernel on the CPU, instruction by instruction (`emulator`), against the dense definition: random
//! forests, every planner, several blocks, with asynchronous work done at once and as late as the kernel's waits allow. What
//! only a GPU shows (`offshoot check`, compute-sanitizer) is not repeated here.

mod emulator;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When};
use half::{bf16, f16};
use offshoot::backend::cuda::device_plan::{DevicePlan, Tiling, Workers};
use offshoot::backend::cuda::units;
use offshoot::backend::{Dtype, HeadLayout};
use offshoot::check::attention::{Setting, context, queries};
use offshoot::check::dense::relative_error;
use offshoot::check::forests::{Grown, Shape, grow};
use offshoot::plan::{AttentionPlan, CostModel, PlanHints, Planner};

const PAGE: usize = 32;
const THREADS: u32 = 512;

fn bits(dtype: Dtype, x: f32) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f32(x).to_bits(),
        Dtype::Bf16 => bf16::from_f32(x).to_bits(),
        Dtype::F32 => unreachable!("the kernel has no f32"),
    }
}

fn value(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f32(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f32(),
        Dtype::F32 => unreachable!("the kernel has no f32"),
    }
}

/// Memory at a multiple of 16 bytes.
struct Aligned<T> {
    memory: Vec<T>,
    from: usize,
    len: usize,
}

impl<T: Copy> Aligned<T> {
    fn of(values: &[T], room: usize, filler: T) -> Self {
        let mut memory = vec![filler; values.len() + room + 16];
        let from = memory.as_ptr().align_offset(16);
        memory[from..from + values.len()].copy_from_slice(values);
        Aligned { memory, from, len: values.len() + room }
    }

    fn at(&mut self) -> *mut T {
        self.memory[self.from..].as_mut_ptr()
    }

    fn values(&self) -> &[T] {
        &self.memory[self.from..][..self.len]
    }
}

/// Keys and values of a layer, `[page][kv head][k, v][32][head_dim]`; what no row sees is not a number.
fn kv(setting: &Setting, grown: &Grown) -> Vec<u16> {
    let HeadLayout { kv_heads, head_dim, .. } = setting.heads;
    let pages = grown.forest.pages.iter().map(|page| page.ix() + 1).max().unwrap_or(0);
    let mut kv = vec![bits(setting.dtype, f32::NAN); pages * kv_heads * 2 * PAGE * head_dim];
    for row in 0..grown.rows.len() {
        for slot in context(&grown.forest, row) {
            for (i, x) in setting.kv(slot).enumerate() {
                let (values, head, element) = (i / (kv_heads * head_dim), i / head_dim % kv_heads, i % head_dim);
                let line = ((slot.page.ix() * kv_heads + head) * 2 + values) * PAGE + slot.slot as usize;
                kv[line * head_dim + element] = bits(setting.dtype, x);
            }
        }
    }
    kv
}

fn hints(setting: &Setting) -> PlanHints {
    let number = |n: usize| u32::try_from(n).expect("few heads");
    PlanHints {
        tile: 1,
        window: setting.window,
        q_heads: number(setting.heads.q_heads),
        kv_heads: number(setting.heads.kv_heads),
        head_dim: number(setting.heads.head_dim),
        kv_element_bytes: 2,
        cost: CostModel::CUDA,
    }
}

/// As `shared_bytes_wgmma` of the CUDA backend.
fn shared_bytes(head_dim: usize) -> usize {
    let slots = if head_dim == 128 { 6 } else { 8 };
    (128 + 6 * 64 + 4 * slots * 16) * head_dim * 2 + 1008
}

/// The result `[rows, q_width]` as bits, run after run of the same memory, so that what a run leaves behind is used again.
fn attend(
    kernel: &Emulated,
    setting: &Setting,
    plan: &AttentionPlan,
    kv: &[u16],
    grid: u32,
    runs: &[Schedule],
) -> Vec<Vec<u16>> {
    let heads = setting.heads;
    let rows = plan.row_positions.len();
    let rows_padded = rows + 3;
    let workers = Workers::Apart { wide: grid as usize, narrow: grid as usize * 12 };
    let tiling = Tiling { narrow_rows: 8, wide_rows: Some(128), workers };
    let words = DevicePlan::build(plan, heads, rows_padded, &tiling);
    let mut device_words = Aligned::of(words.words(), 0, 0);
    let mut positions = Aligned::of(&plan.row_positions, 3, 0);
    let q: Vec<u16> = queries(setting, &plan.row_positions).iter().map(|&x| bits(setting.dtype, x)).collect();
    let mut qkv = Aligned::of(&q, 3 * heads.qkv_width(), 0);
    let mut kv = Aligned::of(kv, 0, 0);
    let partials = words.partial_slots() * heads.q_heads * (heads.head_dim + 2);
    let mut partials = Aligned::of(&vec![f32::NAN; partials], 0, 0.0);
    let mut found = Vec::new();
    for &how in runs {
        let nothing = vec![bits(setting.dtype, f32::NAN); rows_padded * heads.q_width()];
        let mut out = Aligned::of(&nothing, 0, 0);
        let (mut out_at, mut qkv_at, mut kv_at) = (out.at(), qkv.at(), kv.at());
        let (mut words_at, mut positions_at, mut partials_at) = (device_words.at(), positions.at(), partials.at());
        let number = |n: usize| u32::try_from(n).expect("few heads");
        let (mut group, mut kv_heads) = (number(heads.group()), number(heads.kv_heads));
        let mut scale = setting.scale() * std::f32::consts::LOG2_E;
        let mut padded = number(rows_padded);
        fn at<T>(argument: &mut T) -> *mut c_void {
            std::ptr::from_mut(argument).cast()
        }
        let args = [
            at(&mut out_at),
            at(&mut qkv_at),
            at(&mut kv_at),
            at(&mut words_at),
            at(&mut positions_at),
            at(&mut partials_at),
            at(&mut group),
            at(&mut kv_heads),
            at(&mut scale),
            at(&mut padded),
        ];
        // SAFETY: the arguments of tree_attention_wgmma, in its order, each with memory for what its head says.
        unsafe { kernel.launch(grid, THREADS, shared_bytes(heads.head_dim), how, &args) };
        assert_eq!(device_words.values(), words.words(), "the words are left as they were");
        let (real, padding) = out.values().split_at(rows * heads.q_width());
        assert!(padding.iter().all(|&bits| bits == 0), "padded rows are zeros");
        found.push(real.to_vec());
    }
    found
}

fn check(kernel: &Emulated, setting: &Setting, shape: Shape, seed: u64, grid: u32) {
    let grown = grow(shape, 32, seed);
    let kv = kv(setting, &grown);
    let exact: Vec<Vec<f64>> =
        (0..grown.rows.len()).map(|row| setting.dense(row, &context(&grown.forest, row))).collect();
    for planner in Planner::ALL {
        let case = format!("{shape:?}, seed {seed}, {setting}, {planner}, {grid} blocks");
        let plan = planner.plan(&grown.forest, &hints(setting));
        let schedule_seed = u32::try_from(seed).expect("a small seed");
        let schedule = |copies, products| Schedule { copies, products, seed: schedule_seed };
        let runs = [
            schedule(When::AtOnce, When::AtOnce),
            schedule(When::AtOnce, When::Late),
            schedule(When::Late, When::Late),
        ];
        let found = attend(kernel, setting, &plan, &kv, grid, &runs);
        assert!(found.iter().all(|run| *run == found[0]), "{case}: other bits when asynchronous work is done later");
        let width = setting.heads.q_width();
        let out: Vec<f32> = found[0].iter().map(|&bits| value(setting.dtype, bits)).collect();
        let error = relative_error(out.chunks_exact(width).zip(exact.iter().map(Vec::as_slice)));
        assert!(error <= setting.tolerance(), "{case}: {error:.2e} off, {:.2e} allowed", setting.tolerance());
    }
}

fn setting(q_heads: usize, kv_heads: usize, head_dim: usize, dtype: Dtype, window: Option<u32>) -> Setting {
    Setting { heads: HeadLayout { q_heads, kv_heads, head_dim }, dtype, window, sharpness: 1.0 }
}

fn all_shapes(head_dim: usize, dtype: Dtype) {
    let unit = units::attention_wgmma(dtype, head_dim).expect("a kernel of its own");
    let Some(kernel) = Emulated::compile(&unit, "tree_attention_wgmma") else { return };
    let shapes = [Shape::MidPageForks, Shape::Star, Shape::EmptyLeaves, Shape::Many(60), Shape::OneTokenSegments];
    let layouts = [(4, 1), (2, 2), (8, 1), (16, 1), (1, 1)];
    for (seed, (shape, (q_heads, kv_heads))) in (0u64..).zip(shapes.into_iter().zip(layouts)) {
        let window = if seed % 2 == 0 { None } else { Some(100) };
        let grid = if seed % 2 == 0 { 3 } else { 1 };
        check(&kernel, &setting(q_heads, kv_heads, head_dim, dtype, window), shape, seed, grid);
    }
}

#[test]
fn heads_of_128_bf16() {
    all_shapes(128, Dtype::Bf16);
}

#[test]
fn heads_of_64_f16() {
    all_shapes(64, Dtype::F16);
}
