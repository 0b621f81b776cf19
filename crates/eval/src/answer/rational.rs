//! Exact rational numbers of 128 bits, for the arithmetic in answers. A division by 0 and an overflow give `None`; the
//! caller decides what that means.

/// A fraction in lowest terms, with a positive denominator. Its order is some total order, not by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Rational {
    pub above: i128,
    pub below: i128,
}

impl Rational {
    /// `None` if `below` is 0.
    pub fn new(above: i128, below: i128) -> Option<Rational> {
        let divisor = gcd(above.checked_abs()?, below.checked_abs()?);
        let sign = below.signum();
        (below != 0).then_some(())?;
        Some(Rational { above: sign * above / divisor, below: sign * below / divisor })
    }

    /// A decimal number such as `12`, `-3` or `2.5`.
    pub fn parse(text: &str) -> Option<Rational> {
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let plain = |s: &str| s.bytes().all(|byte| byte.is_ascii_digit());
        (plain(whole) && plain(fraction) && !whole.is_empty()).then_some(())?;
        let above: i128 = format!("{whole}{fraction}").parse().ok()?;
        Rational::new(sign * above, 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)
    }

    pub fn plus(self, other: Rational) -> Option<Rational> {
        let (a, b) = (self.above.checked_mul(other.below)?, other.above.checked_mul(self.below)?);
        Rational::new(a.checked_add(b)?, self.below.checked_mul(other.below)?)
    }

    pub fn times(self, other: Rational) -> Option<Rational> {
        Rational::new(self.above.checked_mul(other.above)?, self.below.checked_mul(other.below)?)
    }

    pub fn negative(self) -> Rational {
        Rational { above: -self.above, ..self }
    }

    pub fn inverse(self) -> Option<Rational> {
        Rational::new(self.below, self.above)
    }

    pub fn whole(number: i128) -> Rational {
        Rational { above: number, below: 1 }
    }

    pub fn is_whole(self) -> bool {
        self.below == 1
    }

    /// The largest integer that is at most this number.
    pub fn floor(self) -> i128 {
        self.above.div_euclid(self.below)
    }

    pub fn power(self, exponent: i128) -> Option<Rational> {
        let base = if exponent < 0 { self.inverse()? } else { self };
        let exponent = u32::try_from(exponent.checked_abs()?).ok()?;
        Rational::new(base.above.checked_pow(exponent)?, base.below.checked_pow(exponent)?)
    }
}

pub(crate) fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}
