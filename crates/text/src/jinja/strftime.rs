//! Dates as C's `strftime` writes them, in English.

use std::time::{SystemTime, UNIX_EPOCH};

use offshoot_core::figures;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// 1970-01-01 was a Thursday.
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// C's `strftime` in English and UTC, without the number of the week; unknown directives are left unchanged.
pub fn strftime(format: &str, now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = figures::civil(days as i64);
    let (name, weekday) = (MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // `%-d`: without the zero in front.
        let is_bare = chars.next_if_eq(&'-').is_some();
        let digits = |value: u64, width: usize| match is_bare {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        match chars.next() {
            Some('d') => out += &digits(day as u64, 2),
            Some('e') => out += &if is_bare { day.to_string() } else { format!("{day:2}") },
            Some('b' | 'h') => out += &name[..3],
            Some('B') => out += name,
            Some('m') => out += &digits(month as u64, 2),
            Some('Y') => out += &format!("{year}"),
            Some('y') => out += &digits(year.rem_euclid(100) as u64, 2),
            Some('C') => out += &digits(year.div_euclid(100) as u64, 2),
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('u') => out += &((days + 3) % 7 + 1).to_string(),
            Some('w') => out += &((days + 4) % 7).to_string(),
            Some('j') => out += &digits(days - of_new_year(year) + 1, 3),
            Some('H') => out += &digits(hour, 2),
            Some('I') => out += &digits((hour + 11) % 12 + 1, 2),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('M') => out += &digits(minute, 2),
            Some('S') => out += &digits(second % 60, 2),
            Some('s') => out += &seconds.to_string(),
            Some('F') => out += &strftime("%Y-%m-%d", now),
            Some('T' | 'X') => out += &strftime("%H:%M:%S", now),
            Some('R') => out += &strftime("%H:%M", now),
            Some('D' | 'x') => out += &strftime("%m/%d/%y", now),
            Some('c') => out += &strftime("%a %b %e %H:%M:%S %Y", now),
            // Python's time of day has no zone.
            Some('z' | 'Z') => {}
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(is_bare.then_some('-'));
                out.extend(other);
            }
        }
    }
    out
}

/// Days from 1970 to the first of January of this year.
fn of_new_year(year: i64) -> u64 {
    let years = year - 1970;
    let leaps = |year: i64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    (years * 365 + leaps(year) - leaps(1970)) as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_as_strftime_writes_them() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(strftime("%d %b %Y, %A %H:%M:%S%%", at(0)), "01 Jan 1970, Thursday 00:00:00%");
        assert_eq!(strftime("%Y-%m-%d %a %I %p %Q", at(1_709_208_000)), "2024-02-29 Thu 12 PM %Q");
        assert_eq!(strftime("%d %B %y", at(4_107_542_399)), "28 February 00");
        assert_eq!(strftime("%-d.%-m. %j %u %w %F %e|%-Q", at(1_709_208_000)), "29.2. 060 4 4 2024-02-29 29|%-Q");
    }
}
