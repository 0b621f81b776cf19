//! The kernels of mixtures of experts on the CPU, instruction by instruction (`emulator`): rows get the experts with
//! the largest scores and places in order, and every place the product with its expert, whatever the tile it lies in.

use crate::emulator;
use crate::full::some_or_full;

use std::collections::BTreeSet;
use std::ffi::c_void;

use emulator::{Emulated, Schedule, When};
use offshoot_backend::{Dtype, RouteShape};
use offshoot_core::dice::Dice;
use offshoot_core::ids::{GroupIx, PageId};
use offshoot_cuda::attention::device_plan::WHOLE;
use offshoot_cuda::compile::elements::ExpertTiles;
use offshoot_cuda::compile::unit::Unit;
use offshoot_cuda::compile::units;
use offshoot_cuda::memory::kv::{NO_SLOT, PAGE_TOKENS, slot_word};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::Member;

const AT_ONCE: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// Rows at their experts, sorted by expert.
struct Places {
    firsts: Vec<u32>,
    rows: Vec<u32>,
}

impl Places {
    /// `counts[expert]` of `rows` rows choose each expert.
    fn of(counts: &[usize], rows: usize) -> Self {
        let mut firsts = vec![0];
        let mut all = Vec::new();
        for (expert, &count) in counts.iter().enumerate() {
            all.extend((0..count).map(|i| ((i * 7 + expert) % rows) as u32));
            firsts.push(all.len() as u32);
        }
        Self { firsts, rows: all }
    }

    fn expert(&self, place: usize) -> usize {
        self.firsts.iter().position(|&first| first as usize > place).expect("the last one is behind all") - 1
    }
}

/// As kernels/experts/panels.cuh has it: 64 x 64 elements, chunks of eight swizzled by their row, missing ones zero.
/// `alternates`: eight rows of the first half and eight of the second in turn.
fn panels(weights: &[f32], experts: usize, outputs: usize, inner: usize, alternates: bool) -> Vec<f32> {
    let (groups, across) = (outputs.div_ceil(64), inner.div_ceil(64));
    let mut all = vec![0.0; experts * groups * across * 64 * 64];
    for (i, &weight) in weights.iter().enumerate() {
        let (expert, row, k) = (i / inner / outputs, i / inner % outputs, i % inner);
        let half = outputs / 2;
        let row = if alternates { row % half / 8 * 16 + row / half * 8 + row % half % 8 } else { row };
        let panel = (expert * groups + row / 64) * across + k / 64;
        let (row, chunk) = (row % 64, k % 64 / 8);
        all[(panel * 64 + row) * 64 + (chunk ^ (row % 8)) * 8 + k % 8] = weight;
    }
    all
}

struct Product<'a> {
    dtype: Dtype,
    outputs: usize,
    inner: usize,
    counts: &'a [usize],
    /// Rows of the step; `None`: `x` has a row for each place.
    rows: Option<usize>,
    biased: bool,
    sums: bool,
    gate: Option<u32>,
}

impl Product<'_> {
    /// Compiles the kernel of such tiles.
    fn kernel(&self, tiles: ExpertTiles) -> Option<Emulated> {
        Emulated::compile(&units::expert_linear(self.dtype, tiles, self.gate.is_some()), tiles.name())
    }

    /// Runs the product by a kernel; compares every place with the sum in f64, and returns the results.
    fn hold(&self, kernel: &Emulated, tiles: ExpertTiles, how: Schedule) -> Vec<f32> {
        let &Self { dtype, outputs, inner, counts, biased, sums, gate, .. } = self;
        let (experts, mut dice) = (counts.len(), Dice::new(5));
        let places = Places::of(counts, self.rows.unwrap_or(1));
        let count = places.rows.len();
        let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| dtype.round(dice.number())).collect() };
        let x = numbers(self.rows.unwrap_or(count) * inner);
        let weights = numbers(experts * outputs * inner);
        let bias = numbers(experts * outputs);
        let width = if gate.is_some() { outputs / 2 } else { outputs };
        let into = if sums { Dtype::F32 } else { dtype };
        let mut out = vec![0xffu8; count * width * into.bytes() + 16];

        // As 16-byte units, where the kernels' copies may begin.
        let aligned = |values: &[f32]| -> Vec<u128> {
            let mut bytes = dtype.encode(values);
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            bytes.chunks_exact(16).map(bytemuck::pod_read_unaligned).collect()
        };
        let (x_given, panels) = (aligned(&x), aligned(&panels(&weights, experts, outputs, inner, gate.is_some())));
        let (mut out_at, mut x_at, mut weights_at) = (out.as_mut_ptr(), x_given.as_ptr(), panels.as_ptr());
        let (mut bias_at, mut firsts_at) = (bias.as_ptr(), places.firsts.as_ptr());
        let mut rows_at = places.rows.as_ptr();
        let numbers = [experts, outputs, inner, usize::from(self.rows.is_some()), usize::from(biased)];
        let mut numbers = numbers.map(|number| number as u32);
        let (mut sums_given, mut gate_given) = (u32::from(sums), gate.unwrap_or(0));
        let [a, b, c, d, e] = &mut numbers;
        let args = [
            at(&mut out_at),
            at(&mut x_at),
            at(&mut weights_at),
            at(&mut bias_at),
            at(&mut firsts_at),
            at(&mut rows_at),
            at(a),
            at(b),
            at(c),
            at(d),
            at(e),
            at(&mut sums_given),
            at(&mut gate_given),
        ];
        // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
        unsafe { kernel.launch(2, tiles.threads, tiles.shared, how, &args) };

        let mut found = Vec::new();
        for place in 0..count {
            let expert = places.expert(place);
            let input = if self.rows.is_some() { places.rows[place] as usize } else { place };
            let (x, mut products) = (&x[input * inner..][..inner], Vec::new());
            for row in 0..outputs {
                let w = &weights[(expert * outputs + row) * inner..][..inner];
                let product: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                products.push(product + if biased { f64::from(bias[expert * outputs + row]) } else { 0.0 });
            }
            for i in 0..width {
                let expected = match gate {
                    None => products[i],
                    Some(kind) => gated(products[i], products[width + i], kind),
                };
                let bytes = &out[(place * width + i) * into.bytes()..][..into.bytes()];
                let value = match into {
                    Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
                    Dtype::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
                    Dtype::Bf16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
                };
                // A rounding of the result, those of a sum of `inner` products of at most 1, and a gate's slope of at
                // most 2 and factor of the other half.
                let factor = if gate.is_some() { 4.0 * (1.0 + products[width + i].abs()) } else { 1.0 };
                let allowed = expected.abs() * into.rounding() * 2.0 + factor * inner as f64 * 2f64.powi(-22) + 1e-7;
                let error = (f64::from(value) - expected).abs();
                assert!(error <= allowed, "{tiles:?}, place {place}, {i}: {value}, not {expected}");
                found.push(value);
            }
        }
        assert!(out[count * width * into.bytes()..].iter().all(|&byte| byte == 0xff), "nothing behind the last place");
        found
    }
}

fn gated(gate: f64, up: f64, kind: u32) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match kind {
        0 => gate * sigmoid(gate) * up,
        1 => gate * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3))) * up,
        _ => {
            let (g, u) = (gate.min(7.0), up.clamp(-7.0, 7.0));
            g * sigmoid(1.702 * g) * (u + 1.0)
        }
    }
}

fn all_tiles() -> impl Iterator<Item = ExpertTiles> {
    [8, 9].into_iter().flat_map(ExpertTiles::of).copied()
}

/// Empty experts, one place, and more places than the smaller tiles have.
const SKEWED: [usize; 6] = [0, 1, 70, 0, 9, 20];

#[test]
fn every_place_has_the_product_with_its_expert() {
    let plain = Product {
        dtype: Dtype::Bf16,
        outputs: 136,
        inner: 72,
        counts: &SKEWED,
        rows: Some(33),
        biased: true,
        sums: false,
        gate: None,
    };
    for tiles in all_tiles() {
        let Some(kernel) = plain.kernel(tiles) else { return };
        for (seed, (copies, products)) in
            [(When::AtOnce, When::AtOnce), (When::Late, When::AtOnce), (When::Late, When::Late)].into_iter().enumerate()
        {
            plain.hold(&kernel, tiles, Schedule { copies, products, seed: seed as u32, held: None });
        }
        // Widths that are no multiple of eight; places as inputs; sums.
        Product { outputs: 13, inner: 200, rows: None, biased: false, ..plain }.hold(&kernel, tiles, AT_ONCE);
        Product { outputs: 200, inner: 640, sums: true, ..plain }.hold(&kernel, tiles, AT_ONCE);
    }
}

#[test]
fn gates_are_of_both_halves() {
    for tiles in all_tiles() {
        let product = |gate: u32| Product {
            dtype: Dtype::F16,
            outputs: 176,
            inner: 64,
            counts: &SKEWED,
            rows: Some(9),
            biased: gate == 2,
            sums: false,
            gate: Some(gate),
        };
        let Some(kernel) = product(0).kernel(tiles) else { return };
        (0..3).for_each(|gate| drop(product(gate).hold(&kernel, tiles, AT_ONCE)));
    }
}

#[test]
fn results_do_not_depend_on_the_tile() {
    // The same places first, alone and among others: tiles of all sizes.
    let product = |counts: &'static [usize]| Product {
        dtype: Dtype::F16,
        outputs: 64,
        inner: 136,
        counts,
        rows: Some(300),
        biased: false,
        sums: true,
        gate: None,
    };
    let mut expected: Option<Vec<f32>> = None;
    for tiles in ExpertTiles::of(9).iter().copied() {
        let Some(kernel) = product(&[1]).kernel(tiles) else { return };
        for counts in [&[3][..], &[17], &[40], &[65], &[129], &[193]] {
            let found = product(counts).hold(&kernel, tiles, AT_ONCE);
            let first = found[..3 * 64].to_vec();
            assert_eq!(expected.get_or_insert_with(|| first.clone()), &first, "{tiles:?} for {counts:?}");
        }
    }
}

/// How far scores may be below the largest in a sparse mixer: no quotient of two scores is near it.
const SPREAD: f32 = 0.309_017;

/// A router whose choices `route_choose` makes and `route_places` sorts.
struct Choosing {
    rows: usize,
    experts: usize,
    chosen: usize,
    /// How many there are, how many are kept, and whether two experts are summed; 0: none.
    groups: (usize, usize, bool),
    /// The last so many experts have no matrices.
    identities: usize,
    bias: Option<Vec<f32>>,
    scores: Vec<f32>,
    factors: Vec<f32>,
}

impl Choosing {
    fn new(
        [rows, experts, chosen, identities]: [usize; 4],
        groups: (usize, usize, bool),
        biased: bool,
        dice: &mut Dice,
    ) -> Self {
        // Few different scores: many are equal.
        let scores = (0..rows * experts).map(|_| dice.within(0, 12) as f32 - 6.0).collect();
        let bias = biased.then(|| (0..experts).map(|_| dice.within(0, 5) as f32 / 8.0).collect());
        Self { rows, experts, chosen, groups, identities, bias, scores, factors: dice.numbers(experts) }
    }

    /// The weight of each expert before those of the chosen ones are divided by their sum, if `kind` does.
    fn shares(&self, kind: u32, row: usize) -> Vec<f64> {
        let scores: Vec<f64> =
            self.scores[row * self.experts..][..self.experts].iter().copied().map(f64::from).collect();
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        scores.iter().map(|score| if kind % 4 < 2 { score.exp() / sum } else { 1.0 / (1.0 + (-score).exp()) }).collect()
    }

    /// The experts of a row and their weights.
    fn expected(&self, kind: u32, row: usize) -> Vec<(usize, f64)> {
        let shares = self.shares(kind, row);
        let (groups, kept, sums_two) = self.groups;
        let mut merits: Vec<f32> = self.scores[row * self.experts..][..self.experts].to_vec();
        if groups > 0 || self.bias.is_some() {
            let bias = |expert: usize| self.bias.as_ref().map_or(0.0, |bias| bias[expert]);
            merits = shares.iter().enumerate().map(|(expert, &share)| share as f32 + bias(expert)).collect();
        }
        let mut order: Vec<usize> = (0..self.experts).collect();
        order.sort_by(|&a, &b| merits[b].total_cmp(&merits[a]));
        if groups > 0 {
            let of = |expert: usize| expert / (self.experts / groups);
            // The experts are in order, so that the first ones of a group are its best.
            let judged = |group: usize| -> f32 {
                order
                    .iter()
                    .filter(|&&expert| of(expert) == group)
                    .take(1 + usize::from(sums_two))
                    .map(|&e| merits[e])
                    .sum()
            };
            let mut best: Vec<usize> = (0..groups).collect();
            best.sort_by(|&a, &b| judged(b).total_cmp(&judged(a)));
            best.truncate(kept);
            order.retain(|&expert| best.contains(&of(expert)));
        }
        order.truncate(self.chosen);
        if kind == 4 {
            return self.mixed(row, order);
        }
        let sum = if kind.is_multiple_of(2) { 1.0 } else { order.iter().map(|&expert| shares[expert]).sum() };
        order.into_iter().map(|expert| (expert, shares[expert] / sum)).collect()
    }

    /// The weights of a sparse mixer's choices.
    fn mixed(&self, row: usize, order: Vec<usize>) -> Vec<(usize, f64)> {
        let scores: Vec<f64> =
            self.scores[row * self.experts..][..self.experts].iter().copied().map(f64::from).collect();
        let weight = |(ix, &expert): (usize, &usize)| {
            let most = scores[expert];
            let is_far = |score: f64| (most - score) / score.abs().max(most) > f64::from(SPREAD);
            let left = (0..scores.len()).filter(|other| !order[..ix].contains(other) && !is_far(scores[*other]));
            (expert, 1.0 / left.map(|other| (scores[other] - most).exp()).sum::<f64>())
        };
        order.iter().enumerate().map(weight).collect()
    }

    /// Runs both kernels and asserts what they give.
    fn hold(&self, choose: &Emulated, sort: &Emulated, kind: u32) {
        let &Self { rows, experts, chosen, identities, .. } = self;
        let places = rows * chosen;
        let mut expert_of = vec![0u128; places.div_ceil(8)];
        let (mut weights, mut firsts) = (vec![f32::NAN; places], vec![u32::MAX; experts + 1]);
        let (mut row_of, mut place_of) = (vec![u32::MAX; places], vec![u32::MAX; places]);
        let (mut expert_at, mut weights_at) = (expert_of.as_mut_ptr(), weights.as_mut_ptr());
        let (mut scores_at, mut factors_at) = (self.scores.as_ptr(), self.factors.as_ptr());
        let mut bias_at = self.bias.as_ref().map_or(std::ptr::null(), |bias| bias.as_ptr());
        let (groups, kept, sums_two) = self.groups;
        let numbers = [rows, experts, chosen, kind as usize, groups, kept, usize::from(sums_two)];
        let mut numbers = numbers.map(|number| number as u32);
        let lists =
            [at(&mut expert_at), at(&mut weights_at), at(&mut scores_at), at(&mut factors_at), at(&mut bias_at)];
        let mut number = if kind == 4 { SPREAD } else { 1e-20 };
        let args = lists.into_iter().chain(numbers.iter_mut().map(at)).chain([at(&mut number)]).collect::<Vec<_>>();
        // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
        unsafe { choose.launch(rows.div_ceil(4) as u32, 128, 4 * experts * 4, AT_ONCE, &args) };
        let (mut firsts_at, mut rows_at, mut places_at) =
            (firsts.as_mut_ptr(), row_of.as_mut_ptr(), place_of.as_mut_ptr());
        let mut numbers = [places, chosen, experts, experts - identities].map(|number| number as u32);
        let mut needed = [5u32, 7];
        let mut needed_at = needed.as_mut_ptr();
        let lists = [at(&mut firsts_at), at(&mut rows_at), at(&mut places_at), at(&mut needed_at), at(&mut expert_at)];
        let args = lists.into_iter().chain(numbers.iter_mut().map(at)).collect::<Vec<_>>();
        // SAFETY: as above.
        unsafe { sort.launch(experts as u32, 512, 0, AT_ONCE, &args) };

        let expert_of: &[u16] = bytemuck::cast_slice(&expert_of);
        let mut sorted: Vec<(u16, u32, usize)> = Vec::new();
        for row in 0..rows {
            for (i, (expert, weight)) in self.expected(kind, row).into_iter().enumerate() {
                let at = row * chosen + i;
                assert_eq!(usize::from(expert_of[at]), expert, "row {row}, choice {i}");
                let expected = weight * f64::from(self.factors[expert]);
                let error = (f64::from(weights[at]) - expected).abs();
                assert!(error < 1e-5 * expected.abs() + 1e-12, "{kind}: {} for {expected}", weights[at]);
                sorted.push((expert as u16, row as u32, at));
            }
        }
        sorted.sort_unstable();
        for (place, &(_, row, choice)) in sorted.iter().enumerate() {
            assert_eq!((row_of[place], place_of[choice]), (row, place as u32));
        }
        let multiplied =
            sorted.iter().map(|choice| choice.0).filter(|&expert| usize::from(expert) < experts - identities);
        assert_eq!(needed, [5 + multiplied.collect::<BTreeSet<_>>().len() as u32, 8]);
        for (expert, &first) in firsts.iter().enumerate() {
            assert_eq!(first as usize, sorted.iter().filter(|choice| usize::from(choice.0) < expert).count());
        }
    }
}

#[test]
fn rows_get_their_best_experts_and_places_in_order() {
    let (choose, sort) = (Unit::new(&units::ROUTE_CHOOSE), Unit::new(&units::ROUTE_PLACES));
    let Some(choose) = Emulated::compile(&choose, "route_choose") else { return };
    let Some(sort) = Emulated::compile(&sort, "route_places") else { return };
    let none = (0, 0, false);
    let shapes = [
        ([1, 3, 1, 0], none, false),
        ([5, 40, 4, 0], none, false),
        ([70, 8, 2, 0], none, false),
        ([61, 130, 8, 0], none, false),
        ([9, 33, 32, 0], none, false),
        ([30, 24, 5, 8], none, true),
        ([26, 64, 6, 0], (8, 3, true), true),
        ([21, 60, 4, 7], (4, 2, false), false),
        ([11, 64, 5, 0], (32, 3, true), true),
    ];
    for (number, (shape, groups, biased)) in (0u32..).zip(shapes) {
        let choosing = Choosing::new(shape, groups, biased, &mut Dice::new(u64::from(number)));
        // One kind of scores for each shape, or all.
        some_or_full(number % 5..number % 5 + 1, 0..5).for_each(|kind| choosing.hold(&choose, &sort, kind));
    }
}

/// A weight is that of the chosen score, however much larger others are that a bias keeps away.
#[test]
fn weights_are_finite_where_the_largest_score_is_not_chosen() {
    let (choose, sort) = (Unit::new(&units::ROUTE_CHOOSE), Unit::new(&units::ROUTE_PLACES));
    let Some(choose) = Emulated::compile(&choose, "route_choose") else { return };
    let Some(sort) = Emulated::compile(&sort, "route_places") else { return };
    let (scores, bias) = (vec![300.0, 1.0, 0.0, -1.0], vec![-2.0, 0.0, 0.5, 0.25]);
    let base = Choosing::new([1, 4, 2, 0], (0, 0, false), true, &mut Dice::new(0));
    let choosing = Choosing { scores, bias: Some(bias), ..base };
    assert_eq!(choosing.expected(1, 0).iter().map(|chosen| chosen.0).collect::<Vec<_>>(), [2, 3]);
    (0..4).for_each(|kind| choosing.hold(&choose, &sort, kind));
}

/// Rows of places at experts that have matrices, and where there are others the row's own input, or nothing. What
/// stands at the places of those others is never read.
#[test]
fn identities_give_their_input() {
    const WIDTH: usize = 24;
    let Some(combine) = Emulated::compile(&Unit::new(&units::COMBINE).define("ELEMENT", "float"), "combine") else {
        return;
    };
    // Three choices of two rows; places from the fourth on are of identities.
    let (places, weights, multiplied) = ([0u32, 4, 2, 3, 1, 5], [0.5f32, 0.25, 2.0, 1.5, -1.0, 0.75], [4u32]);
    let mut dice = Dice::new(3);
    let mut x = dice.numbers(4 * WIDTH);
    x.resize(6 * WIDTH, f32::NAN);
    let input = dice.numbers(2 * WIDTH);
    for (gives, adds) in [(true, false), (true, true), (false, false)] {
        let mut out = vec![if adds { 1.0f32 } else { f32::NAN }; 2 * WIDTH];
        let (mut out_at, mut x_at, mut places_at) = (out.as_mut_ptr(), x.as_ptr(), places.as_ptr());
        let mut input_at = if gives { input.as_ptr() } else { std::ptr::null() };
        let (mut weights_at, mut multiplied_at) = (weights.as_ptr(), multiplied.as_ptr());
        let mut numbers = [3, WIDTH as u32, u32::from(adds)];
        let lists = [at(&mut out_at), at(&mut x_at), at(&mut input_at), at(&mut places_at)];
        let args = lists.into_iter().chain([at(&mut weights_at), at(&mut multiplied_at)]);
        let args = args.chain(numbers.iter_mut().map(at)).collect::<Vec<_>>();
        // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
        unsafe { combine.launch(2, 32, 0, AT_ONCE, &args) };
        for (i, &found) in out.iter().enumerate() {
            let of_choice = |choice: usize| match places[choice] {
                place if place < multiplied[0] => x[place as usize * WIDTH + i % WIDTH],
                _ if gives => input[i],
                _ => 0.0,
            };
            let first = i / WIDTH * 3;
            let sum: f64 = (first..first + 3).map(|at| f64::from(weights[at]) * f64::from(of_choice(at))).sum();
            let expected = sum + if adds { 1.0 } else { 0.0 };
            assert!((f64::from(found) - expected).abs() < 1e-5, "{gives} {adds}: {found} for {expected}");
        }
    }
}

/// Ids of one byte and of two, of the second of three layers: each row's where its slot is, of a member those of its
/// own rows, and nothing of padded ones.
#[test]
fn experts_are_kept_in_the_slots_of_their_rows() {
    const PAGES: usize = 3;
    let Some(keep) = Emulated::compile(&units::route_keep(), "route_keep") else { return };
    let halves = [0, 1].map(|number| Member { number, of: 2, page_tokens: PAGE_TOKENS });
    for (experts, chosen, member) in
        [(200usize, 3usize, WHOLE), (600, 4, WHOLE), (600, 2, halves[0]), (9, 2, halves[1])]
    {
        let shape = RouteShape { layers: 3, chosen, experts, group: GroupIx(0) };
        let of_page = member.of * PAGE_TOKENS;
        let slots = [(2, of_page - 1), (0, 0), (1, 39 % of_page), (1, 5)];
        let slots = slots.map(|(page, slot)| KvSlot { page: PageId(page), slot });
        let words: Vec<u32> = slots.iter().map(|&slot| slot_word(slot, member.of)).chain([NO_SLOT]).collect();
        let mut dice = Dice::new(experts as u64);
        let ids: Vec<u16> = (0..words.len() * chosen).map(|_| dice.below(experts) as u16).collect();
        let (untouched, page_bytes) = (0x5a, shape.page_bytes(PAGE_TOKENS));
        let mut kept = vec![untouched; PAGES * page_bytes];
        let mut expected = kept.clone();
        for (row, &slot) in slots.iter().enumerate() {
            let Some(own) = member.slot(slot) else { continue };
            let first = own.page.ix() * page_bytes + own.slot as usize * shape.slot_bytes() + chosen * shape.id_bytes();
            let of_row = ids[row * chosen..][..chosen].iter().map(|&id| u32::from(id));
            shape.encode(of_row, &mut expected[first..][..chosen * shape.id_bytes()]);
        }
        let (mut kept_at, mut ids_at, mut words_at) = (kept.as_mut_ptr(), ids.as_ptr(), words.as_ptr());
        let numbers = [ids.len(), chosen, chosen * shape.id_bytes(), shape.id_bytes(), shape.slot_bytes(), page_bytes];
        let mut numbers = numbers.map(|number| number as u32);
        let [a, b, c, d, e, f] = &mut numbers;
        let (mut number, mut of) = (member.number, member.of);
        let lists = [at(&mut kept_at), at(&mut ids_at), at(&mut words_at), at(a), at(b), at(c), at(d), at(e), at(f)];
        let args = lists.into_iter().chain([at(&mut number), at(&mut of)]).collect::<Vec<_>>();
        // SAFETY: the kernel's arguments, in their order, each with memory for what its head says.
        unsafe { keep.launch(1, 256, 0, AT_ONCE, &args) };
        assert_eq!(kept, expected, "{chosen} of {experts}, {member:?}");
    }
}
