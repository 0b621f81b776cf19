//! Formats normal forms as LaTeX: one text for each sum, which parses to the same sum.

use std::cmp::Reverse;

use crate::answer::latex::names::{MARKS, has};
use crate::answer::latex::sum::{Atom, Monomial, Sum};
use crate::answer::rational::Rational;

const ONE: Rational = Rational { above: 1, below: 1 };

impl Sum {
    pub fn latex(&self) -> String {
        let mut text = String::new();
        for (product, coefficient) in self.ordered() {
            let sign = match (coefficient.above < 0, text.is_empty()) {
                (true, _) => "-",
                (false, true) => "",
                (false, false) => "+",
            };
            text.push_str(sign);
            text.push_str(&term(product, *coefficient));
        }
        if text.is_empty() { "0".to_string() } else { text }
    }

    /// As the base of a power or factorial: bracketed if it is more than one number or symbol.
    pub fn base(&self) -> String {
        let text = self.latex();
        let is_one = text.bytes().all(|byte| byte.is_ascii_digit())
            || text.len() == 1
            || text.strip_prefix('\\').is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_alphabetic()));
        if is_one { text } else { format!("({text})") }
    }

    /// The coefficient of the term that is written first.
    pub fn leading(&self) -> Option<Rational> {
        self.ordered().first().map(|(_, coefficient)| **coefficient)
    }

    /// The terms in the order of writing: those with more symbols first.
    fn ordered(&self) -> Vec<(&Monomial, &Rational)> {
        let mut terms: Vec<_> = self.terms.iter().collect();
        terms.sort_by_key(|(product, _)| {
            let symbols = product.iter().filter(|(atom, _)| !matches!(atom, Atom::Prime(_)));
            let degree: i128 = symbols.fold(0, |degree, (_, exponent)| degree.saturating_add(exponent.floor()));
            (Reverse(degree), *product)
        });
        terms
    }
}

/// The text without the sign.
fn term(product: &Monomial, coefficient: Rational) -> String {
    let mut text = String::new();
    if (coefficient.above.unsigned_abs(), coefficient.below) != (1, 1) || product.is_empty() {
        text = number(coefficient);
    }
    let mut under_root = 1;
    for (atom, exponent) in product {
        if let (Atom::Prime(prime @ 1..), 2) = (atom, exponent.below) {
            match i128::checked_mul(under_root, *prime) {
                Some(larger) => under_root = larger,
                None => join(&mut text, &format!("\\sqrt{{{prime}}}")),
            }
        }
    }
    if under_root > 1 {
        join(&mut text, &format!("\\sqrt{{{under_root}}}"));
    }
    for (atom, exponent) in product {
        match atom {
            Atom::Prime(-1) => join(&mut text, "i"),
            Atom::Prime(_) if exponent.below == 2 => {}
            Atom::Prime(prime) => join(&mut text, &raised(&prime.to_string(), *exponent)),
            Atom::Named(name) => join(&mut text, &raised(name, *exponent)),
            Atom::Call(name, of) => {
                let call = call(name, of);
                let base = if call.contains('^') && *exponent != ONE { format!("({call})") } else { call };
                join(&mut text, &raised(&base, *exponent));
            }
            Atom::Group(sum) => join(&mut text, &raised(&format!("({})", sum.latex()), *exponent)),
        }
    }
    text
}

/// A function of its arguments.
pub(crate) fn call(name: &str, of: &[Sum]) -> String {
    match (name, of) {
        ("|", [of]) => format!("|{}|", of.latex()),
        ("!" | "!!", [of]) => format!("{}{name}", of.base()),
        ("^", [base, exponent]) => format!("{}^{{{}}}", base.base(), exponent.latex()),
        ("\\lfloor", [of]) => format!("\\lfloor {}\\rfloor ", of.latex()),
        ("\\lceil", [of]) => format!("\\lceil {}\\rceil ", of.latex()),
        ("\\log_", [of, base]) => format!("\\log_{{{}}}({})", base.latex(), of.latex()),
        (name, [of]) if name.starts_with("\\sum") || name.starts_with("\\prod") => {
            format!("{{{name}({})}}", of.latex())
        }
        (name, of) if name == "\\binom" || has(MARKS, name.trim_start_matches('\\')) => {
            of.iter().fold(name.to_string(), |text, of| format!("{text}{{{}}}", of.latex()))
        }
        (name, of) => {
            let of: Vec<String> = of.iter().map(Sum::latex).collect();
            format!("{name}({})", of.join(","))
        }
    }
}

/// Appends a factor, with a separator if it would merge with a preceding name, number or letter.
fn join(text: &mut String, factor: &str) {
    if !text.is_empty() && factor.starts_with(|c: char| c.is_ascii_digit()) {
        text.push_str("\\cdot ");
    } else if text.ends_with(|c: char| c.is_ascii_alphabetic()) && factor.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        text.push(' ');
    } else if factor.starts_with('(') && text.ends_with(|c: char| !c.is_ascii_digit()) {
        // Brackets behind a symbol may be those of a function.
        text.push_str("\\cdot ");
    }
    text.push_str(factor);
}

fn raised(base: &str, exponent: Rational) -> String {
    let sign = if exponent.above < 0 { "-" } else { "" };
    if exponent == ONE { base.to_string() } else { format!("{base}^{{{sign}{}}}", number(exponent)) }
}

/// The text without the sign.
fn number(number: Rational) -> String {
    match (number.above.unsigned_abs(), number.below) {
        (above, 1) => above.to_string(),
        (above, below) => format!("\\frac{{{above}}}{{{below}}}"),
    }
}
