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

/// Refuses a text of a form that looks like a special token's, such as `<extra_0>`, or that has one in it, such as
/// `<|end|>`, and that the tokenizer does not know as one token: the model would read it as plain text. `name`: the
/// form's field.
pub(crate) fn check_special(tokenizer: &Tokenizer, name: &str, text: &str) -> Result<()> {
    for special in special_looking(text) {
        let tokens = tokenizer.encode(special, AddSpecial::No)?;
        if matches!(&*tokens, [token] if !is_unknown(tokenizer, *token)) {
            continue;
        }
        let folder = tokenizer.folder().display();
        let expected = format!("a text that is one token of {folder}, as it looks like a special one");
        let found = match tokens.len() {
            1 => format!("`{special}`, which it does not know"),
            count => format!("`{special}`, which is {count} tokens there"),
        };
        return Err(Error::value(field(name), expected, found));
    }
    Ok(())
}

/// The whole text if it is `<...>`, else each `<|...|>` in it; `...`: no white space and none of these signs.
fn special_looking(text: &str) -> Vec<&str> {
    let is_name =
        |inner: &str| !inner.is_empty() && !inner.contains(|c: char| c.is_whitespace() || "<>{}/".contains(c));
    let whole = text.trim();
    if whole.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).is_some_and(is_name) {
        return vec![whole];
    }
    let ends = text.match_indices("|>").map(|(at, end)| at + end.len());
    let special = |end: usize| {
        let start = text[..end].rfind("<|")?;
        Some(&text[start..end]).filter(|special| special.len() > 4 && is_name(&special[2..special.len() - 2]))
    };
    ends.filter_map(special).collect()
}

fn is_unknown(tokenizer: &Tokenizer, token: TokenId) -> bool {
    tokenizer.named_token("unk_token").and_then(|text| tokenizer.token(text)) == Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_special_token() {
        assert_eq!(special_looking("<extra_0>"), ["<extra_0>"]);
        assert_eq!(special_looking("\n<｜end▁of▁sentence｜> "), ["<｜end▁of▁sentence｜>"]);
        assert_eq!(special_looking("<|a|>"), ["<|a|>"]);
        assert_eq!(special_looking("<|a|>x {{question}}<|b_1|>\n<|c |><||>"), ["<|a|>", "<|b_1|>"]);
        for text in
            ["", "\n\n", " ки", "<", "<>", "a < b", "<a b>", "</think>", "x <tag>", "{{bos}}<{{answer}}>", "a|>"]
        {
            assert!(special_looking(text).is_empty(), "{text}");
        }
    }
}
