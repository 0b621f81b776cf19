//! Formats counts, bytes and times for people.

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
    match (*unit, value) {
        ("B", _) => format!("{n} B"),
        (_, value) if value < 10.0 => format!("{value:.2} {unit}"),
        (_, value) if value < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
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
    match value {
        value if value < 10.0 => format!("{value:.2} {unit}"),
        value if value < 100.0 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened_between_characters() {
        assert_eq!(shortened("äöü".into(), 3), "äöü");
        assert_eq!(shortened("äöüß".into(), 3), "äöü… (4 characters)");
        assert_eq!(beginning("", 0), None);
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
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(14 << 20), "14.0 MiB");
        assert_eq!(bytes(1000 << 20), "0.98 GiB");
        assert_eq!((seconds(0.0), seconds(1234.5)), ("0.00 s".into(), "1234 s".into()));
        assert_eq!((seconds(0.0123), seconds(4.5e-6)), ("12.3 ms".into(), "4.50 µs".into()));
        assert_eq!((seconds(123e-9), seconds(0.4e-9)), ("123 ns".into(), "0.40 ns".into()));
    }
}
