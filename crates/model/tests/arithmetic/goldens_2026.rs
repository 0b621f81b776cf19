//! The state of the families of ../shared/goldens_2026, in one table: each folder runs and agrees with transformers, or
//! is refused by a message that names what is missing. Who makes a family run changes its line here.

use std::path::{Path, PathBuf};

use offshoot_backend::Dtype;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check::{self, COMPARISONS, Comparison};
use offshoot_model::config::Family;
use offshoot_model::{ActivationChoice, Decoder, ModelFolder, WeightChoice};

use crate::goldens::{folders, in_style};
use crate::shared::shared;

/// What happens to a folder.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Its logits and greedy tokens are those of transformers.
    Runs,
    /// It is not loaded: a part of the message.
    Refused(&'static str),
}

use State::{Refused, Runs};

const FOLDERS: &[(&str, State)] = &[
    ("afmoe", Runs),
    ("apertus", Runs),
    ("arcee", Runs),
    ("bailing_hybrid", Refused(r#"found "bailing_hybrid""#)),
    ("bamba", Runs),
    ("cohere2", Runs),
    ("cohere2_moe", Runs),
    ("deepseek_v2-lite", Runs),
    ("deepseek_v3", Runs),
    ("deepseek_v3-moonlight", Runs),
    ("deepseek_v32", Refused(r#"found "deepseek_v32""#)),
    ("deepseek_v4", Refused(r#"found "deepseek_v4""#)),
    ("dots1", Runs),
    ("ernie4_5", Runs),
    ("ernie4_5_moe", Runs),
    ("exaone4-hybrid", Runs),
    ("exaone_moe", Runs),
    ("falcon_h1", Runs),
    ("flex_olmo", Runs),
    ("gemma3n-text", Refused(r#"found "gemma3n_text""#)),
    ("glm4", Runs),
    ("glm4_moe-air", Runs),
    ("glm4_moe_lite", Runs),
    ("glm4v", Runs),
    ("glm4v_moe", Runs),
    ("glm_moe_dsa", Refused(r#"found "glm_moe_dsa""#)),
    ("gpt2", Refused(r#"found "gpt2""#)),
    ("gpt_neox", Runs),
    ("granite", Runs),
    ("granitemoe", Runs),
    ("granitemoehybrid-h-tiny", Runs),
    ("granitemoeshared", Runs),
    ("helium", Runs),
    ("hunyuan_v1_dense", Runs),
    ("hunyuan_v1_moe", Runs),
    ("hy_v3", Runs),
    ("internvl3-qwen2", Runs),
    ("jais2", Runs),
    ("jamba", Runs),
    ("kimi_k25", Runs),
    ("kimi_linear", Runs),
    ("lfm2", Runs),
    ("lfm2_moe", Runs),
    ("lfm3", Refused(r#"found "lfm3""#)),
    ("llama4_text", Refused(r#"found "llama4_text""#)),
    ("longcat_flash", Runs),
    ("mamba2", Runs),
    ("mimo_v2_flash", Refused(r#"found "mimo_v2_flash""#)),
    ("minicpm3", Runs),
    ("minimax_m2", Runs),
    ("mistral4-text", Runs),
    ("mistral_large4", Refused(r#"found "mistral_large4""#)),
    ("nemotron", Runs),
    ("nemotron_h-moe", Runs),
    ("nemotron_h-nano2", Runs),
    ("olmoe", Runs),
    ("phimoe", Runs),
    ("quant-fp8-channel-glm4_moe", Runs),
    ("quant-fp8-deepseek_v3", Runs),
    ("quant-nvfp4-llama", Runs),
    ("quant-nvfp4-modelopt-llama", Runs),
    ("qwen2_5_vl", Runs),
    ("qwen2_moe", Runs),
    ("qwen3_vl", Runs),
    ("qwen3_vl_moe", Runs),
    ("qwen4_exp-text", Refused(r#"found "qwen4_exp_text""#)),
    ("sarvam_mla-plain", Runs),
    ("seed_oss", Runs),
    ("solar_open", Runs),
    ("stablelm", Runs),
    ("starcoder2", Runs),
];

/// Without rounding of activations: transformers computed with a dense copy of quantised weights.
const EXACT: WeightChoice = WeightChoice { weights: None, activations: ActivationChoice::Bf16 };

/// What is wrong with a folder; `None`: it is as its line says.
fn fault(isa: Isa, folder: &Path, state: State) -> Option<String> {
    let mut backend = Cpu::with_isa(isa);
    let loaded = ModelFolder::open(folder).and_then(|folder| folder.with(EXACT)).and_then(|mut folder| {
        folder.config.compute = Some(Dtype::F32);
        Decoder::load(&mut backend, &folder)
    });
    match (loaded, state) {
        (Ok(mut model), Runs) => {
            let report = check::golden(&mut backend, &mut model, &folder.join("golden.json"));
            match report {
                Ok(report) if report.passes() => None,
                Ok(report) => Some(report.to_string()),
                Err(error) => Some(error.to_string()),
            }
        }
        (Err(error), Refused(part)) if error.to_string().contains(part) => None,
        (Ok(_), Refused(_)) => Some("loads now".to_owned()),
        (Err(error), Runs | Refused(_)) => Some(error.to_string()),
    }
}

/// The folders of golden models with this name, of all collections.
fn goldens_named(name: &str) -> Vec<PathBuf> {
    let own = Path::new(offshoot_fixtures::REPOSITORY).join("tests/data/goldens");
    let others = ["goldens/rope_parameters_style", "goldens_modern", "goldens_2026"].into_iter().filter_map(shared);
    std::iter::once(own).chain(others).map(|root| root.join(name)).filter(|folder| folder.is_dir()).collect()
}

#[test]
fn what_offshoot_models_lists_as_compared_runs() {
    let has_all = shared("goldens_2026").is_some();
    for Comparison { family, goldens, gpu } in COMPARISONS {
        assert!(Family::named(family).is_some_and(|found| found.name() == *family), "{family} is no family");
        assert!(!goldens.is_empty(), "{family}");
        for name in *goldens {
            let folders = goldens_named(name);
            assert!(!has_all || !folders.is_empty(), "{family}: no golden model is called {name}");
            for folder in folders {
                // Those of the repository have a config in each style that they know.
                let mut styles = ["rope_parameters", "rope_scaling"].into_iter();
                let style = styles.find(|style| folder.join(format!("config.{style}.json")).exists());
                let config = match style.map(|style| in_style(&folder, style)) {
                    Some(copy) => ModelFolder::open(copy.path()).unwrap().config,
                    None => ModelFolder::open(&folder).unwrap().config,
                };
                assert_eq!(config.family.name(), *family, "{}", folder.display());
            }
            let listed = FOLDERS.iter().find(|(listed, _)| listed == name);
            assert!(listed.is_none_or(|(_, state)| matches!(state, Runs)), "{family}: {name} is refused");
        }
        let record = gpu.map(|record| Path::new(offshoot_fixtures::REPOSITORY).join("benches/runs").join(record));
        assert!(record.is_none_or(|record| record.join("goldens.txt").exists()), "{family}: {gpu:?} is no such record");
    }
}

#[test]
fn each_folder_runs_or_is_refused_by_name() {
    let Some(root) = shared("goldens_2026") else { return };
    for folder in folders(&root) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        if !FOLDERS.iter().any(|(listed, _)| *listed == name) {
            println!("not in the table: {name}");
        }
    }
    let mut faults = Vec::new();
    for isa in Isa::available() {
        for (name, state) in FOLDERS {
            if let Some(fault) = fault(isa, &root.join(name), *state) {
                faults.push(format!("{isa}, {name}, {state:?}: {fault}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} lines are wrong:\n{}", faults.len(), faults.join("\n"));
}
