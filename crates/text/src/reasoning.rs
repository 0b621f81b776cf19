//! Splits the text of reasoning models into reasoning and content. The reasoning stands between `<think>` and
//! `</think>`, or other such marks; where the template has written the first mark, the text begins within it.
//! Texts in channels are split by `channels`. The result does not depend on how the text was cut into pieces.

use std::borrow::Cow;

pub use super::channels::SplitText;
use super::channels::{self, ChannelSplitter, beginning_of};
pub use super::content_start::ContentStart;

/// The marks around the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub open: &'static str,
    /// What `open` begins with: all of it, or that part of it which is one token and begins nothing else.
    pub begin: &'static str,
    pub close: &'static str,
}

impl Marks {
    const fn new(open: &'static str, close: &'static str) -> Self {
        Marks { open, begin: open, close }
    }
}

/// The marks of most models, those that others are told to write, and those of Gemma 4, Seed-OSS, Magistral and
/// Cohere's models.
pub(super) const MARKS: [Marks; 6] = [
    Marks::new("<think>", "</think>"),
    Marks::new("<thinking>", "</thinking>"),
    Marks { begin: "<|channel>", ..Marks::new("<|channel>thought\n", "<channel|>") },
    Marks::new("<seed:think>", "</seed:think>"),
    Marks::new("[THINK]", "[/THINK]"),
    Marks::new("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// Where in an answer a text begins, which its prompt tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TextStart {
    /// At the answer's beginning, or in its content.
    #[default]
    Answer,
    /// In the reasoning: whichever mark comes first closes it.
    Reasoning,
    /// After the first mark of an answer in channels.
    Channels(ChannelSplitter),
}

impl TextStart {
    /// Behind `prompt`, which ends with `answer` where it has begun one.
    pub fn of(prompt: &str, answer: Option<&str>) -> Self {
        if opened(prompt, answer).is_some() {
            return TextStart::Reasoning;
        }
        ChannelSplitter::behind(prompt).map_or(TextStart::Answer, TextStart::Channels)
    }
}

/// The marks of the reasoning that `prompt` has opened and not closed, which ends with `answer` where it has begun one.
pub(super) fn opened(prompt: &str, answer: Option<&str>) -> Option<&'static Marks> {
    MARKS.iter().find(|marks| match answer {
        Some(answer) => is_open(marks, answer),
        None => prompt.trim_end().ends_with(marks.open.trim_end()),
    })
}

/// Whether an answer has opened its reasoning and not closed it.
fn is_open(marks: &Marks, answer: &str) -> bool {
    answer.rfind(marks.open).is_some_and(|at| !answer[at..].contains(marks.close))
}

/// The part of a whole sample that answers: what follows its reasoning, or the final channel. A text that closes its
/// reasoning without having opened it was begun by its prompt. What is between quotation marks is no mark.
pub fn answer_part(text: &str) -> Cow<'_, str> {
    let closed = MARKS.iter().filter_map(|marks| Some((unquoted(text, marks.close)?, marks.close.len()))).min();
    let opened = MARKS.iter().filter_map(|marks| unquoted(text, marks.open)).min();
    let rest = match closed {
        Some((at, length)) if opened.is_none_or(|open| at < open) => &text[at + length..],
        _ => text,
    };
    if rest.len() < text.len() && opening(rest).is_none() {
        return Cow::Borrowed(rest);
    }
    let last = last_reasoning(rest);
    let content = ReasoningSplitter::new(TextStart::Answer).push_last(last).content;
    if content == text { Cow::Borrowed(text) } else { Cow::Owned(content) }
}

/// The part of a whole sample that may call tools: what follows its reasoning, or all of a text in channels.
pub(super) fn called_part(text: &str) -> Cow<'_, str> {
    let begin = text.trim_start();
    let is_in_channels = begin.starts_with(channels::BEGIN) || begin.starts_with(channels::RECIPIENT);
    if is_in_channels { Cow::Borrowed(text) } else { answer_part(text) }
}

/// The marks whose opening one a text begins with.
fn opening(text: &str) -> Option<&'static Marks> {
    MARKS.iter().find(|marks| text.trim_start().starts_with(marks.open))
}

/// The text from its last reasoning on, of those with which it begins: some models begin to reason again, and again.
fn last_reasoning(text: &str) -> &str {
    let mut rest = text;
    while let Some(marks) = opening(rest)
        && let Some((_, behind)) = rest.split_once(marks.close)
        && opening(behind).is_some()
    {
        rest = behind;
    }
    rest
}

/// Where a mark first stands in a text, other than between two equal quotation marks.
fn unquoted(text: &str, mark: &str) -> Option<usize> {
    text.match_indices(mark).map(|(at, _)| at).find(|&at| {
        let before = text[..at].chars().next_back().filter(|c| matches!(c, '\'' | '"' | '`'));
        before.is_none() || before != text[at + mark.len()..].chars().next()
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Nothing but white space so far.
    Beginning,
    /// The template has opened it: whichever mark comes first closes it.
    Opened,
    Reasoning(Marks),
    Content,
    Channels(ChannelSplitter),
}

/// Splits one text.
#[derive(Clone, Debug)]
pub struct ReasoningSplitter {
    part: Part,
    /// Text that may belong to a mark.
    held: String,
    /// Whether messages to functions in channels are calls, not reasoning.
    finds_calls: bool,
}

impl ReasoningSplitter {
    pub fn new(start: TextStart) -> Self {
        let part = match start {
            TextStart::Answer => Part::Beginning,
            TextStart::Reasoning => Part::Opened,
            TextStart::Channels(begun) => Part::Channels(begun),
        };
        ReasoningSplitter { part, held: String::new(), finds_calls: false }
    }

    /// The same, but messages to functions in channels are calls if `finds_calls`.
    #[must_use]
    pub fn with_calls(mut self, finds_calls: bool) -> Self {
        self.finds_calls = finds_calls;
        if let Part::Channels(channels) = self.part {
            self.part = Part::Channels(channels.with_calls(finds_calls));
        }
        self
    }

    /// Whether it is known what the text begins with.
    pub(super) fn has_begun(&self) -> bool {
        self.part != Part::Beginning
    }

    /// Whether the text stands in channels.
    pub(super) fn is_in_channels(&self) -> bool {
        matches!(self.part, Part::Channels(_))
    }

    pub fn push(&mut self, piece: &str) -> SplitText {
        let mut split = SplitText::default();
        self.held.push_str(piece);
        if self.part == Part::Beginning {
            let text = self.held.trim_start();
            let mut opens = MARKS.iter().map(|marks| marks.open);
            if let Some(marks) = MARKS.into_iter().find(|marks| text.starts_with(marks.open)) {
                self.held = text[marks.open.len()..].to_owned();
                self.part = Part::Reasoning(marks);
            } else if self.headers().any(|begin| text.starts_with(begin)) {
                self.part = Part::Channels(ChannelSplitter::new().with_calls(self.finds_calls));
            } else if !opens.any(|open| open.starts_with(text)) && !self.headers().any(|begin| begin.starts_with(text))
            {
                self.part = Part::Content;
            }
        }
        let closing = match &self.part {
            Part::Opened => &MARKS[..],
            Part::Reasoning(marks) => std::slice::from_ref(marks),
            Part::Beginning | Part::Content | Part::Channels(_) => &[],
        };
        if !closing.is_empty() {
            let found = closing.iter().filter_map(|marks| Some((self.held.find(marks.close)?, marks.close.len())));
            match found.min() {
                Some((at, mark)) => {
                    split.reasoning = self.held[..at].to_owned();
                    self.held.drain(..at + mark);
                    self.part = Part::Content;
                }
                None => {
                    let begun = closing.iter().map(|marks| beginning_of(marks.close, &self.held)).max();
                    let certain = self.held.len() - begun.unwrap_or(0);
                    split.reasoning = self.held.drain(..certain).collect();
                }
            }
        }
        if let Part::Channels(channels) = &mut self.part {
            return channels.push(&std::mem::take(&mut self.held));
        }
        if self.part == Part::Content {
            split.content = std::mem::take(&mut self.held);
        }
        split
    }

    /// What an answer in channels may begin with.
    fn headers(&self) -> impl Iterator<Item = &'static str> {
        let recipient = self.finds_calls.then_some(channels::RECIPIENT);
        [channels::BEGIN].into_iter().chain(recipient)
    }

    /// Like [`push`](Self::push), with a piece that ends the text.
    pub fn push_last(&mut self, piece: &str) -> SplitText {
        let (mut split, rest) = (self.push(piece), self.finish());
        split.reasoning += &rest.reasoning;
        split.content += &rest.content;
        split.calls.extend(rest.calls);
        split
    }

    /// The text held back, when the text ends.
    fn finish(&mut self) -> SplitText {
        let rest = std::mem::take(&mut self.held);
        match &mut self.part {
            Part::Opened | Part::Reasoning(_) => SplitText { reasoning: rest, ..SplitText::default() },
            Part::Channels(channels) => channels.finish(),
            Part::Beginning | Part::Content => SplitText { content: rest, ..SplitText::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::channels::BEGIN;
    use super::*;

    fn split(text: &str, is_open: bool, cuts: &[usize]) -> SplitText {
        let start = if is_open { TextStart::Reasoning } else { TextStart::Answer };
        let mut splitter = ReasoningSplitter::new(start);
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
            ("<|channel>thought\na < b<channel|>c", false, "a < b", "c"),
            ("a<chan</think>b", true, "a<chan", "b"),
            ("a<channel|>b", true, "a", "b"),
            ("<|channel>thought", false, "", "<|channel>thought"),
            ("<thinking>a </think></thinking>b", false, "a </think>", "b"),
            ("a</thinkin</thinking>b", true, "a</thinkin", "b"),
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
    fn what_answers_is_what_follows_the_reasoning() {
        let harmony = "<|channel|>analysis<|message|>5?<|end|><|start|>assistant<|channel|>final<|message|>4";
        let cases = [
            ("It is 4.", "It is 4."),
            ("<think>5?</think>4", "4"),
            ("5?\n</think>\n\n4 <think>", "\n\n4 <think>"),
            ("<think>5? It is 5", ""),
            ("Write <think>x</think> in it", "Write <think>x</think> in it"),
            ("<|channel>thought\n5?<channel|>4", "4"),
            (harmony, "4"),
            ("<|channel|>analysis<|message|>5?", ""),
            ("<thinking>5? <think></thinking>4", "4"),
            ("5?</thinking>4", "4"),
            ("<thinking>5?", ""),
            ("<seed:think>5?</seed:think>4", "4"),
            ("[THINK]5?[/THINK]4", "4"),
            ("<|START_THINKING|>5?<|END_THINKING|>4", "4"),
            ("<think>5?</think>\n<think>6?</think>4", "4"),
            ("<think>5?</think><think>6?", ""),
            ("print(text.split('</think>')[1])", "print(text.split('</think>')[1])"),
            ("It is `</think>`.</think>4", "4"),
            ("", ""),
        ];
        for (text, answer) in cases {
            assert_eq!(answer_part(text), answer, "{text:?}");
        }
        // However often it begins to reason again.
        let again = "<think></think>".repeat(20_000);
        assert_eq!(answer_part(&format!("{again}4")), "4");
        assert_eq!(answer_part(&format!("5?</think>{again}<think>6?")), "");
    }

    #[test]
    fn a_prompt_tells_where_its_answer_begins() {
        let open = |prompt: &str| TextStart::of(prompt, None) == TextStart::Reasoning;
        assert!(open("<|assistant|><think>\n") && !open("what is <think>?"));
        assert!(open("<|turn>model\n<|channel>thought\n"));
        assert!(!open("<|turn>model\n<|channel>thought\n<channel|>"));
        let begun = |answer: &str| TextStart::of("", Some(answer)) == TextStart::Reasoning;
        assert!(begun("<think>so far") && !begun("<think>a</think>b") && !begun("plain"));
    }

    #[test]
    fn answers_in_channels_go_on_where_their_prompt_ends() {
        let user = "<|start|>user<|message|>a<|channel|>b<|end|>";
        assert_eq!(TextStart::of(&format!("{user}<|start|>assistant"), None), TextStart::Answer);
        let answer = "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>yes";
        let whole = split(answer, false, &[]);
        for cut in BEGIN.len()..=answer.len() {
            if !answer.is_char_boundary(cut) || is_within_mark(answer, cut) {
                continue;
            }
            let prompt = format!("{user}<|start|>assistant{}", &answer[..cut]);
            let mut splitter = ReasoningSplitter::new(TextStart::of(&prompt, None));
            let SplitText { reasoning, content, .. } = splitter.push_last(&answer[cut..]);
            assert!(whole.reasoning.ends_with(&reasoning) && whole.content.ends_with(&content), "{prompt}");
            assert_eq!(content == "yes", cut <= answer.len() - "yes".len(), "{prompt}: {content}");
        }
    }

    /// Marks are single tokens: no prompt ends within one.
    fn is_within_mark(text: &str, at: usize) -> bool {
        text[..at].rfind("<|").is_some_and(|open| !text[open..at].contains("|>"))
            || text[..at].ends_with('<') && text[at..].starts_with('|')
    }
}
