//! Plans that are advanced instead of rebuilt: decode steps of a tree's leaves, each one token further than the
//! previous one (`Backend::advance`), with keys and values appended on the way, checked against the definition on the
//! longer contexts.

use rayon::prelude::*;

use crate::attention::{LAYER, compared, filled};
use crate::case::{ANY_VOCAB, CheckEffort, buffer, run, vector};
use crate::report::CheckReport;
use crate::setting::{Setting, hints};
use offshoot_backend::{ActivationDtype, Backend, Dtype, KvDtype, Pick, RowToken, SampleRequest, StepBatch};
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{GroupIx, TokenId};
use offshoot_kv::plan::{NewPage, Planner};
use offshoot_kv::{Forest, KvSlot, PagePool, PrefixTree, StepRow};

/// Number of steps; the first is loaded, the others are advanced.
pub const STEPS: u32 = 4;
/// Leaves checked against the definition.
const CHECKED: usize = 12;

pub fn leaves<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let trees = if effort == CheckEffort::Quick { 1 } else { 5 };
    for dtype in Dtype::ALL {
        for seed in 0..trees {
            let number = seed * 3 + dtype.bytes();
            let setting = if seed % 3 == 2 { Setting::fp8(number, dtype) } else { Setting::number(number, dtype) };
            backend.set_kv_dtype(setting.kv);
            let dice = &mut Dice::new(seed as u64);
            let leaves = if effort == CheckEffort::Quick { 5 } else { dice.within(1, 150) };
            let tree = Leaves::grow(backend.page_tokens(), dice, leaves)?;
            let exact = tree.exact(&setting);
            for planner in Planner::ALL {
                let found = tree.walk(backend, &setting, planner, &exact)?;
                let case = format_args!("{leaves} leaves, seed {seed}, {setting}, {planner}");
                report.see("advance", Some(dtype), case, found);
            }
        }
    }
    backend.set_kv_dtype(KvDtype::Model);
    Ok(())
}

/// The leaves of a tree of three levels; each leaf's newest token is a row. Every other leaf starts a new page on its
/// way.
pub struct Leaves {
    forest: Forest,
    /// For each row, the context of the last step: `STEPS - 1` slots more than in the first.
    contexts: Vec<Vec<KvSlot>>,
}

impl Leaves {
    pub fn grow(page: u32, dice: &mut Dice, leaves: u32) -> Result<Self> {
        let mut pool = PagePool::new(40_000);
        let mut tree = PrefixTree::new(page);
        let short = |_| Error::Internal("the pool of the leaves is too small".to_owned());
        let mut text = |longest: u32| -> Vec<TokenId> {
            let len = dice.within(1, longest);
            dice.text(len as usize, ANY_VOCAB)
        };
        let trunk = tree.admit(&mut pool, &text(600)).map_err(short)?;
        tree.mark_computed(trunk, tree.end(trunk));
        let mut rows = Vec::new();
        let mut middle = trunk;
        for leaf in 0..leaves {
            if leaf % 7 == 0 {
                middle = tree.fork(trunk);
                tree.append(&mut pool, middle, &text(80)).map_err(short)?;
                tree.mark_computed(middle, tree.end(middle));
            }
            let at = tree.fork(middle);
            let mut own = text(90);
            let fills_page = |own: &[TokenId]| (tree.end(at) + own.len() as u32 - 1) % page + STEPS > page;
            while fills_page(&own) != leaf.is_multiple_of(2) {
                own.push(TokenId(0));
            }
            tree.append(&mut pool, at, &own).map_err(short)?;
            tree.mark_computed(at, tree.end(at) - 1);
            rows.push(StepRow { segment: at, position: tree.end(at) - 1 });
        }
        tree.depth_first(&mut rows);
        let forest = tree.forest(&rows);
        for row in &rows {
            tree.append(&mut pool, row.segment, &[TokenId(0); STEPS as usize - 1]).map_err(short)?;
        }
        let context = |row: &StepRow| (0..tree.end(row.segment)).map(|at| tree.slot(row.segment, at)).collect();
        Ok(Self { contexts: rows.iter().map(context).collect(), forest })
    }

    /// The batch of the first step.
    pub fn batch<B: Backend>(&self, backend: &B, setting: &Setting, planner: Planner) -> StepBatch {
        let rows = self.contexts.len();
        let positions = self.forest.row_positions.clone();
        StepBatch {
            tokens: vec![RowToken::Known(TokenId(0)); rows],
            slots: vec![self.contexts.iter().zip(&positions).map(|(context, &at)| context[at as usize]).collect()],
            positions,
            logit_rows: (0..rows as u32).collect(),
            plans: vec![planner.plan(&self.forest, &hints(backend, setting.heads, setting.dtype, setting.window))],
            state_runs: Vec::new(),
            adapters: Vec::new(),
            requests: vec![SampleRequest::of(Pick::Greedy); rows].into(),
            expansions: None,
        }
    }

    /// KV memory with the contexts before the first step's rows, and room for all steps.
    pub fn memory<B: Backend>(&self, backend: &mut B, setting: &Setting) -> Result<B::Kv> {
        let before = |context: &Vec<KvSlot>| context[..context.len() - STEPS as usize].to_vec();
        let pages = self.contexts.iter().flatten().map(|slot| slot.page.ix() + 1).max().unwrap_or(0);
        filled(backend, setting, self.contexts.iter().flat_map(before), pages)
    }

    /// Rows that are checked, each in every step.
    fn checked(&self) -> Vec<(usize, usize)> {
        let rows = self.contexts.len();
        let of_row = |row| (0..STEPS as usize).map(move |number| (row, number));
        (0..rows).step_by(rows.div_ceil(CHECKED)).flat_map(of_row).collect()
    }

    /// The results of these rows by the definition.
    fn exact(&self, setting: &Setting) -> Vec<Vec<f64>> {
        self.checked().par_iter().map(|&(row, number)| setting.dense(row, self.context(row, number))).collect()
    }

    /// Runs all steps and checks the results of each against the definition.
    fn walk<B: Backend>(
        &self,
        backend: &mut B,
        setting: &Setting,
        planner: Planner,
        exact: &[Vec<f64>],
    ) -> Result<crate::report::CaseResult> {
        let rows = self.contexts.len();
        let holds = ActivationDtype::Operands(setting.dtype);
        let mut kv = self.memory(backend, setting)?;
        let mut step = backend.step(&[setting.heads], setting.dtype, ANY_VOCAB)?;
        let mut shape = backend.load(&mut step, self.batch(backend, setting, planner))?;
        let mut qkv = buffer(backend, holds, shape.rows, setting.heads.qkv_width(), &[])?;
        let mut out = buffer(backend, holds, shape.rows, setting.heads.q_width(), &[])?;
        let logits = buffer(backend, ActivationDtype::Sums, shape.logit_rows, ANY_VOCAB, &vec![0.0; rows * ANY_VOCAB])?;
        let sinks = setting.sinks().map(|sinks| vector(backend, &sinks)).transpose()?;
        let mut results = Vec::new();
        for number in 0..STEPS as usize {
            if number > 0 {
                shape = backend.advance(&mut step, &vec![0.0; rows], &self.new_pages(number))?;
            }
            backend.write(&mut qkv, rows, &self.inputs(setting, number))?;
            run(backend, &mut step, shape, |backend, step| {
                backend.kv_append(&mut kv, LAYER, &qkv, step);
                backend.tree_attention(&mut out, &qkv, &kv, LAYER, step, 0, setting.scoring(sinks.as_ref()));
                backend.sample(&logits, step);
            })?;
            results.push(backend.read(&out, rows)?);
        }
        let width = setting.heads.q_width();
        let found = self.checked().into_iter().map(|(row, number)| &results[number][row * width..][..width]);
        let pairs: Vec<_> = found.zip(exact.iter().map(Vec::as_slice)).collect();
        Ok(compared(setting, &pairs, true))
    }

    /// The new pages of rows that start one in step `number`.
    pub fn new_pages(&self, number: usize) -> Vec<NewPage> {
        let newest = |row: usize| *self.context(row, number).last().expect("a row sees itself");
        let rows = (0..self.contexts.len()).filter(|&row| newest(row).slot == 0);
        rows.map(|row| NewPage { group: GroupIx(0), row: row as u32, page: newest(row).page }).collect()
    }

    /// The context of row `row` in step `number`.
    pub fn context(&self, row: usize, number: usize) -> &[KvSlot] {
        let context = &self.contexts[row];
        &context[..context.len() + 1 + number - STEPS as usize]
    }

    /// Queries, keys and values of all rows of step `number`.
    pub fn inputs(&self, setting: &Setting, number: usize) -> Vec<f32> {
        let row = |row: usize| {
            let context = self.context(row, number);
            let newest = *context.last().expect("a row sees itself");
            setting.query(row, context.len() - 1).chain(setting.given_kv(newest)).collect::<Vec<_>>()
        };
        (0..self.contexts.len()).into_par_iter().flat_map_iter(row).collect()
    }
}
