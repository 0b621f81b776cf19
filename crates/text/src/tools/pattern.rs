//! Patterns of JSON Schemas as expressions of terminals in Lark. A schema's pattern is found anywhere in a text, and a
//! terminal is the whole text, so that anchors are left out and what may stand around the pattern is added.

use regex_syntax::ast::{self, Ast, Visitor, parse::Parser};

/// Any text.
pub(super) const ANY_TEXT: &str = "/(?s:.*)/";

/// The expression whose texts are those in which `pattern` is found; `None`: it has assertions that no expression has,
/// or is no pattern.
pub(super) fn found_in(pattern: &str) -> Option<String> {
    let parsed = Parser::new().parse(pattern).ok()?;
    let mut texts = Vec::new();
    collect(&parsed, pattern, &mut texts)?;
    Some(format!("({})", texts.join(" | ")))
}

/// Adds an expression for each alternative of the whole pattern.
fn collect(parsed: &Ast, pattern: &str, texts: &mut Vec<String>) -> Option<()> {
    match parsed {
        Ast::Alternation(all) => all.asts.iter().try_for_each(|one| collect(one, pattern, texts)),
        Ast::Group(group) if group.flags().is_none() => collect(&group.ast, pattern, texts),
        Ast::Concat(all) => {
            texts.push(anchored(&all.asts, pattern)?);
            Some(())
        }
        one => {
            texts.push(anchored(std::slice::from_ref(one), pattern)?);
            Some(())
        }
    }
}

/// The expression of one alternative.
fn anchored(parts: &[Ast], pattern: &str) -> Option<String> {
    use ast::AssertionKind::{EndLine, EndText, StartLine, StartText};
    let asserts = |part: &Ast, kinds: [ast::AssertionKind; 2]| match part {
        Ast::Assertion(found) => kinds.contains(&found.kind),
        _ => false,
    };
    let begin = parts.iter().take_while(|part| asserts(part, [StartLine, StartText])).count();
    let end = parts[begin..].iter().rev().take_while(|part| asserts(part, [EndLine, EndText])).count();
    let inner = &parts[begin..parts.len() - end];
    inner.iter().try_for_each(|part| ast::visit(part, Plain).ok())?;
    let text = match (inner.first(), inner.last()) {
        (Some(first), Some(last)) => &pattern[first.span().start.offset..last.span().end.offset],
        _ => "",
    };
    let around = |is_anchored: bool| if is_anchored { "" } else { "(?s:.*)" };
    let whole = format!("{}{}{}", around(begin > 0), in_lark(text), around(end > 0));
    Some(if whole.is_empty() { "\"\"".to_owned() } else { format!("/{whole}/") })
}

/// A pattern without assertions and without flags that hold from one place on.
struct Plain;

impl Visitor for Plain {
    type Output = ();
    type Err = ();

    fn finish(self) -> Result<(), ()> {
        Ok(())
    }

    fn visit_pre(&mut self, part: &Ast) -> Result<(), ()> {
        if matches!(part, Ast::Assertion(_) | Ast::Flags(_)) { Err(()) } else { Ok(()) }
    }
}

/// The pattern as it may stand between slashes. Its classes of digits and words are those of ASCII, as in schemas.
fn in_lark(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut signs = pattern.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => match signs.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some(escaped) => out.extend(['\\', escaped]),
                None => out.push('\\'),
            },
            '/' => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            sign => out.push(sign),
        }
    }
    out
}

/// The expression whose texts have none of these marks in them.
pub(super) fn without(mark: &str) -> String {
    format!("~/(?s:.*){}(?s:.*)/", in_lark(&regex_syntax::escape(mark)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_become_the_ends_of_the_text() {
        for (pattern, expected) in [
            ("^a+$", "(/a+/)"),
            ("a", "(/(?s:.*)a(?s:.*)/)"),
            ("^a|b$", "(/a(?s:.*)/ | /(?s:.*)b/)"),
            ("(^a|b$)", "(/a(?s:.*)/ | /(?s:.*)b/)"),
            (r"^\d{2}/[\w.]$", r"(/[0-9]{2}\/[[0-9A-Za-z_].]/)"),
            ("^(a|b)c$", "(/(a|b)c/)"),
            ("^$", "(\"\")"),
            ("", "(/(?s:.*)(?s:.*)/)"),
            (r"^\$\^$", r"(/\$\^/)"),
        ] {
            assert_eq!(found_in(pattern).as_deref(), Some(expected), "{pattern}");
        }
        for pattern in [r"\bword\b", "(^a|b)c", "a$b", "(?=a)", "(", "(?i)a|b"] {
            assert_eq!(found_in(pattern), None, "{pattern}");
        }
    }
}
