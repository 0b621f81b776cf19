//! Converts text to tokens and back, exactly as Hugging Face transformers does for the same model folder; also streamed
//! decoding, stop strings and chat templates. The callers decide which text is encoded.
//!
//! A folder's tokenizer.json is taken as it is. transformers 4 does so too; version 5 builds the tokenizers of some
//! classes anew: Llama 2's then loses the space at a text's start (" Hello" and "Hello" have the same tokens) and puts
//! none behind special tokens. What is read here gives the tokens of sentencepiece, with which such models were
//! trained, and of llama.cpp.
//!
//! A prompt is always encoded *whole*: its levels are only positions in its tokens, and the prefix tree finds what
//! prompts share, token by token. So users get exactly the tokens of `transformers`, even if a merge crosses the
//! boundary of two levels.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod channels;
mod chat;
mod choices;
mod content_start;
mod gguf;
mod growth;
pub mod jinja;
mod load;
pub mod message;
mod pieces;
mod pre_tokenizers;
pub mod reasoning;
mod shared;
mod special;
mod stops;
mod stream;
mod tiktoken;
mod tokenizer;
pub mod tools;

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use tokenizers::NormalizedString;
use tokenizers::tokenizer::normalizer;

use offshoot_core::bounded::caught;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_gguf::Gguf;

pub use chat::{CHAT_TEMPLATES, ChatOptions};
pub use choices::ChoiceTokens;
pub use jinja::strftime;
pub use message::Message;
pub use shared::SharedEncoder;
use special::SpecialTexts;
pub use special::{ChatPlace, HiddenEncoding, Speaker, SpecialText, TextFault, TextKind};
pub use stops::{CertainText, StopMatcher};
pub use stream::TextStream;
pub use tokenizer::{AddSpecial, LevelTokens, LongBeginning, Tokenizer};
use tokenizer::{Encoded, SurroundingTokens};

impl Tokenizer {
    /// Reads a model folder's tokenizer.json, or else vocab.json and merges.txt, or else tiktoken.model, and, if
    /// present, tokenizer_config.json, special_tokens_map.json, added_tokens.json and chat_template.jinja; or the
    /// metadata of a GGUF file.
    ///
    /// # Errors
    ///
    /// The files are no tokenizer, or one that lengthens texts far more than that of any known model.
    pub fn load(folder: &Path) -> Result<Tokenizer> {
        let loaded = match offshoot_gguf::files(folder)? {
            Some(_) => {
                let gguf = Gguf::open(folder)?;
                caught(|| gguf::load(&gguf))
            }
            None => caught(|| load::load(folder)),
        };
        loaded.unwrap_or_else(|panic| {
            Err(Error::format(folder, format!("the tokenizer cannot be read: its library fails ({panic})")))
        })
    }

    /// Whether a model has no tokenizer at all, rather than a broken one.
    pub fn is_missing(folder: &Path) -> bool {
        match offshoot_gguf::files(folder) {
            Ok(Some(_)) => Gguf::open(folder).is_ok_and(|gguf| gguf::is_missing(&gguf)),
            _ => load::is_missing(folder),
        }
    }

    /// The folder or file that it was read from.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// The beginning of text, as tokenizer_config.json names it.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The end of text, as tokenizer_config.json names it; the model's generation_config.json may name more.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token of exactly this text, if there is one.
    pub fn token(&self, text: &str) -> Option<TokenId> {
        self.inner.token_to_id(text).map(TokenId)
    }

    /// The tokens of a text. Special tokens in the text become those tokens.
    pub fn encode(&self, text: &str, special: AddSpecial) -> Result<Vec<TokenId>> {
        let mut tokens = self.encode_tokens(text, self.post_process(special))?;
        self.add_special_tokens(special, &mut tokens);
        Ok(tokens)
    }

    /// The shortest tried beginning of `text` that alone has more than `most` tokens; `None`: the whole text is to be
    /// encoded. Encodes not much more than `most` tokens, however long the text is: the library takes about 200 bytes
    /// of memory for each byte that it encodes.
    pub fn beginning_beyond(&self, text: &str, most: usize) -> Result<Option<LongBeginning>> {
        /// Bytes of a token in most texts, and a margin.
        const TOKEN_BYTES: usize = 8;
        const LEAST_BYTES: usize = 64 << 10;
        // What follows a beginning can change its last tokens only.
        const LAST_TOKENS: usize = 256;
        let mut bytes = (most * TOKEN_BYTES).max(LEAST_BYTES);
        while bytes < text.len() {
            let end = (0..=bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            let beginning = &text[..end];
            let tokens = self.encode_tokens(beginning, false)?.len();
            if tokens > most + LAST_TOKENS {
                return Ok(Some(LongBeginning { bytes, tokens }));
            }
            bytes *= 2;
        }
        Ok(None)
    }

    /// The tokens of the levels' concatenation, and where in them each level ends.
    ///
    /// # Errors
    ///
    /// A character without a token, which transformers would drop silently.
    pub fn encode_levels(&self, levels: &[String], special: AddSpecial) -> Result<LevelTokens> {
        Ok(self.encode_text(&levels.concat(), special)?.levels(levels))
    }

    /// The runs of tokens that spell `word` where a text begins and behind a space: what may not be sampled if the word
    /// is not to appear. Spaces before it are left out.
    ///
    /// # Errors
    ///
    /// A character without a token, or no character at all.
    pub fn spellings(&self, word: &str) -> Result<Vec<Vec<TokenId>>> {
        let word = word.trim_start();
        if word.is_empty() {
            return Err(Error::value("a word that must not be sampled", "text", "an empty string"));
        }
        let mut spellings = vec![self.encode(word, AddSpecial::No)?];
        let behind_space = self.encode(&format!(" {word}"), AddSpecial::No)?;
        // Where the space is a token of its own, the first spelling tells all.
        if !behind_space.ends_with(&spellings[0]) {
            spellings.push(behind_space);
        }
        Ok(spellings)
    }

    fn encode_text(&self, text: &str, special: AddSpecial) -> Result<Encoded> {
        let post_process = self.post_process(special);
        let (mut tokens, mut offsets) = self.checked(|| {
            let encoding = self.inner.encode(text, post_process)?;
            Ok((tokens_of(&encoding), encoding.get_offsets().to_vec()))
        })?;
        self.cover_all(text, &mut offsets)?;
        let ahead = self.add_special_tokens(special, &mut tokens);
        offsets.splice(0..0, std::iter::repeat_n((0, 0), ahead));
        offsets.resize(tokens.len(), (0, 0));
        Encoded::new(tokens, offsets)
    }

    /// Covers what normalisation swallows. An error names a character that has no token.
    fn cover_all(&self, text: &str, offsets: &mut [(usize, usize)]) -> Result<()> {
        match self.cover_swallowed(text, offsets) {
            None => Ok(()),
            Some(lost) => {
                let what = format!("the tokenizer has no token for {lost:?}, which a prompt holds");
                Err(Error::format(&self.folder, what))
            }
        }
    }

    /// Adds the characters that normalisation swallows (an accent that becomes part of a letter, one that is stripped)
    /// to the ranges of the tokens before them. Returns the first character, except white space, that has no token.
    fn cover_swallowed(&self, text: &str, offsets: &mut [(usize, usize)]) -> Option<char> {
        let gaps = gaps(text, offsets);
        if gaps.is_empty() {
            return None;
        }
        let normalised = self.normalised(text);
        let becomes = |(at, c): (usize, char)| normalised[at..at + c.len_utf8()].iter().copied().flatten().next();
        for gap in &gaps {
            let marks = text[gap.clone()].char_indices().filter(|(_, c)| !c.is_whitespace());
            let mut left = marks.filter_map(|(at, c)| becomes((gap.start + at, c)));
            if let Some(lost) = left.find(|c| !c.is_whitespace()) {
                return Some(self.without_token(&normalised).unwrap_or(lost));
            }
        }
        let mut gaps = gaps.into_iter().peekable();
        for offset in offsets.iter_mut().filter(|offset| offset.0 < offset.1) {
            while gaps.next_if(|gap| gap.start < offset.1).is_some() {}
            if let Some(gap) = gaps.peek().filter(|gap| gap.start == offset.1) {
                offset.1 = gap.end;
            }
        }
        None
    }

    /// The first of these characters that has no token alone. Ranges do not tell: behind a lost character the library
    /// counts those of its word as if there had been none.
    fn without_token(&self, characters: &[Option<char>]) -> Option<char> {
        let mut known = HashSet::new();
        let mut others = characters.iter().flatten().filter(|c| !c.is_whitespace() && known.insert(**c));
        let has_none = |c: char| self.encode_tokens(&c.to_string(), false).is_ok_and(|tokens| tokens.is_empty());
        others.find(|c| has_none(**c)).copied()
    }

    /// For each byte of `text`, a character of the normalised text that comes from it; `None`: of a byte that
    /// normalisation swallows, and of those of added tokens, which are not normalised.
    fn normalised(&self, text: &str) -> Vec<Option<char>> {
        let mut all = vec![None; text.len()];
        let mut pieces = self.inner.get_added_vocabulary().extract_and_normalize(self.inner.get_normalizer(), text);
        let note = |_: usize, piece: NormalizedString| {
            let (start, _) = piece.offsets_original();
            for (at, c) in piece.get().char_indices() {
                let from = piece.convert_offsets(normalizer::Range::Normalized(at..at + c.len_utf8()));
                for byte in from.into_iter().flatten() {
                    if let Some(known) = all.get_mut(start + byte) {
                        known.get_or_insert(c);
                    }
                }
            }
            Ok(std::iter::once(piece))
        };
        pieces.split(note).expect("`note` does not fail");
        all
    }

    fn encode_tokens(&self, text: &str, post_process: bool) -> Result<Vec<TokenId>> {
        self.encode_with(&self.inner, text, post_process)
    }

    fn encode_with(&self, inner: &tokenizers::Tokenizer, text: &str, post_process: bool) -> Result<Vec<TokenId>> {
        self.checked(|| Ok(tokens_of(&inner.encode_fast(text, post_process)?)))
    }

    fn special_texts(&self) -> &SpecialTexts {
        self.special_texts.get_or_init(|| SpecialTexts::of(&self.inner, &self.templates.sources()))
    }

    /// What `encode` returns. The library panics where an expression of a stranger's tokenizer.json has tried too many
    /// ways to match a text.
    fn checked<T>(&self, encode: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
        match caught(encode) {
            Ok(Ok(encoded)) => Ok(encoded),
            Ok(Err(error)) => Err(self.fault(error)),
            Err(panic) => Err(self.fault(format!("its library fails ({panic})").into())),
        }
    }

    fn post_process(&self, special: AddSpecial) -> bool {
        special == AddSpecial::Yes && matches!(self.around, SurroundingTokens::PostProcessor)
    }

    /// Adds the special tokens of tokenizer_config.json around a text; returns the number of tokens put before it.
    fn add_special_tokens(&self, special: AddSpecial, tokens: &mut Vec<TokenId>) -> usize {
        match (special, &self.around) {
            (AddSpecial::Yes, SurroundingTokens::Config { bos, eos }) => {
                tokens.splice(0..0, *bos);
                tokens.extend(*eos);
                bos.iter().len()
            }
            _ => 0,
        }
    }

    fn fault(&self, e: tokenizers::Error) -> Error {
        Error::format(&self.folder, format!("the tokenizer cannot encode this text: {e}"))
    }

    /// The text of tokens, without special tokens. Bytes that are not UTF-8 become U+FFFD. Unlike transformers, this
    /// never applies `clean_up_tokenization_spaces`, which removes spaces before punctuation and so would damage code.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        self.stream(&[]).text_of(tokens)
    }

    /// Like [`Tokenizer::decode`], with special tokens written out.
    pub fn decode_with_special(&self, tokens: &[TokenId]) -> String {
        self.stream_with_special(&[]).text_of(tokens)
    }

    /// Decodes tokens one by one as the continuation of `context`, the prompt's tokens: the result is the text of
    /// everything minus the text of the context. (transformers' `decode` of the new tokens alone would lose the first
    /// space of a sentencepiece model, and so indentation.)
    pub fn stream(&self, context: &[TokenId]) -> TextStream {
        TextStream::new(self.pieces.clone(), context, false)
    }

    /// Like [`Tokenizer::stream`], with special tokens written out.
    pub fn stream_with_special(&self, context: &[TokenId]) -> TextStream {
        TextStream::new(self.pieces.clone(), context, true)
    }

    /// Whether the token is special: not part of any text.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.pieces.is_special(token)
    }

    /// Whether texts keep the token although it is special: the marks of channels and of calls.
    pub fn is_mark(&self, token: TokenId) -> bool {
        let added = self.inner.get_added_vocabulary();
        let is_special = |text: String| added.is_special_token(&text);
        !self.is_special(token) && added.simple_id_to_token(token.0).is_some_and(is_special)
    }

    /// Whether the model answers in channels (gpt-oss, Gemma 4): its texts keep their marks.
    pub fn has_channels(&self) -> bool {
        load::CHANNEL_MARKS.iter().any(|marks| self.token(marks[0]).is_some())
    }

    /// The bytes of a token in the middle of a text, special tokens written out; empty for unknown ids.
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        self.pieces.shown(token)
    }

    /// The text of a special token by its name in tokenizer_config.json, such as `pad_token`.
    pub fn named_token(&self, name: &str) -> Option<&str> {
        self.templates.token(name)
    }

    /// The texts of the special tokens that have a name, such as `eos_token`, by it; `additional_special_tokens` is a
    /// list of texts.
    pub fn special_tokens(&self) -> &serde_json::Map<String, serde_json::Value> {
        self.templates.tokens()
    }

    /// The source of the model's default chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates.source()
    }

    /// The source of the chat template that `options` choose.
    pub fn chosen_template<'a>(&'a self, options: &'a ChatOptions) -> Option<&'a str> {
        self.templates.chosen(options)
    }

    /// Texts that end the assistant's turn of a chat where the model has no token for it: `chat_stop_strings` of
    /// tokenizer_config.json, a key of Offshoot's own.
    pub fn chat_stops(&self) -> &[String] {
        &self.chat_stops
    }

    /// Whether the chat template takes a content that is a list of parts of text, rather than printing the list.
    pub fn takes_parts(&self, options: &ChatOptions) -> bool {
        const PARTS: [&str; 2] = ["OFFSHOOT-FIRST-PART", "OFFSHOOT-SECOND-PART"];
        let part = |text: &str| serde_json::json!({"type": "text", "text": text});
        let turn = Message::new("user", "").with("content", PARTS.map(part).to_vec());
        // Python and JSON print the list with its texts in quotes.
        let is_bare = |text: &str, part: &str| {
            text.contains(part) && !['\'', '"'].iter().any(|quote| text.contains(&format!("{quote}{part}{quote}")))
        };
        let is_text = |text: String| PARTS.iter().all(|part| is_bare(&text, part));
        let alone = ChatOptions { tools: Vec::new(), ..options.clone() };
        self.chat_with(&[turn], &alone).is_ok_and(is_text)
    }

    /// The conversation rendered by the model's chat template, up to the start of the assistant's turn. It contains its
    /// own beginning of text: encode it with [`AddSpecial::No`].
    pub fn chat(&self, messages: &[Message]) -> Result<String> {
        self.chat_with(messages, &ChatOptions::default())
    }

    /// Like [`Tokenizer::chat`], with options of the template.
    pub fn chat_with(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        self.templates.render(&self.folder, messages, options)
    }
}

fn tokens_of(encoding: &tokenizers::Encoding) -> Vec<TokenId> {
    encoding.get_ids().iter().copied().map(TokenId).collect()
}

/// The bytes outside all of the tokens' ranges, where they have more than white space.
fn gaps(text: &str, offsets: &[(usize, usize)]) -> Vec<Range<usize>> {
    let mut covered = 0;
    let mut gaps = Vec::new();
    for &(start, end) in offsets.iter().chain([&(text.len(), text.len())]) {
        let gap = text.get(covered..start).unwrap_or_default();
        if gap.chars().any(|c| !c.is_whitespace()) {
            gaps.push(covered..start);
        }
        covered = covered.max(end);
    }
    gaps
}
