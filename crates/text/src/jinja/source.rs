//! Makes of a template's text one that minijinja's parser reads as jinja2 would: line ends, `{% raw %}` and the tag
//! `{% generation %}` of transformers. Lines stay where they are.

use std::sync::LazyLock;

use regex::Regex;

/// What `{% generation %}` becomes: a block of a filter that changes nothing.
pub const GENERATION: &str = "__generation";

static RAW: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\{%[-+]?\s*raw\s*(-?)%\}"));
static END_RAW: LazyLock<Regex> = LazyLock::new(|| pattern(r"\{%[-+]?\s*endraw\s*[-+]?%\}"));
static MARK: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\{%([-+]?)\s*(generation|endgeneration)\s*([-+]?)%\}"));

fn pattern(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of ours")
}

/// The text for the parser.
pub fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = &*source;
    while let Some(start) = next_tag(rest) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let length = if rest.starts_with("{#") {
            rest.find("#}").map_or(rest.len(), |end| end + 2)
        } else if let Some(raw) = RAW.captures(rest) {
            let head = raw[0].len();
            // The line end behind the tag stays.
            out.push_str(&rest[..head - 2 - raw[1].len()]);
            out.push_str(if raw[1].is_empty() { "+%}" } else { "-%}" });
            rest = &rest[head..];
            END_RAW.find(rest).map_or(rest.len(), |end| end.end())
        } else if let Some(mark) = MARK.captures(rest) {
            let lines = "\n".repeat(mark[0].matches('\n').count());
            let tag = if &mark[2] == "generation" { format!("filter {GENERATION}") } else { "endfilter".to_string() };
            out.push_str(&format!("{{%{} {lines}{tag} {}%}}", &mark[1], &mark[3]));
            rest = &rest[mark[0].len()..];
            0
        } else {
            tag_length(rest)
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out + rest
}

fn next_tag(text: &str) -> Option<usize> {
    let is_tag = |at: &usize| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
    text.match_indices('{').map(|(at, _)| at).find(is_tag)
}

/// The length of a tag that `text` begins with: texts and brackets in it may hold what ends it.
fn tag_length(text: &str) -> usize {
    let end = if text.starts_with("{{") { "}}" } else { "%}" };
    let mut open = 0_usize;
    let mut quote = None;
    let mut chars = text.char_indices().skip(2);
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                chars.next();
            }
            (Some(mark), c) if c == mark => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, _) if open == 0 && text[at..].starts_with(end) => return at + 2,
            (None, '(' | '[' | '{') => open += 1,
            (None, ')' | ']' | '}') => open = open.saturating_sub(1),
            (None, _) => {}
        }
    }
    text.len()
}

/// The text that texts one after the other, as they are written in the template, stand for: escapes are Python's.
///
/// # Errors
///
/// An escape is none of a character.
pub fn unquoted(literals: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = literals.chars().peekable();
    while let Some(mark) = chars.next() {
        if mark != '\'' && mark != '"' {
            continue;
        }
        while let Some(c) = chars.next().filter(|c| *c != mark) {
            if c != '\\' {
                out.push(c);
                continue;
            }
            let escape = chars.next().unwrap_or_default();
            let mut number = |digits: usize, radix: u32, value: u32| {
                let (mut value, mut read) = (value, 0);
                while read < digits
                    && let Some(digit) = chars.peek().and_then(|c| c.to_digit(radix))
                {
                    value = value * radix + digit;
                    read += 1;
                    chars.next();
                }
                (value, read)
            };
            match escape {
                '\n' => {}
                '\\' | '\'' | '"' => out.push(escape),
                'a' => out.push('\u{7}'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                't' => out.push('\t'),
                'v' => out.push('\u{b}'),
                '0'..='7' => {
                    let first = escape.to_digit(8).expect("this is one");
                    out.extend(char::from_u32(number(2, 8, first).0));
                }
                'x' | 'u' | 'U' => {
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let (code, read) = number(digits, 16, 0);
                    match char::from_u32(code).filter(|_| read == digits) {
                        Some(c) => out.push(c),
                        None => return Err(format!("`\\{escape}` is followed by no character's {digits} digits")),
                    }
                }
                'N' => return Err("`\\N{…}` is not supported: write the character".to_string()),
                other => out.extend(['\\', other]),
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_escapes_of_python() {
        assert_eq!(unquoted(r#"'a\n\x41\u00e9\U0001F600\101\d\/' "b\'c""#).unwrap(), "a\nA\u{e9}\u{1F600}A\\d\\/b'c");
        assert!(unquoted(r"'\ud83d'").is_err());
        assert!(unquoted(r"'\x4'").is_err());
    }

    #[test]
    fn tags_in_texts_and_comments_are_none() {
        let kept = "{{ '{% raw %}' }}{# {% generation %} #}{{ {'a': {}} }}";
        assert_eq!(prepared(kept), kept);
        assert_eq!(
            prepared("{%- raw %}\r\n{% generation %}{% endraw %}\r"),
            "{%- raw +%}\n{% generation %}{% endraw %}\n"
        );
        assert_eq!(
            prepared("{% generation -%} a {%- endgeneration %}"),
            "{% filter __generation -%} a {%- endfilter %}"
        );
    }
}
