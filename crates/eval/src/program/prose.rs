//! Tells prose from Python, line by line: a line is prose if no Python program can have it outside of a string, such as
//! one with two names side by side. A line that may be either counts as code.

/// The words that Python keeps for itself, and the statements `print` and `exec` of Python 2.
const KEYWORDS: [&str; 37] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "exec", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda",
    "nonlocal", "not", "or", "pass", "print", "raise", "return", "try", "while", "with", "yield",
];

/// The marks of a string that goes on behind its line.
pub(super) type OpenString = &'static str;

const TRIPLE_MARKS: [OpenString; 2] = ["\"\"\"", "'''"];

/// A part of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A name that is no keyword.
    Name,
    Keyword,
    Number,
    Text,
    Sign,
}

/// What a line, or the first part of one, ends in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Code,
    /// A string of several lines.
    Text(OpenString),
    /// A comment, or a string that lacks its end.
    Lost,
}

fn line_end(mut open: Option<OpenString>, line: &str) -> LineEnd {
    let mut rest = line;
    loop {
        if let Some(marks) = open {
            let Some(end) = rest.find(marks) else { return LineEnd::Text(marks) };
            rest = &rest[end + marks.len()..];
        }
        let Some(begin) = rest.find(['"', '\'', '#']) else { return LineEnd::Code };
        rest = &rest[begin..];
        if rest.starts_with('#') {
            return LineEnd::Lost;
        }
        open = TRIPLE_MARKS.into_iter().find(|marks| rest.starts_with(marks));
        rest = match open {
            Some(marks) => &rest[marks.len()..],
            None => match behind_string(rest) {
                Some(behind) => behind,
                None => return LineEnd::Lost,
            },
        };
    }
}

/// The string that goes on behind a line; `open`: the one that goes on behind the line before it.
pub(super) fn open_string(open: Option<OpenString>, line: &str) -> Option<OpenString> {
    match line_end(open, line) {
        LineEnd::Text(marks) => Some(marks),
        LineEnd::Code | LineEnd::Lost => None,
    }
}

/// Whether the first part of a line ends outside of strings and comments; `open` as in [`open_string`].
pub(super) fn ends_in_code(open: Option<OpenString>, begin_of_line: &str) -> bool {
    line_end(open, begin_of_line) == LineEnd::Code
}

/// The string of several lines within which a text ends.
pub(super) fn string_at_end(text: &str) -> Option<OpenString> {
    text.lines().fold(None, open_string)
}

/// What follows the string on one line with which `text` begins; `None`: it does not end.
fn behind_string(text: &str) -> Option<&str> {
    let mark = text.chars().next()?;
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == mark => return Some(&text[at + c.len_utf8()..]),
            _ => {}
        }
    }
    None
}

/// The first line that is neither blank nor a comment.
pub(super) fn first_statement(text: &str) -> Option<&str> {
    text.lines().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
}

/// Whether the first statement of a text may be one of Python.
pub(super) fn begins_as_code(text: &str) -> bool {
    first_statement(text).is_some_and(|line| !is_prose(line))
}

/// Whether the first statement of a text is a definition or an import, not indented.
pub(super) fn begins_with_definition(text: &str) -> bool {
    first_statement(text).is_some_and(|line| is_definition(line) && !is_prose(line))
}

fn is_definition(line: &str) -> bool {
    ["def ", "async def ", "class ", "@", "import "].iter().any(|word| line.starts_with(word))
        || line.starts_with("from ") && line.contains(" import ")
}

/// The code in a text without fences: from its first statement that is certain to be one, or from the text's beginning
/// if that may be code, up to the next prose. `may_be_body`: indented statements count too, where there are no others.
pub(super) fn unfenced(text: &str, may_be_body: bool) -> Option<&str> {
    let lines = || {
        text.split_inclusive('\n').scan(0, |end, line| {
            let begin = *end;
            *end += line.len();
            Some((begin, line))
        })
    };
    let first = |is_statement: fn(&str) -> bool| lines().find(|(_, line)| is_statement(line)).map(|(begin, _)| begin);
    let begin = match begins_as_code(text) {
        true => 0,
        false => first(is_statement).or_else(|| may_be_body.then(|| first(is_indented_statement)).flatten())?,
    };
    let (mut string, mut goes_on, mut end) = (None, true, text.len());
    for (at, line) in lines().skip_while(|(at, _)| *at < begin) {
        let is_apart = string.is_none() && !goes_on && !line.starts_with([' ', '\t']);
        // A text that begins as code may be nothing else: there only what is surely prose ends it.
        let is_end = if begin == 0 { is_surely_prose } else { is_prose };
        if is_apart && is_end(line) {
            end = at;
            break;
        }
        string = open_string(string, line);
        goes_on = line.trim_end().ends_with('\\');
    }
    // What introduces code is not indented; what ends within a string has begun in one, that of a prompt.
    let is_introduction = |line: &str| !line.starts_with([' ', '\t']) || line.trim().is_empty();
    let is_introduced = begin == 0 || text[..begin].lines().all(is_introduction) && string.is_none();
    is_introduced.then_some(&text[begin..end])
}

/// Whether a text has a line without indentation that is certainly a statement.
pub(super) fn has_statement(text: &str) -> bool {
    text.lines().any(is_statement)
}

/// Whether a line without indentation is certainly a statement.
fn is_statement(line: &str) -> bool {
    const BLOCKS: [&str; 5] = ["if", "for", "while", "try", "with"];
    let line = line.trim_end();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = line.split(|c| !is_word(c)).next().unwrap_or_default();
    let is_assignment = line.split_once('=').is_some_and(|(target, _)| !target.contains(':'));
    let is_call = line.contains('(') && line.ends_with(')');
    let is_code = is_definition(line)
        || BLOCKS.contains(&word) && line.ends_with(':')
        || !word.is_empty() && (is_assignment || is_call);
    is_code && !is_prose(line)
}

/// The lines of code that begin outside of strings of several lines.
fn lines_outside(code: &str) -> impl Iterator<Item = (bool, &str)> {
    code.split_inclusive('\n').scan(None, |string, line| {
        let is_outside = string.is_none();
        *string = open_string(*string, line);
        Some((is_outside, line))
    })
}

/// Whether code does more than to name functions: it has statements other than their heads, their descriptions, `pass`
/// and `...`.
pub(super) fn has_body(code: &str) -> bool {
    const HEADS: [&str; 7] = ["def ", "async def ", "class ", "import ", "from ", "@", "#"];
    lines_outside(code).filter(|(is_outside, _)| *is_outside).any(|(_, line)| {
        let line = line.trim();
        let is_head = HEADS.iter().any(|head| line.starts_with(head));
        let is_empty = [":", "...", "pass"].iter().any(|end| line.ends_with(end)) || !line.contains("def ");
        let is_stub = matches!(line, "" | "pass" | "..." | "return" | ")" | "):") || line.starts_with("raise NotImpl");
        let is_text = ["\"", "'", "r\""].iter().any(|mark| line.starts_with(mark));
        !(is_stub || is_text || is_head && is_empty)
    })
}

/// Whether a `return` stands outside of all functions: the code is a body that lacks its indentation.
pub(super) fn has_bare_return(code: &str) -> bool {
    let is_return =
        |line: &str| line.trim_end() == "return" || line.starts_with("return ") || line.starts_with("return(");
    lines_outside(code).any(|(is_outside, line)| is_outside && is_return(line))
}

/// Code as the body of a function.
pub(super) fn as_body(code: &str) -> String {
    let line = |(is_outside, line): (bool, &str)| format!("{}{line}", if is_outside { "    " } else { "" });
    lines_outside(code).map(line).collect()
}

fn is_indented_statement(line: &str) -> bool {
    const STATEMENTS: [&str; 4] = ["return", "raise", "yield", "pass"];
    let statement = line.trim();
    let word = statement.split([' ', '(']).next().unwrap_or_default();
    statement.len() < line.trim_end().len()
        && (is_statement(statement) || STATEMENTS.contains(&word) && !is_prose(statement))
}

/// Whether a line is no line of Python outside of a string of several lines.
pub(super) fn is_prose(line: &str) -> bool {
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.is_empty() || line.starts_with('#') {
        return false;
    }
    let is_marked = line.starts_with(['>', '=', '|', '/', '<', '%', '&', ':']) || line.starts_with("**");
    let Some((parts, code)) = parts(line).filter(|_| !is_marked && !line.starts_with("* ")) else { return true };
    let is_side_by_side = |pair: &[Part]| match pair {
        [Part::Name | Part::Number, behind] => matches!(behind, Part::Name | Part::Number | Part::Text),
        [Part::Text, behind] => matches!(behind, Part::Name | Part::Number),
        _ => false,
    };
    let (first, last) = (parts.first(), parts.last());
    let has_brackets = code.contains(['(', '[', '{', ')', ']', '}']);
    let has_only_signs = parts.iter().all(|part| *part == Part::Sign) && !has_brackets && code != "...";
    let is_heading = code.ends_with(':') && first == Some(&Part::Name) && last == Some(&Part::Sign) && !has_brackets;
    let is_sentence = code.ends_with('.') && !code.ends_with("..") && last == Some(&Part::Sign);
    let is_item =
        first == Some(&Part::Number) && code.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(')');
    parts.windows(2).any(is_side_by_side)
        || has_only_signs
        || is_heading
        || is_sentence
        || is_item
        || is_lone_word(code)
}

/// Whether a line is a heading, or has two words side by side of which neither is a keyword, before any sign that code
/// may have: no line of a program, even within brackets. A line that only cannot be read is not surely prose.
fn is_surely_prose(line: &str) -> bool {
    const SOFT_KEYWORDS: [&str; 3] = ["match", "case", "type"];
    const CONTRACTIONS: [&str; 6] = ["'s ", "'ll ", "'t ", "'re ", "'ve ", "'m "];
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', '@']) || !is_prose(line) {
        return false;
    }
    if line.starts_with("**") && line.len() > 4 {
        return line.ends_with("**") || line.contains("**:") || line.contains(":**");
    }
    let plain = line.split(['"', '(', '[', '{', '=', '#', '\\', '`']).next().unwrap_or_default();
    let before_quote = plain.split('\'').next().unwrap_or_default();
    let words: Vec<&str> = before_quote.split_whitespace().collect();
    let is_word = |word: &str| word.chars().all(char::is_alphabetic) && !KEYWORDS.contains(&word);
    let has_pair = words.windows(2).enumerate().any(|(at, pair)| {
        let second = pair[1].trim_end_matches(['.', ',', ':', ';', '!', '?']);
        let is_soft = at == 0 && SOFT_KEYWORDS.contains(&pair[0]);
        is_word(pair[0]) && !second.is_empty() && is_word(second) && !is_soft
    });
    let is_heading = matches!(words[..], [word] if word.ends_with(':') && is_word(word.trim_end_matches(':')));
    // `Note: it's right.`
    let is_noted = matches!(words[..], [note, word] if is_word(word) && word.len() > 1
        && note.strip_suffix(':').is_some_and(|note| is_word(note) && note.starts_with(char::is_uppercase)));
    let is_contraction =
        (words.len() == 1 || is_noted) && CONTRACTIONS.iter().any(|end| plain[before_quote.len()..].starts_with(end));
    has_pair || is_heading || is_contraction
}

/// Whether a line is one capitalised word, such as `Solution`.
fn is_lone_word(line: &str) -> bool {
    let mut letters = line.chars();
    let is_capital = letters.next().is_some_and(|c| c.is_ascii_uppercase());
    is_capital && line.len() > 1 && letters.all(|c| c.is_ascii_lowercase()) && !KEYWORDS.contains(&line)
}

/// The parts of a line, and what is before its comment; `None`: it has a sign that Python does not.
fn parts(line: &str) -> Option<(Vec<Part>, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut parts, mut rest) = (Vec::new(), line.trim_start());
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (part, behind) = match first {
            '#' => break,
            '"' | '\'' if TRIPLE_MARKS.iter().any(|marks| rest.starts_with(marks)) => {
                let behind = &rest[3..];
                (Part::Text, behind.find(&rest[..3]).map_or("", |end| &behind[end + 3..]))
            }
            // A string may go on behind a backslash at the end of its line.
            '"' | '\'' => (Part::Text, behind_string(rest).or_else(|| rest.ends_with('\\').then_some(""))?),
            '0'..='9' => {
                let end = rest.find(|c| !is_word(c) && c != '.').unwrap_or(rest.len());
                let is_number = |c: char| !c.is_alphabetic() || c.is_ascii_hexdigit() || "xXoOjJlL".contains(c);
                (Part::Number, rest[..end].chars().all(is_number).then_some(&rest[end..])?)
            }
            _ if is_word(first) => {
                let (name, behind) = rest.split_at(word);
                let is_prefix = || name.len() <= 2 && name.chars().all(|c| "rRuUbBfFtT".contains(c));
                // `match`, `case` and `type` are keywords where they begin a statement.
                let is_soft = parts.is_empty()
                    && (matches!(name, "match" | "case") && line.ends_with(':')
                        || name == "type" && line.contains('='));
                match behind.starts_with(['"', '\'']) {
                    _ if KEYWORDS.contains(&name) || is_soft => (Part::Keyword, behind),
                    // A formatted string may hold its own marks.
                    true if is_prefix() && name.contains(['f', 'F', 't', 'T']) => (Part::Text, ""),
                    true if is_prefix() => {
                        rest = behind;
                        continue;
                    }
                    true => return None,
                    false => (Part::Name, behind),
                }
            }
            '!' if rest.starts_with("!=") => (Part::Sign, &rest[2..]),
            '?' | '$' | '`' | '!' => return None,
            _ if !first.is_ascii() => return None,
            _ => (Part::Sign, &rest[first.len_utf8()..]),
        };
        parts.push(part);
        rest = behind.trim_start();
    }
    Some((parts, line[..line.len() - rest.len()].trim_end()))
}
