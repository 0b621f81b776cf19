//! Random small models with recurrent layers against a plain reference: straight loops in f64. The checkpoint holds
//! what the reference asked for and nothing else, so names and shapes are checked too.

#[path = "recurrent/configs.rs"]
mod configs;
#[path = "recurrent/reference.rs"]
mod reference;

use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check;
use offshoot_model::{Decoder, ModelFolder, Sequence};

use crate::families::configs::{between, dice_of};
use crate::families::reference::Tensors;
use crate::families::{TOLERANCE, folder};
use configs::{FAMILIES, Model};

/// Models of each family.
const DRAWS: u64 = 6;

fn hold(family: &str, seed: u64) {
    let mut dice = dice_of(family, seed);
    let Model { spec, config } = configs::model(family, &mut dice);
    let tokens: Vec<usize> = (0..between(&mut dice, 20, 60)).map(|_| dice.below(spec.vocab)).collect();
    let mut tensors = Tensors::new(seed, "model.");
    let expected = reference::logits(&spec, &mut tensors, &tokens);
    let folder = folder(&config, &tensors);
    let tokens: Vec<TokenId> = tokens.iter().map(|&token| TokenId::new(token)).collect();
    for isa in [Isa::Portable, *Isa::available().last().unwrap()] {
        let what = format!("{family}, draw {seed}, {isa}: {config}");
        let mut backend = Cpu::with_isa(isa);
        let opened = ModelFolder::open(folder.path()).unwrap_or_else(|error| panic!("{what}\n{error}"));
        let mut decoder = Decoder::load(&mut backend, &opened).unwrap_or_else(|error| panic!("{what}\n{error}"));
        let rows = tokens.len() as u32;
        let found = Sequence::new(&mut backend, &mut decoder, tokens.len()).unwrap().extend(&tokens, 0..rows).unwrap();
        let worst = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(found.len() == expected.len() && worst < TOLERANCE, "{worst}: {what}");
        let chunks = check::chunks(&mut backend, &mut decoder, &tokens).unwrap();
        assert!(chunks.passes(), "{what}\n{chunks}");
    }
}

/// One test a family, so that a failure names it.
macro_rules! families {
    ($($family:ident),* $(,)?) => {
        $(
            #[test]
            fn $family() {
                (0..DRAWS).for_each(|seed| hold(stringify!($family), seed));
            }
        )*

        #[test]
        fn every_family_is_drawn() {
            assert_eq!([$(stringify!($family)),*], FAMILIES);
        }
    };
}

families! { bamba, granitemoehybrid, nemotron_h, mamba2, falcon_h1, lfm2, kimi_linear, jamba }
