//! Random small models of every family against a plain reference: straight loops in f64, written from what transformers
//! computes and knowing nothing of this crate. The reference draws each tensor when it first asks for it, so that its
//! names and shapes are checked too: the checkpoint holds what the reference asked for and nothing else.

#[path = "families/configs.rs"]
pub mod configs;
#[path = "families/reference.rs"]
pub mod reference;

use std::fs;

use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check;
use offshoot_model::{Decoder, ModelFolder, Sequence};
use serde_json::Value;
use tempfile::TempDir;

use self::configs::{FAMILIES, Model, between, dice_of};
use self::reference::Tensors;

/// Models of each family.
const DRAWS: u64 = 4;

/// Logits reach some units; f32 keeps seven digits of them through a few layers.
pub const TOLERANCE: f64 = 3e-4;

pub fn folder(config: &Value, tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    tensors.save(&folder.path().join("model.safetensors"));
    folder
}

pub fn draw(family: &str, seed: u64) -> (Model, Vec<usize>) {
    let mut dice = dice_of(family, seed);
    let model = configs::model(family, &mut dice);
    let tokens = (0..between(&mut dice, 20, 60)).map(|_| dice.below(model.spec.vocab)).collect();
    (model, tokens)
}

fn hold(family: &str, seed: u64) {
    let (model, tokens) = draw(family, seed);
    let mut tensors = Tensors::new(seed, &model.prefix);
    let expected = reference::logits(&model.spec, &mut tensors, &tokens);
    for config in &model.configs {
        let folder = folder(config, &tensors);
        let tokens: Vec<TokenId> = tokens.iter().map(|&token| TokenId::new(token)).collect();
        for isa in [Isa::Portable, *Isa::available().last().unwrap()] {
            let what = format!("{family}, draw {seed}, {isa}: {config}");
            let mut backend = Cpu::with_isa(isa);
            let opened = ModelFolder::open(folder.path()).unwrap_or_else(|error| panic!("{what}\n{error}"));
            let mut decoder = Decoder::load(&mut backend, &opened).unwrap_or_else(|error| panic!("{what}\n{error}"));
            let rows = tokens.len() as u32;
            let found =
                Sequence::new(&mut backend, &mut decoder, tokens.len()).unwrap().extend(&tokens, 0..rows).unwrap();
            let worst = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(found.len() == expected.len() && worst < TOLERANCE, "{worst}: {what}");
            let chunks = check::chunks(&mut backend, &mut decoder, &tokens).unwrap();
            assert!(chunks.passes(), "{what}\n{chunks}");
        }
    }
}

/// One test a family, so that a failure names it.
macro_rules! families {
    ($($test:ident: $family:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                (0..DRAWS).for_each(|seed| hold($family, seed));
            }
        )*

        #[test]
        fn every_family_is_drawn() {
            assert_eq!([$($family),*], FAMILIES);
        }
    };
}

families! {
    llama: "llama",
    mistral: "mistral",
    ministral: "ministral",
    ministral3: "ministral3",
    mixtral: "mixtral",
    qwen2: "qwen2",
    qwen3: "qwen3",
    qwen3_moe: "qwen3_moe",
    phi: "phi",
    phi3: "phi3",
    smollm3: "smollm3",
    olmo2: "olmo2",
    olmo3: "olmo3",
    gemma2: "gemma2",
    gemma3: "gemma3",
    gemma4: "gemma4",
    gpt_oss: "gpt_oss",
}
