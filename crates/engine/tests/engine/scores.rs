//! Scored texts that begin alike: whatever comes when, and whoever computes a score, each text's log-probabilities are
//! those of the text alone, bit for bit, and what texts share is computed and scored once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Poll;
use std::time::Duration;

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Event, EventReceiver, Extend, Finish, FinishReason, Metrics, SamplingParams,
    Turn,
};
use offshoot_kv::{MOST_KEPT_TOP, PromptTree};
use proptest::prelude::*;

use super::any::for_any;
use super::bench::{Mode, Shape, VOCAB, decoder, draw, finish, in_turn, key, length, params, prompt, room_for, roomy};

const PAGE_TOKENS: usize = 16;

/// Likeliest tokens reported by the scores that others are compared with: more than any test asks for.
const MOST_TOPS: usize = MOST_KEPT_TOP + 5;

/// A text that is scored, all but its first `context` tokens, and sampled after.
#[derive(Clone)]
struct Text {
    /// The turn before which it comes.
    arrives: usize,
    tokens: Vec<TokenId>,
    context: usize,
    tops: usize,
    /// Samples that go on from the whole text, three tokens each.
    samples: usize,
    /// How many turns after its arrival it is cancelled.
    cancelled: Option<usize>,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text { arrives, tokens, context, tops, samples, cancelled } = self;
        let tokens: String = tokens.iter().map(|token| char::from(token.0 as u8)).collect();
        write!(f, "{arrives}: {tokens} after {context}, {tops} tops, {samples} samples, cancelled {cancelled:?}")
    }
}

impl AsRef<[TokenId]> for Text {
    fn as_ref(&self) -> &[TokenId] {
        &self.tokens
    }
}

/// Levels of a tree of texts, each with an own first token.
fn levels(path: &[usize]) -> Vec<TokenId> {
    let level = |(depth, &child): (usize, &usize)| prompt((3 * depth + child) as u64, 6 + 7 * depth);
    path.iter().enumerate().flat_map(level).collect()
}

fn texts(most: usize) -> impl Strategy<Value = Vec<Text>> {
    let path = prop::collection::vec(0..3usize, 1..5);
    let tops = prop::sample::select(vec![0, 0, 1, 3, MOST_TOPS]);
    let places = (0..40usize, any::<prop::sample::Index>(), any::<bool>());
    let fate = (0..2usize, prop::option::weighted(0.2, 0..12usize));
    let text = (path, tops, places, fate).prop_map(|(path, tops, (arrives, context, whole), (samples, cancelled))| {
        let tokens = levels(&path);
        let context = if whole { 1 } else { 1 + context.index(tokens.len() - 1) };
        Text { arrives, tokens, context, tops, samples, cancelled }
    });
    prop::collection::vec(text, 1..most).prop_map(|mut texts| {
        texts.sort_by_key(|text| text.arrives);
        texts
    })
}

fn build(mode: Mode, shape: Shape, config: EngineConfig) -> (Engine, EngineHandle) {
    let (backend, decoder) = decoder(shape);
    let run_ahead = mode.run_ahead;
    Engine::build(decoder.on(backend), None, EngineConfig { check_plans: true, run_ahead, ..config }).unwrap()
}

/// What is told of a text, once it has begun.
struct Begun {
    extension: EventReceiver,
    scored: BranchId,
    result: Option<Finish>,
}

fn begin(handle: &EngineHandle, text: &Text, name: &str) -> Begun {
    let (context, given) = text.tokens.split_at(text.context);
    let scored = handle.root(context.to_vec()).unwrap();
    let mut extends = vec![Extend::given(scored, given.to_vec(), Some(text.tops))];
    for sample in 0..text.samples as u64 {
        let branch = handle.root(text.tokens.clone()).unwrap();
        extends.push(draw(branch, key(name, sample), params(), length(3)));
    }
    Begun { extension: handle.start(extends).unwrap(), scored, result: None }
}

/// Plays `texts`; `watch` sees the engine after each turn. Returns what each was scored.
fn play(
    (mut engine, handle): (Engine, EngineHandle),
    texts: &[Text],
    mut watch: impl FnMut(&Engine),
) -> (Vec<Finish>, Metrics) {
    let mut begun: Vec<Begun> = Vec::new();
    for turn in 0.. {
        while let Some(text) = texts.get(begun.len()).filter(|text| text.arrives <= turn) {
            begun.push(begin(&handle, text, &begun.len().to_string()));
        }
        for (begun, text) in begun.iter_mut().zip(texts) {
            if text.cancelled.is_some_and(|after| text.arrives + after == turn) {
                begun.extension.cancel(&[begun.scored]);
            }
            while let Poll::Ready(Some(event)) = begun.extension.poll(Duration::ZERO) {
                match event {
                    Event::Tokens { .. } => continue,
                    Event::Failed { error, .. } => panic!("{error}"),
                    Event::Finished { id: branch, finish } if branch == begun.scored => begun.result = Some(finish),
                    Event::Finished { .. } => {}
                }
                if begun.extension.unfinished() == 0 {
                    handle.release(&[begun.scored]);
                }
            }
        }
        let idle = engine.turn().unwrap() != Turn::Stepped;
        watch(&engine);
        if idle && begun.len() == texts.len() && begun.iter().all(|begun| begun.extension.unfinished() == 0) {
            break;
        }
        assert!(turn < 20_000, "somebody starves");
    }
    let metrics = engine.metrics().clone();
    (begun.into_iter().map(|begun| begun.result.expect("every text ends")).collect(), metrics)
}

/// The text alone, in an engine that has seen no other.
fn alone(shape: Shape, tokens: &[TokenId]) -> Arc<Finish> {
    type Known = HashMap<(String, Vec<TokenId>), Arc<Finish>>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let place = (format!("{shape:?}"), tokens.to_vec());
    let known = KNOWN.lock().unwrap().get(&place).cloned();
    known.unwrap_or_else(|| {
        let text =
            Text { arrives: 0, tokens: tokens.to_vec(), context: 1, tops: MOST_TOPS, samples: 0, cancelled: None };
        let (mut scored, _) = play(build(in_turn(), shape, roomy()), &[text], |_| {});
        let scored = Arc::new(scored.remove(0));
        KNOWN.lock().unwrap().insert(place, scored.clone());
        scored
    })
}

/// Each text was scored like the text alone; one that was cancelled, as far as it came.
fn assert_scores(shape: Shape, texts: &[Text], scored: &[Finish]) {
    for (text, scored) in texts.iter().zip(scored) {
        let expected = alone(shape, &text.tokens);
        let given = &text.tokens[text.context..];
        if scored.reason == FinishReason::Cancelled {
            assert!(text.cancelled.is_some());
        } else {
            assert_eq!((scored.reason.clone(), scored.tokens.len()), (FinishReason::Given, given.len()));
        }
        let from = text.context - 1;
        let upto = from + scored.tokens.len();
        assert_eq!(scored.tokens, given[..scored.tokens.len()]);
        assert_eq!(bits(scored.logprobs()), bits(&expected.logprobs()[from..upto]), "{text:?}");
        let tops = expected.records.tops()[from..upto].iter().map(|top| top[..text.tops].to_vec());
        assert_eq!(scored.records.tops(), if text.tops == 0 { Vec::new() } else { tops.collect() }, "{text:?}");
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Tokens whose keys and values somebody needs: of a text that is only scored, all but the last.
fn distinct_tokens(texts: &[Text]) -> u64 {
    let needed: Vec<&[TokenId]> =
        texts.iter().map(|text| &text.tokens[..text.tokens.len() - usize::from(text.samples == 0)]).collect();
    PromptTree::new(&needed[..]).distinct_tokens()
}

/// Step rows, branches, pages beside those of the longest text, pages in host memory.
fn corner() -> impl Strategy<Value = (usize, usize, usize, usize)> {
    (1..90usize, 1..20usize, 0..12usize, prop::sample::select(vec![0, 3, 1000]))
}

fn shapes() -> impl Strategy<Value = Shape> {
    prop::sample::select(vec![Shape::Full, Shape::Windowed, Shape::Hybrid, Shape::Latent])
}

/// Shapes of models whose branches can be cut anywhere: no state has to be computed again.
fn shapes_without_states() -> impl Strategy<Value = Shape> {
    prop::sample::select(vec![Shape::Full, Shape::Windowed, Shape::Latent])
}

/// In pools down to the smallest that hold one text, where branches are preempted and pages evicted.
fn whatever_comes_when_scores_are_those_of_the_text_alone(mode: Mode) {
    for_any((texts(12), corner(), shapes()), |(texts, (step_rows, max_branches, beside, swap), shape)| {
        let longest = texts.iter().map(|text| (text.tokens.len() + 3).div_ceil(PAGE_TOKENS)).max().unwrap_or(0);
        let facts = build(mode, shape, roomy()).1.facts().clone();
        let (pool, swap_bytes) = (room_for(&facts, longest + 4 + beside), swap * facts.page_bytes);
        let config = EngineConfig { step_rows, max_branches, pool, swap_bytes, ..EngineConfig::default() };
        let (scored, _) = play(build(mode, shape, config), &texts, |_| {});
        assert_scores(shape, &texts, &scored);
        Ok(())
    });
}

/// In a pool that holds them all.
fn what_texts_share_is_computed_once(mode: Mode) {
    for_any((texts(12), corner(), shapes_without_states()), |(texts, (step_rows, max_branches, ..), shape)| {
        let texts: Vec<Text> = texts.into_iter().map(|text| Text { cancelled: None, ..text }).collect();
        let config = EngineConfig { step_rows, max_branches, ..roomy() };
        let (scored, metrics) = play(build(mode, shape, config), &texts, |_| {});
        assert_scores(shape, &texts, &scored);
        // A sample that draws what another text goes on with has computed that token for it.
        let (computed, distinct) = (metrics.prompt_tokens_computed, distinct_tokens(&texts));
        prop_assert!(computed <= distinct, "{computed} of {distinct}");
        prop_assert!(distinct - computed <= metrics.tokens_sampled, "{computed} of {distinct}");
        prop_assert_eq!((metrics.tokens_discarded, metrics.tokens_recomputed), (0, 0));
        Ok(())
    });
}

/// Texts that are scored as a whole and alike: their rows are their distinct tokens, but for the last rows of those
/// that end where another text has been before.
fn no_token_is_scored_twice(mode: Mode) {
    for_any((texts(20), corner()), |(texts, (step_rows, max_branches, ..))| {
        let texts: Vec<Text> =
            texts.into_iter().map(|text| Text { cancelled: None, context: 1, tops: 1, samples: 0, ..text }).collect();
        let config = EngineConfig { step_rows, max_branches, ..roomy() };
        let (scored, metrics) = play(build(mode, Shape::Full, config), &texts, |_| {});
        assert_scores(Shape::Full, &texts, &scored);
        let (distinct, logical) = (distinct_tokens(&texts), texts.iter().map(|text| text.tokens.len() as u64 - 1));
        prop_assert_eq!(metrics.prompt_tokens_logical, logical.sum::<u64>());
        prop_assert!(
            metrics.rows >= distinct && metrics.rows < distinct + texts.len() as u64,
            "{} rows of {distinct} tokens",
            metrics.rows
        );
        Ok(())
    });
}

/// A few-shot prompt, questions below it, four choices of a token or of three each.
fn questions(n: u64, choice: usize) -> Vec<Text> {
    let shots = prompt(0, 90);
    let text = |(question, letter): (u64, u64)| Text {
        arrives: 0,
        tokens: [&shots[..], &prompt(1 + question, 20), &prompt(1000 + letter, choice)].concat(),
        context: 1,
        tops: 1,
        samples: 0,
        cancelled: None,
    };
    (0..n).flat_map(|question| (0..4).map(move |letter| (question, letter))).map(text).collect()
}

fn thousands_of_choices_behind_one_prompt_run_in_full_steps(mode: Mode) {
    for choice in [1, 3] {
        let texts = questions(300, choice);
        let config = EngineConfig { step_rows: 256, max_branches: 128, ..roomy() };
        let (scored, metrics) = play(build(mode, Shape::Full, config), &texts, |_| {});
        assert_scores(Shape::Full, &texts[..8], &scored[..8]);
        let distinct = distinct_tokens(&texts);
        assert_eq!(metrics.prompt_tokens_computed, distinct, "choices of {choice} tokens");
        // Where texts part, the last row of what they share is asked for again by those that come in a later step.
        assert!(metrics.rows as f64 <= 1.05 * distinct as f64, "{} rows of {distinct} tokens", metrics.rows);
        // One for the prompt's tokens and each question's, and for each choice's.
        let logits = 90 + 300 * (20 + 4 * choice as u64);
        assert!(metrics.steps <= logits / 256 + 4, "{} steps for {logits} logits", metrics.steps);
        assert!(metrics.scores_reused > 9 * metrics.rows, "{} scores are taken over", metrics.scores_reused);
    }
}

fn a_text_that_was_sampled_is_scored_by_one_row(mode: Mode) {
    let (mut engine, handle) = build(mode, Shape::Full, roomy());
    let branch = handle.root(prompt(1, 20)).unwrap();
    let tops = SamplingParams { top_logprobs: Some(3), repetition_penalty: 1.3, temperature: 0.7, ..params() };
    let mut ended = |extend| {
        let mut extension = handle.start(vec![extend]).unwrap();
        while engine.turn().unwrap() == Turn::Stepped {}
        loop {
            match extension.poll(Duration::ZERO) {
                Poll::Ready(Some(Event::Tokens { .. })) => {}
                Poll::Ready(Some(Event::Finished { finish, .. })) => return (finish, engine.metrics().rows),
                other => panic!("{other:?}"),
            }
        }
    };
    let (sampled, before) = ended(draw(branch, key("item", 0), tops, length(30)));
    let again = handle.root(prompt(1, 20)).unwrap();
    let (scored, after) = ended(Extend::given(again, sampled.tokens.clone(), Some(2)));
    assert_eq!(bits(scored.logprobs()), bits(sampled.logprobs()));
    assert!(
        scored.records.tops().iter().zip(sampled.records.tops()).all(|(scored, sampled)| scored[..] == sampled[..2])
    );
    assert_eq!(after, before + 1, "only the last token's score needs a row: nothing was sampled after it");
    // With the last token but one as the end, no row is needed.
    let (twice, last) = (handle.root(prompt(1, 20)).unwrap(), Extend::given(again, Vec::new(), None));
    let (short, rows) = ended(Extend::given(twice, sampled.tokens[..29].to_vec(), Some(0)));
    assert_eq!((bits(short.logprobs()), rows), (bits(&sampled.logprobs()[..29]), after));
    assert_eq!(ended(last).1, after);
    // More of the likeliest tokens than were kept.
    let wider = handle.root(prompt(1, 20)).unwrap();
    let (wider, rows) = ended(Extend::given(wider, sampled.tokens.clone(), Some(5)));
    assert_eq!((bits(wider.logprobs()), rows), (bits(sampled.logprobs()), after + 30));
    assert_eq!(wider.records.tops()[7][..3], sampled.records.tops()[7]);
}

/// A branch whose scores another one is to compute scores for itself when that one is cancelled.
fn a_cancelled_twin_leaves_nobody_behind(mode: Mode) {
    for after in 0..6 {
        let mut texts = questions(1, 5);
        texts[0].cancelled = Some(after);
        texts[1].cancelled = Some(after + 1);
        let config = EngineConfig { step_rows: 32, ..roomy() };
        let (scored, _) = play(build(mode, Shape::Full, config), &texts, |_| {});
        assert_scores(Shape::Full, &texts, &scored);
        assert!(scored[2..].iter().all(|finish| finish.reason == FinishReason::Given));
    }
}

fn more_tops_than_the_vocabulary_has_tokens_are_all_of_them(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(1, 3)).unwrap();
    let all = finish(&engine, Extend::given(root, prompt(2, 4), Some(2 * VOCAB as usize)));
    assert!(all.records.tops().iter().all(|top| top.len() == VOCAB as usize));
}

in_modes! {
    in_turn, run_ahead:
    whatever_comes_when_scores_are_those_of_the_text_alone,
    what_texts_share_is_computed_once,
    no_token_is_scored_twice,
    thousands_of_choices_behind_one_prompt_run_in_full_steps,
    a_text_that_was_sampled_is_scored_by_one_row,
    a_cancelled_twin_leaves_nobody_behind,
    more_tops_than_the_vocabulary_has_tokens_are_all_of_them,
}
