//! The formats of texts that JSON Schema names, as expressions of terminals in Lark. They are narrower than the
//! standards in places that nobody writes: parts in quotes, names of hosts in other letters than ASCII's.

/// The expression of the texts of a format; `None`: it is not known, and says nothing.
pub(super) fn format_texts(name: &str) -> Option<String> {
    let pattern = match name {
        "date" => date(),
        "time" => time(),
        "date-time" => format!("({})[Tt]{}", date(), time()),
        "duration" => duration(),
        "email" => format!("{WORD}(\\.{WORD})*@{}", host()),
        "hostname" => return Some(format!("(/{}/ & /.{{1,253}}/)", host())),
        "ipv4" => ipv4(),
        "ipv6" => ipv6(),
        "uuid" => "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}".to_owned(),
        "uri" => uri(),
        _ => return None,
    };
    Some(format!("/{pattern}/"))
}

/// A word of the name before the `@`.
const WORD: &str = "[A-Za-z0-9_%'+~-]+";

/// Days that the calendar has: the 29th of February in leap years alone.
fn date() -> String {
    let months =
        "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])";
    let fourth = "(0[48]|[2468][048]|[13579][26])";
    let centuries = "([02468][048]|[13579][26])";
    format!("([0-9]{{4}}-({months})|([0-9]{{2}}{fourth}|{centuries}00)-02-29)")
}

fn time() -> String {
    let minutes = "([01][0-9]|2[0-3]):[0-5][0-9]";
    format!("{minutes}:[0-5][0-9](\\.[0-9]{{1,9}})?([Zz]|[+-]{minutes})")
}

fn duration() -> String {
    let number = "[0-9]{1,9}";
    // The largest unit, and those below it, none between two of which is left out.
    let units = |[large, middle, small]: [char; 3]| {
        let last = format!("{number}{small}");
        let lower = format!("{number}{middle}({last})?");
        format!("({number}{large}({lower})?|{lower}|{last})")
    };
    let time = format!("T{}", units(['H', 'M', 'S']));
    format!("P({}({time})?|{time}|{number}W)", units(['Y', 'M', 'D']))
}

fn host() -> String {
    let label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    format!("{label}(\\.{label})*")
}

fn ipv4() -> String {
    let part = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    format!("({part}\\.){{3}}{part}")
}

/// Eight groups, or fewer on both sides of two colons.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let short = (0..8).map(|before| {
        let left = match before {
            0 => String::new(),
            groups => format!("{group}(:{group}){{{}}}", groups - 1),
        };
        match 7 - before {
            0 => format!("{left}::"),
            most => format!("{left}::({group}(:{group}){{0,{}}})?", most - 1),
        }
    });
    let short: Vec<String> = short.collect();
    format!("({group}(:{group}){{7}}|{})", short.join("|"))
}

fn uri() -> String {
    let sign = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
    let name = "([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*";
    let user = "(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?";
    let place = format!("\\/\\/{user}({name}|\\[{}\\])(:[0-9]*)?(\\/{sign}*)*", ipv6());
    let path = format!("\\/?({sign}+(\\/{sign}*)*)?");
    let rest = format!("({sign}|[\\/?])*");
    format!("[A-Za-z][A-Za-z0-9+.-]*:({place}|{path})(\\?{rest})?(#{rest})?")
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn formats_have_their_texts() {
        let cases: [(&str, &[&str], &[&str]); 10] = [
            (
                "date",
                &["2024-02-29", "2000-02-29", "2023-12-31"],
                &["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01"],
            ),
            ("time", &["23:59:59Z", "00:00:00.5+01:30"], &["24:00:00Z", "12:00:00", "1:00:00Z"]),
            ("date-time", &["2024-02-29T12:00:00Z"], &["2024-02-29 12:00:00Z", "2024-02-29"]),
            ("duration", &["P1Y2M3D", "PT1H", "P2W", "P1DT12H30M5S"], &["P", "PT", "P1Y2D", "1D", "P1S"]),
            ("email", &["a.b@c.de", "o'neil+x@host"], &["a@", "@b", ".a@b", "a b@c"]),
            ("hostname", &["a", "a-b.example"], &["-a", "a-", "a..b", "a_b", ""]),
            ("ipv4", &["1.2.3.4", "255.255.255.0"], &["256.1.1.1", "01.2.3.4", "1.2.3"]),
            (
                "ipv6",
                &["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2", "1:2:3:4:5:6:7::"],
                &[":", "1:2", "1::2::3", "1:2:3:4:5:6:7::8", "12345::"],
            ),
            ("uuid", &["123e4567-e89b-12d3-a456-426614174000"], &["123e4567e89b12d3a456426614174000"]),
            (
                "uri",
                &["https://a.b/c?d=e#f", "urn:x:y", "http://[::1]:80/", "mailto:a@b"],
                &["//a", "a b:c", "1:x", "http://a b"],
            ),
        ];
        for (name, good, bad) in cases {
            let found = format_texts(name).expect("a format that is known");
            let parts: Vec<String> =
                found.trim_matches(['(', ')']).split(" & ").map(|part| part.trim_matches('/').to_owned()).collect();
            let has = |text: &&&str| {
                parts.iter().all(|part| Regex::new(&format!("^(?:{part})$")).expect("a pattern").is_match(text))
            };
            assert_eq!(good.iter().find(|text| !has(text)), None, "{name}");
            assert_eq!(bad.iter().find(has), None, "{name}");
        }
        assert_eq!(format_texts("password"), None);
    }
}
