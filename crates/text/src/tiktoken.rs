//! Reads the ranks of a byte-level BPE as tiktoken stores them: on each line a token in base64 and its rank, which is
//! its id. The file says neither how texts are split into words nor what the special tokens are: `READERS` has the
//! split of the classes that are known, and tokenizer_config.json the special tokens.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::load::{MOST_IDS, parsed};
use super::pieces::letters;
use super::pre_tokenizers::WordSplit;
use offshoot_core::error::{Error, Result};
use offshoot_core::input;

/// A class of published Python code that reads such files.
struct Reader {
    class: &'static str,
    /// The modules that publish it.
    modules: &'static [&'static str],
    /// Its split of texts, by the name in `pre_tokenizers`.
    split: &'static str,
    models: &'static str,
}

/// moonshotai/Kimi-K2-Instruct, tokenization_kimi.py; moonshotai/Moonlight-16B-A3B, tokenization_moonshot.py.
const READERS: [Reader; 1] = [Reader {
    class: "TikTokenTokenizer",
    modules: &["tokenization_kimi", "tokenization_moonshot"],
    split: "kimi-k2",
    models: "Kimi and Moonlight",
}];

/// What tokenizer_config.json says of the code that reads the file.
pub(super) struct Code<'a> {
    /// `tokenizer_class`; empty where there is none.
    pub class: &'a str,
    /// The module that `auto_map` names.
    pub module: Option<&'a str>,
}

/// The file of ranks in a folder.
pub(super) fn find(folder: &Path) -> Option<PathBuf> {
    let usual = folder.join("tiktoken.model");
    if usual.is_file() {
        return Some(usual);
    }
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|path| path.extension().is_some_and(|end| end == "tiktoken") && path.is_file()).min()
}

/// Whether a file holds ranks, whatever it is called: tokenizer.model is sentencepiece's in most folders.
pub(super) fn is_one(path: &Path) -> bool {
    let bytes = input::model_file(path).unwrap_or_default();
    bytes.split(|&byte| byte == b'\n').next().is_some_and(|line| entry(line).is_some())
}

/// The tokenizer of the file `path`. `added`: the tokens in addition to the file's, by their ids; up to the largest of
/// them, ids without a token get one as published code has it (`<|reserved_token_ID|>`).
///
/// # Errors
///
/// Code that is not known, whose split of texts nothing here says; a line that is no token with its rank; ranks that
/// are not all numbers from 0, each once; bytes without a token.
pub(super) fn read(
    path: &Path,
    code: &Code<'_>,
    added: &BTreeMap<u32, (String, Value)>,
) -> Result<tokenizers::Tokenizer> {
    let is_known = |reader: &&Reader| {
        code.class == reader.class && code.module.is_none_or(|module| reader.modules.contains(&module))
    };
    let Some(reader) = READERS.iter().find(is_known) else { return Err(unknown(path, code)) };
    let split = WordSplit::by_name(reader.split).expect("pre_tokenizers has the splits that READERS names");
    let tokens = ranks(path)?;
    let letters = letters();
    let text = |token: &[u8]| -> String { token.iter().map(|&byte| letters[usize::from(byte)]).collect() };
    let vocab: Map<String, Value> = tokens.iter().enumerate().map(|(id, token)| (text(token), id.into())).collect();
    let merges = merges(&tokens).map(|(left, right)| json!([text(left), text(right)]));
    let described = split.byte_level(special(tokens.len(), added), vocab, &merges.collect::<Vec<_>>());
    parsed(&described.to_string()).map_err(|e| Error::format(path, format!("its ranks make no tokenizer: {e}")))
}

/// The tokens of a file by their ranks.
fn ranks(path: &Path) -> Result<Vec<Vec<u8>>> {
    /// A token of 64 bytes has as many splits, of so many bytes each; most tokens have a few bytes.
    const TIMES: usize = 64;
    let bytes = input::model_file(path)?;
    let mut by_rank: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let wrong = |expected: &str| {
            let found = String::from_utf8_lossy(&line[..line.len().min(60)]);
            Error::format(path, format!("line {}: expected {expected}, found \"{found}\"", number + 1))
        };
        let (token, rank) = entry(line).ok_or_else(|| wrong("a token in base64, a space and its rank"))?;
        if by_rank.insert(rank, token).is_some() {
            return Err(wrong("a rank that no other token has"));
        }
    }
    let count = by_rank.len();
    match by_rank.last_key_value() {
        Some((&last, _)) if last as usize + 1 == count && count <= MOST_IDS => {}
        last => {
            let found = last.map_or("no token".to_owned(), |(last, _)| format!("{count} up to rank {last}"));
            let expected = format!("tokens of the ranks from 0, each once, at most {MOST_IDS}");
            return Err(Error::format(path, format!("expected {expected}, found {found}")));
        }
    }
    let tokens: Vec<Vec<u8>> = by_rank.into_values().collect();
    let squares: usize = tokens.iter().map(|token| token.len() * token.len()).sum();
    let most = (1 << 20) + TIMES * bytes.len();
    if squares > most {
        return Err(Error::format(
            path,
            format!("expected tokens whose splits have at most {most} bytes, found {squares}"),
        ));
    }
    let mut known: HashMap<&[u8], usize> = HashMap::new();
    for (rank, token) in tokens.iter().enumerate() {
        if let Some(other) = known.insert(token, rank) {
            return Err(Error::format(
                path,
                format!("expected each token once, found one with ranks {other} and {rank}"),
            ));
        }
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !known.contains_key(&[*byte][..])) {
        return Err(Error::format(path, format!("expected a token for each byte, found none for {byte:#04x}")));
    }
    Ok(tokens)
}

/// The token and rank of a line.
fn entry(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let line = std::str::from_utf8(line).ok()?.trim_end_matches('\r');
    let (token, rank) = line.split_once(' ')?;
    let token = STANDARD.decode(token).ok().filter(|token| !token.is_empty())?;
    Some((token, rank.parse().ok()?))
}

/// All pairs of tokens that make a token, that of the lowest rank first: tiktoken merges any two whose bytes are a
/// token. Pairs of one token come by the ranks of their parts; where merges made a vocabulary, texts have only one of
/// them.
fn merges(tokens: &[Vec<u8>]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let ranks: HashMap<&[u8], usize> = tokens.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect();
    tokens.iter().flat_map(move |token| {
        let splits = (1..token.len()).map(|at| token.split_at(at));
        let rank_of = |(left, right)| Some((*ranks.get(left)?, *ranks.get(right)?));
        let mut ranked: Vec<_> = splits.filter_map(|pair| Some((rank_of(pair)?, pair))).collect();
        ranked.sort_unstable_by_key(|(ranks, _)| *ranks);
        ranked.into_iter().map(|(_, pair)| pair)
    })
}

/// The `added_tokens` of tokenizer.json from the id `first` on.
fn special(first: usize, added: &BTreeMap<u32, (String, Value)>) -> Vec<Value> {
    let last = added.keys().next_back().map_or(0, |&id| (id as usize).min(MOST_IDS));
    let token = |id: usize| {
        let (content, written) = match u32::try_from(id).ok().and_then(|id| added.get(&id)) {
            Some((content, written)) => (content.clone(), written),
            None => (format!("<|reserved_token_{id}|>"), &json!({"special": true})),
        };
        let flag = |key: &str| written[key] == true;
        json!({
            "id": id, "content": content, "special": flag("special"), "normalized": false,
            "single_word": flag("single_word"), "lstrip": flag("lstrip"), "rstrip": flag("rstrip"),
        })
    };
    (first..=last).map(token).collect()
}

/// The error of ranks that code reads which is not known.
fn unknown(path: &Path, code: &Code<'_>) -> Error {
    let known: Vec<String> = READERS.iter().map(|reader| format!("{} of {}", reader.class, reader.models)).collect();
    let module = code.module.map_or_else(String::new, |module| format!(" of {module}.py"));
    let found = match code.class {
        "" => "no tokenizer_class".to_owned(),
        class => format!("\"{class}\"{module}"),
    };
    let expected = format!("a tokenizer_class whose split of texts into words is known ({})", known.join(", "));
    Error::format(
        path,
        format!(
            "ranks of tiktoken: expected {expected}, found {found}; write a tokenizer.json beside it with: python -c \
             \"from transformers.convert_slow_tokenizer import TikTokenConverter as C; C('FILE', \
             PATTERN).converted().save('FOLDER/tokenizer.json')\", where PATTERN is the regular expression (pat_str) \
             of that class"
        ),
    )
}
