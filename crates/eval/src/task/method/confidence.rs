//! The settings of `confidence` of `self_consistency`: where samples' confidences come from, whose votes they weigh,
//! and which samples end by them.

use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::source::Place;
use offshoot_core::error::Result;
use offshoot_search::confidence::{ConfidenceSource, ConfidenceVote, Measure, Windows};
use offshoot_search::vote::Decided;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ConfidenceVoteSettings {
    /// The confidence that a vote weighs.
    #[serde(default)]
    weigh_by: Weight,
    /// Tokens of a window, and of the tail.
    #[serde(default = "window")]
    #[schemars(with = "u32", range(min = 1))]
    window: NonZeroUsize,
    /// Without a warm-up the share of the samples with an answer that votes: those of the highest confidences. With one
    /// the share of it that sets the bar: the bar is the lowest confidence of that share.
    #[serde(default = "all")]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1, "x-expected" = "a number above 0, at most 1"))]
    keep: f64,
    /// A token's confidence is minus the mean log-probability of so many of the likeliest tokens in its place (default:
    /// 20 with a warm-up; else of those that `sampling.logprobs` lists, and its own).
    #[schemars(range(min = 1, max = 2048))]
    top: Option<NonZeroU16>,
    /// So many samples, the first, are drawn whole and set a bar. Each later sample ends as soon as the mean confidence
    /// of its last `window` tokens is below it, and has no vote (default: all samples are whole).
    #[schemars(range(min = 1))]
    warm_up: Option<NonZeroU32>,
}

/// Which confidence of a sample its vote weighs.
#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Weight {
    /// That of its lowest window.
    #[default]
    Lowest,
    /// The mean of the lowest tenth of its windows.
    Bottom,
    /// That of its last window.
    Tail,
    /// The mean of all its tokens.
    Mean,
    /// None: votes are equal.
    None,
}

fn window() -> NonZeroUsize {
    Windows::default().window
}

fn all() -> f64 {
    1.0
}

/// The likeliest tokens of which a confidence is where nothing is said: deepconf's.
const USUAL_TOP: NonZeroU16 = NonZeroU16::new(20).expect("not 0");

/// The vote of `samples`; `place`: of the method.
pub(super) fn vote(place: &Place<'_>, samples: u32, settings: ConfidenceVoteSettings) -> Result<ConfidenceVote> {
    let ConfidenceVoteSettings { weigh_by, window, keep, top, warm_up } = settings;
    let by = match weigh_by {
        Weight::Lowest => Some(Measure::Lowest),
        Weight::Bottom => Some(Measure::Bottom),
        Weight::Tail => Some(Measure::Tail),
        Weight::Mean => Some(Measure::Mean),
        Weight::None => None,
    };
    if warm_up.is_some_and(|warm_up| warm_up.get() > samples) {
        return Err(place.key("confidence").key("warm_up").wrong(format!("at most `samples`, {samples}")));
    }
    let source = match (top, warm_up) {
        (None, None) => ConfidenceSource::Listed,
        (top, warm_up) => ConfidenceSource::Sampler { top: top.unwrap_or(USUAL_TOP), warm_up },
    };
    Ok(ConfidenceVote { by, windows: Windows { keep, ..Windows::of_size(window) }, source })
}

/// Checks a vote beside the method's other settings.
pub(super) fn check(
    place: &Place<'_>,
    how: &ConfidenceVote,
    stop: Decided,
    min_finished: Option<NonZeroU32>,
) -> Result<()> {
    // What decides counts votes, and without a warm-up it is not known before the end which samples vote.
    if stop != Decided::Never && (how.by.is_some() || how.warm_up().is_none()) {
        let expected = "false where `confidence` weighs the votes (or a `warm_up` in it and `weigh_by` \"none\")";
        return Err(place.key("stop_when_decided").wrong(expected));
    }
    match (min_finished, how.warm_up()) {
        (Some(least), Some(warm_up)) if least < warm_up => {
            Err(place.key("min_finished").wrong(format!("at least `confidence.warm_up`, {warm_up}")))
        }
        _ => Ok(()),
    }
}
