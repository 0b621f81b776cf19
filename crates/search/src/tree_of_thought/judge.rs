//! The model's judgements of paths: a value for each path, or votes among all paths of a step.

use regex::Regex;

use super::{Appraisal, Evaluate, SampledText, SamplingOverrides, Texts, ThoughtPath, ThoughtSearcher, ValueBy};
use crate::assess::PATIENCE;
use crate::evaluate::{value_in, vote_in};
use crate::outcome::SampleScore;
use crate::scorer::NodeText;
use crate::tree::Prompt;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::ForkKind;
use offshoot_score::{Aggregate, expected_value};

impl<T: Texts> ThoughtSearcher<'_, '_, T> {
    /// Sets the value of each path, and the score of its node.
    pub(super) fn judge(&mut self, paths: &mut [ThoughtPath]) -> Result<()> {
        let how = self.how;
        let values = match &how.evaluate {
            _ if paths.is_empty() => return Ok(()),
            Evaluate::Scorer => {
                let nodes: Vec<NodeId> = paths.iter().map(|path| path.node).collect();
                let scored = self.scored(&nodes)?;
                scored.iter().map(|scored| self.value_of(scored)).collect()
            }
            Evaluate::Value { question, words, by, .. } => {
                let (mut known, mut asked) = (Vec::with_capacity(paths.len()), Vec::new());
                for path in &*paths {
                    known.push(match self.texts.appraise(question, &path.thoughts)? {
                        Appraisal::Value(value) => Some(value),
                        Appraisal::Ask(prompt) => {
                            asked.push((path.node, prompt));
                            None
                        }
                    });
                }
                let mut answered = self.values(asked, words, by)?.into_iter();
                let value = |known: Option<f64>| known.or_else(|| answered.next()).expect("each question has a value");
                known.into_iter().map(value).collect()
            }
            Evaluate::Vote { question, samples, choice, drawing } => {
                let thoughts: Vec<&[String]> = paths.iter().map(|path| path.thoughts.as_slice()).collect();
                let prompt = self.texts.ask_for_choice(question, &thoughts)?;
                let ballots = self.ballots(prompt, *samples as usize, drawing)?;
                shares(&ballots, choice, paths.len())
            }
        };
        for (path, value) in paths.iter_mut().zip(values) {
            path.value = value;
            if value > f64::NEG_INFINITY {
                self.tree.set_score(path.node, value);
            }
        }
        Ok(())
    }

    /// The value of a path by a scorer, from 0 to 1; one that could not be scored comes behind all others.
    pub(super) fn value_of(&self, scored: &SampleScore) -> f64 {
        let probability = |score| self.scores.as_ref().map(|scores| scores.scale().probability(score));
        scored.score().and_then(probability).unwrap_or(f64::NEG_INFINITY)
    }

    /// What the scorer makes of the texts that end at these nodes; a step is what a node adds.
    pub(super) fn scored(&mut self, nodes: &[NodeId]) -> Result<Vec<SampleScore>> {
        let Some(scores) = &mut self.scores else {
            return Err(Error::value("scorer of a tree of thoughts", "one, by which thoughts are valued", "none"));
        };
        let tree = &*self.tree;
        let mut texts: Vec<(String, Vec<usize>)> = Vec::with_capacity(nodes.len());
        for &node in nodes {
            let (mut text, mut ends) = (String::new(), Vec::new());
            for at in tree.path(node) {
                text.push_str(&tree.node(at).text);
                ends.push(text.len());
            }
            texts.push((text, ends));
        }
        let of = nodes.iter().zip(&texts).map(|(&node, (text, ends))| NodeText { node, text, ends });
        scores.scores(tree, &of.collect::<Vec<_>>(), Aggregate::Last, PATIENCE, || self.job.check_interrupted())
    }

    /// The values given by the answers to `questions`, each about a node. Failed answers are ignored; the value is 0 if
    /// all failed or no answer contains a known word.
    pub(super) fn values(
        &mut self,
        questions: Vec<(NodeId, Prompt)>,
        words: &[(String, f64)],
        by: &ValueBy,
    ) -> Result<Vec<f64>> {
        let mut texts = Vec::with_capacity(questions.len());
        let mut asked: Vec<(String, NodeId)> = Vec::new();
        for (about, prompt) in questions {
            let text = prompt.text.clone();
            if !self.values.contains_key(&text) && !asked.iter().any(|(known, _)| *known == text) {
                asked.push((text.clone(), self.tree.ask(ForkKind::Value, about, prompt)?));
            }
            texts.push(text);
        }
        let new: Vec<NodeId> = asked.iter().map(|&(_, question)| question).collect();
        let values = match by {
            ValueBy::Samples { samples, drawing } => {
                let answers = self.answers(&new, *samples as usize)?;
                if !answers.is_empty() {
                    self.draw(&answers.concat(), drawing, SampledText::Reply)?;
                }
                let value = |&answer: &NodeId| value_in(&self.tree.node(answer).text, words);
                let given = |own: &Vec<NodeId>| {
                    own.iter().filter(|&&answer| !self.tree.has_failed(answer)).map(value).collect()
                };
                answers.iter().map(|own| mean(given(own))).collect()
            }
            ValueBy::Probability => self.expected(&new, words)?,
        };
        self.values.extend(asked.into_iter().map(|(text, _)| text).zip::<Vec<f64>>(values));
        new.into_iter().for_each(|question| self.close_question(question));
        Ok(texts.iter().map(|text| self.values[text]).collect())
    }

    /// For each question, the mean value of its answers, from the words' probabilities.
    fn expected(&mut self, questions: &[NodeId], words: &[(String, f64)]) -> Result<Vec<f64>> {
        let tokens: Vec<Vec<TokenId>> =
            words.iter().map(|(word, _)| self.texts.continuation(word)).collect::<Result<_>>()?;
        let answers = self.answers(questions, words.len())?;
        let given = answers.iter().flat_map(|own| own.iter().copied().zip(tokens.iter().cloned()));
        self.give(given.collect(), true)?;
        let logprob = |&answer: &NodeId| self.tree.node(answer).logprob;
        let value = |own: &Vec<NodeId>| {
            let known = words.iter().zip(own).filter(|(_, answer)| !self.tree.has_failed(**answer));
            expected_value(known.map(|((_, value), answer)| (*value, logprob(answer))))
        };
        Ok(answers.iter().map(value).collect())
    }

    /// Forks `n` answers to each question, to be sampled or given.
    fn answers(&mut self, questions: &[NodeId], n: usize) -> Result<Vec<Vec<NodeId>>> {
        questions.iter().map(|&question| self.tree.fork_as(ForkKind::Value, question, n)).collect()
    }

    /// The texts of `n` answers to a question about all paths.
    fn ballots(&mut self, prompt: Prompt, n: usize, drawing: &SamplingOverrides) -> Result<Vec<String>> {
        let question = self.tree.ask(ForkKind::Vote, self.tree.root(), prompt)?;
        let ballots = self.tree.fork_as(ForkKind::Vote, question, n)?;
        self.draw(&ballots, drawing, SampledText::Reply)?;
        self.close_question(question);
        let cast = ballots.into_iter().filter(|&ballot| !self.tree.has_failed(ballot));
        Ok(cast.map(|ballot| self.tree.node(ballot).text.clone()).collect())
    }

    /// Releases a question and its answers.
    pub(super) fn close_question(&mut self, question: NodeId) {
        self.tree.children(question).into_iter().for_each(|answer| self.tree.close(answer));
        self.tree.close(question);
    }
}

/// The mean; independent of the order of the values to the last bit, so that equal verdicts give equal values. 0
/// without values.
fn mean(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The share of the ballots for each candidate.
fn shares(ballots: &[String], choice: &Regex, candidates: usize) -> Vec<f64> {
    let mut votes = vec![0; candidates];
    for candidate in ballots.iter().filter_map(|ballot| vote_in(ballot, choice, candidates)) {
        votes[candidate] += 1;
    }
    votes.into_iter().map(|count| f64::from(count) / ballots.len().max(1) as f64).collect()
}
