//! Weights that change while branches are sampled, scored, forked, swapped, stored and cancelled, and pauses of three
//! kinds: every record is that of an engine which never had other weights than those that it names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use offshoot_core::dice::Dice;
use offshoot_core::ids::{BranchId, TokenId, WeightVersion};
use offshoot_cpu::Cpu;
use offshoot_engine::{
    CHUNK_TOKENS, Engine, EngineConfig, EngineHandle, Event, EventReceiver, Extend, Finish, Hear, PauseMode,
    PrefixStoreOptions, Priority, RootOptions, SamplingParams, StoredPrefixes, UniformKey, WeightSpan, WeightsUpdate,
};
use offshoot_kv::CacheSalt;
use offshoot_kv::plan::Planner;
use offshoot_model::{
    Decoder, ModelFolder, StepRunner, TensorDtype, TensorFolder, TensorSource, TensorsInMemory, UpdateScope,
};

use super::bench::{
    Mode, Shape, VOCAB, config_json, draw, finish, give, key, length, params, prompt, room_for, roomy, score,
    tokenizer, unsure,
};
use crate::full::some_or_full;

/// The context of all models here: room for whole chunks of a prefix store.
const CONTEXT: usize = 3 * CHUNK_TOKENS;

/// Random weights: a seed for the output layer, and one for all the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seeds {
    rest: u64,
    head: u64,
}

impl Seeds {
    const FIRST: Seeds = Seeds::both(1);

    pub const fn both(seed: u64) -> Self {
        Seeds { rest: seed, head: seed }
    }

    fn identity(self) -> String {
        format!("seeds {} and {}", self.rest, self.head)
    }
}

const HEAD: &str = "lm_head.weight";

/// Names and shapes of all tensors of a model of this shape.
fn layout(shape: Shape) -> Vec<(String, Vec<usize>)> {
    let (hidden, vocab, inner, kv) = (32, VOCAB as usize, 48, 16);
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        (HEAD.to_owned(), vec![vocab, hidden]),
    ];
    let has_head_norms = matches!(shape, Shape::LongMixed | Shape::Hybrid);
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
        add("mlp.gate_proj.weight", &[inner, hidden]);
        add("mlp.up_proj.weight", &[inner, hidden]);
        add("mlp.down_proj.weight", &[hidden, inner]);
        add("input_layernorm.weight", &[hidden]);
        add("post_attention_layernorm.weight", &[hidden]);
    }
    all
}

/// A model's random tensors, in memory.
fn tensors(shape: Shape, seeds: Seeds, names: impl Fn(&str) -> bool) -> TensorsInMemory<'static> {
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

/// The models of one shape with several weights, and engines that never had any other.
pub struct World {
    shape: Shape,
    folder: tempfile::TempDir,
    fresh: RefCell<HashMap<Seeds, EngineHandle>>,
}

impl World {
    pub fn new(shape: Shape) -> Self {
        World { shape, folder: tempfile::tempdir().unwrap(), fresh: RefCell::default() }
    }

    /// A folder with a model of these weights.
    fn path(&self, seeds: Seeds) -> PathBuf {
        let path = self.folder.path().join(seeds.identity());
        if !path.exists() {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("config.json"), config_json(self.shape, CONTEXT)).unwrap();
            let tensors = tensors(self.shape, seeds, |_| true);
            let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
            for name in tensors.names() {
                let tensor = tensors.tensor(name).unwrap();
                let at = [bytes.len(), bytes.len() + tensor.bytes.len()];
                let entry = serde_json::json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": at });
                header.insert(name.to_owned(), entry);
                bytes.extend_from_slice(tensor.bytes);
            }
            let header = serde_json::Value::from(header).to_string();
            let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes].concat();
            fs::write(path.join("model.safetensors"), file).unwrap();
        }
        path
    }

    fn model(&self, seeds: Seeds) -> Box<dyn StepRunner> {
        let mut backend = Cpu::open().unwrap();
        let decoder = Decoder::load(&mut backend, &ModelFolder::open(self.path(seeds)).unwrap()).unwrap();
        decoder.on(backend)
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
        let config = EngineConfig { check_plans: true, run_ahead: config.run_ahead || mode.run_ahead, ..config };
        let model = |number| wrap(number, self.model(Seeds::FIRST));
        let start = |number| Engine::start(model(number), Some(tokenizer()), config.clone()).unwrap();
        offshoot_engine::replicas::join((0..mode.replicas).map(start).collect()).unwrap()
    }

    /// An engine that has these weights and never had others, with room for everything.
    pub fn fresh(&self, seeds: Seeds) -> EngineHandle {
        let start = || Engine::start(self.model(seeds), Some(tokenizer()), roomy()).unwrap();
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

    /// Whether what an extend added to its branch is what fresh engines add, each of which has the weights of one span.
    fn check(&self, record: &Record, weights: &[Seeds]) {
        let Record { before, how, finish } = record;
        let (added, logprobs): (Vec<TokenId>, Vec<u32>) =
            finish.sampled_records().map(|record| (record.token, record.logprob.to_bits())).unzip();
        let mut ends: Vec<usize> = finish.weights.iter().skip(1).map(|span| span.from).collect();
        ends.extend((!added.is_empty()).then_some(added.len()));
        assert_eq!(ends.len(), finish.weights.len(), "{finish:?}");
        assert!(finish.weights.is_sorted_by(|a, b| a.from < b.from && a.version < b.version), "{finish:?}");
        for (&WeightSpan { version, from }, end) in finish.weights.iter().zip(ends) {
            let fresh = self.fresh(weights[version.0 as usize]);
            let text = [before, &added[..from]].concat();
            let root = fresh.root(text.clone()).unwrap();
            let scored = self::finish(&fresh, score(root, added[from..end].to_vec()));
            let bits: Vec<u32> = scored.logprobs().iter().map(|logprob| logprob.to_bits()).collect();
            assert!(bits == logprobs[from..end], "{:?} of version {version}, {from}..{end}", finish.reason);
            if let How::Drawn(uniforms, params) = how {
                let root = fresh.root(text).unwrap();
                let drawn = self::finish(&fresh, draw(root, *uniforms, params.clone(), length(end - from)));
                assert!(drawn.tokens == added[from..end], "version {version}, {from}..{end}");
            }
        }
    }
}

enum How {
    Drawn(UniformKey, SamplingParams),
    Scored,
}

/// An extend that has ended.
struct Record {
    /// The branch's tokens before it.
    before: Vec<TokenId>,
    how: How,
    finish: Finish,
}

struct TestBranch {
    id: BranchId,
    tokens: Vec<TokenId>,
    is_busy: bool,
}

/// A script in progress.
struct Script<'w> {
    world: &'w World,
    engine: EngineHandle,
    dice: Dice,
    receiver: EventReceiver,
    branches: Vec<TestBranch>,
    begun: HashMap<BranchId, (Vec<TokenId>, How)>,
    told: HashMap<BranchId, Vec<(TokenId, WeightVersion)>>,
    records: Vec<Record>,
    /// The weights of each version.
    weights: Vec<Seeds>,
    /// Most tokens of a prompt.
    longest: u32,
    extends: u64,
}

impl<'w> Script<'w> {
    fn new(world: &'w World, engine: EngineHandle, seed: u64, longest: u32) -> Self {
        Script {
            world,
            dice: Dice::new(seed),
            receiver: engine.receiver(Hear::Tokens),
            engine,
            branches: Vec::new(),
            begun: HashMap::new(),
            told: HashMap::new(),
            records: Vec::new(),
            weights: vec![Seeds::FIRST],
            longest,
            extends: 0,
        }
    }

    fn step(&mut self) {
        match self.dice.within(0, 31) {
            0..4 => self.root(),
            4..7 => self.fork(),
            7..12 => self.extend(),
            12 => self.rescore(),
            13..17 => (0..self.dice.within(1, 40)).for_each(|_| _ = self.hear(Duration::from_millis(50))),
            17..21 => self.update(),
            21 => self.refused(),
            22..24 => self.cancel(),
            24 => self.forget(),
            25..27 => {
                let mode = self.dice.pick(&[PauseMode::Abort, PauseMode::Wait, PauseMode::Keep]);
                self.engine.pause(mode).unwrap();
                assert!(self.engine.is_paused());
            }
            27..30 => {
                self.engine.resume().unwrap();
                assert!(!self.engine.is_paused());
            }
            _ => drop(self.engine.evict().unwrap()),
        }
    }

    /// Prompts begin alike.
    fn root(&mut self) {
        let tokens = prompt(u64::from(self.dice.within(1, 2)), self.longest as usize);
        let tokens = tokens[..self.dice.within(1, self.longest) as usize].to_vec();
        let priority = Priority(self.dice.within(0, 1) as i32);
        let salt = self.dice.one_in(5).then_some(CacheSalt([1; 16]));
        let id =
            self.engine.root_with(tokens.clone(), RootOptions { priority, salt, ..RootOptions::default() }).unwrap();
        self.branches.push(TestBranch { id, tokens, is_busy: false });
    }

    fn resting(&mut self) -> Option<usize> {
        let resting: Vec<usize> = (0..self.branches.len()).filter(|&at| !self.branches[at].is_busy).collect();
        (!resting.is_empty()).then(|| self.dice.pick(&resting))
    }

    fn fork(&mut self) {
        let Some(at) = self.resting() else { return };
        let (parent, count) = (&self.branches[at], self.dice.within(1, 3) as usize);
        let tokens = parent.tokens.clone();
        let children = self.engine.fork(parent.id, count).unwrap();
        self.branches.extend(children.into_iter().map(|id| TestBranch { id, tokens: tokens.clone(), is_busy: false }));
    }

    fn extend(&mut self) {
        let mut extends: Vec<Extend> = Vec::new();
        for _ in 0..self.dice.within(1, 4) {
            let Some(at) = self.resting() else { break };
            let more = self.dice.within(1, 30) as usize;
            let branch = &mut self.branches[at];
            if branch.tokens.len() + more > self.longest as usize + 200 {
                continue;
            }
            branch.is_busy = true;
            self.extends += 1;
            let (id, before) = (branch.id, branch.tokens.clone());
            let given = prompt(u64::from(self.dice.within(3, 4)), more);
            let (extend, how) = match self.dice.within(0, 5) {
                0 => (give(id, given), How::Scored),
                1 => (score(id, given), How::Scored),
                sampled => {
                    let uniforms = key("script", self.extends);
                    let stop = if sampled == 2 { length(more) } else { unsure(more) };
                    (draw(id, uniforms, params(), stop), How::Drawn(uniforms, params()))
                }
            };
            self.begun.insert(id, (before, how));
            extends.push(extend);
        }
        self.receiver.start(extends).unwrap();
    }

    /// Scores what an extend has added to its branch, in a branch of its own: of this nothing that older weights said
    /// may be taken over.
    fn rescore(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let Record { before, finish, .. } = &self.records[self.dice.below(self.records.len())];
        if finish.tokens.is_empty() {
            return;
        }
        let (before, tokens) = (before.clone(), finish.tokens.clone());
        let id = self.engine.root(before.clone()).unwrap();
        self.branches.push(TestBranch { id, tokens: before.clone(), is_busy: true });
        self.begun.insert(id, (before, How::Scored));
        self.extends += 1;
        self.receiver.start(vec![score(id, tokens)]).unwrap();
    }

    /// Takes up the next event, if one comes soon. Whether more will come.
    fn hear(&mut self, patience: Duration) -> bool {
        match self.receiver.poll(patience) {
            Poll::Pending => true,
            Poll::Ready(None) => false,
            Poll::Ready(Some(event)) => {
                self.note(event);
                true
            }
        }
    }

    fn note(&mut self, event: Event) {
        let id = event.id();
        match event {
            Event::Tokens { tokens, weights, .. } => {
                let told = tokens.iter().map(|sampled| (sampled.token, weights));
                self.told.entry(id).or_default().extend(told);
            }
            Event::Finished { finish, .. } => {
                let (before, how) = self.begun.remove(&id).expect("it was begun");
                let told = self.told.remove(&id).unwrap_or_default();
                if matches!(how, How::Drawn(..)) {
                    let version = |at: usize| {
                        let begun = finish.weights.iter().take_while(|span| span.from <= at);
                        begun.last().expect("the first span begins at 0").version
                    };
                    let all: Vec<_> = (0..).zip(&finish.tokens).map(|(at, &token)| (token, version(at))).collect();
                    assert_eq!(told, all, "events say what the record says");
                }
                if let Some(branch) = self.branches.iter_mut().find(|branch| branch.id == id) {
                    branch.tokens.extend_from_slice(&finish.tokens);
                    branch.is_busy = false;
                }
                self.records.push(Record { before, how, finish });
            }
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }

    /// All weights, or those of the output layer alone; from memory or from a folder; with an identity or without.
    fn update(&mut self) {
        let (last, next) = (self.weights[self.weights.len() - 1], u64::from(self.dice.within(1, 3)));
        let (seeds, scope) = match self.dice.one_in(3) {
            true => (Seeds { head: next, ..last }, UpdateScope::Changed),
            false => (Seeds::both(next), UpdateScope::Whole),
        };
        let names = |name: &str| scope == UpdateScope::Whole || name == HEAD;
        let source: Arc<dyn TensorSource> = match scope == UpdateScope::Whole && self.dice.one_in(2) {
            true => Arc::new(TensorFolder::open(&self.world.path(seeds)).unwrap()),
            false => Arc::new(tensors(self.world.shape, seeds, names)),
        };
        let identity = self.dice.one_in(2).then(|| seeds.identity());
        let update = WeightsUpdate { identity, ..WeightsUpdate::new(source, scope) };
        let weights = self.engine.update_weights(update).unwrap();
        assert_eq!(weights.version.0 as usize, self.weights.len());
        assert_eq!(self.engine.weights(), weights);
        self.weights.push(seeds);
    }

    /// An update that lacks a tensor changes nothing.
    fn refused(&mut self) {
        let before = self.engine.weights();
        let refused = self.engine.update_weights(self.world.lacking());
        assert!(refused.unwrap_err().to_string().contains("model.norm.weight"));
        assert_eq!(self.engine.weights(), before);
    }

    fn cancel(&mut self) {
        let busy: Vec<BranchId> =
            self.branches.iter().filter(|branch| branch.is_busy).map(|branch| branch.id).collect();
        let some = busy.into_iter().filter(|_| self.dice.one_in(3)).collect::<Vec<_>>();
        self.receiver.cancel(&some);
    }

    fn forget(&mut self) {
        if self.branches.is_empty() {
            return;
        }
        let at = self.dice.below(self.branches.len());
        let TestBranch { id, .. } = self.branches.swap_remove(at);
        if self.dice.one_in(2) { self.engine.release(&[id]) } else { self.engine.prune(&[id]) }
    }

    /// Ends everything, and checks every record.
    fn end(mut self) {
        self.engine.resume().unwrap();
        while self.hear(Duration::from_secs(60)) {}
        assert!(self.begun.is_empty(), "no request is lost");
        assert_eq!(self.records.len() as u64, self.extends);
        let all: Vec<BranchId> = self.branches.iter().map(|branch| branch.id).collect();
        self.engine.prune(&all);
        assert_eq!(self.engine.metrics().unwrap().kv_bytes_held, 0);
        self.records.iter().for_each(|record| self.world.check(record, &self.weights));
    }
}

/// Random scripts. How many of their records are of several versions is a matter of time: `pauses` and
/// `nothing_grows_with_updates` see to it that some are.
fn scripts(mode: Mode, shape: Shape, seeds: u64, longest: u32, config: impl Fn(&World, u64) -> EngineConfig) {
    let world = World::new(shape);
    for seed in 0..seeds {
        let mut script = Script::new(&world, world.engine(mode, config(&world, seed)), seed, longest);
        (0..80).for_each(|_| script.step());
        script.end();
    }
}

/// Small pools, with and without swaps, and a roomy one.
fn corner(world: &World, seed: u64, longest: usize) -> EngineConfig {
    let facts = world.fresh(Seeds::FIRST).facts().clone();
    let least = facts.path_pages(longest + 230, 0);
    let with = |more: usize| room_for(&facts, least + more * least / 10);
    match seed % 4 {
        0 => roomy(),
        1 => EngineConfig { step_rows: 5, max_branches: 3, pool: with(4), ..EngineConfig::default() },
        2 => EngineConfig { swap_bytes: 1 << 20, swap_at_any_cost: true, pool: with(6), ..EngineConfig::default() },
        _ => EngineConfig {
            step_rows: 32,
            max_branches: 9,
            planner: Planner::Tree,
            pool: with(20),
            ..EngineConfig::default()
        },
    }
}

fn every_record_is_that_of_engines_which_never_had_other_weights(mode: Mode) {
    let corner = |world: &World, seed| corner(world, seed, 60);
    scripts(mode, Shape::Full, some_or_full(4, 60), 60, corner);
}

fn windows_and_states_belong_to_weights_too(mode: Mode) {
    for shape in [Shape::LongMixed, Shape::Hybrid] {
        scripts(mode, shape, some_or_full(2, 20), 60, |world, seed| corner(world, seed, 60));
    }
}

fn what_a_prefix_store_has_belongs_to_weights_too(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let options = |seeds: Seeds| PrefixStoreOptions {
        folder: folder.path().to_owned(),
        most_bytes: 1 << 30,
        weights: seeds.identity(),
        formats: String::new(),
        keeps: StoredPrefixes::Prompts,
    };
    let longest = 2 * CHUNK_TOKENS + 40;
    for shape in [Shape::Full, Shape::Hybrid] {
        scripts(mode, shape, some_or_full(1, 12), longest as u32, |world, seed| EngineConfig {
            prefix_store: Some(options(Seeds::FIRST)),
            ..corner(world, seed, longest)
        });
    }
    // Engines that are started with the weights of an update find what was computed under it.
    let world = World::new(Shape::Full);
    let extend = |engine: &EngineHandle| {
        let root = engine.root(prompt(5, longest)).unwrap();
        finish(engine, draw(root, key("stored", 0), params(), length(9)))
    };
    let engine = world.engine(mode, EngineConfig { prefix_store: Some(options(Seeds::FIRST)), ..roomy() });
    let identity = Some(Seeds::both(2).identity());
    engine.update_weights(WeightsUpdate { identity, ..world.whole(Seeds::both(2)) }).unwrap();
    let first = extend(&engine);
    engine.update_weights(world.whole(Seeds::both(3))).unwrap();
    let nameless = extend(&engine);
    assert_eq!(engine.weights().identity, None);
    drop(engine);
    for (seeds, expected, stored) in [(Seeds::both(2), first, true), (Seeds::both(3), nameless, false)] {
        let config = EngineConfig { prefix_store: Some(options(seeds)), ..roomy() };
        let again = Engine::start(world.model(seeds), Some(tokenizer()), config).unwrap();
        let finish = extend(&again);
        assert_eq!((finish.tokens, finish.records), (expected.tokens, expected.records));
        assert_eq!(again.metrics().unwrap().prompt_tokens_stored > 0, stored, "{seeds:?}");
    }
}

/// Weights change a thousand times while samples run.
fn nothing_grows_with_updates(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, roomy());
    let updates: Vec<WeightsUpdate> = (1..=3).map(|seed| world.whole(Seeds::both(seed))).collect();
    let (mut weights, mut mixed) = (vec![Seeds::FIRST], 0);
    let (root, pages) = (engine.root(prompt(1, 40)).unwrap(), engine.live().unwrap().pages.total);
    let group = 8;
    for round in 0..some_or_full(50, 500) {
        let children = engine.fork(root, group).unwrap();
        let uniforms: Vec<UniformKey> = (0..group as u64).map(|at| key(&format!("{round}"), at)).collect();
        let extends = children.iter().zip(&uniforms).map(|(&child, &key)| draw(child, key, params(), unsure(40)));
        let mut receiver = engine.start(extends.collect()).unwrap();
        let mut finishes = HashMap::new();
        let mut note = |event: Option<Event>| match event {
            Some(Event::Finished { id, finish }) => drop(finishes.insert(id, finish)),
            Some(Event::Tokens { .. }) | None => {}
            Some(Event::Failed { error, .. }) => panic!("{error}"),
        };
        for half in 0..2 {
            for _ in 0..20 {
                if let Poll::Ready(event) = receiver.poll(Duration::from_millis(1)) {
                    note(event);
                }
            }
            let next = (2 * round + half) % 3;
            engine.update_weights(updates[next].clone()).unwrap();
            weights.push(Seeds::both(1 + next as u64));
        }
        while let Some(event) = receiver.next() {
            note(Some(event));
        }
        assert_eq!(finishes.len(), group, "every sample ends");
        mixed += finishes.values().filter(|finish| finish.weights.len() > 1).count();
        for (&child, &uniforms) in children.iter().zip(&uniforms).filter(|_| round % 25 == 0) {
            if let Some(finish) = finishes.remove(&child) {
                let how = How::Drawn(uniforms, params());
                world.check(&Record { before: prompt(1, 40), how, finish }, &weights);
            }
        }
        engine.prune(&children);
    }
    engine.prune(&[root]);
    engine.evict().unwrap();
    engine.metrics().unwrap();
    let live = engine.live().unwrap();
    assert_eq!(engine.weights().version.0 as usize, weights.len() - 1);
    assert_eq!((live.branches, live.running, live.waiting), (0, 0, 0));
    assert_eq!((live.pages.free, live.pages.total), (pages, pages));
    assert!(mixed > 0, "some samples are of several versions");
}

in_modes! {
    in_turn, run_ahead, replicas:
    every_record_is_that_of_engines_which_never_had_other_weights,
    windows_and_states_belong_to_weights_too,
    what_a_prefix_store_has_belongs_to_weights_too,
    nothing_grows_with_updates,
}
