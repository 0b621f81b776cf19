//! Splits the text of models that answer in channels (gpt-oss' harmony format): messages of the form
//! `<|start|>assistant<|channel|>NAME<|message|>TEXT<|end|>`. The channel `final` is the answer, every other one is
//! reasoning. The result does not depend on how the text was cut into pieces.

use super::content_start::ContentStart;

use super::tools::{AnswerPart, BracketScanner};

/// The mark with which such a text begins: the template has written what stands before it.
pub const BEGIN: &str = "<|channel|>";
/// What the template writes before such a text.
pub const TURN: &str = "<|start|>assistant";
const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const END: &str = "<|end|>";
/// Ends a call; most models' lists of ends have it, so that no text shows it.
const CALL: &str = "<|call|>";
/// What stands before the name of a function in a header. An answer may begin with it.
pub(super) const RECIPIENT: &str = "to=functions.";
const ASSISTANT: &str = "assistant";
const FINAL: &str = "final";

/// New text of both parts of an answer, and of the calls of tools that stand in channels of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitText {
    pub reasoning: String,
    pub content: String,
    /// Their beginnings, arguments and ends, where the splitter finds calls.
    pub calls: Vec<AnswerPart>,
}

/// Splits one text from its first mark on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSplitter {
    /// The channel of the message that the text is in; `None` in a header or between messages.
    within: Option<Channel>,
    /// Text that may belong to a mark, or a header so far.
    held: String,
    /// Whether messages to functions are calls, not reasoning.
    finds_calls: bool,
    /// In the arguments of a call, of which all that is not held has been read.
    arguments: BracketScanner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Answer,
    Reasoning,
    /// The message is the arguments of a call.
    Call,
}

impl ChannelSplitter {
    pub fn new() -> Self {
        ChannelSplitter { within: None, held: String::new(), finds_calls: false, arguments: BracketScanner::default() }
    }

    /// This splitter; messages to functions are calls if `finds_calls`, else reasoning.
    pub fn with_calls(mut self, finds_calls: bool) -> Self {
        self.finds_calls = finds_calls;
        self
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
            match self.within {
                Some(channel) => {
                    // Only a call ends with its own mark.
                    let ends = if channel == Channel::Call { &[END, CALL][..] } else { &[END] };
                    let found = match channel {
                        Channel::Call => self.arguments_end(ends),
                        _ => ends.iter().filter_map(|end| Some((self.held.find(end)?, end.len()))).min(),
                    };
                    let begun = || ends.iter().map(|end| beginning_of(end, &self.held)).max().unwrap_or(0);
                    let certain = found.map_or_else(|| self.held.len() - begun(), |(at, _)| at);
                    let text = &self.held[..certain];
                    match channel {
                        Channel::Answer => split.content += text,
                        Channel::Reasoning => split.reasoning += text,
                        Channel::Call if text.is_empty() => {}
                        Channel::Call => {
                            text.bytes().for_each(|byte| _ = self.arguments.take(byte));
                            split.calls.push(AnswerPart::Arguments(text.to_owned()));
                        }
                    }
                    self.held.drain(..certain);
                    let Some((_, mark)) = found else { return split };
                    self.held.drain(..mark);
                    self.within = None;
                    if channel == Channel::Call {
                        split.calls.push(AnswerPart::CallEnds { is_cut: false });
                    }
                }
                None => {
                    let Some(at) = self.held.find(MESSAGE) else { return split };
                    let header = &self.held[..at];
                    self.within = Some(match recipient(header).filter(|_| self.finds_calls) {
                        Some(name) => {
                            split.calls.push(AnswerPart::CallBegins { name: name.to_owned() });
                            self.arguments = BracketScanner::default();
                            Channel::Call
                        }
                        None => channel_of(header),
                    });
                    self.held.drain(..at + MESSAGE.len());
                }
            }
        }
    }

    /// The first of these marks in the arguments that are held, and its length. In a string, a mark is text.
    fn arguments_end(&self, marks: &[&str]) -> Option<(usize, usize)> {
        let mut scanner = self.arguments;
        for (at, byte) in self.held.bytes().enumerate() {
            let is_here = |mark: &&&str| self.held.as_bytes()[at..].starts_with(mark.as_bytes());
            if let Some(mark) = marks.iter().find(is_here).filter(|_| !scanner.is_in_string()) {
                return Some((at, mark.len()));
            }
            scanner.take(byte);
        }
        None
    }

    /// Where in the rest of the text the content begins.
    pub(super) fn content_start(&self) -> ContentStart {
        match self.within {
            Some(Channel::Answer) => ContentStart::AtOnce,
            None if channel_of(&self.held) == Channel::Answer => {
                ContentStart::BehindReasoning { open: None, close: MESSAGE }
            }
            Some(Channel::Reasoning | Channel::Call) | None => ContentStart::FinalChannel,
        }
    }

    /// The text held back, when the text ends; a header that was not finished is dropped.
    pub fn finish(&mut self) -> SplitText {
        let rest = std::mem::take(&mut self.held);
        match self.within {
            Some(Channel::Answer) => SplitText { content: rest, ..SplitText::default() },
            Some(Channel::Reasoning) => SplitText { reasoning: rest, ..SplitText::default() },
            Some(Channel::Call) => {
                let rest = Some(rest).filter(|rest| !rest.is_empty()).map(AnswerPart::Arguments);
                let end = AnswerPart::CallEnds { is_cut: true };
                SplitText { calls: rest.into_iter().chain([end]).collect(), ..SplitText::default() }
            }
            None => SplitText::default(),
        }
    }
}

/// The function that a header names as the message's recipient, before or behind the name of the channel.
fn recipient(header: &str) -> Option<&str> {
    let (_, name) = header.rsplit_once(RECIPIENT)?;
    let end = name.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(name.len());
    Some(&name[..end]).filter(|name| !name.is_empty())
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
