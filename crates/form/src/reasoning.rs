//! Where in a sample the text begins that must have the form: finds the marks around reasoning in the text of the
//! sampled tokens, special tokens shown, however tokens cut them.

use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_text::Tokenizer;

/// The mark that opens reasoning, which the sample may begin with.
#[derive(Debug)]
pub(crate) struct OpeningMark {
    text: Vec<u8>,
    /// The token that is the mark, if there is one; it alone opens the reasoning then.
    token: Option<TokenId>,
}

impl OpeningMark {
    pub fn new(text: &str, tokenizer: &Tokenizer) -> OpeningMark {
        OpeningMark { text: text.as_bytes().to_vec(), token: tokenizer.token(text) }
    }
}

/// A sample that has neither opened the reasoning nor begun otherwise: white space, and a beginning of the mark.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    mark: Arc<OpeningMark>,
    /// Bytes of the mark that the sample has.
    read: usize,
}

/// What a token makes of a sample that may open its reasoning.
pub(crate) enum Opened {
    /// It may still do so.
    Open(Opening),
    Reasoning,
    /// The sample has begun with other text than the mark.
    Otherwise,
}

impl Opening {
    pub fn new(mark: OpeningMark) -> Opening {
        Opening { mark: Arc::new(mark), read: 0 }
    }

    /// What tells the masks of states apart that differ in the mark: the mark's text, and how much of it has come.
    pub fn tag(&self) -> (&[u8], usize) {
        (&self.mark.text, self.read)
    }

    /// The tokens that go on with the mark.
    pub fn tokens(&self, tokenizer: &Tokenizer, tokens: usize) -> Vec<TokenId> {
        if let Some(token) = self.mark.token {
            return Some(token).filter(|token| token.ix() < tokens).into_iter().collect();
        }
        let rest = &self.mark.text[self.read..];
        let goes_on = |token: &TokenId| {
            let bytes = tokenizer.token_bytes(*token);
            !bytes.is_empty() && rest.starts_with(bytes)
        };
        (0..tokens).map(TokenId::new).filter(goes_on).collect()
    }

    pub fn push(self, token: TokenId, bytes: &[u8]) -> Opened {
        if let Some(mark) = self.mark.token {
            return match token {
                token if token == mark => Opened::Reasoning,
                _ if is_white(bytes) => Opened::Open(self),
                _ => Opened::Otherwise,
            };
        }
        let bytes = if self.read == 0 { bytes.trim_ascii_start() } else { bytes };
        let rest = &self.mark.text[self.read..];
        if bytes.starts_with(rest) {
            Opened::Reasoning
        } else if rest.starts_with(bytes) {
            Opened::Open(Opening { read: self.read + bytes.len(), ..self })
        } else {
            Opened::Otherwise
        }
    }
}

fn is_white(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().is_empty()
}

/// Looks for marks, one behind the other, in a text that comes in pieces.
#[derive(Clone, Debug)]
pub(crate) struct MarkFinder {
    /// The marks that are not found yet, the next one first.
    left: Arc<[Vec<u8>]>,
    next: usize,
    /// The end of the text behind the marks found: less than the next mark.
    tail: Vec<u8>,
}

impl MarkFinder {
    pub fn new(marks: &[&str]) -> MarkFinder {
        let left = marks.iter().filter(|mark| !mark.is_empty()).map(|mark| mark.as_bytes().to_vec()).collect();
        MarkFinder { left, next: 0, tail: Vec::new() }
    }

    /// Reads a piece of the text. Whether all marks are found by now.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        self.tail.extend_from_slice(bytes);
        while let Some(mark) = self.left.get(self.next) {
            match self.tail.windows(mark.len()).position(|window| window == mark) {
                Some(at) => {
                    self.tail.drain(..at + mark.len());
                    self.next += 1;
                }
                None => {
                    let kept = self.tail.len().min(mark.len() - 1);
                    self.tail.drain(..self.tail.len() - kept);
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_however_they_are_cut() {
        let text = b"so: <</think>\n{";
        for cut in 1..text.len() {
            let mut finder = MarkFinder::new(&["</think>"]);
            let found = text.chunks(cut).position(|piece| finder.push(piece));
            assert_eq!(found, Some(12 / cut), "{cut}");
        }
    }

    #[test]
    fn a_second_mark_counts_behind_the_first() {
        let mut finder = MarkFinder::new(&["<a>", "<b>"]);
        assert!(!finder.push(b"<b><a"));
        assert!(!finder.push(b"><"));
        assert!(finder.push(b"b>x"));
    }
}
