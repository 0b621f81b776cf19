//! The model's judgements of paths: a value for each, or votes among all of a step.

use petgraph::graph::NodeIndex;

use super::{Path, Thinker};
use crate::engine::ForkKind;
use crate::error::Result;
use crate::ids::TokenId;
use crate::search::evaluate::{expected_value, value_in, vote_in};
use crate::task::Prompt;
use crate::task::tree_of_thought::{Evaluate, Question, ValueBy};

impl Thinker<'_, '_> {
    /// Gives each path its value, and its node that score.
    pub(super) fn judge(&mut self, paths: &mut [Path]) -> Result<()> {
        let how = self.how;
        let values = match &how.evaluate {
            _ if paths.is_empty() => return Ok(()),
            Evaluate::Value { question, words, by, .. } => {
                let ask = |path: &Path| how.ask(question, self.item, &path.thoughts);
                let prompts = paths.iter().map(|path| Ok((path.node, ask(path)?))).collect::<Result<_>>()?;
                self.values(prompts, words, by)?
            }
            Evaluate::Vote { question, samples, .. } => self.votes(paths, question, *samples as usize)?,
        };
        for (path, value) in paths.iter_mut().zip(values) {
            path.value = value;
            self.tree.set_score(path.node, value);
        }
        Ok(())
    }

    /// The values that the answers to `questions`, each about a node, give.
    pub(super) fn values(
        &mut self,
        questions: Vec<(NodeIndex, Prompt)>,
        words: &[(String, f64)],
        by: &ValueBy,
    ) -> Result<Vec<f64>> {
        let mut texts = Vec::with_capacity(questions.len());
        let mut asked: Vec<(String, NodeIndex)> = Vec::new();
        for (about, prompt) in questions {
            let (text, tokens) = (self.texts.prompt)(&prompt)?;
            if !self.values.contains_key(&text) && !asked.iter().any(|(known, _)| *known == text) {
                asked.push((text.clone(), self.tree.ask(ForkKind::Value, about, tokens, text.clone())?));
            }
            texts.push(text);
        }
        let new: Vec<NodeIndex> = asked.iter().map(|&(_, question)| question).collect();
        let values = match by {
            ValueBy::Samples { samples, drawing } => {
                let answers = self.answers(&new, *samples as usize)?;
                self.draw(&answers.concat(), drawing, false)?;
                let value = |&answer: &NodeIndex| value_in(&self.tree.node(answer).text, words);
                answers.iter().map(|own| own.iter().map(value).sum::<f64>() / own.len() as f64).collect()
            }
            ValueBy::Probability => self.expected(&new, words)?,
        };
        self.values.extend(asked.into_iter().map(|(text, _)| text).zip::<Vec<f64>>(values));
        new.into_iter().for_each(|question| self.close_question(question));
        Ok(texts.iter().map(|text| self.values[text]).collect())
    }

    /// Of each question the mean value of its answers, from the words' probabilities.
    fn expected(&mut self, questions: &[NodeIndex], words: &[(String, f64)]) -> Result<Vec<f64>> {
        let tokens: Vec<Vec<TokenId>> = words.iter().map(|(word, _)| (self.texts.more)(word)).collect::<Result<_>>()?;
        let answers = self.answers(questions, words.len())?;
        let given = answers.iter().flat_map(|own| own.iter().copied().zip(tokens.iter().cloned()));
        self.give(given.collect(), true)?;
        let logprob = |&answer: &NodeIndex| self.tree.node(answer).logprob;
        let value = |own: &Vec<NodeIndex>| {
            expected_value(words.iter().zip(own).map(|((_, value), answer)| (*value, logprob(answer))))
        };
        Ok(answers.iter().map(value).collect())
    }

    /// `n` answers to each question, to be drawn or given.
    fn answers(&mut self, questions: &[NodeIndex], n: usize) -> Result<Vec<Vec<NodeIndex>>> {
        questions.iter().map(|&question| self.tree.fork_as(ForkKind::Value, question, n)).collect()
    }

    /// The share of `samples` votes that each path gets.
    fn votes(&mut self, paths: &[Path], question: &Question, samples: usize) -> Result<Vec<f64>> {
        let Evaluate::Vote { choice, drawing, .. } = &self.how.evaluate else { return Ok(Vec::new()) };
        let thoughts = paths.iter().map(|path| path.thoughts.as_slice());
        let prompt = self.how.ask_for_choice(question, self.item, thoughts)?;
        let question = self.ask(ForkKind::Vote, self.tree.root(), &prompt)?;
        let ballots = self.tree.fork_as(ForkKind::Vote, question, samples)?;
        self.draw(&ballots, drawing, false)?;
        let mut votes = vec![0.0; paths.len()];
        for &ballot in &ballots {
            if let Some(path) = vote_in(&self.tree.node(ballot).text, choice, paths.len()) {
                votes[path] += 1.0 / samples as f64;
            }
        }
        self.close_question(question);
        Ok(votes)
    }

    pub(super) fn ask(&mut self, kind: ForkKind, about: NodeIndex, prompt: &Prompt) -> Result<NodeIndex> {
        let (text, tokens) = (self.texts.prompt)(prompt)?;
        self.tree.ask(kind, about, tokens, text)
    }

    /// Gives back a question and its answers.
    pub(super) fn close_question(&mut self, question: NodeIndex) {
        self.tree.children(question).into_iter().for_each(|answer| self.tree.close(answer));
        self.tree.close(question);
    }
}
