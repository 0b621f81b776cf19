//! Random scripts of everything that is done to an engine while its weights change: roots, forks, samples, scores,
//! pauses of three kinds, sleep, cancelled and released branches, and engines that are lost. What must hold of their
//! records is defined in `versions`.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use offshoot_core::dice::Dice;
use offshoot_core::ids::{BranchId, TokenId, WeightVersion};
use offshoot_engine::{
    EngineConfig, EngineHandle, Event, EventReceiver, Extend, Hear, PauseMode, Priority, Records, RootOptions,
    SamplingParams, Stop, WeightsUpdate, version_of_token,
};
use offshoot_kv::CacheSalt;
use offshoot_model::{Sleep, SleepParts, TensorFolder, TensorSource, UpdateScope, WeightSleep};

use super::bench::{Mode, Shape, VOCAB, draw, give, key, length, params, prompt, score, unsure};
use super::forms::forms;
use super::versions::{How, Record};
use super::world::{HEAD, Seeds, Switch, World, tensors};

struct TestBranch {
    id: BranchId,
    tokens: Vec<TokenId>,
    /// Whether some of them were sampled, not given.
    has_sampled: bool,
    is_busy: bool,
    /// Which of the forms it was extended in last.
    form: Option<usize>,
}

/// What sleeps, and what is to be done when all is awake.
struct Nap {
    asleep: SleepParts,
    /// Whether the weights were dropped, and none have come since.
    lacks_weights: bool,
    /// Whether the engine ran before.
    resumes: bool,
}

/// A script in progress.
pub struct Script<'w> {
    world: &'w World,
    engine: EngineHandle,
    /// Of the engines that can be lost and live.
    switches: Vec<Switch>,
    dice: Dice,
    receiver: EventReceiver,
    branches: Vec<TestBranch>,
    begun: HashMap<BranchId, (Vec<TokenId>, How)>,
    told: HashMap<BranchId, Vec<(TokenId, WeightVersion)>>,
    records: Vec<Record>,
    /// The weights of each version.
    weights: Vec<Seeds>,
    nap: Option<Nap>,
    /// Most tokens of a prompt.
    longest: u32,
    extends: u64,
}

impl<'w> Script<'w> {
    /// Engines of every other script can be lost, where there are several.
    pub fn new(world: &'w World, mode: Mode, config: EngineConfig, seed: u64, longest: u32) -> Self {
        let (engine, switches) = match mode.replicas > 1 && seed.is_multiple_of(2) {
            true => world.engines_to_lose(mode, config),
            false => (world.engine(mode, config), Vec::new()),
        };
        Script {
            world,
            switches,
            dice: Dice::new(seed),
            receiver: engine.receiver(Hear::Tokens),
            engine,
            branches: Vec::new(),
            begun: HashMap::new(),
            told: HashMap::new(),
            records: Vec::new(),
            weights: vec![Seeds::FIRST],
            nap: None,
            longest,
            extends: 0,
        }
    }

    pub fn step(&mut self) {
        match self.dice.within(0, 38) {
            0..4 => self.root(),
            4..7 => self.fork(),
            7..12 => self.extend(),
            12..14 => self.rescore(),
            14..18 => self.hear_some(),
            18..22 => self.update(),
            22 => self.refused(),
            23..25 => self.cancel(),
            25 => self.forget(),
            26..28 => self.pause(),
            28..31 => self.resume(),
            31..33 => self.sleep(),
            33..37 => self.wake(),
            37 => self.lose(),
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
        self.branches.push(TestBranch { id, tokens, has_sampled: false, is_busy: false, form: None });
    }

    fn resting(&mut self) -> Option<usize> {
        let resting: Vec<usize> = (0..self.branches.len()).filter(|&at| !self.branches[at].is_busy).collect();
        (!resting.is_empty()).then(|| self.dice.pick(&resting))
    }

    fn fork(&mut self) {
        let Some(at) = self.resting() else { return };
        let TestBranch { id: parent, tokens, has_sampled, form, .. } = &self.branches[at];
        let (tokens, has_sampled, form) = (tokens.clone(), *has_sampled, *form);
        let children = self.engine.fork(*parent, self.dice.within(1, 3) as usize).unwrap();
        let child = |id| TestBranch { id, tokens: tokens.clone(), has_sampled, is_busy: false, form };
        self.branches.extend(children.into_iter().map(child));
    }

    /// An engine that lacks weights is asked for nothing.
    fn lacks_weights(&self) -> bool {
        self.nap.as_ref().is_some_and(|nap| nap.lacks_weights)
    }

    fn extend(&mut self) {
        if self.lacks_weights() {
            return;
        }
        let mut extends: Vec<Extend> = Vec::new();
        for _ in 0..self.dice.within(1, 4) {
            let Some(at) = self.resting() else { break };
            let more = self.dice.within(1, 30) as usize;
            if self.branches[at].tokens.len() + more > self.longest as usize + 200 {
                continue;
            }
            self.extends += 1;
            let (id, before) = (self.branches[at].id, self.branches[at].tokens.clone());
            let given = prompt(u64::from(self.dice.within(3, 4)), more);
            let (params, stop) = (self.params(at), self.stop(more));
            let (extend, how) = match self.dice.within(0, 7) {
                0 => (give(id, given), How::Given),
                1 => (score(id, given), How::Given),
                2 => (Extend::given_as_sampled(id, given, &params, &stop), How::AsSampled(params, stop)),
                _ => {
                    let uniforms = key("script", self.extends);
                    (draw(id, uniforms, params.clone(), stop.clone()), How::Drawn(uniforms, params, stop))
                }
            };
            self.branches[at].is_busy = true;
            self.begun.insert(id, (before, how));
            extends.push(extend);
        }
        self.receiver.start(extends).unwrap();
    }

    /// With penalties and without, with records and without, in a form and in none. No form is that of the branch's
    /// last extend, so that each begins with its extend. Some penalties count what the branch has sampled: only of one
    /// that has sampled nothing another engine can be asked for the same.
    fn params(&mut self, at: usize) -> SamplingParams {
        let records = Records { drawn: true, kept_ids: true, entropy: true, confidence: NonZeroU16::new(7) };
        let recorded = SamplingParams { records, top_logprobs: Some(2), ..params() };
        let chosen = match self.dice.within(0, 2) {
            0 => params(),
            1 => recorded,
            _ if self.branches[at].has_sampled => SamplingParams { repetition_penalty: 1.2, ..recorded },
            _ => SamplingParams { frequency_penalty: 0.7, presence_penalty: 0.3, repetition_penalty: 1.2, ..recorded },
        };
        let number = self.dice.below(10);
        let form = forms().get(number).filter(|_| self.branches[at].form != Some(number)).cloned();
        let chosen = match form {
            Some(form) => {
                self.branches[at].form = Some(number);
                chosen.form(form)
            }
            None => chosen,
        };
        chosen.routes(matches!(self.world.shape, Shape::Mixture))
    }

    /// After so many tokens at most, as the engine can predict or not.
    fn stop(&mut self, most: usize) -> Stop {
        match self.dice.within(0, 3) {
            0 => length(most),
            1 => Stop { tokens: (0..VOCAB).step_by(32).map(TokenId).collect(), ..length(most) },
            _ => unsure(most),
        }
    }

    /// Scores what an extend has added to its branch, in a branch of its own: of this nothing that older weights said
    /// may be taken over.
    fn rescore(&mut self) {
        if self.records.is_empty() || self.lacks_weights() {
            return;
        }
        let Record { before, how, finish } = &self.records[self.dice.below(self.records.len())];
        let (before, tokens) = (before.clone(), finish.sampled_ids().into_owned());
        if tokens.is_empty() {
            return;
        }
        let id = self.engine.root(before.clone()).unwrap();
        let (extend, how) = match how {
            How::Drawn(_, params, stop) | How::AsSampled(params, stop) if self.dice.one_in(2) => {
                let how = How::AsSampled(params.clone(), stop.clone());
                (Extend::given_as_sampled(id, tokens, params, stop), how)
            }
            _ => (score(id, tokens), How::Given),
        };
        let branch = TestBranch { id, tokens: before.clone(), has_sampled: false, is_busy: true, form: None };
        self.branches.push(branch);
        self.begun.insert(id, (before, how));
        self.extends += 1;
        self.receiver.start(vec![extend]).unwrap();
    }

    fn hear_some(&mut self) {
        // Little comes during a pause.
        let patience = Duration::from_millis(if self.engine.is_paused() { 1 } else { 50 });
        (0..self.dice.within(1, 40)).for_each(|_| _ = self.hear(patience));
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
                    let version = |at| version_of_token(&finish.weights, at).expect("the first span begins at 0");
                    let all: Vec<_> = (0..).zip(&finish.tokens).map(|(at, &token)| (token, version(at))).collect();
                    assert_eq!(told, all, "events say what the record says");
                }
                if let Some(branch) = self.branches.iter_mut().find(|branch| branch.id == id) {
                    branch.tokens.extend_from_slice(&finish.tokens);
                    branch.has_sampled |= matches!(how, How::Drawn(..));
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
        let (seeds, scope) = match self.dice.one_in(3) && !self.lacks_weights() {
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
        if self.nap.as_ref().is_some_and(|nap| nap.asleep.weights) {
            let (before, refused) = (self.engine.weights(), self.engine.update_weights(update));
            assert!(refused.unwrap_err().to_string().contains("wake them first"));
            assert_eq!(self.engine.weights(), before);
            return;
        }
        let weights = self.engine.update_weights(update).unwrap();
        assert_eq!(weights.version.0 as usize, self.weights.len());
        assert_eq!(self.engine.weights(), weights);
        self.weights.push(seeds);
        if let Some(nap) = &mut self.nap {
            nap.lacks_weights = false;
        }
        self.note_nap();
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

    fn pause(&mut self) {
        if self.nap.is_none() {
            let mode = self.pause_mode();
            self.engine.pause(mode).unwrap();
            assert!(self.engine.is_paused());
        }
    }

    fn pause_mode(&mut self) -> PauseMode {
        self.dice.pick(&[PauseMode::Abort, PauseMode::Wait, PauseMode::Keep])
    }

    fn resume(&mut self) {
        let resumed = self.engine.resume();
        assert_eq!(resumed.is_ok(), self.nap.is_none(), "{resumed:?}");
        assert_eq!(self.engine.is_paused(), self.nap.is_some());
    }

    /// Gives back weights, or keys and values, or both.
    fn sleep(&mut self) {
        if self.nap.is_some() {
            return;
        }
        let weights = self.dice.pick(&[None, Some(WeightSleep::InHostMemory), Some(WeightSleep::Dropped)]);
        let sleep = Sleep { weights, kv: weights.is_none() || self.dice.one_in(2) };
        let (resumes, mode) = (!self.engine.is_paused(), self.pause_mode());
        self.engine.sleep(sleep, mode).unwrap();
        assert_eq!(self.engine.status().asleep, sleep.parts());
        let lacks_weights = weights == Some(WeightSleep::Dropped);
        self.nap = Some(Nap { asleep: sleep.parts(), lacks_weights, resumes });
    }

    /// Takes again some of what was given back.
    fn wake(&mut self) {
        let Some(nap) = &mut self.nap else { return };
        let parts = SleepParts { weights: self.dice.one_in(2), kv: self.dice.one_in(2) };
        self.engine.wake(parts).unwrap();
        nap.asleep = SleepParts { weights: nap.asleep.weights && !parts.weights, kv: nap.asleep.kv && !parts.kv };
        assert_eq!(self.engine.status().asleep, nap.asleep);
        self.note_nap();
    }

    /// The engine goes on by itself once all is there, if it ran before.
    fn note_nap(&mut self) {
        let Some(nap) = &self.nap else { return };
        let is_over = !nap.asleep.any() && !nap.lacks_weights;
        assert_eq!(self.engine.is_paused(), !(is_over && nap.resumes));
        if is_over {
            self.nap = None;
        }
    }

    /// Loses an engine. One stays.
    fn lose(&mut self) {
        if self.switches.len() > 1 {
            let at = self.dice.below(self.switches.len());
            self.switches.swap_remove(at).end();
        }
    }

    /// Ends everything, and checks every record.
    pub fn end(mut self) {
        if self.nap.is_some() {
            self.engine.wake(SleepParts::ALL).unwrap();
            if let Some(nap) = &mut self.nap {
                nap.asleep = SleepParts::NONE;
            }
            match self.lacks_weights() {
                true => self.update(),
                false => self.note_nap(),
            }
        }
        self.engine.resume().unwrap();
        while self.hear(Duration::from_secs(60)) {}
        assert!(self.begun.is_empty(), "no request is lost");
        assert_eq!(self.records.len() as u64, self.extends);
        let all: Vec<BranchId> = self.branches.iter().map(|branch| branch.id).collect();
        self.engine.prune(&all);
        assert_eq!(self.engine.metrics().unwrap().kv_bytes_held, 0);
        self.records.iter().for_each(|record| record.hold(self.world, &self.weights));
    }
}
