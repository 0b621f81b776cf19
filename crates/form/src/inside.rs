//! Masks inside JSON strings and the like. Of the tokens of plain characters, those that a lexeme's inside allows
//! depend on the lexer's state alone, not on what the parser has read: they are found once for each state of a lane,
//! and only the other tokens are walked through for each mask. Where such a token may end a lexeme, llguidance does
//! all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use crate::chars::{PlainCount, PlainSteps, is_plain};
use crate::grammar_place::rows;
use crate::mask::hash;

/// The slices of llguidance of which one has all tokens that most strings allow: those of up to 30 characters, and all.
const COVERING: [usize; 2] = [2, 3];
/// The work of testing whether a slice is covered, at most: llguidance's own bound.
const BUDGET: u64 = 1000;
/// States of a lane's lexer that are remembered.
const MOST_STATES: usize = 1 << 14;
/// Sets of tokens that a lane remembers.
const MOST_SETS: usize = 256;
/// Tokens of a set that is kept as a list.
const FEW_TOKENS: usize = 64;

/// The tokens of a vocabulary, parted into those of plain characters, which stand inside strings, and the others.
pub(crate) struct InsideTokens {
    sliced: Arc<SlicedBiasComputer>,
    inside: TokTrie,
    others: TokTrie,
    /// The tokens inside strings by their number of characters.
    by_count: Vec<Vec<u32>>,
    /// The tokens inside strings of up to so many characters, by that number; made when they are needed.
    up_to: Vec<OnceLock<Arc<SimpleVob>>>,
    /// The sets that lanes have, each once, by their hashes.
    sets: Mutex<HashMap<u64, Vec<Weak<SimpleVob>>>>,
}

impl InsideTokens {
    pub fn new(sliced: Arc<SlicedBiasComputer>) -> Arc<InsideTokens> {
        let trie = sliced.trie();
        let (mut inside, mut others) = (trie.alloc_token_set(), trie.alloc_token_set());
        let mut by_count: Vec<Vec<u32>> = vec![Vec::new()];
        for token in 0..trie.vocab_size() as u32 {
            let text = std::str::from_utf8(trie.token(token)).ok().filter(|text| text.chars().all(is_plain));
            let Some(text) = text else {
                others.allow_token(token);
                continue;
            };
            inside.allow_token(token);
            let count = text.chars().count();
            // A token without a text is in no set.
            if count > 0 {
                by_count.resize(by_count.len().max(count + 1), Vec::new());
                by_count[count].push(token);
            }
        }
        let (inside, others) = (trie.filter(&inside), trie.filter(&others));
        let up_to = by_count.iter().map(|_| OnceLock::new()).collect();
        Arc::new(InsideTokens { sliced, inside, others, by_count, up_to, sets: Mutex::default() })
    }

    /// Characters of the longest token inside strings.
    fn longest(&self) -> usize {
        self.by_count.len() - 1
    }

    /// The tokens inside strings of up to `count` characters.
    fn up_to(&self, count: usize) -> Arc<SimpleVob> {
        let make = || {
            let mut set = self.inside.alloc_token_set();
            self.by_count[..=count].iter().flatten().for_each(|token| set.allow_token(*token));
            Arc::new(set)
        };
        self.up_to[count].get_or_init(make).clone()
    }

    /// The set, or the one that a lane has, if one has the same.
    fn share(&self, set: SimpleVob) -> Arc<SimpleVob> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let same_hash = sets.entry(hash(set.as_slice())).or_default();
        same_hash.retain(|held| held.strong_count() > 0);
        if let Some(held) = same_hash.iter().filter_map(Weak::upgrade).find(|held| held.as_slice() == set.as_slice()) {
            return held;
        }
        let set = Arc::new(set);
        same_hash.push(Arc::downgrade(&set));
        if sets.len() > 4 * MOST_SETS {
            sets.retain(|_, same_hash| same_hash.iter().any(|held| held.strong_count() > 0));
        }
        set
    }
}

/// The tokens inside strings that a state of the lexer allows.
#[derive(Clone)]
enum Inside {
    /// It depends on the parser: llguidance computes the whole mask.
    Unknown,
    Few(Arc<[u32]>),
    Set(Arc<SimpleVob>),
}

/// Computes the masks of a lane's matchers, whose states are those of one lexer.
pub(crate) struct LaneMasks {
    tokens: Arc<InsideTokens>,
    states: Mutex<LaneStates>,
}

/// What is known of a lexer's states, by their numbers.
#[derive(Default)]
struct LaneStates {
    inside: HashMap<u32, Inside>,
    /// How many have a set that was found for them.
    sets: usize,
    plain: PlainSteps,
}

impl LaneMasks {
    pub fn new(tokens: Arc<InsideTokens>) -> LaneMasks {
        LaneMasks { tokens, states: Mutex::default() }
    }

    fn inside(&self, rec: &mut ParserRecognizer<'_>) -> Inside {
        let state = rec.lexer_state();
        let states = &mut *self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = states.inside.get(&state.as_u32()) {
            return known.clone();
        }
        if states.inside.len() + states.plain.len() >= MOST_STATES || states.sets >= MOST_SETS {
            *states = LaneStates::default();
        }
        let found = match states.plain.count(rec, self.tokens.longest()) {
            PlainCount::Most(count) => Inside::Set(self.tokens.up_to(count)),
            PlainCount::Differs => self.find(rec),
            // It is not remembered, so that the next mask goes on.
            PlainCount::NotYet => return Inside::Unknown,
        };
        states.sets += usize::from(matches!(found, Inside::Set(_)));
        states.inside.insert(state.as_u32(), found.clone());
        found
    }

    /// The tokens inside strings that the lexer's state allows, found by a walk through them.
    fn find(&self, rec: &mut ParserRecognizer<'_>) -> Inside {
        let state = rec.lexer_state();
        let lexer = rec.lexer_mut();
        let is_covered = lexer.subsume_possible(state)
            && COVERING.iter().any(|&slice| lexer.check_subsume(state, slice, BUDGET, None).unwrap_or(false));
        if is_covered {
            return Inside::Unknown;
        }
        let mut set = self.tokens.inside.alloc_token_set();
        let mut walk = InsideWalk { rec, is_inside: true };
        self.tokens.inside.add_bias(&mut walk, &mut set, &[]);
        match walk.is_inside {
            false => Inside::Unknown,
            true if set.num_set() <= FEW_TOKENS => Inside::Few(set.iter().collect()),
            true => Inside::Set(self.tokens.share(set)),
        }
    }
}

impl BiasComputer for LaneMasks {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        // Behind a part of a token that is sure to come, the walk begins elsewhere.
        let inside = if start.is_empty() { self.inside(rec) } else { Inside::Unknown };
        let mut set = match inside {
            Inside::Unknown => return self.tokens.sliced.compute_bias(rec, start),
            Inside::Few(tokens) => {
                let mut set = self.tokens.others.alloc_token_set();
                tokens.iter().for_each(|token| set.allow_token(*token));
                set
            }
            Inside::Set(set) => (*set).clone(),
        };
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
        let is_known = |inside: &&Inside| !matches!(inside, Inside::Unknown);
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
            found_by_state += masks.states.lock().expect("nobody panicked").inside.values().filter(is_known).count();
        }
        assert!(found_by_state > 50, "only {found_by_state} states were found by walking the inside");
    }
}
