//! Masks inside JSON strings and the like. Of the tokens without quotes, backslashes and control characters, those that
//! a lexeme's inside allows depend on the lexer's state alone, not on what the parser has read: they are found once for
//! each state of a lane, and only the other tokens are walked through for each mask. Where such a token may end a
//! lexeme, and where llguidance's slices cover the tokens anyway, llguidance does all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

/// The slices of llguidance of which one has all tokens that most strings allow: those of up to 30 characters, and all.
const COVERING: [usize; 2] = [2, 3];
/// Work that finding out may take whether a slice is covered: llguidance's own bound.
const BUDGET: u64 = 1000;
/// States of a lane's lexer that are remembered.
const MOST_STATES: usize = 256;

/// The tokens of a vocabulary, parted into those that stand inside strings and the others.
pub(crate) struct InsideTokens {
    sliced: Arc<SlicedBiasComputer>,
    inside: TokTrie,
    others: TokTrie,
    /// The sets that lanes have, each once.
    sets: Mutex<Vec<Weak<SimpleVob>>>,
}

impl InsideTokens {
    pub fn new(sliced: Arc<SlicedBiasComputer>) -> Arc<InsideTokens> {
        let trie = sliced.trie();
        let (mut inside, mut others) = (trie.alloc_token_set(), trie.alloc_token_set());
        for token in 0..trie.vocab_size() as u32 {
            let stands_inside = |text: &str| !text.contains(|c: char| matches!(c, '"' | '\\' | '\x7f') || c < ' ');
            match std::str::from_utf8(trie.token(token)).is_ok_and(stands_inside) {
                true => inside.allow_token(token),
                false => others.allow_token(token),
            }
        }
        let (inside, others) = (trie.filter(&inside), trie.filter(&others));
        Arc::new(InsideTokens { sliced, inside, others, sets: Mutex::default() })
    }

    /// The set, or the one that a lane has, if one has the same.
    fn share(&self, set: SimpleVob) -> Arc<SimpleVob> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        sets.retain(|held| held.strong_count() > 0);
        if let Some(held) = sets.iter().filter_map(Weak::upgrade).find(|held| held.as_slice() == set.as_slice()) {
            return held;
        }
        let set = Arc::new(set);
        sets.push(Arc::downgrade(&set));
        set
    }
}

/// Computes the masks of a lane's matchers, whose states are those of one lexer.
pub(crate) struct LaneMasks {
    tokens: Arc<InsideTokens>,
    /// By the number of the lexer's state: the tokens inside strings that it allows. `None`: llguidance computes all.
    known: Mutex<HashMap<u32, Option<Arc<SimpleVob>>>>,
}

impl LaneMasks {
    pub fn new(tokens: Arc<InsideTokens>) -> LaneMasks {
        LaneMasks { tokens, known: Mutex::default() }
    }

    fn inside(&self, rec: &mut ParserRecognizer<'_>) -> Option<Arc<SimpleVob>> {
        let state = rec.lexer_state();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&state.as_u32()) {
            return found.clone();
        }
        let lexer = rec.lexer_mut();
        let is_covered = lexer.subsume_possible(state)
            && COVERING.iter().any(|&slice| lexer.check_subsume(state, slice, BUDGET, None).unwrap_or(false));
        let found = if is_covered { None } else { self.find(rec) };
        if known.len() >= MOST_STATES {
            known.clear();
        }
        known.insert(state.as_u32(), found.clone());
        found
    }

    /// The tokens inside strings that the lexer's state allows; `None` if the parser has a say.
    fn find(&self, rec: &mut ParserRecognizer<'_>) -> Option<Arc<SimpleVob>> {
        let mut set = self.tokens.inside.alloc_token_set();
        let mut walk = InsideWalk { rec, is_inside: true };
        self.tokens.inside.add_bias(&mut walk, &mut set, &[]);
        walk.is_inside.then(|| self.tokens.share(set))
    }
}

impl BiasComputer for LaneMasks {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        // Behind a part of a token that is sure to come, the walk begins elsewhere.
        let Some(inside) = (if start.is_empty() { self.inside(rec) } else { None }) else {
            return self.tokens.sliced.compute_bias(rec, start);
        };
        let mut set = (*inside).clone();
        self.tokens.others.add_bias(rec, &mut set, &[]);
        set
    }

    fn trie(&self) -> &TokTrie {
        self.tokens.sliced.trie()
    }
}

/// A walk through tokens that notices where a lexeme ends, or may end. What it finds then is of no use.
struct InsideWalk<'a, 'b> {
    rec: &'a mut ParserRecognizer<'b>,
    is_inside: bool,
}

impl Recognizer for InsideWalk<'_, '_> {
    fn pop_bytes(&mut self, num: usize) {
        self.rec.pop_bytes(num);
    }

    fn collapse(&mut self) {
        self.rec.collapse();
    }

    fn trie_started(&mut self, label: &str) {
        self.rec.trie_started(label);
    }

    fn trie_finished(&mut self) {
        self.rec.trie_finished();
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        if !self.is_inside {
            return false;
        }
        let state = self.rec.lexer_state();
        if !self.rec.lexer_mut().try_lexeme_end(state).is_error() {
            self.is_inside = false;
            return false;
        }
        // Each lexeme that the parser takes adds a row, or finds the one that it added before.
        let rows = |rec: &mut ParserRecognizer<'_>| {
            let stats = rec.stats_mut();
            (stats.rows, stats.cached_rows)
        };
        let before = rows(self.rec);
        let is_pushed = self.rec.try_push_byte(byte);
        self.is_inside = match is_pushed {
            true => rows(self.rec) == before,
            // No lexeme that the parser did not take.
            false => self.rec.lexer_mut().advance(state, byte, false, &None).is_error(),
        };
        is_pushed
    }

    fn save_stats(&mut self, nodes_walked: usize) {
        self.rec.save_stats(nodes_walked);
    }
}

#[cfg(test)]
mod tests {
    use llguidance::Matcher;
    use llguidance::api::TopLevelGrammar;
    use offshoot_core::dice::Dice;
    use serde_json::json;

    use super::*;
    use crate::vocabulary::factory;
    use offshoot_core::ids::TokenId;

    /// Bytes, and so many words: of letters, of several bytes a character, with quotes, escapes and white space.
    fn words() -> Vec<Vec<u8>> {
        const PARTS: [&str; 16] =
            ["a", "bo", " ", "é", "語", "\"", "\\", "\n", ",", ":", "}", "0", "17", "-", "te", "\\u00e9"];
        let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        let mut dice = Dice::new(50);
        let mut known: std::collections::HashSet<Vec<u8>> = words.iter().cloned().collect();
        while words.len() < 5_000 {
            let count = 1 + dice.within(0, 11);
            let part = |dice: &mut Dice| PARTS[dice.within(0, PARTS.len() as u32 - 1) as usize];
            let word: Vec<u8> = (0..count).flat_map(|_| part(&mut dice).bytes()).collect();
            if known.insert(word.clone()) {
                words.push(word);
            }
        }
        words
    }

    /// Masks found by state are llguidance's own, bit for bit, along texts of strings with and without bounds.
    #[test]
    fn masks_are_those_of_the_library() {
        let words = words();
        let end = TokenId::new(words.len());
        let words: Vec<Vec<u8>> = words.into_iter().chain([crate::vocabulary::special_word(b"<end>")]).collect();
        let factory = factory(&words, &[end]).expect("a trie");
        let inside = InsideTokens::new(factory.slicer());
        let bounded = |least: u32, most: u32| json!({"type": "string", "minLength": least, "maxLength": most});
        let schema = json!({"type": "object", "additionalProperties": false,
            "properties": {"a": bounded(0, 12), "b": bounded(25, 40), "c": {"type": "string"},
                "d": {"type": "string", "pattern": "^[a-z]{2,9} ?[0-9]{0,4}$"}, "e": {"enum": ["a", "abo", "boa"]},
                "f": {"type": "array", "items": bounded(1, 3), "maxItems": 3}},
            "required": ["a", "b", "c", "d", "e", "f"]});
        let mut found_by_state = 0;
        for seed in 0..12 {
            let parser = factory.create_parser(TopLevelGrammar::from_json_schema(schema.clone())).expect("a schema");
            let mut library = Matcher::new(Ok(parser));
            let mut parser =
                factory.create_parser(TopLevelGrammar::from_json_schema(schema.clone())).expect("a schema");
            // A lane of its own: states are numbers of its lexer.
            let masks = Arc::new(LaneMasks::new(inside.clone()));
            parser.bias_computer = masks.clone();
            let mut tested = Matcher::new(Ok(parser));
            let mut dice = Dice::new(seed);
            for step in 0..150 {
                if library.is_stopped() {
                    break;
                }
                let (expected, found) = (library.compute_mask().expect("a mask"), tested.compute_mask().expect("one"));
                assert_eq!(found.as_slice(), expected.as_slice(), "seed {seed}, token {step}");
                let allowed: Vec<u32> = expected.iter().collect();
                let token = allowed[dice.within(0, allowed.len() as u32 - 1) as usize];
                library.consume_token(token).expect("it is allowed");
                tested.consume_token(token).expect("it is allowed");
            }
            found_by_state += masks.known.lock().expect("nobody panicked").values().flatten().count();
        }
        assert!(found_by_state > 50, "only {found_by_state} states were found by walking the inside");
    }
}
