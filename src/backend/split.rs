//! How matrices and buffers are divided among ranks: devices that compute one model together (Megatron-LM, Shoeybi et
//! al. 2019, arXiv 1909.08053, section 3). Of two linear layers behind each other the first has its outputs divided and
//! the second its inputs; what the second computes is then summed over the ranks. The decoder says how everything would
//! be divided, `ranks` divides it, and a single device has all.

use super::ActivationDtype;

/// How a matrix, or the bias beside it, is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank has all of it.
    Whole,
    /// Every rank has an equal share of the outputs of each of these segments, neighbours of these widths. Where the
    /// ranks do not divide one, every rank has all of the matrix.
    Outputs(Vec<usize>),
    /// Every rank has an equal share of the inputs. A bias belongs to the first share.
    Inputs,
}

/// What every rank has of a buffer, and which layers write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it, the same numbers in each.
    Whole,
    /// The same; layers whose inputs are divided write it too, or add to it. `parts`: what each rank's part of such a
    /// sum is held as.
    Summed { parts: ActivationDtype },
    /// The same; a layer whose outputs are divided writes it.
    Gathered,
    /// The columns of a matrix whose outputs are divided.
    Columns,
    /// All columns, of the parts of a sum: what experts write whose inputs are divided, until they are combined.
    Parts,
}
