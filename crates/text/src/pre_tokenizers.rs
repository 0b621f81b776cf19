//! How byte-level tokenizers split text into words, by the names that llama.cpp gives to the kinds
//! (`tokenizer.ggml.pre`). The patterns are those of the models' own tokenizer.json, or of their published code.

use serde::Serialize;
use serde_json::{Value, json};

/// A kind of byte-level BPE.
pub struct WordSplit {
    /// Its names in files.
    pub names: &'static [&'static str],
    /// What is done to a text, in this order; each step splits the pieces that those before it leave.
    steps: &'static [Step],
    /// Whether text is normalised to NFC first.
    nfc: bool,
    /// Whether a word that is a token is not taken apart.
    pub ignore_merges: bool,
    /// Whether a beginning of text is added if the file does not say.
    pub adds_bos: bool,
}

/// A step of a pre-tokenizer.
enum Step {
    /// Matches of a pattern are pieces of their own.
    Split(&'static str),
    /// Each digit is a piece of its own.
    Digits,
    /// Runs of digits are pieces of their own.
    Numbers,
    /// Runs of ASCII symbols and of Unicode's punctuation are pieces of their own.
    Punctuation,
    /// Characters become bytes, in GPT-2's alphabet.
    Bytes,
    /// The same, after a split by GPT-2's pattern.
    Gpt2,
}

/// meta-llama/Meta-Llama-3-8B, and cl100k_base.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// mistralai/Mistral-Nemo-Base-2407.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// o200k_base: openai/gpt-oss-20b, microsoft/Phi-4-mini-instruct.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// moonshotai/Kimi-K2-Instruct: as o200k_base, but runs of Han characters are words of their own, and a slash does not
/// end a run of symbols.
const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Qwen/Qwen3.5-35B-A3B: as Qwen2's, but marks are parts of words.
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// deepseek-ai/DeepSeek-V3, behind numbers and runs of ideographs and kana.
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const IDEOGRAPHS_AND_KANA: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
/// ByteDance-Seed/Seed-Coder-8B-Base: no line break ends a run of symbols.
const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// inclusionAI/Ling-lite.
const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
);
/// inceptionai/Jais-2-8B-Chat: runs of white space are cut into powers of two.
const JAIS2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)",
    r"|\s{1,2}(?!\S)|\s{1}"
);
/// LGAI-EXAONE/K-EXAONE-236B-A23B: words with single spaces between them are one.
const EXAONE_MOE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);
/// CohereLabs/tiny-aya-base, before o200k_base's words: digits by threes from the right.
const THREES: &str = r"\d{1,3}(?=(?:\d{3})*\b)";

/// Ideographs and syllables of East Asia, as DeepSeek's first tokenizers take them.
const IDEOGRAPHS: &str = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+";
/// deepseek-ai/deepseek-llm-7b-base: runs of letters that have cases, as an older version of Unicode has them.
const CASED: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}",
    r"\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}",
    r"\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}",
    r"\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}",
    r"\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}",
    r"\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}",
    r"\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}",
    r"\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}",
    r"\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}",
    r"\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}",
    r"\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}",
    r"\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}",
    r"\x{118a0}-\x{118df}\x{1e900}-\x{1e943}",
    r"]+"
);
/// The same model's punctuation.
const SYMBOLS: &str = r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+";

const PLAIN: WordSplit =
    WordSplit { names: &[], steps: &[Step::Gpt2], nfc: false, ignore_merges: false, adds_bos: false };

static KINDS: [WordSplit; 21] = [
    WordSplit { names: &["gpt-2", "phi-2", "mpt", "exaone4", "granite-docling"], ..PLAIN },
    WordSplit { names: &["olmo"], nfc: true, ..PLAIN },
    WordSplit {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"],
        steps: &[Step::Split(LLAMA3), Step::Bytes],
        ignore_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    WordSplit {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        steps: &[Step::Split(LLAMA3), Step::Bytes],
        ..PLAIN
    },
    WordSplit {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        steps: &[Step::Split(super::load::QWEN2_WORDS), Step::Bytes],
        nfc: true,
        ..PLAIN
    },
    WordSplit {
        names: &["hunyuan", "solar-open", "stablelm2"],
        steps: &[Step::Split(super::load::QWEN2_WORDS), Step::Bytes],
        ..PLAIN
    },
    WordSplit { names: &["qwen35"], steps: &[Step::Split(QWEN35), Step::Bytes], nfc: true, ..PLAIN },
    WordSplit {
        names: &["deepseek-v3", "hunyuan-dense"],
        steps: &[Step::Split(r"\p{N}{1,3}"), Step::Split(IDEOGRAPHS_AND_KANA), Step::Split(DEEPSEEK_V3), Step::Bytes],
        ..PLAIN
    },
    WordSplit { names: &["seed-coder"], steps: &[Step::Split(SEED_CODER), Step::Bytes], ..PLAIN },
    WordSplit { names: &["bailingmoe", "bailingmoe2"], steps: &[Step::Split(BAILING), Step::Bytes], ..PLAIN },
    WordSplit { names: &["jais-2"], steps: &[Step::Split(JAIS2), Step::Bytes], ..PLAIN },
    WordSplit { names: &["exaone-moe"], steps: &[Step::Split(EXAONE_MOE), Step::Bytes], ..PLAIN },
    WordSplit { names: &["minimax-m2"], steps: &[Step::Split(O200K), Step::Bytes], ..PLAIN },
    WordSplit {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[Step::Split(THREES), Step::Split(O200K), Step::Bytes],
        ..PLAIN
    },
    WordSplit {
        names: &["tekken"],
        steps: &[Step::Split(TEKKEN), Step::Bytes],
        ignore_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    WordSplit { names: &["gpt-4o", "llama4"], steps: &[Step::Split(O200K), Step::Bytes], ignore_merges: true, ..PLAIN },
    WordSplit { names: &["kimi-k2"], steps: &[Step::Split(KIMI), Step::Bytes], ignore_merges: true, ..PLAIN },
    WordSplit {
        names: &["smollm", "starcoder", "refact", "command-r", "exaone"],
        steps: &[Step::Digits, Step::Gpt2],
        ..PLAIN
    },
    WordSplit {
        names: &["deepseek-llm"],
        steps: &[
            Step::Split(r"[\r\n]"),
            Step::Split(CASED),
            Step::Split(SYMBOLS),
            Step::Split(r"\s+$"),
            Step::Split(IDEOGRAPHS),
            Step::Digits,
            Step::Bytes,
        ],
        ..PLAIN
    },
    WordSplit {
        names: &["deepseek-coder"],
        steps: &[
            Step::Split(r"[\r\n]"),
            Step::Split(r"\s?\p{L}+"),
            Step::Split(r"\s?\p{P}+"),
            Step::Split(IDEOGRAPHS),
            Step::Digits,
            Step::Bytes,
        ],
        ..PLAIN
    },
    WordSplit {
        names: &["falcon"],
        steps: &[Step::Punctuation, Step::Gpt2, Step::Numbers, Step::Split("[0-9][0-9][0-9]")],
        ..PLAIN
    },
];

impl WordSplit {
    pub fn by_name(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.names.contains(&name))
    }

    /// All names that are known.
    pub fn known() -> String {
        KINDS.iter().flat_map(|kind| kind.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// A tokenizer.json of a byte-level BPE whose words are split so.
    pub fn byte_level(&self, added: impl Serialize, vocab: impl Serialize, merges: &[Value]) -> Value {
        json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": self.normalizer(),
            "pre_tokenizer": self.pre_tokenizer(),
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": self.ignore_merges, "vocab": vocab, "merges": merges,
            },
        })
    }

    /// As tokenizer.json's `normalizer`.
    pub fn normalizer(&self) -> Value {
        if self.nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// As tokenizer.json's `pre_tokenizer`.
    pub fn pre_tokenizer(&self) -> Value {
        let steps: Vec<Value> = self.steps.iter().map(Step::described).collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

impl Step {
    fn described(&self) -> Value {
        let bytes = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                "use_regex": use_regex})
        };
        match self {
            Step::Split(pattern) => {
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
            }
            Step::Digits => json!({"type": "Digits", "individual_digits": true}),
            Step::Numbers => json!({"type": "Digits", "individual_digits": false}),
            Step::Punctuation => json!({"type": "Punctuation", "behavior": "Contiguous"}),
            Step::Bytes => bytes(false),
            Step::Gpt2 => bytes(true),
        }
    }
}
