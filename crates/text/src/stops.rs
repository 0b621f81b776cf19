//! Finds stop strings in streamed text, also across tokens. Text that may be the start of a stop string is held back
//! until the next text decides. The result does not depend on how the text was cut into pieces.

use std::sync::Arc;

use super::channels::beginning_of;
use offshoot_core::error::{Error, Result};

/// Matches stop strings in one stream of text. Cloned when a branch forks.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Arc<[String]>,
    include: bool,
    /// Text held back: a proper prefix of a stop string.
    held: String,
}

/// Text that is certain not to be part of a later stop string, and the stop string found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertainText {
    /// Text to return.
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

    /// Takes the next piece. The first complete stop string ends the stream; if several complete at the same character,
    /// the longest.
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
        let begun = self.stops.iter().map(|stop| beginning_of(stop, &self.held)).max().unwrap_or(0);
        let certain = self.held.len() - begun;
        CertainText { text: self.held.drain(..certain).collect(), by: None }
    }

    /// The text held back, when the stream ends without a stop string.
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
}
