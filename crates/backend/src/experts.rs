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

/// How many experts a router chooses for each row, among which, and how it weighs them.
///
/// A router without groups and without a choosing bias (see [`Backend::route`](crate::Backend::route)) chooses the
/// experts with the largest scores. Any other one chooses by *merits*: the merit of an expert is the softmax over all
/// experts, or the sigmoid, of its score, as `scores` says, plus its bias. On equal scores, or merits, the expert with
/// the lower number goes first. A bias never enters a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    pub chosen: usize,
    pub scores: RouterScores,
    /// `None`: all experts may be chosen.
    pub groups: Option<RouterGroups>,
    /// The last so many experts have no matrices: each gives its input.
    pub identities: usize,
    pub weighs: RouterWeighs,
}

/// What the weights of experts multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterWeighs {
    /// What experts give.
    Outputs,
    /// What they read (Llama 4).
    Inputs,
}

impl Router {
    /// A router that chooses among all experts, each of which has matrices.
    pub fn new(chosen: usize, scores: RouterScores) -> Self {
        Self { chosen, scores, groups: None, identities: 0, weighs: RouterWeighs::Outputs }
    }

    /// Whether it can choose among `experts` experts: the groups are equally large and have what their merit needs,
    /// and those that are kept have as many experts as are chosen.
    pub fn chooses_among(&self, experts: usize) -> bool {
        let among = match self.groups {
            None => experts,
            Some(groups) if groups.count == 0 || !experts.is_multiple_of(groups.count) => 0,
            Some(groups) if experts / groups.count < groups.merit.experts() => 0,
            Some(groups) => groups.chosen.min(groups.count) * (experts / groups.count),
        };
        self.chosen <= among && self.identities <= experts
    }

    /// How many of `experts` experts that have matrices at least one of `rows` rows chooses: the mean over choices that
    /// are independent and equally likely.
    pub fn experts_chosen(&self, experts: usize, rows: usize) -> f64 {
        let passed_over = 1.0 - self.chosen as f64 / (experts + self.identities) as f64;
        experts as f64 * (1.0 - passed_over.powf(rows as f64))
    }
}

/// Experts in groups of neighbours, equally many in each, of which a row keeps the best: it chooses only among their
/// experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterGroups {
    pub count: usize,
    /// How many groups a row keeps. On equal merits the group with the lower number goes first.
    pub chosen: usize,
    pub merit: GroupMerit,
}

/// The merit of a group, from the merits of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMerit {
    /// The largest.
    Best,
    /// The sum of the two largest.
    SumOfTwo,
}

impl GroupMerit {
    /// The fewest experts of a group.
    pub fn experts(self) -> usize {
        match self {
            Self::Best => 1,
            Self::SumOfTwo => 2,
        }
    }
}

/// Weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouterScores {
    /// The softmax over all experts; `normalise`: divided by the sum over the chosen ones.
    Softmax { normalise: bool },
    /// The softmax over the chosen experts.
    SoftmaxOfChosen,
    /// The sigmoid of each expert's score, divided by the sum over the chosen ones and a number that keeps it above
    /// zero, if there is one.
    Sigmoid { sum: Option<LeastSum> },
    /// For each choice the softmax over the experts that are not chosen before it, without those whose score `s` is too
    /// far below the largest one `m` of these: `(m - s) / max(|s|, m) > spread` (Phi-3.5-MoE). With groups or a bias
    /// its merits are those of a softmax.
    SparseMixer { spread: f32 },
}

/// What is added to a sum of sigmoids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeastSum {
    /// 1e-20 (DeepSeek-V3)
    Tiny,
    /// 1e-6 (LFM2)
    Millionth,
}

impl LeastSum {
    pub fn number(self) -> f32 {
        match self {
            Self::Tiny => 1e-20,
            Self::Millionth => 1e-6,
        }
    }
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
