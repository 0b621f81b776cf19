//! Turns the prompts of a request into tokens, and finds the errors of their tokens.

use super::endpoint::Endpoint;
use super::reader::RequestReader;
use super::refusal::Refusal;
use super::request::{ChoiceContent, EncodedChoice, EncodedPrompt, PromptContent, ProtocolRequest, TextPrompt};
use offshoot_core::error::Error;
use offshoot_core::ids::TokenId;
use offshoot_text::reasoning::{ContentStart, TextStart};
use offshoot_text::{AddSpecial, LongBeginning};

impl RequestReader<'_> {
    /// The request with its prompts in tokens. A request with a `parent` is encoded by [`RequestReader::encode_after`].
    pub fn encode(&self, request: ProtocolRequest<TextPrompt>) -> Result<ProtocolRequest, Refusal> {
        match &request.parent {
            None => self.encode_after(request, &[]),
            Some(_) => Err(Refusal::out_of_place("parent", "here: only a server keeps branches")),
        }
    }

    /// The request with its prompts in tokens, which follow `parent`: those of the branch that it names.
    pub fn encode_after(
        &self,
        request: ProtocolRequest<TextPrompt>,
        parent: &[TokenId],
    ) -> Result<ProtocolRequest, Refusal> {
        let is_chat = request.endpoint == Endpoint::Chat;
        let field = if is_chat { "messages" } else { "prompt" };
        let mut request = request.try_map(|prompt| self.encode_prompt(field, prompt, parent))?;
        if let Some(form) = request.form.as_mut().filter(|_| is_chat)
            && request.prompts.iter().any(|prompt| prompt.tokens.len() == parent.len())
        {
            // The chat is the branch alone, whose answer goes on.
            let parent = self.tokenizer.decode(parent);
            form.set_begin(ContentStart::of(&parent, Some(&parent), None).into());
        }
        Ok(request)
    }

    fn encode_prompt(&self, field: &str, prompt: TextPrompt, parent: &[TokenId]) -> Result<EncodedPrompt, Refusal> {
        let (own, choices) = self.tokens(field, &prompt)?;
        let TextPrompt { mut text, stop, is_unlimited, mut start, repeated, most_kept, .. } = prompt;
        if most_kept.is_some() {
            // What is left of it.
            text = self.tokenizer.decode(&own);
        }
        if own.is_empty() && !parent.is_empty() {
            let parent = self.tokenizer.decode(parent);
            start = TextStart::of(&parent, Some(&parent));
        }
        let tokens = [parent, &own].concat();
        let context = self.config.context;
        if tokens.is_empty() {
            return Err(Refusal::value(field, "at least one token", "none"));
        }
        self.check_tokens(field, &own)?;
        choices.iter().try_for_each(|choice| self.check_tokens("choices", &choice.tokens))?;
        let most = self.limits.prompt_tokens;
        if tokens.len() > most {
            let what = format!("the prompt has {} tokens; at most {most} are allowed", tokens.len());
            return Err(Refusal::new("context_length_exceeded", what).about(field));
        }
        let longest = choices.iter().map(|choice| choice.tokens.len()).max();
        if tokens.len() + longest.map_or(0, |longest| longest - 1) >= context {
            let with = if longest.is_some() { " with its longest continuation" } else { "" };
            let (what, tokens) = (format!("the prompt{with}"), tokens.len() + longest.unwrap_or(0));
            return Err(Refusal::of(&Error::ContextTooLong { what, tokens, context }).about(field));
        }
        let stop = offshoot_engine::Stop { max_tokens: stop.max_tokens.min(context - tokens.len()), ..stop };
        stop.check(self.config.vocab).map_err(|error| Refusal::of(&error))?;
        Ok(EncodedPrompt { tokens, text, stop, is_unlimited, start, repeated, choices })
    }

    pub(super) fn check_tokens(&self, field: &str, tokens: &[TokenId]) -> Result<(), Refusal> {
        match tokens.iter().find(|token| token.ix() >= self.config.vocab) {
            Some(token) => {
                let expected = format!("tokens below {}", self.config.vocab);
                Err(Refusal::value(field, &expected, &token.to_string()))
            }
            None => Ok(()),
        }
    }

    /// The prompt's own tokens, and its continuations.
    fn tokens(&self, field: &str, prompt: &TextPrompt) -> Result<(Vec<TokenId>, Vec<EncodedChoice>), Refusal> {
        let refuse = |error: Error| Refusal::of(&error);
        let text = &prompt.text;
        if let Some(most) = prompt.most_kept {
            let most = most.tokens(self.config.context);
            return Ok((prompt.content.last_tokens(text, most, self.tokenizer).map_err(refuse)?, Vec::new()));
        }
        if !matches!(prompt.content, PromptContent::Tokens(_)) {
            self.check_length(field, "the prompt", text)?;
        }
        for text in prompt.choices.iter().filter_map(ChoiceContent::text) {
            self.check_length("choices", "a continuation", text)?;
        }
        let written = |choice: &ChoiceContent| match choice {
            ChoiceContent::Text(text) => Some(text.clone()),
            ChoiceContent::Plain(_) | ChoiceContent::Tokens(_) => None,
        };
        let texts: Option<Vec<String>> = prompt.choices.iter().map(written).collect();
        match (&prompt.content, texts) {
            // Each text is encoded whole, as the model saw such texts in training.
            (PromptContent::Text(special), Some(texts)) if !texts.is_empty() => {
                let encoded = self.tokenizer.encode_choices(std::slice::from_ref(text), &texts, *special);
                let encoded = encoded.map_err(|error| Refusal::of(&error).about("choices"))?;
                let choices = texts.into_iter().zip(encoded.continuations);
                let choices = choices.map(|(text, tokens)| EncodedChoice { text, tokens }).collect();
                Ok((encoded.prompt.tokens, choices))
            }
            (content, _) => {
                let tokens = content.tokens(text, self.tokenizer).map_err(refuse)?;
                let choices = prompt.choices.iter().map(|choice| self.choice(choice)).collect::<Result<_, _>>()?;
                Ok((tokens, choices))
            }
        }
    }

    /// Refuses a text of more tokens than the context, of which only so many are encoded.
    pub(super) fn check_length(&self, field: &str, what: &str, text: &str) -> Result<(), Refusal> {
        let context = self.config.context;
        let beyond = self.tokenizer.beginning_beyond(text, context).map_err(|error| Refusal::of(&error))?;
        let Some(LongBeginning { bytes, tokens }) = beyond else { return Ok(()) };
        let what = format!("the beginning ({bytes} bytes) of {what}");
        Err(Refusal::of(&Error::ContextTooLong { what, tokens, context }).about(field))
    }

    /// A continuation by itself.
    fn choice(&self, choice: &ChoiceContent) -> Result<EncodedChoice, Refusal> {
        let tokens = match choice {
            ChoiceContent::Text(text) => self.tokenizer.encode(text, AddSpecial::No),
            ChoiceContent::Plain(text) => self.tokenizer.encode_plain(text, AddSpecial::No),
            ChoiceContent::Tokens(tokens) => Ok(tokens.clone()),
        };
        let tokens = tokens.map_err(|error| Refusal::of(&error))?;
        let text = choice.text().map_or_else(|| self.tokenizer.decode(&tokens), str::to_owned);
        match tokens.is_empty() {
            true => Err(Refusal::value("choices", "at least one token in each", "none")),
            false => Ok(EncodedChoice { text, tokens }),
        }
    }
}
