//! What masks may take: a form whose states take too much work ends its own samples, and no others.

use offshoot_form::{Form, Forms};

use crate::{begin, compile, encode, mask, person, tokens};

/// A grammar whose texts begin with "abc", and that has more items behind it than a place may have.
fn wide() -> Form {
    const RULES: usize = 101;
    let pairs: Vec<String> = (0..RULES * RULES).map(|n| format!("r{} r{}", n % RULES, n / RULES)).collect();
    let rules: String = (0..RULES).map(|n| format!("r{n}: \"q\" | \"q\" \"{n}\"\n")).collect();
    Form::Lark(format!("start: \"abc\" pair\npair: {}\n{rules}", pairs.join(" | ")))
}

/// A grammar that reads a text of n letters in more ways than n squared.
fn ambiguous() -> Form {
    Form::Lark("start: s\ns: \"a\" | s s | s s s".to_owned())
}

#[test]
fn a_state_beyond_a_step_s_limit_has_no_mask_and_others_have() {
    let (wide, other) = (compile(wide()), compile(Form::Json(person())));
    let mut forms = Forms::new(2);
    let mut state = begin(&wide);
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

#[test]
fn a_form_has_a_budget_and_others_go_on() {
    let (ambiguous, other) = (compile(ambiguous()), compile(Form::Json(person())));
    let mut forms = Forms::new(2);
    let a = encode("a")[0];
    let mut state = begin(&ambiguous);
    let limit = (0..1000).find_map(|_| {
        let found = forms.masks(&mut [&mut state]).remove(0);
        state.push(a);
        found.err()
    });
    let limit = limit.expect("its masks take ever more").to_string();
    assert!(limit.contains("more work than they may"), "{limit}");
    assert!(state.tokens().len() > 20);
    mask(&mut forms, &mut begin(&other));
}
