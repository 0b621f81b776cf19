//! The text of one extend as it grows: which part of it is safe to show, and whether a stop string has ended it. Turning
//! tokens into text is the tokenizer's.

use std::sync::Arc;

use crate::ids::TokenId;
use crate::tokenizer::{TextStream, Tokenizer};

/// Text drawn so far, held back where a stop string may be beginning.
pub(super) struct BranchText {
    /// Absent where there is no tokenizer, so no text.
    stream: Option<TextStream>,
    stops: Vec<String>,
    include_stop: bool,
    text: String,
    /// Bytes of `text` that have been shown.
    shown: usize,
}

/// What one more piece of text brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// New text that nothing later can take back.
    pub safe: String,
    /// The stop string that ended the text, if one did.
    pub stopped_by: Option<String>,
}

impl BranchText {
    pub fn new(tokenizer: Option<&Arc<Tokenizer>>, stops: Vec<String>, include_stop: bool) -> Self {
        let stream = tokenizer.map(|tokenizer| TextStream::new(tokenizer.clone()));
        BranchText { stream, stops, include_stop, text: String::new(), shown: 0 }
    }

    /// Adds a token's text. Stops are looked for only if `may_stop`, in what has not been shown.
    pub fn push(&mut self, token: TokenId, may_stop: bool) -> Piece {
        let text = self.stream.as_mut().map_or_else(String::new, |stream| stream.push(token));
        self.push_text(&text, may_stop)
    }

    fn push_text(&mut self, text: &str, may_stop: bool) -> Piece {
        self.text.push_str(text);
        let found = self.find_stop().filter(|_| may_stop);
        if let Some((start, stop)) = &found {
            self.text.truncate(if self.include_stop { start + stop.len() } else { *start });
        }
        let held = if found.is_some() { 0 } else { self.held_back() };
        let safe = self.text[self.shown..self.text.len() - held].to_owned();
        self.shown += safe.len();
        Piece { safe, stopped_by: found.map(|(_, stop)| stop) }
    }

    /// The earliest stop string in what has not been shown; of those that begin together, the shortest.
    fn find_stop(&self) -> Option<(usize, String)> {
        let hidden = &self.text[self.shown..];
        let found = self.stops.iter().filter_map(|stop| hidden.find(stop.as_str()).map(|at| (at, stop)));
        found.min_by_key(|(at, stop)| (*at, stop.len())).map(|(at, stop)| (self.shown + at, stop.clone()))
    }

    /// Bytes at the end of the text that are the beginning of a stop string.
    fn held_back(&self) -> usize {
        let hidden = &self.text[self.shown..];
        let begins = |stop: &String| {
            let most = stop.len() - 1;
            let at = |&len: &usize| stop.is_char_boundary(len) && hidden.ends_with(&stop[..len]);
            (1..=most.min(hidden.len())).rev().find(at).unwrap_or(0)
        };
        self.stops.iter().map(begins).max().unwrap_or(0)
    }

    /// The whole text, cut at the stop.
    pub fn finish(self) -> String {
        self.text
    }
}
