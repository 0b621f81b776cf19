//! `head_norm` and `rope`, in place on the heads of `qkv`; and `prepare_heads`, which also stores keys and values.

use super::suite::OpSuite;
use crate::attention::solitary;
use crate::case::{
    ANY_VOCAB, CheckEffort, F32, OpCase, buffer, numbers, root_mean_square, rounded, rows_at, run, vector,
};
use crate::setting::hints;
use offshoot_backend::{
    ActivationDtype, Backend, Dtype, HeadKind, HeadLayout, HeadNormForm, HeadNormSpan, HeadSteps, KvDtype, KvShape,
    RopePairs, RopeTable, Scoring, StepBatch,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_kv::KvSlot;

const EPS: f32 = 1e-6;
/// Positions of the rope tables.
const POSITIONS: usize = 200;

const LAYOUTS: [HeadLayout; 10] = [
    HeadLayout::new(1, 1, 16),
    HeadLayout::new(4, 2, 32),
    HeadLayout::new(3, 3, 64),
    HeadLayout::new(4, 1, 80),
    HeadLayout::new(2, 2, 96),
    HeadLayout::new(8, 1, 128),
    HeadLayout::new(32, 8, 128),
    HeadLayout::new(2, 1, 256),
    HeadLayout::new(16, 2, 512),
    // A layer that reads the keys and values of another.
    HeadLayout::new(3, 0, 64),
];

pub fn check<B: Backend, D: Backend>(suite: &mut OpSuite<'_, B, D>, dice: &mut Dice) -> Result<()> {
    let dtype = suite.dtype;
    let layouts = if suite.effort == CheckEffort::Quick { &LAYOUTS[1..2] } else { &LAYOUTS[..] };
    for &heads in layouts {
        let rows = dice.pick(&[1, 2, 7, 33]);
        let qkv = numbers(dice, dtype, rows * heads.qkv_width());
        for kind in HeadKind::ALL {
            let (_, count) = kind.place(heads);
            if count == 0 {
                continue;
            }
            for span in [HeadNormSpan::Head, HeadNormSpan::EachHead, HeadNormSpan::AllHeads] {
                for centred in [false, true] {
                    let form = HeadNormForm { span, centred };
                    let weight = dice.numbers(form.widths(heads, count)[1]);
                    suite.hold("head_norm", &HeadNormCase { dtype, heads, kind, form, qkv: qkv.clone(), weight })?;
                }
            }
        }
        let whole = heads.head_dim;
        for rotary in [whole, whole / 2, (whole * 2 / 5).next_multiple_of(2)] {
            let (cos, sin) = (dice.numbers(POSITIONS * rotary / 2), dice.numbers(POSITIONS * rotary / 2));
            let positions = (0..rows).map(|_| dice.within(0, POSITIONS as u32 - 1)).collect();
            let table = RopeTable { rotary, pairs: dice.pick(&PAIRS), keys: dice.pick(&[true, false]), cos, sin };
            suite.hold("rope", &RopeCase { dtype, heads, positions, qkv: qkv.clone(), table })?;
        }
        // Models have norms of queries and keys, of values too, or of none.
        let kinds: [&[HeadKind]; 3] = [&[], &[HeadKind::Query, HeadKind::Key], &HeadKind::ALL];
        for (kinds, rotary) in kinds.into_iter().zip([whole, whole, whole / 2]).filter(|_| heads.kv_heads > 0) {
            let norms = kinds.iter().map(|&kind| (kind, dice.numbers(heads.head_dim))).collect();
            let (cos, sin) = (dice.numbers(POSITIONS * rotary / 2), dice.numbers(POSITIONS * rotary / 2));
            let table = RopeTable { rotary, pairs: dice.pick(&PAIRS), keys: dice.pick(&[true, false]), cos, sin };
            for kv in [KvDtype::Model, KvDtype::Fp8] {
                let (qkv, table, norms) = (qkv.clone(), table.clone(), Clone::clone(&norms));
                suite.hold("prepare_heads", &PrepareHeadsCase { dtype, heads, kv, rows, qkv, norms, table })?;
            }
        }
    }
    Ok(())
}

const PAIRS: [RopePairs; 2] = [RopePairs::Halves, RopePairs::Neighbours];

/// Where element `i` of `table.rotary` rotated ones finds its angle, of a pair, and the other element; and the sign of
/// that one's product.
fn pair(table: &RopeTable, i: usize) -> (usize, usize, f64) {
    let half = table.rotary / 2;
    let (angle, other, is_second) = match table.pairs {
        RopePairs::Halves => (i % half, (i + half) % table.rotary, i >= half),
        RopePairs::Neighbours => (i / 2, i ^ 1, i % 2 == 1),
    };
    (angle, other, if is_second { 1.0 } else { -1.0 })
}

/// Element `i` of the rotated part `x` of a head at `position`, and the sizes of the products that it is.
pub fn rotated(table: &RopeTable, position: usize, x: &[f32], i: usize) -> (f64, f64) {
    let (angle, other, sign) = pair(table, i);
    let angle = position * table.rotary / 2 + angle;
    let [cos, sin] = [&table.cos, &table.sin].map(|table| f64::from(table[angle]));
    let (own, other) = (f64::from(x[i]) * cos, f64::from(x[other]) * sin);
    (own + sign * other, own.abs() + other.abs())
}

/// The row, head and index in the head of element `at` of `qkv`.
fn place(heads: HeadLayout, at: usize) -> (usize, usize, usize) {
    let (row, i) = (at / heads.qkv_width(), at % heads.qkv_width());
    (row, i / heads.head_dim, i % heads.head_dim)
}

struct HeadNormCase {
    dtype: Dtype,
    heads: HeadLayout,
    kind: HeadKind,
    form: HeadNormForm,
    qkv: Vec<f32>,
    weight: Vec<f32>,
}

impl HeadNormCase {
    /// Elements that are normalised together.
    fn unit(&self) -> usize {
        self.form.widths(self.heads, self.kind.place(self.heads).1)[0]
    }
}

impl OpCase for HeadNormCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let width = self.heads.qkv_width();
        let rows = self.qkv.len() / width;
        let mut qkv = buffer(backend, ActivationDtype::Operands(self.dtype), rows, width, &self.qkv)?;
        let weight = vector(backend, &self.weight)?;
        backend.head_norm(&mut qkv, self.heads, self.kind, self.form, &weight, EPS);
        backend.read(&qkv, rows)
    }

    /// Like `rms_norm` or `layer_norm`, whose mean rounds too; heads of the other kinds do not change.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (_, head, _) = place(self.heads, at);
        let (first, count) = self.kind.place(self.heads);
        let normed = (first..first + count).contains(&head);
        let n = self.unit() as f64;
        let mean = if self.form.centred { 4.0 * (n + 12.0) * F32 } else { 0.0 };
        if normed { rounded(self.dtype, y) + y.abs() * (n + 12.0) * F32 + mean } else { 0.0 }
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let mut exact: Vec<f64> = self.qkv.iter().map(|&x| f64::from(x)).collect();
        let (first, count) = self.kind.place(self.heads);
        let [from, len] = [first, count].map(|heads| heads * self.heads.head_dim);
        for (row, exact) in exact.chunks_exact_mut(self.heads.qkv_width()).enumerate() {
            let (unit, row) = (self.unit(), &self.qkv[row * self.heads.qkv_width() + from..][..len]);
            let parts = exact[from..from + len].chunks_exact_mut(unit).zip(self.weight.chunks_exact(unit).cycle());
            for ((exact, weight), x) in parts.zip(row.chunks_exact(unit)) {
                let mean =
                    if self.form.centred { x.iter().map(|&x| f64::from(x)).sum::<f64>() / unit as f64 } else { 0.0 };
                let squares: f64 = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
                let root = (squares / unit as f64 + f64::from(EPS)).sqrt();
                exact.iter_mut().zip(weight).for_each(|(y, &weight)| *y = (*y - mean) / root * f64::from(weight));
            }
        }
        Some(exact)
    }

    fn name(&self) -> String {
        let rows = self.qkv.len() / self.heads.qkv_width();
        let centred = if self.form.centred { ", centred" } else { "" };
        format!("{rows} rows, {:?} heads of {}, {:?}{centred}", self.kind, self.heads, self.form.span)
    }
}

struct RopeCase {
    dtype: Dtype,
    heads: HeadLayout,
    positions: Vec<u32>,
    qkv: Vec<f32>,
    table: RopeTable,
}

impl OpCase for RopeCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let table = backend.rope_table(&self.table)?;
        let mut step = backend.step(&[self.heads], self.dtype, ANY_VOCAB)?;
        let shape = backend.load(&mut step, rows_at(&self.positions))?;
        let width = self.heads.qkv_width();
        let mut qkv = buffer(backend, ActivationDtype::Operands(self.dtype), shape.rows, width, &self.qkv)?;
        run(backend, &mut step, shape, |backend, step| backend.rope(&mut qkv, self.heads, &table, step))?;
        backend.read(&qkv, self.positions.len())
    }

    /// Two products and their sum, each rounded once or not at all, on both sides; elements that are not rotated do not
    /// change.
    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let (row, head, i) = place(self.heads, at);
        if head >= self.heads.q_heads + self.heads.kv_heads || i >= self.table.rotary {
            return 0.0;
        }
        let (_, products) =
            rotated(&self.table, self.positions[row] as usize, &self.qkv[at - i..][..self.table.rotary], i);
        rounded(self.dtype, y) + 6.0 * F32 * products
    }

    fn exact(&self) -> Option<Vec<f64>> {
        let turned = self.heads.q_heads + if self.table.keys { self.heads.kv_heads } else { 0 };
        let value = |at: usize| {
            let (row, head, i) = place(self.heads, at);
            if head >= turned || i >= self.table.rotary {
                return f64::from(self.qkv[at]);
            }
            rotated(&self.table, self.positions[row] as usize, &self.qkv[at - i..][..self.table.rotary], i).0
        };
        Some((0..self.qkv.len()).map(value).collect())
    }

    fn name(&self) -> String {
        let (rows, rotary) = (self.positions.len(), self.table.rotary);
        format!("{rows} rows, {rotary} rotated by {:?} of {}", self.table.pairs, self.heads)
    }
}

/// Every row has a page of its own, and some position; what is stored is checked by attention of rows that
/// see themselves alone, whose results are behind those of `qkv`.
struct PrepareHeadsCase {
    dtype: Dtype,
    heads: HeadLayout,
    kv: KvDtype,
    rows: usize,
    qkv: Vec<f32>,
    norms: Vec<(HeadKind, Vec<f32>)>,
    table: RopeTable,
}

/// The position of row `row`.
fn position(row: usize) -> u32 {
    (row * 5 % POSITIONS) as u32
}

impl PrepareHeadsCase {
    /// Element `i` of head `head` of a row after its norm, if it has one, and whether it has.
    fn normed(&self, row: usize, head: usize, i: usize) -> (f64, bool) {
        let HeadLayout { head_dim, .. } = self.heads;
        let x = &self.qkv[row * self.heads.qkv_width() + head * head_dim..][..head_dim];
        let is_in = |kind: HeadKind| {
            let (first, count) = kind.place(self.heads);
            (first..first + count).contains(&head)
        };
        let Some((_, weight)) = self.norms.iter().find(|norm| is_in(norm.0)) else { return (f64::from(x[i]), false) };
        (f64::from(x[i]) / root_mean_square(x, EPS) * f64::from(weight[i]), true)
    }

    /// What element `i` may differ by before it is rotated: a sum of squares in another order may round it to a
    /// neighbour.
    fn before_rope(&self, row: usize, head: usize, i: usize) -> (f64, f64) {
        let (y, is_normed) = self.normed(row, head, i);
        let n = self.heads.head_dim as f64;
        (y, if is_normed { 2.0 * rounded(self.dtype, y) + y.abs() * (n + 12.0) * F32 } else { 0.0 })
    }
}

impl OpCase for PrepareHeadsCase {
    fn run<B: Backend>(&self, backend: &mut B) -> Result<Vec<f32>> {
        backend.set_kv_dtype(self.kv);
        let (layer, holds) = (LayerIx(1), ActivationDtype::Operands(self.dtype));
        let mut kv = backend.kv(&KvShape::uniform(2, self.heads, self.dtype, self.rows))?;
        let pages: Vec<PageId> = (0..self.rows).rev().map(PageId::new).collect();
        let plan = solitary(&pages, &hints(backend, self.heads, self.dtype, None), backend.page_tokens());
        let slots = pages.iter().map(|&page| KvSlot { page, slot: 0 }).collect();
        let positions: Vec<u32> = (0..self.rows).map(position).collect();
        let batch = StepBatch { slots: vec![slots], plans: vec![plan], ..rows_at(&positions) };
        let table = backend.rope_table(&self.table)?;
        let mut norms = [None, None, None];
        for (norm, kind) in norms.iter_mut().zip(HeadKind::ALL) {
            let weight = self.norms.iter().find(|norm| norm.0 == kind);
            *norm = weight.map(|(_, weight)| vector(backend, weight)).transpose()?;
        }
        let norms = norms.each_ref().map(Option::as_ref);

        let mut step = backend.step(&[self.heads], self.dtype, ANY_VOCAB)?;
        let shape = backend.load(&mut step, batch)?;
        let mut qkv = buffer(backend, holds, shape.rows, self.heads.qkv_width(), &self.qkv)?;
        let mut out = buffer(backend, holds, shape.rows, self.heads.q_width(), &[])?;
        let (heads, ropes) = (self.heads, [Some(&table), None]);
        let steps = HeadSteps {
            heads,
            norms,
            form: HeadNormForm::PLAIN,
            eps: EPS,
            norms_after_rope: false,
            clip: None,
            ropes,
            layer,
            stores: true,
        };
        run(backend, &mut step, shape, |backend, step| {
            backend.prepare_heads(&mut qkv, &steps, &mut kv, step);
            backend.tree_attention(&mut out, &qkv, &kv, layer, step, 0, Scoring::scaled(1.0));
        })?;
        backend.set_kv_dtype(KvDtype::Model);
        let mut found = backend.read(&qkv, self.rows)?;
        found.extend(backend.read(&out, self.rows)?);
        Ok(found)
    }

    fn tolerance(&self, at: usize, y: f64) -> f64 {
        let HeadLayout { q_heads, kv_heads, head_dim, .. } = self.heads;
        let Some(at) = at.checked_sub(self.rows * self.heads.qkv_width()) else {
            let (row, head, i) = place(self.heads, at);
            let (x, differs) = self.before_rope(row, head, i);
            let turned = q_heads + if self.table.keys { kv_heads } else { 0 };
            if head >= turned || i >= self.table.rotary {
                return differs;
            }
            let (angle, other, _) = pair(&self.table, i);
            let angle = position(row) as usize * self.table.rotary / 2 + angle;
            let (cos, sin) = (f64::from(self.table.cos[angle]).abs(), f64::from(self.table.sin[angle]).abs());
            let (other, others) = self.before_rope(row, head, other);
            // As for `rope`, and what both may differ by before.
            let products = x.abs() * cos + other.abs() * sin;
            return differs * cos + others * sin + 2.0 * rounded(self.dtype, y) + 6.0 * F32 * products;
        };
        // The softmax of one score is 1; a product and a quotient by it may be rounded.
        let (row, i) = (at / self.heads.q_width(), at % self.heads.q_width());
        let value = q_heads + kv_heads + i / head_dim / self.heads.group();
        let (_, differs) = self.before_rope(row, value, i % head_dim);
        // A neighbour may also round to another number of e4m3, which has three bits after the first.
        let rounds = match self.kv {
            KvDtype::Fp8 if differs > 0.0 => y.abs() / 8.0 + 2f64.powi(-9),
            KvDtype::Fp8 | KvDtype::Model => 0.0,
        };
        differs + rounds + rounded(self.dtype, y)
    }

    fn name(&self) -> String {
        let kinds: Vec<HeadKind> = self.norms.iter().map(|norm| norm.0).collect();
        let (RopeTable { rotary, pairs, .. }, kv) = (&self.table, self.kv);
        format!("{} rows, {}, norms of {kinds:?}, {rotary} rotated by {pairs:?}, kv dtype {kv}", self.rows, self.heads)
    }
}
