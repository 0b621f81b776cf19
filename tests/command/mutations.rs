//! Damages files at random: bytes of any file, and values of JSON.

use offshoot_core::dice::Dice;
use serde_json::{Value, json};

/// Damages a file's bytes, some of them twice; returns what was done.
pub fn mutate_once_or_twice(dice: &mut Dice, bytes: &mut Vec<u8>) -> Vec<String> {
    let mut done = vec![mutate(dice, bytes)];
    if dice.below(4) == 0 {
        done.push(mutate(dice, bytes));
    }
    done
}

/// Damages a file's bytes; returns what was done.
fn mutate(dice: &mut Dice, bytes: &mut Vec<u8>) -> String {
    let text = std::str::from_utf8(bytes).ok().map(str::to_string);
    match text {
        Some(text) if dice.below(3) > 0 => {
            // Whole files of JSON, or one line of JSON lines.
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let whole = serde_json::from_str::<Value>(&text).is_ok() || lines.is_empty();
            let line = if whole { 0 } else { dice.below(lines.len()) };
            let parsed = serde_json::from_str::<Value>(if whole { &text } else { lines[line] });
            let Ok(mut value) = parsed else { return mutate_bytes(dice, bytes) };
            let (damaged, done) = mutate_value(dice, &mut value);
            let mut all = if whole { String::new() } else { lines[..line].concat() };
            all.push_str(&damaged);
            if !whole {
                all.push('\n');
                all.extend(lines[line + 1..].iter().copied());
            }
            *bytes = all.into_bytes();
            done
        }
        _ => mutate_bytes(dice, bytes),
    }
}

fn mutate_bytes(dice: &mut Dice, bytes: &mut Vec<u8>) -> String {
    if bytes.is_empty() {
        bytes.extend(b"{");
        return "a brace for an empty file".into();
    }
    // The head of a large file is where its structure is.
    let head = if dice.below(2) == 0 { bytes.len().min(4096) } else { bytes.len() };
    let at = dice.below(head);
    let to = bytes.len().min(at + 1 + dice.below(64));
    match dice.below(9) {
        0 => {
            bytes[at] ^= 1 << dice.below(8);
            format!("a bit of byte {at} flipped")
        }
        1 => {
            bytes.truncate(at);
            format!("cut at {at}")
        }
        2 => {
            bytes.drain(at..to);
            format!("{at}..{to} removed")
        }
        3 => {
            let part = bytes[at..to].to_vec();
            bytes.splice(at..at, part.repeat(1 + dice.below(200)));
            format!("{at}..{to} repeated")
        }
        4 => {
            let odd = dice.pick(&[
                &b"\0"[..],
                b"\xff\xfe",
                b"\xed\xa0\x80",
                b"\r",
                b"\xef\xbb\xbf",
                b"\"",
                b"}",
                b"]",
                b"\n\n",
                b"{{",
                b"%}",
            ]);
            bytes.splice(at..at, odd.iter().copied());
            format!("{odd:?} at {at}")
        }
        5 => {
            let number = dice.pick(&["-1", "0", "1e999", "NaN", "4294967296", "99999999999999999999", "0.5"]);
            bytes.splice(at..to, number.bytes());
            format!("{number} for {at}..{to}")
        }
        6 => {
            bytes.clear();
            "an empty file".into()
        }
        7 => {
            let lines: Vec<Vec<u8>> = bytes.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
            let (one, other) = (dice.below(lines.len()), dice.below(lines.len()));
            let mut mixed = lines;
            mixed.swap(one, other);
            mixed.push(mixed[one].clone());
            *bytes = mixed.concat();
            format!("lines {one} and {other} exchanged, one repeated")
        }
        _ => {
            let word = dice.pick(&[TEMPLATE_LOOP, TEMPLATE_DOUBLES, TEMPLATE_WIDTH, "../../../../etc/passwd"]);
            bytes.splice(at..at, word.bytes());
            format!("{word} at {at}")
        }
    }
}

const TEMPLATE_LOOP: &str = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
const TEMPLATE_DOUBLES: &str =
    "{% set n = namespace(s='xxxxxxxx') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}";
const TEMPLATE_WIDTH: &str = "{{ '%999999999s' | format('x') }}";

/// Changes one value somewhere inside; returns the text and what was done.
fn mutate_value(dice: &mut Dice, value: &mut Value) -> (String, String) {
    let mut paths = Vec::new();
    paths_of(value, String::new(), &mut paths);
    let path = paths[dice.below(paths.len())].clone();
    const MARK: &str = "\u{1}here\u{1}";
    let node = value.pointer_mut(&path).expect("the path was found in it");
    let long = json!("x".repeat(200_000)).to_string();
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let [endless, doubling] = [TEMPLATE_LOOP, TEMPLATE_DOUBLES].map(|template| json!(template).to_string());
    let (name, with) = match dice.below(24) {
        0 => ("null", "null"),
        1 => ("true", "true"),
        2 => ("-1", "-1"),
        3 => ("0", "0"),
        4 => ("1e308", "1e308"),
        5 => ("2^31-1", "2147483647"),
        6 => ("2^32", "4294967296"),
        7 => ("2^64-1", "18446744073709551615"),
        8 => ("-2^63", "-9223372036854775808"),
        9 => ("1e-320", "1e-320"),
        10 => ("an empty text", "\"\""),
        11 => ("a long text", long.as_str()),
        12 => ("an empty list", "[]"),
        13 => ("an empty object", "{}"),
        14 => ("a deep list", deep.as_str()),
        15 => ("a zero byte", "\"\\u0000\""),
        16 => ("half a surrogate pair", "\"\\ud800\""),
        17 => ("NaN", "NaN"),
        18 => ("a path upwards", "\"../../../../etc/passwd\""),
        19 => ("a number of 30 digits", "123456789012345678901234567890"),
        20 => ("a long loop", endless.as_str()),
        21 => ("doubling", doubling.as_str()),
        22 => {
            // A member less, or one of another name.
            if let Value::Object(members) = node
                && let Some(name) = members.keys().nth(dice.below(members.len().max(1))).cloned()
            {
                let removed = members.shift_remove(&name).expect("its name was found");
                let renamed = dice.below(2) == 0;
                if renamed {
                    members.insert(format!("{name}s"), removed);
                }
                let what = if renamed { "renamed" } else { "removed" };
                return (value.to_string(), format!("{path}: `{name}` {what}"));
            }
            ("a list of one", "[1]")
        }
        _ => {
            let wrapped = json!([node.take(), 1]);
            *node = wrapped;
            return (value.to_string(), format!("{path}: in a list"));
        }
    };
    *node = json!(MARK);
    let text = value.to_string().replacen(&json!(MARK).to_string(), with, 1);
    (text, format!("{path}: {name}"))
}

fn paths_of(value: &Value, here: String, paths: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, part) in members {
                paths_of(part, format!("{here}/{}", name.replace('~', "~0").replace('/', "~1")), paths);
            }
        }
        // The entries of a vocabulary resemble one another.
        Value::Array(parts) => {
            for (ix, part) in parts.iter().enumerate().take(40) {
                paths_of(part, format!("{here}/{ix}"), paths);
            }
        }
        _ => {}
    }
    paths.push(here);
}
