//! Branches that fork share what they can, and have the masks that they would have alone.

use std::collections::HashSet;
use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_form::{Form, FormState, Forms};
use serde_json::json;

use crate::mutate::Dice;
use crate::{begin, compile, compiler, encode, mask, person, tokenizer, tokens};

/// Bounds of masks and matchers, in bytes: all are kept, none is.
const BOUNDS: [(usize, usize); 2] = [(usize::MAX, usize::MAX), (0, 0)];

/// Branches that grow and fork at every token; each mask equals that of a state that is replayed alone.
#[test]
fn a_fork_at_each_token_has_the_masks_of_a_fresh_state() {
    for (mask_bytes, matcher_bytes) in BOUNDS {
        let form = compile(Form::Json(person()));
        let mut forms = Forms::new(3).with_bounds(mask_bytes, matcher_bytes);
        let mut dice = Dice(7);
        let mut states = vec![begin(&form)];
        for _ in 0..40 {
            let masks = forms.masks(&mut states.iter_mut().collect::<Vec<_>>());
            let mut next: Vec<FormState> = Vec::new();
            for (state, found) in states.iter().zip(masks) {
                let found = found.expect("a mask");
                let mut fresh = begin(&form);
                state.tokens().iter().for_each(|token| fresh.push(*token));
                let alone = mask(&mut Forms::new(1), &mut fresh);
                assert_eq!(alone.allowed, found.allowed, "{:?}", state.tokens());
                assert_eq!(
                    (alone.forced, alone.may_end, alone.only_end),
                    (found.forced, found.may_end, found.only_end)
                );
                if !found.only_end {
                    // A fork, of which one branch goes on elsewhere, and one may go on likewise.
                    for _ in 0..2 {
                        let mut fork = state.clone();
                        let allowed = tokens(&found);
                        fork.push(allowed[dice.below(allowed.len())]);
                        next.push(fork);
                    }
                }
            }
            while next.len() > 24 {
                next.swap_remove(dice.below(next.len()));
            }
            states = next;
        }
    }
}

#[test]
fn each_distinct_state_is_computed_once_and_equal_sets_are_one() {
    let form = compile(Form::Json(person()));
    let mut forms = Forms::new(2);
    let mut dice = Dice(3);
    let mut states = vec![begin(&form); 64];
    let mut distinct: HashSet<Vec<TokenId>> = HashSet::new();
    let mut sets = Vec::new();
    let mut asked = 0;
    for _ in 0..30 {
        let masks = forms.masks(&mut states.iter_mut().collect::<Vec<_>>());
        asked += states.len() as u64;
        for (state, found) in states.iter_mut().zip(masks) {
            let found = found.expect("a mask");
            distinct.insert(state.tokens().to_vec());
            sets.extend(found.allowed.clone());
            let allowed = tokens(&found);
            if !found.only_end {
                state.push(allowed[dice.below(allowed.len())]);
            }
        }
    }
    let counts = forms.counts();
    let found = counts.computed + counts.shared_places;
    assert_eq!((counts.requested, found, counts.failed), (asked, distinct.len() as u64, 0));
    assert_eq!(counts.shared_states, asked - found);
    assert!(counts.shared_sets > 0 && counts.lanes >= 1 && counts.matcher_bytes > 0 && counts.mask_bytes > 0);
    let different: HashSet<_> = sets.iter().map(|set| set.words()).collect();
    let held: HashSet<_> = sets.iter().map(Arc::as_ptr).collect();
    assert_eq!(different.len(), held.len(), "equal sets are one");
}

#[test]
fn siblings_in_one_state_share_one_mask() {
    let form = compile(Form::JsonObject);
    let mut forms = Forms::new(1);
    let mut siblings = vec![begin(&form); 5];
    let masks = forms.masks(&mut siblings.iter_mut().collect::<Vec<_>>());
    let first = masks[0].as_ref().expect("a mask");
    assert!(masks.iter().all(|other| Arc::ptr_eq(first, other.as_ref().expect("a mask"))));
    assert!(Arc::ptr_eq(first, &mask(&mut forms, &mut begin(&form))));
    assert_eq!((forms.counts().requested, forms.counts().computed), (6, 1));
}

/// What is dropped for its bytes is made again: with matchers, from the tokens.
#[test]
fn bounds_hold_and_cost_replays_alone() {
    let form = compile(Form::Json(person()));
    let grow = |forms: &mut Forms| {
        let mut dice = Dice(11);
        let mut states = vec![begin(&form); 32];
        let mut masks = Vec::new();
        for _ in 0..20 {
            let found = forms.masks(&mut states.iter_mut().collect::<Vec<_>>());
            for (state, found) in states.iter_mut().zip(found) {
                let found = found.expect("a mask");
                let allowed = tokens(&found);
                masks.push(allowed.clone());
                if !found.only_end {
                    state.push(allowed[dice.below(allowed.len())]);
                }
            }
        }
        masks
    };
    let mut roomy = Forms::new(2);
    let mut tight = Forms::new(2).with_bounds(20 << 10, 30 << 10);
    assert_eq!(grow(&mut roomy), grow(&mut tight));
    let (roomy, tight) = (roomy.counts(), tight.counts());
    assert!(tight.mask_bytes <= 24 << 10 && tight.matcher_bytes <= 30 << 10, "{tight:?}");
    assert!(tight.replayed > roomy.replayed, "{tight:?} {roomy:?}");
}

/// Matchers within the bound are never made again; beyond it, in each step those that do not fit.
#[test]
fn only_matchers_that_do_not_fit_are_made_again() {
    const BRANCHES: usize = 40;
    const STEPS: usize = 6;
    let form = compile(Form::Json(json!({"type": "array", "items": {"type": "integer"}})));
    let digits = encode("1234567890");
    // The bytes of all matchers, and the tokens that the last steps have read again.
    let grow = |most: usize| {
        let mut forms = Forms::new(2).with_bounds(usize::MAX, most);
        let mut parent = begin(&form);
        encode("[").into_iter().chain((0..300).map(|n| digits[n % 10])).for_each(|token| parent.push(token));
        mask(&mut forms, &mut parent);
        let mut states = vec![parent; BRANCHES];
        let mut replayed = 0;
        for step in 0..STEPS {
            // Each branch is in a state of its own.
            for (branch, state) in states.iter_mut().enumerate() {
                state.push(digits[if step == 0 { branch % 10 } else { branch / 10 }]);
            }
            forms.masks(&mut states.iter_mut().collect::<Vec<_>>()).into_iter().for_each(|found| {
                found.expect("a mask");
            });
            if step == 1 {
                replayed = forms.counts().replayed_tokens;
            }
        }
        (forms.counts().matcher_bytes, forms.counts().replayed_tokens - replayed)
    };
    let (all, replayed) = grow(usize::MAX);
    assert_eq!(replayed, 0);
    assert_eq!(grow(all + all / 10).1, 0);
    let (held, replayed) = grow(all / 2);
    assert!(held <= all / 2);
    let tokens = ((STEPS - 2) * BRANCHES * 308) as u64;
    assert!(replayed > tokens / 4 && replayed < tokens * 3 / 4, "{replayed} of {tokens} tokens");
}

#[test]
fn equal_forms_are_compiled_once_while_in_use() {
    let compiler = compiler();
    let of = |form: Form| compiler.compile(&Arc::new(form)).expect("it compiles");
    let (one, same) = (of(Form::Json(person())), of(Form::Json(person())));
    assert!(Arc::ptr_eq(&one, &same));
    let mut turned = person();
    turned["properties"] = turned["properties"].as_object().unwrap().clone().into_iter().rev().collect();
    assert!(!Arc::ptr_eq(&one, &of(Form::Json(turned))), "the order of properties is part of a form");
}

#[test]
fn forms_and_their_states_go_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Forms>();
    check::<FormState>();
    check::<offshoot_form::CompiledForm>();
    check::<offshoot_form::FormCompiler>();
}

/// Lexers beyond the bound are given up, with the matchers in them; the masks are those that were.
#[test]
fn lanes_are_bounded() {
    let compiler = compiler();
    let form = |name: usize| {
        let schema = json!({"type": "object", "required": [format!("k{name}")], "additionalProperties": false,
            "properties": {format!("k{name}"): {"type": "string", "maxLength": 20}}});
        compiler.compile(&Arc::new(Form::Json(schema))).expect("the form compiles")
    };
    let compiled: Vec<_> = (0..6).map(form).collect();
    let states = || compiled.iter().map(begin).collect::<Vec<_>>();
    let masks = |forms: &mut Forms| {
        let mut states = states();
        let mut masks = Vec::new();
        for token in crate::encode("{\"k") {
            for state in &mut states {
                masks.push(mask(forms, state));
                state.push(token);
            }
        }
        (masks, states)
    };
    let mut free = Forms::new(1);
    let (expected, kept) = masks(&mut free);
    let one = free.counts().lane_bytes / compiled.len();
    assert_eq!(free.counts().lanes, compiled.len());
    // The states that are kept have matchers, which hold lanes.
    let mut bound = Forms::new(1).with_lane_bound(2 * one);
    let (found, resting) = masks(&mut bound);
    assert!(bound.counts().lane_bytes <= 2 * one + one / 2, "{:?} of {one}", bound.counts());
    assert!(bound.counts().lanes <= 2, "{:?}", bound.counts());
    assert!(bound.counts().matcher_bytes < free.counts().matcher_bytes / 2, "{:?}", bound.counts());
    let sets = |masks: &[Arc<offshoot_form::StateMask>]| masks.iter().map(|mask| tokens(mask)).collect::<Vec<_>>();
    assert_eq!(sets(&found), sets(&expected));
    drop((kept, resting));
}

/// Branches in one place of a grammar have one mask, which is the one that each would have alone: also where a grammar
/// counts tokens, names some, or has stops, whose places do not tell.
#[test]
fn places_of_a_grammar_tell_masks() {
    let record = json!({"type": "object", "additionalProperties": false, "required": ["id", "tags", "score"],
        "properties": {"id": {"type": "integer", "minimum": 3, "maximum": 320}, "score": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "kind": {"enum": ["a", "abc", "ab", "b\"é"]},
            "other": {"anyOf": [{"type": "null"}, {"pattern": "^a+b?$"}]}}});
    let records = json!({"type": "array", "items": record, "minItems": 2});
    let lark = |rules: &str| Form::Lark(rules.to_string());
    let forms = [
        (Form::Json(records), true),
        (Form::JsonObject, true),
        (Form::Regex("(a|bc)*d{2,5}".to_string()), true),
        (Form::Choice(vec!["one".to_string(), "on".to_string(), "once more".to_string()]), true),
        (lark("start: \"<\" inner \">\" start?\ninner: %json {\"type\": \"integer\"} | \"x\" inner"), true),
        (lark("start: (part \"!\")+\npart[max_tokens=3]: /[a-z]+/"), false),
        (lark("start: (part \"!\")+\npart[stop=\"?\"]: /[a-z]+/"), false),
    ];
    for (form, tells) in forms {
        let name = format!("{form:?}");
        let form = compile(form);
        let mut shared = Forms::new(1);
        let mut dice = Dice(17);
        let mut states = vec![begin(&form); 24];
        for _ in 0..24 {
            let masks = shared.masks(&mut states.iter_mut().collect::<Vec<_>>());
            for (state, found) in states.iter_mut().zip(masks) {
                let found = found.expect("a mask");
                let mut alone = begin(&form);
                state.tokens().iter().for_each(|token| alone.push(*token));
                let expected = mask(&mut Forms::new(1), &mut alone);
                let text = || format!("{name} behind {:?}", tokenizer().decode(state.tokens()));
                assert_eq!(tokens(&found), tokens(&expected), "{}", text());
                assert_eq!((found.may_end, found.only_end), (expected.may_end, expected.only_end), "{}", text());
                let allowed = tokens(&found);
                match found.only_end || allowed.is_empty() {
                    true => *state = begin(&form),
                    false => state.push(allowed[dice.below(allowed.len())]),
                }
            }
        }
        let counts = shared.counts();
        assert_eq!(counts.shared_places > 0, tells, "{name}: {counts:?}");
    }
}
