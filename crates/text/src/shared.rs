//! Encodes texts with a common beginning without encoding the beginning again: a document is encoded once, for any
//! number of questions, and so is an answer that grows step by step. The tokens are those of encoding each text whole.
//!
//! Byte-pair merges cannot cross a position that no token of the vocabulary crosses. The text is cut at such a
//! position, between the end of a word and a space; the tokens before the cut are reused from an earlier text, those
//! after it come from encoding the rest. The rest starts some words before the cut, so that the tokenizer's treatment
//! of the start of a text does not reach the cut; the cut is some words before the end of the shared part, so that no
//! token before it depends on what follows. Around the cut, both encodings must agree.

use std::collections::VecDeque;

use tokenizers::{AddedToken, ModelWrapper};

use super::special::{Speaker, SpecialText, TextFault};
use super::tokenizer::{AddSpecial, Encoded, LevelTokens, Tokenizer};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

/// Bytes that a shared encoder encodes again before a cut, and fewest shared bytes after it. Words, and white space
/// between them, are shorter.
const MARGIN: usize = 1024;
/// Shared beginnings with fewer bytes are encoded again.
const LEAST_SHARED: usize = 4 * MARGIN;
/// How far before a place a cut is looked for.
const FARTHEST_CUT: usize = 1024;
/// Number of remembered texts.
const KEPT: usize = 8;

/// A tokenizer that remembers the long texts it encoded last.
pub struct SharedEncoder<'t> {
    tokenizer: &'t Tokenizer,
    special_text: SpecialText,
    /// The latest first.
    kept: VecDeque<EncodedText>,
}

/// A text and its tokens.
struct EncodedText {
    text: String,
    special: AddSpecial,
    encoded: Encoded,
}

/// A text as the continuation of a remembered one.
struct ReusedEncoding {
    /// Index of the remembered text.
    from: usize,
    continued: Continued,
}

/// The tokens of a text as some of those of an earlier text and others behind them.
pub(super) struct Continued {
    /// Number of the earlier text's tokens that are reused.
    pub taken: usize,
    /// The tokens after them.
    pub rest: Encoded,
    /// Byte position of the cut in the text.
    pub cut: usize,
}

impl Continued {
    /// All tokens of the text. `before`: the earlier text's.
    pub fn behind(self, before: &Encoded) -> Encoded {
        Encoded {
            tokens: [&before.tokens[..self.taken], &self.rest.tokens].concat(),
            offsets: [&before.offsets[..self.taken], &self.rest.offsets].concat(),
        }
    }
}

/// The tokens of `text` as those of `before`, which shares its first `shared` bytes, and others; `None`: it must be
/// encoded whole. `margin`: bytes encoded again before the cut, and fewest shared bytes after it. `encode` encodes a
/// part of the text.
pub(super) fn continued(
    before: &Encoded,
    text: &str,
    shared: usize,
    margin: usize,
    encode: impl FnOnce(&str) -> Result<Encoded>,
) -> Result<Option<Continued>> {
    let bytes = text.as_bytes();
    let cut_at = |most: Option<usize>| most.and_then(|most| cut_before(bytes, most));
    let cut = cut_at(shared.checked_sub(margin));
    let start = cut_at(cut.and_then(|cut| cut.checked_sub(margin)));
    let (Some(cut), Some(start)) = (cut, start) else { return Ok(None) };
    let mut rest = encode(&text[start..])?;
    let (Some(taken), Some(left)) = (before.seam(cut), rest.seam(cut - start)) else { return Ok(None) };
    rest.tokens.drain(..left);
    rest.offsets.drain(..left);
    rest.shift(start)?;
    let both = before.offsets[taken..].iter().take_while(|&&(_, end)| end as usize <= cut + margin / 2).count();
    let agree = both > 0 && rest.tokens.get(..both) == Some(&before.tokens[taken..taken + both]);
    Ok(agree.then_some(Continued { taken, rest, cut }))
}

impl<'t> SharedEncoder<'t> {
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self::guarding(tokenizer, SpecialText::Allow)
    }

    /// An encoder of users' texts, in which `special_text` becomes of special tokens' texts. Where they are not
    /// allowed, it remembers nothing, and encodes what [`SharedEncoder::guard`] makes of texts.
    pub fn guarding(tokenizer: &'t Tokenizer, special_text: SpecialText) -> Self {
        Self { tokenizer, special_text, kept: VecDeque::new() }
    }

    /// What becomes of special tokens' texts.
    pub fn special_text(&self) -> SpecialText {
        self.special_text
    }

    /// A text of a prompt as it is encoded: hidden, unless special tokens are allowed in it.
    ///
    /// # Errors
    ///
    /// Those of [`Tokenizer::guard_text`].
    pub fn guard(&self, text: &str) -> Result<String, TextFault> {
        self.tokenizer.guard_text(self.special_text, text, Speaker::Assistant)
    }

    pub fn tokenizer(&self) -> &'t Tokenizer {
        self.tokenizer
    }

    /// Like [`Tokenizer::encode_levels`], of guarded levels.
    pub fn encode_levels(&mut self, levels: &[String], special: AddSpecial) -> Result<LevelTokens> {
        if self.special_text != SpecialText::Allow {
            return self.tokenizer.encode_hidden_levels(levels, special);
        }
        let text = levels.concat();
        let Some(ReusedEncoding { from, continued }) = self.continuation(&text, special)? else {
            let encoded = self.tokenizer.encode_text(&text, special)?;
            let found = encoded.levels(levels);
            self.keep(text, special, encoded);
            return Ok(found);
        };
        let cut = continued.cut;
        let encoded = continued.behind(&self.kept[from].encoded);
        let found = encoded.levels(levels);
        // For example the first question of another document with the same few-shot examples.
        if text.len() - cut > text.len() / 2 {
            self.keep(text, special, encoded);
        }
        Ok(found)
    }

    fn keep(&mut self, text: String, special: AddSpecial, encoded: Encoded) {
        if text.len() >= LEAST_SHARED {
            self.kept.truncate(KEPT - 1);
            self.kept.push_front(EncodedText { text, special, encoded });
        }
    }

    /// `text` as the continuation of a remembered text; `None`: it must be encoded whole.
    fn continuation(&self, text: &str, special: AddSpecial) -> Result<Option<ReusedEncoding>> {
        let candidates = self.kept.iter().enumerate().filter(|(_, whole)| whole.special == special);
        let shared = candidates.map(|(ix, whole)| (shared_bytes(&whole.text, text), ix)).max();
        let Some((shared, from)) = shared.filter(|&(shared, _)| shared >= LEAST_SHARED) else { return Ok(None) };
        if !self.tokenizer.can_cut() {
            return Ok(None);
        }
        let encode = |rest: &str| self.tokenizer.encode_text(rest, special);
        let continued = continued(&self.kept[from].encoded, text, shared, MARGIN, encode)?;
        Ok(continued.map(|continued| ReusedEncoding { from, continued }))
    }
}

impl Tokenizer {
    /// Whether no token crosses the end of a word before a space: a byte-pair model, without a token that has a letter
    /// or digit before a space or takes a space beside one.
    pub(super) fn can_cut(&self) -> bool {
        *self.can_cut.get_or_init(|| {
            let crosses =
                |bytes: &[u8]| bytes.windows(2).any(|pair| pair[0].is_ascii_alphanumeric() && pair[1] == b' ');
            let tokens = || self.inner.get_vocab(false).into_values().map(TokenId);
            let takes_space = |token: &AddedToken| {
                let (first, last) = (token.content.chars().next(), token.content.chars().last());
                let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
                token.rstrip && is_word(last) || token.lstrip && is_word(first)
            };
            let added = self.inner.get_added_tokens_decoder();
            matches!(self.inner.get_model(), ModelWrapper::BPE(_))
                && !tokens().any(|token| !self.is_special(token) && crosses(self.token_bytes(token)))
                && !added.values().any(|token| crosses(token.content.as_bytes()) || takes_space(token))
        })
    }
}

impl Encoded {
    /// The first token at or after the byte `at`, if no token crosses it.
    fn seam(&self, at: usize) -> Option<usize> {
        let ix = self.offsets.iter().position(|&(start, _)| start as usize >= at)?;
        (ix > 0 && self.offsets[ix - 1].1 as usize <= at).then_some(ix)
    }

    /// Shifts all offsets by `bytes`.
    ///
    /// # Errors
    ///
    /// The text has 4 GiB or more then.
    fn shift(&mut self, bytes: usize) -> Result<()> {
        let too_long = || Error::value("text", "less than 4 GiB", format!("{bytes} bytes and more"));
        let bytes = u32::try_from(bytes).map_err(|_| too_long())?;
        for (start, end) in self.offsets.iter_mut().filter(|offset| **offset != (0, 0)) {
            *end = end.checked_add(bytes).ok_or_else(too_long)?;
            *start += bytes;
        }
        Ok(())
    }
}

/// Number of bytes with which both texts begin.
pub(super) fn shared_bytes(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

/// The last position at or at most [`FARTHEST_CUT`] before `most` at which a word ends and is followed by a space and
/// another word. `most` must be before the text's last byte.
fn cut_before(text: &[u8], most: usize) -> Option<usize> {
    let is_cut =
        |at: &usize| text[at - 1].is_ascii_alphanumeric() && text[*at] == b' ' && text[at + 1].is_ascii_alphanumeric();
    (most.saturating_sub(FARTHEST_CUT).max(1)..=most).rev().find(is_cut)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn demo() -> Tokenizer {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
        Tokenizer::load(&folder).expect("the demo model is part of the project")
    }

    #[test]
    fn only_the_end_of_a_long_text_is_encoded_again() {
        let tokenizer = demo();
        let mut encoder = SharedEncoder::new(&tokenizer);
        let document = "The warm boat was described in a book every summer. ".repeat(400);
        let levels = |question: &str| [document.clone(), question.to_string()];
        encoder.encode_levels(&levels("Question: where is it?"), AddSpecial::Yes).expect("plain text");
        let second = levels("Question: who?").concat();
        let Ok(Some(ReusedEncoding { continued: Continued { taken, rest, .. }, .. })) =
            encoder.continuation(&second, AddSpecial::Yes)
        else {
            panic!("encoded whole");
        };
        let whole = tokenizer.encode(&second, AddSpecial::Yes).expect("plain text");
        assert_eq!(taken + rest.tokens.len(), whole.len());
        assert!(rest.tokens.len() * 5 < whole.len(), "{} of {}", rest.tokens.len(), whole.len());
        assert!(encoder.continuation(&second, AddSpecial::No).expect("plain text").is_none(), "other special tokens");
        assert!(
            encoder.continuation(&second[1..], AddSpecial::Yes).expect("plain text").is_none(),
            "nothing is shared"
        );
        assert!(
            encoder.continuation(&second[..1000], AddSpecial::Yes).expect("plain text").is_none(),
            "too little is shared"
        );
    }
}
