//! Numbers in answers: the value of digits, binomials and factorials. Powers and roots are left to `sum`.

use crate::answer::latex::sum::Sum;
use crate::answer::rational::Rational;

/// The value of a number's digits; overlined digits repeat forever.
pub(crate) fn decimal(digits: &str) -> Option<Rational> {
    let Some((fixed, repeated)) = digits.split_once("\\overline{") else { return Rational::parse(digits) };
    let repeated = repeated.trim_end_matches('}');
    let places = u32::try_from(fixed.split_once('.')?.1.len()).ok()?;
    let period = 10i128.checked_pow(u32::try_from(repeated.len()).ok()?)? - 1;
    let tail = Rational::new(repeated.parse().ok()?, period.checked_mul(10i128.checked_pow(places)?)?)?;
    Rational::parse(fixed)?.plus(tail)
}

/// Whether a power of an integer exceeds 128 bits.
pub(crate) fn is_too_large(value: &Sum, exponent: Rational) -> bool {
    exponent.is_whole()
        && exponent.above > 0
        && value.as_number().is_some_and(|number| number.is_whole() && number.power(exponent.above).is_none())
}

/// The number of ways to choose `k` of `n`; `None` if it is undefined or too large.
pub(crate) fn binomial(n: i128, k: i128) -> Option<Sum> {
    let is_small = (0..=60).contains(&n) && (0..=n).contains(&k);
    is_small
        .then(|| (0..k).fold(1, |value, step| value * (n - step) / (step + 1)))
        .map(|n| Sum::number(Rational::whole(n)))
}

/// `n!!`, the product of each second number; `None` if it is undefined or too large.
pub(crate) fn double_factorial(n: i128) -> Option<Sum> {
    let factors = || (1..=n).rev().step_by(2);
    (0..=50).contains(&n).then(|| Sum::number(Rational::whole(factors().product())))
}

/// `n!`; `None` if it is undefined or too large.
pub(crate) fn factorial(n: i128) -> Option<Sum> {
    (0..=30).contains(&n).then(|| Sum::number(Rational::whole((1..=n).product())))
}
