//! What masks may take: where a state takes too much work its samples end, and no others.

use offshoot_core::ids::TokenId;
use offshoot_form::{Form, FormState, Forms};

use crate::{begin, compile, encode, mask, person, tokens};

fn costly() -> Form {
    Form::Lark(offshoot_fixtures::costly_grammar())
}

#[test]
fn a_state_beyond_a_step_s_limit_has_no_mask_and_others_have() {
    let (costly, other) = (compile(costly()), compile(Form::Json(person())));
    let mut forms = Forms::new(2);
    let mut state = begin(&costly);
    for text in ["a", "b", "c"] {
        assert!(tokens(&mask(&mut forms, &mut state)).contains(&encode(text)[0]), "{text}");
        state.push(encode(text)[0]);
    }
    let (mut again, mut json) = (state.clone(), begin(&other));
    let found = forms.masks(&mut [&mut state, &mut json, &mut again]);
    let limit = found[0].as_ref().expect_err("it has too many items").to_string();
    assert!(limit.contains("max is 10000"), "{limit}");
    assert!(found[1].is_ok() && found[2].is_err());
    assert_eq!(forms.counts().failed, 2);
}

/// States that fail spoil the lexer of the others in their lane, which are found in another one: in each call one more
/// at most, and never more lanes than threads.
#[test]
fn states_beyond_a_limit_cost_the_others_one_lane() {
    const THREADS: usize = 2;
    let form = compile(Form::Lark(offshoot_fixtures::costly_grammar().replace("start: ", "start: /[d-z]{40}/ | ")));
    let mut forms = Forms::new(THREADS);
    let mut bad = begin(&form);
    encode("abc").into_iter().for_each(|token| bad.push(token));
    let letters: Vec<TokenId> = ["d", "e", "f", "g", "h", "i"].iter().map(|letter| encode(letter)[0]).collect();
    let mut good: Vec<FormState> = vec![begin(&form); 30];
    for step in 0..8 {
        for (at, state) in good.iter_mut().enumerate() {
            state.push(letters[if step == 0 { at % 6 } else { at / 6 }]);
        }
        let mut failing = bad.clone();
        let mut states: Vec<&mut FormState> = good.iter_mut().collect();
        states.insert(7, &mut failing);
        let found = forms.masks(&mut states);
        assert!(found.iter().enumerate().all(|(at, found)| found.is_ok() == (at != 7)), "step {step}");
        assert!(forms.counts().lanes <= THREADS, "{:?}", forms.counts());
    }
}

/// A long text is read again with as much of the lexer's work as its steps had: neither without limit nor with what the
/// last mask in its lane left.
#[test]
fn a_long_text_is_read_again_within_the_limits() {
    let form = compile(Form::Regex("[a-z]{1,9000}".to_owned()));
    let mut forms = Forms::new(1);
    mask(&mut forms, &mut begin(&form));
    let letters = encode("q");
    let mut long = begin(&form);
    (0..8000).for_each(|_| long.push(letters[0]));
    mask(&mut forms, &mut long);
    let counts = forms.counts();
    assert_eq!((counts.lanes, counts.replayed, counts.failed), (1, 1, 0), "{counts:?}");
}
