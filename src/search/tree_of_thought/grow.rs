//! Next thoughts: continuations of the path itself, or lines of a list that the model is asked for; equal ones merged.

use std::collections::HashMap;

use petgraph::graph::NodeIndex;

use super::{Drawing, Generate, Path, Texts, Thinker};
use crate::engine::{FinishReason, ForkKind};
use crate::error::Result;

/// A thought as it came up, its node open.
struct Grown<'a> {
    from: &'a Path,
    node: NodeIndex,
    thought: String,
    ended: bool,
}

impl<T: Texts> Thinker<'_, '_, T> {
    /// The paths one thought beyond `paths`, in the order in which they came up.
    pub(super) fn grow(&mut self, paths: &[Path]) -> Result<Vec<Path>> {
        let how = self.how;
        let grown = match &how.generate {
            Generate::Sample { thoughts, drawing } => self.sampled(paths, *thoughts as usize, drawing)?,
            Generate::Propose { question, lists, drawing } => {
                self.proposed(paths, question, *lists as usize, drawing)?
            }
        };
        self.merge(grown)
    }

    fn sampled<'p>(&mut self, paths: &'p [Path], n: usize, drawing: &Drawing) -> Result<Vec<Grown<'p>>> {
        let mut forks = Vec::with_capacity(paths.len() * n);
        for from in paths {
            forks.extend(self.tree.fork(from.node, n)?.into_iter().map(|node| (from, node)));
        }
        let nodes: Vec<NodeIndex> = forks.iter().map(|&(_, node)| node).collect();
        // The stop stays: what comes next goes on behind it.
        self.draw(&nodes, drawing, true)?;
        let mut grown = Vec::with_capacity(forks.len());
        for (from, node) in forks {
            if self.tree.has_failed(node) {
                continue;
            }
            let drawn = self.tree.node(node);
            let ended = !matches!(drawn.finish, Some(FinishReason::StopString(_) | FinishReason::Length));
            match self.texts.thought(&drawn.text) {
                Some(thought) => grown.push(Grown { from, node, thought, ended }),
                None => self.tree.prune(node),
            }
        }
        Ok(grown)
    }

    fn proposed<'p>(
        &mut self,
        paths: &'p [Path],
        question: &T::Question,
        lists: usize,
        drawing: &Drawing,
    ) -> Result<Vec<Grown<'p>>> {
        let mut asked = Vec::with_capacity(paths.len());
        for from in paths {
            let prompt = self.texts.ask(question, &from.thoughts)?;
            let question = self.tree.ask(ForkKind::Propose, from.node, prompt.tokens, prompt.text)?;
            asked.push((from, question, self.tree.fork_as(ForkKind::Propose, question, lists)?));
        }
        let nodes: Vec<NodeIndex> = asked.iter().flat_map(|(_, _, lists)| lists).copied().collect();
        self.draw(&nodes, drawing, false)?;
        let mut grown = Vec::new();
        for (from, question, lists) in asked {
            let text = |&list: &NodeIndex| self.tree.node(list).text.clone();
            let texts: Vec<String> = lists.iter().map(text).collect();
            let thoughts: Vec<String> =
                texts.iter().flat_map(|text| text.lines()).filter_map(|line| self.texts.thought(line)).collect();
            self.close_question(question);
            if !thoughts.is_empty() {
                let nodes = self.tree.fork(from.node, thoughts.len())?;
                let of = |(node, thought)| Grown { from, node, thought, ended: false };
                grown.extend(nodes.into_iter().zip(thoughts).map(of));
            }
        }
        let given = grown.iter().map(|it| Ok((it.node, self.texts.continuation(&format!("{}\n", it.thought))?)));
        self.give(given.collect::<Result<_>>()?, false)?;
        grown.retain(|it| !self.tree.has_failed(it.node));
        Ok(grown)
    }

    /// Of equal paths the first stays and counts the others.
    fn merge(&mut self, grown: Vec<Grown<'_>>) -> Result<Vec<Path>> {
        let mut paths: Vec<Path> = Vec::new();
        let mut places = HashMap::new();
        for Grown { from, node, thought, ended } in grown {
            let mut thoughts = from.thoughts.clone();
            let ended = ended || self.texts.ends(&thought);
            thoughts.push(thought.clone());
            let key = match self.texts.state(&thoughts)? {
                Some(state) => (None, state),
                None => (Some(from.node), thought),
            };
            let place = *places.entry(key.clone()).or_insert(paths.len());
            match paths.get_mut(place) {
                Some(first) => {
                    first.count += 1;
                    self.tree.prune(node);
                }
                None => paths.push(Path { node, thoughts, value: 0.0, count: 1, ended, key }),
            }
        }
        Ok(paths)
    }
}
