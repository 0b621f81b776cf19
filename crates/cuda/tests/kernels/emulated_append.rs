//! The kernels that append keys and values, copied or rounded to fp8, on the CPU, instruction by instruction
//! (`emulator`): every slot has the numbers of the definition, as bytes or in the weights' dtype, rows lie as they
//! should, and padded ones leave none.

use crate::emulator;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When, page_place};
use float8::F8E4M3;
use offshoot_backend::{Dtype, HeadLayout, Values, e4m3};
use offshoot_core::dice::Dice;
use offshoot_core::ids::PageId;
use offshoot_cuda::attention::device_plan::WHOLE;
use offshoot_cuda::compile::elements::{KvElement, PageLayout};
use offshoot_cuda::compile::units;
use offshoot_cuda::memory::kv::{NO_SLOT, slot_word, value_beside};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::Member;

const PAGE: usize = 32;
const PAGES: usize = 3;

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// Numbers of all sizes that count: below the smallest, between neighbours, above the largest, and none.
fn number(dice: &mut Dice) -> f32 {
    match dice.within(0, 20) {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => -0.0,
        3 => 464.0 * dice.number(),
        4 => 1e-3 * dice.number(),
        _ => dice.number() * 2f32.powi(dice.within(0, 20) as i32 - 10),
    }
}

fn hold(dtype: Dtype, kept: KvElement, layout: PageLayout, heads: HeadLayout) {
    hold_members(dtype, kept, layout, heads, &[WHOLE]);
}

/// Of the rows of all, each member stores its own.
fn hold_members(dtype: Dtype, kept: KvElement, layout: PageLayout, heads: HeadLayout, members: &[Member]) {
    let (unit, name) = units::kv_append(dtype, kept, layout);
    let Some(kernel) = Emulated::compile(&unit, name) else { return };
    members.iter().for_each(|&member| hold_member(&kernel, dtype, kept, layout, heads, member));
}

fn hold_member(
    kernel: &Emulated,
    dtype: Dtype,
    kept: KvElement,
    layout: PageLayout,
    heads: HeadLayout,
    member: Member,
) {
    let mut dice = Dice::new(heads.head_dim as u64);
    let of_page = member.of * PAGE as u32;
    let slots = [(2, of_page - 1), (0, 0), (1, 39 % of_page)].map(|(page, slot)| KvSlot { page: PageId(page), slot });
    let words: Vec<u32> = slots.iter().map(|&slot| slot_word(slot, member.of)).chain([NO_SLOT]).collect();
    let qkv: Vec<f32> = (0..words.len() * heads.qkv_width()).map(|_| dtype.round(number(&mut dice))).collect();
    // As u64, so that rows of any dtype begin where their vectors may.
    let given: Vec<u64> = dtype.encode(&qkv).chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    let element = kept.element_bytes(dtype);
    let untouched = 0x5a;
    let mut layer = vec![u64::from_ne_bytes([untouched; 8]); heads.stored_width() * PAGES * PAGE * element / 8];
    let (mut layer_at, mut qkv_at, mut slots_at) = (layer.as_mut_ptr(), given.as_ptr(), words.as_ptr());
    // Bytes where they are copied, elements where they are rounded.
    let unit = if kept == KvElement::Plain { dtype.bytes() } else { 1 };
    let (mut width, mut kv_heads) = ((heads.qkv_width() * unit) as u32, heads.kv_heads as u32);
    let beside = value_beside(heads);
    let (mut key, mut value) = ((heads.head_dim * unit) as u32, (beside * unit) as u32);
    let (mut number, mut of) = (member.number, member.of);
    let shape = [at(&mut width), at(&mut kv_heads), at(&mut key), at(&mut value), at(&mut number), at(&mut of)];
    let args: Vec<*mut c_void> =
        [at(&mut layer_at), at(&mut qkv_at), at(&mut slots_at)].into_iter().chain(shape).collect();
    let any = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
    // SAFETY: the arguments of both kernels, in their order, each with memory for what its head says.
    unsafe { kernel.launch(words.len() as u32, 128, 0, any, &args) };

    let bytes: &[u8] = bytemuck::cast_slice(&layer);
    let mut written = vec![false; bytes.len()];
    let stored = qkv.chunks_exact(heads.qkv_width()).zip(&slots);
    for (row, slot) in stored.filter_map(|(row, &slot)| Some((row, member.slot(slot)?))) {
        for (i, &x) in row[heads.q_width()..].iter().enumerate() {
            let keys = heads.kv_heads * heads.head_dim;
            let (before, of_kind, width) =
                if i < keys { (0, i, heads.head_dim) } else { (heads.head_dim, i - keys, beside) };
            let (head, in_head) = (of_kind / width, of_kind % width);
            let of_head = (slot.page.ix() * heads.kv_heads + head) * (heads.head_dim + beside);
            let in_run = page_place(layout, slot.slot as usize, in_head, width, element);
            let place = (of_head + before) * PAGE * element + in_run;
            let found = &bytes[place..place + element];
            let expected = match kept {
                KvElement::Plain => dtype.encode(&[x]),
                KvElement::Fp8 => vec![F8E4M3::from_f32(x).to_bits()],
                KvElement::Rounded => dtype.encode(&[e4m3(x)]),
            };
            // What is no number may be any that is none.
            let is_none = |bytes: &[u8]| match (kept, dtype) {
                (KvElement::Fp8, _) => bytes[0] & 0x7f == 0x7f,
                (_, Dtype::F32) => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                (_, Dtype::F16) => half::f16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                (_, Dtype::Bf16) => half::bf16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            };
            assert!(found == expected || (x.is_nan() && is_none(found)), "{dtype:?}, {kept:?}: {x} as {found:?}");
            written[place..place + element].fill(true);
        }
    }
    let spared = bytes.iter().zip(&written).filter(|(_, written)| !**written);
    assert!(spared.into_iter().all(|(&byte, _)| byte == untouched), "{dtype:?}, {kept:?}: other slots are left alone");
}

#[test]
fn members_store_their_slots_of_a_page() {
    let heads = |head_dim| HeadLayout::new(4, 1, head_dim);
    let members = [(0, 2), (1, 2), (0, 4), (1, 4), (2, 4), (3, 4)].map(|(number, of)| Member { number, of, ..WHOLE });
    hold_members(Dtype::Bf16, KvElement::Plain, PageLayout::Swizzled, heads(128), &members);
    hold_members(Dtype::F16, KvElement::Plain, PageLayout::Plain, heads(18), &members);
    hold_members(Dtype::Bf16, KvElement::Fp8, PageLayout::Swizzled, heads(64), &members);
    hold_members(Dtype::F16, KvElement::Rounded, PageLayout::Plain, heads(18), &members);
}

#[test]
fn slots_have_the_numbers() {
    let heads = |head_dim| HeadLayout::new(4, 2, head_dim);
    hold(Dtype::F16, KvElement::Plain, PageLayout::Swizzled, heads(64));
    hold(Dtype::Bf16, KvElement::Plain, PageLayout::Swizzled, heads(128));
    hold(Dtype::Bf16, KvElement::Plain, PageLayout::Plain, heads(128));
    hold(Dtype::F16, KvElement::Plain, PageLayout::Plain, heads(18));
    hold(Dtype::F16, KvElement::Fp8, PageLayout::Swizzled, heads(64));
    hold(Dtype::Bf16, KvElement::Fp8, PageLayout::Swizzled, heads(128));
    hold(Dtype::F32, KvElement::Rounded, PageLayout::Plain, heads(64));
    hold(Dtype::F16, KvElement::Rounded, PageLayout::Plain, heads(18));
    hold(Dtype::Bf16, KvElement::Rounded, PageLayout::Plain, heads(80));
}

#[test]
fn values_have_a_width_of_their_own_or_lie_in_the_keys() {
    let heads = |kv_heads, head_dim, values| HeadLayout { q_heads: 4, kv_heads, head_dim, values, expanded: false };
    let (latents, copies) = (heads(1, 576, Values::InKeys(512)), heads(2, 192, Values::Beside(128)));
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for layout in [PageLayout::Plain, PageLayout::Panels] {
            hold(dtype, KvElement::Plain, layout, latents);
            hold(dtype, KvElement::Plain, layout, copies);
            hold(dtype, KvElement::Rounded, layout, latents);
            hold(dtype, KvElement::Rounded, layout, copies);
        }
        hold(dtype, KvElement::Plain, PageLayout::Plain, heads(1, 24, Values::InKeys(16)));
        hold(dtype, KvElement::Plain, PageLayout::Plain, heads(3, 14, Values::Beside(10)));
    }
    hold(Dtype::F32, KvElement::Rounded, PageLayout::Plain, heads(3, 14, Values::Beside(10)));
}
