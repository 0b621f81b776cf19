//! The parts of a sample's text as they become final, each with the tokens that it is of: what was thought, what is
//! said, and calls of functions.

use std::ops::Range;

use crate::protocol::request::{EncodedPrompt, ProtocolRequest};
use offshoot_core::ids::TokenId;
use offshoot_text::tools::{AnswerPart, AnswerSplitter};
use offshoot_text::{TextStream, Tokenizer};

/// A piece of an answer, and the indices of the sample's tokens that begin in it. Marks between the parts, and what
/// ended the text, are of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPart {
    pub part: AnswerPart,
    pub tokens: Range<usize>,
}

/// Splits the text of one sample.
pub struct PartReader {
    splitter: AnswerSplitter,
    /// Of the tokens alone, to learn where each begins.
    stream: TextStream,
    /// Where in the text each token begins, in bytes.
    begins: Vec<usize>,
    /// Where the text of the tokens ends so far, in bytes. The text that is final may be shorter.
    end: usize,
    /// The text that is final and in no part yet: marks, and what may become one.
    window: String,
    /// Bytes of the final text before the window.
    before: usize,
}

impl PartReader {
    pub fn new(request: &ProtocolRequest, prompt: &EncodedPrompt, tokenizer: &Tokenizer) -> Self {
        let stream = match request.skips_special {
            true => tokenizer.stream(&prompt.tokens),
            false => tokenizer.stream_with_special(&prompt.tokens),
        };
        let splitter = request.splitter(prompt);
        PartReader { splitter, stream, begins: Vec::new(), end: 0, window: String::new(), before: 0 }
    }

    /// Takes tokens that were sampled, and text that became final with them. `is_last`: nothing follows.
    pub fn push(&mut self, tokens: impl Iterator<Item = TokenId>, text: &str, is_last: bool) -> Vec<TokenPart> {
        for token in tokens {
            self.begins.push(self.end);
            self.end += self.stream.push(token).len();
        }
        let mut parts = Vec::new();
        let mut rest = text;
        // A token at a time, so that each part's place is known.
        while let Some(cut) = self.next_cut(rest) {
            let (piece, after) = rest.split_at(cut);
            self.split(piece, false, &mut parts);
            rest = after;
        }
        self.split(rest, is_last, &mut parts);
        parts
    }

    /// Where in text that follows what was taken its first token ends, if text follows behind it.
    fn next_cut(&self, text: &str) -> Option<usize> {
        let taken = self.before + self.window.len();
        let next = self.begins.partition_point(|&begin| begin <= taken);
        let cut = self.begins.get(next)? - taken;
        (cut < text.len() && text.is_char_boundary(cut)).then_some(cut)
    }

    fn split(&mut self, piece: &str, is_last: bool, parts: &mut Vec<TokenPart>) {
        self.window.push_str(piece);
        let found = if is_last { self.splitter.push_last(piece) } else { self.splitter.push(piece) };
        for part in found {
            let tokens = match &part {
                AnswerPart::Reasoning(text) | AnswerPart::Content(text) => self.locate(text),
                // A call's arguments may be written in another way than they were sampled.
                AnswerPart::CallBegins { .. } | AnswerPart::Arguments(_) | AnswerPart::CallEnds { .. } => 0..0,
            };
            parts.push(TokenPart { part, tokens });
        }
    }

    /// The tokens that begin in the next part, which has this text.
    fn locate(&mut self, text: &str) -> Range<usize> {
        // Marks stand before a part, and what may become a mark behind it.
        let at = match self.window.ends_with(text) {
            true => Some(self.window.len() - text.len()),
            false => self.window.rfind(text),
        };
        let Some(at) = at else { return 0..0 };
        let (begin, end) = (self.before + at, self.before + at + text.len());
        self.window.drain(..at + text.len());
        self.before = end;
        let token_from = |place: usize| self.begins.partition_point(|&begin| begin < place);
        token_from(begin)..token_from(end)
    }
}
