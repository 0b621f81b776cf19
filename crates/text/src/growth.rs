//! Bounds how far a tokenizer's parts lengthen a text before tokens are made of it: forty replacements that double each
//! letter, one after the other, would fill any memory. `load` and `gguf` refuse what exceeds the bound.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

/// What the parts of one kind may make of one byte, in bytes or tokens. Those of published models make up to 22.
const MOST: f64 = 64.0;

/// Refuses a tokenizer whose normalizer, pre-tokenizer or post-processor lengthens texts too much: the field, what it
/// may do, and what it does.
pub(super) fn check(inner: &tokenizers::Tokenizer) -> Result<(), (&'static str, String, String)> {
    let parts = [
        ("normalizer", described(inner.get_normalizer())),
        ("pre_tokenizer", described(inner.get_pre_tokenizer())),
        ("post_processor", described(inner.get_post_processor())),
    ];
    for (field, part) in parts {
        let times = growth(&part);
        if times > MOST {
            let expected = format!("parts that lengthen a text at most {MOST} times");
            return Err((field, expected, format!("parts that can lengthen it {times:.0} times")));
        }
    }
    Ok(())
}

fn described(part: Option<&impl Serialize>) -> Value {
    serde_json::to_value(part).unwrap_or_default()
}

/// The factor by which a part lengthens a text at most, other than by a constant.
fn growth(part: &Value) -> f64 {
    let length = |value: &Value| value.as_str().map_or(0, str::len) as f64;
    match part["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let lists = ["normalizers", "pretokenizers", "processors"].iter().filter_map(|key| part[key].as_array());
            lists.flatten().map(growth).product()
        }
        // An expression can match nothing at all, before each byte.
        "Replace" => match length(&part["pattern"]["String"]) {
            0.0 => 1.0 + length(&part["content"]),
            replaced => (length(&part["content"]) / replaced).max(1.0),
        },
        // A byte becomes a character of one or two.
        "ByteLevel" => 2.0,
        "Metaspace" => length(&part["replacement"]).max(1.0),
        "Precompiled" => longest_replacement(&part["precompiled_charsmap"]),
        // Chinese characters get spaces around them.
        "BertNormalizer" => 2.0,
        "TemplateProcessing" => {
            let pieces = part["single"].as_array().into_iter().flatten();
            (pieces.filter(|piece| piece.get("Sequence").is_some()).count() as f64).max(1.0)
        }
        _ => 1.0,
    }
}

/// The growth by sentencepiece's table of replacements: the length of its trie, the trie, and texts that end with a
/// zero. The longest texts (of published models 33 bytes) replace characters of three bytes.
fn longest_replacement(table: &Value) -> f64 {
    let table = STANDARD.decode(table.as_str().unwrap_or_default()).unwrap_or_default();
    let trie = table.first_chunk().map_or(0, |&length| u32::from_le_bytes(length) as usize);
    let texts = table.get(4 + trie..).unwrap_or_default();
    match texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0) {
        0 | 1 => 1.0,
        longest => (longest as f64 / 3.0).max(2.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_of_published_tokenizers_are_within_the_bound() {
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let llama = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]});
        assert_eq!(growth(&llama), 3.0);
        let split =
            json!({"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, "behavior": "Isolated", "invert": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        assert_eq!(growth(&json!({"type": "Sequence", "pretokenizers": [split, bytes]})), 2.0);
        let table = STANDARD.encode([&4u32.to_le_bytes()[..], b"trieab\0", "ﷺ".repeat(11).as_bytes(), b"\0"].concat());
        let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": table});
        let one_space = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let xlm = json!({"type": "Sequence", "normalizers": [precompiled, one_space]});
        assert_eq!(growth(&xlm), 22.0);
    }

    #[test]
    fn parts_that_repeat_multiply() {
        let doubled = |key: &str, part: Value| json!({"type": "Sequence", key: vec![part; 40]});
        let doubling = json!({"type": "Replace", "pattern": {"String": "z"}, "content": "zz"});
        let everywhere = json!({"type": "Replace", "pattern": {"Regex": "(?=z)"}, "content": "z"});
        let bytes = json!({"type": "ByteLevel"});
        let twice = json!({"type": "TemplateProcessing", "single": [{"Sequence": {}}, {"Sequence": {}}]});
        let table = STANDARD.encode([&0u32.to_le_bytes()[..], b"zz\0"].concat());
        let table = json!({"type": "Precompiled", "precompiled_charsmap": table});
        for part in [
            doubled("normalizers", doubling),
            doubled("normalizers", everywhere),
            doubled("normalizers", table),
            doubled("pretokenizers", bytes),
            doubled("processors", twice),
        ] {
            assert!(growth(&part) > MOST, "{part}");
        }
    }
}
