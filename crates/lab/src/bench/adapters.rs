//! `bench adapters`: decode steps of a model's shape with random weights in which rows have low-rank adapters, one or
//! several in a step, beside the same steps without any and beside the physical lower bound. Steps are submitted to the
//! model itself, without an engine: branches of one prompt, each one row.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::floor::{FloorArgs, FloorRows, FloorTokens, StepFloor};
use super::tables::{print, rounded};
use super::workload_file::read_shape;
use offshoot_args::words::{DTYPES, one_of};
use offshoot_args::{WeightArgs, whole};
use offshoot_backend::{
    AdapterSlot, Dtype, MOST_ADAPTERS, MOST_RANK, Pick, RowToken, SampleRequest, StepBatch, StepRequests, StepShape,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{GroupIx, TokenId};
use offshoot_core::out;
use offshoot_kv::plan::{NewPage, PlanHints, Planner};
use offshoot_kv::{PagePool, PrefixTree, StepRow};
use offshoot_launch::{DeviceBackend, ModelSource, OnDevice};
use offshoot_model::{Adapter, KvRoom, RunnerFacts, StepLimits, StepRunner};

// The options of `bench adapters`.
#[derive(Clone, Debug, Args)]
pub struct AdapterOptions {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Shape of the model, whose layers all attend to all tokens: llama3-8b, or one of the file's
    #[arg(long, value_name = "NAME", default_value = "llama3-8b")]
    pub shape: String,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Dtype of the random weights
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: Dtype,
    #[command(flatten)]
    pub weights: WeightArgs,
    /// Branches, each a row of every step
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = whole::<usize>(1..=1 << 14),
        default_value = "8,64,256"
    )]
    pub rows: Vec<usize>,
    /// Different adapters in a step, among which the rows are divided; 0: none. One number after the other, which may
    /// come again: with 0,1,0 each can be compared with its neighbours
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = whole::<usize>(0..=MOST_ADAPTERS as u64),
        default_value = "0,1,8,0"
    )]
    pub adapters: Vec<usize>,
    /// Rank of the adapters, which change every linear layer but the output layer
    #[arg(long, value_name = "R", value_parser = whole::<usize>(1..=MOST_RANK as u64), default_value_t = 16)]
    pub rank: usize,
    /// Tokens of the prompt that the branches share
    #[arg(long, value_name = "P", value_parser = whole::<usize>(1..=1 << 15), default_value_t = 512)]
    pub prompt: usize,
    /// Steps that are timed
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=1 << 12), default_value_t = 64)]
    pub steps: usize,
    /// Use the deterministic mode
    #[arg(long)]
    pub deterministic: bool,
    #[command(flatten)]
    pub floor: FloorArgs,
}

/// Steps before those that are timed: enough for a shape to be tuned and captured as a graph.
const WARM_UP: usize = 8;

/// Steps of one number of rows and of adapters, measured.
#[derive(Debug, Serialize)]
struct MeasuredSteps<'a> {
    shape: &'a str,
    device: &'a str,
    dtype: Dtype,
    deterministic: bool,
    prompt: usize,
    rows: usize,
    adapters: usize,
    rank: usize,
    step_ms: f64,
    floor_ms: f64,
    tok_s: f64,
    floor_tok_s: f64,
    /// The time of a step over that of the first steps with as many rows and no adapter; `None` before them.
    over_none: Option<f64>,
}

impl fmt::Display for MeasuredSteps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeasuredSteps { rows, adapters, step_ms, floor_ms, tok_s, over_none, .. } = self;
        let over = over_none.map_or("-".to_owned(), |over| format!("{over:.3}"));
        let share = 100.0 * floor_ms / step_ms;
        write!(f, "{rows:>6} {adapters:>8} {step_ms:>9.3} {floor_ms:>9.3} {share:>5.0} % {tok_s:>9.0} {over:>10}")
    }
}

impl OnDevice for &AdapterOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let config = read_shape(self.file.as_deref(), &self.shape)?;
        let config = config.with(self.weights.into(), Path::new("the shape"))?;
        let context = config.context;
        let tokens = self.prompt + WARM_UP + self.steps + 1;
        if tokens > context {
            let what = "a prompt with the tokens of all steps".to_owned();
            return Err(Error::ContextTooLong { what, tokens, context });
        }
        let source = ModelSource::random(&config, self.dtype);
        let (held, rates) = self.floor.of_model(&mut backend, source)?;
        let adapter = Adapter::random(&config, self.rank, 1).without_head();
        let mut model = source.load(&mut backend)?.on(backend);
        let most = self.rows.iter().copied().max().unwrap_or(1);
        let decode = Decode::prepare(&mut *model, self, most)?;
        for slot in 0..self.adapters.iter().copied().max().unwrap_or(0) {
            model.load_adapter(slot_of(slot), &adapter)?;
        }
        let RunnerFacts { device, kv_bytes_per_token, state_bytes, .. } = model.facts();
        let floor = StepFloor::new(&held, self.dtype, (kv_bytes_per_token, state_bytes), rates);
        let floor = floor.with_adapters(adapter.parameters());
        if !self.json {
            out::line(format_args!("{device}: {rates}"))?;
            out::line(format_args!(
                "{:>6} {:>8} {:>9} {:>9} {:>7} {:>9} {:>10}",
                "rows", "adapters", "step ms", "floor ms", "share", "tok/s", "over none"
            ))?;
        }
        for &rows in &self.rows {
            let mut none: Option<f64> = None;
            for &adapters in &self.adapters {
                let adapters = adapters.min(rows);
                let seconds = decode.measure(&mut *model, rows, adapters, self.steps)?;
                if adapters == 0 {
                    none.get_or_insert(seconds);
                }
                let floor_s = self.floor_of(&floor, rows, adapters);
                let measured = MeasuredSteps {
                    shape: &self.shape,
                    device: &device,
                    dtype: self.dtype,
                    deterministic: self.deterministic,
                    prompt: self.prompt,
                    rows,
                    adapters,
                    rank: self.rank,
                    step_ms: rounded(1e3 * seconds, 4),
                    floor_ms: rounded(1e3 * floor_s, 4),
                    tok_s: rounded(rows as f64 / seconds, 0),
                    floor_tok_s: rounded(rows as f64 / floor_s, 0),
                    over_none: none.map(|none| rounded(seconds / none, 4)),
                };
                print(self.json, &measured)?;
            }
        }
        Ok(())
    }
}

impl AdapterOptions {
    /// Seconds that a step takes at least, in the middle of those that are timed.
    fn floor_of(&self, floor: &StepFloor<'_>, rows: usize, adapters: usize) -> f64 {
        let (prompt, own) = (self.prompt as f64, 1.0 + WARM_UP as f64 + self.steps as f64 / 2.0);
        let all = rows as f64;
        let shared = FloorTokens { stored: prompt, seen: all * prompt };
        let tokens = [shared, FloorTokens { stored: all * own, seen: all * own }];
        floor.seconds(FloorRows { rows, logit_rows: rows, branches: rows, adapters }, |_| tokens)
    }
}

fn slot_of(adapter: usize) -> AdapterSlot {
    u16::try_from(adapter).ok().and_then(AdapterSlot::new).expect("at most `MOST_ADAPTERS` are asked for")
}

/// Where the branches of a prompt have their keys and values.
struct Decode {
    page_tokens: u32,
    pages: usize,
    hints: PlanHints,
    /// Tokens of the prompt, and of each branch at the end.
    prompt: usize,
    own: usize,
}

impl Decode {
    /// Prepares the model for steps of so many rows at most.
    fn prepare(model: &mut dyn StepRunner, options: &AdapterOptions, most_rows: usize) -> Result<Self> {
        let RunnerFacts { plan_hints, state_bytes, page_tokens, .. } = model.facts();
        if plan_hints.len() != 1 || plan_hints[0].window.is_some() || state_bytes > 0 {
            let found = format!("{:?}, with windows or states", model.config().family);
            return Err(Error::value("--shape", "a model whose layers all attend to all tokens alike", found));
        }
        let AdapterOptions { prompt, steps, deterministic, .. } = *options;
        let own = WARM_UP + steps + 1;
        let of_tokens = |tokens: usize| tokens / page_tokens as usize + 2;
        let pages = of_tokens(prompt) + most_rows * of_tokens(own);
        let largest = StepShape {
            rows: most_rows.max(prompt),
            logit_rows: most_rows,
            samples: true,
            adapters: options.adapters.iter().any(|&adapters| adapters > 0),
            absorbs: false,
            copies: Default::default(),
        };
        model.prepare(StepLimits { deterministic, longest: prompt + own, largest, keeps_routes: false })?;
        model.allocate(KvRoom { pages, ..KvRoom::default() })?;
        // Deterministic attention has other tiles.
        let hints = model.facts().plan_hints.swap_remove(0);
        Ok(Decode { page_tokens, pages, hints, prompt, own })
    }

    /// The step of these rows, each of which is sampled from.
    fn batch(&self, tree: &PrefixTree, rows: &[StepRow]) -> StepBatch {
        StepBatch {
            tokens: vec![RowToken::Known(TokenId(0)); rows.len()],
            slots: vec![rows.iter().map(|row| tree.slot(row.segment, row.position)).collect()],
            positions: rows.iter().map(|row| row.position).collect(),
            logit_rows: (0..rows.len() as u32).collect(),
            plans: vec![Planner::default().plan(&tree.forest(rows), &self.hints)],
            state_runs: Vec::new(),
            adapters: Vec::new(),
            requests: vec![SampleRequest::of(Pick::Greedy); rows.len()].into(),
            expansions: None,
        }
    }

    /// Computes the prompt without adapters, then `WARM_UP` steps and `timed` more of `count` rows that are divided
    /// among so many adapters; the mean seconds of the latter.
    fn measure(&self, model: &mut dyn StepRunner, count: usize, adapters: usize, timed: usize) -> Result<f64> {
        let short = |_| Error::Internal("the pool of the branches is too small".to_owned());
        let (mut pool, mut tree) = (PagePool::new(self.pages), PrefixTree::new(self.page_tokens));
        let trunk = tree.admit(&mut pool, &vec![TokenId(0); self.prompt]).map_err(short)?;
        let end = tree.end(trunk);
        let rows: Vec<StepRow> = (0..end).map(|position| StepRow { segment: trunk, position }).collect();
        let prompt = StepBatch { logit_rows: Vec::new(), requests: StepRequests::None, ..self.batch(&tree, &rows) };
        model.submit(prompt).map_err(|failure| failure.error)?;
        model.collect()?;
        tree.mark_computed(trunk, end);

        let mut rows = Vec::with_capacity(count);
        for _ in 0..count {
            let segment = tree.fork(trunk);
            tree.append(&mut pool, segment, &[TokenId(0)]).map_err(short)?;
            rows.push(StepRow { segment, position: end });
        }
        tree.depth_first(&mut rows);
        let first = StepBatch { adapters: adapters_of(count, adapters), ..self.batch(&tree, &rows) };
        for row in &rows {
            tree.append(&mut pool, row.segment, &vec![TokenId(0); self.own - 1]).map_err(short)?;
        }
        let new_pages = |step: u32| -> Vec<NewPage> {
            let slots = (0u32..).zip(&rows).map(|(row, at)| (row, tree.slot(at.segment, end + step)));
            let firsts = slots.filter(|(_, slot)| slot.slot == 0);
            firsts.map(|(row, slot)| NewPage { group: GroupIx(0), row, page: slot.page }).collect()
        };
        let uniforms = vec![0.0; count];
        model.submit(first).map_err(|failure| failure.error)?;
        let mut begun = Instant::now();
        // Each step is submitted while the one before it is computed.
        for step in 1..=(WARM_UP + timed) as u32 {
            model.submit_advanced(&uniforms, &new_pages(step)).map_err(|failure| failure.error)?;
            model.collect()?;
            if step as usize == WARM_UP {
                begun = Instant::now();
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        model.collect()?;
        Ok(seconds / timed as f64)
    }
}

/// The adapters of rows that are divided evenly among so many of them, in runs.
fn adapters_of(rows: usize, adapters: usize) -> Vec<Option<AdapterSlot>> {
    match adapters {
        0 => Vec::new(),
        _ => (0..rows).map(|row| Some(slot_of(row * adapters / rows))).collect(),
    }
}
