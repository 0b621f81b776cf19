//! Matchers of grammars, llguidance's. Matchers of one lane share the tables of a lexer, which grow as they work,
//! behind a lock; a lane is worked on by one thread at a time, so that the lock is never waited for. Each branch's
//! matcher is a clone within its lane, of a few kilobytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokTrie};
use offshoot_core::bounded::caught;
use offshoot_core::ids::TokenId;

use crate::compile::CompiledForm;
use crate::grammar_place::{GrammarPlace, Lexemes, Skipped, tells_masks};
use crate::inside::LaneMasks;
use crate::mask::{RawMask, StateMask};
use crate::trial::plain;
use crate::vocabulary::FormVocabulary;

/// Lexer states of a lane, of 1 to 2 kB each, beyond which it is replaced by a fresh one.
const MOST_LEXER_STATES: usize = 20_000;
/// Tokens of a text that is read again for which the lexer has the work of one step.
const RENEWED_TOKENS: usize = 64;
/// Places of a lane whose masks are remembered.
const MOST_PLACES: usize = 1 << 13;
/// Bytes of each, about: the place, and what is left of a mask that nobody has any more.
const PLACE_BYTES: usize = 128;
/// Masks that are found by their place before one is computed nevertheless, by which llguidance's limit of the lexer's
/// work in one step begins anew.
const MOST_FOUND: usize = 256;
/// Items of the parser that computing a mask may leave behind in a matcher, which the next step does not need.
const MOST_ITEMS_LEFT: usize = 512;

/// Why a state has no mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The form does not allow a token at its place.
    Refused,
    /// The step's limit of work is exceeded, or the library fails.
    Failed(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Refused => f.write_str("a token that the form does not allow"),
            Fault::Failed(why) => f.write_str(why),
        }
    }
}

/// Why it is not known what a form allows in a state: finding it takes more work than a step may take, or the library
/// of grammars fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormLimit(Fault);

impl FormLimit {
    pub(crate) fn of(fault: Fault) -> FormLimit {
        FormLimit(fault)
    }
}

impl std::fmt::Display for FormLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The matchers of a form that share one lexer.
pub(crate) struct Lane {
    /// At the form's beginning; never moved on.
    start: TokenParser,
    /// Set when its lexer has failed or is too large: its matchers are made again in another lane.
    is_over: AtomicBool,
    /// The bytes that its lexer and its places took when they were last counted.
    bytes: AtomicUsize,
    /// How places of its matchers are told; `None` where places do not tell masks.
    skipped: Option<Skipped>,
    places: Mutex<Places>,
}

/// The masks that were computed in a lane, by the places of its matchers. The engine keeps them, or branches.
#[derive(Default)]
struct Places {
    masks: HashMap<GrammarPlace, Weak<StateMask>>,
    /// How many were found since one was computed.
    found: usize,
}

impl Places {
    fn get(&mut self, place: &GrammarPlace) -> Option<Arc<StateMask>> {
        let mask = if self.found < MOST_FOUND { self.masks.get(place)?.upgrade()? } else { return None };
        self.found += 1;
        Some(mask)
    }

    fn insert(&mut self, place: GrammarPlace, mask: &Arc<StateMask>) {
        if self.masks.len() >= MOST_PLACES {
            self.masks.clear();
        }
        self.masks.insert(place, Arc::downgrade(mask));
        self.found = 0;
    }
}

impl Lane {
    /// A lane with a fresh lexer.
    pub fn new(form: &CompiledForm) -> Arc<Lane> {
        Lane::of(form.fresh_parser(), form)
    }

    /// A lane whose lexer begins with the tables of this one's.
    pub fn copy(&self, form: &CompiledForm) -> Arc<Lane> {
        Lane::of(self.start.deep_clone(), form)
    }

    fn of(mut start: TokenParser, form: &CompiledForm) -> Arc<Lane> {
        if let Some(tokens) = &form.vocabulary().inside {
            start.bias_computer = Arc::new(LaneMasks::new(tokens.clone()));
        }
        // A copied lexer has what work was left to the one that it is a copy of.
        renew_work(&mut start);
        let grammar = start.parser.grammar();
        let skipped = tells_masks(grammar).then(|| Skipped::of(grammar));
        let (is_over, bytes, places) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::default());
        let lane = Lane { start, is_over, bytes, skipped, places };
        lane.check_size();
        Arc::new(lane)
    }

    /// Bytes of its lexer and its places.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Ends it: its matchers are made again in another lane.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The mask of a place, if it was remembered.
    pub fn known_mask(&self, place: &GrammarPlace) -> Option<Arc<StateMask>> {
        self.places().get(place)
    }

    /// Remembers the mask of a place.
    pub fn remember(&self, place: GrammarPlace, mask: &Arc<StateMask>) {
        self.places().insert(place, mask);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a lane whose lexer has grown too large, or was lost when the library failed.
    pub fn check_size(&self) {
        match caught(|| self.start.parser.lexer_stats()) {
            Ok(stats) => {
                let places = PLACE_BYTES * self.places().masks.len();
                self.bytes.store(stats.num_bytes + places, Ordering::Relaxed);
                if stats.num_states > MOST_LEXER_STATES {
                    self.end();
                }
            }
            Err(_) => self.end(),
        }
    }
}

/// Bytes that the matchers of an engine hold, about.
#[derive(Debug, Default)]
pub(crate) struct MatcherBytes(AtomicUsize);

impl MatcherBytes {
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A branch's matcher.
pub(crate) struct Matcher {
    parser: TokenParser,
    lane: Arc<Lane>,
    /// Tokens since the form's beginning that it has read.
    read: usize,
    /// The lexemes in them; `None` where they do not tell the place.
    lexemes: Option<Lexemes>,
    /// Its share of `total`.
    bytes: usize,
    total: Arc<MatcherBytes>,
}

impl Clone for Matcher {
    fn clone(&self) -> Self {
        Matcher::of(self.parser.clone(), self.lane.clone(), (self.read, self.lexemes), self.total.clone())
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        self.total.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Matcher {
    /// A matcher at its form's beginning.
    pub fn new(lane: Arc<Lane>, total: Arc<MatcherBytes>) -> Matcher {
        let lexemes = lane.skipped.map(|_| Lexemes::default());
        Matcher::of(lane.start.clone(), lane, (0, lexemes), total)
    }

    fn of(
        parser: TokenParser,
        lane: Arc<Lane>,
        (read, lexemes): (usize, Option<Lexemes>),
        total: Arc<MatcherBytes>,
    ) -> Matcher {
        let mut matcher = Matcher { parser, lane, read, lexemes, bytes: 0, total };
        matcher.count_bytes();
        matcher
    }

    pub fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    pub fn read(&self) -> usize {
        self.read
    }

    /// Reads the tokens of a state that it has not read yet. Returns where it stands then, if that tells its mask.
    ///
    /// # Errors
    ///
    /// One is not allowed, or a limit of work is exceeded.
    pub fn read_on(&mut self, tokens: &[TokenId], vocabulary: &FormVocabulary) -> Result<Option<GrammarPlace>, Fault> {
        self.guarded(|matcher| {
            matcher.read_each(tokens, vocabulary)?;
            let lexemes = matcher.lexemes.filter(|_| !matcher.parser.stopped());
            Ok(lexemes.map(|lexemes| GrammarPlace::of(&mut matcher.parser, lexemes)))
        })
    }

    /// Computes the mask of its place. The tokens `more` are allowed, too.
    ///
    /// # Errors
    ///
    /// A limit of work is exceeded.
    pub fn compute(&mut self, more: &[TokenId], vocabulary: &FormVocabulary) -> Result<RawMask, Fault> {
        self.guarded(|matcher| {
            let items = |parser: &TokenParser| parser.parser.stats().all_items;
            let before = items(&matcher.parser);
            let done = compute(&mut matcher.parser, more, vocabulary);
            if items(&matcher.parser) - before > MOST_ITEMS_LEFT {
                // They stay behind what is read. A clone has none of them.
                matcher.parser = matcher.parser.clone();
            }
            done
        })
    }

    /// What it does with llguidance: a failure ends its lane.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Matcher) -> Result<T, Fault>) -> Result<T, Fault> {
        let done = caught(|| work(self)).unwrap_or_else(|panic| Err(Fault::Failed(plain(&panic))));
        if matches!(done, Err(Fault::Failed(_))) {
            self.lane.end();
        }
        self.count_bytes();
        done
    }

    fn read_each(&mut self, tokens: &[TokenId], vocabulary: &FormVocabulary) -> Result<(), Fault> {
        let trie = vocabulary.factory.tok_env().tok_trie();
        let (first, is_replay) = (self.read, tokens.len() > self.read + 1);
        for (at, &token) in tokens.iter().enumerate().skip(first) {
            if is_replay && (at - first).is_multiple_of(RENEWED_TOKENS) {
                renew_work(&mut self.parser);
            }
            let is_end = vocabulary.ends.contains(&token);
            if self.parser.stopped() {
                // Behind a form's end only what ends a text may stand.
                match is_end {
                    true => self.read = at + 1,
                    false => return Err(Fault::Refused),
                }
                continue;
            }
            if token.ix() >= vocabulary.tokens() {
                return Err(Fault::Refused);
            }
            // What ends a text may end a lexeme as no byte does.
            let told = self.lexemes.zip(self.lane.skipped).filter(|_| !is_end);
            let lexemes =
                told.and_then(|(lexemes, skipped)| lexemes.and(&mut self.parser, trie.token(token.0), skipped));
            let taken = self.parser.consume_token(token.0).and_then(|_| self.parser.check_stop());
            taken.map_err(|error| self.fault_at(&tokens[..at], token, &error.to_string()))?;
            (self.read, self.lexemes) = (at + 1, lexemes);
        }
        Ok(())
    }

    /// Why the parser does not take `token` behind the tokens `before`, which it took. llguidance's errors do not say;
    /// a parser that has not met the token is asked.
    fn fault_at(&self, before: &[TokenId], token: TokenId, error: &str) -> Fault {
        let mut parser = self.lane.start.clone();
        let is_read = before.iter().all(|token| parser.consume_token(token.0).is_ok());
        let is_refused = is_read && parser.validate_token(token.0).is_ok_and(|is_valid| !is_valid);
        // A lexer that has spent its fuel takes no token.
        match is_refused && parser.parser.get_error().is_none() {
            true => Fault::Refused,
            false => Fault::Failed(plain(error)),
        }
    }

    /// Brings its share of the total up to date.
    fn count_bytes(&mut self) {
        let bytes = matcher_bytes(self.parser.final_bytes().len());
        if bytes != self.bytes {
            // Adds what it has more, or takes what it has less, as the sum wraps around: one write to what all share.
            self.total.0.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

/// Gives a parser's lexer the work of a step anew, as it has it before it computes a mask.
fn renew_work(parser: &mut TokenParser) {
    /// Allows no token, without a look at any.
    struct NoTokens<'a>(&'a TokTrie);

    impl BiasComputer for NoTokens<'_> {
        fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
            self.0.alloc_token_set()
        }

        fn trie(&self) -> &TokTrie {
            self.0
        }
    }

    let env = parser.token_env.clone();
    parser.parser.compute_bias(&NoTokens(env.tok_trie()), &[]);
    parser.parser.invalidate_bias_cache();
}

/// Bytes that a matcher of a text of so many bytes takes, about.
pub(crate) fn matcher_bytes(text: usize) -> usize {
    /// Measured: of a matcher at its beginning, and for each byte of a text of JSON.
    const BEGINNING: usize = 4 << 10;
    const TEXT_BYTE: usize = 40;
    BEGINNING + TEXT_BYTE * text
}

/// The mask of a parser's place.
fn compute(parser: &mut TokenParser, more: &[TokenId], vocabulary: &FormVocabulary) -> Result<RawMask, Fault> {
    let all = Some(&vocabulary.ends[..]);
    if parser.stopped() {
        return match parser.stop_reason() {
            StopReason::NoExtension | StopReason::EndOfSentence => Ok(RawMask::new(None, all, more, vocabulary)),
            StopReason::NoExtensionBias => Ok(RawMask::new(None, None, more, vocabulary)),
            reason => Err(Fault::Failed(reason.to_string())),
        };
    }
    let ends = all.filter(|_| parser.is_accepting());
    // Nothing is forced into the parser, whose tokens need not be the tokenizer's own, so that this is the whole mask.
    let computer = parser.bias_computer.clone();
    let set = parser.parser.compute_bias(&*computer, &[]);
    parser.parser.invalidate_bias_cache();
    if let Some(error) = parser.parser.get_error() {
        return Err(Fault::Failed(plain(&error.message())));
    }
    let named = if ends.is_none() { named_ends(parser, &set, vocabulary) } else { Vec::new() };
    let ends = ends.or_else(|| Some(&named[..]).filter(|named| !named.is_empty()));
    Ok(RawMask::new(Some(&set), ends, more, vocabulary))
}

/// The tokens of `set` that end a text and that the grammar has here as its last token.
fn named_ends(parser: &TokenParser, set: &SimpleVob, vocabulary: &FormVocabulary) -> Vec<TokenId> {
    let completes = |end: &TokenId| {
        let mut behind = parser.clone();
        behind.consume_token(end.0).is_ok() && behind.is_accepting()
    };
    vocabulary.ends.iter().copied().filter(|end| set.is_allowed(end.0) && completes(end)).collect()
}

/// Holds a state's matcher. Branches that forked share it until one of them goes on. Empty before the matcher is made,
/// and after it was dropped.
#[derive(Default)]
pub(crate) struct Slot {
    matcher: Mutex<Option<Matcher>>,
    /// Set when the matcher is used; cleared by each search for matchers to drop.
    is_used: AtomicBool,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

impl Slot {
    pub fn lock(&self) -> MutexGuard<'_, Option<Matcher>> {
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn put(&self, matcher: Matcher) {
        self.is_used.store(true, Ordering::Relaxed);
        *self.lock() = Some(matcher);
    }

    /// Whether it was used since this was last asked.
    pub fn take_used(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }
}
