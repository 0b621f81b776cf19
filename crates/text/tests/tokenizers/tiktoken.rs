//! Tokenizers from tiktoken's ranks, against the definition: a text is split into words by a pattern, and in each word
//! the two neighbours whose bytes have the lowest rank become one, the first such two first. Words come from another
//! engine of regular expressions; most vocabularies are trained here.

use crate::shared::shared;
use crate::tokenizers::goldens;

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use offshoot_core::ids::TokenId;
use offshoot_text::{AddSpecial, Message, Tokenizer};
use proptest::prelude::*;
use regex::Regex;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Kimi's pattern but for `\s+(?!\S)`, which the engine has not: `words` does that.
const PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);

/// White space before a word leaves its last character to the word.
fn words<'a>(pattern: &Regex, text: &'a str) -> Vec<&'a str> {
    let (mut words, mut at) = (Vec::new(), 0);
    while let Some(found) = pattern.find_at(text, at) {
        let (mut end, word) = (found.end(), found.as_str());
        let is_space = word.chars().all(char::is_whitespace) && !word.ends_with(['\r', '\n']);
        if is_space && end < text.len() && word.chars().count() > 1 {
            end -= word.chars().next_back().map_or(0, char::len_utf8);
        }
        words.push(&text[found.start()..end]);
        at = end;
    }
    words
}

type Ranks = HashMap<Vec<u8>, u32>;

/// Merges what is merged first, over and over.
fn merged(ranks: &Ranks, word: &str) -> Vec<u32> {
    let mut parts: Vec<Vec<u8>> = word.bytes().map(|byte| vec![byte]).collect();
    if let Some(&whole) = ranks.get(word.as_bytes()) {
        return vec![whole];
    }
    loop {
        let pairs = parts.windows(2).enumerate();
        let ranked = pairs.filter_map(|(at, pair)| Some((*ranks.get(&pair.concat())?, at)));
        let Some((_, at)) = ranked.min() else { break };
        let right = parts.remove(at + 1);
        parts[at].extend(right);
    }
    parts.iter().map(|part| ranks[part]).collect()
}

/// The 256 bytes, `turn` places on, and then whatever two neighbours are most often side by side in these texts, up to
/// `most` times.
fn trained(pattern: &Regex, texts: &[String], turn: u8, most: usize) -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte.wrapping_add(turn)]).collect();
    let words = texts.iter().flat_map(|text| words(pattern, text));
    let mut words: Vec<Vec<Vec<u8>>> = words.map(|word| word.bytes().map(|byte| vec![byte]).collect()).collect();
    for _ in 0..most {
        let mut counts: HashMap<(Vec<u8>, Vec<u8>), usize> = HashMap::new();
        for pair in words.iter().flat_map(|word| word.windows(2)) {
            *counts.entry((pair[0].clone(), pair[1].clone())).or_default() += 1;
        }
        let known: Vec<_> = counts.into_iter().filter(|((a, b), _)| !tokens.contains(&[&a[..], b].concat())).collect();
        let Some(((left, right), _)) = known.into_iter().max_by(|a, b| (a.1, &b.0).cmp(&(b.1, &a.0))) else { break };
        for word in &mut words {
            let mut at = 0;
            while at + 1 < word.len() {
                if word[at] == left && word[at + 1] == right {
                    let end = word.remove(at + 1);
                    word[at].extend(end);
                }
                at += 1;
            }
        }
        tokens.push([left, right].concat());
    }
    tokens
}

fn lines(tokens: &[Vec<u8>]) -> String {
    tokens.iter().enumerate().map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
}

fn write(folder: &Path, file: &str, ranks: &str, config: &Value) {
    std::fs::write(folder.join(file), ranks).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
}

fn kimi() -> Value {
    json!({
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]},
    })
}

fn folder(file: &str, ranks: &str, config: &Value) -> TempDir {
    let folder = TempDir::new().unwrap();
    write(folder.path(), file, ranks, config);
    folder
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-d]{1,6}",
        2 => "[A-C][a-c]{0,4}",
        2 => "[中文字漢]{1,4}",
        1 => "[ぁカ한é́]{1,3}",
        1 => "[0-9]{1,5}",
        2 => " {1,3}",
        1 => "[\t\r\n]{1,2}",
        1 => "[.,!/(-]{1,3}",
        1 => "'(s|LL|x)",
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tokens_are_those_of_a_plain_loop_over_ranks(
        corpus in prop::collection::vec(texts(), 1..6),
        others in prop::collection::vec(texts(), 1..12),
        turn in any::<u8>(),
        most in 0..80_usize,
    ) {
        let pattern = Regex::new(PATTERN).unwrap();
        let tokens = trained(&pattern, &corpus, turn, most);
        let ranks: Ranks = tokens.iter().cloned().zip(0..).collect();
        let tokenizer = Tokenizer::load(folder("tiktoken.model", &lines(&tokens), &kimi()).path()).unwrap();
        for text in corpus.iter().chain(&others) {
            let words = words(&pattern, text);
            prop_assert_eq!(words.concat(), text.as_str());
            let expected: Vec<u32> = words.iter().flat_map(|word| merged(&ranks, word)).collect();
            let found = tokenizer.encode(text, AddSpecial::Yes).unwrap();
            prop_assert_eq!(ids(&found), expected, "{:?} as {:?}", text, words);
            prop_assert_eq!(&tokenizer.decode(&found), text);
        }
    }
}

/// A vocabulary of 128,000 tokens that merges have made, from Llama 3's tokenizer.json.
#[test]
fn a_published_vocabulary_has_the_tokens_of_a_plain_loop() {
    let Some(path) = shared("data/tokenizers/llama3/tokenizer.json") else { return };
    let described: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let vocab = described["model"]["vocab"].as_object().unwrap();
    // GPT-2's alphabet of bytes.
    let is_own = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = (0x100..).filter_map(char::from_u32);
    let letter = |byte: u8| if is_own(byte) { char::from(byte) } else { others.next().unwrap() };
    let alphabet: HashMap<char, u8> = (0..=u8::MAX).map(letter).zip(0..=u8::MAX).collect();
    let mut tokens = vec![Vec::new(); vocab.len()];
    for (text, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = text.chars().map(|c| alphabet[&c]).collect();
    }
    let pattern = Regex::new(PATTERN).unwrap();
    let ranks: Ranks = tokens.iter().cloned().zip(0..).collect();
    let tokenizer = Tokenizer::load(folder("tiktoken.model", &lines(&tokens), &kimi()).path()).unwrap();
    for (text, _) in goldens("llama-bpe").expect("beside the tokenizer") {
        let expected: Vec<u32> = words(&pattern, &text).iter().flat_map(|word| merged(&ranks, word)).collect();
        assert_eq!(ids(&tokenizer.encode(&text, AddSpecial::No).unwrap()), expected, "{text:?}");
    }
}

/// The bytes, and these texts.
fn with_words(words: &[&str]) -> Vec<Vec<u8>> {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    bytes.chain(words.iter().map(|word| word.as_bytes().to_vec())).collect()
}

#[test]
fn special_tokens_have_the_ids_of_the_config() {
    let mut config = kimi();
    let token = |content: &str, special: bool| json!({"content": content, "special": special});
    config["bos_token"] = "[BOS]".into();
    config["eos_token"] = "[EOS]".into();
    config["chat_template"] = "{% for m in messages %}<|im_user|>{{ m['content'] }}{% endfor %}".into();
    config["added_tokens_decoder"] = json!({
        "257": token("[BOS]", true), "258": token("[EOS]", true), "260": token("<|im_user|>", true),
        "262": token("<|tool_call_begin|>", false),
    });
    for name in ["tokenization_kimi", "moonshotai/Kimi-K2--tokenization_kimi", "tokenization_moonshot"] {
        config["auto_map"]["AutoTokenizer"][0] = format!("{name}.TikTokenTokenizer").into();
        let folder = folder("tiktoken.model", &lines(&with_words(&["字"])), &config);
        assert!(!Tokenizer::is_missing(folder.path()));
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(257)), Some(TokenId(258))));
        assert_eq!(tokenizer.vocab_size(), 263);
        // No beginning of text is added.
        let text = "[BOS]字<|im_user|><|reserved_token_259|><|tool_call_begin|>[EOS]";
        let tokens = tokenizer.encode(text, AddSpecial::Yes).unwrap();
        assert_eq!(ids(&tokens), [257, 256, 260, 259, 262, 258]);
        assert_eq!(tokenizer.decode(&tokens), "字<|tool_call_begin|>");
        assert_eq!(tokenizer.decode_with_special(&tokens), text);
        let chat = tokenizer.chat(&[Message::new("user", "字")]).unwrap();
        assert_eq!(ids(&tokenizer.encode(&chat, AddSpecial::No).unwrap()), [260, 256]);
    }
}

#[test]
fn ranks_that_other_code_reads_are_refused_by_name() {
    let ranks = lines(&with_words(&[]));
    let says = |file: &str, config: Value, said: &[&str]| {
        let folder = folder(file, &ranks, &config);
        assert!(!Tokenizer::is_missing(folder.path()));
        let error = Tokenizer::load(folder.path()).unwrap_err().to_string();
        for said in said.iter().chain(&[file, "tokenizer_class", "TikTokenTokenizer of Kimi", "TikTokenConverter"]) {
            assert!(error.contains(said), "`{said}` is not in: {error}");
        }
    };
    says("qwen.tiktoken", json!({"tokenizer_class": "QWenTokenizer"}), &["found \"QWenTokenizer\";"]);
    says("tokenizer.model", json!({"tokenizer_class": "ChatGLM4Tokenizer"}), &["found \"ChatGLM4Tokenizer\";"]);
    says("tiktoken.model", json!({}), &["found no tokenizer_class"]);
    let other = json!({"auto_map": {"AutoTokenizer": ["tokenization_x.TikTokenTokenizer", null]}});
    says("tiktoken.model", other, &["found \"TikTokenTokenizer\" of tokenization_x.py"]);
}

#[test]
fn what_is_wrong_with_ranks_is_named() {
    let refused = |ranks: &str, said: &[&str]| {
        let error = Tokenizer::load(folder("tiktoken.model", ranks, &kimi()).path()).unwrap_err().to_string();
        for said in said.iter().chain(&["tiktoken.model"]) {
            assert!(error.contains(said), "`{said}` is not in: {error}");
        }
    };
    let good = lines(&with_words(&["ab"]));
    refused(&good.replace("YWI= 256", "YWI 256"), &["line 257", "base64", "YWI 256"]);
    refused(&good.replace("YWI= 256", "YWI= x"), &["line 257", "its rank", "YWI= x"]);
    refused(&good.replace("YWI= 256", "YWI= 7"), &["line 257", "no other token has", "YWI= 7"]);
    refused(&good.replace("YWI= 256", "YWI= 300"), &["ranks from 0", "257 up to rank 300"]);
    refused(&good.replace("YWI= 256", "YQ== 256"), &["each token once", "97 and 256"]);
    refused(&good.replace("YQ== 97\n", "YWE= 97\n"), &["each byte", "0x61"]);
    refused("", &["found no token"]);
    let long = lines(&with_words(&["ab".repeat(4000).as_str()]));
    refused(&long, &["whose splits have at most", "found 64000256"]);
}

#[test]
fn pointers_of_git_lfs_are_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 2795286\n";
    for file in ["tiktoken.model", "tokenizer.model", "tokenizer.json"] {
        let error = Tokenizer::load(folder(file, pointer, &kimi()).path()).unwrap_err().to_string();
        for said in [file, "Git LFS pointer to one of 2.67 MiB", "git lfs pull"] {
            assert!(error.contains(said), "`{said}` is not in: {error}");
        }
    }
}
