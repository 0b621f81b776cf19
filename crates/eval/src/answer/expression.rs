//! Grades arithmetic answers (Game of 24, Countdown): whether an expression uses exactly the given numbers and has the
//! required value, in exact rational numbers. `answer` finds the expression in a text, `grade` reads the fields with
//! numbers and value.

use crate::answer::rational::Rational;

/// The numbers and the value that an expression must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpressionTarget {
    /// The numbers, each to be used once, in ascending order.
    numbers: Vec<Rational>,
    value: Rational,
    shown: String,
}

impl ExpressionTarget {
    /// `numbers`: decimal numbers separated by white space or commas. `None` if they, or `value`, are not numbers.
    pub fn new(numbers: &str, value: &str) -> Option<ExpressionTarget> {
        let words = numbers.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
        let mut read: Vec<Rational> = words.map(Rational::parse).collect::<Option<_>>()?;
        read.sort();
        let value = value.trim();
        (!read.is_empty()).then_some(())?;
        Some(ExpressionTarget {
            numbers: read,
            value: Rational::parse(value)?,
            shown: format!("{value} from {}", numbers.trim()),
        })
    }

    /// The target in words, for results.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether the left side of `text` (all of it, if it has no `=`) is an expression of the numbers with that value.
    /// The right side is ignored. Numbers that exceed 128 bits make it wrong.
    pub fn accepts(&self, text: &str) -> bool {
        let mut reader = ExpressionReader { rest: text.split('=').next().unwrap_or(text), numbers: Vec::new() };
        let value = reader.sum(0).filter(|_| reader.rest.trim().is_empty());
        reader.numbers.sort();
        value == Some(self.value) && reader.numbers == self.numbers
    }
}

/// Maximum depth of nested brackets, to bound the stack.
const DEEPEST: usize = 64;

/// Evaluates sums of products of numbers and brackets, and records the numbers. `None`: not such an expression, or it
/// has no value.
struct ExpressionReader<'a> {
    rest: &'a str,
    numbers: Vec<Rational>,
}

impl ExpressionReader<'_> {
    fn sum(&mut self, depth: usize) -> Option<Rational> {
        let mut value = self.product(depth)?;
        while let Some(sign) = self.take(&['+', '-', '−', '–']) {
            let term = self.product(depth)?;
            value = value.plus(if sign == '+' { term } else { term.negative() })?;
        }
        Some(value)
    }

    fn product(&mut self, depth: usize) -> Option<Rational> {
        let mut value = self.factor(depth)?;
        while let Some(sign) = self.take(&['*', '×', '·', '/', '÷']) {
            let factor = self.factor(depth)?;
            value = value.times(if matches!(sign, '/' | '÷') { factor.inverse()? } else { factor })?;
        }
        Some(value)
    }

    fn factor(&mut self, depth: usize) -> Option<Rational> {
        if self.take(&['(']).is_some() {
            let value = (depth < DEEPEST).then(|| self.sum(depth + 1))??;
            return self.take(&[')']).map(|_| value);
        }
        self.rest = self.rest.trim_start();
        let length = self.rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(length);
        let number = Rational::parse(number)?;
        self.rest = rest;
        self.numbers.push(number);
        Some(number)
    }

    /// Consumes and returns the next character if it is one of `wanted`.
    fn take(&mut self, wanted: &[char]) -> Option<char> {
        let next = self.rest.trim_start().chars().next().filter(|next| wanted.contains(next))?;
        self.rest = &self.rest.trim_start()[next.len_utf8()..];
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(numbers: &str) -> ExpressionTarget {
        ExpressionTarget::new(numbers, "24").expect("numbers")
    }

    #[test]
    fn the_numbers_given_and_no_others() {
        let four = target("4 4 6 8");
        assert_eq!(four.shown(), "24 from 4 4 6 8");
        for right in ["(6 - 4) * (4 + 8) = 24", "(4+8)×(6−4)", " ( 6-4 )*( 4 + 8 ) = 25 = x"] {
            assert!(four.accepts(right), "{right}");
        }
        for wrong in [
            "4 * 6",
            "(6 - 4) * (4 + 8) * 1",
            "(6 - 4) * (4 + 8",
            "(6 - 4) * 4 + 8)",
            "(6 - 4) (4 + 8)",
            "4 + 4 + 6 + 8",
            "44 + 6 - 8",
            "-4 + 4 + 6 * 8",
            "4 4 6 8",
            "24",
            "= 24",
            "",
            "(6 - 4) * (4 + 8) is right",
        ] {
            assert!(!four.accepts(wrong), "{wrong}");
        }
    }

    #[test]
    fn values_are_exact() {
        assert!(target("1 3 4 6").accepts("6 / (1 - 3 / 4)"));
        assert!(target("3 3 8 8").accepts("8 / (3 - 8 / 3)"));
        assert!(!target("1 1 24 5").accepts("24 + 5 / (1 - 1)"), "a division by 0 has no value");
        assert!(
            !ExpressionTarget::new("0.5, 48", "24").expect("numbers").accepts("48 * .5 = 24"),
            "`.5` is no number here"
        );
        assert!(ExpressionTarget::new("0.5, 48", "24").expect("numbers").accepts("48 * 0.50 = 24"));
        assert_eq!(ExpressionTarget::new("1 2 x", "24"), None);
        assert_eq!(ExpressionTarget::new(" ", "24"), None);
        assert_eq!(ExpressionTarget::new("1 2", "many"), None);
    }

    #[test]
    fn texts_of_any_size_are_only_wrong() {
        let four = target("4 4 6 8");
        for text in
            ["(".repeat(1 << 20), "9".repeat(1 << 20), "9*".repeat(1 << 16) + "9", format!("4{}", "+4".repeat(1 << 16))]
        {
            assert!(!four.accepts(&text));
        }
    }

    proptest! {
        /// An expression with brackets around every operation has the value that it was built with.
        #[test]
        fn what_was_built_is_accepted(start in 1i64..50, steps in prop::collection::vec((0usize..4, 1i64..13), 1..6)) {
            let (mut text, mut numbers, mut value) = (start.to_string(), vec![start], (start as f64, 1.0));
            for (op, number) in steps {
                let n = number as f64;
                value = match op {
                    0 => (value.0 + n * value.1, value.1),
                    1 => (value.0 - n * value.1, value.1),
                    2 => (value.0 * n, value.1),
                    _ => (value.0, value.1 * n),
                };
                text = format!("({text} {} {number})", ["+", "-", "*", "/"][op]);
                numbers.push(number);
            }
            let numbers: Vec<String> = numbers.iter().rev().map(i64::to_string).collect();
            let whole = value.0 % value.1 == 0.0;
            let target = ExpressionTarget::new(&numbers.join(" "), &format!("{}", (value.0 / value.1).floor()))
                .expect("numbers");
            prop_assert_eq!(target.accepts(&text), whole);
            let one_more = format!("{text} + 1");
            prop_assert!(!target.accepts(&one_more));
        }
    }
}
