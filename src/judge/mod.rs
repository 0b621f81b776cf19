//! The judge: runs untrusted candidate programs against a problem's tests in an operating-system sandbox and says what a
//! contest's judge says. A verdict is made here and in checker processes of our own, never from what a candidate claims. Reading
//! problems is `task`'s; what a verdict is worth to a search is the search's.

pub mod sandbox;
mod verdict;

use crate::error::{Error, Result};
use crate::task::problem::{Problem, Suite};

pub use crate::task::language::Language;
pub use verdict::{Judgement, TestVerdict, Verdict};

/// Whether a candidate may run where its files and its network cannot be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    Required,
    /// The user said so by name.
    Unsafe,
}

/// Judges candidates; shared by the threads that do.
pub struct Judge {
    isolation: Isolation,
}

impl Judge {
    /// Probes the sandbox and the toolchains. Fails in one sentence where files and network cannot be isolated and `isolation`
    /// requires it.
    pub fn open(isolation: Isolation) -> Result<Judge> {
        Ok(Judge { isolation })
    }

    /// Judges the candidate whose text is `text`; blocks until that is done, and may be called from several threads at once.
    /// Fails for what is not the candidate's fault: no interpreter, a full disk, a suite that is not for this language.
    pub fn judge(&self, problem: &Problem, language: &Language, text: &str) -> Result<Judgement> {
        let _program = problem.assembly.program(text);
        match &problem.suite {
            Suite::Streams(_) => Err(Error::Internal(format!("streams, {:?}, {language:?}", self.isolation))),
            Suite::Script(_) | Suite::Calls(_) | Suite::Reference(_) => {
                Err(Error::Internal("a suite of calls is not run yet".to_string()))
            }
        }
    }
}
