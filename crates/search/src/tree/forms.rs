//! The forms of a tree's texts: which nodes have one, where it begins, and what has been sampled in it. Compiling forms
//! and keeping them is left to the engine.

use super::sampling_tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_form::SampleForm;
use offshoot_text::reasoning::ContentStart;

impl SamplingTree {
    /// Like [`fork`](Self::fork); what is sampled from the children and from those below them is in this form, or, with
    /// `None`, any text whatever the form of `at`. The form begins at the first token of a child, unless `at` has
    /// stopped in the middle of an equal one: see [`extend`](Self::extend).
    ///
    /// # Errors
    ///
    /// As [`fork`](Self::fork). Whether the form can be kept is found when the children are extended.
    pub fn fork_in_form(&mut self, at: NodeId, n: usize, form: Option<SampleForm>) -> Result<Vec<NodeId>> {
        let children = self.fork(at, n)?;
        self.set_form(&children, form);
        Ok(children)
    }

    /// What is sampled from these nodes, and from those that are forked from them later, is in this form, or, with
    /// `None`, any text: as of [`fork_in_form`](Self::fork_in_form).
    pub fn set_form(&mut self, nodes: &[NodeId], form: Option<SampleForm>) {
        for &node in nodes {
            match &form {
                Some(form) => drop(self.forms.insert(node, form.clone())),
                None => drop(self.forms.remove(&node)),
            }
        }
    }

    /// The form in which extends of `at` sample where their parameters name none: that of
    /// [`fork_in_form`](Self::fork_in_form), here or above.
    pub fn form(&self, at: NodeId) -> Option<&SampleForm> {
        self.forms.get(&at)
    }

    /// Where in what is sampled next from `at` the content of an answer begins: at once, or behind the reasoning that
    /// the prompt or what was sampled since has opened. A form that begins there leaves the reasoning alone.
    pub fn content_start(&self, at: NodeId) -> ContentStart {
        let start = self.path(at).first().and_then(|&first| self.parent(first)).unwrap_or(at);
        let (prompt, path) = (&self.nodes[start].text, self.path_text(at));
        match ContentStart::of(prompt, None, None) {
            begun if path.is_empty() => begun,
            ContentStart::BehindReasoning { close, .. } if path.contains(close) => ContentStart::AtOnce,
            open @ ContentStart::BehindReasoning { .. } => open,
            ContentStart::AtOnce | ContentStart::FinalChannel => {
                ContentStart::of(&format!("{prompt}{path}"), Some(&path), None)
            }
        }
    }

    /// Gives a new child the form of `at`.
    pub(super) fn inherit_form(&mut self, at: NodeId, child: NodeId) {
        if let Some(form) = self.forms.get(&at).cloned() {
            self.forms.insert(child, form);
        }
    }

    /// The form that an extend behind the first `tokens` tokens of `at` goes on in, and how many of the last of these
    /// were sampled in it, by the rule of the engine: since the last extend that was in no form or in another one, or
    /// that ended its text ([`TokenRun::form_ended`](super::TokenRun)).
    pub(super) fn sampled_in_form(&self, at: NodeId, tokens: usize) -> Option<(SampleForm, usize)> {
        let mut found: Option<(SampleForm, usize)> = None;
        let path = self.path(at);
        let start = path.first().and_then(|&first| self.parent(first));
        for node in path.iter().rev().copied().chain(start) {
            let thought = &self.nodes[node];
            let mut end = thought.tokens.len();
            let kept = if node == at { tokens } else { end };
            for run in thought.runs.iter().rev() {
                let begin = end - run.tokens;
                let own = kept.min(end).saturating_sub(begin);
                let has_ended = run.form_ended && own == run.tokens;
                end = begin;
                // An extend that added no token may have ended a form, or begun another one, all the same.
                if own == 0 && run.tokens > 0 {
                    continue;
                }
                match (&mut found, &run.form) {
                    (None, Some(form)) if !has_ended => found = Some((form.clone(), own)),
                    (Some((form, count)), Some(same)) if form.form == same.form && !has_ended => {
                        // Where it began is what the first of the extends said.
                        (*form, *count) = (same.clone(), *count + own);
                    }
                    _ => return found,
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Prompt;
    use offshoot_engine::scripted::tokens_of;
    use offshoot_engine::{EngineHandle, FinishReason, SamplingParams, ScriptedReply, Stop};
    use offshoot_form::{Form, FormBegin};

    fn pattern(pattern: &str) -> SampleForm {
        Form::Regex(pattern.to_owned()).into()
    }

    /// A tree whose samples are `aaa`: cut by their limit, or, behind a `!`, ended by the model.
    fn tree() -> SamplingTree {
        let engine = EngineHandle::scripted(|call| match call.text().ends_with("aaa!") {
            true => ScriptedReply::text("aaa"),
            false => ScriptedReply::text("aaa").reason(FinishReason::Length),
        });
        SamplingTree::new(engine, Prompt::from(tokens_of("Q"))).expect("a script takes any prompt")
    }

    fn sample(tree: &mut SamplingTree, node: NodeId, form: Option<SampleForm>) {
        let how = SamplingParams { form, ..SamplingParams::default() };
        tree.extend(&[node], &how, &Stop::default()).expect("the script answers");
    }

    fn child(tree: &mut SamplingTree, at: NodeId) -> NodeId {
        tree.fork(at, 1).expect("open")[0]
    }

    #[test]
    fn tokens_in_a_form_are_counted_up_to_its_beginning() {
        let (mut tree, form) = (tree(), pattern("a+"));
        let root = tree.root();
        let first = child(&mut tree, root);
        sample(&mut tree, first, None);
        sample(&mut tree, first, Some(form.clone()));
        let second = child(&mut tree, first);
        // Where the form begins is what the first of its extends said.
        sample(&mut tree, second, Some(SampleForm { begin: FormBegin::FinalChannel, ..form.clone() }));
        let counted = |node, tokens| tree.sampled_in_form(node, tokens);
        assert_eq!(counted(second, 3), Some((form.clone(), 6)));
        assert_eq!(counted(second, 1), Some((form.clone(), 4)));
        assert_eq!(counted(first, 6), Some((form.clone(), 3)));
        assert_eq!(counted(first, 4), Some((form, 1)));
        assert_eq!(counted(first, 3), None, "the last of these was sampled in no form");
    }

    #[test]
    fn given_tokens_other_forms_and_ends_begin_anew() {
        let (mut tree, form) = (tree(), pattern("a+"));
        let root = tree.root();
        sample(&mut tree, root, Some(form.clone()));
        let node = child(&mut tree, root);
        sample(&mut tree, node, Some(form.clone()));
        assert_eq!(tree.sampled_in_form(node, 3), Some((form.clone(), 6)), "what the root sampled belongs to it");
        sample(&mut tree, node, Some(pattern("b+")));
        assert_eq!(tree.sampled_in_form(node, 6), Some((pattern("b+"), 3)));
        tree.extend_given(&[node], &tokens_of("!")).expect("the script answers");
        assert_eq!(tree.sampled_in_form(node, 7), None);
        sample(&mut tree, node, Some(form.clone()));
        assert_eq!(tree.sampled_in_form(node, 9), Some((form.clone(), 2)));
        assert_eq!(tree.sampled_in_form(node, 10), None, "the text has ended");
        assert_eq!(tree.node(node).finish, Some(FinishReason::EndOfText));
        sample(&mut tree, node, Some(form.clone()));
        assert_eq!(tree.sampled_in_form(node, 13), Some((form, 3)), "the text had ended before");
    }
}
