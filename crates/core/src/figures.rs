//! Formats counts, bytes and times for people.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 sample`, `1,234 samples`.
pub fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `99.9 %`: the share by which `some` is less than `all`, in tenths of a percent, rounded down so that a remainder
/// shows. 0 if `all` is 0.
pub fn saved(some: u64, all: u64) -> String {
    let left = i128::from(all) - i128::from(some);
    let tenths = (1000 * left).div_euclid(i128::from(all.max(1)));
    format!("{:.1} %", tenths as f64 / 10.0)
}

/// `61.3 %`: see [`percentage`].
pub fn percent(share: f64) -> String {
    format!("{} %", percentage(share))
}

/// `61.3`: a share in tenths of a percent, a half rounded up. Shares that differ by rounding alone, because they were
/// summed in different orders, look the same.
pub fn percentage(share: f64) -> String {
    format!("{:.1}", tenths(100.0 * share))
}

/// `12.5`: how many times `some` fits into `all`, in tenths; a `some` of 0 counts as 1.
pub fn times(some: u64, all: u64) -> String {
    format!("{:.1}", tenths(all as f64 / some.max(1) as f64))
}

/// The nearest number with one decimal place; of two, the one farther from 0.
fn tenths(value: f64) -> f64 {
    const FINER: f64 = 1e6;
    let without_noise = (10.0 * FINER * value).round() / FINER;
    // Adding 0 makes -0 a 0.
    without_noise.round() / 10.0 + 0.0
}

/// `12.3 MiB`: three figures and a binary unit.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].iter();
    let mut unit = units.next().expect("the list is not empty");
    while value >= 1000.0 {
        let Some(larger) = units.next() else { break };
        value /= 1024.0;
        unit = larger;
    }
    if *unit == "B" { format!("{n} B") } else { three_figures(value, unit) }
}

fn three_figures(value: f64, unit: &str) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2} {unit}"),
        value if value < 100.0 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

/// `12.3 ms`: three figures and a unit of time.
pub fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s == 0.0 || s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (1e3 * s, "ms"),
        s if s >= 1e-6 => (1e6 * s, "µs"),
        s => (1e9 * s, "ns"),
    };
    three_figures(value, unit)
}

/// The first `most` characters of a longer text; `None`: it is no longer.
pub fn beginning(text: &str, most: usize) -> Option<&str> {
    let end = (text.len() > most).then(|| text.char_indices().nth(most)).flatten();
    end.map(|(end, _)| &text[..end])
}

/// `text`, or the beginning of a longer one and its length, for messages.
pub fn shortened(text: String, most: usize) -> String {
    match beginning(&text, most) {
        Some(start) => format!("{start}… ({} characters)", count(text.chars().count() as u64)),
        None => text,
    }
}

/// The date so many days after 1 January 1970, as `2026-11-28`.
pub fn date(days: i64) -> String {
    let (year, month, day) = civil(days);
    if (0..=9999).contains(&year) {
        format!("{year:04}-{month:02}-{day:02}")
    } else {
        format!("{year:+05}-{month:02}-{day:02}")
    }
}

/// Year, month (1 to 12) and day (1 to 31) of a number of days since 1 January 1970, Gregorian.
pub fn civil(days: i64) -> (i64, i64, i64) {
    // In years that begin in March, in eras of 400 years, of which each has 146,097 days.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + 400 * era + i64::from(month <= 2), month, day)
}

/// The time now in UTC, to the second: `2026-11-28T11:07:28`; and the milliseconds since.
pub fn now() -> (String, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (timestamp(since.as_secs() as i64, 0, false), since.subsec_millis())
}

/// A time of day, with as many digits of its second as are not zero, by threes.
pub fn clock(seconds: i64, nanos: i64) -> String {
    let mut text = format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let written = match nanos {
        0 => Ok(()),
        _ if nanos % 1_000_000 == 0 => write!(text, ".{:03}", nanos / 1_000_000),
        _ if nanos % 1_000 == 0 => write!(text, ".{:06}", nanos / 1_000),
        _ => write!(text, ".{nanos:09}"),
    };
    written.expect("a text can be written to");
    text
}

/// A time so many seconds after 1970, as `2026-11-28T11:07:28.163`, with a `Z` if it is in UTC.
pub fn timestamp(seconds: i64, nanos: i64, in_utc: bool) -> String {
    const DAY: i64 = 86_400;
    let zone = if in_utc { "Z" } else { "" };
    format!("{}T{}{zone}", date(seconds.div_euclid(DAY)), clock(seconds.rem_euclid(DAY), nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_gregorian_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
            (-719_528, "0000-01-01"),
            (-719_529, "-0001-12-31"),
            (2_932_897, "+10000-01-01"),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
        assert_eq!(timestamp(-1, 5_000_000, true), "1969-12-31T23:59:59.005Z");
        assert_eq!(timestamp(86_399, 0, false), "1970-01-01T23:59:59");
    }

    #[test]
    fn long_texts_are_shortened_between_characters() {
        assert_eq!(shortened("äöü".into(), 3), "äöü");
        assert_eq!(shortened("äöüß".into(), 3), "äöü… (4 characters)");
        assert_eq!(beginning("", 0), None);
    }

    #[test]
    fn one_share_looks_the_same_however_it_was_summed() {
        for thousandths in 0..2000_u32 {
            let share = f64::from(thousandths) / 2000.0;
            let expected = format!("{}.{} %", thousandths.div_ceil(2) / 10, thousandths.div_ceil(2) % 10);
            for share in [share, share.next_up(), share.next_down(), (share + 1.0) - 1.0] {
                assert_eq!(percent(share), expected, "{share:?}");
            }
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!((counted(1, "sample"), counted(1234, "sample")), ("1 sample".into(), "1,234 samples".into()));
        assert_eq!((saved(1, 3000), saved(0, 3000)), ("99.9 %".into(), "100.0 %".into()));
        assert_eq!((saved(9, 10), saved(10, 10), saved(0, 0)), ("10.0 %".into(), "0.0 %".into(), "0.0 %".into()));
        assert_eq!(saved(11, 10), "-10.0 %");
        assert_eq!(
            (percent(0.0), percent(1.0), percent(2.0 / 3.0)),
            ("0.0 %".into(), "100.0 %".into(), "66.7 %".into())
        );
        assert_eq!((times(2, 25), times(0, 3)), ("12.5".into(), "3.0".into()));
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(14 << 20), "14.0 MiB");
        assert_eq!(bytes(1000 << 20), "0.98 GiB");
        assert_eq!((seconds(0.0), seconds(1234.5)), ("0.00 s".into(), "1234 s".into()));
        assert_eq!((seconds(0.0123), seconds(4.5e-6)), ("12.3 ms".into(), "4.50 µs".into()));
        assert_eq!((seconds(123e-9), seconds(0.4e-9)), ("123 ns".into(), "0.40 ns".into()));
    }
}
