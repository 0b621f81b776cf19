//! The ops of latent attention beside attention itself: what is done before, the products with the maps of heads,
//! copies of latents, and how two results merge. What is stored is checked by attention of rows that see one position
//! alone: the softmax of one score is 1, so a row reads its value, and the log-sum-exp is the score itself, a product
//! of a query with the key. Queries of ones and zeros ask for the elements of keys one by one.

use super::suite::OpSuite;
use crate::attention::solitary;
use crate::case::vector;
use crate::case::{ANY_VOCAB, CheckEffort, F32, OpCase, buffer, dot, numbers, root_mean_square, rounded, rows_at, run};
use crate::latents::latent_maps;
use crate::ops::heads::rotated;
use crate::ops::linear::{RowSize, sum_tolerance};
use crate::setting::hints;
use offshoot_backend::{
    ActivationDtype, Backend, CopyStore, Dtype, Expansion, HeadLayout, KvDtype, KvShape, LatentHeads, LatentSteps,
    RopePairs, RopeTable, Scoring, StepBatch,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_kv::KvSlot;

const EPS: f32 = 1e-6;
/// What an op leaves alone, a number of every dtype.
const UNWRITTEN: f32 = 0.5;
/// Positions of the rope tables.
const POSITIONS: usize = 200;
/// What a stored number of e4m3 may differ by from one that a neighbour is rounded to: three bits follow the first.
const E4M3: f64 = 1.0 / 8.0;

/// Small ones and odd ones, then those of models: DeepSeek-V2-Lite and MiniCPM3.
const SHAPES: [LatentHeads; 6] = [
    LatentHeads { heads: 4, rank: 32, nope: 16, rope: 8, value: 16 },
    LatentHeads { heads: 3, rank: 136, nope: 16, rope: 16, value: 16 },
    LatentHeads { heads: 1, rank: 16, nope: 8, rope: 8, value: 24 },
    LatentHeads { heads: 8, rank: 64, nope: 64, rope: 32, value: 96 },
    LatentHeads { heads: 16, rank: 512, nope: 128, rope: 64, value: 128 },
    LatentHeads { heads: 40, rank: 256, nope: 64, rope: 32, value: 64 },
];

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let shapes = if suite.effort == CheckEffort::Quick { &SHAPES[..1] } else { &SHAPES[..] };
    for &heads in shapes {
        let rows = dice.pick(&[1, 2, 7, if heads.rank < 256 { 33 } else { 7 }]);
        let maps: Vec<f32> = numbers(dice, dtype, heads.map_rows() * heads.rank);
        let queries = numbers(dice, dtype, rows * heads.query_width());
        let latents = numbers(dice, dtype, rows * heads.latent_width());
        for (pairs, kv) in [(RopePairs::Neighbours, KvDtype::Model), (RopePairs::Halves, KvDtype::Fp8)] {
            let keys = dice.pick(&[true, true, false]);
            // All of a query, but not of a latent.
            let whole = if keys { heads.rope } else { heads.nope + heads.rope };
            let rotary = dice.pick(&[heads.rope, heads.rope / 2, whole]).next_multiple_of(2);
            let [cos, sin] = [0, 1].map(|_| dice.numbers(POSITIONS * rotary / 2));
            let table = RopeTable { rotary, pairs, keys, cos, sin };
            let (norm, queries, latents) = (dice.numbers(heads.rank), queries.clone(), latents.clone());
            let joined = dice.one_in(2);
            suite.hold(
                "prepare_latents",
                &PrepareCase { dtype, heads, kv, rows, queries, latents, norm, table, joined },
            )?;
        }
        let case = |x: &[f32], width, of| MapCase { dtype, heads, x: x.to_vec(), width, maps: maps.clone(), of };
        suite.hold("absorb_queries", &case(&queries, heads.query_width(), Mapped::Queries))?;
        let read = numbers(dice, dtype, rows * heads.heads * heads.rank);
        suite.hold("map_values", &case(&read, heads.heads * heads.rank, Mapped::Values))?;
        for (store, kv) in [(CopyStore::Kept, KvDtype::Model), (CopyStore::Again, KvDtype::Fp8)] {
            let (latents, maps) = (latents.clone(), maps.clone());
            suite.hold("expand_latents", &ExpandCase { dtype, heads, kv, store, rows, latents, maps })?;
        }
        let [out, other] = [0, 1].map(|_| numbers(dice, dtype, rows * heads.out_width()));
        suite.hold("merge_attended", &MergeCase::new(dtype, heads, [out, other], dice))?;
    }
    Ok(())
}

/// Queries `[R, heads, head_dim]` of zeros and a one, which is at element `asked(row, head)`.
fn asking(rows: usize, heads: HeadLayout) -> Vec<f32> {
    let head = |at: usize| {
        let (row, head) = (at / heads.q_heads, at % heads.q_heads);
        (0..heads.head_dim).map(move |i| f32::from(u8::from(i == asked(row, head, heads))))
    };
    (0..rows * heads.q_heads).flat_map(head).collect()
}

/// The element of a key that a head asks for: the last ones first, which are rotated.
fn asked(row: usize, head: usize, heads: HeadLayout) -> usize {
    heads.head_dim - 1 - (row * 7 + head * 5) % heads.head_dim
}

/// What rows read that see the first slot of their page alone: values `[R, out_width]`, then the elements of keys that
/// they ask for, `[R, q_heads]`.
fn stored<B: Backend>(
    backend: &mut B,
    kv: &B::Kv,
    layer: LayerIx,
    heads: HeadLayout,
    dtype: Dtype,
    pages: &[PageId],
) -> Result<Vec<f32>> {
    let rows = pages.len();
    let plan = solitary(pages, &hints(backend, heads, dtype, None), backend.page_tokens());
    let mut step = backend.step(&[heads], dtype, ANY_VOCAB)?;
    let shape = backend.load(&mut step, StepBatch { plans: vec![plan], ..rows_at(&vec![0; rows]) })?;
    let holds = ActivationDtype::Operands(dtype);
    let queries = buffer(backend, holds, shape.rows, heads.q_width(), &asking(rows, heads))?;
    let mut out = buffer(backend, holds, shape.rows, heads.out_width(), &[])?;
    let mut lse = buffer(backend, ActivationDtype::Sums, shape.rows, heads.q_heads, &[])?;
    run(backend, &mut step, shape, |backend, step| {
        backend.tree_attention_lse(&mut out, &mut lse, &queries, kv, layer, step, 0, Scoring::scaled(1.0));
    })?;
    let mut found = backend.read(&out, rows)?;
    found.extend(backend.read(&lse, rows)?);
    Ok(found)
}

/// Pages of a row each, not in the order of the rows.
fn pages_of(rows: usize) -> Vec<PageId> {
    (0..rows).rev().map(PageId::new).collect()
}

/// Every row has a page of its own, and some position. Queries come first in what is found, then what is stored, then
/// what absorbed queries have of them: the rotated parts, and what is not written.
struct PrepareCase {
    dtype: Dtype,
    heads: LatentHeads,
    kv: KvDtype,
    rows: usize,
    queries: Vec<f32>,
    latents: Vec<f32>,
    norm: Vec<f32>,
    table: RopeTable,
    /// Whether latents lie behind the queries of their rows.
    joined: bool,
}

/// The position of row `row`.
fn position(row: usize) -> usize {
    row * 5 % POSITIONS
}

impl PrepareCase {
    /// Element `i` of `head`, the last elements of which are rotated, and the sizes of the products that it is.
    fn rotated(&self, row: usize, head: &[f32], i: usize) -> (f64, f64) {
        let first = head.len() - self.table.rotary;
        match i.checked_sub(first) {
            None => (f64::from(head[i]), 0.0),
            Some(i) => rotated(&self.table, position(row), &head[first..], i),
        }
    }

    fn latent(&self, row: usize) -> &[f32] {
        &self.latents[row * self.heads.latent_width()..][..self.heads.latent_width()]
    }

    /// Element `i` of what is stored of a row, and the sizes of the products that it is.
    fn kept(&self, row: usize, i: usize) -> (f64, f64) {
        let (x, rank) = (self.latent(row), self.heads.rank);
        match i < rank {
            true => (f64::from(x[i]) / root_mean_square(&x[..rank], EPS) * f64::from(self.norm[i]), 0.0),
            false if self.table.keys => self.rotated(row, x, i),
            false => (f64::from(x[i]), 0.0),
        }
    }

    /// Number `at` of what is found, the sizes of its products, and whether it is stored.
    fn number(&self, at: usize) -> (f64, f64, bool) {
        let LatentHeads { heads, nope, rope, rank, .. } = self.heads;
        let of_query = |query: usize, i| {
            let (y, size) = self.rotated(query / heads, &self.queries[query * (nope + rope)..][..nope + rope], i);
            (y, size, false)
        };
        let Some(at) = at.checked_sub(self.queries.len()) else {
            return of_query(at / (nope + rope), at % (nope + rope));
        };
        if let Some(at) = at.checked_sub(self.rows * heads * (rank + 1)) {
            return match (at % (rank + rope)).checked_sub(rank) {
                Some(i) => of_query(at / (rank + rope), nope + i),
                None => (f64::from(UNWRITTEN), 0.0, false),
            };
        }
        let (row, i) = match at.checked_sub(self.rows * heads * rank) {
            None => (at / (heads * rank), at % rank),
            Some(at) => (at / heads, asked(at / heads, at % heads, self.heads.absorbed())),
        };
        let (y, size) = self.kept(row, i);
        (y, size, true)
    }
}

impl OpCase for PrepareCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        backend.set_kv_dtype(self.kv);
        let (layer, holds, absorbed) = (LayerIx(1), ActivationDtype::Operands(self.dtype), self.heads.absorbed());
        let mut kv = backend.kv(&KvShape::uniform(2, absorbed, self.dtype, self.rows))?;
        let pages = pages_of(self.rows);
        let slots = pages.iter().map(|&page| KvSlot { page, slot: 0 }).collect();
        let positions: Vec<u32> = (0..self.rows).map(|row| position(row) as u32).collect();
        let (table, norm) = (backend.rope_table(&self.table)?, vector(backend, &self.norm)?);
        let mut step = backend.step(&[absorbed], self.dtype, ANY_VOCAB)?;
        let shape = backend.load(&mut step, StepBatch { slots: vec![slots], ..rows_at(&positions) })?;
        let widths = [self.heads.query_width(), self.heads.latent_width()];
        let together = self.queries.chunks(widths[0]).zip(self.latents.chunks(widths[1]));
        let together: Vec<f32> = together.flat_map(|(query, latent)| [query, latent].concat()).collect();
        let (query_row, given) = match self.joined {
            true => (widths[0] + widths[1], &together),
            false => (widths[0], &self.queries),
        };
        let mut queries = buffer(backend, holds, shape.rows, query_row, given)?;
        let mut latents = buffer(backend, holds, shape.rows, widths[1], &self.latents)?;
        let width = absorbed.q_width();
        let mut tails = buffer(backend, holds, shape.rows, width, &vec![UNWRITTEN; self.rows * width])?;
        let steps = LatentSteps { heads: self.heads, norm: &norm, eps: EPS, ropes: [Some(&table), None], layer };
        run(backend, &mut step, shape, |backend, step| {
            let latents = (!self.joined).then_some(&mut latents);
            backend.prepare_latents(&mut queries, latents, Some(&mut tails), &steps, &mut kv, step);
        })?;
        let rows = backend.read(&queries, self.rows)?;
        let mut found: Vec<f32> = rows.chunks(query_row).flat_map(|row| &row[..widths[0]]).copied().collect();
        found.extend(stored(backend, &kv, layer, absorbed, self.dtype, &pages)?);
        found.extend(backend.read(&tails, self.rows)?);
        backend.set_kv_dtype(KvDtype::Model);
        Ok(found)
    }

    /// Two products and their sum, each rounded once or not at all, or a norm, as in `rms_norm`; a number may be
    /// rounded before it is stored and once more in the result.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (_, size, is_stored) = self.number(at);
        let sums = 6.0 * F32 * size + y.abs() * (self.heads.rank as f64 + 12.0) * F32;
        match (is_stored, self.kv) {
            (false, _) => rounded(self.dtype, y) + 6.0 * F32 * size,
            (true, KvDtype::Model) => 2.0 * rounded(self.dtype, y) + sums,
            (true, KvDtype::Fp8) => y.abs() * E4M3 + 2f64.powi(-9) + 2.0 * rounded(self.dtype, y) + sums,
        }
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let LatentHeads { heads, rank, rope, .. } = self.heads;
        let found = self.queries.len() + self.rows * heads * (rank + 1 + rank + rope);
        Some((0..found).map(|at| self.number(at).0).collect())
    }

    fn name(&self) -> String {
        let RopeTable { rotary, pairs, .. } = self.table;
        let joined = if self.joined { ", in rows of both" } else { "" };
        format!("{} rows{joined}, {}, {rotary} rotated by {pairs:?}, kv dtype {}", self.rows, self.heads, self.kv)
    }
}

/// What is multiplied by maps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mapped {
    Queries,
    Values,
}

/// `absorb_queries` and `map_values`.
struct MapCase {
    dtype: Dtype,
    heads: LatentHeads,
    x: Vec<f32>,
    width: usize,
    maps: Vec<f32>,
    of: Mapped,
}

/// Row `row` of the maps of head `head`.
fn map_row(heads: LatentHeads, maps: &[f32], head: usize, row: usize) -> &[f32] {
    &maps[(head * (heads.nope + heads.value) + row) * heads.rank..][..heads.rank]
}

impl MapCase {
    fn out_width(&self) -> usize {
        match self.of {
            Mapped::Queries => self.heads.absorbed().q_width(),
            Mapped::Values => self.heads.out_width(),
        }
    }

    /// The activations and weights whose product number `at` of the result is; `Err`: the number itself.
    fn operands(&self, at: usize) -> std::result::Result<[Vec<f32>; 2], f32> {
        let LatentHeads { heads, rank, nope, rope, value } = self.heads;
        let (row, head) = (at / self.out_width(), at % self.out_width() / (self.out_width() / heads));
        let (x, i) = (&self.x[row * self.width..][..self.width], at % (self.out_width() / heads));
        match self.of {
            Mapped::Queries if i >= rank => Err(x[head * (nope + rope) + nope + i - rank]),
            Mapped::Queries => {
                let column = (0..nope).map(|row| map_row(self.heads, &self.maps, head, row)[i]).collect();
                Ok([x[head * (nope + rope)..][..nope].to_vec(), column])
            }
            Mapped::Values => {
                debug_assert!(i < value);
                Ok([x[head * rank..][..rank].to_vec(), map_row(self.heads, &self.maps, head, nope + i).to_vec()])
            }
        }
    }
}

impl OpCase for MapCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let (rows, holds) = (self.x.len() / self.width, ActivationDtype::Operands(self.dtype));
        let maps = latent_maps(backend, self.heads, self.dtype, &self.maps)?;
        let x = buffer(backend, holds, rows, self.width, &self.x)?;
        // The rotated parts are there before their product.
        let out: Vec<f32> = match self.of {
            Mapped::Queries => (0..rows * self.out_width()).map(|at| self.operands(at).err().unwrap_or(0.0)).collect(),
            Mapped::Values => Vec::new(),
        };
        let mut out = buffer(backend, holds, rows, self.out_width(), &out)?;
        match self.of {
            Mapped::Queries => backend.absorb_queries(&mut out, &x, &maps),
            Mapped::Values => backend.map_values(&mut out, &x, &maps),
        }
        backend.read(&out, rows)
    }

    /// Rotated parts stay as they are.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let Ok([x, w]) = self.operands(at) else { return 0.0 };
        let [x_size, w_size] = [&x, &w].map(|numbers| RowSize::of_rows(numbers, numbers.len())[0]);
        2.0 * rounded(self.dtype, y) + sum_tolerance(None, x.len(), x_size, w_size)
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let number = |at| self.operands(at).map_or_else(f64::from, |[x, w]| dot(&x, &w));
        Some((0..self.x.len() / self.width * self.out_width()).map(number).collect())
    }

    fn name(&self) -> String {
        format!("{} rows, {}", self.x.len() / self.width, self.heads)
    }
}

/// Each row's latent is in the first slot of a page, and its copy in the first slot of another one.
struct ExpandCase {
    dtype: Dtype,
    heads: LatentHeads,
    kv: KvDtype,
    store: CopyStore,
    rows: usize,
    latents: Vec<f32>,
    maps: Vec<f32>,
}

impl ExpandCase {
    /// The latent and rotated part of a row, as they are stored.
    fn latent(&self, row: usize) -> Vec<f32> {
        let width = self.heads.latent_width();
        self.latents[row * width..][..width].iter().map(|&x| self.kv.round(self.dtype, x)).collect()
    }

    /// The latent and weights whose product number `at` is; `Err`: the number itself.
    fn operands(&self, at: usize) -> std::result::Result<[Vec<f32>; 2], f32> {
        let (LatentHeads { heads, rank, nope, value, .. }, expanded) = (self.heads, self.heads.expanded());
        let (row, head, of_map) = match at.checked_sub(self.rows * expanded.out_width()) {
            None => (at / expanded.out_width(), at / value % heads, nope + at % value),
            Some(at) => {
                let (row, head) = (at / heads, at % heads);
                let i = asked(row, head, expanded);
                if i >= nope {
                    return Err(self.latent(row)[rank + i - nope]);
                }
                (row, head, i)
            }
        };
        Ok([self.latent(row)[..rank].to_vec(), map_row(self.heads, &self.maps, head, of_map).to_vec()])
    }
}

impl OpCase for ExpandCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        backend.set_kv_dtype(self.kv);
        let (absorbed, expanded) = (self.heads.absorbed(), self.heads.expanded());
        let (layer, copy_layer) = (LayerIx(1), LayerIx(0));
        let mut kv = backend.kv(&KvShape::uniform(2, absorbed, self.dtype, self.rows))?;
        let mut copies = backend.kv(&KvShape::uniform(1, expanded, self.dtype, self.rows))?;
        let maps = latent_maps(backend, self.heads, self.dtype, &self.maps)?;
        let (from, to) = (pages_of(self.rows), (0..self.rows).map(PageId::new).collect::<Vec<_>>());
        let slots = from.iter().map(|&page| KvSlot { page, slot: 0 }).collect();
        let plan = |backend: &B, heads, pages: &[PageId]| {
            solitary(pages, &hints(backend, heads, self.dtype, None), backend.page_tokens())
        };
        let plans = vec![plan(backend, absorbed, &from), plan(backend, expanded, &to), plan(backend, expanded, &to)];
        let mut expansions: [Vec<Expansion>; CopyStore::COUNT] = Default::default();
        expansions[self.store as usize] =
            from.iter().zip(&to).map(|(&from, &to)| Expansion { from, to, slots: 0..1 }).collect();
        let batch =
            StepBatch { slots: vec![slots], plans, expansions: Some(expansions), ..rows_at(&vec![0; self.rows]) };
        let mut step = backend.step(&[absorbed, expanded, expanded], self.dtype, ANY_VOCAB)?;
        let shape = backend.load(&mut step, batch)?;
        let width = absorbed.qkv_width();
        let with_queries = |row: usize| {
            let queries = std::iter::repeat_n(0.0, absorbed.q_width());
            queries.chain(self.latents[row * self.heads.latent_width()..][..self.heads.latent_width()].iter().copied())
        };
        let rows: Vec<f32> = (0..self.rows).flat_map(with_queries).collect();
        let qkv = buffer(backend, ActivationDtype::Operands(self.dtype), shape.rows, width, &rows)?;
        run(backend, &mut step, shape, |backend, step| {
            backend.kv_append(&mut kv, layer, &qkv, step);
            backend.expand_latents(&mut copies, copy_layer, &kv, layer, &maps, self.store, step);
        })?;
        let found = stored(backend, &copies, copy_layer, expanded, self.dtype, &to)?;
        backend.set_kv_dtype(KvDtype::Model);
        Ok(found)
    }

    /// Copies are stored in the compute dtype, of latents as they are stored; rotated parts as they are. Keys are read
    /// as log-sum-exps of one position, which a backend may turn from powers of two to those of e: two roundings.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let Ok([x, w]) = self.operands(at) else { return 2.0 * F32 * y.abs() };
        let [x_size, w_size] = [&x, &w].map(|numbers| RowSize::of_rows(numbers, numbers.len())[0]);
        2.0 * rounded(self.dtype, y) + sum_tolerance(None, x.len(), x_size, w_size)
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let found = self.rows * (self.heads.out_width() + self.heads.heads);
        Some((0..found).map(|at| self.operands(at).map_or_else(f64::from, |[x, w]| dot(&x, &w))).collect())
    }

    fn name(&self) -> String {
        format!("{} rows, {}, {:?}, kv dtype {}", self.rows, self.heads, self.store, self.kv)
    }
}

/// Two results with their log-sum-exps, of which one is often -inf, and sometimes both.
struct MergeCase {
    dtype: Dtype,
    heads: usize,
    out: [Vec<f32>; 2],
    lse: [Vec<f32>; 2],
}

impl MergeCase {
    fn new(dtype: Dtype, heads: LatentHeads, mut out: [Vec<f32>; 2], dice: &mut Dice) -> Self {
        let count = out[0].len() / heads.value;
        let mut lse = [0, 1].map(|_| dice.numbers(count).iter().map(|x| 4.0 * x).collect::<Vec<f32>>());
        for (lse, out) in lse.iter_mut().zip(&mut out) {
            for (lse, out) in lse.iter_mut().zip(out.chunks_exact_mut(heads.value)).filter(|_| dice.one_in(3)) {
                *lse = f32::NEG_INFINITY;
                out.fill(0.0);
            }
        }
        Self { dtype, heads: heads.heads, out, lse }
    }

    /// The weights of both results of a row's head, and the log-sum-exp of both.
    fn weights(&self, at: usize) -> ([f64; 2], f64) {
        let lse = [0, 1].map(|of| f64::from(self.lse[of][at]));
        let most = lse[0].max(lse[1]);
        if most == f64::NEG_INFINITY {
            return ([0.0; 2], most);
        }
        let sum: f64 = lse.iter().map(|lse| (lse - most).exp()).sum();
        (lse.map(|lse| (lse - most).exp() / sum), most + sum.ln())
    }
}

impl OpCase for MergeCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let rows = self.lse[0].len() / self.heads;
        let width = self.out[0].len() / rows;
        let holds = ActivationDtype::Operands(self.dtype);
        let mut out = buffer(backend, holds, rows, width, &self.out[0])?;
        let mut lse = buffer(backend, ActivationDtype::Sums, rows, self.heads, &self.lse[0])?;
        let other = buffer(backend, holds, rows, width, &self.out[1])?;
        let other_lse = buffer(backend, ActivationDtype::Sums, rows, self.heads, &self.lse[1])?;
        backend.merge_attended(&mut out, &mut lse, &other, &other_lse);
        let mut found = backend.read(&out, rows)?;
        found.extend(backend.read(&lse, rows)?);
        Ok(found)
    }

    /// A result that is alone stays as it is, to the last bit, and so does its log-sum-exp. Else: two weights, each
    /// with some roundings of the exponential and its argument, which is at most 8; a sum and a quotient.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let all = self.out[0].len();
        let head = at.checked_sub(all).unwrap_or(at / (all / self.lse[0].len()));
        if self.lse.iter().any(|lse| lse[head] == f32::NEG_INFINITY) {
            return 0.0;
        }
        let size = match at < all {
            true => f64::from(self.out[0][at].abs()) + f64::from(self.out[1][at].abs()),
            false => 8.0 + y.abs(),
        };
        let stored = if at < all { 2.0 * rounded(self.dtype, y) } else { 0.0 };
        stored + 48.0 * F32 * size
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let each = self.out[0].len() / self.lse[0].len();
        let out = (0..self.out[0].len()).map(|at| {
            let ([first, second], _) = self.weights(at / each);
            first * f64::from(self.out[0][at]) + second * f64::from(self.out[1][at])
        });
        Some(out.chain((0..self.lse[0].len()).map(|at| self.weights(at).1)).collect())
    }

    fn name(&self) -> String {
        let (count, all) = (self.lse[0].len(), self.out[0].len());
        format!("{} rows, {} heads of {}", count / self.heads, self.heads, all / count)
    }
}
