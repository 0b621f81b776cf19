//! Finds boxed answers: the contents of `\boxed{…}` and `\fbox{…}`, by which MATH's solutions, and models trained on
//! them, mark their answer. `answer` normalises them.

use crate::answer::latex::group;

/// The contents of a text's boxes, in order. A nested box is part of the outer one; an unclosed box is ignored. Without
/// braces (`\boxed 5`, `\boxed5`) a box ends at the end of the line, or before a `$`.
pub(crate) fn boxes(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let (_, behind) = rest.split_once('\\')?;
            rest = behind;
            let Some(after) = behind.strip_prefix("boxed").or_else(|| behind.strip_prefix("fbox")) else { continue };
            if let Some((inside, behind)) = group(after) {
                rest = behind;
                return Some(inside);
            }
            let is_value = |c: char| c.is_ascii_digit() || matches!(c, ' ' | '-' | '+' | '\\' | '(');
            if after.starts_with(is_value) && !after.trim_start().starts_with('{') {
                let end = after.find(['$', '\n']).unwrap_or(after.len());
                rest = &after[end..];
                return Some(&after[..end]);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<&str> {
        boxes(text).collect()
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
    }
}
