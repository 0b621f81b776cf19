//! Texts with places for a question and an answer.

use crate::words::field;
use offshoot_core::error::{Error, Result};

/// A text with its places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextTemplate {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Written(String),
    Question,
    Answer,
    /// The tokenizer's beginning of text, or nothing if it has none.
    Bos,
}

const EXPECTED: &str = "a text with `{{question}}`, one `{{answer}}` and perhaps `{{bos}}`";

impl TextTemplate {
    /// Reads a text that has a question and one answer. `ends`: whether it must end with the answer.
    pub fn read(text: &str, ends: bool) -> Result<TextTemplate> {
        let wrong = |found: String| Err(Error::value(field("text"), EXPECTED, found));
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once("{{") {
            let Some((name, after)) = behind.split_once("}}") else {
                return wrong(format!("`{{{{{behind}`, which nothing ends"));
            };
            let piece = match name.trim() {
                "question" => Piece::Question,
                "answer" => Piece::Answer,
                "bos" => Piece::Bos,
                other => return wrong(format!("`{{{{{other}}}}}`")),
            };
            pieces.extend([Piece::Written(before.to_owned()), piece]);
            rest = after;
        }
        pieces.push(Piece::Written(rest.to_owned()));
        pieces.retain(|piece| *piece != Piece::Written(String::new()));
        let count = |piece: &Piece| pieces.iter().filter(|other| *other == piece).count();
        if count(&Piece::Question) == 0 || count(&Piece::Answer) != 1 {
            return wrong(format!("\"{}\"", text.escape_debug()));
        }
        if ends && pieces.last() != Some(&Piece::Answer) {
            let expected = "a text that ends with `{{answer}}`, as values are read behind its steps";
            return Err(Error::value(field("text"), expected, format!("\"{}\"", text.escape_debug())));
        }
        Ok(TextTemplate { pieces })
    }

    /// The text with these in their places.
    pub fn filled(&self, question: &str, answer: &str, bos: &str) -> String {
        let text = |piece: &Piece| match piece {
            Piece::Written(text) => text.clone(),
            Piece::Question => question.to_owned(),
            Piece::Answer => answer.to_owned(),
            Piece::Bos => bos.to_owned(),
        };
        self.pieces.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_filled_once_and_what_fills_it_is_no_template() {
        let template = TextTemplate::read("{{bos}}Q: {{ question }}\nA: {{answer}}", true).unwrap();
        assert_eq!(template.filled("{{answer}}?", "{{bos}}", "<s>"), "<s>Q: {{answer}}?\nA: {{bos}}");
        assert!(TextTemplate::read("{{question}} {{answer}}.", false).is_ok());
    }

    #[test]
    fn a_text_without_its_places_is_refused() {
        let cases = [
            ("{{question}}", false, "{{question}}"),
            ("{{answer}}", false, "{{answer}}"),
            ("{{question}}{{answer}}{{answer}}", false, "one `{{answer}}`"),
            ("{{question}}{{answr}}", false, "{{answr}}"),
            ("{{question}} {{answer", false, "nothing ends"),
            ("{{question}}{{answer}}.", true, "ends with `{{answer}}`"),
        ];
        for (text, ends, part) in cases {
            let error = TextTemplate::read(text, ends).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("`text`"), "{text}: {error}");
        }
    }
}
