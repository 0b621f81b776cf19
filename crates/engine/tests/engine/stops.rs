//! What ends an extend, and what is kept of it.

use std::num::{NonZeroU16, NonZeroUsize};

use offshoot_core::ids::TokenId;
use offshoot_engine::{ConfidenceStop, EngineHandle, Finish, FinishReason, Records, SamplingParams, Stop};

use super::bench::{CONTEXT, EOS, Mode, draw, finish, key, length, prompt, roomy};

/// Only letters, so that text and tokens correspond one to one.
fn letters() -> SamplingParams {
    let bias = (0..super::bench::VOCAB).filter(|token| !(97..123).contains(token)).map(|t| (TokenId(t), -1e9));
    SamplingParams { logit_bias: bias.collect(), ..SamplingParams::default() }
}

fn run(engine: &EngineHandle, params: SamplingParams, stop: Stop) -> Finish {
    let root = engine.root(prompt(1, 20)).unwrap();
    finish(engine, draw(root, key("item", 0), params, stop))
}

fn a_stop_string_ends_the_text_wherever_token_borders_lie(mode: Mode) {
    let engine = mode.engine(roomy());
    let whole = run(&engine, letters(), length(30));
    assert_eq!(whole.text.len(), 30);
    for (at, len) in [(0, 1), (3, 3), (10, 7), (25, 5)] {
        let word = whole.text[at..at + len].to_owned();
        let first = whole.text.find(&word).unwrap();
        let stop = Stop { strings: vec!["#never".to_owned(), word.clone()], ..length(30) };
        let cut = run(&engine, letters(), stop.clone());
        assert_eq!(cut.reason, FinishReason::StopString(word.clone()));
        assert_eq!(cut.text, whole.text[..first]);
        assert_eq!(cut.tokens, whole.tokens[..first + len], "the tokens that spell the stop are kept");
        assert_eq!(cut.logprobs(), &whole.logprobs()[..first + len]);
        let kept = run(&engine, letters(), Stop { include_stop: true, ..stop });
        assert_eq!(kept.text, whole.text[..first + len]);
    }
}

fn the_text_is_that_of_the_tokens(mode: Mode) {
    let engine = mode.engine(roomy());
    // Tokens 128 and up are parts of characters, mostly of none that exist.
    let drawn = run(&engine, SamplingParams::default(), length(60));
    assert_eq!(drawn.text, super::bench::tokenizer().decode(&drawn.tokens));
    // A character whose parts lie on both sides of an extend's border belongs to the second.
    let root = engine.root(prompt(1, 20)).unwrap();
    let parts: Vec<TokenId> = "aé漢".bytes().map(|byte| TokenId(byte.into())).collect();
    let texts: Vec<String> = [&parts[..2], &parts[2..4], &parts[4..]]
        .iter()
        .map(|part| finish(&engine, super::bench::give(root, part.to_vec())).text)
        .collect();
    assert_eq!(texts, ["a\u{fffd}", "é\u{fffd}", "漢"]);
}

fn no_stop_acts_before_min_tokens(mode: Mode) {
    let engine = mode.engine(roomy());
    let whole = run(&engine, letters(), length(30));
    let stop = Stop { strings: vec![whole.text[..1].to_owned()], min_tokens: 5, ..length(30) };
    let late = run(&engine, letters(), stop);
    let again = whole.text[4..].find(&whole.text[..1]).map(|at| at + 4);
    assert_eq!(late.tokens.len(), again.map_or(30, |at| at + 1).max(5));
}

fn a_stop_token_is_not_kept(mode: Mode) {
    let engine = mode.engine(roomy());
    let whole = run(&engine, letters(), length(30));
    let token = whole.tokens[6];
    let first = whole.tokens.iter().position(|&t| t == token).unwrap();
    let stop = Stop { tokens: vec![token], ..length(30) };
    let cut = run(&engine, letters(), stop.clone());
    assert_eq!(cut.reason, FinishReason::StopToken(token));
    assert_eq!(cut.tokens, whole.tokens[..first]);
    assert_eq!(cut.logprobs(), &whole.logprobs()[..first]);
    let sum: f64 = whole.logprobs()[..=first].iter().copied().map(f64::from).sum();
    assert_eq!(cut.logprob, sum, "its probability is part of the text's");
    let kept = run(&engine, letters(), Stop { include_stop: true, ..stop });
    assert_eq!(kept.tokens, whole.tokens[..=first]);
}

fn the_models_end_of_text_ends_the_branch(mode: Mode) {
    let engine = mode.engine(roomy());
    let ending = SamplingParams { logit_bias: vec![(EOS, 1e4)], ..SamplingParams::default() };
    let at_once = run(&engine, ending.clone(), Stop::max_tokens(9));
    assert_eq!((at_once.reason, at_once.tokens.len()), (FinishReason::EndOfText, 0));
    let later = run(&engine, ending.clone(), Stop { min_tokens: 3, ..Stop::max_tokens(9) });
    assert_eq!((later.reason, later.tokens.len()), (FinishReason::EndOfText, 3));
    let never = run(&engine, ending, length(9));
    assert_eq!((never.reason, never.tokens), (FinishReason::Length, vec![EOS; 9]));
}

fn a_branch_goes_on_after_a_stop_as_if_the_stop_token_had_not_been_drawn(mode: Mode) {
    let engine = mode.engine(roomy());
    let ending = SamplingParams { logit_bias: vec![(EOS, 1e4)], ..SamplingParams::default() };
    let root = engine.root(prompt(1, 20)).unwrap();
    finish(&engine, draw(root, key("item", 0), ending, Stop::max_tokens(9)));
    let on = finish(&engine, draw(root, key("item", 0), letters(), length(9)));
    assert_eq!(on, run(&engine, letters(), length(9)));
}

fn a_full_context_ends_the_branch(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(1, CONTEXT - 5)).unwrap();
    let full = finish(&engine, draw(root, key("item", 0), letters(), length(100)));
    assert_eq!((full.reason, full.tokens.len()), (FinishReason::ContextFull, 5));
    let more = finish(&engine, draw(root, key("item", 0), letters(), length(100)));
    assert_eq!((more.reason, more.tokens.len()), (FinishReason::ContextFull, 0));
}

/// Samples of which a confidence is recorded end behind the first window whose mean is too low, whatever runs ahead, on
/// a second extend as on the first; what was sampled before is what is sampled without the stop.
fn a_sample_ends_where_it_loses_confidence(mode: Mode) {
    let engine = mode.engine(roomy());
    let records = Records { confidence: NonZeroU16::new(8), ..Records::default() };
    let params = SamplingParams { records, ..letters() };
    let whole = run(&engine, params.clone(), length(40));
    let confidences: Vec<f64> = whole.records.confidences().iter().map(|c| f64::from(c.expect("recorded"))).collect();
    assert_eq!(confidences.len(), 40);
    let mut ended = 0;
    for window in [1, 4, 15] {
        let means: Vec<f64> = confidences.windows(window).map(|all| all.iter().sum::<f64>() / window as f64).collect();
        let mut sorted = means.clone();
        sorted.sort_by(f64::total_cmp);
        // Below none, below the lowest alone, below many; between two means, so that no rounding decides.
        for below in [0.0, (sorted[0] + sorted[1]) / 2.0, (sorted[8] + sorted[9]) / 2.0] {
            let window_tokens = NonZeroUsize::new(window).expect("from 1 up");
            let stop = length(40).at_confidence(ConfidenceStop { window: window_tokens, below });
            let cut = run(&engine, params.clone(), stop.clone());
            let first = means.iter().position(|&mean| mean < below).map(|first| first + window);
            let reason = first.map_or(FinishReason::Length, |_| FinishReason::LowConfidence);
            assert_eq!((cut.reason, cut.tokens.len()), (reason, first.unwrap_or(40)), "{window}, {below}");
            assert_eq!(cut.tokens, whole.tokens[..cut.tokens.len()]);
            ended += usize::from(first.is_some());

            let late = run(&engine, params.clone(), Stop { min_tokens: 30, ..stop });
            let first = (0..means.len()).find(|&at| at + window >= 30 && means[at] < below).map(|at| at + window);
            assert_eq!(late.tokens.len(), first.unwrap_or(40), "{window}, {below}: no stop acts before min_tokens");
        }
    }
    assert!(ended >= 6, "{ended}");
    // A window holds the tokens of one extend: what its branch has sampled before has no part in it.
    let stop = length(9).at_confidence(ConfidenceStop { window: NonZeroUsize::MIN.saturating_add(3), below: 1e9 });
    let root = engine.root(prompt(1, 20)).unwrap();
    let next = |max_tokens| Stop { max_tokens, ..stop.clone() };
    let lengths = [3, 9, 9].map(|max_tokens| {
        let end = finish(&engine, draw(root, key("item", 0), params.clone(), next(max_tokens)));
        (end.tokens.len(), end.reason)
    });
    let low = (4, FinishReason::LowConfidence);
    assert_eq!(lengths, [(3, FinishReason::Length), low.clone(), low]);
    let refused =
        engine.root(prompt(1, 20)).and_then(|root| engine.start(vec![draw(root, key("item", 0), letters(), stop)]));
    let error = refused.err().expect("no confidence is recorded").to_string();
    assert!(error.starts_with("tokens of a confidence"), "{error}");
}

in_modes! {
    in_turn, run_ahead, replicas:
    a_sample_ends_where_it_loses_confidence,
    a_stop_string_ends_the_text_wherever_token_borders_lie,
    the_text_is_that_of_the_tokens,
    no_stop_acts_before_min_tokens,
    a_stop_token_is_not_kept,
    the_models_end_of_text_ends_the_branch,
    a_branch_goes_on_after_a_stop_as_if_the_stop_token_had_not_been_drawn,
    a_full_context_ends_the_branch,
}
