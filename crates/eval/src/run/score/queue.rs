//! Texts that wait for a scorer: they are handed to it as they are read and given back in the same order, each with its
//! score. The texts about one question are a tree of the scorer's, equal ones are scored once. How many are held at
//! once is bounded, whatever a file has.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_score::{ScoredTree, TextScorer};
use offshoot_search::scorer::step_ends;
use offshoot_search::settings::SampleScoring;
use offshoot_search::{SampleScore, why_unscored};
use offshoot_text::Message;

/// How long the queue waits for a score before it looks for an interrupt.
const PATIENCE: Duration = Duration::from_millis(100);

/// Lines with their texts, in order. `L`: what a line is to whoever asks.
pub(super) struct TextQueue<'s, L> {
    scorer: &'s dyn TextScorer,
    how: &'s SampleScoring,
    /// Neighbouring lines about one question.
    groups: VecDeque<QuestionGroup<L>>,
    /// How many texts there are in the lines; a line without texts counts for one.
    held: usize,
    /// How many there may be; a line is put in whole.
    most: usize,
}

/// The lines about one question.
struct QuestionGroup<L> {
    question: Vec<Message>,
    /// `Err`: why the scorer cannot take the question.
    tree: Result<Box<dyn ScoredTree>, String>,
    /// The texts, by their indices; equal ones are one.
    known: HashMap<String, usize>,
    texts: Vec<QueuedText>,
    lines: VecDeque<(L, Vec<usize>)>,
}

struct QueuedText {
    steps: usize,
    /// `None`: it has not come.
    score: Option<SampleScore>,
}

impl<'s, L> TextQueue<'s, L> {
    /// A queue of at most `most` texts, or one line.
    pub fn new(scorer: &'s dyn TextScorer, how: &'s SampleScoring, most: usize) -> TextQueue<'s, L> {
        TextQueue { scorer, how, groups: VecDeque::new(), held: 0, most }
    }

    /// Whether a line should be taken before another one is put in.
    pub fn is_full(&self) -> bool {
        self.held >= self.most
    }

    /// Puts in a line whose texts answer `question`.
    ///
    /// # Errors
    ///
    /// The scorer works no more.
    pub fn put(&mut self, line: L, question: Vec<Message>, texts: Vec<String>) -> Result<()> {
        let name = &self.scorer.identity().name;
        if self.groups.back().is_none_or(|group| group.question != question) {
            let tree = match self.scorer.begin(&question) {
                Ok(tree) => Ok(tree),
                Err(error) => Err(why_unscored(name, error)?),
            };
            let (known, texts, lines) = (HashMap::new(), Vec::new(), VecDeque::new());
            self.groups.push_back(QuestionGroup { question, tree, known, texts, lines });
        }
        let group = self.groups.back_mut().expect("it was pushed, or has this question");
        self.held += texts.len().max(1);
        let of_line =
            texts.into_iter().map(|text| group.begin(text, self.how, name)).collect::<Result<Vec<usize>>>()?;
        group.lines.push_back((line, of_line));
        Ok(())
    }

    /// Takes the first line, with the score of each of its texts, waiting for those that have not come; `None`: there
    /// is no line.
    ///
    /// # Errors
    ///
    /// `check_interrupted` has one; the scorer works no more.
    pub fn take(&mut self, check_interrupted: &dyn Fn() -> Result<()>) -> Result<Option<(L, Vec<SampleScore>)>> {
        // The last group may get further lines.
        while self.groups.len() > 1 && self.groups[0].lines.is_empty() {
            self.groups.pop_front();
        }
        let Some(group) = self.groups.front_mut() else { return Ok(None) };
        let Some((line, texts)) = group.lines.pop_front() else { return Ok(None) };
        self.held -= texts.len().max(1);
        let name = &self.scorer.identity().name;
        let scores = texts.into_iter().map(|at| group.wait(at, self.how, name, check_interrupted));
        Ok(Some((line, scores.collect::<Result<_>>()?)))
    }
}

impl<L> QuestionGroup<L> {
    /// Hands a text to the scorer, unless it has it. Returns its index.
    fn begin(&mut self, text: String, how: &SampleScoring, scorer: &str) -> Result<usize> {
        if let Some(&at) = self.known.get(&text) {
            return Ok(at);
        }
        let at = self.texts.len();
        let ends = step_ends(&text, &how.delimiter);
        let begins = [0].iter().chain(&ends);
        let steps: Vec<String> = begins.zip(&ends).map(|(&begin, &end)| text[begin..end].to_owned()).collect();
        let started = match &mut self.tree {
            Ok(tree) => match tree.start(NodeId::new(at), None, &steps) {
                Ok(()) => None,
                Err(error) => Some(why_unscored(scorer, error)?),
            },
            Err(why) => Some(why.clone()),
        };
        let score = started.map(|score_error| SampleScore::Unscored { score_error });
        self.texts.push(QueuedText { steps: ends.len(), score });
        self.known.insert(text, at);
        Ok(at)
    }

    /// The score of the text with this index.
    fn wait(
        &mut self,
        at: usize,
        how: &SampleScoring,
        scorer: &str,
        check_interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<SampleScore> {
        loop {
            if let Some(score) = &self.texts[at].score {
                return Ok(score.clone());
            }
            check_interrupted()?;
            let Ok(tree) = &mut self.tree else {
                return Err(Error::Internal("a text waits for a question that the scorer cannot take".to_owned()));
            };
            match tree.poll(PATIENCE) {
                Some((node, found)) => {
                    tree.prune(node);
                    let text = &mut self.texts[node.ix()];
                    text.score = Some(match found {
                        Ok(found) => SampleScore::of(&found, text.steps, how.aggregate),
                        Err(error) => SampleScore::Unscored { score_error: why_unscored(scorer, error)? },
                    });
                }
                None if tree.waiting() == 0 => {
                    return Err(Error::Internal(format!("a scorer has forgotten text {at} of a question")));
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use offshoot_score::scripted::ScriptedEvent;
    use offshoot_score::{Aggregate, ScriptedAnswer, ScriptedScore, ScriptedScorer};

    /// The share of each step's bytes that are `x`; a step with a `!` has no score. Long texts come late.
    fn script(answer: &ScriptedAnswer<'_>) -> ScriptedScore {
        if answer.text().contains('!') {
            return ScriptedScore::failing("it is loud");
        }
        let share = |step: &String| step.matches('x').count() as f64 / step.len().max(1) as f64;
        ScriptedScore::steps(answer.steps.iter().map(share)).after_polls(answer.text().len() % 3)
    }

    fn asked(text: &str) -> Vec<Message> {
        vec![Message::user(text)]
    }

    #[test]
    fn lines_come_back_in_order_and_questions_are_trees() {
        let scorer = ScriptedScorer::new(script);
        let how = SampleScoring { delimiter: "\n".to_owned(), aggregate: Aggregate::Min };
        let mut queue = TextQueue::new(&scorer, &how, 3);
        let lines =
            [("p", vec!["xx\nxy", "z!"]), ("p", vec!["xx\nxy"]), ("q", vec!["x"]), ("p", vec!["yy"]), ("q", vec![])];
        let mut taken = Vec::new();
        for (ix, (question, texts)) in lines.iter().enumerate() {
            queue.put(ix, asked(question), texts.iter().map(ToString::to_string).collect()).expect("it works");
            if queue.is_full() {
                taken.extend(queue.take(&|| Ok(())).expect("it works"));
            }
        }
        while let Some(line) = queue.take(&|| Ok(())).expect("it works") {
            taken.push(line);
        }
        let scores: Vec<(usize, Vec<Option<f64>>)> =
            taken.iter().map(|(ix, scores)| (*ix, scores.iter().map(SampleScore::score).collect())).collect();
        let expected =
            [(0, vec![Some(0.5), None]), (1, vec![Some(0.5)]), (2, vec![Some(1.0)]), (3, vec![Some(0.0)]), (4, vec![])];
        assert_eq!(scores, expected);
        let events = scorer.events();
        let started = events.iter().filter(|event| matches!(event, ScriptedEvent::Started { .. })).count();
        let began = events.iter().filter(|event| matches!(event, ScriptedEvent::Began { .. })).count();
        assert_eq!((started, began), (4, 4), "equal texts once, neighbours of one question in one tree");
    }

    #[test]
    fn an_interrupt_ends_the_wait() {
        let scorer = ScriptedScorer::new(|_: &ScriptedAnswer<'_>| ScriptedScore::whole(0.5).never());
        let how = SampleScoring::default();
        let mut queue = TextQueue::new(&scorer, &how, 1);
        queue.put((), asked("p"), vec!["x".to_owned()]).expect("it works");
        let looks = Cell::new(0);
        let check = || {
            looks.set(looks.get() + 1);
            if looks.get() > 2 { Err(Error::Interrupted) } else { Ok(()) }
        };
        assert!(matches!(queue.take(&check), Err(Error::Interrupted)));
    }
}
