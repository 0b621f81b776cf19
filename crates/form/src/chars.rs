//! How many more plain characters a lexeme takes. A *plain* character stands for itself inside JSON strings. Where a
//! lexeme takes each of them, of which sort ever, up to a number, the tokens of plain characters that it takes are
//! those that are no longer. Whether it does is found from the transitions of the lexer, once for each of its states.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use llguidance::earley::ParserRecognizer;
use llguidance::toktrie::Recognizer;

use crate::grammar_place::rows;

/// Whether a character is plain.
pub(crate) fn is_plain(c: char) -> bool {
    !matches!(c, '"' | '\\' | '\x7f') && c >= ' '
}

/// Values of a byte.
type Bytes = RangeInclusive<u8>;

/// The values of a byte behind the second of a character.
const BEHIND: [Bytes; 2] = [0x80..=0xbf, 0x80..=0xbf];

/// The characters of two to four bytes: the values of the first and of the second byte, and how many follow.
const LONG: [(Bytes, Bytes, usize); 8] = [
    (0xc2..=0xdf, 0x80..=0xbf, 0),
    (0xe0..=0xe0, 0xa0..=0xbf, 1),
    (0xe1..=0xec, 0x80..=0xbf, 1),
    (0xed..=0xed, 0x80..=0x9f, 1),
    (0xee..=0xef, 0x80..=0xbf, 1),
    (0xf0..=0xf0, 0x90..=0xbf, 2),
    (0xf1..=0xf3, 0x80..=0xbf, 2),
    (0xf4..=0xf4, 0x80..=0x8f, 2),
];

/// What comes of a state of the lexer by some characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// None of them may follow.
    Refused,
    /// Each leads to this state, inside of the same lexeme.
    State(u32),
    /// It depends on the character, or the lexeme ends.
    Differs,
}

/// States that one mask looks at, whose transitions may be new to the lexer: a small part of a step's limit of work.
const MOST_NEW: usize = 8;

/// How many plain characters a lexeme takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainCount {
    /// So many, each of any sort, and no more.
    Most(usize),
    /// Whether one may follow depends on its sort, or the lexeme may end.
    Differs,
    /// Too many states are yet to be looked at: the next time it will be known, or more will be.
    NotYet,
}

/// What is known of the states of a lexer.
#[derive(Default)]
pub(crate) struct PlainSteps {
    /// What comes of each by a plain character.
    known: HashMap<u32, Step>,
}

impl PlainSteps {
    /// How many plain characters may follow at the recognizer's place, up to `most`, which stands for more, too.
    pub fn count(&mut self, rec: &mut ParserRecognizer<'_>, most: usize) -> PlainCount {
        rec.trie_started("plain characters");
        let known = self.known.len();
        let mut count = 0;
        let found = loop {
            let state = rec.lexer_state().as_u32();
            if !self.known.contains_key(&state) && self.known.len() == known + MOST_NEW {
                break PlainCount::NotYet;
            }
            match *self.known.entry(state).or_insert_with(|| by_plain(rec)) {
                Step::Differs => break PlainCount::Differs,
                Step::Refused => break PlainCount::Most(count),
                Step::State(next) if next == state => break PlainCount::Most(most),
                Step::State(_) if count + 1 >= most => break PlainCount::Most(most),
                Step::State(_) => {
                    let is_pushed = rec.try_push_byte(b'a');
                    assert!(is_pushed, "the lexer's transitions stay as they are");
                    count += 1;
                }
            }
        };
        rec.trie_finished();
        found
    }

    /// How many states are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }
}

/// What comes of the recognizer's state by any plain character.
fn by_plain(rec: &mut ParserRecognizer<'_>) -> Step {
    let state = rec.lexer_state();
    if !rec.lexer_mut().try_lexeme_end(state).is_error() {
        return Step::Differs;
    }
    let seen = &mut HashMap::new();
    let mut short = (b' '..=b'~').filter(|byte| is_plain(char::from(*byte)));
    let first = by_bytes(rec, b'a', &[], seen);
    let is_first = |step: Step| step == first && step != Step::Differs;
    let is_same = short.all(|byte| is_first(by_bytes(rec, byte, &[], seen)))
        && LONG.iter().all(|(begin, second, more)| {
            let rest: Vec<Bytes> = [second.clone()].into_iter().chain(BEHIND.into_iter().take(*more)).collect();
            begin.clone().all(|byte| is_first(by_bytes(rec, byte, &rest, seen)))
        });
    if is_same { first } else { Step::Differs }
}

/// What comes of the recognizer's state by `byte` and then any bytes of `rest`.
fn by_bytes(
    rec: &mut ParserRecognizer<'_>,
    byte: u8,
    rest: &[Bytes],
    seen: &mut HashMap<(u32, Vec<Bytes>), Step>,
) -> Step {
    let (state, before) = (rec.lexer_state(), rows(rec));
    if !rec.try_push_byte(byte) {
        // The parser may have refused a lexeme that ends.
        let is_error = rec.lexer_mut().advance(state, byte, false, &None).is_error();
        return if is_error { Step::Refused } else { Step::Differs };
    }
    let behind = rec.lexer_state().as_u32();
    let step = match rest {
        _ if rows(rec) != before => Step::Differs,
        [] => Step::State(behind),
        [next, more @ ..] => {
            let key = (behind, rest.to_vec());
            seen.get(&key).copied().unwrap_or_else(|| {
                let mut steps = next.clone().map(|byte| by_bytes(rec, byte, more, seen)).collect::<Vec<_>>();
                steps.dedup();
                let step = if let [step] = steps[..] { step } else { Step::Differs };
                seen.insert(key, step);
                step
            })
        }
    };
    rec.pop_bytes(1);
    step
}

#[cfg(test)]
mod tests {
    use llguidance::TokenParser;
    use llguidance::api::TopLevelGrammar;
    use serde_json::json;

    use super::*;
    use crate::vocabulary::{factory, special_word};
    use offshoot_core::ids::TokenId;

    /// How many plain characters a string's inside takes, behind these bytes.
    fn count(schema: &serde_json::Value, text: &str, most: usize) -> Option<usize> {
        let mut steps = PlainSteps::default();
        let mut parser = parser(schema, text);
        parser.parser.with_recognizer(|rec| {
            loop {
                match steps.count(rec, most) {
                    PlainCount::Most(count) => break Some(count),
                    PlainCount::Differs => break None,
                    PlainCount::NotYet => {}
                }
            }
        })
    }

    fn parser(schema: &serde_json::Value, text: &str) -> TokenParser {
        let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        let end = TokenId::new(words.len());
        words.push(special_word(b"<end>"));
        let factory = factory(&words, &[end]).expect("a trie");
        let mut parser = factory.create_parser(TopLevelGrammar::from_json_schema(schema.clone())).expect("a schema");
        parser.start_without_prompt();
        for byte in text.bytes() {
            parser.consume_token(u32::from(byte)).expect("the schema allows it");
        }
        parser
    }

    #[test]
    fn plain_characters_are_counted_where_all_are_alike() {
        let bounded = json!({"type": "string", "maxLength": 9});
        assert_eq!(count(&bounded, "\"", 100), Some(9));
        assert_eq!(count(&bounded, "\"", 4), Some(4));
        assert_eq!(count(&bounded, "\"añ語", 100), Some(6));
        assert_eq!(count(&bounded, "\"123456789", 100), Some(0));
        assert_eq!(count(&json!({"type": "string"}), "\"abc", 100), Some(100));
        // An escape is not complete; the string has ended, and may be followed by some characters.
        assert_eq!(count(&bounded, "\"a\\", 100), None);
        assert_eq!(count(&json!({"type": "array", "items": bounded}), "[\"a\"", 100), None);
        // Some characters are not allowed, or only some.
        assert_eq!(count(&json!({"type": "string", "pattern": "^[^é]*$"}), "\"", 100), None);
        assert_eq!(count(&json!({"type": "string", "pattern": "^[a-z]{3}$"}), "\"", 100), None);
        assert_eq!(count(&json!({"type": "integer"}), "1", 100), None);
    }
    /// Strings of many characters, of which several may be meant, are looked at in parts, each a small part of what a
    /// mask may take.
    #[test]
    fn a_mask_looks_at_few_states() {
        let bounded = |least: usize, most: usize| json!({"type": "string", "minLength": least, "maxLength": most});
        let several = json!({"anyOf": [bounded(0, 130), bounded(0, 200), bounded(2, 300)]});
        let mut parser = parser(&several, "\"");
        let mut steps = PlainSteps::default();
        let fuel = |parser: &TokenParser| parser.parser.lexer_stats().total_fuel_spent as u64;
        let mut calls = 0;
        loop {
            let before = fuel(&parser);
            let found = parser.parser.with_recognizer(|rec| steps.count(rec, 128));
            let spent = fuel(&parser) - before;
            assert!(spent < crate::limits::limits().step_lexer_fuel / 4, "{spent} in call {calls}");
            calls += 1;
            if found != PlainCount::NotYet {
                assert_eq!(found, PlainCount::Most(128));
                break;
            }
        }
        assert_eq!(calls, 128 / MOST_NEW);
    }
}
