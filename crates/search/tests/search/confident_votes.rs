//! Votes that confidence stops: a warm-up sets the bar, later samples end below it, and a resumed search has the same.
//! All tokens of a scripted sample have one confidence, so its lowest window is that number.

use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex};

use offshoot_engine::{Continuation, EngineHandle, FinishReason, ScriptedReply};
use offshoot_search::confidence::{ConfidenceSource, ConfidenceVote, Measure, SampleConfidence, Windows, weigh_votes};
use offshoot_search::self_consistency::vote;
use offshoot_search::vote::Decided;
use offshoot_search::{Assessment, Assessor, Details, Outcome, Sample, SearchJob, confident_self_consistency};

use crate::job::{self, Order};

const WINDOW: usize = 2;

/// What sample i says, and the confidence of each of its tokens.
const SAID: [(&str, f32); 8] =
    [("a..", 1.0), ("b..", 2.0), ("b..", 3.0), ("a..", 4.0), ("b..", 3.25), ("c..", 3.5), ("b..", 9.0), ("?..", 9.0)];

fn how(by: Option<Measure>, warm_up: Option<u32>, keep: f64) -> ConfidenceVote {
    let windows = Windows { keep, ..Windows::of_size(NonZeroUsize::new(WINDOW).expect("2")) };
    let (top, warm_up) = (NonZeroU16::new(5).expect("5"), warm_up.and_then(NonZeroU32::new));
    ConfidenceVote { by, windows, source: ConfidenceSource::Sampler { top, warm_up } }
}

fn assess(text: &str) -> Assessment {
    let answer = text.trim_end_matches('.');
    Assessment::graded((answer != "?").then(|| answer.to_owned()), Some(answer == "b"))
}

/// The outcome, the samples in the order of their records, and the thresholds that the engine was given for each.
struct Voted {
    outcome: Outcome,
    recorded: Vec<Sample>,
    asked: Vec<Option<f64>>,
}

/// Draws the samples that `earlier` does not have; the engine ends one where its window is below the bar.
fn voted(how: &ConfidenceVote, stop: Decided, earlier: Vec<Sample>) -> Voted {
    let missing: Vec<usize> = (0..SAID.len()).filter(|&at| earlier.iter().all(|s| s.index != at as u64)).collect();
    let asked = Arc::new(Mutex::new(vec![None; SAID.len()]));
    let seen = asked.clone();
    let engine = EngineHandle::scripted(move |call| {
        let at = missing[call.branch.0 as usize - 1];
        let (text, confidence) = SAID[at];
        let Continuation::Sampled { params, stop, .. } = call.continuation else { panic!("nothing is given") };
        assert_eq!(params.records.confidence, NonZeroU16::new(5));
        let stop = stop.confidence;
        seen.lock().expect("no test panics here")[at] = stop.map(|stop| stop.below);
        let is_low = stop.is_some_and(|stop| f64::from(confidence) < stop.below);
        let reply = match is_low {
            true => ScriptedReply::text(&text[..WINDOW]).reason(FinishReason::LowConfidence),
            false => ScriptedReply::text(text),
        };
        reply.logprob(-confidence)
    });
    let mut tree = job::tree_on(engine, "Q");
    let (root, order) = (tree.root(), Order::default());
    let mut recorded = Vec::new();
    let mut record = |sample: &Sample| {
        recorded.push(sample.clone());
        Ok(())
    };
    let job: SearchJob<'_> = order.job(Assessor::new(assess), &mut record);
    let outcome = confident_self_consistency(&mut tree, root, SAID.len(), how, stop, &mut job.resuming(earlier));
    let outcome = outcome.expect("nothing fails");
    let asked = asked.lock().expect("the engine has ended").clone();
    Voted { outcome, recorded, asked }
}

fn b(votes: u32) -> (String, u32) {
    ("b".to_owned(), votes)
}

#[test]
fn samples_below_the_bar_of_the_warm_up_end_and_have_no_vote() {
    // Of 1, 2, 3 and 4 the 75th percentile is 3.25, which is not below itself.
    let Voted { outcome, asked, .. } = voted(&how(Some(Measure::Lowest), Some(4), 0.25), Decided::Never, Vec::new());
    assert_eq!(asked[..4], [None; 4], "the warm-up is whole");
    assert_eq!(asked[4..], [Some(3.25); 4]);
    assert_eq!(outcome.bar, Some(3.25));
    assert_eq!(outcome.samples.len(), 8);
    assert!(outcome.samples.iter().all(|sample| sample.finish == FinishReason::EndOfText && sample.tokens == 3));
    assert_eq!(outcome.votes, [b(2), ("a".to_owned(), 1), ("c".to_owned(), 1)]);
    assert_eq!((outcome.prediction.as_deref(), outcome.correct, outcome.chosen), (Some("b"), Some(true), Some(4)));
    let Some(Details::Scores { scores }) = &outcome.details else { panic!("{outcome:?}") };
    assert_eq!(scores[..], SAID.map(|(_, confidence)| Some(f64::from(confidence))));
    let size = NonZeroUsize::new(WINDOW).expect("2");
    let measured = SampleConfidence { window: size, mean: 3.25, tail: 3.25, bottom: 3.25, lowest: 3.25 };
    assert_eq!(outcome.samples[4].confidence, Some(measured));
    assert!(outcome.samples[4].logprobs.is_none(), "the job asks for no records");

    // Of all of the warm-up the lowest is the bar; half of it: 2.5; a tenth: 3.7, above two of the later samples.
    let bar = |keep| voted(&how(None, Some(4), keep), Decided::Never, Vec::new()).outcome.bar;
    assert_eq!((bar(1.0), bar(0.5)), (Some(1.0), Some(2.5)));
    let Voted { outcome, .. } = voted(&how(None, Some(4), 0.1), Decided::Never, Vec::new());
    let ended: Vec<u64> = outcome.samples.iter().filter(|s| s.tokens == WINDOW).map(|s| s.index).collect();
    assert_eq!(ended, [4, 5]);
    for sample in &outcome.samples[4..6] {
        assert_eq!((&sample.finish, &sample.answer, sample.correct), (&FinishReason::LowConfidence, &None, None));
        assert_eq!(sample.text.len(), WINDOW, "the text is kept");
    }
    assert_eq!(outcome.votes, [("a".to_owned(), 1), b(1)], "equal votes, of samples 3 and 6");
    assert_eq!((outcome.chosen, &outcome.tied[..]), (Some(3), &[3, 6][..]));
    let weighed = voted(&how(Some(Measure::Mean), Some(4), 0.1), Decided::Never, Vec::new()).outcome;
    assert_eq!((weighed.prediction.as_deref(), &weighed.tied[..]), (Some("b"), &[][..]), "9 is more than 4");
}

#[test]
fn a_resumed_search_has_the_bar_of_the_recorded_warm_up() {
    let how = how(Some(Measure::Tail), Some(4), 0.1);
    let whole = voted(&how, Decided::Never, Vec::new());
    let lines: Vec<String> = whole.recorded.iter().map(|s| serde_json::to_string(s).expect("it is JSON")).collect();
    let read = |line: &String| serde_json::from_str::<Sample>(line).expect("it was written");
    for kept in 0..lines.len() {
        // Recorded before the process was killed: the first lines, and every second one.
        for earlier in
            [lines[..kept].iter().map(read).collect(), lines.iter().step_by(2).take(kept).map(read).collect()]
        {
            let again = voted(&how, Decided::Never, earlier);
            assert_eq!(again.outcome.samples, whole.outcome.samples);
            assert_eq!((again.outcome.bar, &again.outcome.votes), (whole.outcome.bar, &whole.outcome.votes));
        }
    }
    // A sample of the warm-up failed: there is no bar, and no further sample ends, so that it can be drawn again.
    let failed = whole.outcome.samples.iter().filter(|sample| sample.index != 2).cloned().collect();
    let without = weigh_votes(vote(failed, SAID.len(), Some(false)), &how);
    assert_eq!(without.bar, None);
    // The samples alone tell the vote.
    let told = weigh_votes(vote(whole.outcome.samples.clone(), SAID.len(), Some(false)), &how);
    assert_eq!((told.bar, told.votes, told.chosen), (whole.outcome.bar, whole.outcome.votes, whole.outcome.chosen));
}

#[test]
fn what_passes_decides_a_vote() {
    // Of the warm-up sample 2 passes alone, and the two that follow it are two more votes for `b` and `c`.
    let certain = voted(&how(None, Some(3), 0.34), Decided::Certain, Vec::new()).outcome;
    assert_eq!((certain.bar.map(|bar| bar > 2.0 && bar < 3.0), certain.prediction.as_deref()), (Some(true), Some("b")));
    // b, a, b, c and b of eight, and only one is left.
    assert_eq!((certain.samples.len(), certain.cancelled), (7, 1));
    let all = voted(&how(None, Some(3), 0.34), Decided::Never, Vec::new()).outcome;
    assert_eq!((all.samples.len(), all.prediction), (8, certain.prediction));
    // A warm-up is drawn whole even where less decides.
    let window = Decided::Agreeing(NonZeroU32::MIN);
    assert_eq!(voted(&how(None, Some(3), 1.0), window, Vec::new()).outcome.samples.len(), 3);
}

#[test]
fn without_a_warm_up_all_samples_are_whole_and_the_most_confident_vote() {
    let Voted { outcome, asked, .. } = voted(&how(Some(Measure::Mean), None, 0.3), Decided::Never, Vec::new());
    assert_eq!((asked, outcome.bar), (vec![None; 8], None));
    // Of seven with an answer the 70th percentile is 3.6: samples 3 and 6 vote.
    assert_eq!(outcome.votes, [("a".to_owned(), 1), b(1)]);
    assert_eq!(outcome.prediction.as_deref(), Some("b"));
}

#[test]
fn samples_without_known_confidences_pass_no_bar_and_set_none() {
    let size = NonZeroUsize::new(WINDOW).expect("2");
    assert_eq!(SampleConfidence::of(&[], size), None);
    assert_eq!(SampleConfidence::of(&[1.0, f64::INFINITY], size), None);
    let how = how(None, Some(4), 0.1);
    let whole = voted(&how, Decided::Never, Vec::new()).outcome;
    let without = |from: u64| {
        let samples = whole.samples.iter().cloned();
        let samples = samples.map(|s| Sample { confidence: s.confidence.filter(|_| s.index < from), ..s });
        weigh_votes(vote(samples.collect(), SAID.len(), None), &how)
    };
    assert_eq!(without(6).votes, [("a".to_owned(), 1)]);
    // Nothing is known: all whole samples vote.
    assert_eq!((without(0).bar, without(0).votes), (None, vec![b(3), ("a".to_owned(), 2)]));
    // Nor of windows of another size.
    let other = ConfidenceVote { windows: Windows { keep: 0.1, ..Windows::of_size(NonZeroUsize::MIN) }, ..how };
    assert_eq!(other.bar(&whole.samples), None);
}
