//! Masks are llguidance's own, bit for bit: those of its parser, advanced token by token with a lexer of its own and
//! its own way to compute masks. Over a made vocabulary of 6,000 tokens, which is large enough for all that makes masks
//! cheap; the bundled model's is not.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use llguidance::TokenParser;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_text::Tokenizer;
use serde_json::{Value, json};

use crate::trial::parser;
use crate::{CompiledForm, Form, FormBegin, FormCompiler, FormState, Forms};

/// The bundled model's tokenizer with tokens of letters, of characters of several bytes, with quotes, escapes and white
/// space, and of parts of characters.
fn tokenizer() -> Arc<Tokenizer> {
    const PARTS: [&[u8]; 18] = [
        b"a",
        b"bo",
        b" ",
        "é".as_bytes(),
        "語".as_bytes(),
        b"\"",
        b"\\",
        b"\n",
        b",",
        b":",
        b"}",
        b"0",
        b"17",
        b"-",
        b"te",
        b"\\u00e9",
        b"\xc3",
        b"[",
    ];
    let demo = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
    let text = std::fs::read_to_string(demo.join("tokenizer.json")).expect("the bundled model has a tokenizer");
    let mut made: Value = serde_json::from_str(&text).expect("JSON");
    let vocab = made["model"]["vocab"].as_object_mut().expect("tokens with their ids");
    let mut dice = Dice::new(50);
    while vocab.len() < 6_000 {
        let count = 2 + dice.within(0, 11);
        let part = |dice: &mut Dice| PARTS[dice.within(0, PARTS.len() as u32 - 1) as usize];
        let word: String = (0..count).flat_map(|_| part(&mut dice)).map(|byte| written(*byte)).collect();
        let id = vocab.len();
        vocab.entry(word).or_insert(id.into());
    }
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["tokenizer_config.json", "special_tokens_map.json"] {
        std::fs::copy(demo.join(name), folder.path().join(name)).expect("the bundled model has it");
    }
    std::fs::write(folder.path().join("tokenizer.json"), made.to_string()).expect("the folder is writable");
    Arc::new(Tokenizer::load(folder.path()).expect("a tokenizer"))
}

/// How a vocabulary of bytes writes one: those that are no printable characters by others.
fn written(byte: u8) -> char {
    let is_own = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match is_own(byte) {
        true => char::from(byte),
        false => {
            let nth = (0..byte).filter(|byte| !is_own(*byte)).count() as u32;
            char::from_u32(256 + nth).expect("a character")
        }
    }
}

/// A branch, and the library's parser of its text.
#[derive(Clone)]
struct Branch {
    state: FormState,
    library: TokenParser,
}

impl Branch {
    fn begin(form: &Arc<CompiledForm>, source: &Form) -> Branch {
        let library = parser(source, form.vocabulary()).expect("it has compiled");
        Branch { state: FormState::begin(form.clone(), &FormBegin::AtOnce), library }
    }

    /// Forks share no lexer.
    fn fork(&self) -> Branch {
        Branch { state: self.state.clone(), library: self.library.deep_clone() }
    }

    fn push(&mut self, token: TokenId) {
        self.state.push(token);
        self.library.consume_token(token.0).expect("its mask allows it");
        self.library.check_stop().expect("it is no failure");
    }

    /// What the library allows next, and whether the text may end.
    fn expected(&self, ends: &[TokenId]) -> (BTreeSet<TokenId>, bool) {
        let mut library = self.library.deep_clone();
        if library.stopped() {
            return (ends.iter().copied().collect(), true);
        }
        let may_end = library.is_accepting();
        let mask = library.compute_mask();
        let mut allowed: BTreeSet<TokenId> = mask.iter().flat_map(|mask| mask.iter()).map(TokenId).collect();
        ends.iter().for_each(|end| _ = if may_end { allowed.insert(*end) } else { allowed.remove(end) });
        (allowed, may_end)
    }
}

fn forms() -> Vec<Form> {
    let lark = |rules: &str| Form::Lark(rules.to_owned());
    let bounded = |least: u32, most: u32| json!({"type": "string", "minLength": least, "maxLength": most});
    let record = json!({"type": "object", "additionalProperties": false,
        "properties": {"a": bounded(0, 12), "b": bounded(25, 40), "c": {"type": "string"}, "n": {"type": "number"},
            "d": {"type": "string", "pattern": "^[a-z]{2,9} ?[0-9]{0,4}$"}, "e": {"enum": ["a", "abo", "boa", 17]},
            "f": {"type": "array", "items": bounded(1, 3), "maxItems": 3}, "i": {"type": "integer", "maximum": 1700}},
        "required": ["a", "e", "f", "i"]});
    vec![
        Form::Json(json!({"type": "array", "items": record, "minItems": 2})),
        Form::Json(json!({"anyOf": [bounded(0, 130), bounded(9, 200), {"type": "array", "items": bounded(1, 9)}]})),
        Form::JsonObject,
        Form::Regex("(te|bo*a)+[0-9é]{2,5}\"?".to_owned()),
        Form::Choice(["a", "abo", "bote, a", "17-0"].map(str::to_owned).to_vec()),
        lark("start: item (\",\" item)*\nitem: WORD | \"a\" WORD \"0\"\nWORD: /[a-e]+/\n%ignore /[ \\n]+/"),
        lark("start: \"[\" inner \"]\" start?\ninner: %json {\"type\": \"string\", \"maxLength\": 7} | \"-\" inner"),
        lark("start: (part \",\")+\npart[max_tokens=3]: /[a-z]+/"),
        lark("start: (part \",\")+\npart[stop=\"0\"]: /[a-z:]+/"),
        lark("start: (part \",\")+\npart[suffix=\"17\"]: /[a-z:]+/"),
        lark("start: (\"a\" | <|begin_of_text|> \"bo\" | WORD)+\nWORD: /te+/"),
    ]
}

#[test]
fn masks_of_branches_are_the_library_s_own() {
    let tokenizer = tokenizer();
    let ends: Vec<TokenId> = tokenizer.eos().into_iter().collect();
    let compiler = FormCompiler::new(tokenizer.clone(), ends.clone(), tokenizer.vocab_size());
    assert!(compiler.vocabulary().expect("a vocabulary").inside.is_some(), "the vocabulary is too small");
    let mut found_by_place = 0;
    for (nth, source) in forms().into_iter().enumerate() {
        let form = compiler.compile(&Arc::new(source.clone())).expect("it compiles");
        // With a bound of 0 bytes no lane is kept from one step to the next: every third form is tested so.
        let forms = Forms::new(2);
        let mut forms = if nth % 3 == 2 { forms.with_lane_bound(0) } else { forms };
        let mut dice = Dice::new(8);
        let mut branches: Vec<Branch> = (0..20).map(|_| Branch::begin(&form, &source)).collect();
        let mut texts = HashSet::new();
        for _ in 0..24 {
            let masks = forms.masks(&mut branches.iter_mut().map(|branch| &mut branch.state).collect::<Vec<_>>());
            for (branch, mask) in branches.iter_mut().zip(masks) {
                let mask = mask.expect("it takes little work");
                let text = tokenizer.decode(branch.state.tokens());
                let allowed = mask.allowed.as_ref().expect("the form has begun");
                let tokens = (0..allowed.vocab()).map(TokenId::new).filter(|token| allowed.contains(*token));
                let found: BTreeSet<TokenId> = tokens.collect();
                let (expected, may_end) = branch.expected(&ends);
                assert!(
                    found == expected,
                    "{source:?} behind {text:?}: {:?}",
                    difference(&found, &expected, &tokenizer)
                );
                assert_eq!(mask.may_end, may_end, "{source:?} behind {text:?}");
                texts.insert(text);
                let inner: Vec<TokenId> = found.into_iter().filter(|token| !ends.contains(token)).collect();
                match inner.is_empty() {
                    true => *branch = Branch::begin(&form, &source),
                    false => branch.push(dice.pick(&inner)),
                }
            }
            let (from, to) = (dice.within(0, 19) as usize, dice.within(0, 19) as usize);
            branches[to] = branches[from].fork();
        }
        found_by_place += forms.counts().shared_places;
        assert!(texts.len() > 3, "{source:?}: {texts:?}");
    }
    assert!(found_by_place > 100, "only {found_by_place} masks were found by their place");
}

/// Tokens that one of two sets has.
fn difference(found: &BTreeSet<TokenId>, expected: &BTreeSet<TokenId>, tokenizer: &Tokenizer) -> Vec<(bool, String)> {
    let shown = |token: &TokenId| (found.contains(token), format!("{:?}", tokenizer.token_bytes(*token)));
    found.symmetric_difference(expected).take(9).map(shown).collect()
}
