//! Adapters that are loaded, replaced and unloaded while branches are sampled, scored, forked, swapped, stored and
//! cancelled, and while the model's own weights change: every record is that of an engine which has only the weights
//! and the adapters that it names.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use offshoot_core::dice::Dice;
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId};
use offshoot_engine::{
    AdapterLimits, AdapterSource, AdapterSpan, CHUNK_TOKENS, Engine, EngineConfig, EngineHandle, Event, EventReceiver,
    Extend, Finish, Hear, LoadedAdapter, PauseMode, PrefixStoreOptions, Priority, RootOptions, SamplingParams,
    StoredPrefixes, UniformKey, version_of_token,
};
use offshoot_kv::CacheSalt;
use offshoot_model::{Adapter, TensorDtype, TensorsInMemory};

use super::bench::{
    Mode, Shape, draw, finish, finishes, give, key, length, params, prompt, roomy, score, tokenizer, unsure,
};
use super::updates::corner;
use super::world::{Seeds, World, layout, write_safetensors};
use crate::full::some_or_full;

/// The largest rank of an adapter here.
const RANK: usize = 8;

/// Random adapters by their seeds.
struct Adapters {
    shape: Shape,
    folder: tempfile::TempDir,
}

impl Adapters {
    fn new(shape: Shape) -> Self {
        Adapters { shape, folder: tempfile::tempdir().unwrap() }
    }

    fn rank(seed: u64) -> usize {
        [2, 3, RANK][seed as usize % 3]
    }

    fn config(seed: u64) -> serde_json::Value {
        let rank = Self::rank(seed);
        serde_json::json!({ "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear" })
    }

    /// Of projections and the output layer.
    fn tensors(&self, seed: u64) -> TensorsInMemory<'static> {
        let (rank, mut tensors) = (Self::rank(seed), TensorsInMemory::default());
        let is_adapted = |name: &str| name.ends_with("_proj.weight") || name == "lm_head.weight";
        for (number, (name, sizes)) in (0u64..).zip(layout(self.shape)).filter(|(_, (name, _))| is_adapted(name)) {
            let module = name.trim_end_matches(".weight");
            let mut dice = Dice::new(7000 * seed + number);
            for (side, sizes) in [("A", vec![rank, sizes[1]]), ("B", vec![sizes[0], rank])] {
                let values = dice.numbers(sizes.iter().product()).into_iter().map(|value| value * 0.3);
                let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
                let name = format!("base_model.model.{module}.lora_{side}.weight");
                tensors.add(name, TensorDtype::F32, sizes, bytes).unwrap();
            }
        }
        tensors
    }

    fn path(&self, seed: u64) -> PathBuf {
        let path = self.folder.path().join(seed.to_string());
        if !path.exists() {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("adapter_config.json"), Self::config(seed).to_string()).unwrap();
            write_safetensors(&path.join("adapter_model.safetensors"), &self.tensors(seed));
        }
        path
    }

    fn in_folder(&self, seed: u64) -> AdapterSource {
        AdapterSource::Folder(self.path(seed))
    }

    fn in_memory(&self, seed: u64) -> AdapterSource {
        AdapterSource::Tensors { config: Self::config(seed), tensors: Arc::new(self.tensors(seed)) }
    }
}

/// Models and adapters of one shape, and engines that have nothing but what a record names.
struct Scene {
    world: World,
    adapters: Adapters,
    fresh: RefCell<HashMap<(Seeds, BTreeSet<u64>), EngineHandle>>,
}

/// The tokens from this position on, up to the next such run, have this adapter.
type Run<A> = (usize, Option<A>);

impl Scene {
    fn new(shape: Shape) -> Self {
        Scene { world: World::new(shape), adapters: Adapters::new(shape), fresh: RefCell::default() }
    }

    fn engine(&self, mode: Mode, most: usize, config: EngineConfig) -> EngineHandle {
        self.world.engine(mode, EngineConfig { adapters: AdapterLimits { most, rank: RANK }, ..config })
    }

    /// An engine that never had other weights than these, and no adapters but these.
    fn fresh(&self, weights: Seeds, adapters: BTreeSet<u64>) -> EngineHandle {
        let start = || {
            let most = adapters.len();
            let config = EngineConfig { adapters: AdapterLimits { most, rank: RANK }, ..roomy() };
            let engine = Engine::start(self.world.model(weights), Some(tokenizer()), config).unwrap();
            for &seed in &adapters {
                engine.load_adapter(&seed.to_string(), self.adapters.in_memory(seed)).unwrap();
            }
            engine
        };
        self.fresh.borrow_mut().entry((weights, adapters.clone())).or_insert_with(start).clone()
    }

    /// A branch of an engine with only these, whose tokens have the adapters of `runs`, by their seeds.
    fn branch(&self, weights: Seeds, tokens: &[TokenId], runs: &[Run<u64>]) -> (EngineHandle, BranchId) {
        let engine = self.fresh(weights, runs.iter().filter_map(|(_, seed)| *seed).collect());
        let version = |seed: Option<u64>| seed.map(|seed| engine.adapter(&seed.to_string()).unwrap().version);
        let mut ends = runs.iter().skip(1).map(|(from, _)| from + 1).chain([tokens.len()]);
        let mut upto = ends.next().unwrap();
        let options = RootOptions { adapter: version(runs[0].1), ..RootOptions::default() };
        let branch = engine.root_with(tokens[..upto].to_vec(), options).unwrap();
        for ((_, adapter), end) in runs.iter().skip(1).zip(ends) {
            engine.set_adapter(&[branch], version(*adapter)).unwrap();
            finish(&engine, give(branch, tokens[upto..end].to_vec()));
            upto = end;
        }
        (engine, branch)
    }

    /// Whether what an extend added to its branch is what fresh engines add. Returns how many parts were compared.
    fn check(&self, record: &Record, weights: &[Seeds], seeds: &HashMap<AdapterVersion, u64>) -> usize {
        let Record { before, runs, how, finish } = record;
        let (added, logprobs): (Vec<TokenId>, Vec<u32>) =
            finish.sampled_records().map(|record| (record.token, record.logprob.to_bits())).unzip();
        let starts = finish.weights.iter().map(|span| span.from).chain(finish.adapters.iter().map(|span| span.from));
        let starts: BTreeSet<usize> = starts.collect();
        assert_eq!(starts.first().copied(), (!added.is_empty()).then_some(0), "{finish:?}");
        assert!(finish.adapters.is_sorted_by(|a, b| a.from < b.from && a.version < b.version), "{finish:?}");
        let ends = starts.iter().copied().skip(1).chain([added.len()]);
        for (&from, end) in starts.iter().zip(ends) {
            let version = version_of_token(&finish.weights, from).expect("the first span begins at 0");
            let adapter = version_of_token(&finish.adapters, from);
            let mut runs: Vec<Run<u64>> =
                runs.iter().map(|(from, adapter)| (*from, adapter.map(|version| seeds[&version]))).collect();
            // The last adapter may have made way for a newer version of its name.
            let last = runs.last_mut().unwrap();
            assert_eq!(last.1.is_some(), adapter.is_some(), "{finish:?} after {runs:?}");
            last.1 = adapter.map(|version| seeds[&version]);
            let text = [before, &added[..from]].concat();
            let (fresh, branch) = self.branch(weights[version.0 as usize], &text, &runs);
            let scored = self::finish(&fresh, score(branch, added[from..end].to_vec()));
            let bits: Vec<u32> = scored.logprobs().iter().map(|logprob| logprob.to_bits()).collect();
            assert!(bits == logprobs[from..end], "{:?} of {runs:?}, {from}..{end}", finish.reason);
            if let How::Drawn(uniforms, params) = how {
                let (fresh, branch) = self.branch(weights[version.0 as usize], &text, &runs);
                let drawn = self::finish(&fresh, draw(branch, *uniforms, params.clone(), length(end - from)));
                assert!(drawn.tokens == added[from..end], "{runs:?}, {from}..{end}");
            }
        }
        starts.len()
    }
}

#[derive(Clone)]
enum How {
    Drawn(UniformKey, SamplingParams),
    Scored,
}

/// An extend that has ended.
struct Record {
    /// The branch's tokens before it, and their adapters.
    before: Vec<TokenId>,
    runs: Vec<Run<AdapterVersion>>,
    how: How,
    finish: Finish,
}

#[derive(Clone)]
struct TestBranch {
    id: BranchId,
    tokens: Vec<TokenId>,
    runs: Vec<Run<AdapterVersion>>,
    is_busy: bool,
}

impl TestBranch {
    fn set(&mut self, adapter: Option<AdapterVersion>) {
        if self.runs.last().unwrap().1 == adapter {
            return;
        }
        let at = self.tokens.len() - 1;
        self.runs.retain(|(from, _)| *from < at);
        if self.runs.last().is_none_or(|last| last.1 != adapter) {
            self.runs.push((at, adapter));
        }
    }
}

/// A script in progress.
struct Script<'s> {
    scene: &'s Scene,
    engine: EngineHandle,
    replicas: bool,
    dice: Dice,
    receiver: EventReceiver,
    branches: Vec<TestBranch>,
    begun: HashMap<BranchId, (Vec<TokenId>, Vec<Run<AdapterVersion>>, How)>,
    records: Vec<Record>,
    /// The weights of each version.
    weights: Vec<Seeds>,
    /// The adapter of each version.
    seeds: HashMap<AdapterVersion, u64>,
    longest: u32,
    extends: u64,
}

impl<'s> Script<'s> {
    fn new(scene: &'s Scene, mode: Mode, engine: EngineHandle, seed: u64, longest: u32) -> Self {
        Script {
            scene,
            replicas: mode.replicas > 1,
            dice: Dice::new(seed),
            receiver: engine.receiver(Hear::Tokens),
            engine,
            branches: Vec::new(),
            begun: HashMap::new(),
            records: Vec::new(),
            weights: vec![Seeds::FIRST],
            seeds: HashMap::new(),
            longest,
            extends: 0,
        }
    }

    fn step(&mut self) {
        match self.dice.within(0, 35) {
            0..5 => self.root(),
            5..8 => self.fork(),
            8..10 => self.change(),
            10..17 => self.extend(),
            17..22 => (0..self.dice.within(1, 40)).for_each(|_| _ = self.hear(Duration::from_millis(50))),
            22..26 => self.load(),
            26 => self.unload(),
            27 => self.update(),
            28..30 => self.cancel(),
            30 => self.forget(),
            31 => self.engine.pause(self.dice.pick(&[PauseMode::Abort, PauseMode::Wait, PauseMode::Keep])).unwrap(),
            32..35 => self.engine.resume().unwrap(),
            _ => drop(self.engine.evict().unwrap()),
        }
    }

    /// One that is loaded, or none.
    fn adapter(&mut self) -> Option<AdapterVersion> {
        let loaded = self.engine.adapters();
        let versions: Vec<AdapterVersion> = loaded.iter().map(|adapter| adapter.version).collect();
        (!loaded.is_empty() && !self.dice.one_in(3)).then(|| self.dice.pick(&versions))
    }

    /// Prompts begin alike.
    fn root(&mut self) {
        let tokens = prompt(u64::from(self.dice.within(1, 2)), self.longest as usize);
        let tokens = tokens[..self.dice.within(1, self.longest) as usize].to_vec();
        let priority = Priority(self.dice.within(0, 1) as i32);
        let salt = self.dice.one_in(8).then_some(CacheSalt([1; 16]));
        let adapter = self.adapter();
        let options = RootOptions { priority, salt, adapter, ..RootOptions::default() };
        let id = self.engine.root_with(tokens.clone(), options).unwrap();
        self.branches.push(TestBranch { id, tokens, runs: vec![(0, adapter)], is_busy: false });
    }

    fn resting(&mut self) -> Option<usize> {
        let resting: Vec<usize> = (0..self.branches.len()).filter(|&at| !self.branches[at].is_busy).collect();
        (!resting.is_empty()).then(|| self.dice.pick(&resting))
    }

    /// Whether a branch has the versions that it had when it was seen last, and keeps them if it goes on with another
    /// one. One that no replica has yet does not.
    fn is_known(&self, branch: &TestBranch) -> bool {
        let is_plain = branch.runs.iter().all(|(_, adapter)| adapter.is_none());
        let loaded = self.engine.adapters();
        let is_current = |version| loaded.iter().any(|adapter| adapter.version == version);
        is_plain || !self.replicas && branch.runs.last().unwrap().1.is_none_or(is_current)
    }

    fn fork(&mut self) {
        let Some(at) = self.resting() else { return };
        let (parent, count, adapter) = (self.branches[at].clone(), self.dice.within(1, 3) as usize, self.adapter());
        let changes = self.is_known(&parent) && self.dice.one_in(2);
        let children = match changes {
            true => self.engine.fork_with(parent.id, count, adapter).unwrap(),
            false => self.engine.fork(parent.id, count).unwrap(),
        };
        for id in children {
            let mut child = TestBranch { id, ..parent.clone() };
            if changes {
                child.set(adapter);
            }
            self.branches.push(child);
        }
    }

    fn change(&mut self) {
        let Some(at) = self.resting() else { return };
        let adapter = self.adapter();
        if self.is_known(&self.branches[at]) {
            self.engine.set_adapter(&[self.branches[at].id], adapter).unwrap();
            self.branches[at].set(adapter);
        }
    }

    fn extend(&mut self) {
        let mut extends: Vec<Extend> = Vec::new();
        for _ in 0..self.dice.within(1, 5) {
            let Some(at) = self.resting() else { break };
            let more = self.dice.within(1, 30) as usize;
            let branch = &mut self.branches[at];
            if branch.tokens.len() + more > self.longest as usize + 200 {
                continue;
            }
            branch.is_busy = true;
            self.extends += 1;
            let (id, before, runs) = (branch.id, branch.tokens.clone(), branch.runs.clone());
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
            self.begun.insert(id, (before, runs, how));
            extends.push(extend);
        }
        self.receiver.start(extends).unwrap();
    }

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
            Event::Tokens { .. } => {}
            Event::Finished { finish, .. } => {
                let (before, runs, how) = self.begun.remove(&id).expect("it was begun");
                if let Some(branch) = self.branches.iter_mut().find(|branch| branch.id == id) {
                    branch.tokens.extend_from_slice(&finish.tokens);
                    branch.is_busy = false;
                    if let Some(&AdapterSpan { version, .. }) = finish.adapters.last() {
                        branch.runs.last_mut().unwrap().1 = Some(version);
                    }
                }
                self.records.push(Record { before, runs, how, finish });
            }
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }

    /// From memory, with an identity from a folder, or from what was read before.
    fn load(&mut self) {
        let (name, seed) = (self.dice.pick(&["a", "b", "c"]), u64::from(self.dice.within(1, 5)));
        let source = match self.dice.within(0, 2) {
            0 => self.scene.adapters.in_folder(seed),
            1 => self.scene.adapters.in_memory(seed),
            _ => AdapterSource::Read(Arc::new(Adapter::open(&self.scene.adapters.path(seed)).unwrap())),
        };
        let before = self.engine.adapters();
        match self.engine.load_adapter(name, source) {
            Ok(LoadedAdapter { name: loaded, version, rank, .. }) => {
                assert_eq!((&*loaded, rank), (name, Adapters::rank(seed)));
                assert_eq!(self.engine.adapter(name).unwrap().version, version);
                assert!(before.iter().all(|adapter| adapter.version < version));
                self.seeds.insert(version, seed);
            }
            Err(error) => {
                assert!(error.to_string().contains("max_loras"), "{error}");
                assert_eq!(self.engine.adapters(), before);
            }
        }
    }

    fn unload(&mut self) {
        let loaded = self.engine.adapters();
        if !loaded.is_empty() {
            let name = &loaded[self.dice.below(loaded.len())].name;
            self.engine.unload_adapter(name).unwrap();
            assert!(self.engine.adapter(name).is_err() && self.engine.unload_adapter(name).is_err());
        }
    }

    fn update(&mut self) {
        let seeds = Seeds::both(u64::from(self.dice.within(1, 2)));
        self.engine.update_weights(self.scene.world.whole(seeds)).unwrap();
        self.weights.push(seeds);
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

    /// Ends everything, and checks every record. Returns how many have several versions of an adapter.
    fn end(mut self) -> usize {
        self.engine.resume().unwrap();
        while self.hear(Duration::from_secs(60)) {}
        assert!(self.begun.is_empty(), "no request is lost");
        assert_eq!(self.records.len() as u64, self.extends);
        let all: Vec<BranchId> = self.branches.iter().map(|branch| branch.id).collect();
        self.engine.prune(&all);
        assert_eq!(self.engine.metrics().unwrap().kv_bytes_held, 0);
        self.records.iter().for_each(|record| _ = self.scene.check(record, &self.weights, &self.seeds));
        // All slots are free again.
        for LoadedAdapter { name, .. } in self.engine.adapters() {
            self.engine.unload_adapter(&name).unwrap();
        }
        for number in 0..self.engine.facts().adapters.most {
            self.engine.load_adapter(&format!("last {number}"), self.scene.adapters.in_memory(1)).unwrap();
        }
        self.records.iter().filter(|record| record.finish.adapters.len() > 1).count()
    }
}

fn scripts(mode: Mode, shape: Shape, seeds: u64, longest: u32, config: impl Fn(&World, u64) -> EngineConfig) {
    let scene = Scene::new(shape);
    for seed in 0..seeds {
        let most = [1, 2, 4][seed as usize % 3];
        let engine = scene.engine(mode, most, config(&scene.world, seed));
        let mut script = Script::new(&scene, mode, engine, seed, longest);
        (0..90).for_each(|_| script.step());
        script.end();
    }
}

fn every_record_is_that_of_engines_with_its_adapters_alone(mode: Mode) {
    scripts(mode, Shape::Full, some_or_full(6, 60), 60, |world, seed| corner(world, seed, 60));
}

fn windows_and_states_belong_to_adapters_too(mode: Mode) {
    for shape in [Shape::LongMixed, Shape::Hybrid] {
        scripts(mode, shape, some_or_full(3, 30), 60, |world, seed| corner(world, seed, 60));
    }
}

fn options(folder: &tempfile::TempDir) -> PrefixStoreOptions {
    PrefixStoreOptions {
        folder: folder.path().to_owned(),
        most_bytes: 1 << 30,
        weights: Seeds::FIRST.identity(),
        formats: String::new(),
        keeps: StoredPrefixes::Prompts,
    }
}

fn what_a_prefix_store_has_belongs_to_adapters_too(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let longest = 2 * CHUNK_TOKENS + 40;
    let stored = |config| EngineConfig { prefix_store: Some(options(&folder)), ..config };
    for shape in [Shape::Full, Shape::Hybrid] {
        scripts(mode, shape, some_or_full(1, 12), longest as u32, |world, seed| stored(corner(world, seed, longest)));
    }
    // A later engine finds what an adapter with an identity has computed, and nothing of one from memory.
    let scene = Scene::new(Shape::Full);
    let sources = || [scene.adapters.in_folder(1), scene.adapters.in_folder(2), scene.adapters.in_memory(3)];
    let extend = |engine: &EngineHandle, source: AdapterSource| {
        let adapter = Some(engine.load_adapter("a", source).unwrap().version);
        let options = RootOptions { adapter, ..RootOptions::default() };
        let root = engine.root_with(prompt(5, longest), options).unwrap();
        let finish = finish(engine, draw(root, key("stored", 0), params(), length(9)));
        engine.release(&[root]);
        (finish.tokens, finish.records, engine.metrics().unwrap().prompt_tokens_stored)
    };
    let engine = scene.engine(mode, 2, stored(roomy()));
    let first = sources().map(|source| extend(&engine, source));
    drop(engine);
    let engine = scene.engine(mode, 2, stored(roomy()));
    let mut before = 0;
    for ((tokens, records, _), (number, source)) in first.into_iter().zip((0..).zip(sources())) {
        let again = extend(&engine, source);
        assert_eq!((again.0, again.1), (tokens, records));
        assert_eq!(again.2 > before, number < 2, "adapter {number}");
        before = again.2;
    }
}

/// Adapters of seeds 1 and 2, called "a" and "b".
fn with_two(scene: &Scene, mode: Mode, most: usize) -> (EngineHandle, [Option<AdapterVersion>; 2]) {
    let engine = scene.engine(mode, most, roomy());
    let load = |name, seed| Some(engine.load_adapter(name, scene.adapters.in_memory(seed)).unwrap().version);
    let loaded = [load("a", 1), load("b", 2)];
    (engine, loaded)
}

fn what_was_computed_without_an_adapter_is_shared_by_those_that_go_on_with_some(mode: Mode) {
    let scene = Scene::new(Shape::Full);
    let (engine, [a, b]) = with_two(&scene, mode, 2);
    let (given, samples, tokens) = (prompt(1, 100), 4, 12);
    let root = engine.root(given.clone()).unwrap();
    finish(&engine, draw(root, key("root", 0), params(), length(1)));
    let before = engine.metrics().unwrap();
    let root = engine.root(given.clone()).unwrap();
    let adapters = [None, a, b];
    let branches: Vec<BranchId> =
        adapters.iter().flat_map(|&adapter| engine.fork_with(root, samples, adapter).unwrap()).collect();
    let extends = (0..).zip(&branches).map(|(at, &branch)| draw(branch, key("fork", at), params(), length(tokens)));
    let finishes = finishes(&engine, extends.collect());
    let after = engine.metrics().unwrap();
    let computed = after.prompt_tokens_computed - before.prompt_tokens_computed;
    if mode.replicas == 1 {
        assert_eq!(computed, 2, "the last token of the prompt, once for each adapter");
        let steps = after.steps - before.steps;
        assert!(steps <= tokens as u64 + 2, "{steps} steps: rows of several adapters are in one");
    }
    for (finish, at) in finishes.iter().zip(0..) {
        let adapter = adapters[at / samples];
        let spans: Vec<AdapterSpan> = adapter.map(|version| AdapterSpan { version, from: 0 }).into_iter().collect();
        assert_eq!(finish.adapters, spans);
        let runs = adapter.map_or(vec![(0, None)], |_| vec![(0, None), (given.len() - 1, adapter)]);
        let how = How::Drawn(key("fork", at as u64), params());
        let seeds = [a, b].into_iter().flatten().zip([1, 2]).collect();
        let record = Record { before: given.clone(), runs, how, finish: finish.clone() };
        scene.check(&record, &[Seeds::FIRST], &seeds);
    }
    let distinct: BTreeSet<_> = finishes.iter().step_by(samples).map(|finish| finish.tokens.clone()).collect();
    assert_eq!(distinct.len(), 3, "adapters change what is sampled");
}

/// Branches at rest part from a prompt at many places while another one decodes behind it.
fn a_branch_that_runs_is_not_disturbed_by_those_that_get_another_adapter(mode: Mode) {
    let scene = Scene::new(Shape::Full);
    let (engine, [a, b]) = with_two(&scene, mode, 2);
    let (given, tokens) = (prompt(1, 200), 120);
    let root = engine.root(given.clone()).unwrap();
    let resting: Vec<BranchId> = (20..140).map(|len| engine.root(given[..len].to_vec()).unwrap()).collect();
    let mut receiver = engine.receiver(Hear::Tokens);
    receiver.start(vec![draw(root, key("runs", 0), params(), length(tokens))]).unwrap();
    let mut resting = resting.iter().zip([a, b].into_iter().cycle());
    let end = loop {
        match receiver.next().expect("it ends with an event") {
            Event::Tokens { .. } => {
                resting.by_ref().take(1).for_each(|(&id, adapter)| engine.set_adapter(&[id], adapter).unwrap())
            }
            end => break end,
        }
    };
    let Event::Finished { finish, .. } = end else { panic!("{end:?}") };
    let (how, runs) = (How::Drawn(key("runs", 0), params()), vec![(0, None)]);
    scene.check(&Record { before: given, runs, how, finish }, &[Seeds::FIRST], &HashMap::new());
}

fn what_is_replaced_stays_for_those_that_have_it_while_there_are_slots(mode: Mode) {
    let scene = Scene::new(Shape::Full);
    for most in [2, 1] {
        let engine = scene.engine(mode, most, roomy());
        let first = engine.load_adapter("a", scene.adapters.in_memory(1)).unwrap().version;
        let options = RootOptions { adapter: Some(first), ..RootOptions::default() };
        let root = engine.root_with(prompt(1, 40), options).unwrap();
        let mut receiver = engine.receiver(Hear::Tokens);
        receiver.start(vec![draw(root, key("long", 0), params(), length(400))]).unwrap();
        // It has sampled some when the adapter is replaced.
        let Some(Event::Tokens { .. }) = receiver.next() else { panic!("it samples") };
        engine.pause(PauseMode::Keep).unwrap();
        let second = engine.load_adapter("a", scene.adapters.in_memory(2)).unwrap().version;
        engine.resume().unwrap();
        let end = std::iter::from_fn(|| receiver.next()).find(Event::is_end);
        let Some(Event::Finished { finish, .. }) = end else { panic!("it ends") };
        let versions: Vec<AdapterVersion> = finish.adapters.iter().map(|span| span.version).collect();
        assert_eq!(versions, if most == 2 { vec![first] } else { vec![first, second] });
        let seeds = HashMap::from([(first, 1), (second, 2)]);
        let (how, runs) = (How::Drawn(key("long", 0), params()), vec![(0, Some(first))]);
        scene.check(&Record { before: prompt(1, 40), runs, how, finish }, &[Seeds::FIRST], &seeds);
        // The name stands for the new one, also for those that still name the old one once its slot is needed.
        assert_eq!(engine.adapter("a").unwrap().version, second);
        engine.release(&[root]);
        let third = engine.load_adapter("a", scene.adapters.in_memory(3)).unwrap().version;
        let late = engine.root_with(prompt(1, 40), options).unwrap();
        let late = self::finish(&engine, draw(late, key("late", 0), params(), length(5)));
        assert_eq!(late.adapters, [AdapterSpan { version: third, from: 0 }]);
    }
}

fn an_adapter_that_is_unloaded_serves_those_that_have_it_to_their_ends(mode: Mode) {
    let scene = Scene::new(Shape::Full);
    let (engine, [a, _]) = with_two(&scene, mode, 2);
    let options = RootOptions { adapter: a, ..RootOptions::default() };
    let root = engine.root_with(prompt(1, 40), options).unwrap();
    finish(&engine, draw(root, key("before", 0), params(), length(3)));
    engine.unload_adapter("a").unwrap();
    assert_eq!(engine.adapters().len(), 1);
    let after = finish(&engine, draw(root, key("after", 0), params(), length(3)));
    assert_eq!(after.adapters, [AdapterSpan { version: a.unwrap(), from: 0 }]);
    let refused = engine.load_adapter("c", scene.adapters.in_memory(3)).unwrap_err().to_string();
    let says = "adapters: expected at most 2 that are loaded or still in use (`max_loras`), found c beside a, b";
    assert_eq!(refused, says);
    engine.release(&[root]);
    engine.load_adapter("c", scene.adapters.in_memory(3)).unwrap();
    let late = engine.root_with(prompt(1, 40), options).unwrap();
    let mut late = engine.start(vec![draw(late, key("late", 0), params(), length(5))]).unwrap();
    let Some(Event::Failed { error, .. }) = late.next() else { panic!("nothing has its adapter") };
    assert!(
        error.to_string().ends_with("expected one that is loaded, found a (version 0), which was unloaded"),
        "{error}"
    );
}

fn an_adapter_that_is_unloaded_serves_those_that_have_not_begun(mode: Mode) {
    let scene = Scene::new(Shape::Full);
    for replaced in [false, true] {
        let engine = scene.engine(mode, 1, roomy());
        let load =
            |name, seed| engine.load_adapter(name, scene.adapters.in_memory(seed)).map(|adapter| adapter.version);
        let mut version = load("a", 1).unwrap();
        let options = RootOptions { adapter: Some(version), ..RootOptions::default() };
        let root = engine.root_with(prompt(1, 40), options).unwrap();
        engine.pause(PauseMode::Abort).unwrap();
        let mut waits = engine.start(vec![draw(root, key("waits", 0), params(), length(5))]).unwrap();
        if replaced {
            version = load("a", 2).unwrap();
        }
        engine.unload_adapter("a").unwrap();
        assert!(load("b", 3).unwrap_err().to_string().contains("still in use"));
        engine.resume().unwrap();
        let end = std::iter::from_fn(|| waits.next()).find(Event::is_end);
        let Some(Event::Finished { finish, .. }) = end else { panic!("{end:?}") };
        assert_eq!(finish.adapters, [AdapterSpan { version, from: 0 }]);
        engine.release(&[root]);
        load("b", 3).unwrap();
    }
}

fn an_adapter_that_is_refused_changes_nothing(mode: Mode) {
    let scene = Scene::new(Shape::Full);
    let (engine, [a, _]) = with_two(&scene, mode, 2);
    let before = engine.adapters();
    let other = Adapters::new(Shape::Hybrid);
    let missing = AdapterSource::Folder(PathBuf::from("no such folder"));
    let large = serde_json::json!({ "peft_type": "LORA", "r": 16, "lora_alpha": 1, "target_modules": "all-linear" });
    let mut tensors = TensorsInMemory::default();
    for (side, sizes) in [("A", vec![16, 32]), ("B", vec![32, 16])] {
        let name = format!("model.layers.0.self_attn.q_proj.lora_{side}.weight");
        tensors.add(name, TensorDtype::F32, sizes, vec![0; 4 * 16 * 32]).unwrap();
    }
    let large = AdapterSource::Tensors { config: large, tensors: Arc::new(tensors) };
    let cases = [
        ("a", other.in_memory(1), "expected a linear layer of the model"),
        ("d", missing, "no such folder"),
        ("d", large, "rank of adapter d: expected at most 8 (`max_lora_rank`), found 16"),
        ("", scene.adapters.in_memory(1), "an adapter's name"),
    ];
    for (name, source, says) in cases {
        let error = engine.load_adapter(name, source).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(engine.adapters(), before);
    }
    assert!(engine.unload_adapter("d").unwrap_err().to_string().contains("one that is loaded (a, b), found d"));
    let unknown = RootOptions { adapter: Some(AdapterVersion(99)), ..RootOptions::default() };
    assert!(engine.root_with(prompt(1, 9), unknown).is_err());
    let options = RootOptions { adapter: a, ..RootOptions::default() };
    let root = engine.root_with(prompt(1, 40), options).unwrap();
    let finish = finish(&engine, draw(root, key("a", 0), params(), length(9)));
    let (how, runs, seeds) = (How::Drawn(key("a", 0), params()), vec![(0, a)], HashMap::from([(a.unwrap(), 1)]));
    scene.check(&Record { before: prompt(1, 40), runs, how, finish }, &[Seeds::FIRST], &seeds);
    let none = mode.engine(roomy());
    let error = none.load_adapter("a", scene.adapters.in_memory(1)).unwrap_err().to_string();
    assert!(error.contains("max_loras"), "{error}");
}

in_modes! {
    in_turn, run_ahead, replicas:
    every_record_is_that_of_engines_with_its_adapters_alone,
    windows_and_states_belong_to_adapters_too,
    what_a_prefix_store_has_belongs_to_adapters_too,
    what_was_computed_without_an_adapter_is_shared_by_those_that_go_on_with_some,
    what_is_replaced_stays_for_those_that_have_it_while_there_are_slots,
    a_branch_that_runs_is_not_disturbed_by_those_that_get_another_adapter,
    an_adapter_that_is_unloaded_serves_those_that_have_it_to_their_ends,
    an_adapter_that_is_unloaded_serves_those_that_have_not_begun,
    an_adapter_that_is_refused_changes_nothing,
}
