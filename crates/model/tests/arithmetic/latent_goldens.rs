//! Compares models with latent attention with results of Hugging Face's transformers, in each form and in mixtures of
//! them, on every code path of this processor: a small one in tests/data, others if ../shared exists. `goldens` has all
//! other families.

use std::path::Path;

use offshoot_backend::{Backend, KvDtype};
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_kv::plan::{LatentForm, LatentFormChoice};
use offshoot_model::check;
use offshoot_model::config::{ActivationChoice, WeightChoice};
use offshoot_model::{Decoder, ModelFolder, Sequence};

use crate::goldens::in_style;
use crate::shared::shared;

/// Without rounding of activations, as transformers computes a copy of dense weights.
const EXACT: WeightChoice = WeightChoice { weights: None, activations: ActivationChoice::Bf16 };

/// Tokens of a segment: segments begin and end within pages.
const SEGMENT: u32 = 21;

const CHOICES: [LatentFormChoice; 5] = [
    LatentFormChoice::All(LatentForm::Absorbed),
    LatentFormChoice::All(LatentForm::Kept),
    LatentFormChoice::All(LatentForm::Again),
    LatentFormChoice::Random(1),
    LatentFormChoice::Random(2),
];

fn load(backend: &mut Cpu, folder: &Path) -> Decoder<Cpu> {
    let mut folder = ModelFolder::open(folder).unwrap().with(EXACT).unwrap();
    folder.config.compute = check::golden_dtype(&folder.config);
    Decoder::load(backend, &folder).unwrap()
}

fn compare(isa: Isa, folder: &Path, choice: LatentFormChoice) {
    let mut backend = Cpu::with_isa(isa);
    let mut model = load(&mut backend, folder);
    let golden = folder.join("golden.json");
    let report = check::golden_in_forms(&mut backend, &mut model, &golden, (choice, SEGMENT)).unwrap();
    println!("{isa}, {choice:?}, {}\n{report}", folder.display());
    assert!(report.passes(), "{isa}, {choice:?}: {}", folder.display());
}

/// The bits of the logits of a text's second step, whose rows read those of the first.
fn bits(isa: Isa, folder: &Path, choice: LatentFormChoice) -> Vec<u32> {
    let mut backend = Cpu::with_isa(isa);
    let mut model = load(&mut backend, folder);
    let tokens: Vec<TokenId> = (0..140).map(|i| TokenId(i * 29 % 300)).collect();
    let mut sequence = Sequence::new(&mut backend, &mut model, tokens.len()).unwrap();
    sequence.read_in(choice, SEGMENT).unwrap();
    let (first, second) = tokens.split_at(100);
    sequence.extend(first, 0..0).unwrap();
    sequence.extend(second, 0..second.len() as u32).unwrap().into_iter().map(f32::to_bits).collect()
}

/// Compares a model in all forms. Each rounds in other places: were two of them the same, the bits would be, too.
fn compare_all(folder: &Path) {
    for isa in Isa::available() {
        let absorbed = bits(isa, folder, CHOICES[0]);
        for choice in CHOICES {
            compare(isa, folder, choice);
            let is_absorbed = bits(isa, folder, choice) == absorbed;
            assert_eq!(is_absorbed, choice == CHOICES[0], "{isa}, {choice:?}: {}", folder.display());
        }
    }
}

#[test]
fn the_golden_of_this_repository() {
    let golden = Path::new(offshoot_fixtures::REPOSITORY).join("tests/data/goldens/sarvam-latents");
    compare_all(in_style(&golden, "rope_scaling").path());
}

/// Folders of goldens_2026.
const FAMILIES: [&str; 10] = [
    "deepseek_v2-lite",
    "deepseek_v3",
    "deepseek_v3-moonlight",
    "glm4_moe_lite",
    "kimi_k25",
    "longcat_flash",
    "minicpm3",
    "mistral4-text",
    "quant-fp8-deepseek_v3",
    "sarvam_mla-plain",
];

#[test]
fn families_with_latent_attention() {
    let Some(root) = shared("goldens_2026") else { return };
    for family in FAMILIES {
        compare_all(&root.join(family));
    }
}

/// What fp8 latents change in golden cases.
#[derive(Debug, Default)]
struct Loss {
    /// The largest difference of a logit after the prompt.
    logits: f32,
    /// Greedy tokens, and those that the model would choose otherwise.
    greedy: usize,
    misses: usize,
}

fn loss(folder: &Path, choice: LatentFormChoice) -> Loss {
    let mut backend = Cpu::with_isa(Isa::Portable);
    backend.set_kv_dtype(KvDtype::Fp8);
    let mut model = load(&mut backend, folder);
    let golden = folder.join("golden.json");
    let report = check::golden_in_forms(&mut backend, &mut model, &golden, (choice, SEGMENT)).unwrap();
    report.cases.iter().fold(Loss::default(), |loss, case| Loss {
        logits: loss.logits.max(case.logits),
        greedy: loss.greedy + case.greedy,
        misses: loss.misses + case.misses.len(),
    })
}

/// docs/gpus.md has these figures. Latents are rounded once, so each form loses the same.
#[test]
fn fp8_latents_lose_what_the_documentation_says() {
    let Some(root) = shared("goldens_2026") else { return };
    for choice in [LatentFormChoice::All(LatentForm::Absorbed), LatentFormChoice::All(LatentForm::Kept)] {
        let mut all = Loss::default();
        for family in FAMILIES {
            let Loss { logits, greedy, misses } = loss(&root.join(family), choice);
            println!("{choice:?}, {family}: logits off by {logits}, {misses} of {greedy} greedy tokens");
            assert!(logits > 5e-3, "{choice:?}, {family}: latents are not rounded");
            all = Loss { logits: all.logits.max(logits), greedy: all.greedy + greedy, misses: all.misses + misses };
        }
        assert!(all.logits <= 0.69 && all.misses <= 14 && all.greedy == 240, "{choice:?}: {all:?}");
    }
}
