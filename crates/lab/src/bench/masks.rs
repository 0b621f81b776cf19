//! `bench masks`: times the sampling of a step's late requests whose rows have sets of allowed tokens: none, one for
//! all rows, one for each row that stays or changes with every step, or one token each. The step computes nothing but
//! its samples; beside each time is that of reading the logits once.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use rayon::prelude::*;
use serde::Serialize;

use super::floor::FloorArgs;
use super::tables::{median, print, rounded};
use offshoot_args::whole;
use offshoot_backend::{
    ActivationDtype, AllowedTokens, Dtype, Filters, Pick, SampleRequest, StepBatch, StepRequests, Uniform, WeightFormat,
};
use offshoot_cases::case::{ANY_HEADS, buffer, rows_at};
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_core::out;
use offshoot_launch::{DeviceBackend, OnDevice};

/// Steps before the timed ones, and those.
const WARM_UP: usize = 4;
const TIMES: usize = 20;

// The options of `bench masks`.
#[derive(Clone, Debug, Args)]
pub struct MaskOptions {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Rows of a step
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 1024)]
    pub rows: usize,
    /// Tokens of the vocabulary
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 151_936)]
    pub vocab: usize,
    /// Sample from the likeliest tokens that together reach the probability P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    #[command(flatten)]
    pub floor: FloorArgs,
}

/// The sets of a step's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Sets {
    None,
    /// One that all rows share.
    Shared,
    /// One for each row, the same in every step.
    Kept,
    /// One for each row, another one in every step.
    New,
    /// As `New`, of one token each.
    Forced,
}

/// Steps of one kind.
#[derive(Debug, Serialize)]
struct MeasuredSets {
    device: String,
    rows: usize,
    vocab: usize,
    top_p: f32,
    sets: Sets,
    /// From the loading of the requests until the samples are read, and the part of it before the samples are
    /// awaited.
    ms: f64,
    host_ms: f64,
    /// Sets that a step copies to the device, in bytes.
    copied_bytes: usize,
    /// The logits, read once.
    floor_ms: f64,
}

impl fmt::Display for MeasuredSets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sets, ms, host_ms, copied_bytes, floor_ms, .. } = self;
        let sets = format!("{sets:?}").to_lowercase();
        write!(f, "{sets:<8} {ms:>9.3} {host_ms:>9.3} {:>9.1} {floor_ms:>9.3}", *copied_bytes as f64 / 1e6)
    }
}

impl OnDevice for &MaskOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let MaskOptions { json, rows, vocab, floor, .. } = *self;
        let rates = floor.rates(&mut backend, Dtype::Bf16, WeightFormat::Dense(Dtype::Bf16))?;
        let floor_ms = (rows * vocab * size_of::<f32>()) as f64 / rates.bytes_per_s * 1e3;
        if !json {
            out::line(format_args!("{}: {rows} rows of {vocab} logits", backend.describe()))?;
            out::line(format_args!("{:<8} {:>9} {:>9} {:>9} {:>9}", "sets", "ms", "host ms", "copied MB", "floor ms"))?;
        }
        let numbers = Uniform { stream: 1, centre: 0.0, reach: 6.0 };
        let logits: Vec<f32> = (0..rows * vocab).into_par_iter().map(|at| numbers.at(at)).collect();
        let mut step = backend.step(&[ANY_HEADS], Dtype::F32, vocab)?;
        let batch = StepBatch {
            logit_rows: (0..rows as u32).collect(),
            requests: StepRequests::Late,
            ..rows_at(&vec![0; rows])
        };
        let shape = backend.load(&mut step, batch.clone())?;
        let logits = buffer(&mut backend, ActivationDtype::Sums, shape.logit_rows, vocab, &logits)?;
        for sets in Sets::value_variants() {
            let kept = self.sets(*sets, 0);
            let (mut all, mut on_host) = (Vec::new(), Vec::new());
            for number in 0..WARM_UP + TIMES {
                let own = match sets {
                    Sets::None | Sets::Shared | Sets::Kept => kept.clone(),
                    Sets::New | Sets::Forced => self.sets(*sets, number),
                };
                let requests = self.requests(own, number);
                backend.load(&mut step, batch.clone())?;
                backend.run(&mut step, shape, |_, _| Ok(()))?;
                let begun = Instant::now();
                backend.load_requests(&mut step, requests)?;
                backend.sample_late(&logits, &mut step)?;
                let enqueued = begun.elapsed();
                backend.collect(&mut step)?;
                if number >= WARM_UP {
                    all.push(begun.elapsed().as_secs_f64() * 1e3);
                    on_host.push(enqueued.as_secs_f64() * 1e3);
                }
            }
            let changes = matches!(sets, Sets::New | Sets::Forced);
            let measured = MeasuredSets {
                device: backend.describe(),
                rows,
                vocab,
                top_p: self.top_p,
                sets: *sets,
                ms: rounded(median(all), 3),
                host_ms: rounded(median(on_host), 3),
                copied_bytes: if changes { rows * vocab.div_ceil(8) } else { 0 },
                floor_ms: rounded(floor_ms, 3),
            };
            print(json, &measured)?;
        }
        Ok(())
    }
}

impl MaskOptions {
    /// The sets of the rows of step `number`: of two thirds of all tokens, or of one.
    fn sets(&self, sets: Sets, number: usize) -> Vec<Option<Arc<AllowedTokens>>> {
        let vocab = self.vocab;
        let set = |row: usize| {
            let mix = |token: usize| (token + row + 7 * number).wrapping_mul(0x9e37_79b9) >> 7;
            let tokens: Vec<TokenId> = match sets {
                Sets::Forced => vec![TokenId::new(mix(0) % vocab)],
                _ => (0..vocab).filter(|&token| mix(token) % 3 > 0).map(TokenId::new).collect(),
            };
            Some(Arc::new(AllowedTokens::new(tokens, vocab)))
        };
        match sets {
            Sets::None => vec![None; self.rows],
            Sets::Shared => vec![set(0); self.rows],
            Sets::Kept | Sets::New | Sets::Forced => (0..self.rows).into_par_iter().map(set).collect(),
        }
    }

    fn requests(&self, sets: Vec<Option<Arc<AllowedTokens>>>, number: usize) -> Vec<SampleRequest> {
        let filters = Filters { temperature: 0.8, top_p: self.top_p, ..Filters::default() };
        let request = |(row, allowed): (usize, Option<Arc<AllowedTokens>>)| {
            let uniform = ((row * 31 + number * 17) % 997) as f64 / 997.0;
            SampleRequest { allowed, ..SampleRequest::of(Pick::Random { filters, uniform }) }
        };
        sets.into_iter().enumerate().map(request).collect()
    }
}
