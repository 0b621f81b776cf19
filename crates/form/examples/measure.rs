//! Measures what forms take: `measure FOLDER` for the tokenizer of a model's folder (its vocabulary, compiling, masks,
//! matchers), `measure FOLDER fuzz N` for N mutated schemas (time and memory of each refusal or compilation),
//! `measure FOLDER steps BRANCHES STEPS THREADS` for steps of branches that have long texts of one schema.

#[path = "measure/fuzz.rs"]
mod fuzz;
#[path = "measure/memory.rs"]
mod memory;
#[path = "measure/mutate.rs"]
mod mutate;
#[path = "measure/steps.rs"]
mod steps;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use offshoot_core::ids::TokenId;
use offshoot_form::{CompiledForm, Form, FormBegin, FormCompiler, FormState, Forms, StateMask, TRIAL};
use offshoot_text::{AddSpecial, Tokenizer};
use serde_json::{Value, json};

use memory::live;
use mutate::Dice;

fn main() {
    offshoot_core::bounded::enter_if_helper(&[&TRIAL]);
    let arguments: Vec<String> = std::env::args().collect();
    let folder = arguments.get(1).expect("a folder of a tokenizer");
    let tokenizer = Arc::new(Tokenizer::load(Path::new(folder)).expect("a tokenizer"));
    let ends: Vec<TokenId> = tokenizer.eos().into_iter().collect();
    let vocab = tokenizer.vocab_size();
    let before = live();
    let start = Instant::now();
    let compiler = FormCompiler::new(tokenizer.clone(), ends, vocab);
    compiler.vocabulary().expect("a vocabulary");
    let built = start.elapsed();
    println!("vocabulary of {vocab} tokens: {} ms, {} MB", built.as_millis(), (live() - before) >> 20);
    match arguments.get(2).map(String::as_str) {
        Some("fuzz") => {
            let forms = arguments.get(3).and_then(|n| n.parse().ok()).unwrap_or(1000);
            fuzz::run(&compiler, forms);
        }
        Some("steps") => {
            let number = |at: usize, default| arguments.get(at).and_then(|n| n.parse().ok()).unwrap_or(default);
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            steps::run(&compiler, number(3, 1024), number(4, 128), number(5, threads));
        }
        _ => {
            for (name, form) in forms() {
                measure(&compiler, &tokenizer, name, form);
            }
        }
    }
}

fn forms() -> Vec<(&'static str, Form)> {
    vec![
        ("person", Form::Json(person())),
        ("person", Form::Json(with_options(json!({"whitespace_flexible": true})))),
        ("person", Form::Json(with_options(json!({"whitespace_pattern": "( |\n *)?"})))),
        ("any object", Form::JsonObject),
        (
            "tree",
            Form::Json(json!({
                "$defs": {"node": {"type": "object", "properties": {
                    "name": {"type": "string", "maxLength": 20},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3}
                }, "required": ["name", "children"], "additionalProperties": false}},
                "$ref": "#/$defs/node"
            })),
        ),
        ("pattern", Form::Regex(r"([A-Z][a-z]{2,12} ){2,30}\d{3}-\d{4}".to_string())),
        ("choice", Form::Choice((0..200).map(|n| format!("choice number {n}")).collect())),
        (
            "arithmetic",
            Form::Lark(
                "start: sum\nsum: product | sum \"+\" product\nproduct: atom | product \"*\" atom\n\
             atom: /[0-9]{1,9}/ | \"(\" sum \")\""
                    .to_string(),
            ),
        ),
    ]
}

fn with_options(options: Value) -> Value {
    let mut schema = person();
    schema["x-guidance"] = options;
    schema
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 60},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
            "note": {"type": "string", "maxLength": 400},
            "inner": {"type": "object", "properties": {
                "x": {"type": "number"}, "mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.com$"}
            }, "required": ["x", "mail"], "additionalProperties": false}
        },
        "required": ["name", "age", "tags", "note", "inner"],
        "additionalProperties": false
    })
}

/// Texts of a form, as models write them.
fn texts(name: &str) -> Vec<String> {
    let note = "The meeting was moved to Thursday; bring the printed plans, and tell Ada that the \\\"blue\\\" room is \
                free from nine to eleven. If it rains we meet in the hall. ";
    let value = match name {
        "person" => json!({"name": "Ada Lovelace", "age": 36, "tags": ["red", "blue"], "note": note.repeat(2),
            "inner": {"x": -12.75, "mail": "ada@example.com"}}),
        "any object" => {
            let rooms = vec![json!({"name": "blue", "seats": 12, "open": true}); 8];
            json!({"title": "Plans", "rooms": rooms, "text": note})
        }
        "tree" => {
            let leaf = json!({"name": "leaf of a tree", "children": []});
            let node = json!({"name": "a branch", "children": [leaf, leaf, leaf]});
            json!({"name": "the root", "children": [node, node, node]})
        }
        "arithmetic" => return vec!["12345*(678+90)+".repeat(20) + "1"],
        "choice" => return vec!["choice number 42".to_string()],
        _ => return vec!["Hello World This Number 555-1234".to_string()],
    };
    vec![value.to_string(), serde_json::to_string_pretty(&value).expect("a value is JSON")]
}

/// An allowed token that is no end, if there is one: short words rather than rare ones.
fn pick(mask: &StateMask, ends: &[TokenId], dice: &mut Dice) -> Option<TokenId> {
    let allowed = mask.allowed.as_ref()?;
    let all = (0..allowed.vocab()).map(TokenId::new).filter(|token| allowed.contains(*token) && !ends.contains(token));
    let tokens: Vec<TokenId> = all.take(4000).collect();
    (!tokens.is_empty()).then(|| tokens[dice.below(tokens.len())])
}

fn measure(compiler: &FormCompiler, tokenizer: &Tokenizer, name: &str, form: Form) {
    let before = live();
    let start = Instant::now();
    let form = compiler.compile(&Arc::new(form)).expect("a form");
    println!("{name}: compiled in {} us, {} kB", start.elapsed().as_micros(), (live() - before) >> 10);
    let ends: Vec<TokenId> = tokenizer.eos().into_iter().collect();
    let mut dice = Dice(0x1234_5678_9abc_def1);
    for text in texts(name) {
        single(&form, tokenizer, &text);
    }
    batch(&form, &ends, &mut dice);
}

/// One sample at a time, of texts as models write them: how long a mask takes, and how many bytes a branch holds.
fn single(form: &Arc<CompiledForm>, tokenizer: &Tokenizer, text: &str) {
    let tokens = tokenizer.encode(text, AddSpecial::No).expect("a text");
    let (mut best, mut worst, mut cold) = (Duration::MAX, Duration::MAX, Duration::ZERO);
    let mut sizes = Vec::new();
    let mut forms = Forms::new(1).with_bounds(0, usize::MAX);
    for round in 0..6 {
        let mut state = FormState::begin(form.clone(), &FormBegin::AtOnce);
        let (mut time, mut slowest) = (Duration::ZERO, Duration::ZERO);
        for (length, &token) in tokens.iter().enumerate() {
            let start = Instant::now();
            let mask = forms.masks(&mut [&mut state]).remove(0).expect("a mask");
            let taken = start.elapsed();
            (time, slowest) = (time + taken, slowest.max(taken));
            assert!(mask.allowed.as_ref().is_none_or(|allowed| allowed.contains(token)), "token {length} of {text}");
            if round == 0 && [0, 30, 100, 200, 300, 500].contains(&length) {
                sizes.push((length, branch_bytes(&state, &mut forms)));
            }
            state.push(token);
        }
        (best, worst) = (best.min(time), worst.min(slowest));
        cold = if round == 0 { time } else { cold };
    }
    let [mean, cold] = [best, cold].map(|time| time.as_micros() / tokens.len() as u128);
    println!(
        "  {} tokens, {} bytes: {mean} us a mask, {} us at worst; {cold} us the first time",
        tokens.len(),
        text.len(),
        worst.as_micros()
    );
    println!("  bytes of a branch's matcher by tokens: {sizes:?}");
}

/// Bytes that each of several forks of a state holds, its tokens included.
fn branch_bytes(state: &FormState, forms: &mut Forms) -> usize {
    const FORKS: usize = 32;
    let mut forks = vec![state.clone(); FORKS];
    forms.masks(&mut [&mut forks[0]]);
    let before = live();
    let mut more = vec![state.clone(); FORKS];
    // One after the other: each is computed, as no mask is kept; the first of them is in the cache.
    for fork in &mut more {
        let mut other = FormState::begin(state.form().clone(), &FormBegin::AtOnce);
        forms.masks(&mut [&mut other]);
        forms.masks(&mut [fork]);
    }
    (live() - before) / FORKS
}

/// Many branches at once, each of its own text.
fn batch(form: &Arc<CompiledForm>, ends: &[TokenId], dice: &mut Dice) {
    const BRANCHES: usize = 256;
    let mut forms = Forms::new(std::thread::available_parallelism().map_or(1, usize::from));
    let mut states = vec![FormState::begin(form.clone(), &FormBegin::AtOnce); BRANCHES];
    let (mut time, mut worst) = (Duration::ZERO, Duration::ZERO);
    let mut steps = 0;
    while steps < 60 {
        let start = Instant::now();
        let masks = forms.masks(&mut states.iter_mut().collect::<Vec<_>>());
        let taken = start.elapsed();
        (steps, time, worst) = (steps + 1, time + taken, worst.max(taken));
        for (state, mask) in states.iter_mut().zip(masks) {
            if let Some(token) = pick(&mask.expect("a mask"), ends, dice) {
                state.push(token);
            }
        }
    }
    println!(
        "  {BRANCHES} branches, {steps} steps: {} us a step, {} us at worst",
        time.as_micros() / 60,
        worst.as_micros()
    );
    println!("  {:?}", forms.counts());
}
