//! The kernels of latent attention's ops on the CPU, instruction by instruction (`emulator`): results against f64,
//! pages byte by byte, and what must be left alone.

use crate::emulator;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When, page_place};
use float8::F8E4M3;
use offshoot_backend::{Dtype, HeadLayout, LatentHeads, RopePairs, WeightView, e4m3};
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
const POSITIONS: usize = 40;
const EPS: f32 = 1e-6;
/// Of a block of `prepare_latents`.
const WARPS: usize = 4;
const ANY: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
const UNTOUCHED: u8 = 0x5a;

const LITE: LatentHeads = LatentHeads { heads: 3, rank: 512, nope: 128, rope: 64, value: 128 };
const SMALL: LatentHeads = LatentHeads { heads: 5, rank: 16, nope: 10, rope: 8, value: 6 };

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// As u64, so that rows of any dtype begin where their vectors may.
fn words(bytes: &[u8]) -> Vec<u64> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(8), 0);
    padded.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect()
}

fn numbers_of(dtype: Dtype, words: &[u64], count: usize) -> Vec<f32> {
    let view = WeightView { dtype, rows: 1, cols: count, bytes: bytemuck::cast_slice(words) };
    (0..count).map(|i| view.get(i)).collect()
}

fn rounded(dice: &mut Dice, dtype: Dtype, count: usize) -> Vec<f32> {
    (0..count).map(|_| dtype.round(2.0 * dice.number())).collect()
}

/// The byte of an element of a head's key, or value, in a layer's pages.
fn place(heads: HeadLayout, layout: PageLayout, bytes: usize, slot: KvSlot, of: (bool, usize, usize)) -> usize {
    let (is_value, head, element) = of;
    let beside = value_beside(heads);
    let of_head = (slot.page.ix() * heads.kv_heads + head) * (heads.head_dim + beside);
    let (before, width) = if is_value { (heads.head_dim, beside) } else { (0, heads.head_dim) };
    (of_head + before) * PAGE * bytes + page_place(layout, slot.slot as usize, element, width, bytes)
}

/// A table of rotations: what of [`offshoot_backend::RopeTable`] the kernels are given.
#[derive(Clone, Debug)]
struct Table {
    rotary: usize,
    pairs: RopePairs,
    keys: bool,
    angles: [Vec<f32>; 2],
}

impl Table {
    fn new(dice: &mut Dice, rotary: usize, pairs: RopePairs, keys: bool) -> Self {
        Self { rotary, pairs, keys, angles: std::array::from_fn(|_| dice.numbers(POSITIONS * rotary / 2)) }
    }

    /// Rotates the last elements of `row`, numbers with what they may differ by, as stored in `dtype`.
    fn rotate(&self, dtype: Dtype, row: &mut [(f64, f64)], position: usize) {
        let first = row.len() - self.rotary;
        for pair in 0..self.rotary / 2 {
            let (a, b) = self.pairs.elements(pair, self.rotary);
            let [cos, sin] = [0, 1].map(|i| f64::from(self.angles[i][position * self.rotary / 2 + pair]));
            let ((x, x_differs), (y, y_differs)) = (row[first + a], row[first + b]);
            let products = (x * cos).abs() + (y * sin).abs() + (y * cos).abs() + (x * sin).abs();
            let differs = (x_differs + y_differs) * (cos.abs() + sin.abs()) + 4.0 * Dtype::F32.rounding() * products;
            let of = |z: f64| (f64::from(dtype.round(z as f32)), differs + 2.0 * dtype.rounding() * z.abs());
            row[first + a] = of(x * cos - y * sin);
            row[first + b] = of(y * cos + x * sin);
        }
    }
}

/// One case of `prepare_latents`.
#[derive(Clone, Debug)]
struct Case {
    dtype: Dtype,
    kept: KvElement,
    layout: PageLayout,
    heads: LatentHeads,
    tables: [Option<Table>; 2],
    /// Of a part.
    heads_a_part: usize,
    /// Whether tails of absorbed queries are asked for.
    absorbs: bool,
    /// Whether latents lie behind the queries of their rows.
    joined: bool,
    member: Member,
}

fn hold_prepared(case: &Case) {
    let Case { dtype, kept, layout, heads, ref tables, heads_a_part, absorbs, joined, member } = *case;
    let Some(kernel) = Emulated::compile(&units::prepare_latents(dtype, kept, layout), "prepare_latents") else {
        return;
    };
    let mut dice = Dice::new(heads.rank as u64);
    let of_page = member.of * PAGE as u32;
    let slots = [(2, of_page - 1), (0, 0), (1, 39 % of_page)].map(|(page, slot)| KvSlot { page: PageId(page), slot });
    let slot_words: Vec<u32> = slots.iter().map(|&slot| slot_word(slot, member.of)).chain([NO_SLOT]).collect();
    let rows = slot_words.len();
    let queries = rounded(&mut dice, dtype, rows * heads.query_width());
    let latents = rounded(&mut dice, dtype, rows * heads.latent_width());
    let weight = dice.numbers(heads.rank);
    let positions: Vec<u32> = (0..rows).map(|_| dice.within(0, POSITIONS as u32 - 1)).collect();

    let bytes = kept.element_bytes(dtype);
    let layer_bytes = heads.latent_width() * PAGES * PAGE * bytes;
    let mut layer = vec![u64::from_ne_bytes([UNTOUCHED; 8]); layer_bytes / 8];
    let together = queries.chunks(heads.query_width()).zip(latents.chunks(heads.latent_width()));
    let together: Vec<f32> = together.flat_map(|(query, latent)| [query, latent].concat()).collect();
    let [mut query_row, mut latent_row] = [heads.query_width() as u32, heads.latent_width() as u32];
    let (mut given, row_words) = (words(&dtype.encode(&queries)), words(&dtype.encode(&latents)));
    let mut latents_at = row_words.as_ptr().cast::<u8>();
    if joined {
        given = words(&dtype.encode(&together));
        query_row += latent_row;
        latent_row = query_row;
        latents_at = given.as_ptr().cast::<u8>().wrapping_add(heads.query_width() * dtype.bytes());
    }
    let weight_words = words(&Dtype::F32.encode(&weight));
    let angles: Vec<Vec<u64>> = tables
        .iter()
        .flatten()
        .flat_map(|table| &table.angles)
        .map(|angles| words(&Dtype::F32.encode(angles)))
        .collect();
    let mut tables_at = [(std::ptr::null::<u64>(), std::ptr::null::<u64>(), 0u32, 0u32); 2];
    for ((to, table), angles) in tables_at.iter_mut().zip(tables.iter().flatten()).zip(angles.chunks_exact(2)) {
        let turns = u32::from(table.pairs == RopePairs::Neighbours) + 2 * u32::from(table.keys);
        *to = (angles[0].as_ptr(), angles[1].as_ptr(), table.rotary as u32, turns);
    }
    let (mut queries_at, mut weight_at) = (given.as_mut_ptr(), weight_words.as_ptr());
    let (mut positions_at, mut layer_at, mut slots_at) = (positions.as_ptr(), layer.as_mut_ptr(), slot_words.as_ptr());
    let parts = 1 + heads.heads.div_ceil(heads_a_part);
    let before = vec![0.5; rows * heads.absorbed().q_width()];
    let mut absorbed = words(&dtype.encode(&before));
    let mut absorbed_at = if absorbs { absorbed.as_mut_ptr() } else { std::ptr::null_mut() };
    let mut eps = EPS;
    let mut shape =
        [rows, heads.heads, heads.nope + heads.rope, heads.rank, heads.rope, parts, heads_a_part].map(|n| n as u32);
    let (mut number, mut of) = (member.number, member.of);
    let mut args = vec![at(&mut queries_at), at(&mut absorbed_at), at(&mut latents_at), at(&mut weight_at)];
    args.push(at(&mut eps));
    for (cosines, sines, rotary, turns) in &mut tables_at {
        args.extend([at(cosines), at(sines), at(rotary), at(turns)]);
    }
    args.extend([at(&mut positions_at), at(&mut layer_at), at(&mut slots_at)]);
    args.extend(shape.iter_mut().map(at));
    args.extend([at(&mut query_row), at(&mut latent_row), at(&mut number), at(&mut of)]);
    let shared = WARPS * (heads.latent_width() * dtype.bytes()).next_multiple_of(16);
    // SAFETY: the kernel's arguments in their order, each with memory for what its head says.
    unsafe { kernel.launch((rows * parts).div_ceil(WARPS) as u32, 32 * WARPS as u32, shared, ANY, &args) };

    let found = numbers_of(dtype, &given, rows * query_row as usize);
    let found = found.chunks(query_row as usize).flat_map(|row| &row[..heads.query_width()]).copied();
    let found: Vec<f32> = found.collect();
    let as_given = |x: &f32| (f64::from(*x), 0.0);
    let width = heads.nope + heads.rope;
    for (row, (before, found)) in queries.chunks(heads.query_width()).zip(found.chunks(heads.query_width())).enumerate()
    {
        for (head, (before, found)) in before.chunks_exact(width).zip(found.chunks_exact(width)).enumerate() {
            let mut made: Vec<(f64, f64)> = before.iter().map(as_given).collect();
            for table in tables.iter().flatten() {
                table.rotate(dtype, &mut made, positions[row] as usize);
            }
            for (i, (&found, (y, differs))) in found.iter().zip(made).enumerate() {
                let error = (f64::from(found) - y).abs();
                assert!(
                    error <= differs,
                    "{case:?}: row {row}, query {head}, {i}: {found}, not {y} within {differs:e}"
                );
            }
        }
    }
    let tails = numbers_of(dtype, &absorbed, before.len());
    for (tail, query) in tails.chunks_exact(heads.latent_width()).zip(found.chunks_exact(width)) {
        assert!(tail[..heads.rank].iter().all(|&x| x == 0.5), "{case:?}: the rest is that of the product");
        let expected = if absorbs { &query[heads.nope..] } else { &[0.5].repeat(heads.rope) };
        assert_eq!(tail[heads.rank..], *expected, "{case:?}: rotated parts of absorbed queries");
    }
    let layer: &[u8] = bytemuck::cast_slice(&layer);
    let mut written = vec![false; layer.len()];
    let stored = latents.chunks_exact(heads.latent_width()).zip(&slots).enumerate();
    for (row, (latent, slot)) in stored.filter_map(|(row, (latent, &slot))| Some((row, (latent, member.slot(slot)?)))) {
        let (c, r) = latent.split_at(heads.rank);
        let mean = c.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / heads.rank as f64;
        let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
        let step = 2.0 * dtype.rounding() + (heads.rank as f64 + 12.0) * Dtype::F32.rounding();
        let normed = c.iter().zip(&weight).map(|(&x, &w)| {
            let y = f64::from(x) * scale * f64::from(w);
            (f64::from(dtype.round(y as f32)), y.abs() * step)
        });
        let mut made: Vec<(f64, f64)> = normed.chain(r.iter().map(as_given)).collect();
        for table in tables.iter().flatten().filter(|table| table.keys) {
            table.rotate(dtype, &mut made, positions[row] as usize);
        }
        for (i, (y, differs)) in made.into_iter().enumerate() {
            let place = place(heads.absorbed(), layout, bytes, slot, (false, 0, i));
            let stored = &layer[place..place + bytes];
            let found = f64::from(match kept {
                KvElement::Plain | KvElement::Rounded => numbers_of(dtype, &words(stored), 1)[0],
                KvElement::Fp8 => F8E4M3::from_bits(stored[0]).to_f32(),
            });
            written[place..place + bytes].fill(true);
            match kept {
                KvElement::Rounded | KvElement::Fp8 => {
                    let [low, high] = [y - differs, y + differs].map(|x| f64::from(e4m3(x as f32)));
                    assert!((low..=high).contains(&found), "{case:?}: latent {row}, {i}: {found}, not {y} as e4m3");
                }
                KvElement::Plain => assert!(
                    (found - y).abs() <= differs,
                    "{case:?}: latent {row}, {i}: {found}, not {y} within {differs:e}"
                ),
            }
        }
    }
    let spared = layer.iter().zip(&written).filter(|(_, written)| !**written);
    assert!(spared.into_iter().all(|(&byte, _)| byte == UNTOUCHED), "{case:?}: other slots are left alone");
}

#[test]
fn rows_are_prepared_as_by_norm_rope_and_append() {
    let mut dice = Dice::new(3);
    let mut table = |rotary, pairs, keys| Some(Table::new(&mut dice, rotary, pairs, keys));
    let (halves, neighbours) = (RopePairs::Halves, RopePairs::Neighbours);
    let [of_lite, turned, small, later] =
        [table(64, neighbours, true), table(64, halves, true), table(8, neighbours, true), table(18, halves, false)];
    let case = |dtype, layout, heads, first: &Option<Table>, second: &Option<Table>| Case {
        dtype,
        kept: KvElement::Plain,
        layout,
        heads,
        tables: [first.clone(), second.clone()],
        heads_a_part: 2,
        absorbs: true,
        joined: false,
        member: WHOLE,
    };
    let (plain, panels) = (PageLayout::Plain, PageLayout::Panels);
    hold_prepared(&case(Dtype::Bf16, panels, LITE, &of_lite, &None));
    hold_prepared(&case(Dtype::F16, plain, LITE, &turned, &None));
    hold_prepared(&case(Dtype::F32, plain, LITE, &of_lite, &None));
    hold_prepared(&case(Dtype::F32, plain, SMALL, &small, &later));
    hold_prepared(&case(Dtype::Bf16, plain, SMALL, &small, &None));
    hold_prepared(&case(Dtype::F16, plain, SMALL, &None, &None));
    for kept in [KvElement::Rounded, KvElement::Fp8] {
        hold_prepared(&Case { kept, ..case(Dtype::Bf16, panels, LITE, &of_lite, &None) });
        hold_prepared(&Case { kept, ..case(Dtype::F32, plain, SMALL, &small, &later) });
    }
    hold_prepared(&Case { absorbs: false, ..case(Dtype::Bf16, panels, LITE, &of_lite, &None) });
    for heads in [LITE, SMALL] {
        hold_prepared(&Case { joined: true, ..case(Dtype::Bf16, plain, heads, &small, &None) });
    }
    hold_prepared(&Case { heads_a_part: 5, ..case(Dtype::F32, plain, SMALL, &small, &None) });
    for (number, of) in [(1, 2), (3, 4)] {
        let member = Member { number, of, ..WHOLE };
        hold_prepared(&Case { member, ..case(Dtype::Bf16, panels, LITE, &of_lite, &None) });
    }
}

#[test]
fn rope_turns_the_first_elements_of_heads_by_either_pairs() {
    for (dtype, head_dim, rotary) in [(Dtype::Bf16, 64, 32), (Dtype::F32, 32, 16), (Dtype::F16, 18, 14)] {
        for pairs in [RopePairs::Halves, RopePairs::Neighbours] {
            let Some(kernel) = Emulated::compile(&units::typed(&units::ROPE, dtype), "rope") else { return };
            let mut dice = Dice::new(rotary as u64);
            let table = Table::new(&mut dice, rotary, pairs, true);
            let (rows, heads, turned) = (3, 5, 4);
            let before = rounded(&mut dice, dtype, rows * heads * head_dim);
            let mut positions: Vec<u32> = (0..rows).map(|_| dice.within(0, POSITIONS as u32 - 1)).collect();
            let mut qkv = words(&dtype.encode(&before));
            let [cosines, sines] = table.angles.each_ref().map(|angles| words(&Dtype::F32.encode(angles)));
            let (mut qkv_at, mut positions_at) = (qkv.as_mut_ptr(), positions.as_mut_ptr());
            let (mut cosines_at, mut sines_at) = (cosines.as_ptr(), sines.as_ptr());
            let neighbours = usize::from(pairs == RopePairs::Neighbours);
            let mut shape = [heads * head_dim, turned, head_dim, rotary, neighbours].map(|n| n as u32);
            let mut args = vec![at(&mut qkv_at), at(&mut cosines_at), at(&mut sines_at), at(&mut positions_at)];
            args.extend(shape.iter_mut().map(at));
            // SAFETY: the kernel's arguments in their order, each with memory for what its head says.
            unsafe { kernel.launch(rows as u32, 128, 0, ANY, &args) };
            let found = numbers_of(dtype, &qkv, before.len());
            let of_heads = before.chunks_exact(head_dim).zip(found.chunks_exact(head_dim)).enumerate();
            for (number, (before, found)) in of_heads {
                let mut made: Vec<(f64, f64)> = before.iter().map(|&x| (f64::from(x), 0.0)).collect();
                if number % heads < turned {
                    table.rotate(dtype, &mut made[..rotary], positions[number / heads] as usize);
                }
                for (&found, (y, differs)) in found.iter().zip(made) {
                    assert!((f64::from(found) - y).abs() <= differs, "{pairs:?}, {dtype:?}: {found}, not {y}");
                }
            }
        }
    }
}

/// What `linear_heads` makes of `rows` rows of `x`, from `first` on. `order`: from one output's weights to the next
/// one's, and from one input's.
fn multiplied(
    kernel: &Emulated,
    dtype: Dtype,
    (x, w): (&[f32], &[f32]),
    rows: usize,
    [heads, outputs, inner, x_head, out_head, w_head, w_output, w_inner]: [usize; 8],
) -> Vec<f32> {
    let out_row = heads * out_head;
    let (x, w) = (words(&dtype.encode(x)), words(&dtype.encode(w)));
    let mut out = words(&dtype.encode(&vec![0.0; rows * out_row]));
    let (mut out_at, mut x_at, mut w_at) = (out.as_mut_ptr(), x.as_ptr(), w.as_ptr());
    let mut shape =
        [rows, outputs, inner, heads * x_head, x_head, out_row, out_head, w_head, w_output, w_inner].map(|n| n as u32);
    let mut args = vec![at(&mut out_at), at(&mut x_at), at(&mut w_at)];
    args.extend(shape.iter_mut().map(at));
    let grid = [(outputs.div_ceil(16) * heads) as u32, rows.div_ceil(16) as u32];
    // SAFETY: the kernel's arguments in their order, each with memory for what its head says.
    unsafe { kernel.launch_grid(grid, 256, ANY, &args) };
    numbers_of(dtype, &out, rows * out_row)
}

#[test]
fn each_head_has_its_own_linear_layer() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let Some(kernel) = Emulated::compile(&units::linear_heads(dtype), "linear_heads") else { return };
        let mut dice = Dice::new(7);
        let (heads, outputs, inner, rows) = (3, 19, 21, 18);
        // Maps lie behind each other with something between; vectors too.
        let (x_head, out_head, w_head) = (inner + 4, outputs + 2, outputs * inner + 5);
        let x = rounded(&mut dice, dtype, rows * heads * x_head);
        let w = rounded(&mut dice, dtype, heads * w_head);
        for (w_output, w_inner) in [(inner, 1), (1, outputs)] {
            let shape = [heads, outputs, inner, x_head, out_head, w_head, w_output, w_inner];
            let found = multiplied(&kernel, dtype, (&x, &w), rows, shape);
            for (place, &found) in found.iter().enumerate() {
                let (row, head, n) = (place / (heads * out_head), place / out_head % heads, place % out_head);
                if n >= outputs {
                    assert_eq!(found, 0.0, "what lies between heads is left alone");
                    continue;
                }
                let term = |k: usize| {
                    let x = f64::from(x[(row * heads + head) * x_head + k]);
                    x * f64::from(w[head * w_head + n * w_output + k * w_inner])
                };
                let (sum, size) = (0..inner).map(term).fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                let differs = dtype.rounding() * sum.abs() + inner as f64 * Dtype::F32.rounding() * size;
                assert!((f64::from(found) - sum).abs() <= differs, "{dtype:?}, row {row}, {head}, {n}: {found}, {sum}");
            }
            // A row's bits are those of the row alone.
            let of_row = heads * x_head;
            for row in [0, 7, 17] {
                let alone = multiplied(&kernel, dtype, (&x[row * of_row..][..of_row], &w), 1, shape);
                assert_eq!(alone, found[row * heads * out_head..][..heads * out_head], "row {row}");
            }
        }
    }
}

/// An element as pages hold it.
fn stored_as(kept: KvElement, dtype: Dtype, x: f32) -> Vec<u8> {
    match kept {
        KvElement::Plain => dtype.encode(&[x]),
        KvElement::Rounded => dtype.encode(&[e4m3(x)]),
        KvElement::Fp8 => vec![F8E4M3::from_f32(x).to_bits()],
    }
}

/// Expansions of `PAGES` pages of latents to as many of copies, one of them padding.
const EXPANSIONS: [[u32; 4]; 4] = [[2, 0, 0, 32], [0, 2, 5, 17], [0, 0, 0, 0], [1, 1, 31, 32]];

/// Of latents of an element type and layout, and copies of a layout.
fn hold_expanded(dtype: Dtype, (kept, from): (KvElement, PageLayout), to: PageLayout, heads: LatentHeads) {
    let Some(gather) = Emulated::compile(&units::gather_latents(dtype, kept), "gather_latents") else {
        return;
    };
    let store = units::store_expanded(dtype, kept, to);
    let store = Emulated::compile(&store, "store_expanded").expect("compiled before");
    let mut dice = Dice::new(heads.rank as u64);
    let (stored, expanded) = (heads.absorbed(), heads.expanded());
    let mut all = rounded(&mut dice, dtype, PAGES * PAGE * heads.latent_width());
    if kept != KvElement::Plain {
        all.iter_mut().for_each(|x| *x = e4m3(*x));
    }
    let from_bytes = kept.element_bytes(dtype);
    let mut pages = vec![0; all.len() * from_bytes];
    for (place_of, &x) in all.iter().enumerate() {
        let (token, i) = (place_of / heads.latent_width(), place_of % heads.latent_width());
        let slot = KvSlot { page: PageId((token / PAGE) as u32), slot: (token % PAGE) as u32 };
        let at = place(stored, from, from_bytes, slot, (false, 0, i));
        pages[at..][..from_bytes].copy_from_slice(&stored_as(kept, dtype, x));
    }
    let pages = words(&pages);
    let latent = |page: u32, slot: u32| &all[(page as usize * PAGE + slot as usize) * heads.latent_width()..];
    let rows = EXPANSIONS.len() * PAGE;
    let mut gathered = words(&dtype.encode(&vec![9.0; rows * heads.rank]));
    let in_panels = u32::from(from == PageLayout::Panels);
    // Aligned as the kernel's struct is.
    let expansions: Vec<u128> = EXPANSIONS.iter().map(|words| bytemuck::cast(*words)).collect();
    let (mut out_at, mut pages_at, mut words_at) = (gathered.as_mut_ptr(), pages.as_ptr(), expansions.as_ptr());
    let mut shape = [heads.rank as u32, heads.latent_width() as u32, in_panels];
    let mut args = vec![at(&mut out_at), at(&mut pages_at), at(&mut words_at)];
    args.extend(shape.iter_mut().map(at));
    // SAFETY: the kernel's arguments in their order, each with memory for what its head says.
    unsafe { gather.launch(rows as u32, 128, 0, ANY, &args) };
    let found = numbers_of(dtype, &gathered, rows * heads.rank);
    for (row, found) in found.chunks_exact(heads.rank).enumerate() {
        let ([page, _, begin, end], slot) = (EXPANSIONS[row / PAGE], (row % PAGE) as u32);
        let expected = if (begin..end).contains(&slot) {
            latent(page, slot)[..heads.rank].to_vec()
        } else {
            vec![0.0; heads.rank]
        };
        assert_eq!(found, expected, "{dtype:?}, {from:?}: slot {slot} of page {page}");
    }

    let mapped = rounded(&mut dice, dtype, rows * heads.map_rows());
    let mapped_words = words(&dtype.encode(&mapped));
    let bytes = dtype.bytes();
    let mut copies = vec![u64::from_ne_bytes([UNTOUCHED; 8]); expanded.stored_width() * PAGES * PAGE * bytes / 8];
    let (mut copies_at, mut mapped_at) = (copies.as_mut_ptr(), mapped_words.as_ptr());
    let mut shape =
        [heads.latent_width(), in_panels as usize, heads.heads, heads.nope, heads.rope, heads.value].map(|n| n as u32);
    let mut args = vec![at(&mut copies_at), at(&mut mapped_at), at(&mut pages_at), at(&mut words_at)];
    args.extend(shape.iter_mut().map(at));
    // SAFETY: as above.
    unsafe { store.launch(rows as u32, 128, 0, ANY, &args) };
    let copies: &[u8] = bytemuck::cast_slice(&copies);
    let mut written = vec![false; copies.len()];
    for (row, mapped) in mapped.chunks_exact(heads.map_rows()).enumerate() {
        let ([page, to_page, begin, end], slot) = (EXPANSIONS[row / PAGE], (row % PAGE) as u32);
        if !(begin..end).contains(&slot) {
            continue;
        }
        let rotated = &latent(page, slot)[heads.rank..][..heads.rope];
        for (head, mapped) in mapped.chunks_exact(heads.nope + heads.value).enumerate() {
            let (key, value) = mapped.split_at(heads.nope);
            let key = key.iter().chain(rotated).enumerate().map(|(i, &x)| (false, i, x));
            for (is_value, i, x) in key.chain(value.iter().enumerate().map(|(i, &x)| (true, i, x))) {
                let slot = KvSlot { page: PageId(to_page), slot };
                let at = place(expanded, to, bytes, slot, (is_value, head, i));
                assert_eq!(
                    copies[at..at + bytes],
                    dtype.encode(&[x]),
                    "{dtype:?}, {to:?}: head {head}, {is_value}, {i}"
                );
                written[at..at + bytes].fill(true);
            }
        }
    }
    let spared = copies.iter().zip(&written).filter(|(_, written)| !**written);
    assert!(spared.into_iter().all(|(&byte, _)| byte == UNTOUCHED), "{dtype:?}: other slots are left alone");
}

#[test]
fn latents_are_gathered_and_what_they_expand_to_is_stored() {
    let even = LatentHeads { heads: 2, rank: 256, nope: 64, rope: 64, value: 128 };
    let (plain, panels, swizzled) = (PageLayout::Plain, PageLayout::Panels, PageLayout::Swizzled);
    let (as_is, fp8) = (KvElement::Plain, KvElement::Fp8);
    hold_expanded(Dtype::Bf16, (as_is, panels), panels, LITE);
    hold_expanded(Dtype::F16, (as_is, plain), plain, LITE);
    hold_expanded(Dtype::Bf16, (as_is, panels), swizzled, even);
    hold_expanded(Dtype::Bf16, (fp8, panels), swizzled, even);
    hold_expanded(Dtype::F16, (fp8, panels), panels, LITE);
    hold_expanded(Dtype::F32, (as_is, plain), plain, SMALL);
    hold_expanded(Dtype::Bf16, (fp8, plain), plain, SMALL);
}

#[test]
fn results_over_different_positions_merge_by_their_log_sum_exps() {
    for (dtype, heads, width) in [(Dtype::Bf16, 11, 128), (Dtype::F32, 3, 6), (Dtype::F16, 8, 64)] {
        let Some(kernel) = Emulated::compile(&units::typed(&units::MERGE_ATTENDED, dtype), "merge_attended") else {
            return;
        };
        let mut dice = Dice::new(width as u64);
        let rows = 4;
        let [mut results, mut others] = [0, 1].map(|_| rounded(&mut dice, dtype, rows * heads * width));
        let [mut lse, mut other_lse] =
            [0, 1].map(|_| (0..rows * heads).map(|_| 30.0 * dice.number()).collect::<Vec<f32>>());
        // Heads that saw nothing in one, in the other, in both: their results are zeros.
        for (unit, in_first, in_second) in [(1, true, false), (2, false, true), (4, true, true)] {
            for (is_empty, results, lse) in
                [(in_first, &mut results, &mut lse), (in_second, &mut others, &mut other_lse)]
            {
                if is_empty {
                    results[unit * width..][..width].fill(0.0);
                    lse[unit] = f32::NEG_INFINITY;
                }
            }
        }
        let (mut out, other) = (words(&dtype.encode(&results)), words(&dtype.encode(&others)));
        let mut merged = lse.clone();
        let (mut out_at, mut lse_at) = (out.as_mut_ptr(), merged.as_mut_ptr());
        let (mut other_at, mut other_lse_at) = (other.as_ptr(), other_lse.as_ptr());
        let mut shape = [heads as u32, width as u32];
        let mut args = vec![at(&mut out_at), at(&mut lse_at), at(&mut other_at), at(&mut other_lse_at)];
        args.extend(shape.iter_mut().map(at));
        // SAFETY: the kernel's arguments in their order, each with memory for what its head says.
        unsafe { kernel.launch_grid([rows as u32, heads.div_ceil(8) as u32], 128, ANY, &args) };
        let found = numbers_of(dtype, &out, rows * heads * width);
        for unit in 0..rows * heads {
            let [a, b] = [lse[unit], other_lse[unit]].map(f64::from);
            let most = a.max(b);
            let weights = if most == f64::NEG_INFINITY { [0.0; 2] } else { [a, b].map(|x| (x - most).exp()) };
            let sum: f64 = weights.iter().sum();
            if sum == 0.0 {
                assert_eq!(merged[unit], f32::NEG_INFINITY, "what nobody saw");
            } else {
                let expected = most + sum.ln();
                assert!((f64::from(merged[unit]) - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{merged:?}");
            }
            for i in unit * width..(unit + 1) * width {
                let terms =
                    [(results[i], weights[0]), (others[i], weights[1])].map(|(x, weight)| f64::from(x) * weight);
                let expected = if sum == 0.0 { 0.0 } else { (terms[0] + terms[1]) / sum };
                let size = if sum == 0.0 { 0.0 } else { (terms[0].abs() + terms[1].abs()) / sum };
                let differs = dtype.rounding() * expected.abs() + 1e-5 * size;
                assert!((f64::from(found[i]) - expected).abs() <= differs, "{dtype:?}: {} not {expected}", found[i]);
            }
        }
    }
}
