//! Special tokens in texts of users. transformers makes a token of `<|im_end|>` wherever a prompt has it, so that a
//! user can end the turn and begin another role's. This module finds such texts, and encodes them as plain text while
//! the special tokens of a chat template stay tokens. The callers decide which texts are users'.
//!
//! A chat is rendered from texts in which each special token's text is hidden behind a mark. In the rendered text what
//! looks like a special token is the template's: it becomes an alias, a token that only a copy of the tokenizer knows,
//! which reads no special tokens otherwise. Then the hidden texts are shown again, and the copy encodes everything at
//! once, so that the tokens around are those of the tokenizer itself.

use std::borrow::Cow;
use std::collections::HashMap;

use regex::Regex;
use tokenizers::AddedToken;

use super::tokenizer::{AddSpecial, Tokenizer};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

/// What becomes of special tokens' texts in the text of users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialText {
    /// They become the tokens, as in transformers.
    #[default]
    Allow,
    /// They are encoded as any other text.
    Escape,
    /// The text is refused.
    Refuse,
}

/// How a text that may have special tokens' texts is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// They become the tokens.
    Written,
    /// All of it is plain text, as in [`Tokenizer::encode_plain`].
    Plain,
    /// Rendered of hidden texts, as in [`Tokenizer::encode_hidden`].
    Hidden,
}

/// What begins and ends the marks of hidden texts, and the aliases of special tokens: characters that Unicode keeps for
/// programs' own use and that are in no text.
const HIDDEN: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];
const ALIAS: [char; 2] = ['\u{FDD2}', '\u{FDD3}'];

/// The special tokens of a tokenizer by their texts, and the tokenizer that takes them for text.
pub(super) struct SpecialTexts {
    /// Finds the longest special token's text at each place; `None`: there are no special tokens.
    pattern: Option<Regex>,
    ids: HashMap<String, u32>,
    /// What a hidden text's mark holds: the token's id.
    texts: HashMap<u32, String>,
    /// Reads no special tokens but the aliases.
    plain: tokenizers::Tokenizer,
    /// The special token of each alias.
    aliased: HashMap<u32, TokenId>,
}

impl SpecialTexts {
    pub fn of(inner: &tokenizers::Tokenizer) -> SpecialTexts {
        let mut special: Vec<(u32, AddedToken)> =
            inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special).collect();
        special.sort_by(|(a, of_a), (b, of_b)| (of_b.content.len(), a).cmp(&(of_a.content.len(), b)));
        special.retain(|(_, token)| !token.content.is_empty());
        let alternatives: Vec<String> = special.iter().map(|(_, token)| regex::escape(&token.content)).collect();
        let pattern = (!special.is_empty()).then(|| {
            let built = regex::RegexBuilder::new(&alternatives.join("|")).size_limit(1 << 28).build();
            built.expect("alternatives of plain texts are a pattern")
        });
        let mut plain = inner.clone();
        plain.set_encode_special_tokens(true);
        let alias_token = |(id, token): &(u32, AddedToken)| AddedToken {
            content: alias(*id),
            single_word: false,
            normalized: false,
            special: false,
            ..token.clone()
        };
        plain.add_tokens(&special.iter().map(alias_token).collect::<Vec<_>>());
        let alias_id = |id: u32| plain.token_to_id(&alias(id)).expect("it was added");
        let aliased = special.iter().map(|&(id, _)| (alias_id(id), TokenId(id))).collect();
        let ids = special.iter().map(|(id, token)| (token.content.clone(), *id)).collect();
        let texts = special.into_iter().map(|(id, token)| (id, token.content)).collect();
        SpecialTexts { pattern, ids, texts, plain, aliased }
    }

    /// `text` with each special token's text replaced.
    fn replace<'t>(&self, text: &'t str, by: impl Fn(u32) -> String) -> Cow<'t, str> {
        match &self.pattern {
            None => text.into(),
            Some(pattern) => pattern.replace_all(text, |found: &regex::Captures<'_>| {
                by(*self.ids.get(&found[0]).expect("the pattern finds these texts alone"))
            }),
        }
    }

    /// `text` with the hidden texts in their places.
    fn shown<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let Some((before, rest)) = text.split_once(HIDDEN[0]) else { return text.into() };
        let mut out = before.to_owned();
        for piece in rest.split(HIDDEN[0]) {
            let (id, after) = piece.split_once(HIDDEN[1]).unwrap_or((piece, ""));
            // A template may have cut a mark in two: what is left of it is dropped.
            out.push_str(id.parse().ok().and_then(|id: u32| self.texts.get(&id)).map_or("", String::as_str));
            out.push_str(after);
        }
        out.into()
    }
}

fn alias(id: u32) -> String {
    format!("{}{id}{}", ALIAS[0], ALIAS[1])
}

impl Tokenizer {
    /// The first special token's text in `text`.
    pub fn special_in<'t>(&self, text: &'t str) -> Option<&'t str> {
        Some(self.special_texts().pattern.as_ref()?.find(text)?.as_str())
    }

    /// A user's text with the texts of special tokens hidden, for a template to render and
    /// [`Tokenizer::encode_hidden`] to encode.
    ///
    /// # Errors
    ///
    /// The text has one of the characters that mark hidden texts.
    pub fn hide_special(&self, text: &str) -> Result<String> {
        check_unmarked(text)?;
        let hidden = self.special_texts().replace(text, |id| format!("{}{id}{}", HIDDEN[0], HIDDEN[1]));
        Ok(hidden.into_owned())
    }

    /// A rendered text with its hidden texts in their places.
    pub fn show_special<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match text.contains(HIDDEN[0]) {
            true => self.special_texts().shown(text),
            false => text.into(),
        }
    }

    /// The tokens of a rendered text: its special tokens, and hidden texts as plain text.
    ///
    /// # Errors
    ///
    /// The tokenizer makes a special token of plain text.
    pub fn encode_hidden(&self, text: &str, special: AddSpecial) -> Result<Vec<TokenId>> {
        let texts = self.special_texts();
        let aliased = texts.replace(text, alias);
        self.encode_aliased(&texts.shown(&aliased), special)
    }

    /// The tokens of a user's text: special tokens' texts in it are plain text, as with transformers'
    /// `split_special_tokens`.
    ///
    /// # Errors
    ///
    /// The tokenizer makes a special token of plain text; the text has one of the characters that mark hidden texts.
    pub fn encode_plain(&self, text: &str, special: AddSpecial) -> Result<Vec<TokenId>> {
        check_unmarked(text)?;
        self.encode_aliased(text, special)
    }

    fn encode_aliased(&self, text: &str, special: AddSpecial) -> Result<Vec<TokenId>> {
        let texts = self.special_texts();
        // Special tokens around the text are the tokenizer's own.
        let tokens = self.encode_with(&texts.plain, text, false)?;
        // The unknown token stands for a character without one, as ever.
        let unknown = self.named_token("unk_token").and_then(|text| self.token(text));
        if let Some(&token) = tokens.iter().find(|token| self.is_special(**token) && Some(**token) != unknown) {
            let found = String::from_utf8_lossy(self.token_bytes(token)).into_owned();
            let what = format!("the tokenizer has no other tokens for the text {found:?} than the special one");
            return Err(Error::format(&self.folder, what));
        }
        let named = tokens.into_iter().map(|token| texts.aliased.get(&token.0).copied().unwrap_or(token));
        let around = self.encode("", special)?;
        let (ahead, behind) = self.around_text(&around, special)?;
        Ok(ahead.iter().copied().chain(named).chain(behind.iter().copied()).collect())
    }

    /// The special tokens around a text, parted into those before and those behind it. `around`: all of them.
    fn around_text<'a>(&self, around: &'a [TokenId], special: AddSpecial) -> Result<(&'a [TokenId], &'a [TokenId])> {
        if around.is_empty() {
            return Ok((around, around));
        }
        const PROBE: &str = "a";
        let (bare, whole) = (self.encode(PROBE, AddSpecial::No)?, self.encode(PROBE, special)?);
        let ahead = (0..=around.len()).find(|&ahead| whole[ahead..].starts_with(&bare)).unwrap_or(around.len());
        Ok(around.split_at(ahead))
    }

    /// The tokens of the end of a text: its last `most`, with the special tokens around it among them, or all of them
    /// if there are fewer. Encodes not much more than is needed, however long the text is.
    pub fn encode_end(&self, text: &str, special: AddSpecial, most: usize, kind: TextKind) -> Result<Vec<TokenId>> {
        /// Bytes of a token in most texts, and a margin.
        const TOKEN_BYTES: usize = 8;
        const LEAST_BYTES: usize = 64 << 10;
        // What stands before an end can change its first tokens only.
        const FIRST_TOKENS: usize = 256;
        let encode = |text: &str| match kind {
            TextKind::Written => self.encode(text, AddSpecial::No),
            TextKind::Plain => self.encode_plain(text, AddSpecial::No),
            TextKind::Hidden => self.encode_hidden(text, AddSpecial::No),
        };
        let around = self.encode("", special)?;
        let (ahead, behind) = self.around_text(&around, special)?;
        let room = most.saturating_sub(around.len());
        let mut bytes = most.saturating_mul(TOKEN_BYTES).max(LEAST_BYTES);
        let tokens = loop {
            let from = text.len().saturating_sub(bytes);
            let start = (from..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
            let tokens = encode(&text[start..])?;
            if start == 0 || tokens.len() > room + FIRST_TOKENS {
                break tokens;
            }
            bytes *= 2;
        };
        let kept = &tokens[tokens.len().saturating_sub(room)..];
        let whole = [ahead, kept, behind].concat();
        Ok(whole[whole.len().saturating_sub(most)..].to_vec())
    }
}

/// Refuses the characters that mark hidden texts.
fn check_unmarked(text: &str) -> Result<()> {
    match text.chars().find(|char| HIDDEN.contains(char) || ALIAS.contains(char)) {
        Some(found) => Err(Error::value(
            "text with special tokens escaped",
            "characters other than U+FDD0 to U+FDD3, which Unicode assigns to none",
            format!("U+{:04X}", u32::from(found)),
        )),
        None => Ok(()),
    }
}
