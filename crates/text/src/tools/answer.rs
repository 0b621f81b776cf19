//! Splits an answer that comes in pieces into reasoning, content and calls of tools. Where the reasoning stands is left
//! to `reasoning`, which texts are calls to `splitter`.

use super::splitter::{CallReader, CallSplitter};
use crate::reasoning::{ReasoningSplitter, SplitText, TextStart};

/// A part of an answer. Parts of one kind that follow each other are one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the content.
    Content(String),
    /// A call of the tool with this name; its arguments follow, and its end.
    CallBegins {
        /// The tool's name.
        name: String,
    },
    /// Text of the arguments of the call that began last.
    Arguments(String),
    /// No more arguments of the call that began last follow.
    CallEnds {
        /// Whether the text ended before the arguments did, or before the mark that ends them.
        is_cut: bool,
    },
}

/// What becomes of the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningText {
    /// It is a part of its own, without its marks.
    Split,
    /// It stays in the content, with its marks.
    Keep,
}

/// Parts in their order, texts of one kind joined.
#[derive(Default)]
pub(super) struct Parts(Vec<AnswerPart>);

impl Parts {
    /// Adds a part; empty texts are none.
    pub fn push(&mut self, part: AnswerPart) {
        use AnswerPart::{Arguments, Content, Reasoning};
        match (self.0.last_mut(), part) {
            (_, Reasoning(text) | Content(text) | Arguments(text)) if text.is_empty() => {}
            (Some(Reasoning(last)), Reasoning(text))
            | (Some(Content(last)), Content(text))
            | (Some(Arguments(last)), Arguments(text)) => last.push_str(&text),
            (_, part) => self.0.push(part),
        }
    }
}

/// Splits one answer.
#[derive(Clone, Debug)]
pub struct AnswerSplitter {
    /// `None`: nothing tells reasoning from content.
    reasoning: Option<ReasoningSplitter>,
    keeps_reasoning: bool,
    /// Where the reasoning is kept, text that may be content.
    unsure: String,
    calls: Option<CallSplitter>,
    /// Calls that may still begin; more are left out.
    most_calls: usize,
    /// Whether the call that began last is left out.
    is_left_out: bool,
}

impl AnswerSplitter {
    /// `start`: where in an answer the text begins; `calls`: which calls are found, if any are.
    pub fn new(start: TextStart, reasoning: ReasoningText, calls: Option<CallReader>) -> Self {
        let keeps_reasoning = reasoning == ReasoningText::Keep;
        let has_channels = calls.as_ref().is_some_and(|calls| calls.syntax().has_channels);
        // What stands in the reasoning is no call.
        let splits = !keeps_reasoning || calls.is_some();
        let reasoning = splits.then(|| ReasoningSplitter::new(start).with_calls(has_channels));
        AnswerSplitter {
            reasoning,
            keeps_reasoning,
            unsure: String::new(),
            most_calls: if calls.as_ref().is_some_and(CallReader::is_single) { 1 } else { usize::MAX },
            is_left_out: false,
            calls: calls.map(CallSplitter::new),
        }
    }

    /// Takes the next piece of the text.
    pub fn push(&mut self, piece: &str) -> Vec<AnswerPart> {
        self.take(piece, false)
    }

    /// Takes the last piece of the text.
    pub fn push_last(&mut self, piece: &str) -> Vec<AnswerPart> {
        self.take(piece, true)
    }

    fn take(&mut self, piece: &str, ends: bool) -> Vec<AnswerPart> {
        let mut parts = self.parts(piece, ends);
        parts.retain(|part| match part {
            AnswerPart::CallBegins { .. } => {
                self.is_left_out = self.most_calls == 0;
                self.most_calls = self.most_calls.saturating_sub(1);
                !self.is_left_out
            }
            AnswerPart::Arguments(_) | AnswerPart::CallEnds { .. } => !self.is_left_out,
            AnswerPart::Reasoning(_) | AnswerPart::Content(_) => true,
        });
        parts
    }

    /// The parts with all calls.
    fn parts(&mut self, piece: &str, ends: bool) -> Vec<AnswerPart> {
        let mut parts = Parts::default();
        let Some(splitter) = &mut self.reasoning else {
            self.content(piece, ends, &mut parts);
            return parts.0;
        };
        let SplitText { reasoning, content, calls } =
            if ends { splitter.push_last(piece) } else { splitter.push(piece) };
        let (has_begun, is_in_channels) = (splitter.has_begun(), splitter.is_in_channels());
        if !self.keeps_reasoning {
            parts.push(AnswerPart::Reasoning(reasoning));
            self.content(&content, ends, &mut parts);
        } else if is_in_channels {
            self.unsure.push_str(piece);
            parts.push(AnswerPart::Content(std::mem::take(&mut self.unsure)));
        } else {
            self.unsure.push_str(piece);
            if has_begun || ends {
                // The content is the end of what has come.
                let kept: String = self.unsure.drain(..self.unsure.len() - content.len()).collect();
                parts.push(AnswerPart::Content(kept));
                let content = std::mem::take(&mut self.unsure);
                self.content(&content, ends, &mut parts);
            }
        }
        for call in calls {
            parts.push(call);
        }
        parts.0
    }

    /// Takes text that is not reasoning.
    fn content(&mut self, text: &str, ends: bool, parts: &mut Parts) {
        match &mut self.calls {
            Some(calls) => calls.push(text, ends, parts),
            None => parts.push(AnswerPart::Content(text.to_owned())),
        }
    }
}
