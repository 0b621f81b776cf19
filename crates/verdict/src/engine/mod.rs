//! A judge that is a model on an engine of ours: the one that samples, or another one. Words are not sampled: their
//! probabilities are read from the model. JSON is the likeliest text that keeps the schema. This file holds what
//! clients have; `thread` holds the judge's threads, and `written` turns questions into tokens.

mod thread;
mod written;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ask::{Ask, JudgeCounts, JudgeIdentity, Reply};
use crate::question::Question;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::AdapterVersion;
use offshoot_engine::EngineHandle;
use offshoot_text::{SpecialText, Tokenizer};
use thread::JudgeThread;

/// A model on an engine as a judge. Its questions run in one batch with whatever else the engine does, and prompts that
/// begin alike are computed once.
///
/// Dropping it ends its threads; questions that have no answer by then have none.
pub struct EngineJudge {
    identity: JudgeIdentity,
    counts: Arc<Counts>,
    thread: JudgeThread,
}

/// What the judge has done.
#[derive(Default)]
pub(crate) struct Counts {
    questions: AtomicUsize,
    pub tokens: AtomicUsize,
    pub written: AtomicUsize,
}

impl EngineJudge {
    /// A judge on `engine`. `tokenizer`: its model's; `special_text`: what becomes of special tokens' texts in prompts,
    /// where samples may have written them; `identity`: what records call it.
    ///
    /// # Errors
    ///
    /// The engine's model is a scorer; no thread starts.
    pub fn new(
        engine: EngineHandle,
        tokenizer: Arc<Tokenizer>,
        special_text: SpecialText,
        identity: JudgeIdentity,
    ) -> Result<EngineJudge> {
        EngineJudge::with_adapter(engine, tokenizer, special_text, identity, None)
    }

    /// A judge whose questions are computed with an adapter of the engine's, if one is given.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub fn with_adapter(
        engine: EngineHandle,
        tokenizer: Arc<Tokenizer>,
        special_text: SpecialText,
        identity: JudgeIdentity,
        adapter: Option<AdapterVersion>,
    ) -> Result<EngineJudge> {
        if engine.facts().values.is_some() {
            return Err(Error::value("the judge's engine", "a model that generates", "a reward model"));
        }
        let counts: Arc<Counts> = Arc::default();
        let thread = JudgeThread::start(engine, tokenizer, special_text, adapter, Arc::clone(&counts))?;
        Ok(EngineJudge { identity, counts, thread })
    }
}

impl Ask for EngineJudge {
    fn ask(&self, question: Question, reply: Reply) {
        self.counts.questions.fetch_add(1, Ordering::Relaxed);
        self.thread.ask(question, reply);
    }

    fn identity(&self) -> &JudgeIdentity {
        &self.identity
    }

    fn counts(&self) -> JudgeCounts {
        let Counts { questions, tokens, written } = &*self.counts;
        let [questions, tokens, written] = [questions, tokens, written].map(|count| count.load(Ordering::Relaxed));
        JudgeCounts { questions, tokens, written, retried: 0 }
    }
}
