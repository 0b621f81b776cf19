//! Reads a tokenizer from the metadata of a GGUF file. It is written as the tokenizer.json that it was made from, so
//! that the same library encodes both alike. `pre_tokenizers` holds the kinds of byte-level tokenizers.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use super::chat::ChatTemplates;
use super::load::{LONGEST_ADDED, MOST_IDS, parsed, pieces};
use super::pre_tokenizers::WordSplit;
use super::tokenizer::{SurroundingTokens, Tokenizer};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_gguf::{Gguf, Metadata};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Whether the file has no tokenizer at all.
pub(super) fn is_missing(gguf: &Gguf) -> bool {
    matches!(gguf.metadata().text(MODEL), Ok(None | Some("none" | "no_vocab")))
}

pub(super) fn load(gguf: &Gguf) -> Result<Tokenizer> {
    let (path, metadata) = (gguf.path(), gguf.metadata());
    let kind = metadata.text(MODEL)?;
    let Some(kind) = kind.filter(|kind| ["gpt2", "llama"].contains(kind)) else {
        let found = kind.map_or("nothing".to_owned(), |name| format!("\"{name}\""));
        return Err(metadata.error(MODEL, "gpt2 (byte-level BPE) or llama (sentencepiece)", found));
    };
    let vocabulary = Vocabulary::read(&metadata)?;
    let (described, adds_bos) = match kind {
        "gpt2" => byte_level(&metadata, &vocabulary)?,
        _ => (sentencepiece(gguf, &metadata, &vocabulary)?, true),
    };
    let text = serde_json::to_string(&described).map_err(|fault| Error::Internal(format!("tokenizer: {fault}")))?;
    let mut inner =
        parsed(&text).map_err(|fault| Error::format(path, format!("its metadata describe no tokenizer: {fault}")))?;
    inner.with_padding(None);
    let bos = vocabulary.special(&metadata, "bos")?;
    let eos = vocabulary.special(&metadata, "eos")?;
    let adds_bos = metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos);
    let adds_eos = metadata.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let around = SurroundingTokens::Config { bos: bos.filter(|_| adds_bos), eos: eos.filter(|_| adds_eos) };
    let pieces = pieces(&inner, path)?;
    inner.encode_fast("A text, of 2 lines:\nété.", true).map_err(|e| Error::format(path, e.to_string()))?;
    let templates = ChatTemplates::new(templates(&metadata)?.as_ref(), TEMPLATE, vocabulary.token_texts(&metadata)?);
    let (folder, pieces, can_cut) = (path.to_path_buf(), Arc::new(pieces), OnceLock::new());
    let (chat_stops, special_texts) = (Vec::new(), OnceLock::new());
    Ok(Tokenizer { folder, inner, around, bos, eos, pieces, can_cut, templates, chat_stops, special_texts })
}

/// The kinds of tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenType {
    /// Made by merges.
    Normal,
    Unknown,
    /// Special.
    Control,
    /// Found in texts as it is.
    UserDefined,
    /// Others, of which texts never consist: unused ones, and the bytes of byte fallback.
    Other,
}

/// The tokens of a file, by their ids.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<TokenType>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &Metadata<'a>) -> Result<Self> {
        let tokens = metadata.texts(TOKENS)?.unwrap_or_default();
        if tokens.is_empty() || tokens.len() > MOST_IDS {
            let expected = format!("1 to {MOST_IDS} tokens");
            return Err(metadata.error(TOKENS, expected, tokens.len().to_string()));
        }
        let types = match metadata.counts(TYPES)? {
            None => vec![TokenType::Normal; tokens.len()],
            Some(types) if types.len() == tokens.len() => types.into_iter().map(token_type).collect(),
            Some(types) => {
                let expected = format!("one for each of the {} tokens", tokens.len());
                return Err(metadata.error(TYPES, expected, types.len().to_string()));
            }
        };
        let read = Self { tokens, types };
        let added = [TokenType::Control, TokenType::Unknown, TokenType::UserDefined];
        let added = added.into_iter().flat_map(|of| read.of_type(of));
        match added.map(|(_, token)| token.len()).max() {
            Some(longest) if longest > LONGEST_ADDED => {
                let expected = format!("added tokens of at most {LONGEST_ADDED} bytes");
                Err(metadata.error(TOKENS, expected, format!("one of {longest} bytes")))
            }
            _ => Ok(read),
        }
    }

    fn of_type(&self, wanted: TokenType) -> impl Iterator<Item = (usize, &'a str)> + '_ {
        let all = self.tokens.iter().copied().enumerate().zip(&self.types);
        all.filter(move |(_, found)| **found == wanted).map(|(token, _)| token)
    }

    /// The token that `tokenizer.ggml.NAME_token_id` names.
    fn special(&self, metadata: &Metadata<'_>, name: &str) -> Result<Option<TokenId>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = metadata.count(&key)? else { return Ok(None) };
        match u32::try_from(id).ok().filter(|&id| (id as usize) < self.tokens.len()) {
            Some(id) => Ok(Some(TokenId(id))),
            // What some converters write for none.
            None if id == u64::from(u32::MAX) => Ok(None),
            None => {
                let expected = format!("an id below the number of tokens ({})", self.tokens.len());
                Err(metadata.error(&key, expected, id.to_string()))
            }
        }
    }

    /// The special tokens that a chat template may name, as tokenizer_config.json names them.
    fn token_texts(&self, metadata: &Metadata<'_>) -> Result<Map<String, Value>> {
        const NAMES: [(&str, &str); 6] = [
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("sep_token", "seperator"),
            ("pad_token", "padding"),
            ("mask_token", "mask"),
        ];
        let mut texts = Map::new();
        for (name, key) in NAMES {
            if let Some(token) = self.special(metadata, key)? {
                texts.insert(name.to_owned(), self.tokens[token.ix()].into());
            }
        }
        Ok(texts)
    }

    /// The `vocab` of tokenizer.json. Of two tokens with one text, the first.
    fn ids(&self) -> Map<String, Value> {
        let mut ids = Map::new();
        for (id, token) in self.tokens.iter().enumerate() {
            ids.entry(*token).or_insert_with(|| id.into());
        }
        ids
    }

    /// The `added_tokens` of tokenizer.json: those that texts hold as they are.
    fn added(&self, strips_right: impl Fn(&str) -> bool) -> Vec<Value> {
        let token = |(id, content): (usize, &str), special: bool| {
            json!({
                "id": id, "content": content, "special": special, "normalized": false, "single_word": false,
                "lstrip": false, "rstrip": strips_right(content),
            })
        };
        let special = self.of_type(TokenType::Control).chain(self.of_type(TokenType::Unknown));
        let special: Vec<_> = special.map(|entry| token(entry, true)).collect();
        let mut all: Vec<Value> =
            self.of_type(TokenType::UserDefined).map(|entry| token(entry, false)).chain(special).collect();
        all.retain(|token| token["content"] != "");
        all.sort_by_key(|token| token["id"].as_u64());
        all
    }
}

fn token_type(number: u64) -> TokenType {
    match number {
        1 => TokenType::Normal,
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        _ => TokenType::Other,
    }
}

/// A tokenizer.json of a byte-level BPE, and whether it adds a beginning of text if the file does not say.
fn byte_level(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<(Value, bool)> {
    let name = metadata.text(PRE)?;
    let Some(split) = name.and_then(WordSplit::by_name) else {
        let found = name.map_or("nothing".to_owned(), |name| format!("\"{name}\""));
        return Err(metadata.error(PRE, format!("one of {}", WordSplit::known()), found));
    };
    let merges = metadata.texts(MERGES)?.ok_or_else(|| metadata.error(MERGES, "a list of strings", "nothing"))?;
    let pair = |merge: &&str| {
        // A token may begin with the space that parts the two.
        let space = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        space.map(|at| json!([&merge[..at], &merge[at + 1..]]))
    };
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in &merges {
        let wrong = || metadata.error(MERGES, "two tokens with a space between them", format!("{merge:?}"));
        pairs.push(pair(merge).ok_or_else(wrong)?);
    }
    let described = split.byte_level(vocabulary.added(|_| false), vocabulary.ids(), &pairs);
    Ok((described, split.adds_bos))
}

/// A tokenizer.json of a sentencepiece BPE: spaces are `▁`, and bytes stand in for what has no token.
fn sentencepiece(gguf: &Gguf, metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Value> {
    let prefixed = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let normalizer = match prefixed {
        true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}),
        false => spaces,
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefixed {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = vocabulary.special(metadata, "unknown")?.map(|token| vocabulary.tokens[token.ix()]);
    let unknown = unknown.or_else(|| vocabulary.of_type(TokenType::Unknown).next().map(|(_, text)| text));
    // Phi-3's marks swallow the white space behind them; files do not say so.
    let is_phi3 = metadata.text("general.architecture")? == Some("phi3");
    let strips_right = |token: &str| is_phi3 && !["<unk>", "<s>", "<|endoftext|>"].contains(&token);
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(strips_right),
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary.ids(), "merges": merges_by_score(gguf, metadata, vocabulary)?,
        },
    }))
}

/// The merges that build each token from two others, the token with the highest score first (as transformers makes
/// merges of a sentencepiece model).
///
/// # Errors
///
/// The splits of the tokens, which are as many as their letters, have far more letters than the file.
fn merges_by_score(gguf: &Gguf, metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Vec<Value>> {
    /// A token of 64 letters has as many splits, of so many letters each; most tokens have a few letters.
    const TIMES: usize = 64;
    let scores = metadata.numbers(SCORES)?.unwrap_or_default();
    if scores.len() != vocabulary.tokens.len() {
        let expected = format!("one for each of the {} tokens", vocabulary.tokens.len());
        return Err(metadata.error(SCORES, expected, scores.len().to_string()));
    }
    let merged = || vocabulary.of_type(TokenType::Normal).chain(vocabulary.of_type(TokenType::UserDefined));
    let letters: usize = merged().map(|(_, token)| token.len() * token.len()).sum();
    let most = (1 << 20) + TIMES * gguf.files()[0].header_bytes();
    if letters > most {
        let expected = format!("tokens whose splits have at most {most} letters");
        return Err(metadata.error(TOKENS, expected, format!("{letters}")));
    }
    let ids: HashMap<&str, usize> = merged().map(|(id, token)| (token, id)).collect();
    let mut merges = Vec::new();
    for (id, token) in merged() {
        let splits = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut known: Vec<_> =
            splits.filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right)).collect();
        known.sort_by_key(|(left, right)| (ids[left], ids[right]));
        merges.extend(known.into_iter().map(|(left, right)| (scores[id], left, right)));
    }
    let length = |text: &str| std::cmp::Reverse(text.chars().count());
    merges
        .sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| (length(a.1), length(a.2)).cmp(&(length(b.1), length(b.2)))));
    Ok(merges.into_iter().map(|(_, left, right)| json!([left, right])).collect())
}

/// The chat templates, as tokenizer_config.json has them.
fn templates(metadata: &Metadata<'_>) -> Result<Option<Value>> {
    let Some(default) = metadata.text(TEMPLATE)? else { return Ok(None) };
    let names = metadata.texts("tokenizer.chat_templates")?.unwrap_or_default();
    let mut all = vec![json!({"name": "default", "template": default})];
    for name in names.into_iter().filter(|name| *name != "default") {
        if let Some(template) = metadata.text(&format!("{TEMPLATE}.{name}"))? {
            all.push(json!({"name": name, "template": template}));
        }
    }
    Ok(Some(all.into()))
}
