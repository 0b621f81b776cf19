//! By which algorithm a product is computed: the library's first choice, the fastest, known from an earlier run or measured
//! now, or one of those that compute alike. Measuring is bounded in time, left out where a product may never come again, and never
//! done while a graph is captured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::algorithm::Algorithm;
use super::autotune::{Autotune, Effort};
use super::batch_invariant::BatchInvariant;
use super::cublaslt::{Description, Library, Operands};
use super::tune_cache::{Machine, TuneCache};
use crate::backend::cuda::driver::memory::Memory;
use crate::error::{Error, Result};

/// How the algorithms of products are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choosing {
    /// As the library recommends: the same in every run.
    First,
    /// The fastest: the same in every run that finds it in the user's cache. What is not known is measured once it recurs, for
    /// `at_most` in all; before and after, as the library recommends until the next run.
    Fastest { at_most: Duration },
    /// As `Fastest`, but nothing is known yet, and more is tried. For benchmarks; later runs take what they found.
    FastestAnew { at_most: Duration },
    /// As the library recommends among those that give a row the same bits whatever the number of rows: the same bits in every run
    /// by the same version of the library on the same kind of GPU.
    BatchInvariant,
}

/// What trials may take until a process ends, of the products of one element type.
pub const A_START: Duration = Duration::from_secs(2);

/// Products that the time suffices for at least.
const PRODUCTS: u32 = 10;

/// Products of more rows are bound by multiplications, and cuBLASLt's own choice is as good: what was found to be faster in a trial
/// of some milliseconds took 1 to 4 % longer on an H200 that was busy for long and had lowered its clock (512 to 2,048 rows).
const MOST_ROWS: usize = 256;

/// Algorithms that are asked for where the first is taken: those that do not fit are left out.
const LISTED: usize = 8;

/// Smaller weights take as long by any algorithm: a launch.
const SMALLEST: usize = 1 << 20;

pub(super) enum Chooser {
    First,
    Fastest(Measured),
    BatchInvariant(BatchInvariant),
}

pub(super) struct Measured {
    choices: TuneCache,
    /// Whether choices of earlier runs are left aside.
    anew: bool,
    at_most: Duration,
    spent: Duration,
}

impl Chooser {
    pub fn new(library: &Library, choosing: Choosing) -> Self {
        let (anew, at_most) = match choosing {
            Choosing::First => return Self::First,
            Choosing::BatchInvariant => return Self::BatchInvariant(BatchInvariant::default()),
            Choosing::Fastest { at_most } => (false, at_most),
            Choosing::FastestAnew { at_most } => (true, at_most),
        };
        let choices = TuneCache::of_user(Machine::of(library));
        Self::Fastest(Measured { choices, anew, at_most, spent: Duration::ZERO })
    }

    /// `None` where the library has no algorithm. `siblings` are other weights of this shape. What is not known is measured
    /// where `may_try` says so: what `operands.out` held is lost then, unless the product adds to it.
    pub fn algorithm(
        &mut self,
        library: &Library,
        product: &Description,
        operands: Operands<'_>,
        siblings: &[Arc<Memory>],
        may_try: bool,
    ) -> Result<Option<Algorithm>> {
        match self {
            Self::First => {}
            Self::Fastest(measured) => {
                if let Some(algorithm) = measured.fastest(library, product, operands, siblings, may_try)? {
                    return Ok(Some(algorithm));
                }
            }
            Self::BatchInvariant(alike) => return alike.algorithm(library, product, operands),
        }
        let listed = product.listed(library, LISTED, library.workspace_bytes())?;
        Ok(listed.first().map(|candidate| candidate.algorithm))
    }
}

impl Measured {
    /// `None` where it is not known and not to be measured.
    fn fastest(
        &mut self,
        library: &Library,
        product: &Description,
        operands: Operands<'_>,
        siblings: &[Arc<Memory>],
        may_try: bool,
    ) -> Result<Option<Algorithm>> {
        let shape = *product.shape();
        if let Some(known) = self.choices.get(&shape).filter(|_| !self.anew) {
            if product.fit(library, known.algorithm, library.workspace_bytes()).is_some() {
                return Ok(Some(known.algorithm));
            }
            log::warn!("cuBLASLt has no longer {} for {shape:?}", known.algorithm);
        }
        let pays = shape.weight_bytes() >= SMALLEST && (shape.rows <= MOST_ROWS || self.anew);
        if !(pays && may_try) || self.spent >= self.at_most || library.device().is_capturing()? {
            return Ok(None);
        }
        let begun = Instant::now();
        let at_most = (self.at_most / PRODUCTS).min(self.at_most - self.spent);
        let effort = Effort { at_most, thorough: self.anew };
        let trial = Autotune::new(library, product, operands, siblings, effort);
        let choice = match trial.and_then(|trial| trial.fastest()) {
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
