//! Where a matcher stands in its grammar, as far as what may come next depends on it. The parser of llguidance moves
//! from lexeme to lexeme: what it has read is told by their sequence, whatever their texts were, and the lexer's state
//! tells the rest. So texts of different tokens are in one place where they differ inside of strings and numbers alone,
//! and have one mask. Who keeps the masks of places is left to `lanes`.

use std::hash::{DefaultHasher, Hash, Hasher};

use llguidance::TokenParser;
use llguidance::earley::{CGrammar, ParserRecognizer};
use llguidance::toktrie::Recognizer;

use crate::endless::limits_tokens;

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
    pub fn and(self, parser: &mut TokenParser, bytes: &[u8]) -> Option<Lexemes> {
        parser.parser.with_recognizer(|rec| {
            let mut lexemes = self;
            rec.trie_started("lexemes");
            let is_taken = bytes.iter().all(|&byte| {
                let (state, before) = (rec.lexer_state(), rows(rec));
                let is_taken = rec.try_push_byte(byte);
                if is_taken && rows(rec) != before {
                    // Which lexeme has ended is told by the only one that was possible. Where there were several, the
                    // lexer's state tells it. What else the byte does, as a lexeme of its own, follows from these.
                    let mut possible = rec.lexer().possible_lexemes(state).iter().map(|lexeme| lexeme.as_usize());
                    let ended = match (possible.next(), possible.next()) {
                        (Some(only), None) => (0, only),
                        _ => (1, state.as_usize()),
                    };
                    lexemes = lexemes.then((ended, byte));
                }
                is_taken
            });
            rec.trie_finished();
            is_taken.then_some(lexemes)
        })
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

/// Rows of the parser, one for each lexeme: those that were added, and those found that were added before.
pub(crate) fn rows(rec: &mut ParserRecognizer<'_>) -> (usize, usize) {
    let stats = rec.stats_mut();
    (stats.rows, stats.cached_rows)
}

/// Whether a grammar's places tell its masks: it counts no tokens, names none, and nothing of a lexeme's text is given
/// back to be read again.
pub(crate) fn tells_masks(grammar: &CGrammar) -> bool {
    let lexemes = grammar.lexer_spec();
    let names_tokens = !lexemes.token_range_lexemes(&lexemes.all_lexemes()).is_empty();
    // The library cannot go back where lexemes have stops or count tokens.
    lexemes.can_rollback() && !names_tokens && !limits_tokens(grammar)
}
