//! Prefixes that one replica has computed, or computes, and another one needs: they are copied from engine to engine
//! where that is faster than computing them again. What needs such a prefix waits in the router's queue meanwhile, and
//! other work goes before it. The wait is bounded: if the lender ends, has lost the prefix, or makes no progress with
//! it, the borrower computes it.
//!
//! Nothing can wait in a circle: engines never wait, and a lender that has not been given a prefix says so at once.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{TryRecvError, bounded};

use crate::{Command, Continuation, Lend, LentPart, QueueKey};
use offshoot_core::ids::TokenId;

use super::loan::{Loan, LoanStage};
use super::prefix::{BLOCK, Prefix};
use super::router::Router;

/// Prefixes that are copied at a time, of each of which one part is in host memory.
const MOST_LOANS: usize = 16;

/// The least time that a part of a prefix is waited for. The engine that computes it says much sooner if it does not
/// get on with it; this is for one whose steps take so long.
const LEAST_WAIT: Duration = Duration::from_secs(2);

/// How many times its own estimate the computing of a prefix may take.
const TIMES_ESTIMATED: f64 = 8.0;

impl Router {
    /// Whether a task of a replica's queue waits for a prefix that is copied there. Begins to copy one if that pays.
    pub fn waits_for_loan(&mut self, at: usize, key: &QueueKey) -> bool {
        let Some(task) = self.replicas[at].queue.get(key) else { return false };
        let own = self.replicas[at].begun.known(&task.prefix);
        let brings = |loan: &Loan| loan.borrower == at && loan.prefix.shared_with(&task.prefix) > own;
        if self.loans.iter().any(brings) {
            return true;
        }
        let Some(record) = self.branches.get(&key.branch) else { return false };
        // What is copied is found by its tokens alone.
        if record.path.salt().is_some() {
            return false;
        }
        // Tokens that are scored need rows, whether their keys and values are there or not.
        let (given, usable): (&[TokenId], usize) = match &task.extend.continuation {
            Continuation::Given { tokens, scoring: None } => (tokens, task.prefix.tokens()),
            Continuation::Given { .. } | Continuation::Sampled { .. } => (&[], record.path.len()),
        };
        let facts = self.replicas[at].engine.facts();
        // Nor is what an adapter has computed.
        let usable = usable.min(record.path.adapters().first().unwrap_or(usize::MAX));
        // Both are powers of two: whole pages of whole blocks.
        let unit = facts.page_tokens.max(BLOCK);
        let lends = |&other: &usize| other != at && self.replicas[other].lives();
        let has = |other: usize| self.replicas[other].begun.known(&task.prefix).min(usable) / unit * unit;
        let lenders = (0..self.replicas.len()).filter(lends).map(|other| (has(other), Reverse(other)));
        let Some((tokens, Reverse(lender))) = lenders.max() else { return false };
        let from = own / unit * unit;
        let pays = tokens > from && facts.prefix_costs.copying_pays(tokens - from);
        if !pays || self.loans.len() >= MOST_LOANS {
            return false;
        }
        let all = [&record.path.all()[..], given].concat();
        let (prefix, tokens) = (task.prefix.first(tokens), Arc::from(&all[..tokens]));
        log::debug!("replica {at} borrows {} tokens from {from} on of replica {lender}", prefix.tokens());
        let loan = self.ask(lender, at, prefix, tokens, from);
        self.loans.push(loan);
        true
    }

    /// Asks the lender for the part that begins at `from`.
    fn ask(&mut self, lender: usize, borrower: usize, prefix: Prefix, tokens: Arc<[TokenId]>, from: usize) -> Loan {
        let (reply, lent) = bounded(1);
        let costs = self.replicas[lender].engine.facts().prefix_costs;
        let estimated = TIMES_ESTIMATED * costs.computed_token * (tokens.len() - from) as f64;
        let wait = Duration::try_from_secs_f64(estimated).unwrap_or(LEAST_WAIT) + LEAST_WAIT;
        self.send(lender, Command::Lend(Lend { tokens: tokens.clone(), from, reply }));
        Loan { lender, borrower, prefix, tokens, stage: LoanStage::Asked(lent), until: Instant::now() + wait }
    }

    /// Passes on what was lent. Of a loan that is over, the borrower's tasks may begin.
    pub fn take_lent(&mut self) {
        for loan in std::mem::take(&mut self.loans) {
            let borrower = &self.replicas[loan.borrower];
            if !borrower.lives() || borrower.queue.is_empty() {
                continue; // Nobody waits for it.
            }
            let (borrower, prefix) = (loan.borrower, loan.prefix.clone());
            match self.go_on(loan) {
                Some(loan) => self.loans.push(loan),
                // What was not copied it computes now: it is not asked for again.
                None => drop(self.replicas[borrower].begun.note(&prefix)),
            }
        }
    }

    /// The loan's next stage; `None` if it is over.
    fn go_on(&mut self, loan: Loan) -> Option<Loan> {
        let is_late = loan.until <= Instant::now();
        match &loan.stage {
            LoanStage::Asked(lent) => match lent.try_recv() {
                Ok(part) => self.pass_on(part, loan),
                Err(TryRecvError::Empty) if !is_late => Some(loan),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
            },
            LoanStage::Taken { upto, taken } => match taken.try_recv() {
                Ok(true) => Some(self.ask(loan.lender, loan.borrower, loan.prefix, loan.tokens, *upto)),
                Err(TryRecvError::Empty) if !is_late => Some(loan),
                Ok(false) | Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
            },
        }
    }

    /// Gives a part to the borrower. After the last one it is ahead of the tasks that wait for it.
    fn pass_on(&mut self, part: LentPart, loan: Loan) -> Option<Loan> {
        if part.positions.is_empty() {
            return None;
        }
        let (upto, is_last) = (part.positions.end, part.is_last);
        let (reply, taken) = bounded(1);
        self.send(loan.borrower, Command::Borrow { tokens: loan.tokens.clone(), part, reply });
        (!is_last).then(|| Loan { stage: LoanStage::Taken { upto, taken }, until: Instant::now() + LEAST_WAIT, ..loan })
    }
}
