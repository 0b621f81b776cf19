//! `prepare_heads` on the CPU, instruction by instruction (`emulator`): heads are normalised, rotated and stored as the
//! three ops in turn do it, in f64 here; keys and values in their slots are those of the row, byte by byte.

use crate::emulator;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When, page_place};
use float8::F8E4M3;
use offshoot_backend::{Dtype, HeadLayout, RopePairs, e4m3};
use offshoot_core::dice::Dice;
use offshoot_core::ids::PageId;
use offshoot_cuda::attention::device_plan::WHOLE;
use offshoot_cuda::compile::elements::{KvElement, PageLayout};
use offshoot_cuda::compile::units;
use offshoot_cuda::memory::kv::{NO_SLOT, slot_word};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::Member;

const PAGE: usize = 32;
const PAGES: usize = 3;
const POSITIONS: usize = 40;
const EPS: f32 = 1e-5;

/// One case: which kinds of heads are normalised, how many elements are rotated, of keys too or not, and whether the
/// row has keys and values of its own to store.
#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: Dtype,
    kept: KvElement,
    layout: PageLayout,
    heads: HeadLayout,
    norms: [bool; 3],
    rotary: usize,
    pairs: RopePairs,
    keys: bool,
    stores: bool,
    /// Whose rows are stored.
    member: Member,
}

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// As u64, so that rows of any dtype begin where their vectors may.
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect()
}

fn number(dtype: Dtype, bytes: &[u8]) -> f32 {
    match dtype {
        Dtype::F32 => bytemuck::pod_read_unaligned(bytes),
        Dtype::F16 => bytemuck::pod_read_unaligned::<half::f16>(bytes).to_f32(),
        Dtype::Bf16 => bytemuck::pod_read_unaligned::<half::bf16>(bytes).to_f32(),
    }
}

/// What the ops in turn compute, in f64, and by how much the kernel may differ: an element normalised by a sum in f32
/// (each of its additions, and a dozen operations behind it, may round) may round to a neighbour, and the products of
/// a pair carry that along.
fn expected(
    case: &Case,
    row: &[f32],
    position: usize,
    weights: &[Vec<f32>; 3],
    table: &[Vec<f32>; 2],
) -> Vec<(f64, f64)> {
    let Case { dtype, heads, rotary, .. } = *case;
    let dim = heads.head_dim;
    let step = 2.0 * dtype.rounding() + (dim as f64 + 12.0) * Dtype::F32.rounding();
    let mut made = Vec::new();
    for (head, x) in row.chunks_exact(dim).enumerate() {
        let kind = if head < heads.q_heads { 0 } else { 1 + (head - heads.q_heads) / heads.kv_heads };
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / dim as f64;
        let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
        let normed = |i: usize| match case.norms[kind] {
            true => {
                let y = f64::from(x[i]) * scale * f64::from(weights[kind][i]);
                (f64::from(dtype.round(y as f32)), y.abs() * step)
            }
            false => (f64::from(x[i]), 0.0),
        };
        let turned = kind == 0 || (kind == 1 && case.keys);
        for i in 0..dim {
            let (y, may_differ) = normed(i);
            if !turned || i >= rotary {
                made.push((y, may_differ));
                continue;
            }
            let is_of = |&pair: &usize| <[usize; 2]>::from(case.pairs.elements(pair, rotary)).contains(&i);
            let pair = (0..rotary / 2).find(is_of).expect("each rotated element is of a pair");
            let (low, high) = case.pairs.elements(pair, rotary);
            let (other, others) = normed(if i == low { high } else { low });
            let angle = position * rotary / 2 + pair;
            let (cos, sin) = (f64::from(table[0][angle]), f64::from(table[1][angle]));
            let z = y * cos + if i == low { -other * sin } else { other * sin };
            let products = (y * cos).abs() + (other * sin).abs();
            let f32s = 4.0 * Dtype::F32.rounding() * products;
            made.push((z, may_differ * cos.abs() + others * sin.abs() + f32s + dtype.rounding() * z.abs()));
        }
    }
    made
}

fn hold(case: Case) {
    let Case { dtype, kept, layout, heads, rotary, stores, member, .. } = case;
    let Some(kernel) = Emulated::compile(&units::prepare_heads(dtype, kept, layout), "prepare_heads") else { return };
    let mut dice = Dice::new(heads.head_dim as u64);
    let of_page = member.of * PAGE as u32;
    let slots = [(2, of_page - 1), (0, 0), (1, 39 % of_page)].map(|(page, slot)| KvSlot { page: PageId(page), slot });
    let slot_words: Vec<u32> = slots.iter().map(|&slot| slot_word(slot, member.of)).chain([NO_SLOT]).collect();
    let (rows, width) = (slot_words.len(), heads.qkv_width());
    let qkv: Vec<f32> = (0..rows * width).map(|_| dtype.round(4.0 * dice.number())).collect();
    let positions: Vec<u32> = (0..rows).map(|_| dice.within(0, POSITIONS as u32 - 1)).collect();
    let weights: [Vec<f32>; 3] = std::array::from_fn(|_| dice.numbers(heads.head_dim));
    let table: [Vec<f32>; 2] = std::array::from_fn(|_| dice.numbers(POSITIONS * rotary / 2));

    let element = kept.element_bytes(dtype);
    let untouched = 0x5a;
    let layer_bytes = 2 * heads.kv_heads.max(1) * heads.head_dim * PAGES * PAGE * element;
    let mut layer = vec![u64::from_ne_bytes([untouched; 8]); layer_bytes / 8];
    let mut given = words(&dtype.encode(&qkv));
    let kept_words: Vec<Vec<u64>> =
        weights.iter().chain(&table).map(|values| words(&Dtype::F32.encode(values))).collect();
    let weight = |kind: usize| if case.norms[kind] { kept_words[kind].as_ptr() } else { std::ptr::null() };
    let angles = |i: usize| if rotary > 0 { kept_words[3 + i].as_ptr() } else { std::ptr::null() };
    let mut qkv_at = given.as_mut_ptr();
    let mut weights_at = [weight(0), weight(1), weight(2)];
    let [query, key, value] = &mut weights_at;
    let (mut cosines, mut sines) = (angles(0), angles(1));
    let (mut positions_at, mut slots_at) = (positions.as_ptr(), slot_words.as_ptr());
    let mut layer_at = if stores { layer.as_mut_ptr() } else { std::ptr::null_mut() };
    let (mut eps, mut rotated) = (EPS, rotary as u32);
    let (mut member_number, mut members) = (member.number, member.of);
    let mut neighbours = u32::from(case.pairs == RopePairs::Neighbours);
    let mut turned = (heads.q_heads + if case.keys { heads.kv_heads } else { 0 }) as u32;
    let (mut q_heads, mut kv_heads, mut head_dim) =
        (heads.q_heads as u32, heads.kv_heads as u32, heads.head_dim as u32);
    let args = [
        at(&mut qkv_at),
        at(query),
        at(key),
        at(value),
        at(&mut eps),
        at(&mut cosines),
        at(&mut sines),
        at(&mut positions_at),
        at(&mut rotated),
        at(&mut neighbours),
        at(&mut turned),
        at(&mut layer_at),
        at(&mut slots_at),
        at(&mut q_heads),
        at(&mut kv_heads),
        at(&mut head_dim),
        at(&mut member_number),
        at(&mut members),
    ];
    let any = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
    // One block for a row, of whole warps.
    let threads = width.div_ceil(8).next_multiple_of(32) as u32;
    // SAFETY: the kernel's arguments in their order, each with memory for what its head says.
    unsafe { kernel.launch(rows as u32, threads, 0, any, &args) };

    let found: Vec<f32> = bytemuck::cast_slice(&given).chunks_exact(dtype.bytes()).map(|x| number(dtype, x)).collect();
    for (row, (before, found)) in qkv.chunks_exact(width).zip(found.chunks_exact(width)).enumerate() {
        let made = expected(&case, before, positions[row] as usize, &weights, &table);
        for (i, (&found, (y, may_differ))) in found.iter().zip(made).enumerate() {
            let error = (f64::from(found) - y).abs();
            assert!(error <= may_differ, "{case:?}, row {row}, {i}: {found}, not {y} within {may_differ:e}");
        }
    }
    let bytes: &[u8] = bytemuck::cast_slice(&layer);
    let mut written = vec![false; bytes.len()];
    let stored = found.chunks_exact(width).zip(&slots).filter(|_| stores);
    let stored = stored.filter_map(|(row, &slot)| Some((row, member.slot(slot)?)));
    for (row, slot) in stored {
        for (i, &x) in row[heads.q_width()..].iter().enumerate() {
            let (value, head) = (i / heads.head_dim / heads.kv_heads, i / heads.head_dim % heads.kv_heads);
            let (width, in_head) = (heads.head_dim, i % heads.head_dim);
            let run = ((slot.page.ix() * heads.kv_heads + head) * 2 + value) * PAGE * width * element;
            let place = run + page_place(layout, slot.slot as usize, in_head, width, element);
            let expected = match kept {
                KvElement::Plain => dtype.encode(&[x]),
                KvElement::Fp8 => vec![F8E4M3::from_f32(x).to_bits()],
                KvElement::Rounded => dtype.encode(&[e4m3(x)]),
            };
            assert_eq!(bytes[place..place + element], expected, "{case:?}: {x}");
            written[place..place + element].fill(true);
        }
    }
    let spared = bytes.iter().zip(&written).filter(|(_, written)| !**written);
    assert!(spared.into_iter().all(|(&byte, _)| byte == untouched), "{case:?}: other slots are left alone");
}

#[test]
fn heads_are_prepared_as_by_three_ops() {
    let heads = |q_heads, kv_heads, head_dim| HeadLayout::new(q_heads, kv_heads, head_dim);
    let case = |dtype, kept, layout, heads, norms, rotary| Case {
        dtype,
        kept,
        layout,
        heads,
        norms,
        rotary,
        pairs: RopePairs::Halves,
        keys: true,
        stores: true,
        member: WHOLE,
    };
    let (plain, swizzled) = (PageLayout::Plain, PageLayout::Swizzled);
    let (all, none, both) = ([true; 3], [false; 3], [true, true, false]);
    hold(case(Dtype::Bf16, KvElement::Plain, swizzled, heads(8, 2, 128), both, 128));
    hold(case(Dtype::F16, KvElement::Plain, swizzled, heads(4, 2, 64), none, 64));
    hold(case(Dtype::Bf16, KvElement::Plain, swizzled, heads(2, 1, 256), both, 64));
    hold(case(Dtype::F16, KvElement::Plain, plain, heads(3, 3, 32), all, 16));
    hold(case(Dtype::Bf16, KvElement::Plain, plain, heads(5, 1, 16), both, 0));
    hold(case(Dtype::F32, KvElement::Plain, plain, heads(4, 2, 32), both, 32));
    hold(case(Dtype::F32, KvElement::Rounded, plain, heads(2, 2, 64), all, 64));
    hold(case(Dtype::Bf16, KvElement::Fp8, swizzled, heads(4, 1, 128), both, 128));
    hold(case(Dtype::F16, KvElement::Rounded, plain, heads(1, 1, 64), none, 32));
    // Of the rows of all, a member stores its own.
    for (number, of) in [(1, 2), (3, 4)] {
        let member = Member { number, of, ..WHOLE };
        hold(Case { member, ..case(Dtype::Bf16, KvElement::Plain, swizzled, heads(4, 1, 128), both, 128) });
        hold(Case { member, ..case(Dtype::Bf16, KvElement::Fp8, swizzled, heads(4, 1, 64), both, 64) });
    }
    let neighbours = |case| Case { pairs: RopePairs::Neighbours, ..case };
    hold(neighbours(case(Dtype::Bf16, KvElement::Plain, swizzled, heads(8, 2, 128), both, 64)));
    hold(neighbours(case(Dtype::F32, KvElement::Plain, plain, heads(4, 2, 32), none, 16)));
    // Queries alone are rotated; or they are all that the layer projects.
    hold(Case { keys: false, ..case(Dtype::Bf16, KvElement::Plain, swizzled, heads(4, 2, 64), none, 64) });
    let queries = case(Dtype::Bf16, KvElement::Plain, swizzled, heads(6, 0, 128), [true, false, false], 128);
    hold(Case { stores: false, ..queries });
}
