//! Reads rows of prompts, one JSON object per line:
//!
//! ```text
//! {"prompt": "Question: ...", "samples": 4, "max_tokens": 200}
//! {"tokens": [1, 529, 3], "output_tokens": 120}
//! {"prompt_tokens": 1500, "shared": [["few-shot", 400], ["document 7", 700]], "samples": 4}
//! ```
//!
//! Each row has one of `prompt`, `tokens` and `prompt_tokens`. `prompt_tokens` is a prompt of which only the length is
//! known; `shared` lists its leading runs of tokens, by name and length: rows with the same names, from the first on,
//! share these runs. The rest is the row's own. `samples` defaults to 1. `output_tokens` is the number of tokens of a
//! sample, `max_tokens` an upper limit; without either, a sample is expected to have [`OUTPUT_TOKENS`]. `id` is
//! ignored.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::job::{PlannedJob, PromptSamples};
use super::plan_model::PlanModel;
use crate::replay::synthetic_token;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::json::cut_json;
use offshoot_text::{AddSpecial, Tokenizer};

/// Default number of tokens per sample.
pub const OUTPUT_TOKENS: u32 = 256;

/// Limit of samples per row and of tokens per sample: far beyond any job.
const MOST: u64 = 1 << 20;

const FIELDS: [&str; 8] =
    ["prompt", "tokens", "prompt_tokens", "shared", "samples", "max_tokens", "output_tokens", "id"];

/// The lines that are not blank, with their line numbers from 1.
pub fn texts(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    (1..).zip(bytes.split(|&byte| byte == b'\n')).filter(|(_, text)| !text.trim_ascii().is_empty())
}

/// The lines as JSON objects, with their line numbers.
fn objects(path: &Path, bytes: &[u8]) -> Result<Vec<(usize, Map<String, Value>)>> {
    let read = |(number, text): (usize, &[u8])| match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok((number, object)),
        Ok(other) => Err(wrong(path, number, None, "a JSON object", &brief(&other))),
        Err(fault) => Err(Error::format(path, format!("line {number}, column {}: not JSON", fault.column()))),
    };
    let rows = texts(bytes).map(read).collect::<Result<Vec<_>>>()?;
    if rows.is_empty() {
        return Err(Error::format(path, "expected at least one prompt, found none"));
    }
    Ok(rows)
}

/// Reads the job that rows describe; `output_tokens` limits samples of rows without an exact number.
pub fn read(path: &Path, bytes: &[u8], model: &PlanModel, output_tokens: Option<u32>) -> Result<PlannedJob> {
    let rows = objects(path, bytes)?;
    let tokenizer = match rows.iter().any(|(_, row)| row.contains_key("prompt")) {
        true => Some(model.tokenizer()?),
        false => None,
    };
    let mut synthetic = SyntheticTexts::default();
    let mut job = PlannedJob::default();
    for (line, fields) in &rows {
        let row = PromptRow { path, line: *line, fields };
        row.refuse_unknown()?;
        let tokens = row.tokens(tokenizer.as_ref(), model, &mut synthetic)?;
        let context = model.config.context;
        if tokens.len() >= context {
            let what = format!("{}: line {line}: the prompt with the first sampled token", path.display());
            return Err(Error::ContextTooLong { what, tokens: tokens.len() + 1, context });
        }
        let most = row.count("max_tokens", MOST)?;
        let exactly = row.count("output_tokens", MOST)?;
        if let (Some(exactly), Some(most)) = (exactly, most)
            && exactly > most
        {
            return Err(row.wrong(
                "output_tokens",
                format!("at most max_tokens, {most}"),
                &row.fields["output_tokens"],
            ));
        }
        let tokens_each = match exactly {
            Some(exactly) => expected(exactly, None, context, tokens.len()),
            None => expected(most.or(output_tokens).unwrap_or(OUTPUT_TOKENS), output_tokens, context, tokens.len()),
        };
        job.per_prompt.push(PromptSamples { samples: row.count("samples", MOST)?.unwrap_or(1), tokens: tokens_each });
        job.prompts.push(tokens);
    }
    Ok(job)
}

struct PromptRow<'a> {
    path: &'a Path,
    line: usize,
    fields: &'a Map<String, Value>,
}

impl PromptRow<'_> {
    fn refuse_unknown(&self) -> Result<()> {
        match self.fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
            Some(key) => {
                Err(self.wrong(key, format!("no such field (there are {})", FIELDS.join(", ")), &self.fields[key]))
            }
            None => Ok(()),
        }
    }

    fn tokens(
        &self,
        tokenizer: Option<&Tokenizer>,
        model: &PlanModel,
        synthetic: &mut SyntheticTexts,
    ) -> Result<Vec<TokenId>> {
        let kinds: Vec<&str> = FIELDS[..3].iter().copied().filter(|kind| self.given(kind).is_some()).collect();
        let [kind] = kinds[..] else {
            let found = if kinds.is_empty() { "none".to_string() } else { kinds.join(" and ") };
            return Err(wrong(self.path, self.line, None, "one of prompt, tokens and prompt_tokens", &found));
        };
        if kind != "prompt_tokens"
            && let Some(shared) = self.given("shared")
        {
            return Err(self.wrong("shared", format!("prompt_tokens beside it, not {kind}"), shared));
        }
        let vocab = model.config.vocab;
        let tokens = match (kind, tokenizer) {
            ("prompt", Some(tokenizer)) => {
                let text = self.fields[kind].as_str();
                let text = text.ok_or_else(|| self.wrong(kind, "a string", &self.fields[kind]))?;
                tokenizer.encode(text, AddSpecial::Yes)?
            }
            ("tokens", _) => {
                let id = |id: &Value| u32::try_from(id.as_u64()?).ok().filter(|&id| (id as usize) < vocab).map(TokenId);
                let ids = self.fields[kind].as_array().and_then(|ids| ids.iter().map(id).collect::<Option<Vec<_>>>());
                ids.ok_or_else(|| self.wrong(kind, format!("a list of token ids below {vocab}"), &self.fields[kind]))?
            }
            _ => {
                let runs = self.shared()?;
                let length = self.count("prompt_tokens", MOST)?.unwrap_or(0) as usize;
                let shared: usize = runs.iter().map(|&(_, tokens)| tokens).sum();
                if shared > length {
                    let expected = format!("at least the {shared} tokens of `shared`");
                    return Err(self.wrong(kind, expected, &self.fields[kind]));
                }
                synthetic.prompt(&runs, length - shared, vocab)
            }
        };
        match tokens.is_empty() {
            true => Err(self.wrong(kind, "at least one token", &self.fields[kind])),
            false => Ok(tokens),
        }
    }

    /// The leading runs of the prompt: name and length.
    fn shared(&self) -> Result<Vec<(&str, usize)>> {
        let Some(value) = self.given("shared") else { return Ok(Vec::new()) };
        fn named(run: &Value) -> Option<(&str, usize)> {
            let [name, tokens] = run.as_array()?.as_slice() else { return None };
            Some((name.as_str()?, usize::try_from(tokens.as_u64().filter(|tokens| (1..=MOST).contains(tokens))?).ok()?))
        }
        let runs = value.as_array().and_then(|runs| runs.iter().map(named).collect());
        runs.ok_or_else(|| self.wrong("shared", "a list of [name, number of tokens]", value))
    }

    /// Reads a count from 1 up.
    fn count(&self, field: &str, most: u64) -> Result<Option<u32>> {
        let Some(value) = self.given(field) else { return Ok(None) };
        let count =
            value.as_u64().filter(|count| (1..=most).contains(count)).and_then(|count| u32::try_from(count).ok());
        match count {
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong(field, format!("a whole number from 1 to {most}"), value)),
        }
    }

    /// A field that is present and not null.
    fn given(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn wrong(&self, field: &str, expected: impl Into<String>, found: &Value) -> Error {
        wrong(self.path, self.line, Some(field), &expected.into(), &brief(found))
    }
}

fn wrong(path: &Path, line: usize, field: Option<&str>, expected: &str, found: &str) -> Error {
    let field = field.map_or(String::new(), |field| format!(" `{field}`:"));
    Error::format(path, format!("line {line}:{field} expected {expected}, found {found}"))
}

/// A value, shortened for a message.
fn brief(value: &Value) -> String {
    cut_json(value, 40)
}

/// Expected tokens of a sample: its limit, the limit of the context, or the user's estimate, whichever is smallest.
pub fn expected(most: u32, expected: Option<u32>, context: usize, prompt: usize) -> u32 {
    let room = as_u32(context.saturating_sub(prompt));
    most.min(expected.unwrap_or(most)).min(room).max(1)
}

pub fn as_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Generates tokens for prompts given only by length. Runs after the same run start with different tokens, as long as
/// there are at most as many of them as tokens in the vocabulary, so that only named runs are shared.
#[derive(Default)]
struct SyntheticTexts {
    /// Runs by the previous run (`None`: the root) and name.
    named: HashMap<(Option<u64>, String), NamedRun>,
    /// Number of runs after each run.
    following: HashMap<Option<u64>, u64>,
    runs: u64,
}

#[derive(Clone, Copy)]
struct NamedRun {
    id: u64,
    /// Index among the runs after the same run.
    ordinal: u64,
}

impl SyntheticTexts {
    fn prompt(&mut self, shared: &[(&str, usize)], own: usize, vocab: usize) -> Vec<TokenId> {
        let (mut tokens, mut last) = (Vec::new(), None);
        for &(name, length) in shared {
            let run = match self.named.get(&(last, name.to_string())) {
                Some(&run) => run,
                None => {
                    let run = self.run_behind(last);
                    self.named.insert((last, name.to_string()), run);
                    run
                }
            };
            tokens.extend((0..length).map(|at| synthetic_token(run.id, run.ordinal, at, vocab)));
            last = Some(run.id);
        }
        if own > 0 {
            let run = self.run_behind(last);
            tokens.extend((0..own).map(|at| synthetic_token(run.id, run.ordinal, at, vocab)));
        }
        tokens
    }

    fn run_behind(&mut self, last: Option<u64>) -> NamedRun {
        let ordinal = self.following.entry(last).or_default();
        let run = NamedRun { id: self.runs, ordinal: *ordinal };
        *ordinal += 1;
        self.runs += 1;
        run
    }
}
