//! Decodes tokens one by one into text that never ends within a character. `stops` decides where the text ends.

use std::sync::Arc;

use super::pieces::TokenPieces;
use offshoot_core::ids::TokenId;

/// The text of a growing list of tokens. Cloned when a branch forks.
#[derive(Clone)]
pub struct TextStream {
    pieces: Arc<TokenPieces>,
    /// An incomplete character, at most 3 bytes.
    pending: Vec<u8>,
    /// Spaces still to be removed from the start of the text; 0 once there is text.
    leading_spaces: usize,
    /// Whether special tokens are written out.
    shows_special: bool,
    fresh: String,
}

impl TextStream {
    /// Continues the text of `context`: if that has any text, leading spaces are kept, and if it ends within a
    /// character, the character is completed.
    pub(super) fn new(pieces: Arc<TokenPieces>, context: &[TokenId], shows_special: bool) -> TextStream {
        // A character has at most four bytes, so four tokens with text hold the beginning of an incomplete one.
        let with_text = context.iter().rev().filter(|&&token| !pieces.text(token).is_empty());
        let tail: Vec<TokenId> = with_text.take(4).copied().collect();
        let leading_spaces = if tail.is_empty() { pieces.leading_spaces } else { 0 };
        let mut stream =
            TextStream { pieces, pending: Vec::new(), leading_spaces, shows_special, fresh: String::new() };
        for &token in tail.iter().rev() {
            stream.push(token);
        }
        stream
    }

    /// The text completed by this token; empty for an incomplete character and for special tokens that are not shown.
    pub fn push(&mut self, token: TokenId) -> &str {
        self.fresh.clear();
        let mut piece = if self.shows_special { self.pieces.shown(token) } else { self.pieces.text(token) };
        if !piece.is_empty() {
            while self.leading_spaces > 0 && piece.first() == Some(&b' ') {
                piece = &piece[1..];
                self.leading_spaces -= 1;
            }
            self.leading_spaces = 0;
        }
        self.pending.extend_from_slice(piece);
        self.take_complete();
        &self.fresh
    }

    /// The rest of the text: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.fresh.clear();
        self.fresh.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
        &self.fresh
    }

    /// The text of these tokens, up to its end.
    pub fn text_of(mut self, tokens: &[TokenId]) -> String {
        let mut text: String = tokens.iter().map(|&token| self.push(token).to_string()).collect();
        text.push_str(self.finish());
        text
    }

    /// Moves complete characters from `pending` to `fresh`, and U+FFFD for invalid bytes.
    fn take_complete(&mut self) {
        let mut rest = &self.pending[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.fresh.push_str(text);
                    rest = &[];
                }
                Err(e) => {
                    let (whole, after) = rest.split_at(e.valid_up_to());
                    self.fresh.push_str(std::str::from_utf8(whole).expect("valid up to there"));
                    rest = after;
                    if let Some(broken) = e.error_len() {
                        self.fresh.push(char::REPLACEMENT_CHARACTER);
                        rest = &rest[broken..];
                        continue;
                    }
                }
            }
            break;
        }
        let kept = self.pending.len() - rest.len();
        self.pending.drain(..kept);
    }
}
