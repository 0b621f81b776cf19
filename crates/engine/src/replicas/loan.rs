//! A prefix on its way from one replica to another.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Select};

use super::prefix::Prefix;
use crate::LentPart;
use offshoot_core::ids::TokenId;

/// A prefix on its way from one replica to another.
pub(super) struct Loan {
    pub lender: usize,
    pub borrower: usize,
    pub prefix: Prefix,
    pub tokens: Arc<[TokenId]>,
    pub stage: LoanStage,
    /// When the borrower waits no longer.
    pub until: Instant,
}

pub(super) enum LoanStage {
    /// The lender is asked for a part.
    Asked(Receiver<LentPart>),
    /// The borrower takes a part that ends at this position; more follow.
    Taken { upto: usize, taken: Receiver<bool> },
}

impl Loan {
    pub fn watch<'a>(&'a self, select: &mut Select<'a>) {
        match &self.stage {
            LoanStage::Asked(lent) => select.recv(lent),
            LoanStage::Taken { taken, .. } => select.recv(taken),
        };
    }
}
