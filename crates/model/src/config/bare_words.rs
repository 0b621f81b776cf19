//! Python's words for numbers that JSON lacks: some published files have a bare `Infinity` (Mamba-2's config.json).

/// The words, which stand where a number may.
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// `text` with such words in quotes; `None` if it has none. Strings stay as they are.
pub fn quoted(text: &str) -> Option<String> {
    let (mut quoted, mut has_words, mut in_string) = (String::with_capacity(text.len() + 16), false, false);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = WORDS.into_iter().find(|word| !in_string && rest.starts_with(word));
        let taken = match (word, first) {
            (Some(word), _) => {
                has_words = true;
                quoted.push('"');
                quoted.push_str(word);
                quoted.push('"');
                word.len()
            }
            (None, '\\') if in_string => {
                let escaped = rest.chars().take(2).map(char::len_utf8).sum();
                quoted.push_str(&rest[..escaped]);
                escaped
            }
            (None, _) => {
                in_string ^= first == '"';
                quoted.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    has_words.then_some(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_are_quoted_and_those_in_strings_are_not() {
        let text = r#"{"a": [0.0, Infinity, -Infinity], "b\\": NaN, "c \" Infinity": "NaN"}"#;
        let expected = r#"{"a": [0.0, "Infinity", "-Infinity"], "b\\": "NaN", "c \" Infinity": "NaN"}"#;
        assert_eq!(quoted(text).as_deref(), Some(expected));
        assert_eq!(quoted(r#"{"NaN": "Infinity"}"#), None);
    }
}
