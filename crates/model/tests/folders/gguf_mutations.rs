//! GGUF files that were damaged: every truncation of a header, and many changes of its bytes, are refused by one
//! sentence that names the file, or the file loads. Nothing panics or reads beyond the file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::full::some_or_full;
use crate::gguf_files::golden;
use offshoot_core::Error;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_gguf::Gguf;
use offshoot_model::{Decoder, ModelFolder, Sequence};
use offshoot_text::Tokenizer;
use tempfile::TempDir;

/// Reads all that a model's file may hold; returns what is wrong with it.
fn read(path: &Path) -> Vec<Error> {
    let model = || -> offshoot_core::Result<()> {
        let model = ModelFolder::open(path)?;
        // A damaged size may be a valid one for which there are no tensors.
        let mut backend = Cpu::open().unwrap();
        let mut decoder = Decoder::load(&mut backend, &model)?;
        let mut sequence = Sequence::new(&mut backend, &mut decoder, 2)?;
        sequence.extend(&[TokenId(0), TokenId(1)], 0..2).map(|_| ())
    };
    let found = catch_unwind(AssertUnwindSafe(|| [model().err(), Tokenizer::load(path).err()]));
    let found = found.unwrap_or_else(|_| panic!("{} panics", path.display()));
    found.into_iter().flatten().collect()
}

fn check(folder: &TempDir, bytes: &[u8], what: &str) {
    let path = folder.path().join("damaged.gguf");
    std::fs::write(&path, bytes).unwrap();
    for error in read(&path) {
        let text = error.to_string();
        assert!(text.contains("damaged.gguf") && !text.contains('\n') && text.len() < 2500, "{what}: {text}");
        assert!(!matches!(error, Error::Internal(_)), "{what}: {text}");
    }
}

#[test]
fn truncated_files() {
    let folder = TempDir::new().unwrap();
    for name in ["llama3.gguf", "sentencepiece.gguf"] {
        let bytes = std::fs::read(golden(name)).unwrap();
        let header = Gguf::open(&golden(name)).unwrap().files()[0].header_bytes().min(2500);
        for end in (0..header).step_by(3).chain([bytes.len() / 2, bytes.len() - 1]) {
            check(&folder, &bytes[..end], &format!("{name} ends at {end}"));
        }
    }
}

#[test]
fn changed_bytes() {
    let folder = TempDir::new().unwrap();
    for (file, name) in ["llama3.gguf", "gpt-oss.gguf", "sentencepiece.gguf", "byte-level.gguf"].into_iter().enumerate()
    {
        let whole = std::fs::read(golden(name)).unwrap();
        let header = Gguf::open(&golden(name)).unwrap().files()[0].header_bytes().min(whole.len());
        for change in 0..some_or_full(200, 2000) {
            let mut dice = Dice::new((file as u64) << 32 | change);
            let mut bytes = whole.clone();
            for _ in 0..1 + dice.below(3) {
                // A byte, or a length of eight bytes, becomes another one: often zero or large.
                let at = dice.below(header - 8);
                match dice.below(4) {
                    0 => bytes[at] = dice.next() as u8,
                    1 => bytes[at] ^= 1 << dice.below(8),
                    2 => bytes[at..at + 8].fill(dice.pick(&[0, 0xff])),
                    _ => bytes[at..at + 4].copy_from_slice(&dice.within(0, 255).to_le_bytes()),
                }
            }
            check(&folder, &bytes, &format!("{name}, change {change}"));
        }
    }
}
