//! A model's tokens in the form that grammars are matched with: llguidance's trie of their bytes, and its slices, which
//! are sets of tokens whose texts are often all allowed or all banned (the insides of JSON strings). One is made per
//! tokenizer, when its first form comes; compiled forms share it.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use offshoot_core::bounded::caught;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_text::Tokenizer;

use crate::inside::InsideTokens;
use crate::limits::limits;
use crate::mask::StateMask;

/// The longest text of a token that the trie has, in bytes. Forms never allow longer ones.
const MOST_TOKEN_BYTES: usize = 1024;

/// Values of a byte.
const BYTES: usize = 256;

/// The tokens of a model as grammars are matched with them.
pub struct FormVocabulary {
    pub(crate) factory: ParserFactory,
    /// `None`: of a small vocabulary, which has no slices.
    pub(crate) inside: Option<Arc<InsideTokens>>,
    /// The tokens that end a text.
    pub(crate) ends: Vec<TokenId>,
    /// Tokens of the model, which may be more than the tokenizer's.
    pub(crate) vocab: usize,
    /// The special tokens, those that stay in texts included, and the ends of a text: what a grammar can name.
    pub(crate) named: Vec<(TokenId, String)>,
    /// What is allowed before a form begins: all but what ends the text, which would lack its form.
    pub(crate) free: Arc<StateMask>,
}

impl FormVocabulary {
    /// The vocabulary of a model of `vocab` tokens, of which `ends` end a text.
    ///
    /// # Errors
    ///
    /// The tokenizer's tokens make no trie, as where there are more than 4 million distinct beginnings of them.
    pub fn new(tokenizer: &Tokenizer, ends: &[TokenId], vocab: usize) -> Result<Self> {
        let tokens = tokenizer.vocab_size().min(vocab);
        let ends: Vec<TokenId> = ends.iter().copied().filter(|end| end.ix() < tokens).collect();
        let mut named = Vec::new();
        let mut word = |token: TokenId| {
            let bytes = tokenizer.token_bytes(token);
            if bytes.len() > MOST_TOKEN_BYTES {
                return Vec::new();
            }
            match tokenizer.is_special(token) || tokenizer.is_mark(token) || ends.contains(&token) {
                true => {
                    named.push((token, String::from_utf8_lossy(bytes).into_owned()));
                    special_word(bytes)
                }
                // No text has this byte; behind it llguidance would read the name of a special token.
                false if bytes.len() > 1 && bytes[0] == TokTrie::SPECIAL_TOKEN_MARKER => Vec::new(),
                false => bytes.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..tokens).map(|ix| word(TokenId::new(ix))).collect();
        let factory = caught(|| factory(&words, &ends)).and_then(|made| made);
        let factory = factory.map_err(|why| {
            Error::format(tokenizer.folder(), format!("grammars cannot be matched with its tokens: {why}"))
        })?;
        Ok(FormVocabulary::of(factory, ends, named, vocab))
    }

    /// A vocabulary of `tokens` ids in which only bytes have tokens, but for those `named`: grammars are tried with it.
    pub(crate) fn of_bytes(tokens: usize, named: Vec<(TokenId, String)>, ends: Vec<TokenId>) -> FormVocabulary {
        let tokens = tokens.max(named.len() + BYTES);
        let mut words = vec![Vec::new(); tokens];
        let known = named.iter().filter(|(token, _)| token.ix() < tokens);
        known.for_each(|(token, name)| words[token.ix()] = special_word(name.as_bytes()));
        let free = words.iter_mut().filter(|word| word.is_empty());
        free.zip(0..=u8::MAX).for_each(|(word, byte)| word.push(byte));
        let ends = ends.into_iter().filter(|end| end.ix() < tokens).collect::<Vec<_>>();
        let factory = factory(&words, &ends).expect("bytes and names of tokens make a trie");
        FormVocabulary::of(factory, ends, named, tokens)
    }

    /// Whether tokens spell a text.
    pub(crate) fn spells(&self, text: &str) -> bool {
        let trie = self.factory.tok_env().tok_trie();
        let is_token = |bytes: &[u8]| trie.token_id_at_bytes(bytes).is_some();
        let bytes = text.as_bytes();
        if bytes.iter().all(|byte| is_token(&[*byte])) {
            return true;
        }
        // Whether the text up to a place is spelled.
        let mut spelled = vec![false; bytes.len() + 1];
        spelled[0] = true;
        for end in 1..=bytes.len() {
            let begins = end.saturating_sub(MOST_TOKEN_BYTES)..end;
            spelled[end] = begins.rev().any(|begin| spelled[begin] && is_token(&bytes[begin..end]));
        }
        spelled[bytes.len()]
    }

    fn of(factory: ParserFactory, ends: Vec<TokenId>, named: Vec<(TokenId, String)>, vocab: usize) -> FormVocabulary {
        let free = Arc::new(StateMask::free(&ends, vocab));
        let inside = has_slices(factory.tok_env().tok_trie().vocab_size());
        let inside = inside.then(|| InsideTokens::new(factory.slicer()));
        FormVocabulary { factory, inside, ends, named, vocab, free }
    }

    /// The tokens that have a text: ids below this.
    pub(crate) fn tokens(&self) -> usize {
        self.factory.tok_env().tok_trie().vocab_size()
    }
}

/// How the trie writes a token that only its name, or the end of a text, allows.
pub(crate) fn special_word(name: &[u8]) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
}

/// Whether a vocabulary of so many tokens is large enough for slices to save time.
fn has_slices(tokens: usize) -> bool {
    tokens > 4096
}

pub(crate) fn factory(words: &[Vec<u8>], ends: &[TokenId]) -> Result<ParserFactory, String> {
    let end = ends.first().map_or(INVALID_TOKEN, |end| end.0);
    let mut trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(&ends.iter().map(|end| end.0).collect::<Vec<u32>>());
    }
    // Not canonical: a grammar allows all spellings of a text, not only the tokenizer's own.
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = if has_slices(words.len()) { SlicedBiasComputer::json_slices() } else { Vec::new() };
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|e| e.to_string())?;
    *factory.limits_mut() = limits();
    factory.quiet();
    Ok(factory)
}
