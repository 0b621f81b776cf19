//! Splits the text of reasoning models into reasoning and content. The reasoning stands between `<think>` and
//! `</think>`; where the template has already written `<think>`, the text begins within it. Texts in channels are split by
//! `channels`. The result does not depend on how the text was cut into pieces.

use super::channels::{self, ChannelSplitter, beginning_of};

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// What happens to a chat's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reasoning {
    /// The content has it, as it was sampled.
    #[default]
    Keep,
    /// `reasoning_content` has it, without the marks.
    Split,
}

impl Reasoning {
    /// The values of the field `reasoning`.
    pub const WORDS: [(&str, Reasoning); 2] = [("keep", Reasoning::Keep), ("split", Reasoning::Split)];
}

/// Whether a prompt ends by opening the reasoning.
pub fn ends_open(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// Whether an answer has opened its reasoning and not closed it.
pub fn is_open(answer: &str) -> bool {
    answer.rfind(OPEN).is_some_and(|at| !answer[at..].contains(CLOSE))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Nothing but white space so far.
    Beginning,
    Reasoning,
    Content,
    Channels,
}

/// Splits one text.
#[derive(Clone, Debug)]
pub struct ReasoningSplitter {
    part: Part,
    /// Text that may belong to a mark.
    held: String,
    channels: ChannelSplitter,
}

/// New text of both parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitText {
    pub reasoning: String,
    pub content: String,
}

impl ReasoningSplitter {
    /// `is_open`: the text begins within the reasoning.
    pub fn new(is_open: bool) -> Self {
        let part = if is_open { Part::Reasoning } else { Part::Beginning };
        ReasoningSplitter { part, held: String::new(), channels: ChannelSplitter::new() }
    }

    pub fn push(&mut self, piece: &str) -> SplitText {
        let mut split = SplitText::default();
        self.held.push_str(piece);
        if self.part == Part::Beginning {
            let text = self.held.trim_start();
            if let Some(reasoning) = text.strip_prefix(OPEN) {
                self.held = reasoning.to_owned();
                self.part = Part::Reasoning;
            } else if text.starts_with(channels::BEGIN) {
                self.part = Part::Channels;
            } else if !OPEN.starts_with(text) && !channels::BEGIN.starts_with(text) {
                self.part = Part::Content;
            }
        }
        if self.part == Part::Reasoning {
            match self.held.find(CLOSE) {
                Some(at) => {
                    split.reasoning = self.held[..at].to_owned();
                    self.held.drain(..at + CLOSE.len());
                    self.part = Part::Content;
                }
                None => {
                    let certain = self.held.len() - beginning_of(CLOSE, &self.held);
                    split.reasoning = self.held.drain(..certain).collect();
                }
            }
        }
        if self.part == Part::Channels {
            return self.channels.push(&std::mem::take(&mut self.held));
        }
        if self.part == Part::Content {
            split.content = std::mem::take(&mut self.held);
        }
        split
    }

    /// The text held back, when the text ends.
    pub fn finish(&mut self) -> SplitText {
        let rest = std::mem::take(&mut self.held);
        match self.part {
            Part::Reasoning => SplitText { reasoning: rest, content: String::new() },
            Part::Channels => self.channels.finish(),
            Part::Beginning | Part::Content => SplitText { reasoning: String::new(), content: rest },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, is_open: bool, cuts: &[usize]) -> SplitText {
        let mut splitter = ReasoningSplitter::new(is_open);
        let mut whole = SplitText::default();
        let mut add = |part: SplitText| {
            whole.reasoning += &part.reasoning;
            whole.content += &part.content;
        };
        let mut from = 0;
        for &cut in cuts.iter().chain([&text.len()]) {
            add(splitter.push(&text[from..cut]));
            from = cut;
        }
        add(splitter.finish());
        whole
    }

    #[test]
    fn the_marks_divide_the_text_wherever_it_is_cut() {
        let cases = [
            ("<think>a < b</think>c", false, "a < b", "c"),
            ("\n <think>a</think>\n\nc <think>d</think>", false, "a", "\n\nc <think>d</think>"),
            ("a</thin</think>b", true, "a</thin", "b"),
            ("never closed </thi", true, "never closed </thi", ""),
            ("a <think>b</think>", false, "", "a <think>b</think>"),
            ("  <thi", false, "", "  <thi"),
            ("", true, "", ""),
            ("<|channel|>final<|message|>a <|x|>", false, "", "a <|x|>"),
            (
                "<|channel|>analysis<|message|>a<b<|end|><|start|>assistant<|channel|>final<|message|>c<|en",
                false,
                "a<b",
                "c<|en",
            ),
            (
                "<|channel|>commentary to=f <|constrain|>json<|message|>{}<|end|><|start|>assistant<|channel|>fi",
                false,
                "{}",
                "",
            ),
            ("<|chan", false, "", "<|chan"),
        ];
        for (text, is_open, reasoning, content) in cases {
            for first in 0..=text.len() {
                for second in first..=text.len() {
                    let found = split(text, is_open, &[first, second]);
                    assert_eq!((&*found.reasoning, &*found.content), (reasoning, content), "{text:?} {first} {second}");
                }
            }
        }
    }

    #[test]
    fn a_prompt_tells_whether_the_reasoning_is_open() {
        assert!(ends_open("<|assistant|><think>\n") && !ends_open("what is <think>?"));
        assert!(is_open("<think>so far") && !is_open("<think>a</think>b") && !is_open("plain"));
    }
}
