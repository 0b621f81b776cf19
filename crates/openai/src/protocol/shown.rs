//! The text of a sample as its request shows it, and where each of its tokens stands in that text.

use offshoot_core::ids::TokenId;
use offshoot_engine::{Finish, FinishReason, Stop};
use offshoot_text::{StopMatcher, TextStream, Tokenizer};

use super::request::EncodedPrompt;

/// The text of one sample as it grows.
pub enum SampleText {
    /// The engine's, without special tokens; number of its bytes so far.
    Engine(usize),
    WithSpecial(Box<SpecialText>),
}

/// A text with its special tokens written out, cut at a stop string as the engine's is.
pub struct SpecialText {
    stream: TextStream,
    stops: StopMatcher,
    strings: Vec<String>,
    /// Tokens before which no stop string is searched.
    min_tokens: usize,
    tokens: usize,
    stopped_by: Option<usize>,
}

impl SampleText {
    pub fn new(skips_special: bool, prompt: &EncodedPrompt, tokenizer: &Tokenizer) -> Self {
        match skips_special {
            true => SampleText::Engine(0),
            false => SampleText::WithSpecial(Box::new(SpecialText::new(prompt, tokenizer))),
        }
    }

    /// New text that is final: `text` is the engine's, with these tokens.
    pub fn push(&mut self, tokens: impl Iterator<Item = TokenId>, text: &str, into: &mut String) {
        match self {
            SampleText::Engine(bytes) => {
                *bytes += text.len();
                into.push_str(text);
            }
            SampleText::WithSpecial(special) => tokens.for_each(|token| special.push(token, into)),
        }
    }

    /// The rest of the text of a sample that has ended; `tokens`: those not pushed yet. Returns why it ended: a stop
    /// string may show only when special tokens do.
    pub fn finish(
        &mut self,
        finish: &Finish,
        tokens: impl Iterator<Item = TokenId>,
        into: &mut String,
    ) -> FinishReason {
        match self {
            SampleText::Engine(bytes) => {
                into.push_str(&finish.text[*bytes..]);
                finish.reason.clone()
            }
            SampleText::WithSpecial(special) => {
                tokens.for_each(|token| special.push(token, into));
                special.finish(&finish.reason, into)
            }
        }
    }
}

impl SpecialText {
    fn new(prompt: &EncodedPrompt, tokenizer: &Tokenizer) -> Self {
        let Stop { strings, include_stop, min_tokens, .. } = &prompt.stop;
        let stops = StopMatcher::new(strings, *include_stop).expect("the reader refuses empty stop strings");
        let stream = tokenizer.stream_with_special(&prompt.tokens);
        SpecialText { stream, stops, strings: strings.clone(), min_tokens: *min_tokens, tokens: 0, stopped_by: None }
    }

    fn push(&mut self, token: TokenId, into: &mut String) {
        self.tokens += 1;
        if self.stopped_by.is_some() {
            return;
        }
        let text = self.stream.push(token);
        match self.tokens >= self.min_tokens {
            true => {
                let certain = self.stops.push(text);
                into.push_str(&certain.text);
                self.stopped_by = certain.by;
            }
            false => into.push_str(text),
        }
    }

    fn finish(&mut self, reason: &FinishReason, into: &mut String) -> FinishReason {
        match (self.stopped_by, reason) {
            (Some(by), _) => FinishReason::StopString(self.strings[by].clone()),
            (None, reason) => {
                into.push_str(&self.stops.finish());
                into.push_str(self.stream.finish());
                reason.clone()
            }
        }
    }
}

/// Where a token begins in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenPlace {
    pub bytes: usize,
    pub chars: usize,
}

/// Finds the places of a text's tokens, one after another.
pub struct TokenPlacer {
    stream: TextStream,
    next: TokenPlace,
}

impl TokenPlacer {
    /// For tokens that follow `context` and `chars` characters of the same text.
    pub fn new(context: &[TokenId], skips_special: bool, chars: usize, tokenizer: &Tokenizer) -> Self {
        let stream = if skips_special { tokenizer.stream(context) } else { tokenizer.stream_with_special(context) };
        TokenPlacer { stream, next: TokenPlace { bytes: 0, chars } }
    }

    pub fn place(&mut self, token: TokenId) -> TokenPlace {
        let place = self.next;
        let piece = self.stream.push(token);
        self.next = TokenPlace { bytes: place.bytes + piece.len(), chars: place.chars + piece.chars().count() };
        place
    }
}
