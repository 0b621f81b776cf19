//! Batch-invariant algorithms: a row gets the same bits whatever the number of rows. For each kind of product one
//! algorithm with unsplit sums serves all numbers of rows; others that the library recommends for some number of rows
//! are used only if they were measured to give the same bits, which the library does not guarantee.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::algorithm::Algorithm;
use super::cublaslt::{Description, GemmOperands, GemmShape, Library, PartsLayout};
use crate::driver::memory::Memory;
use offshoot_backend::Uniform;
use offshoot_backend::ranks::PARTS;
use offshoot_core::error::{Error, Result};

/// Rows for which the one algorithm is chosen and compared with others, and numbers of rows for which it must be valid.
const USUAL_ROWS: usize = 256;
const PROBED_ROWS: [usize; 6] = [1, 8, 72, USUAL_ROWS, 2048, 4096];

/// Number of algorithms requested to find the one, and others for a number of rows.
const LISTED: usize = 32;
const LISTED_OTHERS: usize = 8;

/// Bytes of workspace of an algorithm of several products whose blocks take one after the other, which they count there
/// (4, of cuBLASLt 13.1): too few for parts of sums.
const COUNTERS: usize = 256;

/// Operands of a comparison.
const NUMBERS: Uniform = Uniform { stream: 11 << 40, centre: 0.0, reach: 1.0 };

/// A product of shares of a matrix is computed as that of the whole one, by an algorithm that serves as many shares as
/// there may be: each output has the same bits, whatever their number.
const SHARES: [usize; 4] = [1, 2, 4, PARTS];

/// Kinds of products by shapes of [`USUAL_ROWS`], and the outputs of the whole matrix of shares; `None` where the
/// library has no algorithm that serves all numbers of rows.
#[derive(Default)]
pub(super) struct BatchInvariant(HashMap<(GemmShape, Option<usize>), Option<ProductKind>>);

/// All products of one shape but for their rows.
struct ProductKind {
    usual: Description,
    one: Algorithm,
    /// Whether other algorithms give the same bits.
    others: HashMap<Algorithm, bool>,
    /// Whether algorithms of so many products as one give the same bits.
    of_parts: HashMap<(Algorithm, usize), bool>,
}

impl BatchInvariant {
    /// `None` for all numbers of rows or for none. An error if the one algorithm of this kind is not valid for
    /// `product`, as another would give other bits. Nothing is tried while a graph is captured.
    pub fn algorithm(
        &mut self,
        library: &Library,
        product: &Description,
        operands: GemmOperands<'_>,
        whole: Option<usize>,
    ) -> Result<Option<Algorithm>> {
        let Some(kind) = self.kind(library, product.shape(), whole)? else { return Ok(None) };
        for candidate in product.listed(library, LISTED_OTHERS, 0)? {
            let whole = candidate.algorithm.undivided().filter(|&whole| product.fit(library, whole, 0).is_some());
            if let Some(algorithm) = whole
                && kind.gives_the_same(library, algorithm, operands)?
            {
                return Ok(Some(algorithm));
            }
        }
        match product.fit(library, kind.one, library.workspace_bytes()) {
            Some(_) => Ok(Some(kind.one)),
            None => Err(Error::Cuda {
                device: library.device().name(),
                doing: format!("compute {:?} deterministically", product.shape()),
                why: format!("cuBLASLt's {}, which computes other numbers of rows, is not fit for it", kind.one),
            }),
        }
    }

    fn kind(&mut self, library: &Library, of: &GemmShape, whole: Option<usize>) -> Result<Option<&mut ProductKind>> {
        let kind = match self.0.entry((GemmShape { rows: USUAL_ROWS, ..*of }, whole)) {
            Entry::Occupied(kind) => kind.into_mut(),
            Entry::Vacant(new) => {
                let kind = ProductKind::find(library, &new.key().0, whole)?;
                new.insert(kind)
            }
        };
        Ok(kind.as_mut())
    }

    /// The algorithm of several products as one: the first on the library's list that gives each the bits of `one`.
    pub fn algorithm_of_parts(
        &mut self,
        library: &Library,
        product: &Description,
        layout: PartsLayout,
        weights: &[&Memory],
    ) -> Result<Option<Algorithm>> {
        let Some(kind) = self.kind(library, product.shape(), None)? else { return Ok(None) };
        for candidate in product.listed(library, LISTED_OTHERS, 0)? {
            let whole = candidate.algorithm.undivided();
            let whole = whole.filter(|&whole| product.fit(library, whole, COUNTERS).is_some());
            if let Some(algorithm) = whole
                && kind.gives_the_same_of_parts(library, algorithm, layout, weights)?
            {
                return Ok(Some(algorithm));
            }
        }
        Ok(None)
    }
}

impl ProductKind {
    /// The first on the library's list that, with unsplit sums, is valid for all numbers of rows; preferably one
    /// without workspace, in which parts of sums could lie. `whole`: the outputs of the matrix whose share has this
    /// shape.
    fn find(library: &Library, usual: &GemmShape, whole: Option<usize>) -> Result<Option<Self>> {
        let of = |rows, outputs| Description::new(library, GemmShape { rows, outputs, ..*usual }, None);
        let outputs: Vec<usize> = match whole {
            None => vec![usual.outputs],
            Some(whole) => SHARES.iter().filter(|&shares| whole.is_multiple_of(*shares)).map(|n| whole / n).collect(),
        };
        let of_all_rows = |&outputs: &usize| PROBED_ROWS.into_iter().map(move |rows| of(rows, outputs));
        let products: Vec<Description> = outputs.iter().flat_map(of_all_rows).collect::<Result<_>>()?;
        let largest = of(USUAL_ROWS, whole.unwrap_or(usual.outputs))?;
        let usual = of(USUAL_ROWS, usual.outputs)?;
        for workspace in [0, library.workspace_bytes()] {
            let listed = largest.listed(library, LISTED, workspace)?;
            let mut whole = listed.into_iter().filter_map(|candidate| candidate.algorithm.undivided());
            let serves = |algorithm: &Algorithm| {
                products.iter().all(|product| product.fit(library, *algorithm, workspace).is_some())
            };
            if let Some(one) = whole.find(serves) {
                log::info!("all rows, {} -> {}: as by {one}", usual.shape().inner, usual.shape().outputs);
                return Ok(Some(Self { usual, one, others: HashMap::new(), of_parts: HashMap::new() }));
            }
        }
        log::warn!("cuBLASLt has no algorithm for all numbers of rows of {:?}: a slow kernel serves", usual.shape());
        Ok(None)
    }

    fn gives_the_same(&mut self, library: &Library, algorithm: Algorithm, operands: GemmOperands<'_>) -> Result<bool> {
        if algorithm == self.one {
            return Ok(true);
        }
        if let Some(&known) = self.others.get(&algorithm) {
            return Ok(known);
        }
        if self.usual.fit(library, algorithm, 0).is_none() || library.device().is_capturing()? {
            return Ok(false);
        }
        let same = match self.compare(library, algorithm, operands) {
            Err(Error::DeviceMemory { .. }) => {
                log::debug!("no memory to compare algorithms of {:?}", self.usual.shape());
                return Ok(false);
            }
            same => same?,
        };
        log::debug!("{:?}: {algorithm} gives {} bits", self.usual.shape(), bits(same));
        self.others.insert(algorithm, same);
        Ok(same)
    }

    /// Whether both give the same bits for all rows of some operand. Of a million sums that were added in another
    /// order, hundreds differ even when they are rounded to 16 bits.
    fn compare(&self, library: &Library, algorithm: Algorithm, operands: GemmOperands<'_>) -> Result<bool> {
        let (device, shape) = (library.device(), self.usual.shape());
        let drawn: Vec<f32> = (0..shape.rows * shape.inner).map(|i| NUMBERS.at(i)).collect();
        let drawn = shape.compute.encode(&drawn);
        let (x, out) = (device.alloc(drawn.len())?, device.alloc(shape.out_bytes())?);
        device.upload(&x, 0, &drawn)?;
        let result = |algorithm: &Algorithm| -> Result<Vec<u8>> {
            // The values that the product accumulates to.
            device.zero(&out)?;
            self.usual.enqueue(library, algorithm, &GemmOperands { x: &x, out: &out, ..operands })?;
            device.download(&out, 0..shape.out_bytes())
        };
        let expected = result(&self.one)?;
        Ok(result(&algorithm)? == expected)
    }

    fn gives_the_same_of_parts(
        &mut self,
        library: &Library,
        algorithm: Algorithm,
        layout: PartsLayout,
        weights: &[&Memory],
    ) -> Result<bool> {
        if let Some(&known) = self.of_parts.get(&(algorithm, layout.parts)) {
            return Ok(known);
        }
        let same = self.compare_parts(library, algorithm, layout, weights)?;
        log::debug!("{:?}: {algorithm} gives {} bits of {} parts", self.usual.shape(), bits(same), layout.parts);
        self.of_parts.insert((algorithm, layout.parts), same);
        Ok(same)
    }

    /// Whether `algorithm` gives every part the bits of the one, for all rows of some operand.
    fn compare_parts(
        &self,
        library: &Library,
        algorithm: Algorithm,
        layout: PartsLayout,
        weights: &[&Memory],
    ) -> Result<bool> {
        let (device, shape, parts) = (library.device(), *self.usual.shape(), layout.parts);
        let GemmShape { rows, inner, outputs, .. } = shape;
        let layout = PartsLayout { rows_apart: parts * inner, outs_apart: rows * outputs, ..layout };
        let together = Description::new(library, shape, Some(layout))?;
        if together.fit(library, algorithm, COUNTERS).is_none() {
            return Ok(false);
        }
        let drawn = |row: usize, column: usize| NUMBERS.at(row * parts * inner + column);
        let (x, x_of_part) = (device.alloc(shape.x_bytes() * parts)?, device.alloc(shape.x_bytes())?);
        let (outs, out_of_part) = (device.alloc(shape.out_bytes() * parts)?, device.alloc(shape.out_bytes())?);
        let all: Vec<f32> =
            (0..rows).flat_map(|row| (0..parts * inner).map(move |column| drawn(row, column))).collect();
        device.upload(&x, 0, &shape.compute.encode(&all))?;
        let operands = GemmOperands { out: &outs, x: &x, w: weights[0], bias: None, scales: None };
        together.enqueue(library, &algorithm, &operands)?;
        let found = device.download(&outs, 0..shape.out_bytes() * parts)?;
        for (part, (found, w)) in found.chunks_exact(shape.out_bytes()).zip(weights).enumerate() {
            let own: Vec<f32> =
                (0..rows).flat_map(|row| (0..inner).map(move |i| drawn(row, part * inner + i))).collect();
            device.upload(&x_of_part, 0, &shape.compute.encode(&own))?;
            let operands = GemmOperands { out: &out_of_part, x: &x_of_part, w, bias: None, scales: None };
            self.usual.enqueue(library, &self.one, &operands)?;
            if device.download(&out_of_part, 0..shape.out_bytes())? != found {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn bits(same: bool) -> &'static str {
    if same { "the same" } else { "other" }
}
