//! How long a server asks its clients to wait: a number of seconds, or a date, as RFC 9110 has it.

use std::time::{Duration, SystemTime};

/// The time from `now` that this Retry-After asks for; `None`: it is neither a number nor a date.
pub(super) fn wait(after: &str, now: SystemTime) -> Option<Duration> {
    let after = after.trim();
    if let Ok(seconds) = after.parse() {
        return Some(Duration::from_secs(seconds));
    }
    // A date that is over asks for no time.
    date(after).map(|date| date.duration_since(now).unwrap_or_default())
}

/// A date such as `Sun, 06 Nov 1994 08:49:37 GMT`, the form that servers write.
fn date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, text) = text.split_once(", ")?;
    let fields: Vec<&str> = text.split(' ').collect();
    let [day, month, year, time, "GMT"] = fields[..] else { return None };
    let day: u64 = day.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = MONTHS.iter().position(|name| *name == month)?;
    let year: u64 = year.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let times: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = times[..] else { return None };
    if hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let years: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = years + lengths[..month].iter().sum::<u64>() + day - 1;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(((days * 24 + hours) * 60 + minutes) * 60 + seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let seconds = |after: &str| wait(after, now).map(|wait| wait.as_secs());
        assert_eq!(seconds(" 7 "), Some(7));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(0));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(seconds("Sat, 05 Nov 1994 08:49:37 GMT"), Some(0), "it is over");
        // Over a day that leap years alone have.
        let leap = wait("Fri, 01 Mar 2024 00:00:00 GMT", SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(leap, 1_709_251_200);
        for after in ["soon", "-1", "Sun, 06 Nov 1994", "Sun, 06 Nov 1994 08:49 GMT", "Sun, 40 Nov 1994 08:49:37 GMT"] {
            assert_eq!(seconds(after), None, "{after}");
        }
    }
}
