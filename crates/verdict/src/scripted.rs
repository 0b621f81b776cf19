//! A judge without a model, in which a closure answers each question. Verdicts, and what asks for them, are tested on
//! it. It answers at once, on the thread that asks, or holds its answers until the test releases them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ask::{Ask, JudgeCounts, JudgeIdentity, Reply};
use crate::question::{Answered, JudgeAnswer, JudgePrompt, Question};
use offshoot_core::error::Result;

type Script = dyn Fn(&Question) -> Result<JudgeAnswer> + Send + Sync;

/// A judge that a closure scripts. It counts a prompt's bytes as its tokens.
pub struct ScriptedJudge {
    script: Box<Script>,
    identity: JudgeIdentity,
    holds: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: Vec<Question>,
    tokens: usize,
    held: Vec<(Result<Answered>, Reply)>,
}

impl ScriptedJudge {
    /// A judge that calls `script` for each question. Its name is `scripted`.
    pub fn new(script: impl Fn(&Question) -> Result<JudgeAnswer> + Send + Sync + 'static) -> ScriptedJudge {
        let identity = JudgeIdentity { name: "scripted".to_owned(), digest: None };
        ScriptedJudge { script: Box::new(script), identity, holds: false, state: Mutex::default() }
    }

    /// The judge has this identity.
    pub fn identified(self, identity: JudgeIdentity) -> ScriptedJudge {
        ScriptedJudge { identity, ..self }
    }

    /// The judge holds its answers until [`answer_held`](Self::answer_held).
    pub fn holding(self) -> ScriptedJudge {
        ScriptedJudge { holds: true, ..self }
    }

    /// Hands over the answer with the number `at` among those that are held, in the order in which they were asked
    /// for.
    ///
    /// # Panics
    ///
    /// Fewer are held.
    pub fn answer_held(&self, at: usize) {
        let (answered, reply) = self.state().held.remove(at);
        reply(answered);
    }

    /// How many answers are held.
    pub fn held(&self) -> usize {
        self.state().held.len()
    }

    /// The questions so far, in the order in which they were asked.
    pub fn questions(&self) -> Vec<Question> {
        self.state().asked.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ask for ScriptedJudge {
    fn ask(&self, question: Question, reply: Reply) {
        let tokens = match &question.prompt {
            JudgePrompt::Text(text) => text.len(),
            JudgePrompt::Chat { messages, .. } => {
                messages.iter().filter_map(|turn| turn.last_text()).map(str::len).sum()
            }
        };
        let answered = (self.script)(&question).map(|answer| Answered { answer, tokens });
        let mut state = self.state();
        state.asked.push(question);
        state.tokens += answered.as_ref().map_or(0, |answered| answered.tokens);
        match self.holds {
            true => state.held.push((answered, reply)),
            false => {
                drop(state);
                reply(answered);
            }
        }
    }

    fn identity(&self) -> &JudgeIdentity {
        &self.identity
    }

    fn counts(&self) -> JudgeCounts {
        let state = self.state();
        JudgeCounts { questions: state.asked.len(), tokens: state.tokens, written: 0, retried: 0 }
    }
}
