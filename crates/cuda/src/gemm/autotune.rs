//! Finds the fastest algorithm of a product by timing on the device. Weights of several layers are used in turn, so
//! that they come from memory as in a step. An algorithm is chosen only if it is clearly faster than the library's
//! first choice and its result differs by the order of sums only. `chooser` decides when to measure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::algorithm::Algorithm;
use super::candidates::AlgorithmCandidate;
use super::cublaslt::{Description, GemmOperands, GemmShape, Library};
use super::ranking::{agree, near, ranking, splits_worth_trying};
use super::tune_cache::TunedAlgorithm;
use crate::driver::event::Event;
use crate::driver::memory::Memory;
use offshoot_backend::WeightView;
use offshoot_core::error::Result;

/// Number of algorithms requested from the library, with all of the workspace and with none.
const LISTED: usize = 32;
const LISTED_WITHOUT_WORKSPACE: usize = 16;

/// Minimum duration of an exact timing, and the bounds of its number of calls.
const TIMED_US: f64 = 600.0;
const CALLS: std::ops::RangeInclusive<usize> = 2..=8;
/// Exact timings of an algorithm; the shortest counts.
const REPLAYS: usize = 3;

/// One product whose algorithms are compared. The contents of `out` are lost, unless it accumulates.
pub(super) struct Autotune<'a> {
    library: &'a Library,
    product: &'a Description,
    operands: GemmOperands<'a>,
    /// Output of products that accumulate.
    scratch: Option<Memory>,
    /// Weights of one shape; the product's own first.
    weights: Vec<&'a Memory>,
    marks: [Event; 2],
    begun: Instant,
    effort: TuneEffort,
}

/// How thoroughly to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct TuneEffort {
    /// Approximate total time.
    pub at_most: Duration,
    /// Whether tiles and stages that the library does not list are tried: seconds instead of a tenth of one.
    pub thorough: bool,
}

/// Algorithms tried so far, the library's first choice first, with microseconds per call; `None` if not timed or
/// failed.
#[derive(Default)]
struct Tried {
    algorithms: Vec<Algorithm>,
    rough: Vec<Option<f64>>,
    exact: Vec<Option<f64>>,
}

impl<'a> Autotune<'a> {
    /// `siblings`: weights of the same shape. An error if memory is short.
    pub fn new(
        library: &'a Library,
        product: &'a Description,
        operands: GemmOperands<'a>,
        siblings: &'a [Arc<Memory>],
        effort: TuneEffort,
    ) -> Result<Self> {
        let device = library.device();
        let others = siblings.iter().map(|memory| &**memory).filter(|memory| memory.address() != operands.w.address());
        let GemmShape { accumulate, .. } = *product.shape();
        let scratch = if accumulate { Some(device.alloc(product.shape().out_bytes())?) } else { None };
        let weights = std::iter::once(operands.w).chain(others).collect();
        let (marks, begun) = ([device.event()?, device.event()?], Instant::now());
        Ok(Self { library, product, operands, scratch, weights, marks, begun, effort })
    }

    /// `None` if the library has no algorithm, or the first fails.
    pub fn fastest(&self) -> Result<Option<TunedAlgorithm>> {
        let mut tried = Tried::default();
        for algorithm in self.candidates()? {
            // Half of the time is for exact timings of the candidates near the best.
            if tried.algorithms.len() > 1 && self.begun.elapsed() > self.effort.at_most / 2 {
                break;
            }
            tried.push(algorithm, self.rough_us(&algorithm)?);
        }
        for at in near(&tried.rough) {
            if at > 0 && self.is_late() {
                break;
            }
            tried.exact[at] = self.exact_us(&tried.algorithms[at], tried.rough[at])?;
        }
        self.climb(&mut tried)?;
        let Some(first_us) = tried.exact.first().copied().flatten() else { return Ok(None) };
        let expected = self.result(&tried.algorithms[0])?;
        for at in ranking(&tried.exact) {
            if at == 0 || self.agrees(expected.as_deref(), self.result(&tried.algorithms[at])?.as_deref()) {
                let us = tried.exact[at].expect("only what was timed is ranked");
                return Ok(Some(TunedAlgorithm { algorithm: tried.algorithms[at], us, first_us }));
            }
            log::warn!("cuBLASLt: {} gives another result for {:?}", tried.algorithms[at], self.product.shape());
        }
        Ok(None)
    }

    /// The library's list, its first choice first, and variants with split sums of those that leave much of the device
    /// idle.
    fn candidates(&self) -> Result<Vec<Algorithm>> {
        let mut listed = self.product.listed(self.library, LISTED, self.library.workspace_bytes())?;
        listed.extend(self.product.listed(self.library, LISTED_WITHOUT_WORKSPACE, 0)?);
        let inner = self.product.shape().inner;
        let whole = listed.iter().filter(|candidate| candidate.algorithm.split_k() == 1);
        let split = whole.flat_map(|AlgorithmCandidate { algorithm, waves }| {
            splits_worth_trying(*waves, inner).into_iter().filter_map(|parts| algorithm.split(parts))
        });
        let split = split.filter_map(|algorithm| self.fit(algorithm));
        let mut all = Vec::new();
        for AlgorithmCandidate { algorithm, .. } in listed.iter().copied().chain(split) {
            if !all.contains(&algorithm) {
                all.push(algorithm);
            }
        }
        Ok(all)
    }

    /// Times variants of the best in one setting; if thorough, until none is better.
    fn climb(&self, tried: &mut Tried) -> Result<()> {
        while let Some(&best) = ranking(&tried.exact).first() {
            let algorithm = tried.algorithms[best];
            let relatives = if self.effort.thorough { algorithm.relatives() } else { Vec::new() };
            for other in algorithm.neighbours().into_iter().chain(relatives) {
                if self.is_late() {
                    return Ok(());
                }
                if !tried.algorithms.contains(&other) && self.fit(other).is_some() {
                    self.try_one(tried, other)?;
                }
            }
            if !self.effort.thorough || ranking(&tried.exact).first() == Some(&best) {
                break;
            }
        }
        Ok(())
    }

    fn fit(&self, algorithm: Algorithm) -> Option<AlgorithmCandidate> {
        self.product.fit(self.library, algorithm, self.library.workspace_bytes())
    }

    fn try_one(&self, tried: &mut Tried, algorithm: Algorithm) -> Result<()> {
        let rough = self.rough_us(&algorithm)?;
        tried.push(algorithm, rough);
        let at = tried.rough.len() - 1;
        if near(&tried.rough).contains(&at) {
            tried.exact[at] = self.exact_us(&algorithm, rough)?;
        }
        Ok(())
    }

    fn is_late(&self) -> bool {
        self.begun.elapsed() > self.effort.at_most
    }

    fn enqueue(&self, algorithm: &Algorithm, call: usize) -> Result<()> {
        let out = self.scratch.as_ref().unwrap_or(self.operands.out);
        let w = self.weights[call % self.weights.len()];
        self.product.enqueue(self.library, algorithm, &GemmOperands { out, w, ..self.operands })
    }

    /// Microseconds of one call, possibly including the host's time to enqueue it.
    fn rough_us(&self, algorithm: &Algorithm) -> Result<Option<f64>> {
        // The first call may have to load the kernel.
        if let Err(error) = self.enqueue(algorithm, 0) {
            log::debug!("{algorithm}: {error}");
            return Ok(None);
        }
        let [before, after] = &self.marks;
        before.record()?;
        self.enqueue(algorithm, 1)?;
        after.record()?;
        after.wait()?;
        before.elapsed_us(after).map(Some)
    }

    /// Microseconds of one of several calls in a graph, as in steps.
    fn exact_us(&self, algorithm: &Algorithm, rough: Option<f64>) -> Result<Option<f64>> {
        let Some(rough) = rough else { return Ok(None) };
        let calls = ((TIMED_US / rough.max(1.0)) as usize).clamp(*CALLS.start(), *CALLS.end());
        let captured = self.library.device().capture(|| (0..calls).try_for_each(|call| self.enqueue(algorithm, call)));
        let graph = match captured {
            Ok(graph) => graph,
            Err(error) => {
                log::debug!("{algorithm}: {error}");
                return Ok(None);
            }
        };
        let [before, after] = &self.marks;
        let mut least = f64::INFINITY;
        for _ in 0..REPLAYS {
            least = least.min(before.us_until(after, || graph.launch())?);
        }
        Ok(Some(least / calls as f64))
    }

    /// The first, a middle and the last row of its result; `None` if it fails.
    fn result(&self, algorithm: &Algorithm) -> Result<Option<Vec<Vec<f32>>>> {
        let device = self.library.device();
        let GemmShape { rows, outputs, out: dtype, .. } = *self.product.shape();
        if let Some(scratch) = &self.scratch {
            device.copy(scratch, 0, self.operands.out, 0..self.product.shape().out_bytes())?;
        }
        if self.enqueue(algorithm, 0).is_err() {
            return Ok(None);
        }
        let out = self.scratch.as_ref().unwrap_or(self.operands.out);
        let row_bytes = outputs * dtype.bytes();
        let row = |row: usize| -> Result<Vec<f32>> {
            let bytes = device.download(out, row * row_bytes..(row + 1) * row_bytes)?;
            let read = WeightView { dtype, rows: 1, cols: outputs, bytes: &bytes };
            Ok((0..outputs).map(|i| read.get(i)).collect())
        };
        [0, rows / 2, rows - 1].map(row).into_iter().collect::<Result<_>>().map(Some)
    }

    fn agrees(&self, expected: Option<&[Vec<f32>]>, found: Option<&[Vec<f32>]>) -> bool {
        let (Some(expected), Some(found)) = (expected, found) else { return false };
        let GemmShape { inner, out, .. } = *self.product.shape();
        expected.iter().zip(found).all(|(expected, found)| agree(expected, found, inner, out))
    }
}

impl Tried {
    fn push(&mut self, algorithm: Algorithm, rough: Option<f64>) {
        self.algorithms.push(algorithm);
        self.rough.push(rough);
        self.exact.push(None);
    }
}
