//! The digits of JSON numbers: checks whether serde_json holds a number exactly, and writes numbers without an
//! exponent. `json` finds the numbers in a text.

use serde_json::Number;

/// Numbers of at most this many characters, without an exponent, are held exactly: a double distinguishes 15 digits.
const SURELY_HELD: usize = 15;

/// Whether a [`Number`] holds exactly the value of this word of a valid JSON text, and an integer as an integer; true
/// for words that are not numbers. As in Python, digits alone are an integer: 1 with 25 zeros is, 1e25 is a float.
pub fn is_held(bare: &str) -> bool {
    let is_number = bare.strip_prefix('-').unwrap_or(bare).starts_with(|c: char| c.is_ascii_digit());
    let is_short = bare.len() <= SURELY_HELD && !bare.contains(['e', 'E']);
    let is_integer = !bare.contains(['.', 'e', 'E']);
    let is_exact = |held: Number| match is_integer {
        true => !held.is_f64(),
        false => Decimal::of(&held.to_string()) == Decimal::of(bare),
    };
    !is_number || is_short || serde_json::from_str::<Number>(bare).is_ok_and(is_exact)
}

/// A number's text without an exponent.
pub fn without_exponent(number: &Number) -> String {
    let text = number.to_string();
    match Decimal::of(&text) {
        Some(decimal) if text.contains(['e', 'E']) => decimal.without_exponent(),
        _ => text,
    }
}

/// `digits` times ten to the `exponent`, without leading or trailing zeros.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Parses a valid number; `None` if its exponent exceeds 64 bits.
    fn of(text: &str) -> Option<Decimal> {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let kept = all.trim_end_matches('0');
        let digits = kept.trim_start_matches('0').to_string();
        if digits.is_empty() {
            return Some(Decimal { is_negative: false, digits, exponent: 0 });
        }
        let dropped = (all.len() - kept.len()) as i64;
        let exponent = exponent.parse::<i64>().ok()?.checked_sub(fraction.len() as i64)?.checked_add(dropped)?;
        Some(Decimal { is_negative, digits, exponent })
    }

    /// The number without an exponent. The number must come from a double, so that the exponent is small.
    fn without_exponent(&self) -> String {
        let sign = if self.is_negative { "-" } else { "" };
        let zeros = |count: i64| "0".repeat(count.max(0) as usize);
        let digits = format!("{}{}", self.digits, zeros(self.exponent));
        let places = (-self.exponent).max(0);
        let digits = zeros(places + 1 - digits.len() as i64) + &digits;
        match digits.split_at(digits.len() - places as usize) {
            (whole, "") => format!("{sign}{whole}"),
            (whole, fraction) => format!("{sign}{whole}.{fraction}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_beyond_64_bits_and_doubles_are_not_held() {
        for held in ["0", "-7", "18446744073709551615", "-9223372036854775808", "1.50", "1e20", "1E-7", "0.1", "100e-2"]
        {
            assert!(is_held(held), "{held}");
        }
        for word in ["true", "null", "NaN", "-Infinity"] {
            assert!(is_held(word), "{word}");
        }
        for lost in ["18446744073709551617", "12345678901234567890123", "0.1000000000000000055", "1e400", "1e-400"] {
            assert!(!is_held(lost), "{lost}");
        }
        for integer in ["10000000000000000000000000", "-36893488147419103232"] {
            assert!(!is_held(integer), "a double holds its value, but is no integer: {integer}");
        }
    }

    proptest! {
        #[test]
        fn what_is_without_exponent_is_the_same_number(number in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL) {
            let text = without_exponent(&Number::from_f64(number).expect("it is finite"));
            prop_assert!(!text.contains(['e', 'E']), "{}", text);
            prop_assert_eq!(text.parse::<f64>(), Ok(number), "{}", text);
        }
    }
}
