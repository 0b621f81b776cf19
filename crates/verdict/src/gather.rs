//! Asks several questions, and hands over their answers together once the last one is there.

use std::sync::{Arc, Mutex, PoisonError};

use crate::ask::Ask;
use crate::question::{Answered, Question};
use offshoot_core::error::{Error, Result};

/// Takes the answers to several questions, in the order of these.
pub(crate) type ThenAll = Box<dyn FnOnce(Vec<Result<Answered>>) + Send>;

/// The answers that have come, and who takes them.
struct Gathering {
    answers: Vec<Option<Result<Answered>>>,
    missing: usize,
    /// `None`: all answers are there, and are taken.
    then: Option<ThenAll>,
}

/// Asks questions, and returns at once. A question that could not be written has its error for an answer, and so has
/// one that the judge drops. `then` is called exactly once.
pub(crate) fn gather(judge: &dyn Ask, questions: Vec<Result<Question>>, then: ThenAll) {
    let missing = questions.len();
    if missing == 0 {
        return then(Vec::new());
    }
    let answers = std::iter::repeat_with(|| None).take(missing).collect();
    let gathering = Arc::new(Mutex::new(Gathering { answers, missing, then: Some(then) }));
    for (at, question) in questions.into_iter().enumerate() {
        let place = AnswerPlace { gathering: Arc::clone(&gathering), at, is_taken: false };
        match question {
            Ok(question) => judge.ask(question, Box::new(move |answered| place.take(answered))),
            Err(error) => place.take(Err(error)),
        }
    }
}

/// Where the answer to one question goes. A judge that drops it has no answer.
struct AnswerPlace {
    gathering: Arc<Mutex<Gathering>>,
    at: usize,
    is_taken: bool,
}

impl AnswerPlace {
    fn take(mut self, answered: Result<Answered>) {
        self.is_taken = true;
        self.note(answered);
    }

    fn note(&self, answered: Result<Answered>) {
        let mut gathering = self.gathering.lock().unwrap_or_else(PoisonError::into_inner);
        gathering.answers[self.at] = Some(answered);
        gathering.missing -= 1;
        if gathering.missing > 0 {
            return;
        }
        let (then, answers) = (gathering.then.take(), std::mem::take(&mut gathering.answers));
        drop(gathering);
        let then = then.expect("the last answer comes once");
        then(answers.into_iter().map(|answered| answered.expect("none is missing")).collect());
    }
}

impl Drop for AnswerPlace {
    fn drop(&mut self) {
        if !self.is_taken {
            self.note(Err(Error::busy("question to the judge", "the judge ends before it answers")));
        }
    }
}

/// An equal error, for another text that has no score for the same reason.
pub(crate) fn same(error: &Error) -> Error {
    match error {
        Error::Value { what, expected, found } => Error::value(what, expected, found),
        Error::Busy { what, why } => Error::busy(what, why),
        Error::EngineStopped { why } => Error::EngineStopped { why: why.clone() },
        Error::Internal(why) => Error::Internal(why.clone()),
        Error::Interrupted => Error::Interrupted,
        Error::Cuda { device, doing, why } => {
            Error::Cuda { device: device.clone(), doing: doing.clone(), why: why.clone() }
        }
        other => Error::busy("question to the judge", other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use serde_json::json;

    use super::*;
    use crate::question::{JudgeAnswer, JudgePrompt, WantedAnswer};
    use crate::scripted::ScriptedJudge;

    fn question(text: &str) -> Result<Question> {
        let answer = WantedAnswer::Json { schema: Arc::new(json!({})), max_tokens: 1 };
        Ok(Question { prompt: JudgePrompt::Text(text.to_owned()), answer })
    }

    /// The texts that are answered, errors among them, in the order of the questions.
    fn gathered(judge: &ScriptedJudge, questions: Vec<Result<Question>>) -> mpsc::Receiver<Vec<String>> {
        let (send, received) = mpsc::channel();
        let then = move |answers: Vec<Result<Answered>>| {
            let shown = |answered: Result<Answered>| match answered {
                Ok(Answered { answer: JudgeAnswer::Json(value), .. }) => value.to_string(),
                Ok(other) => format!("{other:?}"),
                Err(error) => error.to_string(),
            };
            send.send(answers.into_iter().map(shown).collect()).expect("the test waits");
        };
        gather(judge, questions, Box::new(then));
        received
    }

    #[test]
    fn answers_come_together_in_the_order_of_the_questions() {
        let judge = ScriptedJudge::new(|question| match &question.prompt {
            JudgePrompt::Text(text) => Ok(JudgeAnswer::Json(json!(text))),
            JudgePrompt::Chat { .. } => unreachable!("the questions are texts"),
        })
        .holding();
        let unwritten = Err(Error::value("prompt", "a field", "none"));
        let received = gathered(&judge, vec![question("a"), unwritten, question("b")]);
        assert!(received.try_recv().is_err());
        judge.answer_held(1);
        assert!(received.try_recv().is_err(), "one answer is missing");
        judge.answer_held(0);
        assert_eq!(received.try_recv().unwrap(), [r#""a""#, "prompt: expected a field, found none", r#""b""#]);
        assert_eq!(gathered(&judge, Vec::new()).try_recv().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_judge_that_ends_leaves_no_question_waiting() {
        let judge = ScriptedJudge::new(|_| Ok(JudgeAnswer::Json(json!(1)))).holding();
        let received = gathered(&judge, vec![question("a"), question("b")]);
        judge.answer_held(0);
        drop(judge);
        let ended = "question to the judge: the judge ends before it answers";
        assert_eq!(received.try_recv().unwrap(), ["1", ended]);
    }
}
