//! The verdicts on the samples of one item: the questions about a text are written and asked here, one by one. A tree
//! of texts, in which texts are compared, too, stands in `tree`.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::ask::Ask;
use crate::gather::{Asker, first_error, gather, same};
use crate::memo::Memo;
use crate::question::{Answered, JudgeAnswer, JudgePrompt, Question, WantedAnswer};
use crate::rubric::points_in_prompts;
use crate::tree::VerdictTree;
use crate::verdict::Verdict;
use offshoot_core::bounded::caught;
use offshoot_core::error::{Error, Result};
use offshoot_score::ScoredTree;

/// Writes a prompt about samples of one item, from fields that come in addition to the item's own:
///
/// - of a verdict on one text, `sample` and `thoughts`: the text, under both names; and whatever else is handed in with
///   it ([`ItemVerdicts::of_one`]). By a rubric also `criterion` and `points`;
/// - of a pair, `first` and `second`: the texts in the order in which they are shown;
/// - of a group, `samples`: the list of texts, which answers number from 1 up; `count`: how many there are; `take`: how
///   many of them are to be chosen.
pub type WritePrompt = Arc<dyn Fn(&Map<String, Value>) -> Result<JudgePrompt> + Send + Sync>;

/// Takes the verdict on a text, or why there is none. It is called from any thread, exactly once.
pub type Then = Box<dyn FnOnce(Result<TextVerdict>) + Send>;

/// The verdict on a text.
#[derive(Clone, Debug, PartialEq)]
pub struct TextVerdict {
    /// The text's score, from 0 to 1.
    pub score: f64,
    /// What the judge has answered, as records have it. Of a question about the text: the JSON value, or an object of
    /// the words' probabilities; by a rubric, a list of these in the order of the criteria. Of pairs `{"won", "of"}`:
    /// the sum of the text's probabilities of winning, and in how many pairs. Of groups `{"chosen", "of", "answers"}`:
    /// how often it was chosen, of how many answers, and for each answer `{"number", "answer"}`, the text's number in
    /// the question and what was answered.
    pub detail: Value,
    /// Number of tokens of all prompts about the text, each counted whole.
    pub tokens: usize,
    /// Where texts are compared: why the first question about it that has no answer has none. The score is then made
    /// of the others.
    pub lacking: Option<String>,
}

/// The verdicts on the samples of one item. Clones ask the same judge, and know what each other has asked.
#[derive(Clone)]
pub struct ItemVerdicts {
    judge: Arc<dyn Ask>,
    verdict: Arc<Verdict>,
    write: WritePrompt,
    key: u64,
    memo: Arc<Memo>,
}

impl ItemVerdicts {
    /// Verdicts on samples of one item. `write` writes prompts about this item; `key`: what pairs and groups are drawn
    /// by, the same for an item whenever it is judged.
    pub fn new(judge: Arc<dyn Ask>, verdict: Arc<Verdict>, write: WritePrompt, key: u64) -> ItemVerdicts {
        ItemVerdicts { judge, verdict, write, key, memo: Arc::default() }
    }

    /// What is asked.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// What pairs and groups are drawn by.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// The judge that is asked.
    pub(crate) fn judge(&self) -> &Arc<dyn Ask> {
        &self.judge
    }

    /// What writes the questions. It does not hold the judge.
    pub(crate) fn writer(&self) -> QuestionWriter {
        QuestionWriter(Arc::clone(&self.write))
    }

    /// The item's samples as they come; their scores are probabilities. Each distinct text is judged once. Where texts
    /// are compared, they are judged once the tree is [complete](ScoredTree::complete).
    pub fn tree(&self) -> Box<dyn ScoredTree> {
        Box::new(VerdictTree::new(self.clone()))
    }

    /// Asks about one text, and returns at once. `extra`: fields for the prompt in addition to the text. An equal text
    /// with equal fields is asked about once.
    ///
    /// `then` has an error if a question cannot be written, has no answer, or one that is none of those asked for; and
    /// if the verdict compares texts.
    pub fn of_one(&self, text: &str, extra: Map<String, Value>, then: Then) {
        self.memo.of_text(text, &extra, then, |then| self.ask(text, &extra, then));
    }

    /// Asks about one text.
    fn ask(&self, text: &str, extra: &Map<String, Value>, then: Then) {
        let of_text = |more: &[(&str, Value)]| {
            let own = [("sample", text.into()), ("thoughts", text.into())];
            let named = own.into_iter().chain(more.iter().cloned()).map(|(name, value)| (name.to_owned(), value));
            extra.clone().into_iter().chain(named).collect()
        };
        let writer = self.writer();
        let questions: Vec<Result<Question>> = match &*self.verdict {
            Verdict::Each(rule) => vec![writer.question(&of_text(&[]), rule.wanted())],
            Verdict::Rubric(rubric) => {
                let criteria = rubric.criteria().iter();
                let fields = criteria.map(|criterion| {
                    let points = points_in_prompts(criterion.points);
                    of_text(&[("criterion", criterion.criterion.as_str().into()), ("points", points)])
                });
                fields.map(|fields| writer.question(&fields, rubric.rule().wanted())).collect()
            }
            Verdict::Pairs(_) | Verdict::Groups(_) => {
                let (what, expected) = ("verdict on one text", "`words`, `score` or `rubric`");
                return then(Err(Error::value(what, expected, "`pairs` or `groups`, which compare texts")));
            }
        };
        let verdict = Arc::clone(&self.verdict);
        gather(
            self.judge(),
            Asker::default(),
            Box::new(questions.into_iter()),
            Box::new(move |answers| then(on_text(&verdict, answers))),
        );
    }
}

/// Writes the questions about the samples of one item.
pub(crate) struct QuestionWriter(WritePrompt);

impl QuestionWriter {
    /// A question with these fields.
    pub fn question(&self, fields: &Map<String, Value>, answer: WantedAnswer) -> Result<Question> {
        match caught(|| (self.0)(fields)) {
            Ok(prompt) => Ok(Question { prompt: prompt?, answer }),
            Err(panic) => Err(unwritten(panic)),
        }
    }
}

/// The error of a question whose writing panics.
pub(crate) fn unwritten(panic: String) -> Error {
    Error::value("question to the judge", "one that can be written and sent", format!("a panic: {panic}"))
}

/// The verdict on a text by the answers to the questions about it.
fn on_text(verdict: &Verdict, answers: Vec<Result<Answered>>) -> Result<TextVerdict> {
    if let Some(error) = first_error(answers.iter().filter_map(|answered| answered.as_ref().err())) {
        return Err(same(error));
    }
    let answers = answers.into_iter().collect::<Result<Vec<Answered>>>()?;
    let tokens = answers.iter().map(|answered| answered.tokens).sum();
    let answers: Vec<JudgeAnswer> = answers.into_iter().map(|answered| answered.answer).collect();
    let (score, detail) = match (verdict, &answers[..]) {
        (Verdict::Each(rule), [answer]) => (rule.score(answer)?, rule.recorded(answer)),
        (Verdict::Rubric(rubric), answers) => (rubric.score(answers)?, rubric.recorded(answers)),
        (Verdict::Each(_) | Verdict::Pairs(_) | Verdict::Groups(_), _) => {
            return Err(Error::Internal("a verdict on one text has answers of another one".to_owned()));
        }
    };
    Ok(TextVerdict { score, detail, tokens, lacking: None })
}
