//! Samples in a form: the same draws as a plain loop that masks each token, however the engine joins forced tokens,
//! runs ahead, preempts or forks; and how such samples end.

use std::collections::HashSet;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use offshoot_backend::{Filters, Pick, SampleRequest, SampledToken, StepBatch};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Event, Extend, Finish, FinishReason, LogprobsMode, Records, RootOptions,
    SamplingParams, Stop,
};
use offshoot_form::{Form, FormBegin, FormCompiler, FormState, Forms, SampleForm, StateMask};
use serde_json::json;

use super::bench::{
    EOS, Mode, Shape, VOCAB, decoder, draw, finish, finishes, give, in_turn, key, outcomes, pages, params, prompt,
    replicas, roomy, run_ahead, tokenizer,
};
use super::plain::forward_with;
use super::runner::{Watch, Watched};
use super::world::World;

/// Forms of a few tokens each, of which many are forced: the model's tokens are bytes.
pub fn forms() -> Vec<Form> {
    let schema = json!({
        "type": "object", "required": ["kind", "size"], "additionalProperties": false,
        "properties": {
            "kind": { "enum": ["red", "green", "greenish"] },
            "size": { "type": "integer", "minimum": 0, "maximum": 120 }
        },
        "x-guidance": { "whitespace_flexible": false }
    });
    vec![
        Form::Json(schema),
        Form::Regex("(abc|abd)+z?".to_owned()),
        Form::Regex("answer: [0-9]{1,3}!".to_owned()),
        Form::Choice(vec!["yes".to_owned(), "yesterday".to_owned(), "no".to_owned(), "täglich".to_owned()]),
        Form::Lark("start: \"<\" part (\"|\" part)* \">\"\npart: /[a-c]{1,4}/".to_owned()),
    ]
}

fn recorded(params: SamplingParams) -> SamplingParams {
    let records = Records { drawn: true, kept_ids: true, entropy: true, confidence: NonZeroU16::new(7) };
    SamplingParams { top_logprobs: Some(3), records, logprobs_mode: LogprobsMode::ProcessedLogprobs, ..params }
}

/// What a form allows, asked without an engine.
struct Asked {
    forms: Forms,
    state: FormState,
}

impl Asked {
    fn new(form: &SampleForm) -> Self {
        let compiler = FormCompiler::new(tokenizer(), vec![EOS], VOCAB as usize);
        let state = FormState::begin(compiler.compile(&form.form).unwrap(), &form.begin);
        Asked { forms: Forms::new(1), state }
    }

    fn mask(&mut self) -> Arc<StateMask> {
        self.forms.masks(&mut [&mut self.state]).remove(0).unwrap()
    }
}

/// The definition: each token from a fresh forward over the whole sequence, under the mask of its place.
fn plain_loop(shape: Shape, before: &[TokenId], item: &str, params: &SamplingParams, most: usize) -> Vec<SampledToken> {
    let mut asked = Asked::new(params.form.as_ref().expect("it has a form"));
    let (mut tokens, mut all) = (before.to_vec(), Vec::new());
    while all.len() < most {
        let mask = asked.mask();
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = *params;
        let uniform = key(item, 0).uniform(u32::try_from(tokens.len()).unwrap());
        let pick = match temperature > 0.0 {
            true => Pick::Random { filters: Filters { temperature, top_k, top_p, min_p }, uniform },
            false => Pick::Greedy,
        };
        let request = SampleRequest {
            allowed: mask.allowed.clone(),
            top_logprobs: params.top_logprobs,
            top_of: offshoot_backend::Distribution::Drawn,
            records: params.records,
            ..SampleRequest::of(pick)
        };
        let sampled = forward_with(shape, &tokens, vec![request]).remove(0).expect("the form leaves a token");
        let sampled = SampledToken { forced: mask.forced.is_some(), ..sampled };
        let token = sampled.token;
        all.push(sampled);
        if token == EOS {
            break;
        }
        asked.state.push(token);
        tokens.push(token);
    }
    all
}

fn all_of(finish: &Finish) -> Vec<SampledToken> {
    finish.sampled_records().map(SampledToken::from).collect()
}

fn samples_in_a_form_are_those_of_a_plain_loop(mode: Mode) {
    for shape in [Shape::Full, Shape::Hybrid, Shape::Latent] {
        for joins_forced in [true, false] {
            let engine = mode.engine_of(shape, EngineConfig { joins_forced, ..roomy() });
            let root = engine.root(prompt(3, 18)).unwrap();
            for (number, form) in (0..).zip(forms()) {
                let params = if number == 1 { SamplingParams::greedy() } else { params() };
                let params = recorded(params).form(form);
                let branch = engine.fork(root, 1).unwrap()[0];
                let found = finish(&engine, draw(branch, key("item", 0), params.clone(), Stop::max_tokens(24)));
                let expected = plain_loop(shape, &prompt(3, 18), "item", &params, 24);
                assert_eq!(all_of(&found), expected, "{shape:?}, {params:?}");
                for drawn in
                    expected.iter().filter(|sampled| sampled.forced).filter_map(|sampled| sampled.drawn.as_ref())
                {
                    assert_eq!((drawn.logprob, drawn.kept), (0.0, 1), "no other is allowed");
                }
            }
            let metrics = engine.metrics().unwrap();
            assert!(metrics.tokens_forced > 20, "{} of {}", metrics.tokens_forced, metrics.tokens_sampled);
        }
    }
}

fn forced_tokens_take_few_steps(mode: Mode) {
    let steps = |joins_forced| {
        let engine = mode.engine(EngineConfig { joins_forced, ..roomy() });
        let root = engine.root(prompt(3, 18)).unwrap();
        let params = params().form(Form::Regex("this is the only text there is: [01]".to_owned()));
        let told = finish(&engine, draw(root, key("item", 0), params, Stop::max_tokens(50)));
        assert_eq!((told.reason, told.tokens.len()), (FinishReason::EndOfText, 33));
        let forced = told.records.forced();
        assert_eq!(forced, [vec![true; 32], vec![false]].concat(), "{:?}", told.text);
        engine.metrics().unwrap().steps
    };
    assert!(steps(true) < 8 && steps(false) > 30, "{} and {}", steps(true), steps(false));
}

/// Forks at every token, and the same beginning as a root of its own: all go on as the whole sample did.
fn a_sample_goes_on_in_its_form_from_every_token(mode: Mode) {
    let engine = mode.engine(roomy());
    for form in forms() {
        let form = SampleForm::from(form);
        let params = recorded(params()).form(form.clone());
        let root = engine.root(prompt(3, 18)).unwrap();
        let branch = engine.fork(root, 1).unwrap()[0];
        let whole = finish(&engine, draw(branch, key("item", 0), params.clone(), Stop::max_tokens(30)));
        let whole_records = all_of(&whole);
        let branch = engine.fork(root, 1).unwrap()[0];
        for cut in 1..whole.tokens.len() {
            let next = finish(&engine, draw(branch, key("item", 0), params.clone(), Stop::max_tokens(1)));
            assert_eq!(next.tokens, whole.tokens[cut - 1..cut]);
            let forks = engine.fork(branch, 2).unwrap();
            let tokens = [prompt(3, 18), whole.tokens[..cut].to_vec()].concat();
            let again = engine.root_in_form(tokens, RootOptions::default(), &form, cut).unwrap();
            let rest = Stop::max_tokens(30 - cut);
            let go_on = |branch: BranchId| draw(branch, key("item", 0), params.clone(), rest.clone());
            for finish in finishes(&engine, [forks[0], forks[1], again].map(go_on).to_vec()) {
                assert_eq!(all_of(&finish), whole_records[cut..], "{:?} cut at {cut}", whole.text);
                assert_eq!(finish.reason, whole.reason);
            }
        }
        engine.prune(&[root, branch]);
    }
}

/// Another form, or given tokens, begin a form anew; and so does the same one once its text has ended.
fn a_form_begins_anew_behind_its_end(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let choice = |texts: &[&str]| params().form(Form::Choice(texts.iter().map(|&text| text.to_owned()).collect()));
    let text = |branch, params: &SamplingParams, most: usize| {
        let finish = finish(&engine, draw(branch, key("item", 0), params.clone(), Stop::max_tokens(most)));
        (finish.text, finish.reason)
    };
    let ended = FinishReason::EndOfText;
    let branch = engine.fork(root, 1).unwrap()[0];
    let (one, other) = (choice(&["abcd"]), choice(&["wxyz"]));
    assert_eq!(text(branch, &one, 2), ("ab".to_owned(), FinishReason::Length));
    assert_eq!(text(branch, &one, 9), ("cd".to_owned(), ended.clone()));
    assert_eq!(text(branch, &one, 2), ("ab".to_owned(), FinishReason::Length), "its text had ended");
    assert_eq!(text(branch, &other, 9), ("wxyz".to_owned(), ended.clone()), "another form");
    assert_eq!(text(branch, &one, 2), ("ab".to_owned(), FinishReason::Length));
    finish(&engine, give(branch, prompt(5, 3)));
    assert_eq!(text(branch, &one, 9), ("abcd".to_owned(), ended.clone()), "other tokens were between");
    assert_eq!(text(branch, &one, 2), ("ab".to_owned(), FinishReason::Length));
    finish(&engine, draw(branch, key("free", 0), params().allowed([TokenId(97)]), super::bench::length(2)));
    assert_eq!(text(branch, &one, 9), ("abcd".to_owned(), ended.clone()), "free ones were between");
    let form = one.form.clone().map(|form| SampleForm { ends_with_extend: true, ..form });
    let once = SamplingParams { form, ..one };
    assert_eq!(text(branch, &once, 2), ("ab".to_owned(), FinishReason::Length));
    assert_eq!(text(branch, &once, 9), ("abcd".to_owned(), ended), "it ended with the extend");
    // Whether its text is complete is told all the same.
    let told = |most| finish(&engine, draw(branch, key("item", 0), once.clone(), Stop::max_tokens(most))).form_ended;
    assert_eq!((told(2), told(9)), (false, true));
}

/// A stop token of the extend alone that is kept behind the complete text ends the form; one that the form allows does
/// not. An engine that takes a branch over after that knows it, too.
#[test]
fn a_kept_stop_token_ends_the_form_for_every_engine() {
    let world = World::new(Shape::Full);
    let (engine, mut switches) = world.engines_to_lose(replicas(), roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let branches = engine.fork(root, 6).unwrap();
    let end = TokenId(u32::from(b'Z'));
    let only = params().form(Form::Choice(vec!["abcd".to_owned()]));
    let included = |token| Stop { include_stop: true, tokens: vec![token], ..Stop::max_tokens(9) };
    let extend = |params: &SamplingParams, stop: &Stop| -> Vec<Finish> {
        let extend = |(i, &branch)| draw(branch, key("item", i), params.clone(), stop.clone());
        finishes(&engine, (0..).zip(&branches).map(extend).collect())
    };
    let inside = TokenId(u32::from(b'b'));
    for told in extend(&only, &included(inside)) {
        assert_eq!((&*told.text, told.reason, told.form_ended), ("ab", FinishReason::StopToken(inside), false));
    }
    let biased = SamplingParams { logit_bias: vec![(end, 1e4)], ..only.clone() };
    for told in extend(&biased, &included(end)) {
        assert_eq!((told.tokens.len(), told.reason, told.form_ended), (3, FinishReason::StopToken(end), true));
    }
    switches.remove(0).end();
    for told in extend(&only, &Stop::max_tokens(2)) {
        assert_eq!((&*told.text, told.reason, told.form_ended), ("ab", FinishReason::Length, false));
    }
    for told in extend(&only, &Stop::max_tokens(9)) {
        assert_eq!((&*told.text, told.reason, told.form_ended), ("cd", FinishReason::EndOfText, true));
    }
}

/// Where a form begins is what the first of its extends said: a later one that says another place goes on all the same.
#[test]
fn an_unfinished_form_goes_on_wherever_the_next_extend_would_begin_it() {
    let engine = run_ahead().engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let form = Arc::new(Form::Choice(vec!["abcd".to_owned()]));
    let begins = [FormBegin::BehindReasoning { open: None, close: "}".to_owned() }, FormBegin::AtOnce];
    let [behind, at_once] =
        begins.map(|begin| params().form(SampleForm { form: form.clone(), begin, ends_with_extend: false }));
    let close = TokenId(u32::from(b'}'));
    let behind = SamplingParams { logit_bias: vec![(close, 1e4)], ..behind };
    let told = finish(&engine, draw(root, key("item", 0), behind, Stop::max_tokens(3)));
    assert_eq!((&*told.text, told.reason), ("}ab", FinishReason::Length));
    let told = finish(&engine, draw(root, key("item", 0), at_once, Stop::max_tokens(9)));
    assert_eq!((&*told.text, told.reason), ("cd", FinishReason::EndOfText));
}

/// Scoring a text in its form goes along it with one matcher, however many of its positions a step has.
#[test]
fn a_scored_text_is_matched_once() {
    let params = recorded(params()).form(Form::Regex("(alpha|beta|gamma){40}".to_owned()));
    let stop = Stop::max_tokens(150);
    let engine = in_turn().engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let branches = engine.fork(root, 3).unwrap();
    let extend = |(i, &branch)| draw(branch, key("item", i), params.clone(), stop.clone());
    let drawn = finishes(&engine, (0..).zip(&branches).map(extend).collect());
    for mode in [in_turn(), run_ahead()] {
        let engine = mode.engine(roomy());
        let root = engine.root(prompt(3, 18)).unwrap();
        let branches = engine.fork(root, 3).unwrap();
        let extend = |(drawn, &branch): (&Finish, &BranchId)| {
            Extend::given_as_sampled(branch, drawn.tokens.clone(), &params, &stop)
        };
        let scored = finishes(&engine, drawn.iter().zip(&branches).map(extend).collect());
        for (scored, drawn) in scored.iter().zip(&drawn) {
            assert_eq!(scored.records.forced(), drawn.records.forced());
        }
        let metrics = engine.metrics().unwrap();
        assert!(metrics.masks_requested > 200, "{}", metrics.masks_requested);
        assert!(metrics.matchers_replayed <= 3, "{} for 3 texts", metrics.matchers_replayed);
    }
}

/// Behind the token that a form does not allow, nothing is: the records say so, and the form is not gone through again.
#[test]
fn a_scored_text_may_leave_its_form() {
    let params = recorded(params()).form(Form::Regex("(abc){60}".to_owned()));
    let given: Vec<TokenId> = "abcabcab-abcabc".bytes().map(|byte| TokenId(u32::from(byte))).collect();
    for mode in [in_turn(), run_ahead(), replicas()] {
        let engine = mode.engine(roomy());
        let root = engine.root(prompt(3, 18)).unwrap();
        let scored = finish(&engine, Extend::given_as_sampled(root, given.clone(), &params, &Stop::max_tokens(99)));
        let drawn: Vec<(f32, u32)> =
            scored.records.drawn().iter().flatten().map(|drawn| (drawn.logprob, drawn.kept)).collect();
        let (inside, outside) = ((0.0, 1), (f32::NEG_INFINITY, 0));
        assert_eq!(drawn[..8], [inside; 8]);
        assert_eq!(drawn[8], (f32::NEG_INFINITY, 1));
        assert_eq!(drawn[9..], [outside; 6]);
        // Where the form allows nothing there is nothing that could be drawn, in no field; what the model thinks of
        // the tokens is told all the same.
        for (at, drawn) in scored.records.drawn().iter().flatten().enumerate() {
            let ids = drawn.ids.as_ref().expect("they are asked for");
            assert_eq!(ids.len(), if at < 9 { 1 } else { 0 });
            assert_eq!(drawn.lowest == f32::INFINITY, at >= 9);
            assert_eq!(scored.records.tops()[at].iter().filter(|top| top.1.is_finite()).count(), ids.len());
        }
        assert!(scored.records.entropies().iter().flatten().all(|entropy| entropy.is_finite()));
        assert_eq!(scored.records.entropies().len(), given.len());
        assert_eq!(scored.records.forced(), [[true; 8].as_slice(), &[false; 7]].concat());
        assert!(scored.logprobs().iter().all(|logprob| logprob.is_finite()), "the model's own");
        let metrics = engine.metrics().unwrap();
        assert!(metrics.matchers_replayed <= 1, "{}", metrics.matchers_replayed);
    }
}

/// Where a form takes too much work, its samples end with what they have, and say why; others go on.
fn a_form_beyond_its_limit_ends_its_own_samples(mode: Mode) {
    for joins_forced in [true, false] {
        let engine = mode.engine(EngineConfig { joins_forced, ..roomy() });
        let root = engine.root(prompt(3, 18)).unwrap();
        let branches = engine.fork(root, 6).unwrap();
        let beyond = recorded(params()).form(Form::Lark(offshoot_fixtures::costly_grammar()));
        let others = [params(), params().form(forms().remove(1))];
        let extend = |(i, &branch): (u64, &BranchId)| {
            let params = if i % 2 == 0 { &beyond } else { &others[(i / 2 % 2) as usize] };
            draw(branch, key("item", i), params.clone(), Stop::max_tokens(24))
        };
        let found = finishes(&engine, (0..).zip(&branches).map(extend).collect());
        for ((i, branch), found) in (0..).zip(&branches).zip(found) {
            match i % 2 {
                0 => {
                    assert_eq!((&*found.text, found.reason, found.form_ended), ("abc", FinishReason::FormLimit, false));
                    assert_eq!(found.records.forced(), [true; 3]);
                    // Whoever goes on in it is told the same.
                    let on = finish(&engine, draw(*branch, key("on", 0), beyond.clone(), Stop::max_tokens(9)));
                    assert_eq!((on.tokens.len(), on.reason), (0, FinishReason::FormLimit));
                }
                _ => {
                    let quiet = in_turn().engine(roomy());
                    let root = quiet.root(prompt(3, 18)).unwrap();
                    assert_eq!(found, finish(&quiet, extend((i, &root))));
                }
            }
        }
        // What is given and scored as if it were sampled has no end of its own.
        let given = "abcq".bytes().map(|byte| TokenId(u32::from(byte))).collect();
        let scored = Extend::given_as_sampled(root, given, &beyond, &Stop::max_tokens(9));
        let error = outcomes(&engine, vec![scored]).remove(0).expect_err("its masks are not known").to_string();
        assert!(error.starts_with("a text's form: expected one that is found within the limits of work"), "{error}");
    }
}

fn samples_end_as_their_form_and_their_stops_say(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let told = |params: SamplingParams, stop: Stop| {
        let branch = engine.fork(root, 1).unwrap()[0];
        let told = finish(&engine, draw(branch, key("item", 0), params, stop));
        assert_eq!(told.tokens.len(), told.records.len(), "a record for each token");
        // What follows goes on from the tokens that were told, and no others.
        let on = finish(&engine, draw(branch, key("on", 0), self::params(), super::bench::length(4)));
        let again = engine.root([prompt(3, 18), told.tokens.clone()].concat()).unwrap();
        assert_eq!(on, finish(&engine, draw(again, key("on", 0), self::params(), super::bench::length(4))));
        (told.text, told.reason)
    };
    let only = |text: &str| params().form(Form::Choice(vec![text.to_owned()]));
    let text = |text: &str| text.to_owned();
    // Ends that are banned: the text is complete all the same.
    let long = Stop { min_tokens: 20, ..Stop::max_tokens(40) };
    assert_eq!(told(only("only this"), long), (text("only this"), FinishReason::EndOfText));
    let ignoring = Stop { ignore_eos: true, ..Stop::max_tokens(40) };
    assert_eq!(told(only("only this"), ignoring), (text("only this"), FinishReason::EndOfText));
    let included = Stop { include_stop: true, ..Stop::max_tokens(40) };
    assert_eq!(told(only("only this"), included).1, FinishReason::EndOfText);
    // A stop token is allowed where the text may end, and ends it where the form has it.
    let (at, end) = (TokenId(u32::from(b'y')), TokenId(200));
    let biased = SamplingParams { logit_bias: vec![(end, 50.0)], ..only("only this") };
    let stopped = told(biased.clone(), Stop { tokens: vec![end], ..Stop::max_tokens(40) });
    assert_eq!(stopped, (text("only this"), FinishReason::StopToken(end)));
    let stopped = told(biased, Stop { tokens: vec![end, at], ..Stop::max_tokens(40) });
    assert_eq!(stopped, (text("onl"), FinishReason::StopToken(at)));
    // In the middle of a run of forced tokens.
    for most in 1..9 {
        assert_eq!(told(only("only this"), Stop::max_tokens(most)), (text(&"only this"[..most]), FinishReason::Length));
    }
    let stop_string = FinishReason::StopString(text("y t"));
    assert_eq!(told(only("only this"), Stop::max_tokens(40).at("y t")), (text("onl"), stop_string));
    // Bans that leave nothing.
    let banned = only("only this").bad_word([TokenId(u32::from(b'y'))]);
    assert_eq!(told(banned, Stop::max_tokens(40)), (text("onl"), FinishReason::DeadEnd));
    let banned = only("only this").bad_word("ly".bytes().map(|byte| TokenId(u32::from(byte))));
    assert_eq!(told(banned, Stop::max_tokens(40)), (text("onl"), FinishReason::DeadEnd));
    let away = SamplingParams { logit_bias: vec![(at, f32::NEG_INFINITY)], ..only("only this") };
    assert_eq!(told(away, Stop::max_tokens(40)), (text("onl"), FinishReason::DeadEnd));
    let few = only("only this").allowed("onl".bytes().map(|byte| TokenId(u32::from(byte))).chain([EOS]));
    assert_eq!(told(few, Stop::max_tokens(40)), (text("onl"), FinishReason::DeadEnd));
}

/// Cancelled at any moment: path and records are of equal length, and the sample goes on as if it had not been.
fn a_sample_in_a_form_may_be_cancelled_at_any_moment(mode: Mode) {
    let engine = mode.engine(roomy());
    let quiet = in_turn().engine(roomy());
    let long = Form::Regex("(alpha|beta){6} and then some more (one|two){5}".to_owned());
    let params = params().form(long);
    let stop = Stop::max_tokens(90);
    let root = engine.root(prompt(3, 18)).unwrap();
    let whole = |i: u64| {
        let root = quiet.root(prompt(3, 18)).unwrap();
        finish(&quiet, draw(root, key("item", i), params.clone(), stop.clone()))
    };
    let expected: Vec<Finish> = (0..4).map(whole).collect();
    for events in 0..20 {
        let branches = engine.fork(root, 4).unwrap();
        let extend = |(i, &branch)| draw(branch, key("item", i), params.clone(), stop.clone());
        let mut extension = engine.start((0..).zip(&branches).map(extend).collect()).unwrap();
        let mut ended: Vec<Option<Finish>> = vec![None; 4];
        for at in 0.. {
            if at == 5 * events {
                extension.cancel_all();
            }
            let Some(event) = extension.next() else { break };
            let place = branches.iter().position(|&branch| branch == event.id()).unwrap();
            if let Event::Finished { finish, .. } = event {
                ended[place] = Some(finish);
            }
        }
        let cut: Vec<Finish> = ended.into_iter().map(|finish| finish.expect("it ends")).collect();
        let rest = finishes(&engine, (0..).zip(&branches).map(extend).collect());
        for ((cut, rest), whole) in cut.into_iter().zip(rest).zip(&expected) {
            assert_eq!(cut.tokens.len(), cut.records.len());
            match cut.reason {
                FinishReason::Cancelled => assert_eq!(cut.followed_by(rest).tokens, whole.tokens),
                _ => assert_eq!(&cut, whole),
            }
        }
        engine.release(&branches);
    }
}

/// Siblings in one state share a mask, and preempted ones find theirs again.
#[test]
fn masks_are_computed_once_for_each_state() {
    let engine = run_ahead().engine(EngineConfig { joins_forced: false, ..roomy() });
    let root = engine.root(prompt(3, 18)).unwrap();
    let params = params().form(forms().remove(0));
    let branches = engine.fork(root, 12).unwrap();
    // Three samples, four times each.
    let extend =
        |(i, &branch): (u64, &BranchId)| draw(branch, key("item", i % 3), params.clone(), Stop::max_tokens(60));
    let finishes = finishes(&engine, (0..).zip(&branches).map(extend).collect());
    let states: HashSet<&[TokenId]> = finishes
        .iter()
        .flat_map(|finish| (0..finish.sampled()).map(|tokens| &finish.tokens[..tokens.min(finish.tokens.len())]))
        .collect();
    let sampled: usize = finishes.iter().map(Finish::sampled).sum();
    let metrics = engine.metrics().unwrap();
    // A branch that ends is found out after a mask more was asked for, at most.
    assert!(metrics.masks_computed <= states.len() as u64, "{} for {} states", metrics.masks_computed, states.len());
    assert_eq!(metrics.masks_computed + metrics.masks_shared, metrics.masks_requested);
    assert_eq!(metrics.masks_requested, sampled as u64);
}

/// What ends reasoning is found in the sample, and the form begins behind it.
fn a_form_may_begin_behind_reasoning(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let begin = FormBegin::BehindReasoning { open: None, close: "}".to_owned() };
    let form = SampleForm { begin, ..Form::Choice(vec!["yes".to_owned(), "no".to_owned()]).into() };
    let close = TokenId(u32::from(b'}'));
    let params = SamplingParams { logit_bias: vec![(close, 1.5)], ..params() }.form(form);
    for i in 0..6 {
        let branch = engine.fork(root, 1).unwrap()[0];
        let told = finish(&engine, draw(branch, key("item", i), params.clone(), Stop::max_tokens(120)));
        let at = told.tokens.iter().position(|&token| token == close).expect("it is likely");
        let answer = &told.tokens[at + 1..];
        let text: String = answer.iter().map(|token| char::from(token.0 as u8)).collect();
        assert!(["yes", "no"].contains(&&*text), "{text:?}");
        assert_eq!(told.reason, FinishReason::EndOfText);
        assert!(!told.tokens.contains(&EOS));
    }
}

/// A form that can't be compiled is refused when the extend is requested, before anything runs.
#[test]
fn a_form_that_cannot_be_is_an_error_at_once() {
    let engine = in_turn().engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let of = |form: Form| draw(root, key("item", 0), params().form(form), Stop::max_tokens(9));
    let error = |engine: &EngineHandle, form: Form| match engine.start(vec![of(form)]) {
        Ok(_) => panic!("it is no form"),
        Err(error) => error.to_string(),
    };
    let message = error(&engine, Form::Regex("(a".to_owned()));
    assert!(message.starts_with("regular expression"), "{message}");
    assert!(engine.compile_form(&Arc::new(Form::Regex("(a".to_owned()))).is_err());
    assert!(engine.compile_form(&Arc::new(Form::Regex("a".to_owned()))).unwrap().is_some());
    assert_eq!(engine.metrics().unwrap().steps, 0);
    let (backend, decoder) = decoder(Shape::Full);
    let bare = Engine::start(decoder.on(backend), None, roomy()).unwrap();
    let message = error(&bare, Form::Regex("a".to_owned()));
    assert!(message.contains("there is no tokenizer"), "{message}");
}

/// A device that has no memory for masks: what samples in a form fails, the others go on.
#[derive(Clone)]
struct Refuses {
    refused: Arc<AtomicBool>,
    seen: Arc<Mutex<usize>>,
}

impl Watch for Refuses {
    fn see(&mut self, _: &StepBatch) {}

    fn see_requests(&mut self, requests: &[SampleRequest]) -> Result<()> {
        let mut seen = self.seen.lock().unwrap();
        *seen += 1;
        let has_masks = requests.iter().any(|request| request.allowed.is_some());
        match *seen >= 4 && has_masks {
            true => {
                self.refused.store(true, Ordering::Relaxed);
                Err(Error::DeviceMemory { device: "a device".to_owned(), asked: Some(8), free: 0, total: 1 })
            }
            false => Ok(()),
        }
    }
}

#[test]
fn without_memory_for_masks_only_samples_in_forms_fail() {
    for run_ahead in [false, true] {
        let (backend, decoder) = decoder(Shape::Full);
        let watch = Refuses { refused: Arc::default(), seen: Arc::default() };
        let model = Box::new(Watched { model: decoder.on(backend), watch: watch.clone() });
        let config = EngineConfig { check_plans: true, run_ahead, ..roomy() };
        let engine = Engine::start(model, Some(tokenizer()), config).unwrap();
        let root = engine.root(prompt(3, 18)).unwrap();
        let branches = engine.fork(root, 6).unwrap();
        let extend = |(i, &branch): (u64, &BranchId)| {
            let params = if i % 2 == 0 { params() } else { params().form(forms().remove(1)) };
            draw(branch, key("item", i), params, super::bench::length(12))
        };
        let found = outcomes(&engine, (0..).zip(&branches).map(extend).collect());
        assert!(watch.refused.load(Ordering::Relaxed));
        let quiet = in_turn().engine(roomy());
        for ((i, &branch), outcome) in (0..).zip(&branches).zip(found) {
            match i % 2 {
                0 => {
                    let root = quiet.root(prompt(3, 18)).unwrap();
                    let expected = finish(&quiet, draw(root, key("item", i), params(), super::bench::length(12)));
                    assert_eq!(outcome.unwrap(), expected, "branch {branch}");
                }
                _ => assert!(outcome.expect_err("there is no memory for its mask").is_shortage()),
            }
        }
        engine.prune(&branches);
        engine.prune(&[root]);
        assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
    }
}

/// A device that is lost while the engine asks forms for their masks.
struct Breaks;

impl Watch for Breaks {
    fn see_requests(&mut self, _: &[SampleRequest]) -> Result<()> {
        Err(Error::Internal("the device is gone".to_owned()))
    }
}

#[test]
fn a_device_that_is_lost_before_it_has_its_requests_ends_the_engine() {
    for run_ahead in [false, true] {
        let (backend, decoder) = decoder(Shape::Full);
        let model = Box::new(Watched { model: decoder.on(backend), watch: Breaks });
        let config = EngineConfig { check_plans: true, run_ahead, ..roomy() };
        let engine = Engine::start(model, Some(tokenizer()), config).unwrap();
        let root = engine.root(prompt(3, 18)).unwrap();
        let branches = engine.fork(root, 2).unwrap();
        let formed = draw(branches[0], key("item", 0), params().form(forms().remove(1)), Stop::max_tokens(9));
        let free = draw(branches[1], key("item", 1), params(), Stop::max_tokens(9));
        for outcome in outcomes(&engine, vec![formed, free]) {
            let message = outcome.expect_err("its engine has ended").to_string();
            assert!(message.contains("the device is gone"), "{message}");
        }
    }
}

/// A device that samples another token than the only one that a form allows.
struct Errs;

impl Watch for Errs {
    fn change(&mut self, sampled: &mut [Option<SampledToken>]) {
        let is_at = |sampled: &&mut SampledToken| sampled.token == TokenId(u32::from(b'y'));
        sampled.iter_mut().flatten().filter(is_at).for_each(|sampled| sampled.token = TokenId(u32::from(b'x')));
    }
}

#[test]
fn a_device_that_samples_no_forced_token_fails_the_sample() {
    for run_ahead in [false, true] {
        let (backend, decoder) = decoder(Shape::Full);
        let model = Box::new(Watched { model: decoder.on(backend), watch: Errs });
        let config = EngineConfig { check_plans: true, run_ahead, ..roomy() };
        let engine = Engine::start(model, Some(tokenizer()), config).unwrap();
        let branch = engine.root(prompt(3, 18)).unwrap();
        let only = params().form(Form::Choice(vec!["only this".to_owned()]));
        let error = outcomes(&engine, vec![draw(branch, key("item", 0), only, Stop::max_tokens(20))]).remove(0);
        let message = error.expect_err("its record would be of another token").to_string();
        assert!(message.contains("sampled token 120 where a form allows 121 alone"), "{message}");
        // The engine goes on.
        let other = params().form(Form::Choice(vec!["another".to_owned()]));
        assert_eq!(finish(&engine, draw(branch, key("item", 1), other, Stop::max_tokens(20))).text, "another");
    }
}

/// Where one of several engines is lost, another one goes on in the form behind what was said.
#[test]
fn a_sample_goes_on_in_its_form_on_another_engine() {
    let world = World::new(Shape::Full);
    let form = Form::Regex("(alpha|beta|gamma){40}".to_owned());
    let params = recorded(params()).form(form);
    let stop = Stop::max_tokens(150);
    let alone = world.engine(in_turn(), roomy());
    let extends = |engine: &EngineHandle| -> Vec<Extend> {
        let root = engine.root(prompt(3, 18)).unwrap();
        let branches = engine.fork(root, 6).unwrap();
        let extend = |(i, &branch)| draw(branch, key("item", i), params.clone(), stop.clone());
        (0..).zip(&branches).map(extend).collect()
    };
    let expected = finishes(&alone, extends(&alone));
    for events in [3, 50, 200] {
        let (engine, mut switches) = world.engines_to_lose(replicas(), roomy());
        let extends = extends(&engine);
        let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
        let mut extension = engine.start(extends).unwrap();
        let mut found: Vec<Option<Finish>> = vec![None; branches.len()];
        for at in 0.. {
            if at == events || at == 2 * events {
                switches.remove(0).end();
            }
            match extension.next() {
                None => break,
                Some(Event::Tokens { .. }) => {}
                Some(Event::Failed { error, .. }) => panic!("{error}"),
                Some(Event::Finished { id, finish }) => {
                    found[branches.iter().position(|&branch| branch == id).unwrap()] = Some(finish);
                }
            }
        }
        for (found, expected) in found.into_iter().zip(&expected) {
            let found = found.expect("it ends");
            assert_eq!((all_of(&found), &found.reason), (all_of(expected), &expected.reason), "{events}");
        }
    }
}

/// Preempted and swapped branches go on in their forms.
#[test]
fn preempted_samples_keep_their_place() {
    let params = recorded(params()).form(Form::Regex("(alpha|beta|gamma){20}".to_owned()));
    let story = |config: EngineConfig| {
        let engine = run_ahead().engine(config);
        let root = engine.root(prompt(3, 18)).unwrap();
        let branches = engine.fork(root, 9).unwrap();
        super::bench::mislead(&engine);
        let extend = |(i, &branch)| draw(branch, key("item", i), params.clone(), Stop::max_tokens(80));
        let told = finishes(&engine, (0..).zip(&branches).map(extend).collect());
        (told, engine.metrics().unwrap())
    };
    let (expected, _) = story(roomy());
    let page_bytes = in_turn().engine(pages(1)).facts().page_bytes;
    for config in [pages(14), EngineConfig { swap_bytes: 30 * page_bytes, swap_at_any_cost: true, ..pages(14) }] {
        let (found, metrics) = story(config.clone());
        assert!(found == expected, "{config:?}");
        assert!(metrics.preemptions > 0);
        assert!(metrics.swapped_out > 0 || config.swap_bytes == 0);
    }
}

in_modes! {
    in_turn, run_ahead, replicas:
    samples_in_a_form_are_those_of_a_plain_loop,
    forced_tokens_take_few_steps,
    a_sample_goes_on_in_its_form_from_every_token,
    a_form_begins_anew_behind_its_end,
    a_form_beyond_its_limit_ends_its_own_samples,
    samples_end_as_their_form_and_their_stops_say,
    a_sample_in_a_form_may_be_cancelled_at_any_moment,
    a_form_may_begin_behind_reasoning,
}
