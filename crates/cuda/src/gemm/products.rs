//! Products by cuBLASLt: descriptors and algorithms by shape, so that a steady step only enqueues.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::algorithm::Algorithm;
use super::chooser::{AlgorithmPolicy, Chooser};
use super::cublaslt::{Description, GemmOperands, GemmShape, Library, PartsLayout};
use super::shared::{Chosen, Sharing};
use crate::driver::device::Device;
use crate::driver::memory::{ALIGNED, Memory};
use crate::memory::weights::Matrix;
use offshoot_core::error::Result;

/// Algorithms asked for where the first valid one serves.
const LISTED_OF_HEADS: usize = 8;

/// Weights remembered per shape, used in turn while a product is timed.
const SIBLINGS: usize = 8;

pub(crate) struct LibraryProducts {
    library: Library,
    chooser: Chooser,
    /// With GPUs that choose alike.
    sharing: Option<Sharing>,
    /// Whether algorithms may be timed now: the products enqueued now will recur.
    may_tune: bool,
    /// `None` if the library has no algorithm.
    products: HashMap<GemmShape, Option<PlannedProduct>>,
    /// Several that are enqueued as one; `None` where no algorithm gives the bits that each has by itself.
    of_parts: HashMap<(GemmShape, PartsLayout), Option<(Description, Algorithm)>>,
    /// Products of heads; `None` where the library has no algorithm.
    of_heads: HashMap<(GemmShape, PartsLayout), Option<(Description, Algorithm)>>,
    /// Weights by outputs and inner width.
    siblings: HashMap<(usize, usize), Vec<Weak<Memory>>>,
    /// The outputs of the whole matrix of which those of these outputs and inner width are shares.
    wholes: HashMap<(usize, usize), usize>,
}

/// A product of one shape, ready to enqueue.
struct PlannedProduct {
    description: Description,
    algorithm: Algorithm,
    /// Whether it was chosen while timing was allowed; if not, it is chosen again when timing is.
    settled: bool,
}

impl LibraryProducts {
    /// Uses the library's first choices until `choose` is called.
    pub fn open(device: &Device) -> Result<Self> {
        let library = Library::open(device)?;
        let chooser = Chooser::new(&library, AlgorithmPolicy::First);
        let (products, of_parts, of_heads) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (siblings, wholes) = (HashMap::new(), HashMap::new());
        Ok(Self { chooser, sharing: None, library, may_tune: true, products, of_parts, of_heads, siblings, wholes })
    }

    /// See [`Library::reserve_branch`].
    pub fn reserve_branch(&mut self) -> Result<()> {
        self.library.reserve_branch()
    }

    /// Chooses as other GPUs do from now on, also for known products.
    pub fn share(&mut self, sharing: Sharing) {
        self.products.clear();
        self.sharing = Some(sharing);
    }

    /// Sets how algorithms are chosen, also for known products.
    pub fn choose(&mut self, choosing: AlgorithmPolicy) {
        self.products.clear();
        self.of_parts.clear();
        self.of_heads.clear();
        self.chooser = Chooser::new(&self.library, choosing);
    }

    /// Sets whether algorithms of unsettled products may be timed. A graph captured before keeps its algorithms.
    pub fn may_tune(&mut self, may_tune: bool) {
        self.may_tune = may_tune;
    }

    /// Remembers weights as long as they live; those of one shape are used in turn while a product is timed.
    pub fn remember(&mut self, w: &Matrix) {
        let siblings = self.siblings.entry((w.outputs, w.inner)).or_default();
        siblings.retain(|memory| memory.strong_count() > 0);
        if siblings.len() < SIBLINGS {
            siblings.push(Arc::downgrade(&w.memory));
        }
    }

    /// Remembers of how many outputs the matrix is whose share these weights are. Shares of one shape have one whole,
    /// or the largest counts for all.
    pub fn remember_whole(&mut self, w: &Matrix, outputs: usize) {
        let whole = self.wholes.entry((w.outputs, w.inner)).or_insert(outputs);
        *whole = outputs.max(*whole);
    }

    /// Enqueues the product of `shape`, choosing its algorithm if it is new or not settled. Returns whether the library
    /// has one.
    pub(super) fn enqueue(&mut self, shape: GemmShape, operands: GemmOperands<'_>) -> Result<bool> {
        let begun = Instant::now();
        let is_to_plan = self.plan_once(shape, operands)?;
        let Some(PlannedProduct { description, algorithm, .. }) = &self.products[&shape] else { return Ok(false) };
        let planned = begun.elapsed();
        description.enqueue(&self.library, algorithm, &operands)?;
        if is_to_plan {
            // The library loads a kernel on its first call.
            let ms = |elapsed: Duration| 1e3 * elapsed.as_secs_f64();
            let (planned, called) = (ms(planned), ms(begun.elapsed() - planned));
            log::debug!("{shape:?} by {algorithm}: planned in {planned:.1} ms, first called in {called:.1} ms");
        }
        Ok(true)
    }

    /// Enqueues several products as one, by an algorithm that gives each the bits of `enqueue`. `x` and `out` are those
    /// of all and of the first; `weights`: every part's. Returns whether there is such an algorithm.
    pub(super) fn enqueue_parts(
        &mut self,
        shape: GemmShape,
        layout: PartsLayout,
        (out, x): (&Memory, &Memory),
        weights: &[&Memory],
    ) -> Result<bool> {
        // The library takes it that operands begin at such an address.
        if !(shape.inner * shape.compute.bytes()).is_multiple_of(ALIGNED) {
            return Ok(false);
        }
        if !self.of_parts.contains_key(&(shape, layout)) {
            // Nothing is compared then; what is not known is asked for again.
            if self.library.device().is_capturing()? {
                return Ok(false);
            }
            let described = Description::new(&self.library, shape, Some(layout))?;
            let algorithm = match self.chooser.algorithm_of_parts(&self.library, &described, layout, weights) {
                // There may be memory to compare them later.
                Err(error) if error.is_shortage() => {
                    log::debug!("{} products of {shape:?} one by one: {error}", layout.parts);
                    return Ok(false);
                }
                found => found?,
            };
            log::debug!(
                "{} products as one, {shape:?}: {}",
                layout.parts,
                match &algorithm {
                    Some(algorithm) => format!("by {algorithm}"),
                    None => "no algorithm".to_owned(),
                }
            );
            self.of_parts.insert((shape, layout), algorithm.map(|algorithm| (described, algorithm)));
        }
        let Some((described, algorithm)) = &self.of_parts[&(shape, layout)] else { return Ok(false) };
        let operands = GemmOperands { out, x, w: weights[0], bias: None, scales: None };
        described.enqueue(&self.library, algorithm, &operands)?;
        Ok(true)
    }

    /// Enqueues a product for each head as one, by the library's first choice. `operands`: `x` of all, and what follows
    /// the first head's weights and output. Returns whether the library has an algorithm, which it has not where a
    /// row's bits must be the same in any number of rows.
    pub(super) fn enqueue_heads(
        &mut self,
        shape: GemmShape,
        layout: PartsLayout,
        operands: GemmOperands<'_>,
    ) -> Result<bool> {
        // The library takes it that operands begin at such an address.
        let is_aligned = (operands.w.address() as usize).is_multiple_of(ALIGNED);
        if !is_aligned || matches!(self.chooser, Chooser::BatchInvariant(_)) {
            return Ok(false);
        }
        let planned = match self.of_heads.entry((shape, layout)) {
            Entry::Occupied(planned) => planned.into_mut(),
            Entry::Vacant(new) => {
                let described = Description::new(&self.library, shape, Some(layout))?;
                let workspace = self.library.workspace_bytes();
                let first = described.listed(&self.library, LISTED_OF_HEADS, workspace)?.into_iter().next();
                let algorithm = first.map(|candidate| candidate.algorithm);
                let by = algorithm.map_or("no algorithm".to_owned(), |algorithm| format!("by {algorithm}"));
                log::debug!("{} heads, {shape:?}: {by}", layout.parts);
                new.insert(algorithm.map(|algorithm| (described, algorithm)))
            }
        };
        let Some((described, algorithm)) = planned else { return Ok(false) };
        described.enqueue(&self.library, algorithm, &operands)?;
        Ok(true)
    }

    /// Chooses the algorithm of a product if it is new or not settled; returns whether it was.
    fn plan_once(&mut self, shape: GemmShape, operands: GemmOperands<'_>) -> Result<bool> {
        let is_planned =
            |product: &Option<PlannedProduct>| product.as_ref().is_none_or(|it| it.settled || !self.may_tune);
        let is_to_plan = !self.products.get(&shape).is_some_and(is_planned);
        if is_to_plan {
            let product = self.plan(shape, operands)?;
            if product.is_none() {
                log::debug!("cuBLASLt has no algorithm for {shape:?}");
            }
            self.products.insert(shape, product);
        }
        Ok(is_to_plan)
    }

    fn plan(&mut self, shape: GemmShape, operands: GemmOperands<'_>) -> Result<Option<PlannedProduct>> {
        let description = Description::new(&self.library, shape, None)?;
        let is_shared = self.sharing.as_mut().is_some_and(|sharing| sharing.shares(shape));
        let heard = match &mut self.sharing {
            Some(_) if !is_shared => Some(Chosen::ForAnother),
            Some(sharing) if !sharing.is_first() => Some(sharing.hear(shape)?),
            _ => None,
        };
        let algorithm = match heard {
            Some(Chosen::Algorithm(algorithm)) => algorithm,
            Some(Chosen::ForAnother) => self.choose_for(&description, operands, false)?,
            None => self.choose_for(&description, operands, self.may_tune)?,
        };
        if let Some(sharing) = self.sharing.as_ref().filter(|sharing| is_shared && sharing.is_first()) {
            sharing.tell(shape, algorithm);
        }
        Ok(algorithm.map(|algorithm| PlannedProduct { description, algorithm, settled: self.may_tune }))
    }

    fn choose_for(
        &mut self,
        description: &Description,
        operands: GemmOperands<'_>,
        may_tune: bool,
    ) -> Result<Option<Algorithm>> {
        let shape = description.shape();
        let siblings = self.siblings.get(&(shape.outputs, shape.inner)).into_iter().flatten();
        let siblings: Vec<Arc<Memory>> = siblings.filter_map(Weak::upgrade).collect();
        let whole = self.wholes.get(&(shape.outputs, shape.inner)).copied();
        let mut algorithm =
            |may_tune| self.chooser.algorithm(&self.library, description, operands, &siblings, may_tune, whole);
        match algorithm(may_tune) {
            Err(error) if error.is_shortage() && may_tune => {
                log::debug!("{shape:?} goes as the library recommends: {error}");
                algorithm(false)
            }
            found => found,
        }
    }
}
