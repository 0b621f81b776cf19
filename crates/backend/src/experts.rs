//! The words of mixtures of experts: how gate and up are combined, how a router weighs experts.

/// How the two halves of a gated block's first linear layer are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `silu(gate) * up`
    Silu,
    /// `gelu(gate) * up`, the tanh form
    Gelu,
    /// `g * sigmoid(SLOPE * g) * (u + 1)`, with `g` the gate, at most `LIMIT`, and `u` up, at most `LIMIT` away from
    /// zero (gpt-oss)
    Clamped,
}

impl Gate {
    pub const LIMIT: f32 = 7.0;
    pub const SLOPE: f32 = 1.702;
}

/// How many experts a router chooses for each row, and how it weighs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
    pub chosen: usize,
    pub scores: RouterScores,
}

impl Router {
    /// How many of `experts` experts at least one of `rows` rows chooses: the mean over choices that are independent
    /// and equally likely.
    pub fn experts_chosen(&self, experts: usize, rows: usize) -> f64 {
        let passed_over = 1.0 - self.chosen as f64 / experts as f64;
        experts as f64 * (1.0 - passed_over.powf(rows as f64))
    }
}

/// Weights of the chosen experts, those with the largest scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// The softmax over all experts; `normalise`: divided by the sum over the chosen ones.
    Softmax { normalise: bool },
    /// The softmax over the chosen experts.
    SoftmaxOfChosen,
    /// The sigmoid of each expert's score; `normalise`: divided by the sum over the chosen ones.
    Sigmoid { normalise: bool },
}

/// What the linear layers of experts are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertKind {
    /// `expert_linear`
    Linear,
    /// `expert_gated`: the outputs are gates and, behind them, as many ups.
    Gated,
}

/// What an expert's linear layer reads: `x` has a row for each row of the step, or for each place at an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInput {
    Rows,
    Places,
}
