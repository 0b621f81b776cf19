//! A tokenizer as Python holds it: that of an engine, or of a model's folder without the model. Encodes and decodes
//! texts and writes the prompts of chats.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use offshoot::{Error, Result, TokenId};
use offshoot_openai::protocol::{chat_prompt, chat_tokens};
use offshoot_text::{AddSpecial, Tokenizer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::errors::OrRaise;
use crate::params::{self, token_ids};
use crate::process;

/// A context and its continuations, in tokens: what `Engine.score` takes.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Context {
    pub tokens: Vec<TokenId>,
    pub continuations: Vec<Vec<TokenId>>,
}

#[pymethods]
impl Context {
    #[new]
    fn new(token_ids: Vec<u32>, continuations: Vec<Vec<u32>>) -> Context {
        let ids = params::token_ids;
        Context { tokens: ids(token_ids), continuations: continuations.into_iter().map(ids).collect() }
    }

    #[getter]
    fn token_ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.0).collect()
    }

    #[getter]
    fn continuations(&self) -> Vec<Vec<u32>> {
        self.continuations.iter().map(|tokens| tokens.iter().map(|token| token.0).collect()).collect()
    }
}

/// The tokenizer of a model's folder.
#[pyclass(frozen, name = "Tokenizer", module = "offshoot._offshoot")]
pub struct NativeTokenizer {
    tokenizer: Arc<Tokenizer>,
}

impl NativeTokenizer {
    pub fn of(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer }
    }
}

fn special(add: bool) -> AddSpecial {
    if add { AddSpecial::Yes } else { AddSpecial::No }
}

/// Adds the number of a prompt, if it is one of several, to the error about its text.
fn of_prompt(place: Option<usize>, error: Error) -> Error {
    match (place, error) {
        (Some(place), Error::Format { path, what }) => Error::format(path, format!("prompt {place}: {what}")),
        (_, error) => error,
    }
}

#[pymethods]
impl NativeTokenizer {
    #[new]
    fn new(py: Python<'_>, folder: PathBuf) -> PyResult<Self> {
        process::check()?;
        Ok(Self::of(Arc::new(py.detach(|| Tokenizer::load(&folder)).or_raise()?)))
    }

    /// The tokens of texts. `places`: the numbers that the texts have for the caller, for an error; without them, those
    /// of several texts count from 0. `split_special_tokens`: the texts of special tokens in them are plain text.
    #[pyo3(signature = (texts, add_special_tokens, places=None, split_special_tokens=false))]
    fn encode(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        add_special_tokens: bool,
        places: Option<Vec<usize>>,
        split_special_tokens: bool,
    ) -> PyResult<Vec<Vec<u32>>> {
        process::check()?;
        let special = special(add_special_tokens);
        let place = |at: usize| match &places {
            Some(places) => places.get(at).copied(),
            None => (texts.len() > 1).then_some(at),
        };
        let encode = |(at, text): (usize, &String)| {
            let encoded = match split_special_tokens {
                true => self.tokenizer.encode_plain(text, special),
                false => self.tokenizer.encode_levels(std::slice::from_ref(text), special).map(|text| text.tokens),
            };
            let tokens = encoded.map_err(|error| of_prompt(place(at), error))?;
            Ok(tokens.into_iter().map(|token| token.0).collect())
        };
        // One text is not worth waking the pool's threads for, nor are a few short ones.
        let is_much = texts.len() > 1 && texts.iter().map(String::len).sum::<usize>() > 1 << 14;
        py.detach(|| match is_much {
            true => texts.par_iter().enumerate().map(encode).collect::<Result<_>>(),
            false => texts.iter().enumerate().map(encode).collect(),
        })
        .or_raise()
    }

    /// The tokens of contexts, each with its continuations: every pair is encoded whole, and the context ends where all
    /// of them agree. `place`: the number that the context has for the caller, for an error.
    #[pyo3(signature = (context, choices, add_special_tokens, place=None))]
    fn encode_choices(
        &self,
        py: Python<'_>,
        context: String,
        choices: Vec<String>,
        add_special_tokens: bool,
        place: Option<usize>,
    ) -> PyResult<Context> {
        process::check()?;
        let special = special(add_special_tokens);
        let encoded = py.detach(|| self.tokenizer.encode_choices(&[context], &choices, special));
        let encoded = encoded.map_err(|error| of_prompt(place, error)).or_raise()?;
        Ok(Context { tokens: encoded.prompt.tokens, continuations: encoded.continuations })
    }

    /// The runs of tokens that spell a word: where a text begins, and behind a space.
    fn spellings(&self, word: &str) -> PyResult<Vec<Vec<u32>>> {
        let spellings = self.tokenizer.spellings(word).or_raise()?;
        Ok(spellings.into_iter().map(|run| run.into_iter().map(|token| token.0).collect()).collect())
    }

    /// The text of tokens. `after`: tokens before them, of whose text theirs is the continuation.
    #[pyo3(signature = (tokens, *, skip_special_tokens=true, after=Vec::new()))]
    fn decode(&self, tokens: Vec<u32>, skip_special_tokens: bool, after: Vec<u32>) -> PyResult<String> {
        let (tokens, after) = (token_ids(tokens), token_ids(after));
        let size = self.tokenizer.vocab_size();
        if let Some(wrong) = tokens.iter().chain(&after).find(|token| token.0 as usize >= size) {
            return Err(PyValueError::new_err(format!("token ids: expected numbers below {size}, found {wrong}")));
        }
        let stream = match skip_special_tokens {
            true => self.tokenizer.stream(&after),
            false => self.tokenizer.stream_with_special(&after),
        };
        Ok(stream.text_of(&tokens))
    }

    /// The text of each token alone.
    fn token_texts(&self, tokens: Vec<u32>) -> Vec<String> {
        let text = |token| String::from_utf8_lossy(self.tokenizer.token_bytes(TokenId(token))).into_owned();
        tokens.into_iter().map(text).collect()
    }

    /// The text of a special token by its name, such as `eos_token`.
    fn named_token(&self, name: &str) -> Option<&str> {
        self.tokenizer.named_token(name)
    }

    /// The texts of special tokens by their names, as a JSON object; `additional_special_tokens` is a list.
    fn special_tokens(&self) -> PyResult<String> {
        serde_json::to_string(self.tokenizer.special_tokens())
            .map_err(|error| PyValueError::new_err(format!("special tokens: {error}")))
    }

    /// The id of the token of exactly this text in the vocabulary.
    fn token_id(&self, text: &str) -> Option<u32> {
        self.tokenizer.token(text).map(|token| token.0)
    }

    /// The folder or file that it was read from.
    fn folder(&self) -> &Path {
        self.tokenizer.folder()
    }

    fn chat_template(&self) -> Option<&str> {
        self.tokenizer.chat_template()
    }

    /// Texts that end the assistant's turn of a chat, where no token does.
    fn chat_stops(&self) -> Vec<String> {
        self.tokenizer.chat_stops().to_vec()
    }

    fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The prompt of a chat as transformers makes it. `body`: JSON of an object with `messages` and a request's other
    /// fields for chats.
    fn chat_prompt(&self, py: Python<'_>, body: &str) -> PyResult<String> {
        let body = fields(body)?;
        py.detach(|| chat_prompt(&body, &self.tokenizer)).map_err(|refusal| PyValueError::new_err(refusal.message))
    }

    /// The prompt of a chat as a server makes it, and its tokens; `body`: as `chat_prompt`'s.
    fn chat_tokens(&self, py: Python<'_>, body: &str) -> PyResult<(String, Vec<u32>)> {
        let body = fields(body)?;
        let made = py.detach(|| chat_tokens(&body, &self.tokenizer));
        let (text, tokens) = made.map_err(|refusal| PyValueError::new_err(refusal.message))?;
        Ok((text, tokens.into_iter().map(|token| token.0).collect()))
    }
}

fn fields(body: &str) -> PyResult<serde_json::Map<String, serde_json::Value>> {
    serde_json::from_str(body).map_err(|error| PyValueError::new_err(format!("messages: {error}")))
}
