//! Finds stop strings in streamed text, also across tokens: text that may be the beginning of a stop string is held back until
//! it is certain. The result does not depend on how the text was cut into pieces.

use std::sync::Arc;

use crate::error::{Error, Result};

/// Watches one stream of text. A branch that forks clones it.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Arc<[String]>,
    include: bool,
    /// Not yet given out: a proper beginning of a stop string.
    held: String,
}

/// What a piece of text made certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertainText {
    /// Text to give out.
    pub text: String,
    /// Which stop string (by its index) ended the stream; the rest of the piece is dropped.
    pub by: Option<usize>,
}

impl StopMatcher {
    /// With `include` the text keeps the stop string that ended it.
    pub fn new(stops: &[String], include: bool) -> Result<StopMatcher> {
        match stops.iter().any(String::is_empty) {
            true => Err(Error::value("stop", "strings that are not empty", "\"\"")),
            false => Ok(StopMatcher { stops: stops.into(), include, held: String::new() }),
        }
    }

    /// Takes the next piece. The stop string that is complete first ends the stream; of several that are complete with the same
    /// character, the longest.
    pub fn push(&mut self, piece: &str) -> CertainText {
        if self.stops.is_empty() {
            return CertainText { text: piece.to_string(), by: None };
        }
        self.held.push_str(piece);
        if let Some((start, end, by)) = self.first_hit() {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(if self.include { end } else { start });
            return CertainText { text, by: Some(by) };
        }
        let certain = self.held.len() - self.longest_beginning();
        CertainText { text: self.held.drain(..certain).collect(), by: None }
    }

    /// What was held back, when the stream has ended otherwise.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn first_hit(&self) -> Option<(usize, usize, usize)> {
        let hits = self.stops.iter().enumerate().filter_map(|(by, stop)| {
            let start = self.held.find(stop)?;
            Some((start, start + stop.len(), by))
        });
        hits.min_by_key(|&(start, end, by)| (end, start, by))
    }

    /// The length of the longest end of `held` with which a stop string begins.
    fn longest_beginning(&self) -> usize {
        let begins = |from: usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[from..]));
        let from = self.held.char_indices().map(|(from, _)| from).find(|&from| begins(from));
        from.map_or(0, |from| self.held.len() - from)
    }
}
