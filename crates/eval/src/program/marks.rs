//! Programs that are marked otherwise than by fences: between `[BEGIN]` and `[DONE]`, `[PYTHON]` and `[/PYTHON]`, or
//! `<code>` and `</code>`, and in indented blocks. The marks may be the prompt's: a text may only close them.

use super::fences::{Block, indentation, is_fence, unindented};
use super::prose::{OpenString, begins_as_code, ends_in_code, has_statement, open_string, string_at_end};
use offshoot_judge::language::Language;

/// The marks before and behind a program.
const PAIRS: [(&str, &str); 4] =
    [("[BEGIN]", "[DONE]"), ("[PYTHON]", "[/PYTHON]"), ("<code>", "</code>"), ("<python>", "</python>")];

/// A text without the special tokens at its end, such as `<|im_end|>` and `</s>`, with which a model ends its turn.
pub(super) fn without_tokens(text: &str) -> &str {
    let mut rest = text;
    loop {
        let trimmed = rest.trim_end();
        let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let named = || {
            let (before, name) = trimmed.strip_suffix("|>")?.rsplit_once("<|")?;
            is_name(name).then_some(before)
        };
        match trimmed.strip_suffix("</s>").or_else(named) {
            Some(before) => rest = before,
            None => return rest,
        }
    }
}

/// The code behind the heading that a copied block has: `python`, perhaps with `Copy code` behind it. `None`: there is
/// no such heading.
pub(super) fn without_title(text: &str) -> Option<&str> {
    let (title, behind) = text.trim_start().split_once('\n')?;
    (title.trim().eq_ignore_ascii_case("python")).then_some(())?;
    let copied = behind.split_once('\n').filter(|(line, _)| line.trim() == "Copy code");
    let code = copied.map_or(behind, |(_, behind)| behind);
    begins_as_code(code).then_some(code)
}

/// Columns of an indented block.
const INDENTED: usize = 4;

/// The programs between marks, in order. The last one may lack its closing mark. The first one may lack its opening
/// mark, where it begins with the text and its closing mark stands on a line of its own. Marks within a program, such
/// as those in its strings, are no marks, nor are those that prose has around a piece of code.
pub(super) fn marked(language: &Language, text: &str) -> Vec<Block> {
    let begins_as_program = begins_as_code(text) && !PAIRS.iter().any(|(open, _)| text.trim_start().starts_with(open));
    let blocks = |(open, close): &(&str, &str)| match begins_as_program {
        true => before(language, text, open, close),
        false => between(language, text, 0, open, close),
    };
    PAIRS.iter().map(blocks).find(|blocks| !blocks.is_empty()).unwrap_or_default()
}

fn block(begin: usize, code: &str, is_closed: bool) -> Block {
    let code = code.strip_prefix("\r\n").or_else(|| code.strip_prefix('\n')).unwrap_or(code);
    Block::new(code.to_owned(), String::new(), begin, is_closed)
}

/// The program at the beginning of a text, before a line that has nothing but the closing mark. Behind a line that has
/// nothing but the opening one, those between the marks.
fn before(language: &Language, text: &str, open: &str, close: &str) -> Vec<Block> {
    let mut string: Option<OpenString> = None;
    for (at, line) in lines(text) {
        if string.is_none() && line.trim() == close {
            return vec![block(0, &text[..at], true)];
        }
        if string.is_none() && line.trim() == open {
            return between(language, text, at, open, close);
        }
        string = open_string(string, line);
    }
    Vec::new()
}

/// The programs between marks that stand from a place in the text on.
fn between(language: &Language, text: &str, from: usize, open: &str, close: &str) -> Vec<Block> {
    let is_code = |line: &str| *language != Language::Python || begins_as_code(line);
    let mut blocks = Vec::new();
    let mut at = from;
    while let Some(begin) = text[at..].find(open).map(|begin| at + begin) {
        let inside = begin + open.len();
        // Prose may mention a mark within a line.
        if !is_at_begin_of_line(text, begin) {
            at = inside;
            continue;
        }
        let line = text[inside..].lines().next().unwrap_or_default();
        let end = closing(&text[inside..], close).map(|end| inside + end);
        // Behind code on the mark's own line, prose goes on, or the program follows.
        let inline = end.map(|end| end - inside).filter(|end| *end <= line.len());
        let is_program = match inline {
            Some(end) => {
                let is_all = matches!(line[end + close.len()..].trim(), "" | "</pre>");
                is_all && is_code(&line[..end]) && !has_statement(text)
            }
            None => line.trim().is_empty() || is_code(line),
        };
        if !is_program {
            at = inside;
            continue;
        }
        blocks.push(block(begin, &text[inside..end.unwrap_or(text.len())], end.is_some()));
        at = end.map_or(text.len(), |end| end + close.len());
    }
    blocks.retain(|block| !block.code.trim().is_empty());
    blocks
}

/// Where a closing mark stands outside of the strings and comments of a program.
fn closing(program: &str, close: &str) -> Option<usize> {
    let mut string: Option<OpenString> = None;
    for (at, line) in lines(program) {
        let mark = line.match_indices(close).find(|(mark, _)| ends_in_code(string, &line[..*mark]));
        if let Some((mark, _)) = mark {
            return Some(at + mark);
        }
        string = open_string(string, line);
    }
    None
}

/// Whether nothing but white space and other tags stands before a place in its line, or a closing mark begins the line.
fn is_at_begin_of_line(text: &str, at: usize) -> bool {
    let before = text[..at].rsplit('\n').next().unwrap_or_default().trim();
    before.is_empty() || before == "<pre>" || PAIRS.iter().any(|(_, close)| before.starts_with(close))
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

/// Where the body of a function ends in a text that continues its prompt, perhaps within a string of the prompt's: at
/// the fence or mark that closes what the prompt has opened, or with the text.
pub(super) fn end_of_body(prompt: &str, text: &str) -> usize {
    let mut string = string_at_end(prompt);
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
