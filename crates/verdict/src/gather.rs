//! Asks several questions, a bounded number of them at once, and hands over their answers together once the last one is
//! there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::ask::Ask;
use crate::question::{Answered, Question};
use offshoot_core::error::{Error, Result};

/// The most questions of one gathering that a judge has at once: more than any judge answers side by side.
pub(crate) const AT_ONCE: usize = 256;

/// Takes the answers to several questions, in the order of these.
pub(crate) type ThenAll = Box<dyn FnOnce(Vec<Result<Answered>>) + Send>;

/// Questions that are written as they are taken.
type Questions = Box<dyn Iterator<Item = Result<Question>> + Send>;

/// Who wants the answers: once it is gone, no further question is asked. A default one is there for ever.
#[derive(Clone, Default)]
pub(crate) struct Asker(Option<Weak<()>>);

impl Asker {
    /// One that is gone once what `owner` points to is dropped.
    pub fn of(owner: &Arc<()>) -> Asker {
        Asker(Some(Arc::downgrade(owner)))
    }

    fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|owner| owner.strong_count() == 0)
    }
}

/// The answers that have come, and who takes them.
struct Gathering {
    /// Not owned: a judge holds the gatherings that wait for it.
    judge: Weak<dyn Ask>,
    asker: Asker,
    /// What is not asked yet; `None`: nothing, or a thread is about to ask the next one.
    questions: Option<Questions>,
    /// By question that was asked.
    answers: Vec<Option<Result<Answered>>>,
    /// Number of questions that were asked and have no answer.
    under_way: usize,
    /// Whether there is no further question.
    is_all: bool,
    then: ThenAll,
}

/// A gathering; `None`: all answers are there, and are taken.
type Shared = Arc<Mutex<Option<Gathering>>>;

/// Asks questions, and returns at once. A question that could not be written has its error for an answer, and so has
/// one that the judge drops. `then` is called exactly once.
pub(crate) fn gather(judge: &Arc<dyn Ask>, asker: Asker, questions: Questions, then: ThenAll) {
    let (judge, questions) = (Arc::downgrade(judge), Some(questions));
    let gathering = Gathering { judge, asker, questions, answers: Vec::new(), under_way: 0, is_all: false, then };
    ask_more(&Arc::new(Mutex::new(Some(gathering))));
}

/// Asks as many questions as may be asked now. One thread does so at a time: a judge may answer while it is asked.
fn ask_more(shared: &Shared) {
    loop {
        let mut held = lock(shared);
        let Some(gathering) = held.as_mut() else { return };
        if gathering.under_way >= AT_ONCE {
            return;
        }
        let Some(mut questions) = gathering.questions.take() else { return };
        let judge = if gathering.asker.is_gone() { None } else { gathering.judge.upgrade() };
        let at = gathering.answers.len();
        gathering.under_way += 1;
        gathering.answers.push(None);
        drop(held);
        let Some(question) = questions.next() else { return no_more(shared) };
        let place = AnswerPlace { gathering: Arc::clone(shared), at, is_taken: false };
        match (question, judge) {
            (Ok(question), Some(judge)) => judge.ask(question, Box::new(move |answered| place.take(answered))),
            (Ok(_), None) => drop(place),
            (Err(error), _) => place.take(Err(error)),
        }
        if let Some(gathering) = lock(shared).as_mut() {
            gathering.questions = Some(questions);
        }
    }
}

/// Notes that all questions are asked: the place that was held for a next one is given back.
fn no_more(shared: &Shared) {
    let mut held = lock(shared);
    let Some(gathering) = held.as_mut() else { return };
    gathering.under_way -= 1;
    gathering.answers.pop();
    gathering.is_all = true;
    end_if_whole(held);
}

/// Hands over the answers, if all are there.
fn end_if_whole(mut held: MutexGuard<'_, Option<Gathering>>) {
    let Some(Gathering { answers, then, .. }) = held.take_if(|all| all.is_all && all.under_way == 0) else { return };
    drop(held);
    then(answers.into_iter().map(|answered| answered.expect("none is missing")).collect());
}

fn lock(shared: &Shared) -> MutexGuard<'_, Option<Gathering>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the answer to one question goes. A judge that drops it has no answer.
struct AnswerPlace {
    gathering: Shared,
    at: usize,
    is_taken: bool,
}

impl AnswerPlace {
    fn take(mut self, answered: Result<Answered>) {
        self.is_taken = true;
        self.note(answered);
    }

    fn note(&self, answered: Result<Answered>) {
        let mut held = lock(&self.gathering);
        let Some(gathering) = held.as_mut() else { return };
        gathering.answers[self.at] = Some(answered);
        gathering.under_way -= 1;
        match gathering.is_all {
            true => end_if_whole(held),
            false => {
                drop(held);
                ask_more(&self.gathering);
            }
        }
    }
}

impl Drop for AnswerPlace {
    fn drop(&mut self) {
        if !self.is_taken {
            self.note(Err(Error::busy("question to the judge", "the judge ends before it answers")));
        }
    }
}

/// The error that stands for several: the first one that is not of one question alone, or else the first one.
pub(crate) fn first_error<'e>(errors: impl Iterator<Item = &'e Error> + Clone) -> Option<&'e Error> {
    errors.clone().find(|error| error.ends_all()).or_else(|| errors.clone().next())
}

/// An equal error, for another text that has no score for the same reason.
pub(crate) fn same(error: &Error) -> Error {
    match error {
        Error::Value { what, expected, found } => Error::value(what, expected, found),
        Error::Busy { what, why } => Error::busy(what, why),
        Error::EngineStopped { why } => Error::EngineStopped { why: why.clone() },
        Error::Internal(why) => Error::Internal(why.clone()),
        Error::Interrupted => Error::Interrupted,
        Error::ContextTooLong { what, tokens, context } => {
            Error::ContextTooLong { what: what.clone(), tokens: *tokens, context: *context }
        }
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
    fn gathered(judge: &Arc<ScriptedJudge>, questions: Vec<Result<Question>>) -> mpsc::Receiver<Vec<String>> {
        let (send, received) = mpsc::channel();
        let then = move |answers: Vec<Result<Answered>>| {
            let shown = |answered: Result<Answered>| match answered {
                Ok(Answered { answer: JudgeAnswer::Json(value), .. }) => value.to_string(),
                Ok(other) => format!("{other:?}"),
                Err(error) => error.to_string(),
            };
            send.send(answers.into_iter().map(shown).collect()).expect("the test waits");
        };
        let judge: Arc<dyn Ask> = Arc::<ScriptedJudge>::clone(judge);
        gather(&judge, Asker::default(), Box::new(questions.into_iter()), Box::new(then));
        received
    }

    #[test]
    fn answers_come_together_in_the_order_of_the_questions() {
        let judge = ScriptedJudge::new(|question| match &question.prompt {
            JudgePrompt::Text(text) => Ok(JudgeAnswer::Json(json!(text))),
            JudgePrompt::Chat { .. } => unreachable!("the questions are texts"),
        })
        .holding();
        let judge = Arc::new(judge);
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
        let judge = Arc::new(ScriptedJudge::new(|_| Ok(JudgeAnswer::Json(json!(1)))).holding());
        let received = gathered(&judge, vec![question("a"), question("b")]);
        judge.answer_held(0);
        drop(judge);
        let ended = "question to the judge: the judge ends before it answers";
        assert_eq!(received.try_recv().unwrap(), ["1", ended]);
        // What was not asked yet is not waited for either.
        let judge = Arc::new(ScriptedJudge::new(|_| Ok(JudgeAnswer::Json(json!(1)))).holding());
        let received = gathered(&judge, std::iter::repeat_with(|| question("a")).take(AT_ONCE + 2).collect());
        drop(judge);
        assert_eq!(received.try_recv().unwrap(), vec![ended; AT_ONCE + 2]);
    }

    #[test]
    fn a_judge_has_a_bounded_number_of_questions_at_once() {
        let judge = Arc::new(ScriptedJudge::new(|_| Ok(JudgeAnswer::Json(json!(1)))).holding());
        let received = gathered(&judge, std::iter::repeat_with(|| question("a")).take(2 * AT_ONCE).collect());
        for answered in 0..2 * AT_ONCE {
            assert_eq!(judge.held(), AT_ONCE.min(2 * AT_ONCE - answered));
            assert!(received.try_recv().is_err());
            judge.answer_held(0);
        }
        assert_eq!(received.try_recv().unwrap().len(), 2 * AT_ONCE);
    }
}
