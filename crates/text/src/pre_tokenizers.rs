//! How byte-level tokenizers split text into words, by the names that llama.cpp gives to the kinds
//! (`tokenizer.ggml.pre`). The patterns are those of the models' own tokenizer.json.

use serde_json::{Value, json};

/// A kind of byte-level BPE.
pub struct WordSplit {
    /// Its names in files.
    pub names: &'static [&'static str],
    words: Words,
    /// Whether text is normalised to NFC first.
    nfc: bool,
    /// Whether a word that is a token is not taken apart.
    pub ignore_merges: bool,
    /// Whether a beginning of text is added if the file does not say.
    pub adds_bos: bool,
}

enum Words {
    /// GPT-2's pattern.
    Gpt2,
    /// Single digits, then GPT-2's pattern.
    DigitsAndGpt2,
    Pattern(&'static str),
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

const PLAIN: WordSplit =
    WordSplit { names: &[], words: Words::Gpt2, nfc: false, ignore_merges: false, adds_bos: false };

static KINDS: [WordSplit; 8] = [
    WordSplit { names: &["gpt-2", "phi-2", "mpt"], ..PLAIN },
    WordSplit { names: &["olmo"], nfc: true, ..PLAIN },
    WordSplit {
        names: &["llama-bpe", "llama3", "llama-v3"],
        words: Words::Pattern(LLAMA3),
        ignore_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    WordSplit { names: &["dbrx", "smaug-bpe"], words: Words::Pattern(LLAMA3), ..PLAIN },
    WordSplit {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        words: Words::Pattern(super::load::QWEN2_WORDS),
        nfc: true,
        ..PLAIN
    },
    WordSplit { names: &["tekken"], words: Words::Pattern(TEKKEN), ignore_merges: true, adds_bos: true, ..PLAIN },
    WordSplit { names: &["gpt-4o", "llama4"], words: Words::Pattern(O200K), ignore_merges: true, ..PLAIN },
    WordSplit { names: &["smollm", "starcoder", "refact", "command-r"], words: Words::DigitsAndGpt2, ..PLAIN },
];

impl WordSplit {
    pub fn by_name(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.names.contains(&name))
    }

    /// All names that are known.
    pub fn known() -> String {
        KINDS.iter().flat_map(|kind| kind.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// As tokenizer.json's `normalizer`.
    pub fn normalizer(&self) -> Value {
        if self.nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// As tokenizer.json's `pre_tokenizer`.
    pub fn pre_tokenizer(&self) -> Value {
        let bytes = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                "use_regex": use_regex})
        };
        let sequence = |first: Value, second: Value| json!({"type": "Sequence", "pretokenizers": [first, second]});
        match self.words {
            Words::Gpt2 => bytes(true),
            Words::DigitsAndGpt2 => sequence(json!({"type": "Digits", "individual_digits": true}), bytes(true)),
            Words::Pattern(pattern) => {
                let split =
                    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
                sequence(split, bytes(false))
            }
        }
    }
}
