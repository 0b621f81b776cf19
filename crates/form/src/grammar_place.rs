//! Where a matcher stands in its grammar, as far as what may come next depends on it. The parser of llguidance moves
//! from lexeme to lexeme: what it has read is told by their sequence, whatever their texts were, and the lexer's state
//! tells the rest. So texts of different tokens are in one place where they differ inside of strings and numbers alone,
//! and have one mask. Who keeps the masks of places is left to `lanes`.

use std::hash::{DefaultHasher, Hash, Hasher};

use llguidance::TokenParser;
use llguidance::derivre::StateID;
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::earley::{CGrammar, ParserRecognizer};
use llguidance::toktrie::Recognizer;

use crate::endless::{limits_tokens, nests};

/// A place in a grammar, among those of one lexer: of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GrammarPlace {
    lexemes: Lexemes,
    /// The number of the lexer's state.
    lexer: u32,
    /// Whether a lexeme has begun.
    is_inside: bool,
}

impl GrammarPlace {
    /// The place of a parser that has read `lexemes`.
    pub fn of(parser: &mut TokenParser, lexemes: Lexemes) -> GrammarPlace {
        let is_inside = parser.parser.has_pending_lexeme_bytes();
        let lexer = parser.parser.with_recognizer(|rec| rec.lexer_state().as_u32());
        GrammarPlace { lexemes, lexer, is_inside }
    }
}

/// The lexemes that a parser has read to their ends: two hashes of their sequence, which stand for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lexemes([u64; 2]);

impl Lexemes {
    /// The lexemes behind the next token, of these bytes, which the parser has not read yet; `None` if it does not take
    /// them.
    pub fn and(self, parser: &mut TokenParser, bytes: &[u8], skipped: Skipped) -> Option<Lexemes> {
        parser.parser.with_recognizer(|rec| {
            let mut lexemes = self;
            rec.trie_started("lexemes");
            let is_taken = bytes.iter().all(|&byte| {
                let (state, before) = (rec.lexer_state(), rows(rec));
                let is_taken = rec.try_push_byte(byte);
                let ended = rows(rec) - before;
                if is_taken && ended > 0 {
                    lexemes = lexemes.behind(rec, state, byte, ended, skipped);
                }
                is_taken
            });
            rec.trie_finished();
            is_taken.then_some(lexemes)
        })
    }

    /// The lexemes where `byte` has ended some in a state of the lexer: one, or one and then that of the byte alone.
    fn behind(self, rec: &ParserRecognizer<'_>, state: StateID, byte: u8, ended: usize, skipped: Skipped) -> Lexemes {
        let mut possible = rec.lexer().possible_lexemes(state).iter();
        match (possible.next(), possible.next(), ended) {
            // The only possible one has ended, whatever the byte is.
            (Some(only), None, 1) if skipped == Skipped::LeaveNothing && is_skip(rec, only) => self,
            (Some(only), None, 1) => self.then((0, only.as_usize())),
            // The byte's own follows from the one before it.
            (Some(only), None, _) => self.then((1, only.as_usize(), byte)),
            // Which one has ended follows from the state.
            _ => self.then((2, state.as_usize(), byte)),
        }
    }

    fn then(self, end: impl Hash) -> Lexemes {
        let mut seed = 0_u64;
        Lexemes(self.0.map(|hash| {
            let mut hasher = DefaultHasher::new();
            (seed, hash, &end).hash(&mut hasher);
            seed += 1;
            hasher.finish()
        }))
    }
}

/// What lexemes that a grammar skips, as white space, leave behind in a parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// Nothing, once the next lexeme has begun: a copy of the row before them.
    LeaveNothing,
    /// Also which of the grammars, one in another, goes on.
    LeaveGrammar,
}

impl Skipped {
    pub fn of(grammar: &CGrammar) -> Skipped {
        if nests(grammar) { Skipped::LeaveGrammar } else { Skipped::LeaveNothing }
    }
}

fn is_skip(rec: &ParserRecognizer<'_>, lexeme: LexemeIdx) -> bool {
    let lexemes = rec.lexer().lexer_spec();
    lexemes.skip_id(lexemes.lexeme_spec(lexeme).class()) == lexeme
}

/// Rows that the parser has had, one for each lexeme: added, or found where they were added before.
pub(crate) fn rows(rec: &mut ParserRecognizer<'_>) -> usize {
    let stats = rec.stats_mut();
    stats.rows + stats.cached_rows
}

/// Whether a grammar's places tell its masks: it counts no tokens, names none, and nothing of a lexeme's text is given
/// back to be read again.
pub(crate) fn tells_masks(grammar: &CGrammar) -> bool {
    let lexemes = grammar.lexer_spec();
    let names_tokens = !lexemes.token_range_lexemes(&lexemes.all_lexemes()).is_empty();
    // The library cannot go back where lexemes have stops or count tokens.
    lexemes.can_rollback() && !names_tokens && !limits_tokens(grammar)
}
