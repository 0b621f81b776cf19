//! A chat that goes on from a kept branch: as many of the branch's tokens as its text begins with are its own tokens,
//! and only what follows is encoded. So what was sampled is neither encoded nor computed again, even where the
//! tokenizer would spell the text with other tokens. A chat template may show earlier turns in another way (most leave
//! out earlier reasoning): what differs is encoded from the last special token before the difference on.

use crate::protocol::reader::RequestReader;
use crate::protocol::refusal::Refusal;
use crate::protocol::request::{PromptContent, ProtocolRequest, TextPrompt};
use offshoot_core::ids::TokenId;
use offshoot_text::{AddSpecial, Tokenizer};

impl RequestReader<'_> {
    /// The chat's request with its prompt in tokens, which begins with those of `kept` as far as its text does.
    pub fn encode_along(
        &self,
        request: ProtocolRequest<TextPrompt>,
        kept: &[TokenId],
    ) -> Result<ProtocolRequest, Refusal> {
        let mut request = request;
        let [prompt] = &mut request.prompts[..] else { return self.encode_after(request, &[]) };
        let tokens = match prompt.behind(kept, self.tokenizer) {
            Some((tokens, text, content)) => {
                (prompt.text, prompt.content) = (text, content);
                &kept[..tokens]
            }
            None => &[],
        };
        self.encode_after(request, tokens)
    }
}

impl TextPrompt {
    /// How many of the tokens `kept` the prompt begins with, and what of it follows them: its text, and what that is
    /// encoded from. `None`: it shares no beginning with them, or nothing follows.
    fn behind(&self, kept: &[TokenId], tokenizer: &Tokenizer) -> Option<(usize, String, PromptContent)> {
        let Shared { tokens, bytes } = Shared::of(kept, &self.text, tokenizer);
        let text = self.text.get(bytes..).filter(|text| tokens > 0 && !text.is_empty())?;
        let content = match &self.content {
            PromptContent::Text(AddSpecial::No) => PromptContent::Text(AddSpecial::No),
            PromptContent::Hidden { text, special: AddSpecial::No } => {
                let text = tokenizer.hidden_behind(text, bytes)?.to_owned();
                PromptContent::Hidden { text, special: AddSpecial::No }
            }
            _ => return None,
        };
        Some((tokens, text.to_owned(), content))
    }
}

/// The beginning that tokens share with a text: all of the tokens, or those up to a special token, at which the
/// encoding of what follows begins anew anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shared {
    pub tokens: usize,
    /// Of the text.
    pub bytes: usize,
}

impl Shared {
    pub(super) fn of(tokens: &[TokenId], text: &str, tokenizer: &Tokenizer) -> Shared {
        let mut stream = tokenizer.stream_with_special(&[]);
        let (mut shared, mut bytes) = (Shared::default(), 0);
        for (at, &token) in tokens.iter().enumerate() {
            let piece = stream.push(token);
            if !text[bytes..].starts_with(piece) {
                return shared;
            }
            bytes += piece.len();
            if tokenizer.is_special(token) {
                shared = Shared { tokens: at + 1, bytes };
            }
        }
        // A character of which only a part was sampled is none of the text.
        if stream.finish().is_empty() { Shared { tokens: tokens.len(), bytes } } else { shared }
    }
}
