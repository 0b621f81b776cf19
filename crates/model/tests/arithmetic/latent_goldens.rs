//! Compares models with latent attention with results of Hugging Face's transformers, in each form and in mixtures of
//! them, on every code path of this processor: a small one in tests/data, others if ../shared exists. `goldens` has all
//! other families.

use std::path::Path;

use offshoot_cpu::{Cpu, Isa};
use offshoot_kv::plan::{Form, FormChoice};
use offshoot_model::check::{self, GoldenReport};
use offshoot_model::config::{ActivationChoice, WeightChoice};
use offshoot_model::{Decoder, ModelFolder};

use crate::goldens::in_style;
use crate::shared::shared;

/// Without rounding of activations, as transformers computes a copy of dense weights.
const EXACT: WeightChoice = WeightChoice { weights: None, activations: ActivationChoice::Bf16 };

/// Tokens of a segment: segments begin and end within pages.
const SEGMENT: u32 = 21;

const CHOICES: [FormChoice; 5] = [
    FormChoice::All(Form::Absorbed),
    FormChoice::All(Form::Kept),
    FormChoice::All(Form::Again),
    FormChoice::Random(1),
    FormChoice::Random(2),
];

fn compare(isa: Isa, folder: &Path, choice: FormChoice) -> GoldenReport {
    let mut backend = Cpu::with_isa(isa);
    let mut folder = ModelFolder::open(folder).unwrap().with(EXACT).unwrap();
    folder.config.compute = check::golden_dtype(&folder.config);
    let mut model = Decoder::load(&mut backend, &folder).unwrap();
    let golden = folder.path.join("golden.json");
    let report = check::golden_in_forms(&mut backend, &mut model, &golden, (choice, SEGMENT)).unwrap();
    println!("{isa}, {choice:?}, {}\n{report}", folder.path.display());
    report
}

/// Compares a model in all forms.
fn compare_all(folder: &Path) {
    for isa in Isa::available() {
        let reports = CHOICES.map(|choice| compare(isa, folder, choice));
        for (choice, report) in CHOICES.iter().zip(&reports) {
            assert!(report.passes(), "{isa}, {choice:?}: {}", folder.display());
        }
        let differences = reports.map(|report| (report.cases[0].logits, report.cases[0].logprobs));
        // Another form rounds in other places: were it the same one, the numbers would be, too.
        let others = &differences[1..];
        assert!(others.iter().all(|other| *other != differences[0]), "{isa}: {}: {differences:?}", folder.display());
    }
}

#[test]
fn the_golden_of_this_repository() {
    let golden = Path::new(offshoot_fixtures::REPOSITORY).join("tests/data/goldens/sarvam-latents");
    compare_all(in_style(&golden, "rope_scaling").path());
}

#[test]
fn families_with_latent_attention() {
    let Some(root) = shared("goldens_2026") else { return };
    let families = [
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
    for family in families {
        compare_all(&root.join(family));
    }
}
