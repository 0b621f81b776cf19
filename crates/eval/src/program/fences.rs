//! Fenced blocks of a text, as Markdown has them: between lines of three or more backticks or tildes, also within list
//! items and quotations. What models leave out or write amiss is read as they mean it: a fence that is not closed, that
//! is closed too far to the right or behind code, or that closes and opens on one line.

use super::marks::without_tokens;
use super::prose::{begins_as_code, open_string};

/// Blocks within blocks are read down to this depth.
const MOST_DEPTH: usize = 4;

/// A tab moves to the next multiple of this column.
const TAB: usize = 4;

/// A closing fence may stand this far to the right of its opening one.
const MOST_TO_THE_RIGHT: usize = 3;

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Its lines, without the indentation and the quotation marks of what it stands in.
    pub code: String,
    /// The first word behind the opening fence, in lower case.
    pub label: String,
    /// The byte at which the line of its opening fence begins.
    pub begin: usize,
    pub is_closed: bool,
    /// Whether it was a session of an interpreter (`>>> half(4)`): its code is what was typed.
    pub is_session: bool,
}

impl Block {
    pub fn new(code: String, label: String, begin: usize, is_closed: bool) -> Block {
        let typed = typed(&code);
        let is_session = typed.is_some();
        Block { code: typed.unwrap_or(code), label, begin, is_closed, is_session }
    }
}

/// What was typed into an interpreter, of the text of a session: the lines behind `>>>` and `...`. `None`: it is none.
fn typed(code: &str) -> Option<String> {
    let is_first = |line: &&str| !line.trim().is_empty();
    code.lines().find(is_first).filter(|line| line.trim_start().starts_with(">>>"))?;
    let line = |line: &str| -> Option<String> {
        let line = line.trim_start();
        let behind = line.strip_prefix(">>>").or_else(|| line.strip_prefix("..."))?;
        Some(format!("{}\n", behind.strip_prefix(' ').unwrap_or(behind).trim_end()))
    };
    Some(code.lines().filter_map(line).collect())
}

/// A line that opens a block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fence {
    mark: char,
    length: usize,
    /// The column of its first mark.
    column: usize,
    /// The quotations that it stands in.
    quotes: usize,
    label: String,
}

/// A line that closes a block.
struct BlockEnd {
    /// The number of the block's lines before the closing line.
    lines: usize,
    /// The number of bytes of the closing line that belong to the block: those before the closing marks.
    rest_of_block: usize,
    /// The fence that the closing line opens, if it closes one block and opens the next.
    reopened: Option<Fence>,
}

/// Whether a line opens or closes a block.
pub(super) fn is_fence(line: &str) -> bool {
    opened(line).is_some()
}

/// The fenced blocks of a text, in order; an unclosed one ends with the text. Fences within the strings of a text that
/// begins as code are part of it.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    read(text, 0)
}

fn read(text: &str, depth: usize) -> Vec<Block> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let (mut blocks, mut at, mut begin) = (Vec::new(), 0, 0);
    let (has_strings, mut string) = (begins_as_code(text), None);
    while at < lines.len() {
        let fence = opened(lines[at]).filter(|_| string.is_none());
        let Some(mut fence) = fence else {
            string = if has_strings { open_string(string, lines[at]) } else { None };
            begin += lines[at].len();
            at += 1;
            continue;
        };
        loop {
            let inside = &lines[at + 1..];
            let end = end_of(inside, &fence);
            let (count, part) = end.as_ref().map_or((inside.len(), 0), |end| (end.lines, end.rest_of_block));
            let mut content: Vec<&str> = inside[..count].to_vec();
            content.extend(inside.get(count).map(|line| &line[..part]).filter(|part| !part.is_empty()));
            let code = within(&fence, &content);
            put(&mut blocks, Block::new(code, fence.label.clone(), begin, end.is_some()), depth);
            begin += lines[at..lines.len().min(at + 1 + count)].iter().map(|line| line.len()).sum::<usize>();
            at += 1 + count;
            match end.and_then(|end| end.reopened) {
                Some(next) => fence = next,
                None => break,
            }
        }
        begin += lines.get(at).map_or(0, |line| line.len());
        at += 1;
    }
    blocks
}

/// Adds a block, or the blocks in it if it is a page of Markdown or begins with a fence of its own.
fn put(blocks: &mut Vec<Block>, block: Block, depth: usize) {
    let is_page = matches!(block.label.as_str(), "markdown" | "md" | "mdx");
    let first = block.code.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let inner = match depth < MOST_DEPTH && (is_page || is_fence(first)) {
        true => read(&block.code, depth + 1),
        false => Vec::new(),
    };
    if inner.is_empty() {
        return blocks.push(block);
    }
    let Block { begin, is_closed, .. } = block;
    blocks.extend(inner.into_iter().map(|inner| Block { begin, is_closed: is_closed || inner.is_closed, ..inner }));
}

/// The fence that a line opens, behind the marks of list items and quotations.
fn opened(line: &str) -> Option<Fence> {
    let (mut rest, mut column, mut quotes) = (line.trim_end(), 0, 0);
    loop {
        let before = rest.len();
        while let Some(space) = rest.chars().next().filter(|c| matches!(c, ' ' | '\t')) {
            column = beyond(column, space);
            rest = &rest[1..];
        }
        if let Some(behind) = rest.strip_prefix('>') {
            (rest, column, quotes) = (behind, column + 1, quotes + 1);
        } else if let Some(behind) = rest.strip_prefix(['-', '*', '+']).filter(|behind| behind.starts_with([' ', '\t']))
        {
            (rest, column) = (behind, column + 1);
        } else if let Some(length) = list_number(rest) {
            (rest, column) = (&rest[length..], column + length);
        }
        if rest.len() == before {
            break;
        }
    }
    let mark = rest.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let behind = rest.trim_start_matches(mark);
    let length = rest.len() - behind.len();
    let label = without_tokens(behind.trim());
    // Code between backticks on one line is no fence.
    if length < 3 || (mark == '`' && label.contains('`')) {
        return None;
    }
    let word = label.split([' ', '\t', ',', '=', ':', '}']).find(|word| !word.trim_matches(['{', '.']).is_empty());
    let label = word.unwrap_or_default().trim_matches(['{', '.']).to_lowercase();
    Some(Fence { mark, length, column, quotes, label })
}

/// The length of a list item's number, such as `1.` or `2)`, before a space.
fn list_number(text: &str) -> Option<usize> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let behind = text[digits..].strip_prefix(['.', ')'])?;
    (digits > 0 && behind.starts_with([' ', '\t'])).then_some(digits + 1)
}

/// The column behind a space or a tab.
fn beyond(column: usize, space: char) -> usize {
    if space == '\t' { (column / TAB + 1) * TAB } else { column + 1 }
}

/// Where a block ends: at a fence of its kind outside of the strings in it. Else at one that stands too far to the
/// right or behind code; else at one within a string, which is no string then. `None`: with the text. Each line is
/// looked at for a bounded number of blocks, so that the time grows with the length alone.
fn end_of(lines: &[&str], fence: &Fence) -> Option<BlockEnd> {
    let (mut string, mut amiss, mut within) = (None, None, None);
    for (at, line) in lines.iter().enumerate() {
        if fence.quotes > 0 && !line.trim_start().starts_with('>') {
            return amiss.or(Some(BlockEnd { lines: at, rest_of_block: 0, reopened: opened(line) }));
        }
        // A block that ended amiss has ended where another begins.
        if amiss.is_some() && string.is_none() && opened(line).is_some_and(|next| !next.label.is_empty()) {
            return amiss;
        }
        match closed(line, fence, at) {
            Some((end, true)) if string.is_none() => return Some(end),
            Some((end, true)) => within = within.or(Some(end)),
            Some((end, false)) if string.is_none() => amiss = amiss.or(Some(end)),
            Some((_, false)) | None => string = open_string(string, line),
        }
    }
    amiss.or(within)
}

/// The end of a block, if the `at`-th line closes it, and whether the line is one that Markdown has.
fn closed(line: &str, fence: &Fence, at: usize) -> Option<(BlockEnd, bool)> {
    let mark = fence.mark;
    if let Some(next) = opened(line).filter(|next| next.mark == mark && next.length >= fence.length) {
        let is_near = next.column <= fence.column + MOST_TO_THE_RIGHT;
        let other = next.length - fence.length;
        return match next.label.is_empty() {
            true => Some((BlockEnd { lines: at, rest_of_block: 0, reopened: None }, is_near)),
            // One block ends and the next begins, without a line's end between them.
            false if other >= 3 => {
                let reopened = Some(Fence { length: other, column: fence.column, ..next });
                Some((BlockEnd { lines: at, rest_of_block: 0, reopened }, is_near))
            }
            false => None,
        };
    }
    let (text, bare) = (line.trim_end(), line.trim_end().trim_end_matches(mark));
    let is_end = text.len() - bare.len() >= fence.length && !bare.trim().is_empty() && !bare.contains(mark);
    is_end.then_some((BlockEnd { lines: at, rest_of_block: bare.len(), reopened: None }, false))
}

/// The lines of a block, without its quotation marks, and without the indentation that all of them have, up to the
/// fence's own.
fn within(fence: &Fence, lines: &[&str]) -> String {
    let unquoted = |line: &&str| -> String {
        let mut rest = *line;
        for _ in 0..fence.quotes {
            let Some(behind) = rest.trim_start_matches([' ', '\t']).strip_prefix('>') else { break };
            rest = behind.strip_prefix(' ').unwrap_or(behind);
        }
        rest.to_owned()
    };
    let lines: Vec<String> = lines.iter().map(unquoted).collect();
    let written = lines.iter().filter(|line| !line.trim().is_empty());
    let common = written.map(|line| indentation(line)).min().unwrap_or(0);
    // The quotation marks of the opening line are columns too.
    let column = if fence.quotes > 0 { 0 } else { fence.column };
    let shift = common.min(column);
    lines.iter().map(|line| unindented(line, shift)).collect()
}

/// The columns of white space at the beginning of a line.
pub(super) fn indentation(line: &str) -> usize {
    line.chars().take_while(|c| matches!(c, ' ' | '\t')).fold(0, beyond)
}

/// A line without the first `columns` columns of its white space.
pub(super) fn unindented(line: &str, columns: usize) -> &str {
    let (mut column, mut rest) = (0, line);
    while let Some(space) = rest.chars().next().filter(|c| matches!(c, ' ' | '\t') && column < columns) {
        column = beyond(column, space);
        rest = &rest[1..];
    }
    rest
}
