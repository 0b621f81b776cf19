//! Places in a text that a chat template is yet to render. A mark stands at each; in the rendered text the marks say
//! where its tokens are cut, and then are gone. So a place is found whatever the template writes around it, and no text
//! of an answer can pass for one.

use serde::Serialize;

use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_text::{AddSpecial, HiddenEncoding, Speaker, Tokenizer};

/// A character that Unicode keeps for programs' own use and that is in no text; `offshoot-text` uses four others.
pub(crate) const MARK: char = '\u{FDD4}';

/// The tokens of a marked text.
pub(crate) struct MarkedTokens {
    pub tokens: Vec<TokenId>,
    /// For each mark, the number of tokens before it; a token across a mark is behind it.
    pub marks: Vec<usize>,
}

/// The tokens of a rendered text of hidden texts, and what a longer one needs to be encoded with little work. `before`:
/// that of a text that begins alike.
pub(crate) fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    special: AddSpecial,
    before: Option<&HiddenEncoding>,
) -> Result<(MarkedTokens, HiddenEncoding)> {
    let levels: Vec<String> = text.split(MARK).map(str::to_owned).collect();
    let (encoded, encoding) = tokenizer.encode_hidden_behind(&levels, special, before)?;
    let mut marks = encoded.level_ends;
    // The last level ends where the text does.
    marks.pop();
    Ok((MarkedTokens { tokens: encoded.tokens, marks }, encoding))
}

/// A stranger's text with the texts of special tokens hidden in it.
pub(crate) fn hidden(tokenizer: &Tokenizer, text: &str, speaker: Speaker) -> Result<String> {
    refuse_marks(&text)?;
    tokenizer.hide_special(text, speaker)
}

/// Refuses texts with a mark.
pub(crate) fn refuse_marks(texts: &impl Serialize) -> Result<()> {
    let written = serde_json::to_string(texts).expect("texts are JSON");
    match written.contains(MARK) {
        true => Err(Error::value("text to score", "characters that Unicode assigns", "U+FDD4, which it does not")),
        false => Ok(()),
    }
}

/// `text` with a mark at its end, but before white space there, so that a template can trim it. A text of white space
/// alone has none.
pub(crate) fn marked_end(text: &str) -> String {
    let end = text.trim_end().len();
    match end {
        0 => text.to_owned(),
        _ => format!("{}{MARK}{}", &text[..end], &text[end..]),
    }
}
