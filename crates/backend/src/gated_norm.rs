//! The norm of what recurrent layers give, multiplied by a gate; see `Backend::gated_norm`.

/// What is done to each `width` neighbouring elements of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNorm {
    /// Elements of one norm, which divide a row.
    pub width: usize,
    pub eps: f32,
    pub gate: GateFunction,
    pub order: NormOrder,
}

/// What an element is multiplied by, of its gate's number `g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFunction {
    /// `g * sigmoid(g)`
    Silu,
    Sigmoid,
}

/// Whether the gate is in what is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOrder {
    /// `norm(x) * weight * gate(g)`
    NormFirst,
    /// `norm(x * gate(g)) * weight`
    GateFirst,
}
