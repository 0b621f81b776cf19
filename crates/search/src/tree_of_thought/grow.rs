//! Next thoughts: continuations of the path itself, or lines of a list that the model writes; equal ones are merged.

use std::collections::HashMap;

use super::{Generate, Proposal, SampledText, SamplingOverrides, Texts, ThoughtPath, ThoughtSearcher};
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_engine::{FinishReason, ForkKind};

/// A new thought; its node is open.
struct NewThought<'a> {
    from: &'a ThoughtPath,
    node: NodeId,
    thought: String,
    ended: bool,
}

/// The thoughts that could follow a path, or the lists that the model writes of them.
enum ProposedThoughts {
    Known(Vec<String>),
    Written { question: NodeId, lists: Vec<NodeId> },
}

impl ProposedThoughts {
    fn lists(&self) -> &[NodeId] {
        match self {
            ProposedThoughts::Known(_) => &[],
            ProposedThoughts::Written { lists, .. } => lists,
        }
    }
}

impl<T: Texts> ThoughtSearcher<'_, '_, T> {
    /// The paths that extend `paths` by one thought, in the order in which they were generated.
    pub(super) fn grow(&mut self, paths: &[ThoughtPath]) -> Result<Vec<ThoughtPath>> {
        let how = self.how;
        let grown = match &how.generate {
            Generate::Sample { thoughts, drawing } => self.sampled(paths, *thoughts as usize, drawing)?,
            Generate::Propose { question, lists, drawing } => {
                self.proposed(paths, question, *lists as usize, drawing)?
            }
        };
        self.merge(grown)
    }

    fn sampled<'p>(
        &mut self,
        paths: &'p [ThoughtPath],
        n: usize,
        drawing: &SamplingOverrides,
    ) -> Result<Vec<NewThought<'p>>> {
        let mut forks = Vec::with_capacity(paths.len() * n);
        for from in paths {
            forks.extend(self.tree.fork(from.node, n)?.into_iter().map(|node| (from, node)));
        }
        let nodes: Vec<NodeId> = forks.iter().map(|&(_, node)| node).collect();
        self.draw(&nodes, drawing, SampledText::Thought)?;
        let mut grown = Vec::with_capacity(forks.len());
        for (from, node) in forks {
            if self.tree.has_failed(node) {
                continue;
            }
            let drawn = self.tree.node(node);
            let ended = !matches!(drawn.finish, Some(FinishReason::StopString(_) | FinishReason::Length));
            match self.texts.thought(&drawn.text) {
                Some(thought) => grown.push(NewThought { from, node, thought, ended }),
                None => self.tree.prune(node),
            }
        }
        Ok(grown)
    }

    fn proposed<'p>(
        &mut self,
        paths: &'p [ThoughtPath],
        question: &T::Question,
        lists: usize,
        drawing: &SamplingOverrides,
    ) -> Result<Vec<NewThought<'p>>> {
        let mut proposals = Vec::with_capacity(paths.len());
        for from in paths {
            let proposal = match self.texts.propose(question, &from.thoughts)? {
                Proposal::Thoughts(thoughts) => ProposedThoughts::Known(thoughts),
                Proposal::Ask(prompt) => {
                    let question = self.tree.ask(ForkKind::Propose, from.node, prompt)?;
                    let lists = self.tree.fork_as(ForkKind::Propose, question, lists)?;
                    ProposedThoughts::Written { question, lists }
                }
            };
            proposals.push((from, proposal));
        }
        let nodes: Vec<NodeId> = proposals.iter().flat_map(|(_, proposal)| proposal.lists()).copied().collect();
        if !nodes.is_empty() {
            self.draw(&nodes, drawing, SampledText::Reply)?;
        }
        let mut grown = Vec::new();
        for (from, proposal) in proposals {
            let thoughts = self.thoughts_of(proposal);
            if !thoughts.is_empty() {
                let nodes = self.tree.fork(from.node, thoughts.len())?;
                let of = |(node, thought)| NewThought { from, node, thought, ended: false };
                grown.extend(nodes.into_iter().zip(thoughts).map(of));
            }
        }
        let given = grown.iter().map(|it| Ok((it.node, self.texts.continuation(&format!("{}\n", it.thought))?)));
        self.give(given.collect::<Result<_>>()?, false)?;
        grown.retain(|it| !self.tree.has_failed(it.node));
        Ok(grown)
    }

    /// The thoughts of a proposal, whose question is closed.
    fn thoughts_of(&mut self, proposal: ProposedThoughts) -> Vec<String> {
        match proposal {
            ProposedThoughts::Known(thoughts) => thoughts,
            ProposedThoughts::Written { question, lists } => {
                let text = |&list: &NodeId| self.tree.node(list).text.clone();
                let texts: Vec<String> = lists.iter().map(text).collect();
                self.close_question(question);
                texts.iter().flat_map(|text| text.lines()).filter_map(|line| self.texts.thought(line)).collect()
            }
        }
    }

    /// Merges equal paths: the first stays and counts the others.
    fn merge(&mut self, grown: Vec<NewThought<'_>>) -> Result<Vec<ThoughtPath>> {
        let mut paths: Vec<ThoughtPath> = Vec::new();
        let mut places = HashMap::new();
        for NewThought { from, node, thought, ended } in grown {
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
                None => paths.push(ThoughtPath { node, thoughts, value: 0.0, count: 1, ended, key }),
            }
        }
        Ok(paths)
    }
}
