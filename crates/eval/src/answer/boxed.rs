//! Finds boxed answers: the contents of `\boxed{…}` and `\fbox{…}`, by which MATH's solutions, and models trained on
//! them, mark their answer. `answer` normalises them.

use crate::answer::latex::group;

/// The contents of a text's boxes, in order. A nested box is part of the outer one; an unclosed box is ignored. Only
/// in a text without any braced box, a box may lack its braces (`\boxed 5`, `\boxed5`): it ends at the end of the
/// line, or before a `$`.
pub(crate) fn boxes(text: &str) -> Vec<&str> {
    let braced: Vec<&str> = found(text, group).collect();
    if braced.is_empty() { found(text, bare).collect() } else { braced }
}

/// What `content` finds behind the words `\boxed` and `\fbox`; it returns a box's content and what follows it.
fn found<'t>(text: &'t str, content: impl Fn(&'t str) -> Option<(&'t str, &'t str)>) -> impl Iterator<Item = &'t str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let (_, behind) = rest.split_once('\\')?;
            rest = behind;
            let Some(after) = behind.strip_prefix("boxed").or_else(|| behind.strip_prefix("fbox")) else { continue };
            if let Some((inside, behind)) = content(after) {
                rest = behind;
                return Some(inside);
            }
        }
    })
}

/// The content of a box without braces, which begins like mathematics: prose may mention `\boxed` too.
fn bare(after: &str) -> Option<(&str, &str)> {
    let (inside, behind) = after.split_at(after.find(['$', '\n']).unwrap_or(after.len()));
    let value = inside.trim_start_matches([' ', '-', '+', '(']);
    let is_apart =
        |behind: &str| behind.trim().is_empty() || behind.trim_start().starts_with(|c| "^_=+-*/,.)".contains(c));
    let begins_as_value = match value.chars().next()? {
        '\\' => !value.starts_with("\\boxed") && !value.starts_with("\\fbox"),
        '.' => value[1..].starts_with(|c: char| c.is_ascii_digit()),
        first => first.is_ascii_digit() || first.is_ascii_alphabetic() && is_apart(&value[1..]),
    };
    let is_word = after.starts_with(|c: char| c.is_ascii_alphabetic());
    (begins_as_value && !is_word).then_some((inside, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<&str> {
        boxes(text)
    }

    #[test]
    fn braces_within_a_box_belong_to_it() {
        assert_eq!(all(r"so \boxed{\frac{1}{\sqrt{2}}}. Or \fbox{2}"), [r"\frac{1}{\sqrt{2}}", "2"]);
        assert_eq!(all(r"\boxed{\left\{ 1, \{2\right. }}"), [r"\left\{ 1, \{2\right. "]);
        assert_eq!(all(r"\boxed {a\}b}"), [r"a\}b"]);
        assert_eq!(all(r"\boxed{x = \boxed{3}} \boxed{}"), [r"x = \boxed{3}", ""]);
    }

    #[test]
    fn what_does_not_close_is_no_box() {
        assert_eq!(all(r"\boxed{1} then \boxed{\frac{1}{2}"), ["1"]);
        assert_eq!(all(r"\boxed{1 \boxed{2}"), ["2"]);
        assert_eq!(all("no \\box{1}, \\boxedin{2}, boxed{3}"), Vec::<&str>::new());
    }

    #[test]
    fn a_box_without_braces_ends_with_its_formula() {
        assert_eq!(all("is $\\boxed 5$, or \\boxed 6 \\%\nnot 7"), [" 5", " 6 \\%"]);
        assert_eq!(all(r"$\boxed5$, $\boxed-1$, $\boxed\frac12$"), ["5", "-1", r"\frac12"]);
        assert_eq!(all(r"put it into \boxed. Or \boxed, or \boxedin 5"), Vec::<&str>::new());
        assert_eq!(
            all(r"$\boxed x$, $\boxed (-\pi)$, $\boxed{}$".trim_end_matches(r", $\boxed{}$")),
            [" x", r" (-\pi)"]
        );
        assert_eq!(
            all("in \\boxed format, in \\boxed (as asked), by \\boxed a, - \\boxed - see"),
            [" a, - \\boxed - see"]
        );
    }

    #[test]
    fn a_box_that_prose_mentions_is_none() {
        for text in [
            r"Mark it with \boxed . So we get \boxed{5}",
            "Put it in \\boxed format.\n\n2+3=5\n\n\\boxed{5}",
            r"It goes in \boxed , as asked. It is $\boxed{5}$.",
            r"In \boxed notation: \boxed{5}. Done.",
            r"\boxed{5}. I used \boxed as asked.",
            r"In \boxed: 7. So \boxed{5}.",
            "\\boxed \nIt is \\boxed{5}",
            "\\boxed\n{5}",
            r"With \fbox 7 or \boxed 7, so \fbox{5}",
        ] {
            assert_eq!(all(text), ["5"], "{text}");
        }
        assert_eq!(all(r"It goes in `\boxed{}`. So \boxed{5}"), ["", "5"]);
        assert_eq!(all(r"Mark it with \boxed . The answer is 5"), Vec::<&str>::new());
    }
}
