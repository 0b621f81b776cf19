//! Models of one shape with several weights, and engines of them: some whose weights change, some that can be lost, and
//! some that never had any other weights.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use offshoot_core::dice::Dice;
use offshoot_cpu::Cpu;
use offshoot_engine::{CHUNK_TOKENS, Engine, EngineConfig, EngineHandle, Turn, WeightsUpdate};
use offshoot_model::{Decoder, ModelFolder, StepRunner, TensorDtype, TensorSource, TensorsInMemory, UpdateScope};

use super::bench::{Mode, Shape, VOCAB, config_json, roomy, tokenizer};

/// The context of all models here: room for whole chunks of a prefix store.
pub const CONTEXT: usize = 3 * CHUNK_TOKENS;

/// Random weights: a seed for the output layer, and one for all the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seeds {
    pub rest: u64,
    pub head: u64,
}

impl Seeds {
    pub const FIRST: Seeds = Seeds::both(1);

    pub const fn both(seed: u64) -> Self {
        Seeds { rest: seed, head: seed }
    }

    pub fn identity(self) -> String {
        format!("seeds {} and {}", self.rest, self.head)
    }
}

pub const HEAD: &str = "lm_head.weight";

/// Names and shapes of all tensors of a model of this shape.
pub fn layout(shape: Shape) -> Vec<(String, Vec<usize>)> {
    let (hidden, vocab, inner, kv) = (32, VOCAB as usize, 48, 16);
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        (HEAD.to_owned(), vec![vocab, hidden]),
    ];
    let has_head_norms = matches!(shape, Shape::LongMixed | Shape::Hybrid | Shape::Mixture);
    let layers = if matches!(shape, Shape::Hybrid) { 3 } else { 2 };
    for layer in 0..layers {
        let mut add = |name: &str, shape: &[usize]| all.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        if matches!(shape, Shape::Hybrid) && layer != 1 {
            add("linear_attn.in_proj_qkv.weight", &[80, hidden]);
            add("linear_attn.in_proj_z.weight", &[48, hidden]);
            add("linear_attn.in_proj_b.weight", &[4, hidden]);
            add("linear_attn.in_proj_a.weight", &[4, hidden]);
            add("linear_attn.conv1d.weight", &[80, 1, 4]);
            add("linear_attn.A_log", &[4]);
            add("linear_attn.dt_bias", &[4]);
            add("linear_attn.norm.weight", &[12]);
            add("linear_attn.out_proj.weight", &[hidden, 48]);
        } else if matches!(shape, Shape::Latent) {
            add("self_attn.q_a_proj.weight", &[24, hidden]);
            add("self_attn.q_a_layernorm.weight", &[24]);
            add("self_attn.q_b_proj.weight", &[64, 24]);
            add("self_attn.kv_a_proj_with_mqa.weight", &[20, hidden]);
            add("self_attn.kv_a_layernorm.weight", &[16]);
            add("self_attn.kv_b_proj.weight", &[128, 16]);
            add("self_attn.o_proj.weight", &[hidden, 80]);
        } else {
            // Queries have their gates beside them.
            let queries = if matches!(shape, Shape::Hybrid) { 2 * hidden } else { hidden };
            add("self_attn.q_proj.weight", &[queries, hidden]);
            add("self_attn.k_proj.weight", &[kv, hidden]);
            add("self_attn.v_proj.weight", &[kv, hidden]);
            add("self_attn.o_proj.weight", &[hidden, hidden]);
            if has_head_norms {
                add("self_attn.q_norm.weight", &[8]);
                add("self_attn.k_norm.weight", &[8]);
            }
        }
        let mut add_block = |name: &str, inner: usize| {
            add(&format!("{name}.gate_proj.weight"), &[inner, hidden]);
            add(&format!("{name}.up_proj.weight"), &[inner, hidden]);
            add(&format!("{name}.down_proj.weight"), &[hidden, inner]);
        };
        if matches!(shape, Shape::Mixture) && layer == 1 {
            (0..6).for_each(|expert| add_block(&format!("mlp.experts.{expert}"), 24));
            add("mlp.gate.weight", &[6, hidden]);
        } else {
            add_block("mlp", inner);
        }
        add("input_layernorm.weight", &[hidden]);
        add("post_attention_layernorm.weight", &[hidden]);
    }
    all
}

/// A model's random tensors of these names, in memory.
pub fn tensors(shape: Shape, seeds: Seeds, names: impl Fn(&str) -> bool) -> TensorsInMemory<'static> {
    let mut tensors = TensorsInMemory::default();
    for (number, (name, shape)) in (0u64..).zip(layout(shape)).filter(|(_, (name, _))| names(name)) {
        let seed = if name == HEAD { seeds.head } else { seeds.rest };
        let mut dice = Dice::new(1000 * seed + number);
        let scale = if name.ends_with("embed_tokens.weight") { 1.0 } else { 0.4 };
        let values = dice.numbers(shape.iter().product()).into_iter().map(|value| value * scale);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        tensors.add(name, TensorDtype::F32, shape, bytes).unwrap();
    }
    tensors
}

/// Writes tensors of f32.
pub fn write_safetensors(path: &Path, tensors: &TensorsInMemory<'_>) {
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for name in tensors.names() {
        let tensor = tensors.tensor(name).unwrap();
        let at = [bytes.len(), bytes.len() + tensor.data.len()];
        let entry = serde_json::json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": at });
        header.insert(name.to_owned(), entry);
        bytes.extend_from_slice(&tensor.data.on_host().unwrap());
    }
    let header = serde_json::Value::from(header).to_string();
    fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes].concat()).unwrap();
}

/// The models of one shape with several weights, and engines that never had any other.
pub struct World {
    pub shape: Shape,
    folder: tempfile::TempDir,
    fresh: RefCell<HashMap<Seeds, EngineHandle>>,
}

impl World {
    pub fn new(shape: Shape) -> Self {
        World { shape, folder: tempfile::tempdir().unwrap(), fresh: RefCell::default() }
    }

    /// A folder with a model of these weights.
    pub fn path(&self, seeds: Seeds) -> PathBuf {
        let path = self.folder.path().join(seeds.identity());
        if !path.exists() {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("config.json"), config_json(self.shape, CONTEXT)).unwrap();
            let tensors = tensors(self.shape, seeds, |_| true);
            write_safetensors(&path.join("model.safetensors"), &tensors);
        }
        path
    }

    pub fn model(&self, seeds: Seeds) -> Box<dyn StepRunner> {
        let mut backend = Cpu::open().unwrap();
        let decoder = Decoder::load(&mut backend, &ModelFolder::open(self.path(seeds)).unwrap()).unwrap();
        decoder.on(backend)
    }

    /// `config`, by which the experts of tokens are kept where there are any.
    fn config(&self, config: EngineConfig) -> EngineConfig {
        EngineConfig { keeps_routes: matches!(self.shape, Shape::Mixture), ..config }
    }

    fn config_in(&self, mode: Mode, config: EngineConfig) -> EngineConfig {
        let run_ahead = config.run_ahead || mode.run_ahead;
        self.config(EngineConfig { check_plans: true, run_ahead, ..config })
    }

    /// Engines that are started with the first weights.
    pub fn engine(&self, mode: Mode, config: EngineConfig) -> EngineHandle {
        self.engine_of(mode, config, |_, model| model)
    }

    /// Engines that are started with the first weights, on what `wrap` makes of the model of each, by its number.
    pub fn engine_of(
        &self,
        mode: Mode,
        config: EngineConfig,
        wrap: impl Fn(usize, Box<dyn StepRunner>) -> Box<dyn StepRunner>,
    ) -> EngineHandle {
        let config = self.config_in(mode, config);
        let model = |number| wrap(number, self.model(Seeds::FIRST));
        let start = |number| Engine::start(model(number), Some(tokenizer()), config.clone()).unwrap();
        offshoot_engine::replicas::join((0..mode.replicas).map(start).collect()).unwrap()
    }

    /// An engine that is started with the first weights and makes its turns where it is told to.
    pub fn by_hand(&self, config: EngineConfig) -> (Engine, EngineHandle) {
        let config = self.config(EngineConfig { check_plans: true, ..config });
        Engine::build(self.model(Seeds::FIRST), Some(tokenizer()), config).unwrap()
    }

    /// Engines that are started with the first weights and can be lost, each by its switch.
    pub fn engines_to_lose(&self, mode: Mode, config: EngineConfig) -> (EngineHandle, Vec<Switch>) {
        let config = self.config_in(mode, config);
        let start = |_| {
            let model = self.model(Seeds::FIRST);
            let (engine, handle) = Engine::build(model, Some(tokenizer()), config.clone()).unwrap();
            (handle, Switch::of(engine))
        };
        let (handles, switches) = (0..mode.replicas).map(start).unzip();
        (offshoot_engine::replicas::join(handles).unwrap(), switches)
    }

    /// An engine that has these weights and never had others, with room for everything.
    pub fn fresh(&self, seeds: Seeds) -> EngineHandle {
        let start = || Engine::start(self.model(seeds), Some(tokenizer()), self.config(roomy())).unwrap();
        self.fresh.borrow_mut().entry(seeds).or_insert_with(start).clone()
    }

    pub fn whole(&self, seeds: Seeds) -> WeightsUpdate {
        WeightsUpdate::new(Arc::new(tensors(self.shape, seeds, |_| true)), UpdateScope::Whole)
    }

    /// An update that lacks a tensor.
    pub fn lacking(&self) -> WeightsUpdate {
        let lacking = tensors(self.shape, Seeds::both(2), |name| name != "model.norm.weight");
        WeightsUpdate::new(Arc::new(lacking), UpdateScope::Whole)
    }
}

/// Ends an engine between two of its turns, as a device that fails does.
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    /// Runs the engine on a thread of its own until it is ended.
    fn of(mut engine: Engine) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                match engine.turn().expect("nothing is wrong with it") {
                    Turn::Stepped => {}
                    Turn::Idle => std::thread::sleep(Duration::from_millis(1)),
                    Turn::Abandoned => return,
                }
            }
        });
        Switch(is_over)
    }

    pub fn end(self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
