//! `bench attention --trees`: tree attention of one decode step on any device, one JSON line per tree: time, physical
//! lower bound, and error relative to f64.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use rayon::prelude::*;
use serde::Serialize;

use super::floor::FloorArgs;
use super::latent_trees::{TimedForm, floor_seconds};
use super::tables::{median, print_json, rounded};
use super::tree_forms::{MeasuredTreeForms, measure_forms};
use super::trees::{PagedTree, TreeSpec, read_trees};
use offshoot_args::rate;
use offshoot_args::words::{KV_DTYPES, PLANNERS, one_of};
use offshoot_backend::{
    ActivationDtype, Backend, Dtype, KvDtype, KvShape, Rates, Scoring, StepBatch, Timed, WeightFormat,
};
use offshoot_cases::case::{buffer, rows_at, run};
use offshoot_cases::dense::{dense, relative_error};
use offshoot_cases::setting::hints;
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::bytes;
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_fixtures::forests::context;
use offshoot_kv::KvSlot;
use offshoot_kv::plan::Planner;
use offshoot_launch::{DeviceBackend, OnDevice};

/// Timed runs of a tree; the median counts.
pub(super) const TIMES: usize = 30;
/// Bytes of keys and values of which a CPU's caches keep nothing, and the most copies of small ones.
const CACHES_BYTES: f64 = 64e6;
const MOST_COPIES: f64 = 16.0;
/// Number of leaves with results checked against f64, evenly spread.
const CHECKED: usize = 8;
/// Number of tokens with different keys and values; a prime, so that a page's neighbours differ from those of other
/// pages.
const DIFFERENT: usize = 2039;

// The options of `bench attention --trees`.
#[derive(Clone, Debug, Args)]
pub struct TreeOptions {
    /// Trees to measure, one JSON object per line; prints JSON lines
    #[arg(long, value_name = "FILE")]
    pub trees: PathBuf,
    /// Only trees of these names
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// How shared prefixes are attended to
    #[arg(long = "plan", value_parser = one_of(PLANNERS), default_value = "balanced")]
    pub planner: Planner,
    #[command(flatten)]
    pub floor: FloorArgs,
    /// Make a row's result depend on that row alone, to the last bit
    #[arg(long)]
    pub deterministic: bool,
    /// Storage format of keys and values; errors are relative to unrounded keys and values
    #[arg(long = "kv-dtype", value_parser = one_of(KV_DTYPES), value_name = "DTYPE", default_value = "model")]
    pub kv: KvDtype,
    /// The form in which trees of latents are attended to; the floor is that of the cheaper form of each node
    #[arg(long, value_enum, default_value_t)]
    pub form: TimedForm,
    /// Leave in caches what the run before has read, instead of writing over a GPU's second-level cache before each run
    #[arg(long)]
    pub warm: bool,
    /// Standard deviation of the attention scores
    #[arg(long, value_name = "TIMES", value_parser = sharpness, default_value = "1")]
    pub sharpness: f32,
}

/// A positive number; the limit keeps queries finite in 16 bits.
fn sharpness(text: &str) -> Result<f32> {
    const MOST: f64 = 1e4;
    match rate(text)? {
        sharpness if sharpness > MOST => Err(Error::value("value", format!("a number up to {MOST}"), text)),
        sharpness => Ok(sharpness as f32),
    }
}

/// One tree, measured.
#[derive(Debug, Serialize)]
struct MeasuredTree<'a> {
    workload: &'a str,
    us: f64,
    min_us: f64,
    floor_us: f64,
    /// Of a kernel that does nothing, timed likewise; not in the floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    empty_us: Option<f64>,
    ratio: f64,
    rel_err: f64,
    bytes: f64,
    flops: f64,
    device: String,
    plan: Planner,
    /// Of latents, and the floor if all nodes are in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<TimedForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    form_floor_us: Option<f64>,
    /// Of the forms that the planner chooses: the map of what is read as latents, which is in `us`. The error is then
    /// relative to the tree all absorbed.
    #[serde(skip_serializing_if = "Option::is_none")]
    map_us: Option<f64>,
    deterministic: bool,
    warm: bool,
    kv_dtype: KvDtype,
    sharpness: f32,
    items: usize,
}

/// Measures all trees, printing each result as soon as it is known.
impl OnDevice for &TreeOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let options = self;
        let mut trees = read_trees(&options.trees)?;
        if let Some(name) = options.only.iter().find(|name| trees.iter().all(|tree| tree.name != **name)) {
            return Err(Error::value("--only", format!("names of trees of {}", options.trees.display()), name.clone()));
        }
        trees.retain(|tree| options.only.is_empty() || options.only.contains(&tree.name));
        for tree in &mut trees {
            tree.heads = tree.latents.map_or(tree.heads, |latents| options.form.heads(latents));
        }
        if options.deterministic {
            backend.set_batch_invariant();
        }
        if options.warm {
            backend.keep_caches();
        }
        if let Some(first) = trees.first() {
            options.kv.set_on(&mut backend, std::iter::once(first.heads), first.dtype);
        }
        let mut known = HashMap::new();
        for tree in &trees {
            let rates = match known.entry(tree.dtype) {
                Entry::Occupied(rates) => *rates.get(),
                Entry::Vacant(new) => {
                    *new.insert(options.floor.rates(&mut backend, tree.dtype, WeightFormat::Dense(tree.dtype))?)
                }
            };
            print_json(&measure(&mut backend, tree, options, rates)?)?;
        }
        Ok(())
    }
}

fn measure<'a, B: Timed>(
    backend: &mut B,
    tree: &'a TreeSpec,
    options: &TreeOptions,
    rates: Rates,
) -> Result<MeasuredTree<'a>> {
    let TreeOptions { planner, deterministic, warm, kv: kv_dtype, form, sharpness, .. } = *options;
    let element_bytes = backend.kv_element_bytes(tree.heads, tree.dtype);
    let (tree_bytes, free) = (tree.bytes(element_bytes), backend.free_bytes()?);
    if tree_bytes > free as f64 {
        let expected = format!("at least {}", bytes(tree_bytes as u64));
        return Err(Error::value(format!("free memory for {}", tree.name), expected, bytes(free as u64)));
    }
    let paged = tree.lay_out(backend.page_tokens())?;
    let plan = planner.plan(&paged.forest, &hints(backend, tree.heads, tree.dtype, None));
    let (items, rows) = (plan.items.len(), plan.row_positions.len());
    let numbers = Numbers::draw(tree, rows, sharpness);
    // As in the layers of a model, none is in a CPU's caches when its turn comes; a GPU's are written over.
    let copies = if B::IS_ASYNC { 1 } else { (CACHES_BYTES / tree_bytes).ceil().clamp(1.0, MOST_COPIES) as usize };
    let kvs = (0..copies).map(|_| filled(backend, tree, &paged, &numbers)).collect::<Result<Vec<_>>>()?;

    let heads = tree.heads;
    let scale = tree.scale();
    let mut step = backend.step(&[heads], tree.dtype, 1)?;
    let batch = rows_at(&plan.row_positions);
    let shape = backend.load(&mut step, StepBatch { plans: vec![plan], ..batch })?;
    let operands = ActivationDtype::Operands(tree.dtype);
    let qkv = buffer(backend, operands, shape.rows, heads.qkv_width(), &numbers.queries)?;
    let mut out = buffer(backend, operands, shape.rows, heads.out_width(), &[])?;
    let mut turns = kvs.iter().cycle();
    let us = backend.time(&mut step, shape, TIMES, |backend, step| {
        let kv = turns.next().expect("a cycle has no end");
        backend.tree_attention(&mut out, &qkv, kv, LAYER, step, 0, Scoring::scaled(scale));
        Ok(())
    })?;
    let found = backend.read(&out, rows)?;
    let mut measured = MeasuredTreeForms { us, map_us: 0.0, difference: numbers.error(tree, &paged, &found), items };
    let chosen = tree.latents.filter(|_| form == TimedForm::Cheapest);
    if let Some(latents) = chosen {
        measured = measure_forms(backend, tree, latents, (&paged, &kvs[0]), planner, sharpness)?;
    }
    let MeasuredTreeForms { us, map_us, difference, items } = measured;
    let empty_us = backend.time_nothing(TIMES)?.map(|us| rounded(median(us), 2));
    let (least, median) = (us.iter().copied().fold(f64::INFINITY, f64::min), median(us));
    let of_form_us = (tree_bytes / rates.bytes_per_s).max(tree.flops() / rates.flops_per_s) * 1e6;
    let cheaper_us = tree.latents.map(|latents| floor_seconds(tree, latents, element_bytes, rates) * 1e6);
    let floor_us = cheaper_us.unwrap_or(of_form_us);
    Ok(MeasuredTree {
        workload: &tree.name,
        us: rounded(median, 2),
        min_us: rounded(least, 2),
        floor_us: rounded(floor_us, 2),
        empty_us,
        ratio: rounded(median / floor_us, 2),
        rel_err: rounded(difference, 8),
        bytes: tree_bytes,
        flops: tree.flops(),
        device: backend.describe(),
        plan: planner,
        form: tree.latents.map(|_| form),
        form_floor_us: tree.latents.filter(|_| chosen.is_none()).map(|_| rounded(of_form_us, 2)),
        map_us: chosen.map(|_| rounded(map_us, 2)),
        deterministic,
        warm,
        kv_dtype,
        sharpness,
        items,
    })
}

pub(super) const LAYER: LayerIx = LayerIx(0);

impl TreeSpec {
    fn scale(&self) -> f32 {
        (self.heads.head_dim as f32).powf(-0.5)
    }
}

/// Queries of all rows, and keys and values of some tokens, which repeat; of variance 1, rounded to the dtype.
struct Numbers {
    /// `[rows, qkv width]`, keys and values zero.
    queries: Vec<f32>,
    /// `[DIFFERENT, qkv width]`, queries zero.
    stored: Vec<f32>,
}

impl Numbers {
    /// `sharpness`: standard deviation of queries.
    fn draw(tree: &TreeSpec, rows: usize, sharpness: f32) -> Self {
        let heads = tree.heads;
        let queries = drawn(tree.dtype, 1, rows, heads.qkv_width(), 0..heads.q_width(), sharpness);
        let stored = drawn(tree.dtype, 2, DIFFERENT, heads.qkv_width(), heads.q_width()..heads.qkv_width(), 1.0);
        Self { queries, stored }
    }

    /// The row of `stored` in slot `at`.
    fn stored_at(&self, tree: &TreeSpec, page_tokens: u32, at: KvSlot) -> &[f32] {
        let width = tree.heads.qkv_width();
        &self.stored[place(page_tokens, at) * width..][..width]
    }

    /// The relative error of `found`, over some rows.
    fn error(&self, tree: &TreeSpec, paged: &PagedTree, found: &[f32]) -> f64 {
        let last = paged.forest.row_positions.len() - 1;
        let (width, spread) = (tree.heads.out_width(), CHECKED.min(last + 1));
        let rows: Vec<usize> = (0..spread).map(|i| i * last / (spread - 1).max(1)).collect();
        let exact: Vec<Vec<f64>> = rows.par_iter().map(|&row| self.dense(tree, paged, row)).collect();
        let found = rows.iter().map(|&row| &found[row * width..][..width]);
        relative_error(found.zip(exact.iter().map(Vec::as_slice)))
    }

    /// The result of one row by the definition, in f64.
    fn dense(&self, tree: &TreeSpec, paged: &PagedTree, row: usize) -> Vec<f64> {
        let (heads, page_tokens) = (tree.heads, paged.forest.page_tokens);
        let context = context(&paged.forest, row);
        let stored: Vec<&[f32]> =
            context.iter().map(|&at| &self.stored_at(tree, page_tokens, at)[heads.q_width()..]).collect();
        let query = &self.queries[row * heads.qkv_width()..][..heads.q_width()];
        dense(heads, &Scoring::scaled(tree.scale()), query, &stored)
    }
}

/// Which of the different tokens is in slot `at`.
fn place(page_tokens: u32, at: KvSlot) -> usize {
    (at.page.ix() * page_tokens as usize + at.slot as usize) % DIFFERENT
}

/// `[rows, width]`: numbers with this standard deviation in the columns `filled`, zero elsewhere.
pub(super) fn drawn(
    dtype: Dtype,
    seed: u64,
    rows: usize,
    width: usize,
    filled: Range<usize>,
    deviation: f32,
) -> Vec<f32> {
    let mut values = vec![0.0; rows * width];
    values.par_chunks_exact_mut(width).enumerate().for_each(|(row, values)| {
        let mut dice = Dice::new(seed << 32 | row as u64);
        // Uniform in [-1, 1) has a variance of a third.
        values[filled.clone()].iter_mut().for_each(|x| *x = dtype.round(deviation * 3f32.sqrt() * dice.number()));
    });
    values
}

/// Fills every slot of every page with numbers.
fn filled<B: Backend>(backend: &mut B, tree: &TreeSpec, paged: &PagedTree, numbers: &Numbers) -> Result<B::Kv> {
    let heads = tree.heads;
    let shape = KvShape::uniform(1, heads, tree.dtype, paged.pages);
    let mut kv = backend.kv(&shape)?;
    let page_tokens = backend.page_tokens();
    let slots: Vec<KvSlot> = (0..paged.pages)
        .flat_map(|page| (0..page_tokens).map(move |slot| KvSlot { page: PageId::new(page), slot }))
        .collect();
    let mut step = backend.step(&[heads], tree.dtype, 1)?;
    let mut qkv = backend.buffer(heads.qkv_width(), ActivationDtype::Operands(tree.dtype))?;
    let mut written = 0;
    for slots in slots.chunks(DIFFERENT) {
        let rows = slots.len();
        let batch = StepBatch { slots: vec![slots.to_vec()], ..rows_at(&vec![0; rows]) };
        let shape = backend.load(&mut step, batch)?;
        if rows != written {
            backend.resize(&mut qkv, shape.rows)?;
            backend.write(&mut qkv, rows, &numbers.stored[..rows * heads.qkv_width()])?;
            written = rows;
        }
        run(backend, &mut step, shape, |backend, step| backend.kv_append(&mut kv, LAYER, &qkv, step))?;
    }
    Ok(kv)
}
