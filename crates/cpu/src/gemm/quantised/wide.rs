//! Layers of more rows than a kernel takes at once: the codes of a strip of inputs become numbers once, then all groups
//! of rows are multiplied by them. Strips are whole groups of inputs, or parts of one, whose sums wait for the others.

use super::operand::OperandRows;
use super::panels::QuantPanels;
use crate::gemm::pack::PANEL;
use crate::gemm::row_groups::groups;

/// Most inputs of a strip: 16 KB of numbers for a panel.
const STRIP: usize = 256;

/// The kernels for many rows.
#[derive(Clone, Copy)]
pub struct WideKernels {
    /// Writes the numbers of some inputs of a panel, `[inputs][16]`: codes, zero points (null where the format has
    /// none), inputs, where to.
    pub unpack: unsafe fn(*const u8, *const u8, usize, *mut f32),
    /// Bytes of the codes of `STEP` inputs, and `STEP`.
    pub step: usize,
    pub step_bytes: usize,
    /// What the numbers are too small by, a power of two.
    pub factor: f32,
    pub kernel: fn(rows: usize, panels: usize) -> WideKernel,
}

/// Adds the products of a tile to its parts or sums.
///
/// # Safety
/// The processor has the kernel's instruction set, and the tile's pointers are valid for its shape.
pub type WideKernel = unsafe fn(&WideTile);

/// A group of rows times a strip of some panels.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "kernels are for x86"))]
pub struct WideTile {
    /// The strip's activations; rows are `stride` words apart.
    pub x: *const u32,
    pub stride: usize,
    /// `[pieces * inputs][16]`; the next panel's begin `panel_numbers` later.
    pub numbers: *const f32,
    pub panel_numbers: usize,
    /// Groups of the strip, or one part of a group; the inputs of each.
    pub pieces: usize,
    pub inputs: usize,
    /// Whether the strip begins with a group, and ends with one.
    pub begins: bool,
    pub ends: bool,
    /// Whether there is no group before these.
    pub is_first: bool,
    /// The scales of the strip's first group; those of the next panel are `groups` groups later.
    pub scales: *const f32,
    pub groups: usize,
    pub factor: f32,
    /// `[rows][panels * 16]`: sums of the group that has begun, and of all groups before.
    pub parts: *mut f32,
    pub sums: *mut f32,
}

/// Memory reused between panels.
#[derive(Default)]
pub struct WideScratch {
    numbers: Vec<f32>,
    parts: Vec<f32>,
    /// The scales of a strip, where scales are stored as bytes.
    scales: Vec<f32>,
}

/// Multiplies panels `panel .. panel + count` by `rows` rows, at most `most` of them at a time; `sums` are
/// `[rows][count * 16]`.
#[expect(clippy::too_many_arguments, reason = "one for each operand of the product")]
pub fn multiply(
    kernels: &WideKernels,
    most: usize,
    w: &QuantPanels,
    operand: &OperandRows,
    panel: usize,
    count: usize,
    rows: usize,
    scratch: &mut WideScratch,
    sums: &mut Vec<f32>,
) {
    let (inputs, group) = (w.padded_inputs(), w.format.group_inputs(w.cols));
    let (groups_of_w, width) = (w.groups(), count * PANEL);
    sums.resize(rows * width, 0.0);
    scratch.parts.resize(rows * width, 0.0);
    scratch.numbers.resize(count * STRIP * PANEL, 0.0);
    let (codes, panel_bytes) = w.codes_from(panel);
    let (all_scales, zeros) = (w.scales.numbers_from(panel), w.zeros_from(panel));
    let has_zeros = w.format.zeros;
    assert!(
        codes.len() >= count * panel_bytes
            && panel_bytes * kernels.step >= inputs * kernels.step_bytes
            && all_scales.is_none_or(|scales| scales.len() >= count * groups_of_w * PANEL)
            && (!has_zeros || zeros.len() >= count * groups_of_w * PANEL),
        "shapes of the panels"
    );
    let mut first = 0;
    while first < inputs {
        let g = (first / group).min(groups_of_w - 1);
        // The last group has the padding.
        let end = |g: usize| if g + 1 == groups_of_w { inputs } else { (g + 1) * group };
        let whole = STRIP / group;
        let (pieces, each) = match first == g * group && whole > 1 && end(g) - first == group {
            true => {
                let last_is_whole = inputs == groups_of_w * group;
                let left = groups_of_w - g - usize::from(!last_is_whole);
                (whole.min(left).max(1), group)
            }
            false => (1, (end(g) - first).min(STRIP)),
        };
        for p in 0..count {
            for piece in 0..pieces {
                let from = first + piece * each;
                let zeros = match has_zeros {
                    true => zeros[(p * groups_of_w + g + piece) * PANEL..][..PANEL].as_ptr(),
                    false => std::ptr::null(),
                };
                let at = p * panel_bytes + from / kernels.step * kernels.step_bytes;
                let to = &mut scratch.numbers[(p * STRIP + piece * each) * PANEL..][..each * PANEL];
                // SAFETY: by the assertion above the codes of `each` inputs from `from` on are there; so are 16 zero
                // points; `to` has room for the numbers.
                unsafe { (kernels.unpack)(codes[at..].as_ptr(), zeros, each, to.as_mut_ptr()) };
            }
        }
        let (scales, scale_groups) = match all_scales {
            Some(scales) => (&scales[g * PANEL..], groups_of_w),
            None => {
                let of_group = |p, group| (0..PANEL).map(move |lane| w.scales.get(panel + p, group, lane));
                let of_panel = |p| (g..g + pieces).flat_map(move |group| of_group(p, group));
                scratch.scales.clear();
                scratch.scales.extend((0..count).flat_map(of_panel));
                (&scratch.scales[..], pieces)
            }
        };
        for rows in groups(rows, most) {
            let (x, stride) = operand.rows_from(rows.first);
            assert!(x.len() >= (rows.rows - 1) * stride + first + pieces * each, "shapes of the rows");
            let own = rows.first * width..(rows.first + rows.rows) * width;
            let tile = WideTile {
                x: x[first..].as_ptr(),
                stride,
                numbers: scratch.numbers.as_ptr(),
                panel_numbers: STRIP * PANEL,
                pieces,
                inputs: each,
                begins: first == g * group,
                ends: first + each >= end(g),
                is_first: g == 0,
                scales: scales.as_ptr(),
                groups: scale_groups,
                factor: kernels.factor,
                parts: scratch.parts[own.clone()].as_mut_ptr(),
                sums: sums[own].as_mut_ptr(),
            };
            // SAFETY: by the assertions above `x` holds the strip of the rows, `numbers` that of `count` panels, and
            // the panels have their scales; `parts` and `sums` hold the tile's.
            unsafe { (kernels.kernel)(rows.rows, count)(&tile) };
        }
        first += pieces * each;
    }
}
