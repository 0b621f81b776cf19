//! What `/tokenize`, `/detokenize` and `/tokenizer_info` answer, as the clients of vLLM expect.

use serde_json::{Map, Value, json};

use super::fields::BodyFields;
use super::reader::RequestReader;
use super::refusal::Refusal;
use super::request::PromptContent;
use offshoot_core::ids::TokenId;
use offshoot_text::{AddSpecial, Tokenizer};

impl RequestReader<'_> {
    /// `/tokenize`: the tokens of a `prompt`, or of `messages` in the model's chat template.
    pub fn tokenize(&self, body: &Map<String, Value>) -> Result<Value, Refusal> {
        let mut fields = BodyFields::new(body);
        self.model(&mut fields)?;
        let special = fields.choice("add_special_tokens")?;
        let with_texts = fields.flag("return_token_strs")?;
        let texts = self.user_texts(&mut fields)?;
        let as_special = |adds: bool| if adds { AddSpecial::Yes } else { AddSpecial::No };
        let (text, content) = match (fields.take("messages"), fields.text("prompt")?) {
            (messages @ Some(_), None) => {
                let chat = self.chats(texts).take(&mut fields, messages, false)?;
                let special = as_special(special.unwrap_or(false));
                let content = PromptContent::of_chat(chat.hidden, special);
                (chat.text, content)
            }
            (None, Some(prompt)) => {
                let content = texts.prompt("prompt", &prompt, as_special(special.unwrap_or(true)))?;
                (prompt, content)
            }
            _ => return Err(Refusal::value("prompt", "either `prompt`, a string, or `messages`", "both or none")),
        };
        fields.finish()?;
        // A text that may have about as many tokens as the context, whose encoding is therefore bounded.
        self.check_length("prompt", "the text", &text)?;
        let tokens = content.tokens(&text, self.tokenizer).map_err(|error| Refusal::of(&error))?;
        let shown = |token: &TokenId| String::from_utf8_lossy(self.tokenizer.token_bytes(*token));
        let texts = with_texts.then(|| tokens.iter().map(shown).collect::<Vec<_>>());
        Ok(json!({
            "count": tokens.len(),
            "max_model_len": self.config.context,
            "tokens": tokens,
            "token_strs": texts,
        }))
    }

    /// `/detokenize`: the text of `tokens`, special ones written out.
    pub fn detokenize(&self, body: &Map<String, Value>) -> Result<Value, Refusal> {
        let mut fields = BodyFields::new(body);
        self.model(&mut fields)?;
        if !body.contains_key("tokens") {
            return Err(Refusal::value("tokens", "a list of token ids", "nothing"));
        }
        let tokens = fields.token_ids("tokens")?.unwrap_or_default();
        fields.finish()?;
        self.check_tokens("tokens", &tokens)?;
        Ok(json!({ "prompt": self.tokenizer.decode_with_special(&tokens) }))
    }
}

/// `/tokenizer_info`: the special tokens and the chat template. Tokens that the model does not name are null.
pub fn tokenizer_info(tokenizer: &Tokenizer, context: usize) -> Value {
    const NAMES: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];
    let mut info: Map<String, Value> =
        NAMES.iter().map(|&name| (name.to_owned(), json!(tokenizer.named_token(name)))).collect();
    info.insert("chat_template".to_owned(), json!(tokenizer.chat_template()));
    info.insert("vocab_size".to_owned(), json!(tokenizer.vocab_size()));
    info.insert("model_max_length".to_owned(), json!(context));
    Value::Object(info)
}
