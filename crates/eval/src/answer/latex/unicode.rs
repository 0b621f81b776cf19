//! Converts Unicode mathematical signs to LaTeX.

use std::borrow::Cow;

const SUPERSCRIPTS: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/// The text with its signs as LaTeX; unchanged if it is ASCII.
pub(crate) fn spelled(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut signs = text.chars().peekable();
    while let Some(sign) = signs.next() {
        match sign {
            '√' => {
                out.push_str("\\sqrt ");
                let mut digits = String::new();
                while let Some(digit) = signs.next_if(|c| c.is_ascii_digit() || (*c == ' ' && digits.is_empty())) {
                    digits.push(digit);
                }
                out.push_str(&if digits.trim().is_empty() { digits } else { format!("{{{}}}", digits.trim()) });
            }
            _ if is_raised(sign) => {
                let mut raised = String::from(plain(sign));
                while let Some(next) = signs.next_if(|c| is_raised(*c)) {
                    raised.push(plain(next));
                }
                out.push_str(&format!("^{{{raised}}}"));
            }
            // `5–6` is a range.
            '–' if out.ends_with(|c: char| c.is_ascii_digit()) && signs.peek().is_some_and(char::is_ascii_digit) => {
                out.push_str("\\text{ to }");
            }
            _ => match spelling(sign) {
                Some(latex) => out.push_str(latex),
                None => out.push(sign),
            },
        }
    }
    Cow::Owned(out)
}

fn is_raised(sign: char) -> bool {
    sign == '⁻' || SUPERSCRIPTS.contains(sign)
}

/// The plain character of a superscript.
fn plain(raised: char) -> char {
    SUPERSCRIPTS.chars().zip('0'..='9').find(|(sign, _)| *sign == raised).map_or('-', |(_, digit)| digit)
}

fn spelling(sign: char) -> Option<&'static str> {
    Some(match sign {
        '€' => "\\euro ",
        '£' => "\\pounds ",
        '¥' => "\\yen ",
        '¢' => "\\cent ",
        '₹' => "\\rupee ",
        '\u{a0}' | '\u{2009}' | '\u{202f}' => "\\,",
        '…' => "\\dots ",
        '≈' => "\\approx ",
        'ℝ' => "\\mathbb{R}",
        'ℤ' => "\\mathbb{Z}",
        'ℕ' => "\\mathbb{N}",
        'ℚ' => "\\mathbb{Q}",
        'ℂ' => "\\mathbb{C}",
        '⌊' => "\\lfloor ",
        '⌋' => "\\rfloor ",
        '⌈' => "\\lceil ",
        '⌉' => "\\rceil ",
        '⟨' => "(",
        '⟩' => ")",
        '∖' => "\\setminus ",
        'α' => "\\alpha ",
        'β' => "\\beta ",
        'θ' => "\\theta ",
        'λ' => "\\lambda ",
        'φ' => "\\phi ",
        'ω' => "\\omega ",
        '°' => "^{\\circ}",
        '−' | '–' => "-",
        '×' | '·' => "*",
        '÷' | '⁄' => "/",
        'π' => "\\pi ",
        '∞' => "\\infty ",
        '≤' => "\\le ",
        '≥' => "\\ge ",
        '≠' => "\\ne ",
        '±' => "\\pm ",
        '∪' => "\\cup ",
        '∈' => "\\in ",
        '∅' => "\\emptyset ",
        '½' => "\\frac{1}{2}",
        '⅓' => "\\frac{1}{3}",
        '⅔' => "\\frac{2}{3}",
        '¼' => "\\frac{1}{4}",
        '¾' => "\\frac{3}{4}",
        '⅕' => "\\frac{1}{5}",
        '⅖' => "\\frac{2}{5}",
        '⅗' => "\\frac{3}{5}",
        '⅘' => "\\frac{4}{5}",
        '⅙' => "\\frac{1}{6}",
        '⅚' => "\\frac{5}{6}",
        '⅛' => "\\frac{1}{8}",
        '⅜' => "\\frac{3}{8}",
        '⅝' => "\\frac{5}{8}",
        '⅞' => "\\frac{7}{8}",
        _ => return None,
    })
}
