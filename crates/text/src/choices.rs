//! Encodes several continuations of one prompt, and decides where in the tokens the prompt ends.

use super::shared::SharedEncoder;
use super::tokenizer::{AddSpecial, LevelTokens, Tokenizer};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

/// The tokens that all continuations share, and the remaining tokens of each continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceTokens {
    pub prompt: LevelTokens,
    pub continuations: Vec<Vec<TokenId>>,
}

impl Tokenizer {
    /// Each prompt + continuation is encoded whole, as the model saw such texts in training. If a token crosses the
    /// boundary in one of them, the prompt ends before it for all of them, so that all log-probabilities follow the
    /// same tokens. (lm-eval cuts each at the length of the prompt's own tokens, and so drops parts of such tokens.)
    ///
    /// # Errors
    ///
    /// A continuation without tokens; a prompt without any remaining token.
    pub fn encode_choices(
        &self,
        levels: &[String],
        continuations: &[String],
        special: AddSpecial,
    ) -> Result<ChoiceTokens> {
        SharedEncoder::new(self).encode_choices(levels, continuations, special)
    }
}

impl SharedEncoder<'_> {
    /// Like [`Tokenizer::encode_choices`], of guarded levels and continuations.
    pub fn encode_choices(
        &mut self,
        levels: &[String],
        continuations: &[String],
        special: AddSpecial,
    ) -> Result<ChoiceTokens> {
        let mut texts = levels.to_vec();
        let mut first: Option<LevelTokens> = None;
        // Number of tokens that the texts so far share.
        let mut shared = usize::MAX;
        // Each text's tokens from some position on; those before it are the first's.
        let mut tails: Vec<(usize, Vec<TokenId>)> = Vec::with_capacity(continuations.len());
        for continuation in continuations {
            texts.push(continuation.clone());
            let whole = self.encode_levels(&texts, special)?;
            texts.pop();
            let seam = levels.len().checked_sub(1).map_or(0, |last| whole.level_ends[last]);
            let first = first.get_or_insert_with(|| whole.clone());
            let pairs = whole.tokens[..seam].iter().zip(&first.tokens).take(shared);
            shared = pairs.take_while(|(a, b)| a == b).count();
            tails.push((shared, whole.tokens[shared..].to_vec()));
        }
        let Some(first) = first else {
            return Err(Error::value("continuations of a prompt", "at least one", "none"));
        };
        if shared == 0 {
            return Err(Error::value("prompt", "at least one token before its continuations", "none"));
        }
        if let Some(ix) = tails.iter().position(|(from, tail)| *from == shared && tail.is_empty()) {
            return Err(Error::value(
                "continuation",
                "at least one token",
                format!("\"{}\"", continuations[ix].escape_debug()),
            ));
        }
        let level_ends = first.level_ends[..levels.len()].iter().map(|&end| end.min(shared)).collect();
        Ok(ChoiceTokens {
            prompt: LevelTokens { tokens: first.tokens[..shared].to_vec(), level_ends },
            continuations: tails.iter().map(|(from, tail)| [&first.tokens[shared..*from], tail].concat()).collect(),
        })
    }
}
