//! GGUF files: what is wrong with them is said in one sentence; tokenizers against sentencepiece and the tokenizers
//! library; chat templates; parts of a file that was split.

use std::path::Path;

use crate::gguf_files::{GgufWriter, golden};
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_gguf::{Gguf, TensorType};
use offshoot_model::{ActivationChoice, Decoder, MadeFormat, ModelFolder, WeightChoice};
use offshoot_text::{AddSpecial, Message, Tokenizer};
use serde_json::Value;
use tempfile::TempDir;

/// The smallest file of a model that can be read.
fn tiny() -> GgufWriter {
    let matrix = |rows: usize, cols: usize| (vec![rows, cols], vec![0.1; rows * cols]);
    let mut writer = GgufWriter::default()
        .text("general.architecture", "llama")
        .count("llama.block_count", 1)
        .count("llama.context_length", 32)
        .count("llama.embedding_length", 8)
        .count("llama.feed_forward_length", 8)
        .count("llama.attention.head_count", 2)
        .count("llama.attention.head_count_kv", 1)
        .number("llama.rope.freq_base", 10_000.0)
        .number("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let matrices = [
        ("token_embd.weight", matrix(4, 8)),
        ("blk.0.attn_q.weight", matrix(8, 8)),
        ("blk.0.attn_k.weight", matrix(4, 8)),
        ("blk.0.attn_v.weight", matrix(4, 8)),
        ("blk.0.attn_output.weight", matrix(8, 8)),
        ("blk.0.ffn_gate.weight", matrix(8, 8)),
        ("blk.0.ffn_up.weight", matrix(8, 8)),
        ("blk.0.ffn_down.weight", matrix(8, 8)),
    ];
    for (name, (shape, values)) in matrices {
        writer = writer.f32(name, &shape, &values);
    }
    for name in ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"] {
        writer = writer.f32(name, &[8], &[1.0; 8]);
    }
    writer
}

fn load(bytes: &[u8]) -> offshoot_core::Result<()> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let folder = ModelFolder::open(&path)?;
    Decoder::load(&mut Cpu::open().unwrap(), &folder).map(|_| ())
}

/// The error without the path, which it begins with.
fn fault(bytes: &[u8]) -> String {
    let error = load(bytes).expect_err("it is wrong").to_string();
    let (path, rest) = error.split_once(".gguf: ").unwrap_or_else(|| panic!("no path: {error}"));
    assert!(!path.contains(": ") && !rest.contains('\n'), "{error}");
    rest.to_owned()
}

#[test]
fn a_tiny_model_loads() {
    load(&tiny().bytes()).unwrap();
}

#[test]
fn what_is_wrong_with_a_header() {
    let whole = tiny().bytes();
    assert_eq!(fault(b"GGML\x03\0\0\0"), "`magic number`: expected \"GGUF\", found \"GGML\"");
    assert_eq!(fault(b"GGUF\x01\0\0\0"), "`version`: expected 2 or 3, found 1");
    assert_eq!(fault(b"GGUF\0\0\0\x03"), "`version`: expected 2 or 3, found a file for big-endian machines");
    assert_eq!(fault(b"GG"), "truncated or broken: the magic number at byte 0 has 4 bytes, the file ends at byte 2");
    let pointer = fault(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n");
    assert!(pointer.contains("Git LFS pointer to one of 1.21 KiB; `git lfs pull`"), "{pointer}");
    let absurd = [&whole[..8], &u64::MAX.to_le_bytes(), &whole[16..]].concat();
    let most = (whole.len() - 16) / 32;
    assert_eq!(
        fault(&absurd),
        format!("`number of tensors`: expected at most {most}, for which the file has bytes, found {}", u64::MAX)
    );
    let mut long_key = whole.clone();
    long_key[24..32].copy_from_slice(&(1u64 << 60).to_le_bytes());
    assert_eq!(
        fault(&long_key),
        format!(
            "truncated or broken: a key of the metadata at byte 32 has {} bytes, the file ends at byte {}",
            1u64 << 60,
            whole.len()
        )
    );
    assert!(fault(&whole[..whole.len() - 33]).contains("beyond which the file is too short"));
    let twice = tiny().f32("blk.0.ffn_up.weight", &[8, 8], &[0.0; 64]).bytes();
    assert_eq!(fault(&twice), "tensor `blk.0.ffn_up.weight`: expected one tensor of this name, found two");
}

#[test]
fn what_is_wrong_with_a_tensor() {
    let overlapping = fault(&tiny().bytes_moved(|i, offset| if i == 2 { offset - 32 } else { offset }));
    assert!(overlapping.starts_with("tensor `blk.0.attn_k.weight`: expected bytes of its own, from "), "{overlapping}");
    assert!(overlapping.ends_with(", inside `blk.0.attn_q.weight`"), "{overlapping}");
    assert_eq!(
        fault(&tiny().bytes_moved(|i, offset| offset + u64::from(i == 2))),
        "tensor `blk.0.attn_k.weight`: expected an offset that is a multiple of 32, found 385"
    );
    let without = tiny().without("blk.0.ffn_up.weight");
    let other = |kind: u32| without.clone().tensor_of("blk.0.ffn_up.weight", &[8, 256], kind, vec![0; 8 << 10]).bytes();
    let supported =
        "one of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4";
    let of = "tensor `blk.0.ffn_up.weight`: expected";
    assert_eq!(fault(&other(21)), format!("{of} {supported}, found IQ3_S (type 21)"));
    assert_eq!(fault(&other(4711)), format!("{of} {supported}, found type 4711"));
    let q8 = without.clone().tensor("blk.0.ffn_up.weight", &[8, 8], TensorType::Q8_0, vec![0; 34 * 8]).bytes();
    assert_eq!(fault(&q8), format!("{of} rows of a multiple of 32 elements (Q8_0), found 8"));
    let endless = without.clone().tensor("blk.0.ffn_up.weight", &[1 << 40, 1 << 40], TensorType::F32, vec![]).bytes();
    assert!(fault(&endless).contains("sizes above 0 whose product can be counted"));
    assert_eq!(
        fault(&without.clone().f32("blk.0.ffn_up.weight", &[8, 4], &[0.0; 32]).bytes()),
        format!("{of} [8, 8], as [8, 8] (intermediate_size, hidden_size) says, found [8, 4]")
    );
    assert_eq!(fault(&without.bytes()), format!("{of} [8, 8] (intermediate_size, hidden_size), found nothing"));
    assert_eq!(
        fault(&tiny().f32("blk.0.attn_q_norm.weight", &[4], &[1.0; 4]).bytes()),
        "tensor `blk.0.attn_q_norm.weight`: expected nothing of this name by the metadata (1 layers, its \
         architecture), found a tensor of shape [4]"
    );
    assert_eq!(
        fault(&tiny().f32("rope_freqs.weight", &[3], &[1.0; 3]).bytes()),
        "tensor `rope_freqs.weight`: expected 2 numbers above 0, one for each rotated pair, found 3 numbers"
    );
}

#[test]
fn what_is_wrong_with_metadata() {
    let supported = "llama, qwen2, qwen3, qwen3moe, phi2, phi3, smollm3, olmo2, gemma2, gemma3, gpt-oss, deepseek2, \
                     mistral4, minicpm3, qwen2vl, qwen3vl, qwen3vlmoe";
    let architecture = "`general.architecture`: expected one of";
    assert_eq!(
        fault(&tiny().text("general.architecture", "mamba").bytes()),
        format!("{architecture} {supported}, found \"mamba\"")
    );
    assert_eq!(
        fault(&tiny().without("general.architecture").bytes()),
        format!("{architecture} {supported}, found nothing")
    );
    assert_eq!(
        fault(&tiny().text("llama.block_count", "many").bytes()),
        "`llama.block_count`: expected a whole number from 0, found \"many\""
    );
    assert_eq!(
        fault(&tiny().without("llama.embedding_length").bytes()),
        "`llama.embedding_length`: expected a whole number from 1 to 4194304, found nothing"
    );
    assert_eq!(
        fault(&tiny().counts("llama.attention.head_count", &[2, 1]).bytes()),
        "`llama.attention.head_count`: expected the same number for all layers, found 2 and 1"
    );
    assert_eq!(
        fault(&tiny().text("llama.rope.scaling.type", "new").bytes()),
        "`llama.rope.scaling.type`: expected none, linear, yarn, or longrope with a tensor `rope_factors_long.weight`, \
         found \"new\""
    );
    assert_eq!(
        fault(&tiny().count("llama.attention.head_count_kv", 3).bytes()),
        "`llama.attention.head_count_kv`: expected a divisor of num_attention_heads (2), found 3"
    );
    assert_eq!(
        fault(&tiny().count("llama.attention.key_length", 4).count("llama.attention.value_length", 6).bytes()),
        "`llama.attention.value_length`: expected the width of keys (4), found 6"
    );
}

#[test]
fn parts_of_a_model() {
    let folder = TempDir::new().unwrap();
    let name = |number: usize| folder.path().join(format!("tiny-{number:05}-of-00002.gguf"));
    let first = tiny().without("blk.0.ffn_up.weight").count("split.no", 0).count("split.count", 2);
    std::fs::write(name(1), first.count("split.tensors.count", 11).bytes()).unwrap();
    let error = ModelFolder::open(name(1)).unwrap_err().to_string();
    assert!(
        error.ends_with("expected all 2 parts of the model beside it, found no tiny-00002-of-00002.gguf"),
        "{error}"
    );
    let second = |number: u32| {
        let own = GgufWriter::default().count("split.no", number).count("split.count", 2);
        std::fs::write(name(2), own.f32("blk.0.ffn_up.weight", &[8, 8], &[0.1; 64]).bytes()).unwrap();
    };
    second(0);
    let error = ModelFolder::open(name(2)).unwrap_err().to_string();
    assert!(error.ends_with("`split.no`: expected 1, by the names of the files, found 0"), "{error}");
    second(1);
    for path in [name(1), name(2), folder.path().to_path_buf()] {
        let model = ModelFolder::open(&path).unwrap();
        Decoder::load(&mut Cpu::open().unwrap(), &model).unwrap();
        assert_eq!(Gguf::open(&path).unwrap().files().len(), 2);
    }
    std::fs::write(folder.path().join("other.gguf"), tiny().bytes()).unwrap();
    let error = ModelFolder::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("expected one GGUF model, found 2 models, other.gguf and "), "{error}");
}

fn cases(name: &str) -> Vec<(String, Vec<u32>)> {
    texts_with_ids(&serde_json::from_slice(&std::fs::read(golden(name)).unwrap()).unwrap())
}

fn texts_with_ids(cases: &Value) -> Vec<(String, Vec<u32>)> {
    let cases = cases.as_array().unwrap();
    let ids = |case: &Value| case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    cases.iter().map(|case| (case["text"].as_str().unwrap().to_owned(), ids(case))).collect()
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

fn compare(name: &str) -> Tokenizer {
    let tokenizer = Tokenizer::load(&golden(&format!("{name}.gguf"))).unwrap();
    let cases = cases(&format!("{name}.json"));
    assert!(cases.len() >= 9);
    for (text, expected) in cases {
        let tokens = tokenizer.encode(&text, AddSpecial::No).unwrap();
        assert_eq!(ids(&tokens), expected, "{name}: {text:?}");
        if !text.contains("<|") {
            assert_eq!(tokenizer.decode(&tokens), text, "{name}");
        }
    }
    tokenizer
}

#[test]
fn sentencepiece_tokens() {
    let tokenizer = compare("sentencepiece");
    let (bos, eos) = (tokenizer.bos().unwrap(), tokenizer.eos().unwrap());
    assert!(tokenizer.is_special(bos) && tokenizer.is_special(eos));
    let special = tokenizer.encode("one </s> two", AddSpecial::Yes).unwrap();
    assert_eq!(special[0], bos);
    assert!(special[1..].contains(&eos), "{special:?}");
}

#[test]
fn byte_level_tokens() {
    let tokenizer = compare("byte-level");
    let whole =
        Tokenizer::load(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo")).unwrap();
    for text in ["A boat, 3 boats; été!\n\n", "<|end_of_text|>x", " \t\n  \u{3000}y"] {
        let tokens = tokenizer.encode(text, AddSpecial::No).unwrap();
        assert_eq!(tokens, whole.encode(text, AddSpecial::No).unwrap(), "{text:?}");
        assert_eq!(tokenizer.decode_with_special(&tokens), whole.decode_with_special(&tokens));
    }
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.bos(), tokenizer.eos()),
        (whole.vocab_size(), whole.bos(), whole.eos())
    );
}

/// Kinds of pre-tokenizers, on one vocabulary.
#[test]
fn texts_are_split_into_words_as_the_kind_says() {
    let file = Gguf::open(&golden("byte-level.gguf")).unwrap();
    let metadata = file.metadata();
    let of = |key: &str| metadata.texts(&format!("tokenizer.ggml.{key}")).unwrap().unwrap();
    let types = metadata.counts("tokenizer.ggml.token_type").unwrap().unwrap();
    let types: Vec<i32> = types.into_iter().map(|kind| kind.try_into().unwrap()).collect();
    let with = |kind: &str| {
        let writer = GgufWriter::default()
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", kind)
            .texts("tokenizer.ggml.tokens", &of("tokens"))
            .counts("tokenizer.ggml.token_type", &types)
            .texts("tokenizer.ggml.merges", &of("merges"));
        tokenizer(&writer).unwrap()
    };
    let all: Value = serde_json::from_slice(&std::fs::read(golden("pre-tokenizers.json")).unwrap()).unwrap();
    let gpt2 = with("gpt-2");
    for (kind, cases) in all.as_object().unwrap() {
        let (tokenizer, mut others) = (with(kind), 0);
        for (text, expected) in texts_with_ids(cases) {
            let tokens = tokenizer.encode(&text, AddSpecial::No).unwrap();
            assert_eq!(ids(&tokens), expected, "{kind}: {text:?}");
            others += usize::from(tokens != gpt2.encode(&text, AddSpecial::No).unwrap());
        }
        assert!(others > 0, "{kind} splits no text as gpt-2 does not");
    }
}

/// A byte-level tokenizer of a few tokens.
fn small() -> GgufWriter {
    GgufWriter::default()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .texts("tokenizer.ggml.tokens", &["<s>", "a", "b", "Ġ", "ab", "<sep>", "Ġab"])
        .counts("tokenizer.ggml.token_type", &[3, 1, 1, 1, 1, 4, 1])
        .texts("tokenizer.ggml.merges", &["a b", "Ġ ab"])
        .count("tokenizer.ggml.bos_token_id", 0)
}

fn tokenizer(writer: &GgufWriter) -> offshoot_core::Result<Tokenizer> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.gguf");
    std::fs::write(&path, writer.bytes()).unwrap();
    Tokenizer::load(&path)
}

#[test]
fn special_tokens_and_chat_templates() {
    let plain = tokenizer(&small()).unwrap();
    let encoded = |tokenizer: &Tokenizer, text: &str| ids(&tokenizer.encode(text, AddSpecial::Yes).unwrap());
    assert_eq!(encoded(&plain, "ab ab<sep>a<s>"), [4, 6, 5, 1, 0]);
    assert_eq!(plain.chat_template(), None);
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}<sep>{% endfor %}";
    let full = small()
        .flag("tokenizer.ggml.add_bos_token", true)
        .flag("tokenizer.ggml.add_eos_token", true)
        .count("tokenizer.ggml.eos_token_id", 5)
        .text("tokenizer.chat_template", template);
    let full = tokenizer(&full).unwrap();
    assert_eq!(encoded(&full, "ab"), [0, 4, 5]);
    let message = Message::user("ab");
    assert_eq!(full.chat(&[message]).unwrap(), "<s>ab<sep>");
}

#[test]
fn what_is_wrong_with_a_tokenizer() {
    let fault = |writer: GgufWriter| {
        let error = tokenizer(&writer).unwrap_err().to_string();
        error.split_once(".gguf: ").unwrap().1.to_owned()
    };
    assert_eq!(
        fault(GgufWriter::default().text("tokenizer.ggml.model", "bert")),
        "`tokenizer.ggml.model`: expected gpt2 (byte-level BPE) or llama (sentencepiece), found \"bert\""
    );
    let pre = fault(small().text("tokenizer.ggml.pre", "strange"));
    assert!(
        pre.starts_with("`tokenizer.ggml.pre`: expected one of gpt-2, ") && pre.ends_with("found \"strange\""),
        "{pre}"
    );
    assert_eq!(
        fault(small().counts("tokenizer.ggml.token_type", &[1])),
        "`tokenizer.ggml.token_type`: expected one for each of the 7 tokens, found 1"
    );
    assert_eq!(
        fault(small().texts("tokenizer.ggml.merges", &["ab"])),
        "`tokenizer.ggml.merges`: expected two tokens with a space between them, found \"ab\""
    );
    assert_eq!(
        fault(small().count("tokenizer.ggml.bos_token_id", 7)),
        "`tokenizer.ggml.bos_token_id`: expected an id below the number of tokens (7), found 7"
    );
    assert_eq!(
        fault(small().text("tokenizer.ggml.model", "llama")),
        "`tokenizer.ggml.scores`: expected one for each of the 7 tokens, found 0"
    );
    assert!(Tokenizer::is_missing(&golden("llama3.gguf")) && !Tokenizer::is_missing(&golden("byte-level.gguf")));
}

/// Its tensors stay as they are stored, quantised or not.
#[test]
fn a_gguf_model_is_not_made_into_codes() {
    let path = golden("llama3.gguf");
    for (choice, option) in [
        (WeightChoice { weights: Some(MadeFormat::Int8), ..WeightChoice::default() }, "`weights`"),
        (WeightChoice { activations: ActivationChoice::Bf16, ..WeightChoice::default() }, "`activations`"),
    ] {
        let error = ModelFolder::open(&path).unwrap().with(choice).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let said = error.to_string();
        assert!(said.contains(option) && said.contains("a model folder") && said.contains(".gguf"), "{said}");
        assert_eq!(said.lines().count(), 1);
    }
    assert!(ModelFolder::open(&path).unwrap().with(WeightChoice::default()).is_ok());
}
