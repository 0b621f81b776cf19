//! Chooses the algorithm of a product: the library's first choice; the fastest one, known from an earlier run or
//! measured now; or a batch-invariant one. Measuring is bounded in time, is left out for products that may never recur,
//! and never happens while a graph is captured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::algorithm::Algorithm;
use super::autotune::{Autotune, TuneEffort};
use super::batch_invariant::BatchInvariant;
use super::cublaslt::{Description, GemmOperands, Library, PartsLayout};
use super::tune_cache::{TuneCache, TuneMachine};
use crate::driver::memory::Memory;
use offshoot_core::error::{Error, Result};

/// How the algorithms of products are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmPolicy {
    /// The library's first choice: the same in every run.
    First,
    /// The fastest: the same in every run that finds it in the user's cache. An unknown shape is measured once it
    /// recurs, for `at_most` in all; until then, and once the time is spent, the library's first choice is used.
    Fastest { at_most: Duration },
    /// As `Fastest`, ignoring the cache and trying more. For benchmarks; later runs use the results.
    FastestAnew { at_most: Duration },
    /// The library's choice among algorithms that give a row the same bits whatever the number of rows: the same bits
    /// in every run with the same version of the library on the same GPU model.
    BatchInvariant,
}

/// Total time for autotuning in one process, for the products of one weight format.
pub const TUNE_BUDGET: Duration = Duration::from_secs(2);

/// Number of products for which the time suffices at least.
const PRODUCTS: u32 = 10;

/// Products of more rows are bound by multiplications, and cuBLASLt's own choice is as good: algorithms that won a
/// trial of some milliseconds took 1 to 4 % longer on an H200 that had lowered its clock under load (512 to 2,048
/// rows).
const MOST_ROWS: usize = 256;

/// Number of algorithms requested when the first is used; invalid ones are left out.
const LISTED: usize = 8;

/// Products of smaller weights take as long as a launch by any algorithm.
const SMALLEST: usize = 1 << 20;

pub(super) enum Chooser {
    First,
    Fastest(Tuner),
    BatchInvariant(BatchInvariant),
}

pub(super) struct Tuner {
    choices: TuneCache,
    /// Whether choices of earlier runs are ignored.
    anew: bool,
    at_most: Duration,
    spent: Duration,
}

impl Chooser {
    pub fn new(library: &Library, choosing: AlgorithmPolicy) -> Self {
        let (anew, at_most) = match choosing {
            AlgorithmPolicy::First => return Self::First,
            AlgorithmPolicy::BatchInvariant => return Self::BatchInvariant(BatchInvariant::default()),
            AlgorithmPolicy::Fastest { at_most } => (false, at_most),
            AlgorithmPolicy::FastestAnew { at_most } => (true, at_most),
        };
        let choices = TuneCache::of_user(TuneMachine::of(library));
        Self::Fastest(Tuner { choices, anew, at_most, spent: Duration::ZERO })
    }

    /// `None` if the library has no algorithm. `siblings`: other weights of this shape. An unknown shape is measured if
    /// `may_tune`; the contents of `operands.out` are then lost, unless the product accumulates. `whole`: if the
    /// weights are a share, the outputs of all shares, whose batch-invariant algorithm is that of each.
    pub fn algorithm(
        &mut self,
        library: &Library,
        product: &Description,
        operands: GemmOperands<'_>,
        siblings: &[Arc<Memory>],
        may_tune: bool,
        whole: Option<usize>,
    ) -> Result<Option<Algorithm>> {
        match self {
            Self::First => {}
            Self::Fastest(measured) => {
                if let Some(algorithm) = measured.fastest(library, product, operands, siblings, may_tune)? {
                    return Ok(Some(algorithm));
                }
            }
            Self::BatchInvariant(batch_invariant) => {
                return batch_invariant.algorithm(library, product, operands, whole);
            }
        }
        let listed = product.listed(library, LISTED, library.workspace_bytes())?;
        Ok(listed.first().map(|candidate| candidate.algorithm))
    }

    /// An algorithm of several products of one shape as one, which lie as `layout` says: it gives each the bits of its
    /// own algorithm. `None` if there is none, or algorithms are not batch-invariant, so that none is compared.
    pub fn algorithm_of_parts(
        &mut self,
        library: &Library,
        product: &Description,
        layout: PartsLayout,
        weights: &[&Memory],
    ) -> Result<Option<Algorithm>> {
        match self {
            Self::First | Self::Fastest(_) => Ok(None),
            Self::BatchInvariant(batch_invariant) => {
                batch_invariant.algorithm_of_parts(library, product, layout, weights)
            }
        }
    }
}

impl Tuner {
    /// `None` if it is unknown and must not be measured.
    fn fastest(
        &mut self,
        library: &Library,
        product: &Description,
        operands: GemmOperands<'_>,
        siblings: &[Arc<Memory>],
        may_tune: bool,
    ) -> Result<Option<Algorithm>> {
        let shape = *product.shape();
        if let Some(known) = self.choices.get(&shape).filter(|_| !self.anew) {
            if product.fit(library, known.algorithm, library.workspace_bytes()).is_some() {
                return Ok(Some(known.algorithm));
            }
            log::warn!("cuBLASLt has no longer {} for {shape:?}", known.algorithm);
        }
        let pays = shape.weight_bytes() >= SMALLEST && (shape.rows <= MOST_ROWS || self.anew);
        if !(pays && may_tune) || self.spent >= self.at_most || library.device().is_capturing()? {
            return Ok(None);
        }
        let begun = Instant::now();
        let at_most = (self.at_most / PRODUCTS).min(self.at_most - self.spent);
        // Of e4m3 with scales the library lists no algorithm that splits sums, and few tiles: of 256 rows, 14,336 ->
        // 4,096, its first takes 39 us and the best that is not listed 28 (H200).
        let thorough = self.anew || shape.weights.dense().is_none();
        let effort = TuneEffort { at_most, thorough };
        let autotune = Autotune::new(library, product, operands, siblings, effort);
        let choice = match autotune.and_then(|autotune| autotune.fastest()) {
            Err(Error::DeviceMemory { .. }) => {
                log::debug!("no memory to measure {shape:?}");
                None
            }
            choice => choice?,
        };
        self.spent += begun.elapsed();
        if self.spent >= self.at_most {
            log::info!("the time to measure products is used up: others go as cuBLASLt recommends until the next run");
        }
        let Some(choice) = choice else { return Ok(None) };
        log::info!(
            "{} rows, {} -> {}: {:.1} us by {}, {:.1} as cuBLASLt recommends; found in {} ms",
            shape.rows,
            shape.inner,
            shape.outputs,
            choice.us,
            choice.algorithm,
            choice.first_us,
            begun.elapsed().as_millis()
        );
        self.choices.keep(shape, choice);
        Ok(Some(choice.algorithm))
    }
}
