//! Texts that grow: what is encoded behind an earlier text has the tokens that it has when it is encoded whole.

use std::path::Path;

use flate2::read::GzDecoder;
use offshoot_text::{AddSpecial, HiddenEncoding, Speaker, Tokenizer};
use tempfile::TempDir;

use crate::shared::shared;
use crate::skip::skipped;

/// What answers have, and what tokenizers treat in ways of their own.
const PIECES: [&str; 40] = [
    " the",
    " boat carries 12 boxes",
    " so 3 * 12 = 36",
    ".",
    "\n",
    "\n\n",
    "  ",
    " ",
    " x",
    "1234567",
    " 1,000,000",
    " \\frac{3}{4}",
    "$y^2$",
    " therefore",
    "don't",
    " it's",
    "é",
    " naïve",
    "日本語",
    " 东京",
    "🙂",
    "\t",
    "    if a:",
    " return b\n",
    "<|im_end|>",
    "<s>",
    " </s>",
    "<|endoftext|>",
    " [INST]",
    "(a+b)",
    "...",
    " -1",
    " A B C",
    "e\u{301}",
    "\u{a0}",
    " word word word",
    " aaaaaaaaaaaaaaaaaaaaaaaaa",
    "\r\n",
    " 'll",
    "=>",
];

fn dice(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |most| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    }
}

/// Grows texts by random pieces, with another end each time.
fn grow(name: &str, tokenizer: &Tokenizer, seeds: u64) {
    for seed in 0..seeds {
        let mut roll = dice(seed);
        let mut text = String::new();
        let mut before: Option<HiddenEncoding> = None;
        for _ in 0..24 {
            // Mostly words, as in answers, so that texts can be cut.
            let few = roll(3) == 0;
            for _ in 0..1 + roll(30) {
                text.push_str(if few { PIECES[roll(PIECES.len())] } else { " the boat has a box" });
            }
            if roll(6) == 0 {
                text.truncate(
                    (0..=text.len() - roll(text.len() / 4 + 1)).rev().find(|&at| text.is_char_boundary(at)).unwrap(),
                );
            }
            let hidden = tokenizer.hide_special(&text, Speaker::Assistant).unwrap();
            let levels = [hidden, PIECES[roll(PIECES.len())].to_owned(), " end".to_owned()];
            let special = if roll(2) == 0 { AddSpecial::Yes } else { AddSpecial::No };
            let Ok(whole) = tokenizer.encode_hidden_levels(&levels, special) else { break };
            let (behind, encoding) = tokenizer.encode_hidden_behind(&levels, special, before.as_ref()).unwrap();
            assert_eq!(behind, whole, "{name}, seed {seed}: {text:?}");
            before = Some(encoding);
        }
    }
}

#[test]
fn a_text_behind_another_has_the_tokens_of_the_whole() {
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tasks/models/demo"));
    grow("demo", &Tokenizer::load(demo).unwrap(), 60);
    let Some(folder) = shared("data/tokenizers") else { return skipped("tokenizers of ../shared") };
    for name in ["llama3", "llama2", "mistral", "gpt2", "phi-2", "codellama"] {
        grow(name, &Tokenizer::load(&folder.join(name)).unwrap(), 10);
    }
    let unzipped = TempDir::new().unwrap();
    let mut zipped = GzDecoder::new(std::fs::File::open(folder.join("qwen2/tokenizer.json.gz")).unwrap());
    std::io::copy(&mut zipped, &mut std::fs::File::create(unzipped.path().join("tokenizer.json")).unwrap()).unwrap();
    grow("qwen2", &Tokenizer::load(unzipped.path()).unwrap(), 10);
}
