//! The kernels through which GPUs of one model exchange buffers (kernels/ranks), on the CPU, instruction by instruction
//! (`emulator`): kernels of all ranks run beside each other, and write into each other's memory. Every rank has the
//! same sums, folded as one tree, by each kernel, in exchanges of changing kernels behind one another; members of a
//! group have the results of their heads.

use std::ffi::c_void;

use offshoot_backend::Dtype;
use offshoot_backend::ranks::PARTS;
use offshoot_core::dice::Dice;
use offshoot_cuda::attention::layout::{HEADER_WORDS, PlanWord};
use offshoot_cuda::compile::units::{self, ExchangedSums, MemberStates};
use offshoot_cuda::ranks::ways::{MOST_BLOCKS, MOST_CHUNKS};

use crate::emulator::Emulated;

const THREADS: u32 = 64;

/// Places of the test: smaller than a GPU's, so that sizes beside their limits are tried.
const MOST_LINES: usize = 400;
const MOST_FLOATS: usize = 8192;

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// Memory of all ranks, as `RankMemory` lists it.
pub struct Ranks {
    count: usize,
    /// Of each rank: lines, floats, numbers of chunks, the bell.
    _memory: Vec<[Vec<u64>; 4]>,
    table: Vec<u64>,
    last: Vec<Vec<u32>>,
    aborted: u32,
}

impl Ranks {
    /// `last`: the number of the last exchange.
    pub fn new(count: usize, last: u32) -> Self {
        let others = count - 1;
        let mut memory: Vec<[Vec<u64>; 4]> = (0..count)
            .map(|_| {
                [
                    vec![0; 2 * others * MOST_LINES * 16],
                    // No numbers: nobody may add up what was not written.
                    vec![u64::MAX; 2 * others * MOST_FLOATS / 2],
                    vec![0; (others * MOST_CHUNKS).div_ceil(2)],
                    vec![0],
                ]
            })
            .collect();
        let table = memory.iter_mut().flatten().map(|memory| memory.as_mut_ptr() as u64).collect();
        Self { count, _memory: memory, table, last: vec![vec![last; MOST_BLOCKS]; count], aborted: 0 }
    }

    /// Launches `kernel` on all ranks; `own`: what rank r is given before what all exchanges have; `parts`: pointers to
    /// its parts, the second argument.
    pub fn launch(
        &mut self,
        kernel: &Emulated,
        blocks: u32,
        seed: u32,
        own: &mut [Vec<u64>],
        mut parts: Option<&mut Vec<[u64; PARTS]>>,
    ) {
        let table = self.table.as_mut_ptr();
        let (mut aborted, mut lines, mut floats) = (&raw mut self.aborted, MOST_LINES as u32, MOST_FLOATS as u32);
        let mut tables = vec![table; self.count];
        let mut lasts: Vec<*mut u32> = self.last.iter_mut().map(|last| last.as_mut_ptr()).collect();
        let mut ranks: Vec<u32> = (0..self.count as u32).collect();
        let args: Vec<Vec<*mut c_void>> = (0..self.count)
            .map(|rank| {
                let mut args: Vec<*mut c_void> = own[rank].iter_mut().map(at).collect();
                if let Some(parts) = &mut parts {
                    args.insert(1, at(&mut parts[rank]));
                }
                args.extend([at(&mut tables[rank]), at(&mut lasts[rank]), at(&mut aborted), at(&mut ranks[rank])]);
                args.extend([at(&mut lines), at(&mut floats)]);
                args
            })
            .collect();
        // SAFETY: the arguments of the kernel in their order, little-endian words for narrower ones; memory as large as
        // they say.
        unsafe { kernel.launch_beside(blocks, THREADS, seed, &args) };
    }
}

/// The sum of neighbours as a balanced tree; `rounded(sum, left)` is kept of each, of `left` on its level.
fn folded(mut parts: Vec<f32>, rounded: impl Fn(f32, usize) -> f32) -> f32 {
    while parts.len() > 1 {
        let left = parts.len() / 2;
        parts = parts.chunks(2).map(|pair| rounded(pair[0] + pair[1], left)).collect();
    }
    parts[0]
}

fn numbers(dice: &mut Dice, count: usize) -> Vec<f32> {
    (0..count).map(|_| dice.number()).collect()
}

/// Elements as a buffer holds them, aligned as device memory is, with some behind their end.
fn buffer(dtype: Dtype, x: &[f32]) -> Vec<[u64; 2]> {
    let bytes = dtype.encode(&x.iter().copied().chain([7.0; 16]).collect::<Vec<_>>());
    bytes.chunks_exact(16).map(bytemuck::pod_read_unaligned).collect()
}

/// As a kernel is given a rank's parts.
fn pointers_of(parts: &[Vec<[u64; 2]>]) -> [u64; PARTS] {
    std::array::from_fn(|i| parts.get(i).map_or(0, |part| part.as_ptr() as u64))
}

/// The sum of element `i` of all parts of all ranks.
fn sum_of_all(sums: ExchangedSums, x: &[Vec<Vec<f32>>], i: usize) -> f32 {
    let ExchangedSums { ranks, wire, exact, .. } = sums;
    let rank_sum = |parts: &Vec<Vec<f32>>| {
        let parts = parts.iter().map(|part| wire.round(part[i])).collect();
        folded(parts, |sum, left| if ranks > 1 || left > 1 { wire.round(sum) } else { sum })
    };
    let rounds = |left: usize| if left > 1 { exact } else { !exact && ranks > 2 };
    folded(x.iter().map(rank_sum).collect(), |sum, left| if rounds(left) { wire.round(sum) } else { sum })
}

struct Sum {
    kernel: &'static str,
    count: usize,
    blocks: u32,
    adds: bool,
}

/// Compares all kernels with the definition; `exact`: sums of eight parts.
fn hold_sums(count: usize, part: Dtype, wire: Dtype, exact: bool) {
    let sums = ExchangedSums::of(count, part, wire, exact);
    let unit = units::all_reduce(sums);
    let names = ["all_reduce_one_shot", "all_reduce_two_shot"];
    let kernels: Vec<_> = names.iter().map_while(|name| Some((*name, Emulated::compile(&unit, name)?))).collect();
    if kernels.len() < names.len() {
        return;
    }
    let sum = |kernel, count, blocks, adds| Sum { kernel, count, blocks, adds };
    let (one_shot, two_shot) = ("all_reduce_one_shot", "all_reduce_two_shot");
    // A share of two shots needs elements for the lines of a warp, of at most 240.
    let least = 240 * count;
    let all = [
        sum(one_shot, 1, 1, false),
        sum(one_shot, 300, 2, true),
        sum(one_shot, 2048, 4, false),
        sum(two_shot, 8192, 3, true),
        sum(one_shot, 2043, 3, false),
        // One more than whole lines, element by element.
        sum(one_shot, 1921, 8, true),
        sum(two_shot, 7681, 1, false),
        sum(one_shot, 5000, 2, false),
        sum(two_shot, least, 5, false),
        sum(two_shot, least - 7, 2, true),
        // Launches that load a kernel.
        sum(one_shot, 0, 1, false),
        sum(two_shot, 0, 1, true),
    ];
    // Exact sums count from the beginning; others pass the largest number.
    let begin = if exact { 0 } else { u32::MAX - 5 };
    let mut ranks = Ranks::new(count, begin);
    let mut dice = Dice::new(count as u64);
    for (seed, sum) in (0u32..).zip(&all) {
        // Elements in front of those that a launch sums.
        let first = if seed % 2 == 0 { 0 } else { 16 };
        let (_, kernel) = kernels.iter().find(|(name, _)| *name == sum.kernel).expect("one of the two");
        let length = first + sum.count;
        let x: Vec<Vec<Vec<f32>>> = (0..count)
            .map(|_| {
                (0..sums.parts).map(|_| numbers(&mut dice, length).iter().map(|&x| part.round(x)).collect()).collect()
            })
            .collect();
        let before = numbers(&mut dice, length);
        let mut out: Vec<Vec<[u64; 2]>> = (0..count).map(|_| buffer(Dtype::F32, &before)).collect();
        let given: Vec<Vec<Vec<[u64; 2]>>> =
            x.iter().map(|parts| parts.iter().map(|x| buffer(part, x)).collect()).collect();
        let mut pointers: Vec<[u64; PARTS]> = given.iter().map(|parts| pointers_of(parts)).collect();
        let mut own: Vec<Vec<u64>> = out
            .iter_mut()
            .map(|out| vec![out.as_mut_ptr() as u64, first as u64, sum.count as u64, u64::from(sum.adds)])
            .collect();
        ranks.launch(kernel, sum.blocks, seed, &mut own, Some(&mut pointers));
        for (rank, out) in out.iter().enumerate() {
            let out: &[f32] = bytemuck::cast_slice(out.as_flattened());
            for i in 0..sum.count {
                let i = first + i;
                let all = sum_of_all(sums, &x, i);
                let expected = if sum.adds { before[i] + all } else { all };
                assert!(
                    out[i].to_bits() == expected.to_bits(),
                    "{} of {}, rank {rank}, {sums:?}: element {i} is {} instead of {expected}",
                    sum.kernel,
                    sum.count,
                    out[i]
                );
            }
            assert_eq!(out[..first], before[..first], "{}: in front of the first", sum.kernel);
            assert!(out[length..].iter().all(|&behind| behind == 7.0), "{}: behind the end", sum.kernel);
        }
    }
    // Neither 0, which memory holds at first, nor the largest number, so that even and odd ones alternate.
    let next = |number: u32| if number < u32::MAX - 1 { number + 1 } else { 1 };
    let number = all.iter().filter(|sum| sum.count > 0).fold(begin, |number, _| next(number));
    assert!(ranks.last.iter().flatten().all(|&last| last == number), "blocks count all exchanges, and nothing else");
}

#[test]
fn sums_of_two_ranks() {
    hold_sums(2, Dtype::F32, Dtype::F32, false);
    hold_sums(2, Dtype::Bf16, Dtype::Bf16, false);
    hold_sums(2, Dtype::F32, Dtype::F16, false);
}

#[test]
fn sums_of_other_numbers_of_ranks() {
    hold_sums(1, Dtype::F32, Dtype::F32, false);
    hold_sums(4, Dtype::Bf16, Dtype::Bf16, false);
    hold_sums(8, Dtype::F32, Dtype::F32, false);
}

#[test]
fn exact_sums() {
    hold_sums(1, Dtype::Bf16, Dtype::Bf16, true);
    hold_sums(2, Dtype::Bf16, Dtype::Bf16, true);
    hold_sums(4, Dtype::F32, Dtype::Bf16, true);
    hold_sums(8, Dtype::F16, Dtype::F16, true);
}

#[test]
fn a_rank_that_has_failed_is_not_waited_for() {
    let unit = units::all_reduce(ExchangedSums::of(2, Dtype::F32, Dtype::F32, false));
    for name in ["all_reduce_one_shot", "all_reduce_two_shot"] {
        let Some(kernel) = Emulated::compile(&unit, name) else { return };
        let mut ranks = Ranks::new(2, 0);
        ranks.aborted = 1;
        let x = [buffer(Dtype::F32, &[1.0; 500]), buffer(Dtype::F32, &[1.0; 500])];
        let mut out = [buffer(Dtype::F32, &[0.0; 500]), buffer(Dtype::F32, &[0.0; 500])];
        let mut pointers: Vec<[u64; PARTS]> = x.iter().map(|x| pointers_of(std::slice::from_ref(x))).collect();
        // The second rank makes no exchange.
        let mut own: Vec<Vec<u64>> =
            out.iter_mut().zip([500, 0]).map(|(out, count)| vec![out.as_mut_ptr() as u64, 0, count, 0]).collect();
        ranks.launch(&kernel, 1, 0, &mut own, Some(&mut pointers));
        assert_eq!(ranks.last[0][0], 1, "{name}: the exchange of the first has ended");
        assert_eq!(ranks.last[1][0], 0);
    }
}

/// Where a library gathers what ranks have: the kernels before and behind it.
fn hold_gathered_sums(ranks: usize, part: Dtype, wire: Dtype, exact: bool) {
    let sums = ExchangedSums::of(ranks, part, wire, exact);
    let unit = units::all_reduce(sums);
    let kernels = ["all_reduce_own", "all_reduce_gathered"].map(|name| Emulated::compile(&unit, name));
    let [Some(own), Some(gathered)] = kernels else { return };
    let mut dice = Dice::new(ranks as u64);
    for (seed, (first, count, adds)) in (0u32..).zip([(0, 2048, false), (16, 1000, true), (8, 37, true)]) {
        let drawn = |dice: &mut Dice| numbers(dice, first + count).iter().map(|&x| part.round(x)).collect();
        let x: Vec<Vec<Vec<f32>>> = (0..ranks).map(|_| (0..sums.parts).map(|_| drawn(&mut dice)).collect()).collect();
        let mut given = Vec::new();
        for x in &x {
            let parts: Vec<Vec<[u64; 2]>> = x.iter().map(|x| buffer(part, x)).collect();
            let mut to = buffer(wire, &vec![0.0; count]);
            let (mut pointers, mut address) = (pointers_of(&parts), to.as_mut_ptr() as u64);
            let (mut first, mut elements) = (first as u64, count as u32);
            let args = vec![at(&mut address), at(&mut pointers), at(&mut first), at(&mut elements)];
            // SAFETY: the arguments of the kernel in their order; memory as large as they say.
            unsafe { own.launch_beside(3, THREADS, seed, &[args]) };
            given.extend_from_slice(&bytemuck::cast_slice::<_, u8>(&to)[..count * wire.bytes()]);
        }
        let before = numbers(&mut dice, first + count);
        let mut out = buffer(Dtype::F32, &before);
        given.resize(given.len().next_multiple_of(16), 0);
        let mut given: Vec<[u64; 2]> = given.chunks_exact(16).map(bytemuck::pod_read_unaligned).collect();
        let (mut to, mut from) = (out.as_mut_ptr() as u64, given.as_mut_ptr() as u64);
        let (mut begin, mut elements, mut added) = (first as u64, count as u32, u32::from(adds));
        let args = vec![at(&mut to), at(&mut from), at(&mut begin), at(&mut elements), at(&mut added)];
        // SAFETY: as above.
        unsafe { gathered.launch_beside(3, THREADS, seed, &[args]) };
        let out: &[f32] = bytemuck::cast_slice(out.as_flattened());
        for i in first..first + count {
            let sum = sum_of_all(sums, &x, i);
            let expected = if adds { before[i] + sum } else { sum };
            assert_eq!(out[i].to_bits(), expected.to_bits(), "{sums:?}, element {i}: {} instead of {expected}", out[i]);
        }
        assert_eq!(out[..first], before[..first], "in front of the first");
        assert!(out[first + count..].iter().all(|&behind| behind == 7.0), "behind the end");
    }
}

#[test]
fn gathered_sums() {
    hold_gathered_sums(2, Dtype::F32, Dtype::Bf16, false);
    hold_gathered_sums(2, Dtype::Bf16, Dtype::Bf16, true);
    hold_gathered_sums(4, Dtype::Bf16, Dtype::Bf16, false);
    hold_gathered_sums(8, Dtype::F32, Dtype::F32, true);
}

#[test]
fn shares_are_gathered_row_by_row() {
    for count in [2, 4] {
        let Some(kernel) = Emulated::compile(&units::all_gather(count), "all_gather") else { return };
        let mut ranks = Ranks::new(count, 0);
        let mut dice = Dice::new(9);
        for (seed, (rows, width, chunk, blocks)) in (0u32..).zip([(3, 64, 128, 2), (5, 7, 16, 4), (9, 500, 1024, 6)]) {
            let x: Vec<Vec<f32>> = (0..count).map(|_| numbers(&mut dice, rows * width)).collect();
            let mut given: Vec<Vec<[f32; 4]>> = x
                .iter()
                .map(|x| {
                    let all: Vec<f32> = x.iter().copied().chain([0.0; 4]).collect();
                    all.chunks_exact(4).map(|four| four.try_into().expect("four")).collect()
                })
                .collect();
            let mut out = vec![vec![[f32::NAN; 4]; (rows * width * count).div_ceil(4)]; count];
            let first = if rows * width % 2 == 0 { 0 } else { 1 };
            let mut own: Vec<Vec<u64>> = given
                .iter_mut()
                .zip(&mut out)
                .map(|(x, out)| {
                    let elements = (rows * width - first) as u64;
                    let addresses = [out.as_mut_ptr() as u64, x.as_mut_ptr() as u64];
                    addresses.into_iter().chain([first as u64, elements, width as u64, chunk]).collect()
                })
                .collect();
            ranks.launch(&kernel, blocks, seed, &mut own, None);
            for (rank, out) in out.iter().enumerate() {
                for i in first..rows * width {
                    for (sender, x) in x.iter().enumerate() {
                        let place = (i / width * count + sender) * width + i % width;
                        assert_eq!(out.as_flattened()[place], x[i], "rank {rank} of {count}, element {i} of {sender}");
                    }
                }
            }
        }
    }
}

/// A state of a row and head, of `element`s in the order of columns.
#[derive(Clone)]
struct Partial {
    m: f32,
    l: f32,
    o: Vec<f32>,
}

/// What a member found: the words of its plan, its partial states as memory holds them, and for each row and head its
/// states as lists.
struct Found {
    words: Vec<[u32; 4]>,
    partials: Vec<[f32; 4]>,
    lists: Vec<Vec<Vec<Partial>>>,
}

/// `lists`: how many states each row has.
fn found(dice: &mut Dice, states: MemberStates, q_heads: usize, lists: &[usize]) -> Found {
    let MemberStates { value_dim: head_dim, is_permuted, .. } = states;
    let slots: usize = lists.iter().sum();
    let mut partial = |_| Partial { m: 8.0 * dice.number(), l: 1.5 + dice.number(), o: numbers(dice, head_dim) };
    let all: Vec<Vec<Partial>> = (0..slots).map(|_| (0..q_heads).map(&mut partial).collect()).collect();
    // Two neighbouring groups of 8 are interleaved (kernels/attention/state.cuh).
    let place = |column: usize| match is_permuted {
        true => column / 16 * 16 + column % 8 * 2 + column / 8 % 2,
        false => column,
    };
    let mut partials = vec![0.0; slots * q_heads * (head_dim + 2)];
    for (i, state) in all.iter().flatten().enumerate() {
        state.o.iter().enumerate().for_each(|(column, &x)| partials[i * head_dim + place(column)] = x);
        partials[slots * q_heads * head_dim + 2 * i..][..2].copy_from_slice(&[state.m, state.l]);
    }
    let mut words = vec![0; HEADER_WORDS];
    (words[PlanWord::WideTicket as usize], words[PlanWord::NarrowTicket as usize]) = (3, 4);
    words[PlanWord::PartialSlots as usize] = slots as u32;
    words[PlanWord::MergeAt as usize] = words.len() as u32;
    let mut end = 0;
    words.push(0);
    for &list in lists {
        end += list as u32;
        words.push(end);
    }
    words[PlanWord::StatesAt as usize] = words.len() as u32;
    // The last slots are those of the first rows.
    words.extend((0..slots as u32).rev());
    words.resize(words.len().next_multiple_of(4), 0);
    partials.resize(partials.len().next_multiple_of(4), 0.0);
    let mut next = (0..slots).rev();
    let lists = lists.iter().map(|&list| {
        let of_row: Vec<usize> = next.by_ref().take(list).collect();
        (0..q_heads).map(|head| of_row.iter().map(|&slot| all[slot][head].clone()).collect()).collect()
    });
    let lists = lists.collect();
    Found {
        words: words.chunks_exact(4).map(|four| four.try_into().expect("four")).collect(),
        partials: partials.chunks_exact(4).map(|four| four.try_into().expect("four")).collect(),
        lists,
    }
}

/// Compares what members merge with the definition, `merge_members` of crates/cpu/src/fabric.rs: results of all states
/// of all members, and the sink of the head, weighed by their exponentials.
fn hold_merges(states: MemberStates, heads: usize) {
    let MemberStates { ranks: count, members, element, value_dim: head_dim, .. } = states;
    let Some(kernel) = Emulated::compile(&units::merge_members(states), "merge_members") else { return };
    let q_heads = heads * members;
    let mut ranks = Ranks::new(count, u32::MAX - 3);
    let mut dice = Dice::new((count * head_dim) as u64);
    let most_units = MOST_FLOATS / (head_dim + 2);
    for (seed, (rows, chunk, blocks, has_sinks)) in (0u32..).zip([(3, 4, 2, true), (7, 2, 6, false), (6, 5, 4, true)]) {
        // One row behind them is padded.
        let rows = rows.min(most_units / heads - 1);
        let mut all: Vec<Found> = (0..count)
            .map(|rank| {
                // Of each row some member has a state; some have none, and one has more than lanes.
                let list = |row: usize| match (row + rank % members) % members {
                    0 if row == 1 => 37,
                    0 => 1 + dice_of(rank, row, 5),
                    _ => dice_of(rank, row, 3),
                };
                let lists: Vec<usize> = (0..rows).map(list).chain([0]).collect();
                found(&mut dice, states, q_heads, &lists)
            })
            .collect();
        let sinks: Vec<Vec<f32>> = (0..count).map(|_| numbers(&mut dice, q_heads)).collect();
        let width = heads * head_dim;
        let before = vec![7.0; (rows + 1) * width];
        let mut out: Vec<Vec<[u64; 2]>> = (0..count).map(|_| buffer(element, &before)).collect();
        // All units but the first row's in one exchange, which comes first.
        for (first, units) in [(heads, rows * heads), (0, heads)] {
            let mut own: Vec<Vec<u64>> = (all.iter_mut().zip(&mut out).zip(&sinks).enumerate())
                .map(|(rank, ((found, out), sinks))| {
                    let is_given = has_sinks && rank % members == 0;
                    let sinks = if is_given { sinks.as_ptr() as u64 } else { 0 };
                    let addresses = [out.as_mut_ptr() as u64, found.words.as_mut_ptr() as u64];
                    let addresses = addresses.into_iter().chain([found.partials.as_mut_ptr() as u64, sinks]);
                    addresses.chain([q_heads as u64, first as u64, units as u64, chunk]).collect()
                })
                .collect();
            ranks.launch(&kernel, blocks, seed, &mut own, None);
        }
        // And one that only loads the kernel.
        ranks.launch(&kernel, 2, seed, &mut vec![vec![0, 0, 0, 0, 0, 0, 0, 1]; count], None);
        for (rank, out) in out.iter().enumerate() {
            let group = &all[rank / members * members..][..members];
            let out: &[u8] = bytemuck::cast_slice(out.as_flattened());
            let out: Vec<f32> = out.chunks_exact(element.bytes()).map(|x| decoded(element, x)).collect();
            for (unit, out) in out[..(rows + 1) * width].chunks_exact(head_dim).enumerate() {
                let (row, head) = (unit / heads, rank % members * heads + unit % heads);
                let sink = has_sinks.then(|| f64::from(sinks[rank / members * members][head]));
                let list: Vec<&Partial> = group.iter().flat_map(|found| &found.lists[row][head]).collect();
                hold_unit(states, &list, sink, out, &format!("{states:?}, rank {rank}, row {row}, head {head}"));
            }
            assert!(out[(rows + 1) * width..].iter().all(|&behind| behind == 7.0), "behind the end");
            let words: &[u32] = all[rank].words.as_flattened();
            let tickets = [PlanWord::WideTicket, PlanWord::NarrowTicket].map(|ticket| words[ticket as usize]);
            assert_eq!(tickets, [0, 0], "the next layer takes tiles from the first on");
        }
    }
}

/// A number below `n` that follows from the others.
fn dice_of(rank: usize, row: usize, n: usize) -> usize {
    (7 * rank + 5 * row) % n
}

fn decoded(dtype: Dtype, bytes: &[u8]) -> f32 {
    match dtype {
        Dtype::F32 => bytemuck::pod_read_unaligned(bytes),
        Dtype::F16 => bytemuck::pod_read_unaligned::<half::f16>(bytes).to_f32(),
        Dtype::Bf16 => bytemuck::pod_read_unaligned::<half::bf16>(bytes).to_f32(),
    }
}

/// Of states whose m are below 8 in size, in log2 units: a difference rounds by at most 2^-20, and so does its
/// exponential. A weight is a product of one such for the member's list, one for a sink and one for each member; the
/// sums above and below the line add so many terms in f32, and the result rounds to its dtype, in f16 by 2^-25 at
/// least.
fn hold_unit(states: MemberStates, list: &[&Partial], sink: Option<f64>, out: &[f32], case: &str) {
    if list.is_empty() {
        return assert!(out.iter().all(|&x| x == 0.0), "{case}: nothing is seen");
    }
    let sink = sink.map(|sink| (sink * std::f64::consts::LOG2_E).exp2());
    let weights: Vec<f64> = list.iter().map(|state| f64::from(state.m).exp2()).collect();
    let weighed = |of: &dyn Fn(&Partial) -> f64| -> f64 {
        list.iter().zip(&weights).map(|(state, weight)| weight * of(state)).sum()
    };
    let below = weighed(&|state| f64::from(state.l)) + sink.unwrap_or(0.0);
    let terms = (list.len() + states.members + 1) as f64;
    let may_differ = 2.0 * ((states.members + 2) as f64 * 2f64.powi(-20) + terms * Dtype::F32.rounding());
    for (i, &found) in out.iter().enumerate() {
        let expected = weighed(&|state| f64::from(state.o[i])) / below;
        let sizes = weighed(&|state| f64::from(state.o[i].abs())) / below;
        let may_differ = may_differ * sizes + states.element.rounding() * expected.abs() + 2f64.powi(-25);
        let error = (f64::from(found) - expected).abs();
        assert!(error <= may_differ, "{case}, {i}: {found} instead of {expected}, within {may_differ:e}");
    }
}

#[test]
fn members_merge_their_states_of_a_row_and_head() {
    let states = |ranks, members, element, value_dim, is_permuted| MemberStates {
        ranks,
        members,
        element,
        value_dim,
        is_permuted,
    };
    hold_merges(states(2, 2, Dtype::Bf16, 128, true), 4);
    hold_merges(states(4, 4, Dtype::Bf16, 64, true), 2);
    hold_merges(states(4, 2, Dtype::F16, 80, true), 3);
    hold_merges(states(2, 2, Dtype::F16, 512, true), 1);
    hold_merges(states(4, 4, Dtype::F32, 16, false), 5);
    hold_merges(states(8, 4, Dtype::F32, 18, false), 1);
    hold_merges(states(8, 8, Dtype::Bf16, 128, false), 1);
}
