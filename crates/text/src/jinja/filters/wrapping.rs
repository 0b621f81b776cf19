//! The filter `wordwrap`: lines of a width, broken as Python's `textwrap` breaks them.

use super::{Arguments, Run, int_or, soft_text};
use crate::jinja::fault::{Result, fail, undefined};
use crate::jinja::text_methods::lines;
use crate::jinja::value::Value;

pub fn wordwrap(run: &mut Run<'_>, value: &Value, given: Arguments) -> Result<Value> {
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, long_words, end, hyphens] = given.bound("`wordwrap`", names, 0)?;
    let text = match value {
        Value::Text(text) => &text.text,
        Value::Undefined(why) => return undefined(why),
        other => return fail(format!("`wordwrap` takes a text, not a value of the type {}", other.type_name())),
    };
    let width = int_or(width, 79, "`wordwrap`")?;
    if width <= 0 {
        return fail("`wordwrap` takes a width above 0");
    }
    let style = Style {
        width: usize::try_from(width).unwrap_or(usize::MAX),
        breaks_words: long_words.is_none_or(|value| value.is_true()),
        breaks_at_hyphens: hyphens.is_none_or(|value| value.is_true()),
    };
    let end = match end {
        None | Some(Value::None) => "\n".into(),
        Some(end) => soft_text(&end)?,
    };
    run.step(text.len())?;
    let mut out = String::new();
    for (ix, paragraph) in lines(text, false).enumerate() {
        let lines = style.wrapped(paragraph);
        let length = run.text_length(end.len(), lines.len() as i128 + 1)?;
        run.text_length(out.len() + length + paragraph.len(), 1)?;
        out.push_str(if ix > 0 { &end } else { "" });
        out.push_str(&lines.join(&end));
    }
    Ok(Value::text(out))
}

struct Style {
    width: usize,
    breaks_words: bool,
    breaks_at_hyphens: bool,
}

fn is_gap(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_letter(c: char) -> bool {
    is_word(c) && !c.is_numeric()
}

fn ends_word(c: char) -> bool {
    is_word(c) || matches!(c, '!' | '"' | '\'' | '&' | '.' | ',' | '?')
}

impl Style {
    fn wrapped(&self, line: &str) -> Vec<String> {
        let chars: Vec<char> = line.chars().collect();
        let mut chunks = self.chunks(&chars);
        chunks.reverse();
        let mut lines = Vec::new();
        while let Some(next) = chunks.last() {
            if !lines.is_empty() && next.iter().all(|c| c.is_whitespace()) {
                chunks.pop();
            }
            let mut own: Vec<&[char]> = Vec::new();
            let mut length = 0;
            while let Some(next) = chunks.last().filter(|next| length + next.len() <= self.width) {
                length += next.len();
                own.push(next);
                chunks.pop();
            }
            if let Some(next) = chunks.last_mut().filter(|next| next.len() > self.width) {
                let room = self.width - length;
                if self.breaks_words {
                    let mut end = room;
                    if self.breaks_at_hyphens && next.len() > room {
                        let hyphen = next[..room].iter().rposition(|c| *c == '-');
                        let after = hyphen.filter(|at| *at > 0 && next[..*at].iter().any(|c| *c != '-'));
                        end = after.map_or(end, |at| at + 1);
                    }
                    own.push(&next[..end]);
                    *next = &next[end..];
                } else if own.is_empty() {
                    own.extend(chunks.pop());
                }
            }
            if own.last().is_some_and(|last| last.iter().all(|c| c.is_whitespace())) {
                own.pop();
            }
            if !own.is_empty() {
                lines.push(own.concat().into_iter().collect());
            }
        }
        lines
    }

    /// Words, gaps and dashes between words: what a line is made of.
    fn chunks<'c>(&self, chars: &'c [char]) -> Vec<&'c [char]> {
        let mut chunks = Vec::new();
        let mut start = 0;
        while start < chars.len() {
            let end = if is_gap(chars[start]) {
                start + chars[start..].iter().take_while(|c| is_gap(**c)).count()
            } else if self.breaks_at_hyphens {
                word_end(chars, start)
            } else {
                start + chars[start..].iter().take_while(|c| !is_gap(**c)).count()
            };
            chunks.push(&chars[start..end]);
            start = end;
        }
        chunks
    }
}

/// Two dashes or more in front of a word; behind them.
fn dashes_end(chars: &[char], at: usize) -> Option<usize> {
    let count = chars[at..].iter().take_while(|c| **c == '-').count();
    (count >= 2 && chars.get(at + count).is_some_and(|c| is_word(*c))).then_some(at + count)
}

/// Where a word ends that begins here: it may be a part of one with hyphens.
fn word_end(chars: &[char], start: usize) -> usize {
    let is = |at: Option<usize>, is: fn(char) -> bool| at.and_then(|at| chars.get(at)).is_some_and(|c| is(*c));
    if is(start.checked_sub(1), ends_word)
        && let Some(end) = dashes_end(chars, start)
    {
        return end;
    }
    for at in start + 1..=chars.len() {
        if is(Some(at), |c| c == '-') {
            let after_letters = is(at.checked_sub(2), is_letter) && is(at.checked_sub(1), is_letter);
            let after_hyphen = is(at.checked_sub(3), is_letter)
                && is(at.checked_sub(2), |c| c == '-')
                && is(at.checked_sub(1), ends_word);
            let next = at + 1;
            let second = if is(Some(next + 1), |c| c == '-') { next + 2 } else { next + 1 };
            if (after_letters || after_hyphen) && is(Some(next), is_letter) && is(Some(second), is_letter) {
                return at + 1;
            }
        }
        if at == chars.len() || is_gap(chars[at]) {
            return at;
        }
        if ends_word(chars[at - 1]) && dashes_end(chars, at).is_some() {
            return at;
        }
    }
    chars.len()
}
