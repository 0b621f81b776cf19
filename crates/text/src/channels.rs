//! Splits the text of models that answer in channels (gpt-oss' harmony format): messages of the form
//! `<|start|>assistant<|channel|>NAME<|message|>TEXT<|end|>`. The channel `final` is the answer, every other one is
//! reasoning. The result does not depend on how the text was cut into pieces.

use super::content_start::ContentStart;

/// The mark with which such a text begins: the template has written what stands before it.
pub const BEGIN: &str = "<|channel|>";
/// What the template writes before such a text.
pub const TURN: &str = "<|start|>assistant";
const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const END: &str = "<|end|>";
const ASSISTANT: &str = "assistant";
const FINAL: &str = "final";

/// New text of both parts of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitText {
    pub reasoning: String,
    pub content: String,
}

/// Splits one text from its first mark on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSplitter {
    /// The channel of the message that the text is in; `None` in a header or between messages.
    within: Option<Channel>,
    /// Text that may belong to a mark, or a header so far.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Answer,
    Reasoning,
}

impl ChannelSplitter {
    pub fn new() -> Self {
        ChannelSplitter { within: None, held: String::new() }
    }

    /// Where the answer that a prompt ends with goes on; `None`: it has no answer in channels, or none yet.
    pub fn behind(prompt: &str) -> Option<Self> {
        let last = &prompt[prompt.rfind(START)? + START.len()..];
        let is_header = last.len() < ASSISTANT.len() && ASSISTANT.starts_with(last);
        let begun = last.strip_prefix(ASSISTANT).filter(|begun| begun.starts_with(BEGIN));
        let mut splitter = Self::new();
        splitter.push(begun.or(is_header.then_some(last))?);
        Some(splitter)
    }

    pub fn push(&mut self, piece: &str) -> SplitText {
        let mut split = SplitText::default();
        self.held.push_str(piece);
        loop {
            let mark = if self.within.is_some() { END } else { MESSAGE };
            let found = self.held.find(mark);
            match self.within {
                Some(channel) => {
                    let certain = found.unwrap_or_else(|| self.held.len() - beginning_of(END, &self.held));
                    let text = &self.held[..certain];
                    match channel {
                        Channel::Answer => split.content += text,
                        Channel::Reasoning => split.reasoning += text,
                    }
                    self.held.drain(..certain);
                    if found.is_none() {
                        return split;
                    }
                    self.held.drain(..END.len());
                    self.within = None;
                }
                None => {
                    let Some(at) = found else { return split };
                    self.within = Some(channel_of(&self.held[..at]));
                    self.held.drain(..at + MESSAGE.len());
                }
            }
        }
    }

    /// Where in the rest of the text the content begins.
    pub(super) fn content_start(&self) -> ContentStart {
        match self.within {
            Some(Channel::Answer) => ContentStart::AtOnce,
            None if channel_of(&self.held) == Channel::Answer => {
                ContentStart::BehindReasoning { open: None, close: MESSAGE }
            }
            Some(Channel::Reasoning) | None => ContentStart::FinalChannel,
        }
    }

    /// The text held back, when the text ends; a header that was not finished is dropped.
    pub fn finish(&mut self) -> SplitText {
        let rest = std::mem::take(&mut self.held);
        match self.within {
            Some(Channel::Answer) => SplitText { reasoning: String::new(), content: rest },
            Some(Channel::Reasoning) => SplitText { reasoning: rest, content: String::new() },
            None => SplitText::default(),
        }
    }
}

/// The channel that a header names: the word after its last mark, before a recipient or another mark.
fn channel_of(header: &str) -> Channel {
    let name = header.rfind(BEGIN).map_or("", |at| &header[at + BEGIN.len()..]);
    let end = name.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(name.len());
    if &name[..end] == FINAL { Channel::Answer } else { Channel::Reasoning }
}

/// The length in bytes of the longest end of `text` that is a proper beginning of `mark`. The text ends with a whole
/// character, and so does such a beginning.
pub fn beginning_of(mark: &str, text: &str) -> usize {
    let (mark, text) = (mark.as_bytes(), text.as_bytes());
    (1..mark.len().min(text.len() + 1)).rev().find(|&len| text.ends_with(&mark[..len])).unwrap_or(0)
}
