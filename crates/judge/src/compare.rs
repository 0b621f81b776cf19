//! Compares a candidate's output with the expected output, as bytes, because it need not be text. Checker programs are
//! run by `streams`.

use crate::problem::Compare;

/// How `output` differs from `expected`, in one line; `None` if it is right. Always `None` for a checker, which is run
/// elsewhere.
pub(super) fn difference(compare: &Compare, output: &[u8], expected: &[u8]) -> Option<String> {
    match compare {
        Compare::Exact => {
            (output != expected).then(|| first_difference(lines(output), lines(expected), |a, b| a == b, "line"))?
        }
        Compare::Lines => first_difference(trimmed_lines(output), trimmed_lines(expected), |a, b| a == b, "line"),
        Compare::Tokens => first_difference(tokens(output), tokens(expected), |a, b| a == b, "token"),
        Compare::Floats { tolerance } => {
            first_difference(tokens(output), tokens(expected), |a, b| as_near(a, b, *tolerance), "token")
        }
        Compare::Checker { .. } => None,
    }
}

/// The lines, including their line ends.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

fn trimmed_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.trim_ascii_end().split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end)
}

fn tokens(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|token| !token.is_empty())
}

fn first_difference<'a>(
    output: impl Iterator<Item = &'a [u8]>,
    mut expected: impl Iterator<Item = &'a [u8]>,
    same: impl Fn(&[u8], &[u8]) -> bool,
    part: &str,
) -> Option<String> {
    let mut number = 0;
    for found in output {
        number += 1;
        match expected.next() {
            Some(expected) if same(found, expected) => {}
            Some(expected) => {
                return Some(format!("{part} {number}: expected {}, found {}", shown(expected), shown(found)));
            }
            None => return Some(format!("{part} {number}: expected the end, found {}", shown(found))),
        }
    }
    let missing = expected.next()?;
    Some(format!("{part} {}: expected {}, found the end", number + 1, shown(missing)))
}

/// Whether two tokens are equal, or numbers within the tolerance. Integers have no tolerance.
fn as_near(found: &[u8], expected: &[u8], tolerance: f64) -> bool {
    if found == expected {
        return true;
    }
    let (Some(a), Some(b)) = (number(found), number(expected)) else { return false };
    if whole(found) && whole(expected) {
        return significant(found) == significant(expected);
    }
    // An infinity equals only itself.
    a == b || (a - b).abs() <= tolerance * b.abs().max(1.0) && b.is_finite()
}

fn number(token: &[u8]) -> Option<f64> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

fn whole(token: &[u8]) -> bool {
    let digits = token.strip_prefix(b"-").or(token.strip_prefix(b"+")).unwrap_or(token);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// An integer's sign and its digits without leading zeros.
fn significant(token: &[u8]) -> (bool, &[u8]) {
    let digits = token.strip_prefix(b"-").or(token.strip_prefix(b"+")).unwrap_or(token);
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    (token.first() == Some(&b'-') && zeros < digits.len(), &digits[zeros..])
}

/// At most 60 characters of `part`, in quotes.
fn shown(part: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(&part[..part.len().min(4 * MOST)]);
    let cut = if text.chars().count() > MOST || part.len() > 4 * MOST { "…" } else { "" };
    format!("\"{}{cut}\"", text.chars().take(MOST).collect::<String>().escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(compare: &Compare, output: &str, expected: &str) -> bool {
        difference(compare, output.as_bytes(), expected.as_bytes()).is_none()
    }

    #[test]
    fn what_each_comparison_overlooks() {
        let floats = Compare::Floats { tolerance: 1e-6 };
        for (output, expected, exact, lines, tokens, near) in [
            ("1 2\n", "1 2\n", true, true, true, true),
            ("1 2", "1 2\n", false, true, true, true),
            ("1 2  \r\n\n\n", "1 2\n", false, true, true, true),
            ("1\n2\n", "1 2\n", false, false, true, true),
            (" 1 2\n", "1 2\n", false, false, true, true),
            ("1.0 2\n", "1 2\n", false, false, false, true),
            ("1.0000001 2", "1 2.0000001", false, false, false, true),
            ("1.001 2", "1 2", false, false, false, false),
            ("1", "1 2", false, false, false, false),
            ("1 2 3", "1 2", false, false, false, false),
            ("", "", true, true, true, true),
            ("", "\n", false, true, true, true),
            ("yes", "Yes", false, false, false, false),
        ] {
            let found =
                [Compare::Exact, Compare::Lines, Compare::Tokens, floats.clone()].map(|c| same(&c, output, expected));
            assert_eq!(found, [exact, lines, tokens, near], "{output:?} for {expected:?}");
        }
    }

    #[test]
    fn whole_numbers_have_no_tolerance() {
        let floats = Compare::Floats { tolerance: 1e-5 };
        assert!(!same(&floats, "1000001", "1000000"));
        assert!(!same(&floats, "9007199254740993", "9007199254740992"), "the same double");
        assert!(same(&floats, "+007", "7") && same(&floats, "-0", "0") && !same(&floats, "-7", "7"));
        assert!(same(&floats, "1000001.0", "1000000.0"), "1e-5 of a million");
        for (output, expected) in [("nan", "1.5"), ("inf", "1.5"), ("1.5", "inf"), ("-inf", "inf")] {
            assert!(!same(&floats, output, expected), "{output} for {expected}");
        }
        assert!(same(&Compare::Floats { tolerance: 0.0 }, "0.50", "0.5"));
    }

    #[test]
    fn the_first_difference_is_named() {
        let named = difference(&Compare::Lines, b"a\nb\xff\n", b"a\nc\n").unwrap();
        assert_eq!(named, "line 2: expected \"c\", found \"b\u{fffd}\"");
        assert_eq!(difference(&Compare::Tokens, b"a", b"a b").unwrap(), "token 2: expected \"b\", found the end");
        assert!(difference(&Compare::Exact, &[b'x'; 100_000], b"").unwrap().len() < 120);
    }
}
