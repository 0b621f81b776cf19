//! Programs that are marked otherwise than by fences: between `[BEGIN]` and `[DONE]`, `[PYTHON]` and `[/PYTHON]`, or
//! `<code>` and `</code>`, and in indented blocks. The marks may be the prompt's: a text may only close them.

use super::fences::{Block, indentation, is_fence, unindented};
use super::prose::{OpenString, begins_as_code, open_string};

/// The marks before and behind a program.
const PAIRS: [(&str, &str); 4] =
    [("[BEGIN]", "[DONE]"), ("[PYTHON]", "[/PYTHON]"), ("<code>", "</code>"), ("<python>", "</python>")];

/// Columns of an indented block.
const INDENTED: usize = 4;

/// The programs between marks, in order. The last one may lack its closing mark. The first one may lack its opening
/// mark, where it begins with the text and its closing mark stands on a line of its own. Marks within a program, such
/// as those in its strings, are no marks.
pub(super) fn marked(text: &str) -> Vec<Block> {
    let begins_as_program = begins_as_code(text) && !PAIRS.iter().any(|(open, _)| text.trim_start().starts_with(open));
    let blocks = |(open, close): &(&str, &str)| match begins_as_program {
        true => before(text, close).into_iter().collect(),
        false => between(text, open, close),
    };
    PAIRS.iter().map(blocks).find(|blocks| !blocks.is_empty()).unwrap_or_default()
}

fn block(begin: usize, code: &str, is_closed: bool) -> Block {
    let code = code.strip_prefix("\r\n").or_else(|| code.strip_prefix('\n')).unwrap_or(code);
    Block::new(code.to_owned(), String::new(), begin, is_closed)
}

/// The program at the beginning of a text, before a line that has nothing but the closing mark.
fn before(text: &str, close: &str) -> Option<Block> {
    let mut string: Option<OpenString> = None;
    for (at, line) in lines(text) {
        if string.is_none() && line.trim() == close {
            return Some(block(0, &text[..at], true));
        }
        string = open_string(string, line);
    }
    None
}

fn between(text: &str, open: &str, close: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut at = 0;
    while let Some(begin) = text[at..].find(open).map(|begin| at + begin) {
        let inside = begin + open.len();
        // Prose may mention a mark within a line.
        if !is_at_begin_of_line(text, begin) {
            at = inside;
            continue;
        }
        let end = text[inside..].find(close).map(|end| inside + end);
        blocks.push(block(begin, &text[inside..end.unwrap_or(text.len())], end.is_some()));
        at = end.map_or(text.len(), |end| end + close.len());
    }
    blocks.retain(|block| !block.code.trim().is_empty());
    blocks
}

/// Whether nothing but white space and other tags stands before a place in its line.
fn is_at_begin_of_line(text: &str, at: usize) -> bool {
    let before = text[..at].rsplit('\n').next().unwrap_or_default().trim();
    before.is_empty() || before == "<pre>"
}

/// The lines of a text with the bytes at which they begin.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split_inclusive('\n').scan(0, |end, line| {
        let begin = *end;
        *end += line.len();
        Some((begin, line))
    })
}

/// The indented blocks of a text, as Markdown has them, without their indentation: lines of four columns of white space
/// or more, behind a blank line or at the text's beginning.
pub(super) fn indented(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut is_apart = true;
    for (at, line) in lines(text) {
        let is_blank = line.trim().is_empty();
        let is_indented = indentation(line) >= INDENTED;
        match &mut open {
            Some((_, code)) if is_blank || is_indented => {
                code.push_str(if is_blank { line } else { unindented(line, INDENTED) })
            }
            Some(_) => {
                blocks.extend(open.take().map(|(begin, code)| Block::new(code, String::new(), begin, true)));
            }
            None if is_indented && is_apart && !is_blank => open = Some((at, unindented(line, INDENTED).to_owned())),
            None => {}
        }
        is_apart = is_blank || line.trim_end().ends_with(':');
    }
    blocks.extend(open.map(|(begin, code)| Block::new(code, String::new(), begin, true)));
    blocks
}

/// Where the body of a function ends in a text that continues its prompt: at the fence or mark that closes what the
/// prompt has opened, or with the text.
pub(super) fn end_of_body(text: &str) -> usize {
    let mut string: Option<OpenString> = None;
    let mut first = None;
    let mut fences = 0;
    for (at, line) in lines(text) {
        let is_outside = string.is_none() && !line.starts_with([' ', '\t']);
        if is_outside && PAIRS.iter().any(|(_, close)| line.trim() == *close) {
            return first.map_or(at, |(begin, _)| at.min(begin));
        }
        if is_outside && is_fence(line) {
            let is_bare = line.trim().trim_matches(['`', '~']).is_empty();
            first = first.or(Some((at, is_bare)));
            fences += 1;
        }
        string = open_string(string, line);
    }
    // An even number of fences opens blocks of its own.
    first.filter(|(_, is_bare)| *is_bare && fences % 2 == 1).map_or(text.len(), |(at, _)| at)
}
