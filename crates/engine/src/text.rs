//! The text of one extend as it grows: which part is final, and whether a stop string has ended it. Decoding tokens and
//! finding stop strings across them is left to the tokenizer.

use crate::request::Stop;
use crate::token_path::TokenPath;
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_text::{StopMatcher, TextStream, Tokenizer};

/// The text sampled after some context.
pub(super) struct BranchText {
    /// `None` without a tokenizer: there is no text.
    stream: Option<TextStream>,
    stops: StopMatcher,
    strings: Vec<String>,
    shown: String,
    stopped: bool,
}

/// The text added by one token.
pub(super) struct TextPiece {
    /// New text that is final.
    pub text: String,
    /// The stop string that ended the text, if one did.
    pub stopped_by: Option<String>,
}

/// Context tokens that can affect how the following text is decoded: a character has at most four bytes, the rest
/// allows for special tokens in between.
const CONTEXT: usize = 16;

impl BranchText {
    /// Continues the text of `context`, as `stop` says.
    pub fn new(tokenizer: Option<&Tokenizer>, context: &TokenPath, stop: &Stop) -> Result<Self> {
        let last = context.slice(context.len().saturating_sub(CONTEXT)..context.len());
        let stream = tokenizer.map(|tokenizer| match stop.show_special {
            true => tokenizer.stream_with_special(&last),
            false => tokenizer.stream(&last),
        });
        let stops = StopMatcher::new(&stop.strings, stop.include_stop)?;
        let strings = stop.strings.clone();
        Ok(BranchText { stream, stops, strings, shown: String::new(), stopped: false })
    }

    /// Adds a token. Stop strings are searched only if `may_stop`.
    pub fn push(&mut self, token: TokenId, may_stop: bool) -> TextPiece {
        let text = self.stream.as_mut().map_or("", |stream| stream.push(token));
        let (text, by) = match may_stop {
            true => {
                let stopped = self.stops.push(text);
                (stopped.text, stopped.by)
            }
            false => (text.to_owned(), None),
        };
        self.shown.push_str(&text);
        self.stopped = by.is_some();
        TextPiece { text, stopped_by: by.map(|by| self.strings[by].clone()) }
    }

    /// The whole text, cut at the stop string. The last character may be incomplete: then it is left out if the text
    /// `goes_on`, so that what follows can complete it; otherwise it is U+FFFD.
    pub fn finish(mut self, goes_on: bool) -> String {
        if !self.stopped {
            self.shown.push_str(&self.stops.finish());
            if let Some(stream) = self.stream.as_mut().filter(|_| !goes_on) {
                self.shown.push_str(stream.finish());
            }
        }
        self.shown
    }
}
