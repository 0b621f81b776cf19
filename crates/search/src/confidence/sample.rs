//! The confidence of one finished sample: what its record keeps of it, so that no list of its tokens is needed to weigh
//! or to filter it later.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use super::{Measure, Windows};
use crate::tree::ThoughtNode;

/// The confidence of a sample by each measure, with windows of one size and the other sizes of [`Windows::default`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleConfidence {
    /// Tokens of a window, and of the tail.
    pub window: NonZeroUsize,
    /// By [`Measure::Mean`].
    pub mean: f64,
    /// By [`Measure::Tail`].
    pub tail: f64,
    /// By [`Measure::Bottom`].
    pub bottom: f64,
    /// By [`Measure::Lowest`].
    pub lowest: f64,
}

impl SampleConfidence {
    /// The confidence of a sample whose tokens have these. `None` without tokens, and where one of theirs is not
    /// finite: no mean of it would say anything.
    pub fn of(confidences: &[f64], window: NonZeroUsize) -> Option<Self> {
        let is_known = !confidences.is_empty() && confidences.iter().all(|confidence| confidence.is_finite());
        let by = |measure| Windows::of_size(window).measure(measure, confidences);
        is_known.then(|| SampleConfidence {
            window,
            mean: by(Measure::Mean),
            tail: by(Measure::Tail),
            bottom: by(Measure::Bottom),
            lowest: by(Measure::Lowest),
        })
    }

    /// The confidence of a sampled thought whose parameters recorded confidences, the token that ended it included.
    pub(crate) fn of_thought(thought: &ThoughtNode, window: NonZeroUsize) -> Option<Self> {
        let ending = thought.ending.as_ref().and_then(|token| token.confidence);
        let tokens = thought.records().filter_map(|record| record?.confidence).chain(ending);
        Self::of(&tokens.map(f64::from).collect::<Vec<_>>(), window)
    }

    /// The confidence by one of the measures.
    pub fn by(&self, measure: Measure) -> f64 {
        match measure {
            Measure::Mean => self.mean,
            Measure::Tail => self.tail,
            Measure::Bottom => self.bottom,
            Measure::Lowest => self.lowest,
        }
    }
}
