//! Reads a tokenizer from a model folder in Hugging Face's layout. All differences between files are resolved here;
//! later code uses a finished [`Tokenizer`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::chat::ChatTemplates;
use super::pieces::TokenPieces;
use super::reasoning::MARKS;
use super::tiktoken;
use super::tokenizer::{SurroundingTokens, Tokenizer};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::input;

const CONFIG: &str = "tokenizer_config.json";
/// Of sentencepiece in most folders, of tiktoken in some.
const MODEL: &str = "tokenizer.model";

/// The key of the special tokens that a model adds to those with names of their own.
const ADDITIONAL: &str = "additional_special_tokens";

pub(super) fn load(folder: &Path) -> Result<Tokenizer> {
    let config = Config::read(folder)?;
    let whole = folder.join("tokenizer.json");
    let mut inner = read(folder, &whole, &config)?;
    inner.with_padding(None);
    inner.with_truncation(None).map_err(|e| Error::format(&whole, e.to_string()))?;
    add_tokens(&mut inner, &config)?;
    let bos = config.special(&inner, "bos_token")?;
    let eos = config.special(&inner, "eos_token")?;
    let around = match config.adds() {
        Some((add_bos, add_eos)) => {
            SurroundingTokens::Config { bos: bos.filter(|_| add_bos), eos: eos.filter(|_| add_eos) }
        }
        None => SurroundingTokens::PostProcessor,
    };
    let pieces = pieces(&inner, &whole)?;
    super::growth::check(&inner).map_err(|(field, expected, found)| Error::field(&whole, field, expected, found))?;
    inner.encode_fast("A text, of 2 lines:\nété.", true).map_err(|e| Error::format(&whole, e.to_string()))?;
    let templates = ChatTemplates::new(config.chat_template.as_ref(), config.chat_template_place, config.token_texts());
    let (folder, pieces, can_cut) = (folder.to_path_buf(), Arc::new(pieces), OnceLock::new());
    let (chat_stops, special_texts) = (config.chat_stops(), OnceLock::new());
    Ok(Tokenizer { folder, inner, around, bos, eos, pieces, can_cut, templates, chat_stops, special_texts })
}

/// Whether a folder has no file of a tokenizer at all.
pub(super) fn is_missing(folder: &Path) -> bool {
    let names = ["tokenizer.json", "vocab.json", "merges.txt"];
    names.iter().all(|name| !folder.join(name).exists()) && ranks(folder).is_none()
}

/// The file of tiktoken's ranks in a folder, whatever it is called.
fn ranks(folder: &Path) -> Option<PathBuf> {
    tiktoken::find(folder).or_else(|| Some(folder.join(MODEL)).filter(|path| path.is_file() && tiktoken::is_one(path)))
}

/// The first of the files that a folder has: `whole`, its tokenizer.json, or those that it may be made from.
fn read(folder: &Path, whole: &Path, config: &Config) -> Result<tokenizers::Tokenizer> {
    if whole.is_file() {
        return read_tokenizer_json(whole);
    }
    let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    if vocab.is_file() && merges.is_file() {
        return read_plain_bpe(&vocab, &merges, config);
    }
    match ranks(folder) {
        Some(path) => {
            let added = config.added_tokens();
            added.iter().try_for_each(|(_, (content, _))| check_added(&config.path, content))?;
            tiktoken::read(&path, &config.code(), &added)
        }
        None => no_tokenizer(folder),
    }
}

fn read_tokenizer_json(path: &Path) -> Result<tokenizers::Tokenizer> {
    let bytes = input::model_file(path)?;
    let not_one = |e: &dyn std::fmt::Display| Error::format(path, format!("not a tokenizer: {e}"));
    let text = std::str::from_utf8(&bytes).map_err(|e| not_one(&e))?;
    // What is no such list the library refuses.
    if let Ok(listed) = serde_json::from_str::<ListedTokens>(text) {
        listed.added_tokens.iter().try_for_each(|token| check_added(path, &token.content))?;
    }
    parsed(text).map_err(|e| not_one(&e))
}

/// The added tokens of tokenizer.json.
#[derive(Deserialize)]
struct ListedTokens {
    added_tokens: Vec<ListedToken>,
}

#[derive(Deserialize)]
struct ListedToken {
    content: String,
}

/// The tokenizer that a text in the form of tokenizer.json describes. `from_bytes` and `from_file` are generic, and
/// would compile all that reads these files a second time, here.
pub(super) fn parsed(text: &str) -> tokenizers::Result<tokenizers::Tokenizer> {
    text.parse()
}

/// Byte-level BPE from vocab.json and merges.txt; texts are split into words like GPT-2's, or like Qwen2's if the
/// config names it.
fn read_plain_bpe(vocab: &Path, merges: &Path, config: &Config) -> Result<tokenizers::Tokenizer> {
    let lines = text_file(merges)?;
    let lines: Vec<&str> = lines.lines().filter(|line| !line.starts_with("#version")).collect();
    let described = json!({"version": "1.0", "model": {"type": "BPE", "vocab": read_map(vocab)?, "merges": lines}});
    let mut tokenizer = parsed(&described.to_string())
        .map_err(|e| Error::format(vocab, format!("not a BPE vocabulary with {}: {e}", merges.display())))?;
    let prefix_space = config.flag("add_prefix_space").unwrap_or(false);
    if config.class().starts_with("Qwen2") {
        let split = Split::new(SplitPattern::Regex(QWEN2_WORDS.to_string()), SplitDelimiterBehavior::Isolated, false)
            .map_err(|e| Error::Internal(format!("Qwen2's word pattern: {e}")))?;
        let bytes = ByteLevel::new(prefix_space, false, false);
        tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])));
        tokenizer.with_normalizer(Some(NFC));
    } else {
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(prefix_space, false, true)));
    }
    tokenizer.with_decoder(Some(ByteLevel::default()));
    Ok(tokenizer)
}

/// How Qwen2's tokenizer splits text into words (Qwen/Qwen2-7B, tokenizer.json).
pub(super) const QWEN2_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The error for a folder with none of the files that are read.
fn no_tokenizer<T>(folder: &Path) -> Result<T> {
    let sentencepiece = folder.join(MODEL);
    if !sentencepiece.is_file() {
        let what = "no tokenizer: neither tokenizer.json nor vocab.json with merges.txt nor tiktoken.model";
        return Err(Error::format(folder, what));
    }
    input::model_file(&sentencepiece)?;
    Err(Error::format(
        &sentencepiece,
        "a sentencepiece model cannot be read as it is; write a tokenizer.json beside it with: python -c \"from \
         transformers import AutoTokenizer as A; A.from_pretrained('FOLDER').save_pretrained('FOLDER')\"",
    ))
}

/// Bytes of the longest added token; published ones have at most some hundred. The library builds a search for all of
/// them, in a time that grows with the square of a token's length.
pub(super) const LONGEST_ADDED: usize = 4096;

/// Refuses an added token that is too long.
fn check_added(path: &Path, content: &str) -> Result<()> {
    if content.len() <= LONGEST_ADDED {
        return Ok(());
    }
    let expected = format!("an added token of at most {LONGEST_ADDED} bytes");
    Err(Error::field(path, "content", expected, format!("one of {} bytes", content.len())))
}

/// Adds the tokens that only the config has, in the order of their ids, as transformers does: all at once, as the
/// library builds its search for added tokens anew each time.
fn add_tokens(inner: &mut tokenizers::Tokenizer, config: &Config) -> Result<()> {
    let (mut added, mut ids) = (Vec::new(), BTreeMap::new());
    for (id, (content, token)) in config.added_tokens() {
        let file = if config.added.contains_key(&content) { "added_tokens.json" } else { CONFIG };
        check_added(&config.path.with_file_name(file), &content)?;
        if inner.token_to_id(&content).is_some() || ids.contains_key(&content) {
            continue;
        }
        let special = token["special"] == true;
        let flag = |key: &str| token[key] == true;
        let token = AddedToken::from(content.clone(), special)
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .single_word(flag("single_word"))
            .normalized(token["normalized"].as_bool().unwrap_or(!special));
        added.push(token);
        ids.insert(content, id);
    }
    inner.add_tokens(&added);
    for (content, id) in ids {
        let got = inner.token_to_id(&content);
        if got != Some(id) {
            let got = got.map_or("none".to_string(), |got| got.to_string());
            log::warn!("{CONFIG} gives the token {content:?} the id {id}; the vocabulary makes it {got}");
        }
    }
    Ok(())
}

/// Vocabularies of published models have at most a quarter of this.
pub(super) const MOST_IDS: usize = 1 << 22;

/// The marks of answers in channels, of gpt-oss and of Gemma 4: special in tokenizer.json, but without them a text
/// would not tell its channels apart. A vocabulary with the first one of a list has channels.
pub(super) const CHANNEL_MARKS: [&[&str]; 2] =
    [&["<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"], &["<|channel>", "<channel|>"]];

pub(super) fn pieces(inner: &tokenizers::Tokenizer, path: &Path) -> Result<TokenPieces> {
    let vocabulary = inner.get_vocab(true);
    let added = inner.get_added_tokens_decoder();
    let size = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
    if size > MOST_IDS {
        return Err(Error::field(path, "vocab", format!("ids below {MOST_IDS}"), format!("the id {}", size - 1)));
    }
    let marks: Vec<&str> = CHANNEL_MARKS
        .iter()
        .filter(|marks| vocabulary.contains_key(marks[0]))
        .flat_map(|marks| marks.iter())
        .copied()
        // Of some models those of the reasoning are special, too (Magistral).
        .chain(MARKS.iter().flat_map(|marks| [marks.begin, marks.close]))
        .chain(super::tools::MARKS)
        .collect();
    let mut entries = vec![None; size];
    for (text, id) in vocabulary {
        let is_mark = marks.contains(&&*text);
        let special = added.get(&id).is_some_and(|token| token.special) && !is_mark;
        entries[id as usize] = Some((text, special));
    }
    let decoder = serde_json::to_value(inner.get_decoder()).map_err(|e| Error::Internal(format!("decoder: {e}")))?;
    TokenPieces::new(&entries, &decoder).map_err(|why| {
        let (field, expected, found) = why.words();
        Error::field(path, field, expected, found)
    })
}

/// The files next to the vocabulary in a model folder.
struct Config {
    path: PathBuf,
    /// tokenizer_config.json; empty where there is none.
    main: Map<String, Value>,
    /// special_tokens_map.json.
    special: Map<String, Value>,
    /// added_tokens.json: text to id.
    added: Map<String, Value>,
    chat_template: Option<Value>,
    /// The file with the chat template, and the key in it.
    chat_template_place: &'static str,
}

impl Config {
    fn read(folder: &Path) -> Result<Config> {
        if !folder.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(Error::Io { path: folder.to_path_buf(), doing: "open the model folder", source });
        }
        let main = read_map(&folder.join(CONFIG))?;
        let file = folder.join("chat_template.jinja");
        let (chat_template, chat_template_place) = match file.is_file() {
            true => (Some(Value::String(text_file(&file)?)), "chat_template.jinja"),
            false => (main.get("chat_template").cloned(), "tokenizer_config.json, `chat_template`"),
        };
        Ok(Config {
            path: folder.join(CONFIG),
            special: read_map(&folder.join("special_tokens_map.json"))?,
            added: read_map(&folder.join("added_tokens.json"))?,
            chat_template,
            chat_template_place,
            main,
        })
    }

    fn class(&self) -> &str {
        self.main.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default()
    }

    /// The code that reads the tokenizer where transformers has none: `auto_map` names its module, with or without the
    /// repository that has it, and the class.
    fn code(&self) -> tiktoken::Code<'_> {
        let named = self.main.get("auto_map").and_then(|map| map.get("AutoTokenizer"));
        let named = named.and_then(|named| named.as_str().or_else(|| named.as_array()?.iter().find_map(Value::as_str)));
        let named = named.map(|named| named.rsplit_once("--").map_or(named, |(_, name)| name));
        let (module, class) = named.and_then(|named| named.rsplit_once('.')).unzip();
        tiktoken::Code { class: class.unwrap_or(self.class()), module }
    }

    /// The texts that end the assistant's turn, where no token does.
    fn chat_stops(&self) -> Vec<String> {
        let listed = self.main.get("chat_stop_strings").and_then(Value::as_array);
        let texts = listed.into_iter().flatten().filter_map(Value::as_str).filter(|text| !text.is_empty());
        texts.map(str::to_owned).collect()
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.main.get(key).and_then(Value::as_bool)
    }

    /// Whether beginning-of-text and end-of-text tokens are added; `None` if the post-processor decides. The config
    /// decides for those classes whose post-processor transformers' fast tokenizers replace (defaults: a beginning, no
    /// end).
    fn adds(&self) -> Option<(bool, bool)> {
        const REWRITING: [&str; 4] = ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"];
        let class = self.class().trim_end_matches("Fast");
        let decides = REWRITING.contains(&class);
        decides.then(|| (self.flag("add_bos_token").unwrap_or(true), self.flag("add_eos_token").unwrap_or(false)))
    }

    /// The text of `bos_token` and its like: a string, or an object with `content`.
    fn token_text(&self, key: &str) -> Option<&str> {
        [&self.main, &self.special].into_iter().find_map(|map| {
            let value = map.get(key)?;
            value.as_str().or_else(|| value.get("content")?.as_str())
        })
    }

    /// The id of `bos_token` or `eos_token`; an error if the config names one that the vocabulary lacks.
    fn special(&self, inner: &tokenizers::Tokenizer, key: &str) -> Result<Option<TokenId>> {
        let Some(text) = self.token_text(key) else { return Ok(None) };
        match inner.token_to_id(text) {
            Some(id) => Ok(Some(TokenId(id))),
            None => {
                Err(Error::field(&self.path, key, "a token of the vocabulary", format!("\"{text}\", which it lacks")))
            }
        }
    }

    /// The special tokens that a chat template may name; of those that the model adds to the usual ones, a list.
    fn token_texts(&self) -> Map<String, Value> {
        const NAMES: [&str; 7] =
            ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
        let named = NAMES.iter().filter_map(|&name| Some((name.to_string(), self.token_text(name)?.into())));
        let mut texts: Map<String, Value> = named.collect();
        let additional = self.additional_tokens();
        if !additional.is_empty() {
            texts.insert(ADDITIONAL.to_owned(), additional.into());
        }
        texts
    }

    /// The texts of the tokens in `additional_special_tokens`, or, as newer files call the list,
    /// `extra_special_tokens`.
    fn additional_tokens(&self) -> Vec<Value> {
        let listed = [&self.main, &self.special]
            .into_iter()
            .find_map(|map| [ADDITIONAL, "extra_special_tokens"].into_iter().find_map(|key| map.get(key)?.as_array()));
        let text = |token: &Value| token.as_str().or_else(|| token.get("content")?.as_str()).map(Value::from);
        listed.map_or(&[][..], Vec::as_slice).iter().filter_map(text).collect()
    }

    /// Tokens in addition to the vocabulary, by id: text and properties.
    fn added_tokens(&self) -> BTreeMap<u32, (String, Value)> {
        let mut tokens = BTreeMap::new();
        for (text, id) in &self.added {
            if let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) {
                tokens.insert(id, (text.clone(), serde_json::json!({"special": true})));
            }
        }
        if let Some(Value::Object(decoder)) = self.main.get("added_tokens_decoder") {
            for (id, token) in decoder {
                if let (Ok(id), Some(text)) = (id.parse(), token["content"].as_str()) {
                    tokens.insert(id, (text.to_string(), token.clone()));
                }
            }
        }
        tokens
    }
}

/// A file of text, whole.
fn text_file(path: &Path) -> Result<String> {
    let text = String::from_utf8(input::model_file(path)?);
    text.map_err(|fault| Error::format(path, format!("not UTF-8: {}", fault.utf8_error())))
}

/// A JSON object file; empty where there is no such file.
fn read_map(path: &Path) -> Result<Map<String, Value>> {
    if !path.is_file() {
        return Ok(Map::new());
    }
    let bytes = input::model_file(path)?;
    serde_json::from_slice(&bytes).map_err(|e| Error::format(path, format!("not a JSON object: {e}")))
}
