//! Tokens by their texts: what a form names must be one token of the tokenizer where texts have it.

use crate::form::{Output, ScoreForm, TokenName};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_text::{AddSpecial, Tokenizer};

/// What texts stand behind when their tokens are looked up: a letter, a sign and a new line, none of which is part of a
/// longer token with all that can follow.
const BEFORE: [&str; 3] = ["a", ".", "\n"];

/// A field of a form, as errors name it.
pub(crate) fn field(name: &str) -> String {
    format!("the scorer's form: `{name}`")
}

impl ScoreForm {
    /// The tokens whose logits are the values of this form, in their order; `None`: the values are a reward head's.
    ///
    /// # Errors
    ///
    /// A word is not one token, or a word is good and bad; there are no words.
    pub fn words(&self, tokenizer: &Tokenizer) -> Result<Option<Vec<TokenId>>> {
        let (good, bad) = match &self.output {
            Output::Column { .. } | Output::Weighted { .. } => return Ok(None),
            Output::Logit { token } => return Ok(Some(vec![named_token(tokenizer, "token", token)?])),
            Output::Words { good, bad } => (good, bad),
        };
        let of = |field, words: &[TokenName]| -> Result<Vec<TokenId>> {
            words.iter().map(|word| named_token(tokenizer, field, word)).collect()
        };
        let (good, bad) = (of("good", good)?, of("bad", bad)?);
        for (name, words) in [("good", &good), ("bad", &bad)] {
            if words.is_empty() {
                return Err(Error::value(field(name), "at least one word", "none"));
            }
        }
        let all = [good, bad].concat();
        if let Some((_, twice)) = all.iter().enumerate().find(|(ix, token)| all[..*ix].contains(token)) {
            let what = format!("{} and `bad`", field("good"));
            return Err(Error::value(what, "different tokens", format!("token {twice} twice")));
        }
        Ok(Some(all))
    }
}

fn named_token(tokenizer: &Tokenizer, name: &str, token: &TokenName) -> Result<TokenId> {
    match token {
        TokenName::Text(text) => one_token(tokenizer, name, text),
        TokenName::Id(id) if (*id as usize) < tokenizer.vocab_size() => Ok(TokenId(*id)),
        TokenName::Id(id) => {
            let expected = format!("a token of {}, which has {}", tokenizer.folder().display(), tokenizer.vocab_size());
            Err(Error::value(field(name), expected, format!("token {id}")))
        }
    }
}

/// The one token of `text` behind other text. `name`: the form's field.
pub(crate) fn one_token(tokenizer: &Tokenizer, name: &str, text: &str) -> Result<TokenId> {
    let mut found = Vec::new();
    for before in BEFORE {
        let alone = tokenizer.encode(before, AddSpecial::No)?;
        let both = tokenizer.encode(&format!("{before}{text}"), AddSpecial::No)?;
        match both.strip_prefix(&*alone) {
            Some([token]) if !is_unknown(tokenizer, *token) => return Ok(*token),
            rest => found.push(rest.map(<[TokenId]>::to_vec)),
        }
    }
    let expected = format!("the text of one token of {}", tokenizer.folder().display());
    let tokens = found.into_iter().flatten().next().unwrap_or_default();
    let found = match &*tokens {
        [] => format!("`{text}`, which is none of its own"),
        [_] => format!("`{text}`, which it does not know"),
        tokens => format!("`{text}`, which is {} tokens there", tokens.len()),
    };
    Err(Error::value(field(name), expected, found))
}

fn is_unknown(tokenizer: &Tokenizer, token: TokenId) -> bool {
    tokenizer.named_token("unk_token").and_then(|text| tokenizer.token(text)) == Some(token)
}
