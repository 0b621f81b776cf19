//! The fastest algorithm of a product, found by timing on the device. Weights of several layers take turns, so that they come
//! from memory as in a step; an algorithm is taken only where it is clearly faster than the library's first choice and its
//! result is the same but for the order of sums. When to measure is `chooser`'s affair.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::algorithm::{Algorithm, Candidate, MOST_PARTS};
use super::choices::Choice;
use super::cublaslt::{Description, Library, Operands, Shape};
use super::event::Event;
use super::memory::Memory;
use crate::backend::{Dtype, WeightView};
use crate::error::Result;

/// Algorithms that the library is asked for, with all of the workspace and with none.
const LISTED: usize = 32;
const LISTED_WITHOUT_WORKSPACE: usize = 16;

/// Calls of an exact timing take at least about so long, within these counts.
const TIMED_US: f64 = 600.0;
const CALLS: std::ops::RangeInclusive<usize> = 2..=8;
/// Exact timings of an algorithm, of which the least counts.
const REPLAYS: usize = 3;

/// Another algorithm than the first must be faster by this share, or noise would choose.
const CLEARLY: f64 = 0.01;

/// Algorithms timed exactly at most, beside neighbours of the best.
const FINALISTS: usize = 12;

/// One product whose algorithms are compared. What its `out` held is lost, unless it accumulates.
pub(super) struct Trial<'a> {
    library: &'a Library,
    product: &'a Description,
    operands: Operands<'a>,
    /// Where results go that would otherwise add to what is there.
    scratch: Option<Memory>,
    /// Of one shape; the product's own first.
    weights: Vec<&'a Memory>,
    marks: [Event; 2],
    begun: Instant,
    at_most: Duration,
}

/// Algorithms tried so far, the library's first choice first. Microseconds of a call, `None` where it was not timed or fails.
#[derive(Default)]
struct Tried {
    algorithms: Vec<Algorithm>,
    rough: Vec<Option<f64>>,
    exact: Vec<Option<f64>>,
}

impl<'a> Trial<'a> {
    /// `siblings` are weights of the same shape; the whole takes about `at_most`. An error where there is no memory for it.
    pub fn new(
        library: &'a Library,
        product: &'a Description,
        operands: Operands<'a>,
        siblings: &'a [Arc<Memory>],
        at_most: Duration,
    ) -> Result<Self> {
        let device = library.device();
        let others = siblings.iter().map(|memory| &**memory).filter(|memory| memory.address() != operands.w.address());
        let Shape { accumulate, .. } = *product.shape();
        let scratch = if accumulate { Some(device.alloc(product.shape().out_bytes())?) } else { None };
        let weights = std::iter::once(operands.w).chain(others).collect();
        let (marks, begun) = ([device.event()?, device.event()?], Instant::now());
        Ok(Self { library, product, operands, scratch, weights, marks, begun, at_most })
    }

    /// `None` where the library has no algorithm, or the first fails.
    pub fn fastest(&self) -> Result<Option<Choice>> {
        let mut tried = Tried::default();
        for algorithm in self.candidates()? {
            // Half of the time is for those that seem near.
            if tried.algorithms.len() > 1 && self.begun.elapsed() > self.at_most / 2 {
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
        self.try_neighbours(&mut tried)?;
        let Some(first_us) = tried.exact.first().copied().flatten() else { return Ok(None) };
        let expected = self.result(&tried.algorithms[0])?;
        for at in ranking(&tried.exact) {
            if at == 0 || self.agrees(expected.as_deref(), self.result(&tried.algorithms[at])?.as_deref()) {
                let us = tried.exact[at].expect("only what was timed is ranked");
                return Ok(Some(Choice { algorithm: tried.algorithms[at], us, first_us }));
            }
            log::warn!("cuBLASLt: {} gives another result for {:?}", tried.algorithms[at], self.product.shape());
        }
        Ok(None)
    }

    /// The library's list, its first choice first, and of those that leave much of the device idle variants whose sums are
    /// split.
    fn candidates(&self) -> Result<Vec<Algorithm>> {
        let mut listed = self.product.listed(self.library, LISTED, self.library.workspace_bytes())?;
        listed.extend(self.product.listed(self.library, LISTED_WITHOUT_WORKSPACE, 0)?);
        let inner = self.product.shape().inner;
        let whole = listed.iter().filter(|candidate| candidate.algorithm.parts() == 1);
        let split = whole.flat_map(|Candidate { algorithm, waves }| {
            parts_worth_trying(*waves, inner).into_iter().filter_map(|parts| algorithm.split(parts))
        });
        let split = split.filter_map(|algorithm| self.product.fit(self.library, algorithm));
        let mut all = Vec::new();
        for Candidate { algorithm, .. } in listed.iter().copied().chain(split) {
            if !all.contains(&algorithm) {
                all.push(algorithm);
            }
        }
        Ok(all)
    }

    /// Times what differs in one setting from the best.
    fn try_neighbours(&self, tried: &mut Tried) -> Result<()> {
        let Some(&best) = ranking(&tried.exact).first() else { return Ok(()) };
        for neighbour in tried.algorithms[best].neighbours() {
            if self.is_late() {
                break;
            }
            if tried.algorithms.contains(&neighbour) || self.product.fit(self.library, neighbour).is_none() {
                continue;
            }
            let rough = self.rough_us(&neighbour)?;
            tried.push(neighbour, rough);
            if near(&tried.rough).contains(&(tried.rough.len() - 1)) {
                let exact = self.exact_us(&neighbour, rough)?;
                *tried.exact.last_mut().expect("it was pushed just now") = exact;
            }
        }
        Ok(())
    }

    fn is_late(&self) -> bool {
        self.begun.elapsed() > self.at_most
    }

    fn enqueue(&self, algorithm: &Algorithm, call: usize) -> Result<()> {
        let out = self.scratch.as_ref().unwrap_or(self.operands.out);
        let w = self.weights[call % self.weights.len()];
        self.product.enqueue(self.library, algorithm, &Operands { out, w, ..self.operands })
    }

    /// Of one call, the host's time to enqueue it perhaps included.
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

    /// Of one of several calls in a graph, as steps run them.
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
            before.record()?;
            graph.launch()?;
            after.record()?;
            after.wait()?;
            least = least.min(before.elapsed_us(after)?);
        }
        Ok(Some(least / calls as f64))
    }

    /// The first, a middle and the last row; `None` where it fails.
    fn result(&self, algorithm: &Algorithm) -> Result<Option<Vec<Vec<f32>>>> {
        let device = self.library.device();
        let Shape { rows, outputs, out: dtype, .. } = *self.product.shape();
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
        let Shape { inner, out, .. } = *self.product.shape();
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

/// Into how many parts the sums of an algorithm whose thread blocks fill the device `waves` times are worth splitting: each
/// count must leave less of the last wave idle than smaller ones do, and parts of some length.
fn parts_worth_trying(waves: f32, inner: usize) -> Vec<u32> {
    const SHORTEST: usize = 512;
    const MOST_WAVES: f32 = 4.0;
    let busy = |parts: u32| waves * parts as f32 / (waves * parts as f32).ceil();
    let mut best = busy(1);
    let mut worth = Vec::new();
    for parts in 2..=MOST_PARTS {
        if inner / parts as usize >= SHORTEST && waves * parts as f32 <= MOST_WAVES && busy(parts) > best + 0.05 {
            best = busy(parts);
            worth.push(parts);
        }
    }
    worth
}

/// Which of these are worth timing exactly: the first, then those near the fastest, fastest first.
fn near(rough: &[Option<f64>]) -> Vec<usize> {
    let least = rough.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    // What enqueueing adds varies by some microseconds.
    let mut near = sorted(rough);
    near.retain(|&at| at != 0 && rough[at].is_some_and(|us| us <= 1.3 * least + 3.0));
    near.truncate(FINALISTS - 1);
    std::iter::once(0).filter(|_| !rough.is_empty()).chain(near).collect()
}

/// The algorithms to take, best first: those clearly faster than the first, then the first, then whatever else was timed where
/// the first was not.
fn ranking(exact: &[Option<f64>]) -> Vec<usize> {
    let mut ranking = sorted(exact);
    if let Some(first) = exact.first().copied().flatten() {
        ranking.retain(|&at| at != 0 && exact[at].is_some_and(|us| us < (1.0 - CLEARLY) * first));
        ranking.push(0);
    }
    ranking
}

/// Those that have a time, fastest first, equal ones in their order.
fn sorted(us: &[Option<f64>]) -> Vec<usize> {
    let mut timed: Vec<(f64, usize)> = us.iter().enumerate().filter_map(|(at, us)| Some(((*us)?, at))).collect();
    timed.sort_by(|(us, at), (other, its)| us.total_cmp(other).then(at.cmp(its)));
    timed.into_iter().map(|(_, at)| at).collect()
}

/// Whether two results of one row differ by no more than what the order of sums in f32 and rounding to `out` allow. A sum of
/// `inner` products is off by at most `inner` roundings of a number of the size of what the row holds, beyond all doubt: real
/// errors grow with the root.
fn agree(expected: &[f32], found: &[f32], inner: usize, out: Dtype) -> bool {
    let finite = expected.iter().map(|x| f64::from(*x)).filter(|x| x.is_finite());
    let size = (finite.clone().map(|x| x * x).sum::<f64>() / finite.count().max(1) as f64).sqrt();
    let sums = inner as f64 * 2f64.powi(-23) * size;
    let rounding = match out {
        Dtype::F32 => 2f64.powi(-23),
        Dtype::F16 => 2f64.powi(-10),
        Dtype::Bf16 => 2f64.powi(-7),
    };
    let same = |a: f64, b: f64| (a - b).abs() <= sums + rounding * a.abs().max(b.abs());
    // Rows that nobody reads may hold anything.
    let pairs = expected.iter().zip(found).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    pairs.into_iter().all(|(a, b)| if a.is_finite() { same(a, b) } else { !b.is_finite() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_kept_unless_another_is_clearly_faster() {
        assert_eq!(ranking(&[Some(10.0), Some(9.0), Some(8.0), None, Some(9.95), Some(11.0)]), [2, 1, 0]);
        assert_eq!(ranking(&[Some(10.0), Some(9.95), Some(10.0)]), [0]);
        assert_eq!(ranking(&[None, Some(9.0), Some(8.0)]), [2, 1]);
        assert_eq!(ranking(&[None, None]), [0; 0]);
        assert_eq!(ranking(&[]), [0; 0]);
    }

    #[test]
    fn what_is_far_from_the_fastest_is_not_timed_again() {
        assert_eq!(near(&[Some(200.0), Some(130.0), None, Some(100.0), Some(134.0)]), [0, 3, 1]);
        assert_eq!(near(&[None, Some(5.0)]), [0, 1]);
        assert_eq!(near(&[]), [0; 0]);
        let many: Vec<Option<f64>> = (0..40).map(|i| Some(100.0 - f64::from(i) / 10.0)).collect();
        let near = near(&many);
        assert_eq!((near.len(), near[0], near[1]), (FINALISTS, 0, 39));
    }

    #[test]
    fn sums_are_split_where_the_device_is_idle_otherwise() {
        // 32 thread blocks on 132 multiprocessors: four parts fill it, more do no better.
        assert_eq!(parts_worth_trying(32.0 / 132.0, 14336), [2, 3, 4]);
        // 96: two and three parts leave as much of their last wave idle as one does.
        assert_eq!(parts_worth_trying(96.0 / 132.0, 4096), [4]);
        // Full already; too short to split; so many waves that the last hardly counts.
        assert_eq!(parts_worth_trying(1.0, 14336), [0; 0]);
        assert_eq!(parts_worth_trying(0.2, 768), [0; 0]);
        assert_eq!(parts_worth_trying(2.2, 14336), [0; 0]);
        // What the library cannot tell.
        assert_eq!(parts_worth_trying(0.0, 4096), [0; 0]);
    }

    #[test]
    fn results_agree_by_rounding_and_order_alone() {
        let row: Vec<f32> = (0..512).map(|i| (i % 37) as f32 / 8.0 - 2.0).collect();
        let off = |by: f32| row.iter().map(|x| x + by).collect::<Vec<_>>();
        assert!(agree(&row, &row, 4096, Dtype::F32));
        assert!(agree(&row, &off(1e-4), 4096, Dtype::F32));
        assert!(!agree(&row, &off(0.01), 4096, Dtype::F32), "as far off as products of cut operands");
        let rounded: Vec<f32> = row.iter().map(|x| x * (1.0 + 1.0 / 256.0)).collect();
        assert!(agree(&row, &rounded, 4096, Dtype::Bf16) && !agree(&row, &rounded, 4096, Dtype::F16));
        let mut one_wrong = row.clone();
        one_wrong[300] = 0.0;
        assert!(!agree(&row, &one_wrong, 4096, Dtype::Bf16));
        let nan = vec![f32::NAN; 512];
        assert!(agree(&nan, &nan, 64, Dtype::F32) && !agree(&row, &nan, 64, Dtype::F32));
    }
}
