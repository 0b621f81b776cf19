//! A tokenizer, and the tokens of a text, as data. `load` and `gguf` read tokenizers; the crate's root encodes and
//! decodes with them.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::chat::ChatTemplates;
use super::pieces::TokenPieces;
use super::special::SpecialTexts;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

/// Whether the tokenizer's special tokens (usually a beginning of text) are added around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecial {
    Yes,
    No,
}

/// Where the special tokens around a text are defined.
pub(super) enum SurroundingTokens {
    /// As in tokenizer.json's post-processor.
    PostProcessor,
    /// As in tokenizer_config.json, for the tokenizer classes for which it overrides the post-processor.
    Config { bos: Option<TokenId>, eos: Option<TokenId> },
}

/// A model's tokenizer.
pub struct Tokenizer {
    pub(super) folder: PathBuf,
    pub(super) inner: tokenizers::Tokenizer,
    pub(super) around: SurroundingTokens,
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    pub(super) pieces: Arc<TokenPieces>,
    /// Whether texts can be encoded in parts; computed on first use.
    pub(super) can_cut: OnceLock<bool>,
    pub(super) templates: ChatTemplates,
    pub(super) chat_stops: Vec<String>,
    /// Computed on first use.
    pub(super) special_texts: OnceLock<SpecialTexts>,
}

/// The tokens of a prompt and where its levels end in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelTokens {
    pub tokens: Vec<TokenId>,
    /// For each level, the number of tokens up to its end; a token across a boundary belongs to the later level.
    /// Rising; the last is `tokens.len()`.
    pub level_ends: Vec<usize>,
}

impl LevelTokens {
    /// The tokens of each level, as ranges.
    pub fn levels(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let starts = std::iter::once(0).chain(self.level_ends.iter().copied());
        starts.zip(&self.level_ends).map(|(start, &end)| start..end)
    }
}

/// A beginning of a text that has too many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongBeginning {
    pub bytes: usize,
    pub tokens: usize,
}

/// The tokens of a text, including the special ones around it.
pub(super) struct Encoded {
    pub tokens: Vec<TokenId>,
    /// The byte range of each token in the text; (0, 0) for the special ones around it. In 32 bits, as many encodings
    /// are kept for longer texts to go on from.
    pub offsets: Vec<(u32, u32)>,
}

impl Encoded {
    /// # Errors
    ///
    /// The text has 4 GiB or more.
    pub fn new(tokens: Vec<TokenId>, offsets: Vec<(usize, usize)>) -> Result<Encoded> {
        let narrow = |at: usize| u32::try_from(at).map_err(|_| Error::value("text", "less than 4 GiB", at.to_string()));
        let offsets = offsets.into_iter().map(|(start, end)| Ok((narrow(start)?, narrow(end)?)));
        Ok(Encoded { tokens, offsets: offsets.collect::<Result<_>>()? })
    }

    /// `levels`: the text, cut into levels.
    pub fn levels(&self, levels: &[String]) -> LevelTokens {
        let (mut text_end, mut token) = (0, 0);
        let mut level_ends: Vec<usize> = Vec::with_capacity(levels.len());
        for level in levels {
            text_end += level.len();
            token += self.offsets[token..].iter().take_while(|&&(_, end)| end as usize <= text_end).count();
            level_ends.push(token);
        }
        if let Some(last) = level_ends.last_mut() {
            *last = self.tokens.len();
        }
        LevelTokens { tokens: self.tokens.clone(), level_ends }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("folder", &self.folder).finish_non_exhaustive()
    }
}
