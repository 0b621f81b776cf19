//! Tokenizers against what Hugging Face's give (the goldens of ../shared), and against tiny ones made here; chat
//! templates against what Python's Jinja makes of them; streams and stop strings against their definitions.

use crate::shared;

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use offshoot_core::ids::TokenId;
use offshoot_text::tools::{ArgumentsSyntax, CallSyntax, calls_of};
use offshoot_text::{AddSpecial, ChatOptions, ChatPlace, Message, Speaker, SpecialText, StopMatcher, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use shared::shared;
use tempfile::TempDir;

fn write(folder: &Path, name: &str, value: &Value) {
    std::fs::write(folder.join(name), value.to_string()).unwrap();
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|t| t.0).collect()
}

fn stream_all(tokenizer: &Tokenizer, context: &[TokenId], tokens: &[TokenId]) -> String {
    let mut stream = tokenizer.stream(context);
    let mut text: String = tokens.iter().map(|&t| stream.push(t).to_string()).collect();
    text.push_str(stream.finish());
    text
}

/// The 47 texts of a vocabulary of llama.cpp's tests and the ids that Hugging Face's tokenizer gives.
pub fn goldens(vocabulary: &str) -> Option<Vec<(String, Vec<u32>)>> {
    let base = shared(&format!("data/tokenizers/llama_cpp_golden/ggml-vocab-{vocabulary}.gguf.inp"))?;
    let texts = text(&base);
    let expected = text(&base.with_extension("out"));
    let ids = expected.split('\n').map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect());
    Some(texts.split("\n__ggml_vocab_test__\n").map(str::to_string).zip(ids).collect())
}

fn check_goldens(tokenizer: &Tokenizer, vocabulary: &str) {
    let cases = goldens(vocabulary).expect("beside the tokenizer");
    assert!(cases.len() >= 46, "{vocabulary}: {}", cases.len());
    for (text, expected) in cases {
        let tokens = tokenizer.encode(&text, AddSpecial::No).unwrap();
        assert_eq!(ids(&tokens), expected, "{vocabulary}: {text:?}");
        assert_eq!(tokenizer.decode(&tokens), text, "{vocabulary}");
        for cut in 0..=tokens.len() {
            let (context, rest) = tokens.split_at(cut);
            let mut whole = tokenizer.stream(&[]);
            let before: String = context.iter().map(|&t| whole.push(t).to_string()).collect();
            assert_eq!(before + &stream_all(tokenizer, context, rest), text, "{vocabulary} cut at {cut}");
        }
    }
}

#[test]
fn goldens_of_five_vocabularies() {
    // phi-3 has llama-spm's ids on all of them.
    let folders = [("llama-bpe", "llama3"), ("llama-spm", "llama2"), ("phi-3", "llama2"), ("gpt-2", "gpt2")];
    for (vocabulary, folder) in folders {
        let Some(folder) = shared(&format!("data/tokenizers/{folder}")) else { return };
        check_goldens(&Tokenizer::load(&folder).unwrap(), vocabulary);
    }
    let qwen2 = qwen2_json().unwrap();
    let folder = TempDir::new().unwrap();
    write(folder.path(), "tokenizer.json", &qwen2);
    check_goldens(&Tokenizer::load(folder.path()).unwrap(), "qwen2");
}

fn qwen2_json() -> Option<Value> {
    let zipped = std::fs::File::open(shared("data/tokenizers/qwen2/tokenizer.json.gz")?).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(zipped).read_to_string(&mut text).unwrap();
    Some(serde_json::from_str(&text).unwrap())
}

/// Real tiny models' prompts, and text of their own that was sampled from them.
#[test]
fn prompts_of_the_tiny_models() {
    for model in ["stories260K", "babyllama-tok105"] {
        let Some(folder) = shared(&format!("data/models/{model}")) else { return };
        let tokenizer = Tokenizer::load(&folder).unwrap();
        let golden: Value = serde_json::from_str(&text(&folder.join("golden_greedy.json"))).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let list = |key: &str| -> Vec<TokenId> { serde_json::from_value(case[key].clone()).unwrap() };
            let prompt = case["prompt"].as_str().unwrap();
            assert_eq!(tokenizer.encode(prompt, AddSpecial::Yes).unwrap(), list("prompt_ids"), "{model}: {prompt:?}");
            let whole = [list("prompt_ids"), list("greedy_ids")].concat();
            let continued = stream_all(&tokenizer, &list("prompt_ids"), &list("greedy_ids"));
            assert_eq!(tokenizer.decode(&whole), format!("{prompt}{continued}"), "{model}");
        }
    }
}

/// vocab.json and merges.txt of a tokenizer.json.
fn write_plain_bpe(folder: &Path, tokenizer: &Value) {
    write(folder, "vocab.json", &tokenizer["model"]["vocab"]);
    let line = |merge: &Value| match merge {
        Value::String(line) => line.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    let merges: Vec<String> = tokenizer["model"]["merges"].as_array().unwrap().iter().map(line).collect();
    std::fs::write(folder.join("merges.txt"), format!("#version: 0.2\n{}\n", merges.join("\n"))).unwrap();
}

#[test]
fn plain_bpe_files_give_the_same_tokens() {
    let Some(gpt2) = shared("data/tokenizers/gpt2/tokenizer.json") else { return };
    let folder = TempDir::new().unwrap();
    write_plain_bpe(folder.path(), &serde_json::from_str(&text(&gpt2)).unwrap());
    write(
        folder.path(),
        "tokenizer_config.json",
        &json!({"eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"}),
    );
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    check_goldens(&tokenizer, "gpt-2");
    assert_eq!(tokenizer.eos(), Some(TokenId(50256)));

    let qwen2 = qwen2_json().unwrap();
    let folder = TempDir::new().unwrap();
    write_plain_bpe(folder.path(), &qwen2);
    let added: serde_json::Map<String, Value> =
        qwen2["added_tokens"].as_array().unwrap().iter().map(|t| (t["id"].to_string(), t.clone())).collect();
    let config = json!({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "added_tokens_decoder": added});
    write(folder.path(), "tokenizer_config.json", &config);
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    check_goldens(&tokenizer, "qwen2");
    assert_eq!(ids(&tokenizer.encode("<|im_start|>x<|im_end|>", AddSpecial::Yes).unwrap()), [151644, 87, 151645]);
    assert_eq!(tokenizer.vocab_size(), 151646);
}

#[test]
fn beginning_of_text_as_transformers_adds_it() {
    let Some(llama2) = shared("data/tokenizers/llama2") else { return };
    let llama3 = shared("data/tokenizers/llama3").unwrap();
    let tokenizer = Tokenizer::load(&llama2).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(1)), Some(TokenId(2))));
    assert_eq!(ids(&tokenizer.encode("Hello", AddSpecial::Yes).unwrap()), [1, 15043]);
    assert_eq!(ids(&tokenizer.encode("<s>Hello", AddSpecial::No).unwrap()), [1, 15043]);
    assert_eq!(ids(&Tokenizer::load(&llama3).unwrap().encode("Hello", AddSpecial::Yes).unwrap()), [128000, 9906]);

    // The Llama classes follow tokenizer_config.json, whatever the post-processor says; other classes the
    // post-processor.
    let folder = TempDir::new().unwrap();
    std::fs::copy(llama2.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let mut config =
        json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": false, "add_eos_token": true});
    config["tokenizer_class"] = "LlamaTokenizerFast".into();
    write(folder.path(), "tokenizer_config.json", &config);
    let encode = || Tokenizer::load(folder.path()).unwrap().encode("Hello", AddSpecial::Yes).unwrap();
    assert_eq!(ids(&encode()), [15043, 2]);
    config["tokenizer_class"] = "PreTrainedTokenizerFast".into();
    write(folder.path(), "tokenizer_config.json", &config);
    assert_eq!(ids(&encode()), [1, 15043]);
}

/// Llama 2's own tokenizer.json counts, as transformers 4 reads it: its ids are those of sentencepiece and llama.cpp,
/// whatever `legacy` says. transformers 5 lays another pre-tokenizer over it, which loses a text's first space and puts
/// none behind special tokens.
#[test]
fn spaces_of_llama2_are_those_of_sentencepiece() {
    let Some(llama2) = shared("data/tokenizers/llama2") else { return };
    let tokenizer = Tokenizer::load(&llama2).unwrap();
    let of = |text: &str| ids(&tokenizer.encode(text, AddSpecial::No).unwrap());
    // As sentencepiece 0.2 encodes each text by itself.
    let apart: [(&str, &[u32]); 6] = [
        (" ", &[259]),
        (" Hello", &[29871, 15043]),
        ("  a", &[259, 263]),
        ("b", &[289]),
        ("y", &[343]),
        ("[INST] x", &[518, 25580, 29962, 921]),
    ];
    for (text, expected) in apart {
        assert_eq!(of(text), expected, "{text:?}");
        assert_eq!(of(&format!("<s>{text}")), [&[1], expected].concat(), "{text:?} behind a special token");
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, AddSpecial::No).unwrap()), text);
    }
    assert_eq!(of("b</s><s>[INST] x"), [289, 2, 1, 518, 25580, 29962, 921]);
}

#[test]
fn a_continuation_keeps_its_indent() {
    let Some(folder) = shared("data/tokenizers/codellama") else { return };
    let tokenizer = Tokenizer::load(&folder).unwrap();
    let tokens = tokenizer.encode("def f():\n    return 1", AddSpecial::Yes).unwrap();
    let cut = (1..tokens.len()).find(|&cut| tokenizer.decode(&tokens[..cut]).ends_with('\n')).unwrap();
    assert_eq!(stream_all(&tokenizer, &tokens[..cut], &tokens[cut..]), "    return 1");
    assert_eq!(stream_all(&tokenizer, &tokens[..1], &tokens[1..]), "def f():\n    return 1");
    assert_eq!([tokenizer.token_bytes(tokens[0]), tokenizer.token_bytes(tokens[1])], [&b"<s>"[..], b" def"]);
}

#[test]
fn levels_are_marks_in_the_whole_prompt_s_tokens() {
    for folder in ["llama2", "llama3", "gpt2"] {
        let Some(folder) = shared(&format!("data/tokenizers/{folder}")) else { return };
        let tokenizer = Tokenizer::load(&folder).unwrap();
        let levels =
            ["Un café.\n\nQuest".to_string(), "ion: why?\n".to_string(), String::new(), "\nAnswer: é".to_string()];
        for special in [AddSpecial::Yes, AddSpecial::No] {
            let encoded = tokenizer.encode_levels(&levels, special).unwrap();
            assert_eq!(encoded.tokens, tokenizer.encode(&levels.concat(), special).unwrap());
            assert_eq!(encoded.level_ends.len(), 4);
            assert_eq!(encoded.levels().map(|level| level.len()).sum::<usize>(), encoded.tokens.len());
            let mut text = String::new();
            for (ix, level) in levels.iter().enumerate() {
                text += level;
                // What the marks give to a level and those before it lies within their text.
                assert!(text.starts_with(&tokenizer.decode(&encoded.tokens[..encoded.level_ends[ix]])), "level {ix}");
            }
            // `Question` is one token, across the seam: it is the second level's.
            assert_eq!(tokenizer.decode(&encoded.tokens[..encoded.level_ends[0]]), "Un café.\n\n");
        }
    }
}

/// A byte-level vocabulary: the 256 bytes, `ab` and `<end>`.
fn tiny(config: Value) -> TempDir {
    let folder = TempDir::new().unwrap();
    let own = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let chars = (0..256).map(|b| char::from_u32(if own(b) { b } else { others.next().unwrap() }).unwrap());
    let mut vocab: serde_json::Map<String, Value> = chars.enumerate().map(|(b, c)| (c.to_string(), b.into())).collect();
    vocab.insert("ab".into(), 256.into());
    write(folder.path(), "vocab.json", &vocab.into());
    std::fs::write(folder.path().join("merges.txt"), "a b\n").unwrap();
    write(folder.path(), "added_tokens.json", &json!({"<end>": 257}));
    write(folder.path(), "tokenizer_config.json", &config);
    folder
}

fn tiny_tokenizer() -> &'static Tokenizer {
    static TINY: OnceLock<Tokenizer> = OnceLock::new();
    TINY.get_or_init(|| Tokenizer::load(tiny(json!({"eos_token": "<end>"})).path()).unwrap())
}

/// As transformers' `special_tokens_map`; newer files call the list of those without a name `extra_special_tokens`.
#[test]
fn special_tokens_by_their_names() {
    for list in ["additional_special_tokens", "extra_special_tokens"] {
        let folder = tiny(json!({"eos_token": {"content": "<end>"}, list: ["ab", {"content": "c"}]}));
        write(folder.path(), "special_tokens_map.json", &json!({"pad_token": "a", "eos_token": "b"}));
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        let expected = json!({"eos_token": "<end>", "pad_token": "a", "additional_special_tokens": ["ab", "c"]});
        assert_eq!(Value::Object(tokenizer.special_tokens().clone()), expected);
    }
    assert_eq!(Value::Object(tiny_tokenizer().special_tokens().clone()), json!({"eos_token": "<end>"}));
}

/// A text would not tell its reasoning apart without them.
#[test]
fn texts_keep_marks_of_reasoning_that_are_special() {
    let special = |text: &str| json!({"content": text, "special": true});
    let added = json!({"258": special("[THINK]"), "259": special("[/THINK]"), "260": special("[OTHER]")});
    let folder = tiny(json!({"eos_token": "<end>", "added_tokens_decoder": added}));
    write(folder.path(), "added_tokens.json", &json!({"<end>": 257, "[THINK]": 258, "[/THINK]": 259, "[OTHER]": 260}));
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert_eq!(tokenizer.decode(&[258, 256, 259, 260, 256, 257].map(TokenId)), "[THINK]ab[/THINK]ab");
    assert_eq!([258, 260].map(|token| tokenizer.is_mark(TokenId(token))), [true, false]);
}

#[test]
fn a_tiny_vocabulary() {
    let tokenizer = tiny_tokenizer();
    assert_eq!(tokenizer.vocab_size(), 258);
    assert_eq!(tokenizer.eos(), Some(TokenId(257)));
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(ids(&tokenizer.encode("ab é<end>", AddSpecial::Yes).unwrap()), [256, 32, 0xc3, 0xa9, 257]);
    let tokens = tokenizer.encode("a<end>b", AddSpecial::No).unwrap();
    assert_eq!(tokenizer.decode(&tokens), "ab");
    assert_eq!(tokenizer.token_bytes(tokens[1]), b"<end>");
    assert_eq!(tokenizer.token_bytes(TokenId(0xc3)), [0xc3]);
    // A model with more ids than its vocabulary.
    assert_eq!(tokenizer.decode(&[TokenId(97), TokenId(300)]), "a");
    fn shareable<T: Send + Sync>(_: &T) {}
    shareable(tokenizer);
}

proptest! {
    /// Whatever is sampled, streamed text is what decoding all bytes at once gives, and each part is certain when it
    /// comes.
    #[test]
    fn streams_never_cut_a_character(
        bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(&b"\xf0\x9f\x98\x80\xc3\xa9a "[..])], 0..24
        ),
        cut in 0usize..24
    ) {
        let tokenizer = tiny_tokenizer();
        let tokens: Vec<TokenId> = bytes.iter().map(|&b| TokenId(b.into())).collect();
        let text = stream_all(tokenizer, &[], &tokens);
        prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes).into_owned());
        prop_assert_eq!(&text, &tokenizer.decode(&tokens));
        let (context, rest) = tokens.split_at(cut.min(tokens.len()));
        let mut whole = tokenizer.stream(&[]);
        let before: String = context.iter().map(|&t| whole.push(t).to_string()).collect();
        let mut both = [whole, tokenizer.stream(context)];
        let after = both.each_mut().map(|stream| {
            let text: String = rest.iter().map(|&t| stream.push(t).to_string()).collect();
            text + stream.finish()
        });
        prop_assert_eq!(&after[0], &after[1]);
        prop_assert_eq!(before + &after[0], text);
    }

    /// However the text is cut, it ends at the stop string that is complete first, and nothing of it is given out
    /// before.
    #[test]
    fn stop_strings_do_not_depend_on_the_pieces(
        text in "[abé]{0,12}",
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        include: bool,
        cuts in prop::collection::vec(0usize..13, 0..6),
    ) {
        let complete = (0..=text.len()).filter(|&end| text.is_char_boundary(end)).find_map(|end| {
            let stop = stops.iter().filter(|stop| text[..end].ends_with(*stop)).max_by_key(|stop| stop.len())?;
            Some((end, stop))
        });
        let expected = match complete {
            Some((end, stop)) => &text[..if include { end } else { end - stop.len() }],
            None => &text[..],
        };
        let chars: Vec<char> = text.chars().collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(chars.len())).chain([0, chars.len()]).collect();
        cuts.sort_unstable();
        let mut matcher = StopMatcher::new(&stops, include).unwrap();
        let (mut out, mut by) = (String::new(), None);
        for pair in cuts.windows(2) {
            let stopped = matcher.push(&chars[pair[0]..pair[1]].iter().collect::<String>());
            out += &stopped.text;
            prop_assert!(expected.starts_with(&out), "{:?} of {:?}", out, expected);
            if stopped.by.is_some() {
                by = stopped.by;
                break;
            }
        }
        if by.is_none() {
            out += &matcher.finish();
        }
        prop_assert_eq!(&out, expected);
        prop_assert_eq!(by.map(|by| &stops[by]), complete.map(|(_, stop)| stop));
    }
}

#[test]
fn a_stop_string_across_tokens_and_what_it_holds_back() {
    let mut matcher = StopMatcher::new(&["Question:".into(), "\n\n".into()], false).unwrap();
    let given: Vec<String> =
        [" 12", "\n", "Quest", "ions?", "\nQu", "estion", ": x"].map(|p| matcher.push(p).text).into();
    assert_eq!(given, [" 12", "", "\n", "Questions?", "\n", "", ""]);
    let mut matcher = StopMatcher::new(&["stop".into()], true).unwrap();
    assert_eq!(matcher.push("no st").text, "no ");
    assert_eq!(matcher.finish(), "st");
    assert!(StopMatcher::new(&[String::new()], false).is_err());
}

#[test]
fn sentencepiece_bytes_and_metaspace() {
    let folder = TempDir::new().unwrap();
    let mut vocab = serde_json::Map::new();
    for word in ["<unk>", "<s>", "▁", "a", "▁a"] {
        vocab.insert(word.into(), vocab.len().into());
    }
    for byte in 0..256 {
        vocab.insert(format!("<0x{byte:02X}>"), vocab.len().into());
    }
    let model = json!({"type": "BPE", "vocab": vocab, "merges": ["▁ a"], "byte_fallback": true, "unk_token": "<unk>"});
    let added = json!([{"id": 1, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false}]);
    let mut tokenizer_json = json!({"version": "1.0", "added_tokens": added, "model": model, "normalizer": null,
        "post_processor": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}});
    for decoder in [
        tokenizer_json["decoder"].clone(),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}),
    ] {
        let bytes = decoder["type"] == "Sequence";
        tokenizer_json["decoder"] = decoder;
        write(folder.path(), "tokenizer.json", &tokenizer_json);
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        let text = if bytes { "a  a é" } else { "a  a" };
        let tokens = tokenizer.encode(text, AddSpecial::No).unwrap();
        assert_eq!(tokenizer.decode(&tokens), text);
        assert_eq!(stream_all(&tokenizer, &[TokenId(1)], &tokens), text);
        assert_eq!(stream_all(&tokenizer, &[TokenId(1), TokenId(3)], &tokens), format!(" {text}"));
    }
    tokenizer_json["decoder"] = json!({"type": "CTC", "pad_token": "x", "word_delimiter_token": "y", "cleanup": true});
    write(folder.path(), "tokenizer.json", &tokenizer_json);
    let error = Tokenizer::load(folder.path()).err().unwrap().to_string();
    assert!(error.contains("tokenizer.json: `decoder`") && error.contains("CTC"), "{error}");
}

/// A vocabulary of single characters, as its tokenizer.json without bytes to fall back on.
fn of_characters(normalizer: Value, characters: &str) -> Tokenizer {
    let folder = TempDir::new().unwrap();
    let vocab: serde_json::Map<String, Value> =
        characters.chars().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    let described = json!({"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": null,
        "post_processor": null, "decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    write(folder.path(), "tokenizer.json", &described);
    Tokenizer::load(folder.path()).unwrap()
}

/// What a normaliser takes in is not lost; what it leaves and the vocabulary lacks is.
#[test]
fn characters_that_normalisation_swallows_are_not_lost() {
    let kinds = |kind: &str| json!({"type": kind});
    let stripped = json!({"type": "Sequence", "normalizers": [kinds("NFD"), kinds("StripAccents")]});
    let replaced = json!({"type": "Replace", "pattern": {"String": "\u{301}"}, "content": ""});
    let trimmed = json!({"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"Regex": "^#+"}, "content": ""}, {"type": "Strip", "strip_left": true,
        "strip_right": true}]});
    let decomposed = "e\u{301}n e\u{301}";
    let cases = [
        (kinds("NFC"), decomposed, Ok("én é")),
        (kinds("NFKC"), "\u{fb01}n e\u{301}", Ok("fin é")),
        (kinds("NFC"), "\u{1112}\u{1161}\u{11ab}\u{1100}\u{116e}\u{11a8}n", Ok("한국n")),
        (kinds("NFC"), "o\u{323}\u{302}", Ok("ộ")),
        (stripped, decomposed, Ok("en e")),
        (replaced, decomposed, Ok("en e")),
        (trimmed, "## en", Ok("en")),
        // There is no composed letter, or no token for it.
        (kinds("NFC"), "n\u{301}e\u{302}", Err('ń')),
        (kinds("NFC"), "e\u{301}\u{2603}n", Err('\u{2603}')),
        (Value::Null, decomposed, Err('\u{301}')),
        (Value::Null, "e☃", Err('☃')),
        (Value::Null, "e☃n", Err('☃')),
    ];
    for (normalizer, text, expected) in cases {
        let tokenizer = of_characters(normalizer.clone(), " enfiéộ한국");
        let found = tokenizer.encode_levels(&[text.to_string()], AddSpecial::No);
        let what = format!("{normalizer}: {text:?}");
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(tokenizer.decode(&found.tokens), expected, "{what}"),
            (Err(error), Err(lost)) => {
                assert!(error.to_string().contains(&format!("no token for {lost:?}")), "{what}: {error}");
            }
            (found, _) => panic!("{what}: {:?}", found.map(|found| tokenizer.decode(&found.tokens))),
        }
    }
}

/// A letter belongs to the level in which its last mark stands, since that decides which letter it is.
#[test]
fn a_composed_letter_ends_behind_its_marks() {
    let tokenizer = of_characters(json!({"type": "NFC"}), " enfiéộ");
    let ends =
        |levels: [&str; 2]| tokenizer.encode_levels(&levels.map(str::to_string), AddSpecial::No).unwrap().level_ends;
    assert_eq!(ends(["fine\u{301}", " n"]), [4, 6]);
    assert_eq!(ends(["fine", "\u{301} n"]), [3, 6]);
    assert_eq!(ends(["fino\u{323}", "\u{302}n"]), [3, 5]);
}

#[test]
fn decomposed_text_has_the_tokens_of_composed_text() {
    let Some(qwen2) = qwen2_json() else { return };
    let folder = TempDir::new().unwrap();
    write(folder.path(), "tokenizer.json", &qwen2);
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let tokens = |text: &str| tokenizer.encode_levels(&[text.to_string()], AddSpecial::Yes).unwrap().tokens;
    for (decomposed, composed) in [
        ("A file: re\u{301}sume\u{301}.pdf", "A file: résumé.pdf"),
        ("\u{1112}\u{1161}\u{11ab}\u{1100}\u{116e}\u{11a8}", "한국"),
        ("tie\u{302}\u{301}ng Vie\u{323}\u{302}t", "tiếng Việt"),
    ] {
        assert_eq!(tokens(decomposed), tokens(composed), "{composed}");
    }
}

/// Files that begin with a byte order mark, as some programs write them.
#[test]
fn byte_order_marks_are_passed_over() {
    let plain = tiny(json!({"eos_token": "<end>"}));
    std::fs::write(plain.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let folder = TempDir::new().unwrap();
    for file in std::fs::read_dir(plain.path()).unwrap().map(|entry| entry.unwrap().path()) {
        let text = format!("\u{feff}{}", text(&file));
        std::fs::write(folder.path().join(file.file_name().unwrap()), text).unwrap();
    }
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert_eq!(ids(&tokenizer.encode("ab<end>", AddSpecial::No).unwrap()), [256, 257]);
    assert_eq!((tokenizer.eos(), tokenizer.chat(&[say("user", "a")]).unwrap()), (Some(TokenId(257)), "a".to_string()));
    let whole = json!({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "decoder": {"type": "Fuse"}});
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), format!("\u{feff}{whole}")).unwrap();
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert_eq!(ids(&tokenizer.encode("ba", AddSpecial::No).unwrap()), [1, 0]);
}

#[test]
fn a_broken_folder_is_named() {
    let error = |folder: &Path| Tokenizer::load(folder).err().unwrap().to_string();
    let folder = TempDir::new().unwrap();
    assert!(error(&folder.path().join("nowhere")).contains("nowhere: cannot open the model folder"));
    assert!(error(folder.path()).contains("neither tokenizer.json nor vocab.json with merges.txt"));
    std::fs::write(folder.path().join("tokenizer.model"), "x").unwrap();
    assert!(error(folder.path()).contains("AutoTokenizer"), "{}", error(folder.path()));
    std::fs::write(folder.path().join("tokenizer.json"), "{\"version\": \"1.0\", \"mod").unwrap();
    assert!(error(folder.path()).contains("tokenizer.json: not a tokenizer"), "{}", error(folder.path()));
    let folder = tiny(json!({"bos_token": "<begin>"}));
    let error = error(folder.path());
    assert!(error.contains("tokenizer_config.json: `bos_token`") && error.contains("\"<begin>\""), "{error}");
}

/// The library's search for added tokens takes quadratic time to build: minutes for one of 200,000 bytes.
#[test]
fn an_added_token_that_is_too_long_is_refused_before_it_costs_time() {
    let long = "x".repeat(200_000);
    let refused = |folder: &TempDir, file: &str| {
        let error = Tokenizer::load(folder.path()).expect_err("refused").to_string();
        assert!(error.contains(file) && error.contains("at most 4096 bytes, found one of 200000 bytes"), "{error}");
    };
    let decoder = json!({"added_tokens_decoder": {"258": {"content": long, "special": true}}});
    refused(&tiny(decoder), "tokenizer_config.json");
    let folder = tiny(json!({}));
    write(folder.path(), "added_tokens.json", &json!({long.as_str(): 257}));
    refused(&folder, "added_tokens.json");
    write(folder.path(), "tokenizer.json", &json!({"version": "1.0", "added_tokens": [{"id": 0, "content": long}]}));
    refused(&folder, "tokenizer.json");
}

fn say(role: &str, content: &str) -> Message {
    Message::new(role, content)
}

/// A tokenizer with the chat template, and the texts of the special tokens, of a real configuration.
fn with_templates_of(config: &str) -> Option<Tokenizer> {
    let config: Value =
        serde_json::from_str(&text(&shared(&format!("data/hf_configs/{config}/tokenizer_config.json"))?)).unwrap();
    let folder = tiny(json!({"chat_template": config["chat_template"]}));
    let mut special = serde_json::Map::new();
    let mut added = json!({"<end>": 257});
    for name in ["bos_token", "eos_token"] {
        let token = config[name].as_str().or_else(|| config[name]["content"].as_str());
        if let Some(token) = token {
            special.insert(name.into(), token.into());
            let next = added.as_object().unwrap().len() + 257;
            added.as_object_mut().unwrap().entry(token).or_insert(next.into());
        }
    }
    write(folder.path(), "special_tokens_map.json", &special.into());
    write(folder.path(), "added_tokens.json", &added);
    Some(Tokenizer::load(folder.path()).unwrap())
}

/// Expected strings: Python's jinja2 3.1.6 with the settings of transformers' `apply_chat_template`, on 7 March 2025.
#[test]
fn chat_templates_of_real_models() {
    let talk =
        [say("system", "Be brief. "), say("user", "2 < 3?\n"), say("assistant", " Yes.\n"), say("user", "Why \"é\"?")];
    let question = [say("user", "2 < 3?\n")];
    let llama3 =
        "<|start_header_id|>user<|end_header_id|>\n\n2 < 3?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    let llama3_rest = "Yes.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhy \"é\"?<|eot_id|>\
                       <|start_header_id|>assistant<|end_header_id|>\n\n";
    let system = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n";
    let dated = format!("{system}Cutting Knowledge Date: December 2023\nToday Date: 07 Mar 2025\n\n");
    let qwen = "<|im_start|>user\n2 < 3?\n<|im_end|>\n<|im_start|>assistant\n";
    let qwen_talk = format!(
        "<|im_start|>system\nBe brief. <|im_end|>\n{qwen} Yes.\n<|im_end|>\n\
         <|im_start|>user\nWhy \"é\"?<|im_end|>\n<|im_start|>assistant\n"
    );
    let phi = "<|user|>\n2 < 3?\n<|end|>\n<|assistant|>\n";
    let cases = [
        (
            "executorch/llama3-8B-instruct",
            format!("{system}Be brief.<|eot_id|>{llama3}{llama3_rest}"),
            format!("<|begin_of_text|>{llama3}"),
        ),
        (
            "executorch/Llama-3.2-1B-Instruct",
            format!("{dated}Be brief.<|eot_id|>{llama3}{llama3_rest}"),
            format!("{dated}<|eot_id|>{llama3}"),
        ),
        (
            "executorch/Qwen2-1.5B-Instruct",
            qwen_talk.clone(),
            format!("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{qwen}"),
        ),
        (
            "executorch/Qwen2.5-0.5B-Instruct",
            qwen_talk.clone(),
            format!(
                "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n\
                 {qwen}"
            ),
        ),
        ("executorch/Qwen3-1.7B", qwen_talk, qwen.to_string()),
        (
            "executorch/phi3.5-mini-instruct",
            format!("<|system|>\nBe brief. <|end|>\n{phi} Yes.\n<|end|>\n<|user|>\nWhy \"é\"?<|end|>\n<|assistant|>\n"),
            phi.to_string(),
        ),
    ];
    let now = UNIX_EPOCH + Duration::from_secs(1_741_305_600);
    let options = ChatOptions { now, ..ChatOptions::default() };
    for (config, expected_talk, expected_question) in cases {
        let Some(tokenizer) = with_templates_of(config) else { return };
        assert_eq!(tokenizer.chat_with(&talk, &options).unwrap(), expected_talk, "{config}");
        assert_eq!(tokenizer.chat_with(&question, &options).unwrap(), expected_question, "{config}");
    }
    let qwen3 = with_templates_of("executorch/Qwen3-1.7B").unwrap();
    let thoughtless =
        ChatOptions { variables: json!({"enable_thinking": false}).as_object().unwrap().clone(), ..options };
    assert_eq!(qwen3.chat_with(&question, &thoughtless).unwrap(), format!("{qwen}<think>\n\n</think>\n\n"));
    let mistral = with_templates_of("Mistral-7B").unwrap();
    assert_eq!(mistral.chat(&question).unwrap(), "<s>[INST] 2 < 3?\n [/INST]");
    let error = mistral.chat(&talk).unwrap_err().to_string();
    assert!(error.contains("the chat template refuses: Conversation roles must alternate"), "{error}");
}

/// Expected strings: Python's jinja2 3.1.6 with the settings of transformers' `apply_chat_template`, on 7 March 2025.
#[test]
fn earlier_calls_by_templates_of_real_models() {
    let call = json!({"name": "look", "arguments": {"city": "Århus", "days": 2}});
    let talk = [
        say("user", "How warm?"),
        say("assistant", "").with("tool_calls", vec![json!({"id": "c1", "type": "function", "function": call})]),
        say("tool", "7 \"deg\"").with("tool_call_id", "c1"),
    ];
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": parameters}});
    let now = UNIX_EPOCH + Duration::from_secs(1_741_305_600);
    let options = ChatOptions { now, tools: vec![tool], ..ChatOptions::default() };
    let qwen = "How warm?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\
                \"city\": \"Århus\", \"days\": 2}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n\
                7 \"deg\"\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    let llama = "How warm?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"look\", \
                 \"parameters\": {\"city\": \"Århus\", \"days\": 2}}<|eot_id|>\
                 <|start_header_id|>ipython<|end_header_id|>\
                 \n\n\"7 \\\"deg\\\"\"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    for (config, length, end, family) in [
        ("Qwen2.5-0.5B-Instruct", 844, qwen, "hermes"),
        ("Qwen3-1.7B", 774, qwen, "hermes"),
        ("Llama-3.2-1B-Instruct", 977, llama, "llama3"),
    ] {
        let Some(tokenizer) = with_templates_of(&format!("executorch/{config}")) else { return };
        assert_eq!(tokenizer.arguments_syntax(&options), ArgumentsSyntax::Value, "{config}");
        let text = tokenizer.chat_with(&talk, &options).unwrap();
        assert_eq!((text.chars().count(), &text[text.find("How warm?").unwrap()..]), (length, end), "{config}");
        // What a model writes as it saw its earlier call is found.
        let call = end.split_once("assistant").unwrap().1.split("<|").find(|piece| piece.contains("look")).unwrap();
        let call = call.trim_start_matches("end_header_id|>");
        assert_eq!(calls_of(call).len(), 1, "{config}: {call}");
        let template = tokenizer.chat_template().unwrap();
        assert_eq!(CallSyntax::of(template).map(CallSyntax::name), Some(family), "{config}");
    }
}

#[test]
fn a_rendered_chat_brings_its_own_beginning_of_text() {
    let Some(llama3) = shared("data/tokenizers/llama3/tokenizer.json") else { return };
    let folder = TempDir::new().unwrap();
    std::fs::copy(llama3, folder.path().join("tokenizer.json")).unwrap();
    let template = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n\
                    {{ m.content | trim }}<|eot_id|>{% endfor %}";
    let config = json!({"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "chat_template": template});
    write(folder.path(), "tokenizer_config.json", &config);
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let text = tokenizer.chat(&[say("user", " Hello ")]).unwrap();
    assert_eq!(
        ids(&tokenizer.encode(&text, AddSpecial::No).unwrap()),
        [128000, 128006, 882, 128007, 271, 9906, 128009]
    );
}

/// Of transformers: tools choose the template of that name, unless another one is asked for.
#[test]
fn tools_have_a_template_of_their_own() {
    let named = json!([{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ tools[0].name }}"}]);
    let tokenizer = Tokenizer::load(tiny(json!({"chat_template": named})).path()).unwrap();
    let render = |options: &ChatOptions| tokenizer.chat_with(&[say("user", "x")], options).unwrap();
    let tools = ChatOptions { tools: vec![json!({"name": "add"})], ..ChatOptions::default() };
    assert_eq!((render(&ChatOptions::default()), render(&tools)), ("D".to_owned(), "Tadd".to_owned()));
    assert_eq!(render(&ChatOptions { source: Some("own".to_owned()), ..tools }), "own");
}

/// The tokens around a special token stay those of the tokenizer: lstrip, rstrip and word boundaries among them.
#[test]
fn special_tokens_of_users_are_plain_text() {
    let decoder = json!({"added_tokens_decoder": {
        "257": {"content": "<end>", "special": true},
        "258": {"content": "<wide>", "special": true, "lstrip": true, "rstrip": true},
        "259": {"content": "<mark>", "special": false},
    }});
    let tokenizer = Tokenizer::load(tiny(decoder).path()).unwrap();
    let encode = |text: &str| ids(&tokenizer.encode(text, AddSpecial::No).unwrap());
    let hidden = |user: &str, rest: &str| {
        let rendered = format!("{rest}{}{rest}", tokenizer.hide_special(user, Speaker::Anyone).unwrap());
        assert_eq!(tokenizer.show_special(&rendered), format!("{rest}{user}{rest}"));
        ids(&tokenizer.encode_hidden(&rendered, AddSpecial::No).unwrap())
    };
    for user in ["a b", " a ", "", "<mark> x", "<en", "d>"] {
        for rest in ["<end>", " <wide> ", "x <mark>"] {
            assert_eq!(hidden(user, rest), encode(&format!("{rest}{user}{rest}")), "{user:?} in {rest:?}");
        }
    }
    for user in ["<end>", "a<wide>b", "<e<end>nd>"] {
        let plain = ids(&tokenizer.encode_plain(user, AddSpecial::No).unwrap());
        assert!(plain.iter().all(|id| ![257, 258].contains(id)), "{plain:?}");
        assert_eq!(hidden(user, "<end>"), [&[257][..], &plain, &[257]].concat(), "{user:?}");
        assert!(tokenizer.special_in(user).is_some());
    }
    assert_eq!(tokenizer.special_in("<mark> <en"), None);
}

/// Roles of some models are added tokens that are not called special. What the assistant and the system say may have
/// such tokens.
#[test]
fn tokens_that_the_template_writes_are_plain_text_in_texts_of_users() {
    let decoder = json!({
        "chat_template": "{% for m in messages %}<mark>{{ m.content }}<end>{% endfor %}",
        "added_tokens_decoder": {
            "257": {"content": "<end>", "special": true},
            "258": {"content": "<mark>", "special": false},
            "259": {"content": "<other>", "special": false},
        },
    });
    let tokenizer = Tokenizer::load(tiny(decoder).path()).unwrap();
    let encoded = |user: &str, of: Speaker| {
        let rendered = format!("<mark>{}<end>", tokenizer.hide_special(user, of).unwrap());
        assert_eq!(tokenizer.show_special(&rendered), format!("<mark>{user}<end>"));
        ids(&tokenizer.encode_hidden(&rendered, AddSpecial::No).unwrap())
    };
    let count = |tokens: &[u32], id: u32| tokens.iter().filter(|token| **token == id).count();
    let user = encoded("a<mark>b<end><other>", Speaker::Anyone);
    assert_eq!([257, 258, 259].map(|id| count(&user, id)), [1, 1, 1]);
    let assistant = encoded("a<mark>b<end><other>", Speaker::Assistant);
    assert_eq!([257, 258, 259].map(|id| count(&assistant, id)), [1, 2, 1]);
    let plain = ids(&tokenizer.encode_plain("<mark><end>", AddSpecial::No).unwrap());
    assert_eq!([257, 258].map(|id| count(&plain, id)), [0, 1]);
}

/// Added tokens that are words: a template finds fields and kinds of parts by them.
#[test]
fn names_that_a_template_looks_for_stay_as_they_are() {
    let template = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}text{{ p['text'] }}\
        {% endif %}{% endfor %}<end>{% endfor %}{% for t in tools %}{{ t.name }}{{ t.parameters | tojson }}\
        {% endfor %}";
    let decoder = json!({
        "chat_template": template,
        "added_tokens_decoder": {
            "257": {"content": "<end>", "special": true},
            "258": {"content": "text", "special": false},
            "259": {"content": "name", "special": false},
        },
    });
    let tokenizer = Tokenizer::load(tiny(decoder).path()).unwrap();
    let encoded = |how: SpecialText, key: &str| {
        let part = json!({"type": "text", "text": "a text"});
        let mut messages = [Message::user("").with("content", vec![part])];
        let tool = json!({"name": "add", "parameters": {key: "x"}});
        let mut options = ChatOptions { tools: vec![tool], ..ChatOptions::default() };
        tokenizer.guard_chat(how, &mut messages, &mut options).map_err(|(place, _)| place)?;
        let rendered = tokenizer.chat_with(&messages, &options).unwrap();
        let tokens = ids(&tokenizer.encode_hidden(&rendered, AddSpecial::No).unwrap());
        let count = |id: u32| tokens.iter().filter(|token| **token == id).count();
        Ok((tokenizer.show_special(&rendered).into_owned(), [257, 258].map(count)))
    };
    let said = |key: &str| format!("texta text<end>add{{\"{key}\": \"x\"}}");
    for how in [SpecialText::Escape, SpecialText::Refuse] {
        assert_eq!(encoded(how, "of"), Ok((said("of"), [1, 1])), "{how:?}");
    }
    assert_eq!(encoded(SpecialText::Escape, "<end>"), Ok((said("<end>"), [1, 1])));
    assert_eq!(encoded(SpecialText::Refuse, "<end>"), Err(ChatPlace::Tool(0)));
}

/// Levels of hidden texts end where those of the texts themselves do.
#[test]
fn hidden_levels_have_the_tokens_and_ends_of_levels() {
    let tokenizer = tiny_tokenizer();
    let hidden = |levels: &[&str]| {
        let hide = |text: &&str| tokenizer.hide_special(text, Speaker::Assistant).unwrap();
        let levels: Vec<String> = levels.iter().map(hide).collect();
        tokenizer.encode_hidden_levels(&levels, AddSpecial::Yes).unwrap()
    };
    for levels in [&["a", "b c"][..], &["x a", "b", "", "ab \u{e9}"], &["<e", "nd"], &[" ", "\n"]] {
        let texts: Vec<String> = levels.iter().map(|level| (*level).to_owned()).collect();
        assert_eq!(hidden(levels), tokenizer.encode_levels(&texts, AddSpecial::Yes).unwrap(), "{levels:?}");
    }
    let cut = hidden(&["a<e", "nd>b<end>", "c"]);
    let bytes: Vec<u32> = "a<end>b<end>c".bytes().map(u32::from).collect();
    assert_eq!((ids(&cut.tokens), cut.level_ends), (bytes, vec![3, 12, 13]));
}

proptest! {
    /// A special token's text that is cut anywhere, spread over texts side by side, with white space that the template
    /// trims, or joined to what the template writes.
    #[test]
    fn texts_side_by_side_make_no_special_token(
        token in 0..4_usize,
        cuts in proptest::collection::vec(0..16_usize, 1..4),
        around in "[a<>| ]{0,3}",
        space in "[ \n]{0,2}",
        trims in any::<bool>(),
    ) {
        const SPECIAL: [&str; 4] = ["<end>", "<|im_end|>", ">>A<<", "<|\u{e9}nd|>"];
        static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
        let tokenizer = TOKENIZER.get_or_init(|| {
            let named = |(id, text): (u32, &str)| (id.to_string(), json!({"content": text, "special": true}));
            let decoder: serde_json::Map<String, Value> = (257..).zip(SPECIAL).map(named).collect();
            Tokenizer::load(tiny(json!({"added_tokens_decoder": decoder})).path()).unwrap()
        });
        let text = SPECIAL[token];
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| places[cut % places.len()]).collect();
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        let mut texts: Vec<String> = ends.windows(2).map(|ends| text[ends[0]..ends[1]].to_owned()).collect();
        let last = texts.len() - 1;
        texts[0].insert_str(0, &around);
        texts[last] += &around;
        let texts: Vec<String> = match trims {
            true => texts.iter().map(|text| format!("{space}{text}{space}")).collect(),
            false => texts,
        };
        let shown = |text: &str| if trims { text.trim().to_owned() } else { text.to_owned() };
        let hide = |text: &String| shown(&tokenizer.hide_special(text, Speaker::Anyone).unwrap());
        let rendered = format!("<end>{}<end>", texts.iter().map(hide).collect::<String>());
        let whole = format!("<end>{}<end>", texts.iter().map(|text| shown(text)).collect::<String>());
        prop_assert_eq!(tokenizer.show_special(&rendered), &*whole);
        for (at, _) in whole.char_indices() {
            let behind = tokenizer.hidden_behind(&rendered, at);
            prop_assert!(behind.is_some() || !matches!(at, 0 | 5), "{:?} {}", rendered, at);
            prop_assert!(behind.is_none_or(|behind| tokenizer.show_special(behind) == whole[at..]), "{:?}", rendered);
        }
        prop_assert_eq!(tokenizer.hidden_behind(&rendered, whole.len() + 1), None);
        let tokens = ids(&tokenizer.encode_hidden(&rendered, AddSpecial::No).unwrap());
        let special: Vec<usize> = (0..tokens.len()).filter(|&at| (257..261).contains(&tokens[at])).collect();
        prop_assert_eq!(special, [0, tokens.len() - 1], "{:?}", texts);
        let is_whole = texts.iter().any(|text| tokenizer.special_in(text).is_some());
        prop_assert!(is_whole || tokenizer.special_joined(&rendered).is_some(), "{:?}", texts);
    }
}

/// A template may take pieces out of a text, join its lines, or change its case.
#[test]
fn pieces_of_a_text_make_no_special_token() {
    let template = "{% for m in messages %}<|im_start|>{{ m.content.replace('/no', '').split('</think>') | join \
                    | lower }}<|im_end|>{% endfor %}";
    let decoder = json!({
        "chat_template": template,
        "added_tokens_decoder": {
            "257": {"content": "<|im_start|>", "special": true},
            "258": {"content": "<|im_end|>", "special": true},
            "259": {"content": "[INST]", "special": true},
            "260": {"content": "</think>", "special": false},
        },
    });
    let tokenizer = Tokenizer::load(tiny(decoder).path()).unwrap();
    let control = |user: &str, of: Speaker| -> (Vec<u32>, bool) {
        let hidden = tokenizer.hide_special(user, of).unwrap();
        assert_eq!(tokenizer.show_special(&hidden), user);
        let rendered = tokenizer.chat(&[say("user", &hidden)]).unwrap();
        let tokens = ids(&tokenizer.encode_hidden(&rendered, AddSpecial::No).unwrap());
        (tokens.into_iter().filter(|id| *id > 256).collect(), tokenizer.special_joined(&rendered).is_some())
    };
    for special in ["<|im_start|>", "<|im_end|>"] {
        for cut in 1..special.len() {
            for piece in ["/no", "</think>"] {
                let user = format!("a {}{piece}{} b", &special[..cut], &special[cut..]);
                for of in [Speaker::Anyone, Speaker::Assistant] {
                    // A whole `</think>` of a user is hidden: the template does not find it.
                    let is_found = piece == "/no" || of == Speaker::Assistant;
                    assert_eq!(control(&user, of), (vec![257, 258], is_found), "{user} {of:?}");
                }
            }
        }
        assert_eq!(control(&special.to_uppercase(), Speaker::Anyone), (vec![257, 258], true));
    }
    // What templates name whole is found in a text of the assistant, and stays its token where the template writes it.
    assert_eq!(control("a < b [x] <y></think>c", Speaker::Assistant), (vec![257, 258], false));
    let kept = tokenizer.hide_special("</think> <|", Speaker::Assistant).unwrap();
    assert!(kept.starts_with("</think> ") && !kept.contains("<|"), "{kept:?}");
}

#[test]
fn where_templates_come_from_and_what_they_may_say() {
    let named = json!([{"name": "default", "template": "D {{ eos_token }}"}, {"name": "tools", "template": "T"}]);
    let folder = tiny(json!({"chat_template": named, "eos_token": "<end>"}));
    let load = || Tokenizer::load(folder.path()).unwrap();
    let question = [say("user", "x\ny")];
    assert_eq!(load().chat(&question).unwrap(), "D <end>");
    let tools = ChatOptions { template: "tools".into(), ..ChatOptions::default() };
    assert_eq!(load().chat_with(&question, &tools).unwrap(), "T");
    let none = ChatOptions { template: "rag".into(), ..ChatOptions::default() };
    assert!(load().chat_with(&question, &none).unwrap_err().to_string().contains("`rag`; there are default, tools"));

    // The file has precedence. Marks for training, loop control, Python's methods, slices and JSON.
    let template = "{%- for m in messages[::-1] %}\n    {%- if m.content.startswith('x') %}\n{% generation %}\n\
                    {{ m.content.split('\\n')[-1].strip() }}{% endgeneration %}\n\n    {%- break %}\n    \
                    {%- endif %}\n{% endfor %}{{ messages[0] | tojson }}{{ tools is none }}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    assert_eq!(load().chat(&question).unwrap(), "y{\"role\": \"user\", \"content\": \"x\\ny\"}True");

    // A turn has what it was given, in that order; the tools, too, are as they were given.
    std::fs::write(folder.path().join("chat_template.jinja"), "{{ messages | tojson }}{{ tools | tojson }}").unwrap();
    let turn = json!({"content": null, "role": "assistant", "tool_calls": [{"b": 1, "a": "2"}], "reasoning": "r"});
    let turn = [Message::of(turn.as_object().unwrap().clone()), say("user", "y").with("name", "Mia")];
    let shown = r#"[{"content": null, "role": "assistant", "tool_calls": [{"b": 1, "a": "2"}], "reasoning": "r"}, "#;
    let shown = format!("{shown}{{\"role\": \"user\", \"content\": \"y\", \"name\": \"Mia\"}}]");
    let tools = ChatOptions { tools: vec![json!({"name": "add"})], ..ChatOptions::default() };
    assert_eq!(load().chat_with(&turn, &tools).unwrap(), format!("{shown}[{{\"name\": \"add\"}}]"));
    assert_eq!(load().chat(&turn).unwrap(), format!("{shown}null"));

    std::fs::write(folder.path().join("chat_template.jinja"), "{% for %}").unwrap();
    assert!(load().chat(&question).unwrap_err().to_string().contains("the chat template is broken"));
    let refused = tiny_tokenizer().chat(&question).unwrap_err().to_string();
    assert!(refused.contains("the model has no chat template"), "{refused}");
    assert!(refused.ends_with("give it plain prompts instead of messages"), "{refused}");
    assert_eq!(tiny_tokenizer().chat_template(), None);
}
