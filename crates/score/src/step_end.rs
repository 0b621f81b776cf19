//! Finds the ends of steps in a text that no form has written, such as one that a client sends as tokens: where the
//! form would have read its values.

use offshoot_core::ids::TokenId;
use offshoot_text::Tokenizer;

/// What stands behind each step of a text in a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// This token.
    Token(TokenId),
    /// This text, alone or as a part of tokens.
    Text {
        /// The text; it is not empty.
        text: String,
        /// Whether one that directly follows another, or has nothing but white space before it, ends a step, too.
        keeps_empty: bool,
    },
}

impl StepEnd {
    /// The indices of the tokens in which steps end, in their order.
    pub fn places(&self, tokens: &[TokenId], tokenizer: &Tokenizer) -> Vec<usize> {
        match self {
            StepEnd::Token(end) => (0..tokens.len()).filter(|&ix| tokens[ix] == *end).collect(),
            StepEnd::Text { text, keeps_empty } => {
                let pieces: Vec<&[u8]> = tokens
                    .iter()
                    .map(|token| if tokenizer.is_special(*token) { &[][..] } else { tokenizer.token_bytes(*token) })
                    .collect();
                ends_of_steps(&pieces, text.as_bytes(), *keeps_empty)
            }
        }
    }

    /// What stands there, for messages.
    pub fn shown(&self, tokenizer: &Tokenizer) -> String {
        match self {
            StepEnd::Token(end) => String::from_utf8_lossy(tokenizer.token_bytes(*end)).into_owned(),
            StepEnd::Text { text, .. } => text.clone(),
        }
    }
}

/// The indices of the pieces in which `end` ends. Ends that overlap count once; so do those that end in one piece.
fn ends_of_steps(pieces: &[&[u8]], end: &[u8], keeps_empty: bool) -> Vec<usize> {
    let whole = pieces.concat();
    let mut piece_ends = pieces.iter().scan(0, |at, piece| {
        *at += piece.len();
        Some(*at)
    });
    let mut places = Vec::new();
    let (mut step, mut at) = (0, 0);
    // The piece that is looked at, and where it ends.
    let (mut ix, mut piece_end) = (0, piece_ends.next().unwrap_or(0));
    while at + end.len() <= whole.len() {
        if !whole[at..].starts_with(end) {
            at += 1;
            continue;
        }
        let has_text = keeps_empty || !whole[step..at].trim_ascii().is_empty();
        at += end.len();
        step = at;
        if !has_text {
            continue;
        }
        while piece_end < at {
            ix += 1;
            piece_end = piece_ends.next().expect("the text has so many bytes");
        }
        if places.last() != Some(&ix) {
            places.push(ix);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(pieces: &[&str], end: &str, keeps_empty: bool) -> Vec<usize> {
        let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
        ends_of_steps(&pieces, end.as_bytes(), keeps_empty)
    }

    #[test]
    fn a_step_ends_in_the_token_that_has_the_last_byte_of_its_end() {
        assert_eq!(ends(&["", "a", "\n", "\n", "b", ".\n\n", "c"], "\n\n", false), [3, 5]);
        assert_eq!(ends(&["a", "\n\nb", "\n", "\nc"], "\n\n", false), [1, 3]);
        assert_eq!(ends(&["a", "\n", "", "b\n"], "\n", false), [1, 3]);
        assert_eq!(ends(&["a", "b"], "\n", false), [0; 0]);
        assert_eq!(ends(&[], "\n", true), [0; 0]);
    }

    #[test]
    fn empty_steps_count_where_they_are_kept() {
        assert_eq!(ends(&["\n", "a", "\n", "\n", " ", "\n", "b\n"], "\n", false), [2, 6]);
        assert_eq!(ends(&["\n", "a", "\n", "\n", " ", "\n", "b\n"], "\n", true), [0, 2, 3, 5, 6]);
        assert_eq!(ends(&["a\n\n\n\n", "b"], "\n\n", true), [0]);
    }
}
