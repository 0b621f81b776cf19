//! Values of Parquet as JSON, written as text: numbers as such, decimals with their digits, times as ISO texts, bytes
//! as text or else base64, what JSON has no number for as null.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use half::f16;

use super::schema::Logical;
use super::why::{Why, why};
use offshoot_core::figures::{clock, date, timestamp};

/// Writes a value of its `bytes`, which are as many as its type says.
pub(super) fn write_value(out: &mut Vec<u8>, bytes: &[u8], logical: Logical) -> Result<(), Why> {
    match logical {
        Logical::Null => out.extend(b"null"),
        Logical::Bool => out.extend(if bytes[0] == 1 { &b"true"[..] } else { b"false" }),
        Logical::Signed(width) => {
            let unused = 64 - u32::from(width);
            write_json(out, signed(bytes) << unused >> unused);
        }
        Logical::Unsigned(width) => {
            let unused = 64 - u32::from(width);
            write_json(out, (signed(bytes) as u64) << unused >> unused);
        }
        Logical::Half => write_json(out, f16::from_bits(signed(bytes) as u16).to_f32()),
        Logical::Float => write_json(out, f32::from_bits(signed(bytes) as u32)),
        Logical::Double => write_json(out, f64::from_bits(signed(bytes) as u64)),
        Logical::Text => match std::str::from_utf8(bytes) {
            Ok(text) => write_json(out, text),
            Err(_) => return why("a text is not UTF-8"),
        },
        Logical::Bytes => match std::str::from_utf8(bytes) {
            Ok(text) => write_json(out, text),
            Err(_) => write_json(out, STANDARD.encode(bytes)),
        },
        Logical::Decimal(scale) => out.extend(decimal(signed(bytes).to_be_bytes().to_vec(), scale).bytes()),
        Logical::DecimalBytes(scale) => {
            if bytes.len() > 32 {
                return why(format!("a decimal has {} bytes, expected at most 32", bytes.len()));
            }
            out.extend(decimal(bytes.to_vec(), scale).bytes());
        }
        Logical::Date => write_json(out, date(signed(bytes))),
        Logical::Time(unit) => {
            let time = signed(bytes);
            write_json(out, clock(time.div_euclid(unit), time.rem_euclid(unit) * (1_000_000_000 / unit)));
        }
        Logical::Timestamp(unit, in_utc) => {
            let time = signed(bytes);
            let nanos = time.rem_euclid(unit) * (1_000_000_000 / unit);
            write_json(out, timestamp(time.div_euclid(unit), nanos, in_utc));
        }
        Logical::DayAndNanos => {
            /// The day that Julian days call this is 1 January 1970.
            const JULIAN_1970: i64 = 2_440_588;
            let (nanos, day) = (signed(&bytes[..8]), signed(&bytes[8..]));
            // As a number of nanoseconds, which wraps around at some 292 years from 1970.
            let since = (day - JULIAN_1970).wrapping_mul(86_400 * 1_000_000_000).wrapping_add(nanos);
            write_json(out, timestamp(since.div_euclid(1_000_000_000), since.rem_euclid(1_000_000_000), false));
        }
        Logical::Interval => {
            write_json(out, interval(signed(&bytes[4..8]), signed(&bytes[8..12])));
        }
    }
    Ok(())
}

fn write_json(out: &mut Vec<u8>, value: impl serde::Serialize) {
    serde_json::to_writer(out, &value).expect("numbers and texts are JSON, and memory takes it");
}

/// A number of at most eight bytes, the least first.
fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len() as u32;
    let number = bytes.iter().rev().fold(0i64, |number, byte| number << 8 | i64::from(*byte));
    number << unused >> unused
}

/// A number of these bytes, the first the highest and with the sign, and with so many digits after the point.
fn decimal(mut bytes: Vec<u8>, scale: u32) -> String {
    let is_negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    if is_negative {
        // Its complement and one more.
        let mut carries = true;
        for byte in bytes.iter_mut().rev() {
            (*byte, carries) = (!*byte).overflowing_add(u8::from(carries));
        }
    }
    let mut digits = Vec::new();
    while bytes.iter().any(|byte| *byte != 0) {
        let mut rest = 0u16;
        for byte in &mut bytes {
            let part = rest << 8 | u16::from(*byte);
            (*byte, rest) = ((part / 10) as u8, part % 10);
        }
        digits.push(b'0' + rest as u8);
    }
    let scale = scale.min(100) as usize;
    digits.resize(digits.len().max(scale + 1), b'0');
    digits.reverse();
    let mut text = String::from_utf8(digits).expect("digits are ASCII");
    if scale > 0 {
        text.insert(text.len() - scale, '.');
    }
    if is_negative {
        text.insert(0, '-');
    }
    text
}

/// Days and milliseconds, as `2 days 3 hours 4 mins 5.600 secs`.
fn interval(days: i64, millis: i64) -> String {
    let (hours, mins, secs) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1_000 % 60);
    let whole = [(days, "days"), (hours, "hours"), (mins, "mins")].into_iter().filter(|(count, _)| *count != 0);
    let mut parts: Vec<String> = whole.map(|(count, unit)| format!("{count} {unit}")).collect();
    if millis % 60_000 != 0 {
        let sign = if millis < 0 { "-" } else { "" };
        parts.push(format!("{sign}{}.{:03} secs", secs.abs(), (millis % 1_000).abs()));
    }
    if parts.is_empty() { "0 secs".to_string() } else { parts.join(" ") }
}
