//! GGUF files that were damaged: every truncation of a header, and thousands of changes of its bytes, are refused by one
//! sentence that names the file, or the file loads. Nothing panics or reads beyond the file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::gguf_files::golden;
use offshoot::Error;
use offshoot::backend::cpu::Cpu;
use offshoot::gguf::Gguf;
use offshoot::ids::TokenId;
use offshoot::model::{Decoder, ModelFolder, Sequence};
use offshoot::tokenizer::Tokenizer;
use tempfile::TempDir;

/// Reads all that a model's file may hold; returns what is wrong with it.
fn read(path: &Path) -> Vec<Error> {
    let model = || -> offshoot::Result<()> {
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

/// Well-mixed bits of a number (splitmix64).
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
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
    const CHANGES: u64 = 1500;
    let folder = TempDir::new().unwrap();
    for (file, name) in ["llama3.gguf", "gpt-oss.gguf", "sentencepiece.gguf", "byte-level.gguf"].into_iter().enumerate()
    {
        let whole = std::fs::read(golden(name)).unwrap();
        let header = Gguf::open(&golden(name)).unwrap().files()[0].header_bytes().min(whole.len()) as u64;
        for change in 0..CHANGES {
            let seed = mix((file as u64) << 32 | change);
            let mut bytes = whole.clone();
            for i in 0..1 + seed % 3 {
                let random = mix(seed + i);
                // A byte, or a length of eight bytes, becomes another one: often zero or large.
                let at = ((random >> 8) % (header - 8)) as usize;
                match random % 4 {
                    0 => bytes[at] = (random >> 32) as u8,
                    1 => bytes[at] ^= 1 << (random >> 32 & 7),
                    2 => bytes[at..at + 8].fill(if random >> 32 & 1 == 0 { 0 } else { 0xff }),
                    _ => bytes[at..at + 4].copy_from_slice(&((random >> 40) as u32 & 0xff).to_le_bytes()),
                }
            }
            check(&folder, &bytes, &format!("{name}, change {change}"));
        }
    }
}
