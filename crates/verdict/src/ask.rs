//! What answers questions about samples: an engine of ours, a server, or a function in tests.

use serde::{Deserialize, Serialize};

use crate::question::{Answered, Question};
use offshoot_core::bounded::caught;
use offshoot_core::error::Result;

/// Takes the answer to a question, or why there is none. It is called from any thread, exactly once, and returns soon.
pub type Reply = Box<dyn FnOnce(Result<Answered>) + Send>;

/// Hands an answer to who has asked. A panic there is its own: it is written to the log, and the judge goes on.
pub(crate) fn hand_over(reply: Reply, answered: Result<Answered>) {
    if let Err(panic) = caught(|| reply(answered)) {
        log::error!("a judge's answer is lost, as what takes it panics: {panic}");
    }
}

/// Answers questions about samples.
pub trait Ask: Send + Sync {
    /// Asks a question, and returns at once. A judge that is dropped before it has an answer may drop the reply.
    fn ask(&self, question: Question, reply: Reply);

    /// What tells this judge from others in records.
    fn identity(&self) -> &JudgeIdentity;

    /// What it has done so far.
    fn counts(&self) -> JudgeCounts;
}

/// What tells a judge from others in records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeIdentity {
    /// The name of its model.
    pub name: String,
    /// A digest of its model folder; `None`: a server's model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What a judge has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeCounts {
    /// Questions that it was asked.
    pub questions: usize,
    /// Tokens of the prompts that it has read, each counted whole.
    pub tokens: usize,
    /// Tokens that it has written in answers; 0 where words' probabilities are read.
    pub written: usize,
    /// Requests that were sent again after a failure; only a server's.
    pub retried: usize,
}
