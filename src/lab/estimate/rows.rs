//! Rows of prompts, a JSON object a line:
//!
//! ```text
//! {"prompt": "Question: ...", "samples": 4, "max_tokens": 200}
//! {"tokens": [1, 529, 3], "output_tokens": 120}
//! {"prompt_tokens": 1500, "shared": [["few-shot", 400], ["document 7", 700]], "samples": 4}
//! ```
//!
//! One of `prompt`, `tokens` and `prompt_tokens`. `prompt_tokens` is a prompt of which only the length is known; `shared` says
//! with which runs of tokens it begins, by name and length: rows whose runs have the same names, from the first on, share them. The rest
//! is its own. `samples` is 1 where it is not given. `output_tokens` are the tokens that a sample has, `max_tokens` what it may
//! have; of a row with neither a sample is expected to have [`OUTPUT_TOKENS`]. `id` is for whoever wrote the file.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::job::{Ask, Job};
use super::source::{Model, expected};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::kv::PackedPrompts;
use crate::mix::{GOLDEN, mix};
use crate::tokenizer::{AddSpecial, Tokenizer};

/// Tokens of a sample where nobody says how many.
pub const OUTPUT_TOKENS: u32 = 256;

/// Samples of one row, and tokens of one sample: far beyond any job.
const MOST: u64 = 1 << 20;

const FIELDS: [&str; 8] =
    ["prompt", "tokens", "prompt_tokens", "shared", "samples", "max_tokens", "output_tokens", "id"];

/// The lines that are not blank, with their numbers from 1.
pub fn texts(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    (1..).zip(bytes.split(|&byte| byte == b'\n')).filter(|(_, text)| !text.trim_ascii().is_empty())
}

/// The same as objects.
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

/// The job that rows describe; a sample has `output_tokens` at most where a row does not say exactly.
pub fn read(path: &Path, bytes: &[u8], model: &Model, output_tokens: Option<u32>) -> Result<Job> {
    let rows = objects(path, bytes)?;
    let tokenizer = match rows.iter().any(|(_, row)| row.contains_key("prompt")) {
        true => Some(model.tokenizer()?),
        false => None,
    };
    let mut synthetic = SyntheticTexts::default();
    let mut job = Job { prompts: PackedPrompts::default(), asks: Vec::new(), notes: Vec::new() };
    for (line, fields) in &rows {
        let row = Row { path, line: *line, fields };
        row.refuse_unknown()?;
        let tokens = row.tokens(tokenizer.as_ref(), model, &mut synthetic)?;
        let context = model.config.context;
        if tokens.len() >= context {
            let what = format!("{}: line {line}: the prompt with the first token drawn", path.display());
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
        job.asks.push(Ask { samples: row.count("samples", MOST)?.unwrap_or(1), tokens: tokens_each });
        job.prompts.push(tokens);
    }
    Ok(job)
}

struct Row<'a> {
    path: &'a Path,
    line: usize,
    fields: &'a Map<String, Value>,
}

impl Row<'_> {
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
        model: &Model,
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

    /// The runs of tokens with which the prompt begins.
    fn shared(&self) -> Result<Vec<(&str, usize)>> {
        let Some(value) = self.given("shared") else { return Ok(Vec::new()) };
        fn named(run: &Value) -> Option<(&str, usize)> {
            let [name, tokens] = run.as_array()?.as_slice() else { return None };
            Some((name.as_str()?, usize::try_from(tokens.as_u64().filter(|tokens| (1..=MOST).contains(tokens))?).ok()?))
        }
        let runs = value.as_array().and_then(|runs| runs.iter().map(named).collect());
        runs.ok_or_else(|| self.wrong("shared", "a list of [name, number of tokens]", value))
    }

    /// A count from 1 up.
    fn count(&self, field: &str, most: u64) -> Result<Option<u32>> {
        let Some(value) = self.given(field) else { return Ok(None) };
        let count =
            value.as_u64().filter(|count| (1..=most).contains(count)).and_then(|count| u32::try_from(count).ok());
        match count {
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong(field, format!("a whole number from 1 to {most}"), value)),
        }
    }

    /// A field that is there and not null.
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

/// A value in a few words.
fn brief(value: &Value) -> String {
    const LONGEST: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Tokens for prompts of which only the lengths are known. Runs that follow the same run begin with different tokens, as long as
/// there are no more of them than tokens in the vocabulary: so nothing is shared that no row names.
#[derive(Default)]
struct SyntheticTexts {
    /// By the run before (none: the root) and the name.
    named: HashMap<(Option<u64>, String), Run>,
    /// Runs that follow each run.
    following: HashMap<Option<u64>, u64>,
    runs: u64,
}

#[derive(Clone, Copy)]
struct Run {
    id: u64,
    /// Among those that follow the same run.
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
            tokens.extend((0..length).map(|at| run.token(at, vocab)));
            last = Some(run.id);
        }
        if own > 0 {
            let run = self.run_behind(last);
            tokens.extend((0..own).map(|at| run.token(at, vocab)));
        }
        tokens
    }

    fn run_behind(&mut self, last: Option<u64>) -> Run {
        let ordinal = self.following.entry(last).or_default();
        let run = Run { id: self.runs, ordinal: *ordinal };
        *ordinal += 1;
        self.runs += 1;
        run
    }
}

impl Run {
    fn token(self, at: usize, vocab: usize) -> TokenId {
        let value = match at {
            0 => self.ordinal,
            1 => self.ordinal / vocab as u64,
            _ => mix(self.id.wrapping_mul(GOLDEN).wrapping_add(at as u64)),
        };
        TokenId::new((value % vocab as u64) as usize)
    }
}
