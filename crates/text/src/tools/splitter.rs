//! Finds the calls in the content of an answer that comes in pieces. The result does not depend on how the text was
//! cut: what more text could change is held back.
//!
//! A call is one from where its arguments begin. Then it stays one, whatever its arguments are: a text that ends within
//! them, by its limit of tokens, has a call whose arguments end there. What only looks like a call before that is
//! content. White space around calls is no content.

use std::sync::Arc;

use super::ToolSet;
use super::answer::{AnswerPart, Parts};
use super::head::{self, Body, Head};
use super::json::{BracketScanner, End};
use super::syntax::{BareCalls, CallStyle, CallSyntax, OBJECT, PYTHON, PYTHON_TAG, Tagged};
use super::tagged::{self, TagStep, TaggedCall};
use crate::channels::beginning_of;

/// Which calls are found in a text.
#[derive(Clone, Debug, PartialEq)]
pub struct CallReader {
    syntax: &'static CallSyntax,
    tools: Arc<ToolSet>,
    is_single: bool,
}

impl CallReader {
    /// Finds calls of this syntax. An object of JSON without a mark calls one of these tools, or, if there are none,
    /// any.
    pub fn new(syntax: &'static CallSyntax, tools: Arc<ToolSet>) -> Self {
        CallReader { syntax, tools, is_single: false }
    }

    /// This reader; if `is_single`, calls behind an answer's first one are left out of the answer.
    #[must_use]
    pub fn with_single_call(self, is_single: bool) -> Self {
        CallReader { is_single, ..self }
    }

    /// Whether calls behind the first one are left out.
    pub fn is_single(&self) -> bool {
        self.is_single
    }

    /// The syntax of the calls.
    pub fn syntax(&self) -> &'static CallSyntax {
        self.syntax
    }

    /// The tools that can be called.
    pub fn tools(&self) -> &ToolSet {
        &self.tools
    }
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Content,
    /// What may be a call begins the text that is held.
    Head(HeadState),
    /// In the arguments, which are JSON within `within` more brackets.
    Arguments {
        scanner: BracketScanner,
        within: usize,
    },
    /// Behind the arguments, in the rest of the object that has them.
    Rest(BracketScanner),
    Tagged {
        tags: Tagged,
        tool: String,
        is_first: bool,
    },
    /// Behind a call.
    Behind,
}

#[derive(Clone, Debug, PartialEq)]
struct HeadState {
    /// Bytes before the call's own text: its mark, or what stands between two calls.
    mark: usize,
    styles: &'static [CallStyle],
    is_bare: bool,
    /// Whether objects without a mark may follow.
    has_more: bool,
    /// Bytes that must have come before it is read again, so that reading a long one takes no quadratic time.
    least: usize,
}

impl HeadState {
    /// An object without a mark, behind so many bytes.
    fn bare(mark: usize) -> Self {
        HeadState { mark, styles: &[CallStyle::Object], is_bare: true, has_more: true, least: 0 }
    }

    /// The next call of a list, behind so many bytes.
    fn listed(mark: usize, styles: &'static [CallStyle]) -> Self {
        HeadState { styles, is_bare: false, has_more: false, ..HeadState::bare(mark) }
    }
}

/// Longest beginning of a call that is read anew with every piece, in bytes.
const SHORT_HEAD: usize = 512;

/// Finds the calls of one text.
#[derive(Clone, Debug)]
pub(super) struct CallSplitter {
    reader: CallReader,
    state: State,
    /// Text that is not decided.
    held: String,
    /// White space that belongs to the content, if more of it comes.
    space: String,
    /// Whether no content has come since the last call.
    is_behind_call: bool,
    has_content: bool,
    /// How the calls are written of the list that is open and has the last call.
    list: Option<&'static [CallStyle]>,
    /// Whether objects without a mark may follow the last call.
    has_more: bool,
}

impl CallSplitter {
    pub fn new(reader: CallReader) -> Self {
        CallSplitter {
            reader,
            state: State::Content,
            held: String::new(),
            space: String::new(),
            is_behind_call: false,
            has_content: false,
            list: None,
            has_more: false,
        }
    }

    /// Takes the next piece; `ends`: it is the last one.
    pub fn push(&mut self, piece: &str, ends: bool, parts: &mut Parts) {
        self.held.push_str(piece);
        while self.step(ends, parts) {}
        if ends {
            self.finish(parts);
        }
    }

    /// Decides the next piece of what is held; false: more text is needed.
    fn step(&mut self, ends: bool, parts: &mut Parts) -> bool {
        match &mut self.state {
            State::Content => self.content(parts),
            State::Head(_) => self.head(ends, parts),
            State::Arguments { scanner, within } => {
                let within = *within;
                let end = scanner.push(&self.held);
                let bytes = if let End::At(at) = end { at } else { self.held.len() };
                parts.push(AnswerPart::Arguments(self.held.drain(..bytes).collect()));
                if end == End::Beyond {
                    return false;
                }
                self.end_call(within, parts);
                true
            }
            State::Rest(scanner) => {
                let is_json = |byte: u8| byte.is_ascii_alphanumeric() || b" \t\r\n,:{}[]\"+-.".contains(&byte);
                for (at, byte) in self.held.bytes().enumerate() {
                    let is_end = !scanner.is_in_string() && !is_json(byte);
                    if is_end || scanner.take(byte) {
                        self.held.drain(..at + usize::from(!is_end));
                        self.state = State::Behind;
                        return true;
                    }
                }
                self.held.clear();
                false
            }
            State::Tagged { tags, tool, is_first } => {
                let CallReader { syntax, tools, .. } = &self.reader;
                let call = TaggedCall { tags, closes: syntax.closes, tools, name: tool, is_first: *is_first };
                match tagged::step(call, &self.held, ends) {
                    TagStep::More => false,
                    TagStep::Argument { bytes, piece } => {
                        *is_first = false;
                        self.held.drain(..bytes);
                        parts.push(AnswerPart::Arguments(piece));
                        true
                    }
                    TagStep::End { bytes } => {
                        self.held.drain(..bytes);
                        parts.push(AnswerPart::Arguments("}".to_owned()));
                        self.end_call(0, parts);
                        true
                    }
                }
            }
            State::Behind => self.behind(),
        }
    }

    /// Passes content on, up to what may be a call.
    fn content(&mut self, parts: &mut Parts) -> bool {
        let syntax = self.reader.syntax;
        if syntax.bare == BareCalls::First && !self.has_content && !self.is_behind_call {
            let space = self.held.len() - self.held.trim_start().len();
            match self.held[space..].chars().next() {
                None => return false,
                Some('{') => {
                    self.state = State::Head(HeadState::bare(space));
                    return true;
                }
                Some(_) => {}
            }
        }
        let found = syntax
            .openings
            .iter()
            .filter_map(|opening| Some((self.held.find(opening.mark)?, opening)))
            .min_by_key(|found| found.0);
        if let Some((at, opening)) = found {
            self.pass(at, parts);
            let mark = if opening.is_within { 0 } else { opening.mark.len() };
            let has_more = opening.mark == PYTHON_TAG;
            self.state = State::Head(HeadState { mark, styles: opening.styles, is_bare: false, has_more, least: 0 });
            return true;
        }
        let begun = syntax.marks().map(|mark| beginning_of(mark, &self.held)).max().unwrap_or(0);
        self.pass(self.held.len() - begun, parts);
        false
    }

    /// Passes on the first `bytes` bytes of what is held, as content.
    fn pass(&mut self, bytes: usize, parts: &mut Parts) {
        let text: String = self.held.drain(..bytes).collect();
        let text = if self.is_behind_call { text.trim_start() } else { &text };
        let end = text.trim_end().len();
        if end > 0 {
            self.is_behind_call = false;
            self.has_content = true;
            parts.push(AnswerPart::Content(std::mem::take(&mut self.space) + &text[..end]));
        }
        self.space.push_str(&text[end..]);
    }

    fn head(&mut self, ends: bool, parts: &mut Parts) -> bool {
        let State::Head(head) = self.state.clone() else { return false };
        let HeadState { mark, styles, is_bare, has_more, least } = head;
        let length = self.held.len();
        if length < least && !ends {
            return false;
        }
        let CallReader { syntax, tools, .. } = &self.reader;
        match head::read(syntax, styles, tools, &self.held[mark..], is_bare) {
            Head::More if !ends => {
                let least = if length > SHORT_HEAD { length + length / 8 } else { 0 };
                self.state = State::Head(HeadState { least, ..head });
                return false;
            }
            Head::More | Head::No => {
                // The first sign is content, and what follows it may be another call.
                let first = self.held.chars().find(|c| !c.is_whitespace()).map_or(0, char::len_utf8);
                let space = self.held.len() - self.held.trim_start().len();
                self.state = State::Content;
                self.list = None;
                self.pass(space + first, parts);
            }
            Head::Begun { name, bytes, body, in_list } => {
                self.begin_call(mark + bytes, name.clone(), in_list.then_some(styles), has_more, parts);
                self.state = match body {
                    Body::Json { within } => State::Arguments { scanner: BracketScanner::default(), within },
                    Body::Tagged(tags) => {
                        parts.push(AnswerPart::Arguments("{".to_owned()));
                        State::Tagged { tags, tool: name, is_first: true }
                    }
                };
            }
            Head::Whole { name, bytes, arguments, in_list } => {
                self.begin_call(mark + bytes, name, in_list.then_some(styles), has_more, parts);
                parts.push(AnswerPart::Arguments(arguments));
                self.end_call(0, parts);
            }
        }
        true
    }

    /// `list`: the styles that were tried, if the call begins a list.
    fn begin_call(
        &mut self,
        bytes: usize,
        name: String,
        list: Option<&'static [CallStyle]>,
        has_more: bool,
        parts: &mut Parts,
    ) {
        self.held.drain(..bytes);
        if !self.has_content {
            self.space.clear();
        }
        if let Some(styles) = list {
            self.list = Some(if styles.contains(&CallStyle::Python) { PYTHON } else { OBJECT });
        }
        (self.is_behind_call, self.has_more) = (true, has_more);
        parts.push(AnswerPart::CallBegins { name });
    }

    /// Behind the arguments, within so many brackets of the object that has them.
    fn end_call(&mut self, within: usize, parts: &mut Parts) {
        parts.push(AnswerPart::CallEnds { is_cut: false });
        self.state = if within > 0 { State::Rest(BracketScanner::within(within)) } else { State::Behind };
    }

    /// Passes over what ends calls, up to the next call or to content.
    fn behind(&mut self) -> bool {
        let space = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[space..];
        let Some(sign) = rest.chars().next() else { return false };
        let closes = self.reader.syntax.closes;
        if let Some(close) = closes.iter().find(|close| rest.starts_with(*close)) {
            self.held.drain(..space + close.len());
            return true;
        }
        if closes.iter().any(|close| close.starts_with(rest)) {
            return false;
        }
        match sign {
            ']' if self.list.is_some() => {
                self.list = None;
                self.held.drain(..=space);
            }
            sign => {
                self.state = match (sign, self.list) {
                    (',', Some(styles)) => State::Head(HeadState::listed(space + 1, styles)),
                    (';' | ',', _) if self.has_more => State::Head(HeadState::bare(space + 1)),
                    ('{', _) if self.has_more => State::Head(HeadState::bare(space)),
                    _ => State::Content,
                };
            }
        }
        true
    }

    /// What is left when the text has ended.
    fn finish(&mut self, parts: &mut Parts) {
        match self.state {
            State::Content => {
                self.pass(self.held.len(), parts);
                if !self.is_behind_call {
                    parts.push(AnswerPart::Content(std::mem::take(&mut self.space)));
                }
            }
            State::Arguments { .. } | State::Tagged { .. } => {
                parts.push(AnswerPart::CallEnds { is_cut: true });
            }
            State::Rest(_) | State::Behind | State::Head(_) => {}
        }
    }
}
