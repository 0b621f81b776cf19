//! Weights that change in a loaded model: after an update the results are those of a model that was loaded anew, bit
//! for bit, whatever was loaded before; a refused update changes nothing.

use crate::shared::shared;
use crate::skip::skipped;

use std::path::{Path, PathBuf};

use offshoot_backend::ranks::{Rank, Ranks};
use offshoot_backend::{Backend, StepBatch};
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_model::{
    Decoder, KvRoom, MadeFormat, ModelFolder, ModelWeights, Sequence, Sleep, SleepParts, StepLimits, StepRunner,
    TensorDtype, TensorFolder, TensorSource, TensorsInMemory, UpdateScope, WeightChoice,
};
use tempfile::TempDir;

/// The bits of all logits of a short text.
pub fn logits(cpu: &mut Cpu, model: &mut Decoder<Cpu>) -> Vec<u32> {
    logits_on(cpu, model)
}

fn logits_on<B: Backend>(backend: &mut B, model: &mut Decoder<B>) -> Vec<u32> {
    let vocab = model.config().vocab;
    let tokens: Vec<TokenId> = (0..9).map(|i| TokenId::new((i * 7 + 3) % vocab)).collect();
    let mut sequence = Sequence::new(backend, model, tokens.len()).unwrap();
    sequence.extend(&tokens, 0..9).unwrap().into_iter().map(f32::to_bits).collect()
}

fn update(cpu: &mut Cpu, model: &mut Decoder<Cpu>, source: &dyn TensorSource, scope: UpdateScope) {
    let form = model.weight_form();
    model.update(cpu, &form.check(source, scope).unwrap()).unwrap();
}

/// The tensors of a source that `chosen` names, as memory.
fn in_memory<'a>(source: &'a dyn TensorSource, chosen: impl Fn(&str) -> bool) -> TensorsInMemory<'a> {
    let mut tensors = TensorsInMemory::default();
    for name in source.names().into_iter().filter(|name| chosen(name)) {
        let tensor = source.tensor(name).unwrap();
        tensors.add(name, tensor.dtype, tensor.shape.to_vec(), tensor.data.on_host().unwrap()).unwrap();
    }
    tensors
}

/// The golden models of this repository and, where it is there, of ../shared, which this version reads.
fn goldens() -> (Vec<PathBuf>, Vec<TempDir>) {
    let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/goldens");
    let styles = ["rope_parameters", "rope_scaling"];
    let in_style = |golden: &PathBuf| {
        let style = styles.into_iter().find(|style| golden.join(format!("config.{style}.json")).exists());
        super::goldens::in_style(golden, style.expect("a golden has a config"))
    };
    let kept: Vec<TempDir> = super::goldens::folders(&own).iter().map(in_style).collect();
    let mut folders: Vec<PathBuf> = kept.iter().map(|folder| folder.path().to_path_buf()).collect();
    for root in ["goldens/rope_parameters_style", "goldens/rope_scaling_style", "goldens_modern", "goldens_2026"] {
        folders.extend(shared(root).iter().flat_map(|root| super::goldens::folders(root)));
    }
    (folders, kept)
}

#[test]
fn an_update_of_random_weights_gives_the_bits_of_a_fresh_load_in_every_family() {
    let (folders, _kept) = goldens();
    let mut tried = 0;
    for path in &folders {
        let Ok(folder) = ModelFolder::open(path) else { continue };
        let weights = ModelWeights::open(&folder).unwrap();
        let mut cpu = Cpu::open().unwrap();
        let mut fresh = Decoder::of(&mut cpu, &weights).unwrap();
        let expected = logits(&mut cpu, &mut fresh);
        let mut model = Decoder::random(&mut cpu, weights.config().clone(), weights.dtype(), 7).unwrap();
        assert_ne!(logits(&mut cpu, &mut model), expected, "{}", path.display());
        let source = TensorFolder::open(path).unwrap();
        update(&mut cpu, &mut model, &source, UpdateScope::Whole);
        assert!(logits(&mut cpu, &mut model) == expected, "{}", path.display());
        // Once more over the same weights, and from memory.
        update(&mut cpu, &mut model, &in_memory(&source, |_| true), UpdateScope::Whole);
        assert!(logits(&mut cpu, &mut model) == expected, "{}", path.display());
        tried += 1;
    }
    println!("{tried} golden models");
    if tried < 30 {
        skipped("golden models of ../shared");
    }
}

#[test]
fn tensors_that_come_one_by_one_give_the_bits_of_a_fresh_load() {
    let (folders, _kept) = goldens();
    for path in &folders {
        let Ok(folder) = ModelFolder::open(path) else { continue };
        let weights = ModelWeights::open(&folder).unwrap();
        let (config, dtype) = (weights.config().clone(), weights.dtype());
        if config.quantisation.is_some() {
            continue;
        }
        let mut cpu = Cpu::open().unwrap();
        let mut fresh = Decoder::of(&mut cpu, &weights).unwrap();
        let expected = logits(&mut cpu, &mut fresh);
        let mut model = Decoder::random(&mut cpu, config, dtype, 7).unwrap();
        let source = TensorFolder::open(path).unwrap();
        let mut names = source.names();
        names.sort_unstable_by_key(|name| name.bytes().rev().collect::<Vec<_>>());
        for name in names {
            if name.ends_with("lm_head.weight") && model.config().tied_embeddings {
                continue;
            }
            let one = in_memory(&source, |other| other == name);
            let form = model.weight_form();
            match form.check(&one, UpdateScope::Changed) {
                Ok(checked) => model.update(&mut cpu, &checked).unwrap(),
                // Of another part of a wrapper.
                Err(error) => {
                    assert!(error.to_string().contains("tensor of the loaded model"), "{}: {error}", path.display())
                }
            }
        }
        assert!(logits(&mut cpu, &mut model) == expected, "{}", path.display());
    }
}

/// A golden model of this repository, by its name.
pub fn golden(name: &str) -> TempDir {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/goldens");
    super::goldens::in_style(&root.join(name), "rope_parameters")
}

/// A model with the weights of a folder, on the CPU, and the source of these weights.
fn loaded(folder: &Path) -> (Cpu, Decoder<Cpu>, TensorFolder) {
    let mut cpu = Cpu::open().unwrap();
    let model = Decoder::load(&mut cpu, &ModelFolder::open(folder).unwrap()).unwrap();
    (cpu, model, TensorFolder::open(folder).unwrap())
}

/// A tensor's numbers.
fn numbers(source: &dyn TensorSource, name: &str) -> Vec<f32> {
    let tensor = source.tensor(name).unwrap();
    assert_eq!(tensor.dtype, TensorDtype::F32, "{name}");
    tensor.data.on_host().unwrap().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn what_is_wrong_with_an_update_is_said_and_nothing_changes() {
    let folder = golden("llama3-gqa-ropescaled");
    let (mut cpu, mut model, source) = loaded(folder.path());
    let expected = logits(&mut cpu, &mut model);
    let name = "model.layers.0.self_attn.q_proj.weight";
    let tensor = source.tensor(name).unwrap();
    let form = model.weight_form();
    let refuses = |tensors: &TensorsInMemory<'_>, scope, said: &[&str]| {
        let Err(error) = form.check(tensors, scope) else { panic!("accepted, but {said:?}") };
        let error = error.to_string();
        assert!(said.iter().all(|said| error.contains(said)) && !error.contains('\n'), "{said:?}: {error}");
    };
    let changed = |change: &dyn Fn(&mut TensorsInMemory<'static>)| {
        let mut tensors = TensorsInMemory::default();
        change(&mut tensors);
        tensors
    };
    let (shape, bytes) = (tensor.shape.to_vec(), tensor.data.on_host().unwrap().to_vec());
    refuses(&changed(&|_| {}), UpdateScope::Changed, &["at least one tensor"]);
    let unknown = changed(&|all| {
        all.add("model.layers.0.self_attn.r_proj.weight", TensorDtype::F32, shape.clone(), bytes.clone()).unwrap()
    });
    refuses(&unknown, UpdateScope::Changed, &["r_proj", "nothing of this name"]);
    let other = changed(&|all| all.add("value_head.weight", TensorDtype::F32, shape.clone(), bytes.clone()).unwrap());
    refuses(&other, UpdateScope::Changed, &["value_head", "the loaded model"]);
    let turned = changed(&|all| all.add(name, TensorDtype::F32, vec![shape[1], shape[0], 1], bytes.clone()).unwrap());
    refuses(&turned, UpdateScope::Changed, &["q_proj", "hidden_size", "1]"]);
    let integers = changed(&|all| all.add(name, TensorDtype::I32, shape.clone(), bytes.clone()).unwrap());
    refuses(&integers, UpdateScope::Changed, &["q_proj", "F32, F16 or BF16", "I32"]);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut numbers = bytes.clone();
        numbers[5 * 4..6 * 4].copy_from_slice(&bad.to_le_bytes());
        let not_finite = changed(&|all| all.add(name, TensorDtype::F32, shape.clone(), numbers.clone()).unwrap());
        refuses(&not_finite, UpdateScope::Changed, &["q_proj", "finite", "place 5"]);
    }
    let all_but_one = in_memory(&source, |other| other != name);
    refuses(&all_but_one, UpdateScope::Whole, &["q_proj", "nothing"]);
    let mut twice = in_memory(&source, |other| other == name);
    let error = twice.add(name, TensorDtype::F32, shape.clone(), bytes.clone()).unwrap_err().to_string();
    assert!(error.contains("one tensor of this name"), "{error}");
    let error = twice.add("short", TensorDtype::F32, shape.clone(), bytes[4..].to_vec()).unwrap_err().to_string();
    assert!(error.contains("as many bytes"), "{error}");
    assert!(logits(&mut cpu, &mut model) == expected);
}

#[test]
fn a_tied_output_layer_comes_with_its_table_or_not_at_all() {
    let folder = golden("qwen2-tied");
    let (mut cpu, mut model, source) = loaded(folder.path());
    let expected = logits(&mut cpu, &mut model);
    let embed = source.tensor("model.embed_tokens.weight").unwrap();
    let with_head = |bytes: Vec<u8>| {
        let mut tensors = in_memory(&source, |_| true);
        tensors.add("lm_head.weight", embed.dtype, embed.shape.to_vec(), bytes).unwrap();
        tensors
    };
    update(&mut cpu, &mut model, &with_head(embed.data.on_host().unwrap().to_vec()), UpdateScope::Whole);
    assert!(logits(&mut cpu, &mut model) == expected);
    let mut other = embed.data.on_host().unwrap().to_vec();
    other[..4].copy_from_slice(&1f32.to_le_bytes());
    let error = model.weight_form().check(&with_head(other), UpdateScope::Whole).err().unwrap().to_string();
    assert!(error.contains("lm_head.weight") && error.contains("tied"), "{error}");
}

/// Trainers send f32 for models that are stored in 16 bits.
#[test]
fn numbers_are_rounded_to_the_dtype_that_was_loaded() {
    let folder = golden("qwen3-qknorm");
    let source = TensorFolder::open(folder.path()).unwrap();
    let rounded = |number: f32| half::bf16::from_f32(number);
    let mut short: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let (mut long, mut loud) = (TensorsInMemory::default(), TensorsInMemory::default());
    for name in source.names() {
        let (shape, numbers) = (source.tensor(name).unwrap().shape.to_vec(), numbers(&source, name));
        short.push((name.to_owned(), shape.clone(), numbers.iter().flat_map(|x| rounded(*x).to_le_bytes()).collect()));
        let wide: Vec<u8> = numbers.iter().flat_map(|x| rounded(*x).to_f32().to_le_bytes()).collect();
        long.add(name, TensorDtype::F32, shape.clone(), wide).unwrap();
        let largest: Vec<u8> = numbers.iter().flat_map(|_| f32::MAX.to_le_bytes()).collect();
        loud.add(name, TensorDtype::F32, shape, largest).unwrap();
    }
    let views = short.iter().map(|(name, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(TensorDtype::BF16, shape.clone(), bytes).unwrap())
    });
    let path = folder.path().join("model.safetensors");
    std::fs::remove_file(&path).unwrap();
    safetensors::serialize_to_file(views, None, &path).unwrap();
    let (mut cpu, mut model, halves) = loaded(folder.path());
    let expected = logits(&mut cpu, &mut model);
    assert_eq!(model.dtype(), offshoot_backend::Dtype::Bf16);
    let mut scaled = TensorsInMemory::default();
    for (name, shape, bytes) in &short {
        scaled
            .add(name, TensorDtype::BF16, shape.clone(), bytes.iter().rev().map(|_| 0x3c).collect::<Vec<u8>>())
            .unwrap();
    }
    update(&mut cpu, &mut model, &scaled, UpdateScope::Whole);
    assert!(logits(&mut cpu, &mut model) != expected);
    update(&mut cpu, &mut model, &long, UpdateScope::Whole);
    assert!(logits(&mut cpu, &mut model) == expected);
    update(&mut cpu, &mut model, &halves, UpdateScope::Whole);
    assert!(logits(&mut cpu, &mut model) == expected);
    // The largest f32 is infinite in 16 bits.
    let error = model.weight_form().check(&loud, UpdateScope::Whole).err().unwrap().to_string();
    assert!(error.contains("finite as bf16"), "{error}");
}

#[test]
fn experts_may_come_fused() {
    let folder = golden("qwen3-moe");
    let (mut cpu, mut model, source) = loaded(folder.path());
    let expected = logits(&mut cpu, &mut model);
    let mut fused = in_memory(&source, |name| !name.contains(".experts."));
    let layers: Vec<usize> = (0..16).filter(|layer| experts_of(&source, *layer) > 0).collect();
    for layer in layers {
        let at = |expert: usize, module: &str| format!("model.layers.{layer}.mlp.experts.{expert}.{module}.weight");
        let count = experts_of(&source, layer);
        let stacked = |modules: &[&str]| -> Vec<u8> {
            let names = (0..count).flat_map(|expert| modules.iter().map(move |module| (expert, *module)));
            let bytes = |name: &str| source.tensor(name).unwrap().data.on_host().unwrap().into_owned();
            names.flat_map(|(expert, module)| bytes(&at(expert, module))).collect()
        };
        let [width, hidden] = source.tensor(&at(0, "up_proj")).unwrap().shape else { panic!("a matrix") };
        let name = |part: &str| format!("model.layers.{layer}.mlp.experts.{part}");
        let up = stacked(&["gate_proj", "up_proj"]);
        fused.add(name("gate_up_proj"), TensorDtype::F32, vec![count, 2 * width, *hidden], up).unwrap();
        fused.add(name("down_proj"), TensorDtype::F32, vec![count, *hidden, *width], stacked(&["down_proj"])).unwrap();
    }
    let config = model.config().clone();
    let mut random = Decoder::random(&mut cpu, config, model.dtype(), 5).unwrap();
    for model in [&mut model, &mut random] {
        update(&mut cpu, model, &fused, UpdateScope::Whole);
        assert!(logits(&mut cpu, model) == expected);
        update(&mut cpu, model, &source, UpdateScope::Whole);
        assert!(logits(&mut cpu, model) == expected);
    }
}

fn experts_of(source: &dyn TensorSource, layer: usize) -> usize {
    let begin = format!("model.layers.{layer}.mlp.experts.");
    source.names().iter().filter(|name| name.starts_with(&begin) && name.ends_with("down_proj.weight")).count()
}

#[test]
fn matrices_that_are_made_into_codes_are_made_again() {
    let Some(root) = shared("data/models/babyllama-tok105") else { return };
    for format in [MadeFormat::Int8, MadeFormat::Int4, MadeFormat::Fp8] {
        let choice = WeightChoice { weights: Some(format), ..WeightChoice::default() };
        let folder = ModelFolder::open(&root).unwrap().with(choice).unwrap();
        let weights = ModelWeights::open(&folder).unwrap();
        let mut cpu = Cpu::open().unwrap();
        let mut fresh = Decoder::of(&mut cpu, &weights).unwrap();
        let expected = logits(&mut cpu, &mut fresh);
        let mut model = Decoder::random(&mut cpu, weights.config().clone(), weights.dtype(), 3).unwrap();
        let source = TensorFolder::open(&root).unwrap();
        update(&mut cpu, &mut model, &source, UpdateScope::Whole);
        assert!(logits(&mut cpu, &mut model) == expected, "{format:?}");
        // All parts of a matrix of codes come together.
        let [q, k] = ["q_proj", "k_proj"].map(|part| format!("model.layers.0.self_attn.{part}.weight"));
        let some = in_memory(&source, |name| name == q || name == k);
        let error = fresh.weight_form().check(&some, UpdateScope::Changed).err().unwrap().to_string();
        assert!(error.contains("v_proj.weight` with") && error.contains("codes"), "{error}");
        let layer = in_memory(&source, |name| name.starts_with("model.layers.0."));
        update(&mut cpu, &mut fresh, &layer, UpdateScope::Changed);
        assert!(logits(&mut cpu, &mut fresh) == expected, "{format:?}");
    }
}

#[test]
fn codes_of_queries_and_latents_come_together() {
    let root = Path::new(offshoot_fixtures::REPOSITORY).join("tests/data/goldens/sarvam-latents");
    let folder = super::goldens::in_style(&root, "rope_scaling");
    let choice = WeightChoice { weights: Some(MadeFormat::Int8), ..WeightChoice::default() };
    let mut cpu = Cpu::open().unwrap();
    let opened = ModelFolder::open(folder.path()).unwrap().with(choice).unwrap();
    let mut model = Decoder::load(&mut cpu, &opened).unwrap();
    let (expected, source) = (logits(&mut cpu, &mut model), TensorFolder::open(folder.path()).unwrap());
    let names = ["q_proj", "kv_a_proj_with_mqa"].map(|part| format!("model.layers.0.self_attn.{part}.weight"));
    for (alone, missing) in [(0, 1), (1, 0)] {
        let some = in_memory(&source, |name| name == names[alone]);
        let error = model.weight_form().check(&some, UpdateScope::Changed).err().unwrap().to_string();
        let said = format!("expected `{}` with `{}`, as they share one matrix of codes", names[missing], names[alone]);
        assert!(error.contains(&said), "{error}");
    }
    let both = in_memory(&source, |name| names.iter().any(|own| own == name));
    update(&mut cpu, &mut model, &both, UpdateScope::Changed);
    assert!(logits(&mut cpu, &mut model) == expected);
}

#[test]
fn codes_are_not_replaced_by_numbers() {
    let (Some(codes), Some(dense)) = (shared("goldens_modern/quant-gptq-int4"), shared("goldens_modern/qwen3-moe"))
    else {
        return;
    };
    let mut cpu = Cpu::open().unwrap();
    let model = Decoder::load(&mut cpu, &ModelFolder::open(&codes).unwrap()).unwrap();
    let source = TensorFolder::open(&codes).unwrap();
    let name = "model.layers.0.self_attn.q_proj";
    let scales = source.tensor(&format!("{name}.scales")).unwrap();
    let (outputs, inputs) = (scales.shape[1], source.tensor(&format!("{name}.qweight")).unwrap().shape[0] * 8);
    let mut tensors = in_memory(&source, |other| !other.starts_with(name));
    tensors
        .add(format!("{name}.weight"), TensorDtype::BF16, vec![outputs, inputs], vec![0; outputs * inputs * 2])
        .unwrap();
    let error = model.weight_form().check(&tensors, UpdateScope::Whole).err().unwrap().to_string();
    assert!(error.contains("q_proj.weight") && error.contains("int4") && error.contains("bf16"), "{error}");
    // Nor the other way round.
    let other = ModelFolder::open(&dense).unwrap();
    let error = model.weight_form().check_config(&other.config, &dense).err().unwrap().to_string();
    assert!(error.contains("model_type") && error.contains("loaded model"), "{error}");
}

#[test]
fn ranks_change_together_to_the_bits_of_a_fresh_load() {
    let mut tried = Vec::new();
    for name in ["llama3-gqa-ropescaled", "qwen3-moe", "gpt-oss-sinks", "qwen2-tied", "mixtral"] {
        let folder = golden(name);
        let weights = ModelWeights::open(&ModelFolder::open(folder.path()).unwrap()).unwrap();
        let source = TensorFolder::open(folder.path()).unwrap();
        for (count, exact) in [(2, true), (2, false), (4, true)] {
            if weights.config().check_ranks(count, exact).is_err() {
                continue;
            }
            let ranks = || {
                let cpus = (0..count).map(|_| Cpu::open().unwrap().on_a_share_of_cores(count)).collect();
                Ranks::new(cpus, exact).unwrap()
            };
            let expected = on_each(ranks(), |rank| {
                let mut fresh = Decoder::of(rank, &weights).unwrap();
                logits_on(rank, &mut fresh)
            });
            let (config, dtype) = (weights.config(), weights.dtype());
            let found = on_each(ranks(), |rank| {
                let mut model = Decoder::random(rank, config.clone(), dtype, 7).unwrap();
                let form = model.weight_form();
                model.update(rank, &form.check(&source, UpdateScope::Whole).unwrap()).unwrap();
                logits_on(rank, &mut model)
            });
            assert!(found == expected, "{name} on {count} ranks, exact: {exact}");
            // One after the other: what stays of a matrix is read from the rank that has it.
            let found = on_each(ranks(), |rank| {
                let mut model = Decoder::random(rank, config.clone(), dtype, 7).unwrap();
                for name in source.names() {
                    let one = in_memory(&source, |other| other == name);
                    let form = model.weight_form();
                    model.update(rank, &form.check(&one, UpdateScope::Changed).unwrap()).unwrap();
                }
                logits_on(rank, &mut model)
            });
            assert!(found == expected, "{name} on {count} ranks, exact: {exact}, one after the other");
            tried.push(name);
        }
    }
    // Dense layers, and mixtures.
    let has = |part: &str| tried.iter().any(|name| name.contains(part));
    assert!(has("llama3") && has("gpt-oss") && has("mixtral"), "{tried:?}");
}

fn on_each<T: Send>(ranks: Ranks<Cpu>, work: impl Fn(&mut Rank<Cpu>) -> T + Sync) -> Vec<T> {
    ranks.start(Ok).unwrap().try_together(|rank| Ok(work(rank))).unwrap()
}

#[test]
fn a_model_that_sleeps_refuses_steps_until_it_is_whole_again() {
    let folder = golden("llama3-gqa-ropescaled");
    let source = TensorFolder::open(folder.path()).unwrap();
    let mut cpu = Cpu::open().unwrap();
    let decoder = Decoder::load(&mut cpu, &ModelFolder::open(folder.path()).unwrap()).unwrap();
    let mut model = decoder.on(cpu);
    let limits =
        StepLimits { deterministic: true, longest: 64, largest: StepBatch::default().shape(), keeps_routes: false };
    model.prepare(limits).unwrap();
    model.allocate(KvRoom { pages: 4, ..KvRoom::default() }).unwrap();
    let refused = |model: &mut dyn StepRunner| {
        let failure = model.submit(StepBatch::default()).unwrap_err();
        assert!(!failure.has_begun);
        failure.error.to_string()
    };
    model.sleep(Sleep::LEVEL_1).unwrap();
    assert!(model.has_weights());
    assert!(refused(&mut *model).contains("weights, keys and values asleep"));
    model.wake(SleepParts { weights: true, kv: false }).unwrap();
    assert!(refused(&mut *model).contains("keys and values asleep"));
    model.update_weights(&source, UpdateScope::Whole).unwrap();
    model.wake(SleepParts::ALL).unwrap();
    // Awake: what is refused is the empty step.
    assert!(!refused(&mut *model).contains("asleep"));
    model.sleep(Sleep::LEVEL_2).unwrap();
    assert!(model.update_weights(&source, UpdateScope::Whole).unwrap_err().to_string().contains("asleep"));
    model.wake(SleepParts::ALL).unwrap();
    assert!(!model.has_weights());
    assert!(refused(&mut *model).contains("an update of all weights"));
    let one = in_memory(&source, |name| name == "model.norm.weight");
    assert!(model.update_weights(&one, UpdateScope::Changed).unwrap_err().to_string().contains("an update of all"));
    model.update_weights(&source, UpdateScope::Whole).unwrap();
    assert!(model.has_weights() && !refused(&mut *model).contains("an update of all"));
}
