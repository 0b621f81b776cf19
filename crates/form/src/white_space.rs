//! The white space between the parts of JSON: what a schema has by itself, and a check of what one chooses, whose texts
//! must be JSON still.

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value, json};

use crate::trial::Refusal;

/// The key of a schema under which llguidance reads its options.
const OPTIONS: &str = "x-guidance";
/// The option that is the pattern of white space.
const PATTERN: &str = "whitespace_pattern";
/// The option that is whether there is white space wherever JSON may have it.
const FLEXIBLE: &str = "whitespace_flexible";
/// The options that are the patterns of a comma and of a colon, the sign of each, and its usual pattern. A blank may
/// follow, as in the JSON that most programs write on one line. There is no other white space, so that a weak model
/// cannot spend its tokens on it.
const SEPARATORS: [(&str, char, &str); 2] = [("item_separator", ',', ", ?"), ("key_separator", ':', ": ?")];

/// Adds our white space to a schema that does not choose its own.
pub(crate) fn add(schema: &mut Map<String, Value>) -> Result<(), Refusal> {
    let options = schema.entry(OPTIONS).or_insert_with(|| json!({}));
    let Value::Object(options) = options else {
        return Err(Refusal::new(format!("an object as `{OPTIONS}`"), options.to_string()));
    };
    if !options.contains_key(PATTERN) && !options.contains_key(FLEXIBLE) {
        options.insert(FLEXIBLE.to_owned(), false.into());
        for (separator, _, pattern) in SEPARATORS {
            options.entry(separator).or_insert_with(|| pattern.into());
        }
    }
    Ok(())
}

/// Refuses a schema whose patterns of white space and of separators accept anything else: the texts would be no JSON.
pub(crate) fn check(schema: &Value) -> Result<(), Refusal> {
    let chosen = |option: &str| schema.get(OPTIONS).and_then(|options| options[option].as_str());
    // What is no pattern at all is refused as one when it is compiled.
    let is_other =
        |pattern: &str, fits: &dyn Fn(&Hir) -> bool| regex_syntax::parse(pattern).is_ok_and(|hir| !fits(&hir));
    if let Some(pattern) = chosen(PATTERN).filter(|pattern| is_other(pattern, &is_blank)) {
        return Err(Refusal::new(format!("blanks, tabs and line ends alone as `{PATTERN}`"), format!("{pattern:?}")));
    }
    for (separator, sign, _) in SEPARATORS {
        if let Some(pattern) = chosen(separator).filter(|pattern| is_other(pattern, &|hir| is_separator(hir, sign))) {
            let expected = format!("`{sign}`, with white space or none around it, as `{separator}`");
            return Err(Refusal::new(expected, format!("{pattern:?}")));
        }
    }
    Ok(())
}

/// Whether all texts of a pattern are this sign, with white space around it.
fn is_separator(pattern: &Hir, sign: char) -> bool {
    let mut signs = 0;
    let mut part = |part: &Hir| match part.kind() {
        HirKind::Literal(literal) => literal.0.iter().all(|&byte| {
            signs += usize::from(char::from(byte) == sign);
            char::from(byte) == sign || is_blank_byte(byte)
        }),
        _ => is_blank(part),
    };
    let fits = match pattern.kind() {
        HirKind::Concat(parts) => parts.iter().all(part),
        _ => part(pattern),
    };
    fits && signs == 1
}

/// Whether JSON may have this byte between its parts.
fn is_blank_byte(byte: u8) -> bool {
    b" \t\r\n".contains(&byte)
}

/// Whether all texts of a pattern are white space as JSON has it. (A pattern's parser bounds its depth.)
fn is_blank(pattern: &Hir) -> bool {
    let of_chars = |from: char, to: char| (from..=to).take(5).all(|c| u8::try_from(c).is_ok_and(is_blank_byte));
    match pattern.kind() {
        HirKind::Empty | HirKind::Look(_) => true,
        HirKind::Literal(literal) => literal.0.iter().all(|byte| is_blank_byte(*byte)),
        HirKind::Class(Class::Unicode(class)) => class.iter().all(|range| of_chars(range.start(), range.end())),
        HirKind::Class(Class::Bytes(class)) => {
            class.iter().all(|range| (range.start()..=range.end()).all(is_blank_byte))
        }
        HirKind::Repetition(repeated) => is_blank(&repeated.sub),
        HirKind::Capture(group) => is_blank(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(is_blank),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_white() {
        let of = |pattern: &str| check(&json!({"type": "object", OPTIONS: {PATTERN: pattern}}));
        for pattern in ["", " ?", r"[ \t\r\n]*", r"(\n|\r\n)? {0,2}", r"\x20", r"[\t-\n]+"] {
            assert_eq!(of(pattern), Ok(()), "{pattern:?}");
        }
        for pattern in ["x+", r"\s*", "[ a]?", ".", r"[^\n]", " |,", r"\d", "\u{a0}"] {
            let refusal = of(pattern).expect_err(pattern);
            assert_eq!(refusal.expected, "blanks, tabs and line ends alone as `whitespace_pattern`");
            assert_eq!(refusal.found, format!("{pattern:?}"));
        }
        assert_eq!(check(&json!({"type": "object"})), Ok(()));
    }

    #[test]
    fn separators_are_one_sign_and_white_space() {
        for (separator, sign, own) in SEPARATORS {
            let of = |pattern: &str| check(&json!({"type": "object", OPTIONS: {separator: pattern}}));
            let right = [sign.to_string(), format!(" {sign} "), format!(r"[ \n]*{sign}\n {{2}}"), own.to_owned()];
            for pattern in right {
                assert_eq!(of(&pattern), Ok(()), "{pattern:?}");
            }
            let wrong = [
                String::new(),
                "x".to_owned(),
                format!("{sign}{sign}"),
                format!("{sign}+"),
                format!("{sign}?"),
                format!("{sign}|;"),
                format!("[{sign}]x"),
                format!(r"{sign}\s"),
            ];
            for pattern in wrong {
                let refusal = of(&pattern).expect_err(&pattern);
                let expected = format!("`{sign}`, with white space or none around it, as `{separator}`");
                assert_eq!((refusal.expected, refusal.found), (expected, format!("{pattern:?}")));
            }
        }
    }

    #[test]
    fn white_space_that_is_chosen_stays() {
        let options = |options: Value| {
            let mut schema = json!({OPTIONS: options}).as_object().cloned().expect("an object");
            add(&mut schema).expect("options");
            schema.remove(OPTIONS).expect("options")
        };
        let usual = json!({FLEXIBLE: false, "item_separator": ", ?", "key_separator": ": ?"});
        assert_eq!(options(json!({})), usual);
        let own = json!({FLEXIBLE: false, "item_separator": ",\n", "key_separator": ": ?", "lenient": true});
        assert_eq!(options(json!({"item_separator": ",\n", "lenient": true})), own);
        for chosen in [json!({FLEXIBLE: true}), json!({FLEXIBLE: false}), json!({PATTERN: " ?"})] {
            assert_eq!(options(chosen.clone()), chosen);
        }
        assert!(add(&mut json!({OPTIONS: 1}).as_object().cloned().expect("an object")).is_err());
    }
}
