//! Reward models as scorers of trees of answers, on engines with tiny random models.

mod costs;
mod faults;
mod scorers;
mod stepwise;
