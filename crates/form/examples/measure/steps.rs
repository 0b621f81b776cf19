//! Steps of many branches that have texts of one schema, each its own: what an engine's step asks for. Tokens are drawn
//! evenly from masks, as a model of random weights draws them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use offshoot_core::ids::TokenId;
use offshoot_form::{Form, FormBegin, FormCompiler, FormState, Forms, StateMask};
use serde_json::json;

use crate::mutate::Dice;

/// Steps of which the mean time is shown.
const SHOWN: usize = 16;

/// `steps` steps of `branches` branches, whose masks `threads` threads compute.
pub fn run(compiler: &FormCompiler, branches: usize, steps: usize, threads: usize) {
    let form = compiler.compile(&Arc::new(schema())).expect("a form");
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let mut forms = Forms::new(threads);
    for round in 0..2 {
        let mut states = vec![FormState::begin(form.clone(), &FormBegin::AtOnce); branches];
        let (mut taken, mut all) = (Duration::ZERO, Duration::ZERO);
        let (before, mut own) = (forms.counts(), Duration::ZERO);
        for step in 1..=steps {
            let mut asked: Vec<&mut FormState> = states.iter_mut().collect();
            let (start, cpu) = (Instant::now(), cpu_of_thread());
            let masks = forms.masks(&mut asked);
            taken += start.elapsed();
            own += cpu_of_thread() - cpu;
            for (state, mask) in states.iter_mut().zip(masks) {
                state.push(pick(&mask.expect("a mask"), &mut dice));
            }
            if step % SHOWN == 0 || step == steps {
                println!("round {round}, to step {step}: {} us a step", taken.as_micros() / SHOWN as u128);
                all += std::mem::take(&mut taken);
            }
        }
        let counts = forms.counts();
        let found = counts.computed + counts.shared_places - before.computed - before.shared_places;
        let each = |time: Duration| time.as_micros() as f64 / found as f64;
        println!(
            "round {round}: {found} masks, {:.1} us each, of which the calling thread computes {:.1}",
            each(all),
            each(own)
        );
        println!("{counts:?}");
    }
}

/// Time that this thread had a processor, where Linux says so.
fn cpu_of_thread() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or_default())
}

/// Any allowed token.
fn pick(mask: &StateMask, dice: &mut Dice) -> TokenId {
    let allowed = mask.allowed.as_ref().expect("a form has begun");
    let nth = dice.below(allowed.count());
    let mut left = nth as u32;
    for (at, word) in allowed.words().iter().enumerate() {
        if left < word.count_ones() {
            let bit = (0..32).filter(|bit| word >> bit & 1 == 1).nth(left as usize).expect("so many bits are set");
            return TokenId::new(32 * at + bit as usize);
        }
        left -= word.count_ones();
    }
    unreachable!("fewer tokens than are counted")
}

/// Records of all kinds of values, more than a text gets to.
fn schema() -> Form {
    let record = json!({
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 0, "maximum": 99_999},
            "kind": {"enum": ["request", "reply", "error", "notice"]},
            "note": {"type": "string", "maxLength": 80},
            "score": {"type": "number"},
            "is_open": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 24}, "maxItems": 5}
        },
        "required": ["id", "kind", "note", "score", "is_open", "tags"],
        "additionalProperties": false
    });
    Form::Json(json!({
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 60},
            "records": {"type": "array", "items": record, "minItems": 512}
        },
        "required": ["title", "records"],
        "additionalProperties": false
    }))
}
