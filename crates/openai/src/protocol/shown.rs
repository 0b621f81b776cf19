//! Where each token of a sample stands in the text that its request shows.

use offshoot_core::ids::TokenId;
use offshoot_text::{TextStream, Tokenizer};

/// Finds the places of a text's tokens, one after another.
pub struct TokenPlacer {
    stream: TextStream,
    next: usize,
}

impl TokenPlacer {
    /// For tokens that follow `context` and `chars` characters of the same text.
    pub fn new(context: &[TokenId], skips_special: bool, chars: usize, tokenizer: &Tokenizer) -> Self {
        let stream = if skips_special { tokenizer.stream(context) } else { tokenizer.stream_with_special(context) };
        TokenPlacer { stream, next: chars }
    }

    /// Number of characters before the next token, which is `token`. Behind a stop string's beginning, where the text
    /// is cut off, it counts the characters that were cut.
    pub fn place(&mut self, token: TokenId) -> usize {
        let place = self.next;
        self.next += self.stream.push(token).chars().count();
        place
    }
}
