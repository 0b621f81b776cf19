//! Reads golden files: prompts with the results of another implementation. Two formats are supported: one case with all
//! logits after the prompt (`prompt`, `last_logits`, `prompt_logprobs`, `greedy`), and `cases` with the likeliest
//! tokens of the first step and the log-probabilities of the greedy text. `golden` compares.

use std::path::Path;

use serde_json::Value;

use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

use super::super::config::{ModelConfig, read_json};

/// A prompt and the expected results.
#[derive(Clone, Debug, Default)]
pub struct GoldenCase {
    pub name: String,
    pub prompt: Vec<TokenId>,
    /// Logits after the prompt: all of them, or those of the likeliest tokens.
    pub logits: Vec<(TokenId, f32)>,
    /// Log-probability of prompt token `i + 1`, given those before it. Empty if not in the file.
    pub prompt_logprobs: Vec<f32>,
    pub greedy: Vec<TokenId>,
    /// Log-probability of each greedy token. Empty if not in the file.
    pub greedy_logprobs: Vec<f32>,
}

pub fn read_golden(path: &Path, config: &ModelConfig) -> Result<Vec<GoldenCase>> {
    let json = read_json(path)?;
    let cases = match json.get("cases").and_then(Value::as_array) {
        Some(cases) => cases
            .iter()
            .enumerate()
            .map(|(i, case)| CaseReader { path, config, at: format!("cases[{i}]."), case }.likeliest(i))
            .collect::<Result<Vec<_>>>()?,
        None => vec![CaseReader { path, config, at: String::new(), case: &json }.all_logits()?],
    };
    if cases.is_empty() {
        return Err(Error::field(path, "cases", "at least one case", "none"));
    }
    Ok(cases)
}

struct CaseReader<'a> {
    path: &'a Path,
    config: &'a ModelConfig,
    at: String,
    case: &'a Value,
}

impl CaseReader<'_> {
    fn all_logits(&self) -> Result<GoldenCase> {
        let logits = self.numbers("last_logits")?;
        self.same_length("last_logits", logits.len(), "the model's vocabulary", self.config.vocab)?;
        let case = GoldenCase {
            name: "golden".to_owned(),
            prompt: self.tokens("prompt")?,
            logits: logits.into_iter().enumerate().map(|(token, logit)| (TokenId::new(token), logit)).collect(),
            prompt_logprobs: self.numbers("prompt_logprobs")?,
            greedy: self.tokens("greedy")?,
            greedy_logprobs: Vec::new(),
        };
        self.fits(&case, "prompt")?;
        self.same_length("prompt_logprobs", case.prompt_logprobs.len(), "prompt, less one", case.prompt.len() - 1)?;
        Ok(case)
    }

    fn likeliest(&self, number: usize) -> Result<GoldenCase> {
        let (ids, logits) = (self.tokens("first_step_top10_ids")?, self.numbers("first_step_top10_logits")?);
        self.same_length("first_step_top10_logits", logits.len(), "first_step_top10_ids", ids.len())?;
        let prompt = self.case.get("prompt").and_then(Value::as_str).filter(|text| !text.is_empty());
        let case = GoldenCase {
            name: prompt.map_or_else(|| format!("case {number}"), |text| format!("{text:?}")),
            prompt: self.tokens("prompt_ids")?,
            logits: ids.into_iter().zip(logits).collect(),
            prompt_logprobs: Vec::new(),
            greedy: self.tokens("greedy_ids")?,
            greedy_logprobs: self.numbers("greedy_logprobs")?,
        };
        self.fits(&case, "prompt_ids")?;
        self.same_length("greedy_logprobs", case.greedy_logprobs.len(), "greedy_ids", case.greedy.len())?;
        Ok(case)
    }

    fn fits(&self, case: &GoldenCase, prompt: &str) -> Result<()> {
        if case.prompt.is_empty() {
            return Err(self.error(prompt, "at least one token", "none"));
        }
        let tokens = case.prompt.len() + case.greedy.len();
        if tokens > self.config.context {
            let what = format!("{}: `{}{prompt}` with its continuation", self.path.display(), self.at);
            return Err(Error::ContextTooLong { what, tokens, context: self.config.context });
        }
        Ok(())
    }

    fn same_length(&self, field: &str, found: usize, like: &str, expected: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(self.error(field, &format!("{expected} values ({like})"), &found.to_string()))
    }

    fn tokens(&self, field: &str) -> Result<Vec<TokenId>> {
        let vocab = self.config.vocab;
        let id = |value: &Value| value.as_u64().filter(|&id| id < vocab as u64).map(|id| TokenId::new(id as usize));
        self.list(field, &format!("a list of token ids below {vocab}"), id)
    }

    fn numbers(&self, field: &str) -> Result<Vec<f32>> {
        self.list(field, "a list of numbers", |value| value.as_f64().map(|x| x as f32))
    }

    fn list<T>(&self, field: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>> {
        let Some(list) = self.case.get(field).and_then(Value::as_array) else {
            return Err(self.error(field, expected, "nothing of the kind"));
        };
        list.iter().map(|value| read(value).ok_or_else(|| self.error(field, expected, &value.to_string()))).collect()
    }

    fn error(&self, field: &str, expected: &str, found: &str) -> Error {
        Error::field(self.path, format!("{}{field}", self.at), expected, found)
    }
}
