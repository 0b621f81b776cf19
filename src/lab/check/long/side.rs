//! One of the two engines that play a script, turn by turn, and what it told of each branch.

use std::collections::{BTreeMap, HashMap};
use std::task::Poll;
use std::time::Duration;

use super::script::{Name, Order, Round, VOCAB};
use crate::backend::Backend;
use crate::engine::{
    UniformKey, Engine, EngineConfig, EngineHandle, Event, EventReceiver, Extend, ForkKind, Hear, Metrics, SampledToken,
    SamplingParams, Stop, Turn,
};
use crate::error::{Error, Result};
use crate::ids::{BranchId, TokenId};
use crate::model::Decoder;

/// At this temperature all tokens are equally likely to the last bit, so that a uniform names its token, whatever the logits are.
const TEMPERATURE: f32 = 1e20;
/// Takes nothing of a logit, but steps with penalties are planned anew, each of them.
const NO_PENALTY: f32 = 1e-30;

/// A token that was drawn.
pub struct Told {
    /// In which step, from 1 up.
    pub step: u64,
    pub position: u32,
    pub token: TokenId,
    /// Of each token of the vocabulary.
    pub logprobs: Vec<f32>,
}

/// What became of the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    pub all: u64,
    /// Planned anew; the others were the step before, every row one token further.
    pub replanned: u64,
    /// Pages that rows turned in the others.
    pub turned: u64,
}

pub struct Side<B: Backend> {
    engine: Engine<B>,
    handle: EngineHandle,
    receiver: EventReceiver,
    params: SamplingParams,
    run_ahead: bool,
    branches: HashMap<Name, BranchId>,
    /// Those that draw, and where their next token stands.
    drawing: HashMap<BranchId, (Name, u32)>,
    told: BTreeMap<Name, Vec<Told>>,
    /// Of each step, whether it was advanced.
    advanced: Vec<bool>,
    turned: u64,
}

impl<B: Backend> Side<B> {
    /// `replans`: whether no step is made from the one before it.
    pub fn new(backend: B, model: Decoder<B>, config: EngineConfig, replans: bool) -> Result<Self> {
        let run_ahead = config.run_ahead;
        let (engine, handle) = Engine::build(backend, model, None, config)?;
        let params = SamplingParams {
            temperature: TEMPERATURE,
            frequency_penalty: if replans { NO_PENALTY } else { 0.0 },
            top_logprobs: Some(VOCAB),
            ..SamplingParams::default()
        };
        Ok(Side {
            engine,
            receiver: handle.receiver(Hear::Tokens),
            handle,
            params,
            run_ahead,
            branches: HashMap::new(),
            drawing: HashMap::new(),
            told: BTreeMap::new(),
            advanced: Vec::new(),
            turned: 0,
        })
    }

    pub fn metrics(&self) -> &Metrics {
        self.engine.metrics()
    }

    pub fn steps(&self) -> Steps {
        let Metrics { steps, steps_replanned, .. } = *self.metrics();
        Steps { all: steps, replanned: steps_replanned, turned: self.turned }
    }

    /// Whether this step was the one before it, every row one token further.
    pub fn was_advanced(&self, step: u64) -> bool {
        usize::try_from(step).is_ok_and(|step| self.advanced.get(step.wrapping_sub(1)) == Some(&true))
    }

    /// Carries a round out. What each branch drew; of those that were pruned on the way perhaps more on one side than on another.
    pub fn play(&mut self, round: &Round) -> Result<BTreeMap<Name, Vec<Told>>> {
        let mut orders = round.orders.iter().peekable();
        loop {
            let led = self.told.get(&round.leader).map_or(0, Vec::len);
            while let Some((_, order)) = orders.next_if(|(moment, _)| *moment as usize <= led) {
                self.obey(order)?;
            }
            if self.turn()? != Turn::Stepped {
                assert!(orders.peek().is_none(), "the leader draws more tokens than any order waits for");
                let told = std::mem::take(&mut self.told);
                check_told(round, &told)?;
                return Ok(told);
            }
        }
    }

    fn obey(&mut self, order: &Order) -> Result<()> {
        match order {
            Order::Root { name, text } => {
                self.branches.insert(*name, self.handle.root(text.clone())?);
            }
            Order::Fork { at, name } => {
                let forks = self.handle.fork(self.branches[at], 1)?;
                self.branches.insert(*name, forks[0]);
            }
            &Order::Draw { name, position, tokens } => {
                let branch = self.branches[&name];
                let stop = Stop { ignore_eos: true, ..Stop::max_tokens(tokens as usize) };
                self.drawing.insert(branch, (name, position));
                self.receiver.start(vec![Extend::sampled(branch, &self.params, &stop, uniforms(name))])?;
            }
            Order::Prune(name) => self.handle.discard(&[self.branches[name]]),
            Order::Release(name) => self.handle.release(&[self.branches[name]]),
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<Turn> {
        let before = self.steps();
        let turn = self.engine.turn()?;
        let after = self.steps();
        let submitted = after.all > before.all;
        if submitted {
            self.advanced.push(after.replanned == before.replanned);
        }
        // Where steps run ahead, what is told was drawn by the step before the one that was submitted.
        let step = after.all - u64::from(submitted && self.run_ahead);
        while let Poll::Ready(Some(event)) = self.receiver.poll(Duration::ZERO) {
            self.note(event, step)?;
        }
        Ok(turn)
    }

    fn note(&mut self, event: Event, step: u64) -> Result<()> {
        match event {
            Event::Tokens { branch, tokens, .. } => {
                tokens.into_iter().for_each(|sampled| self.note_token(branch, sampled, step));
                Ok(())
            }
            Event::Finished { branch, .. } => {
                self.drawing.remove(&branch);
                Ok(())
            }
            Event::Failed { error, .. } => Err(error),
        }
    }

    fn note_token(&mut self, branch: BranchId, sampled: SampledToken, step: u64) {
        let SampledToken { token, top, .. } = sampled;
        let (name, next) = self.drawing.get_mut(&branch).expect("it was begun, and has not ended");
        let (name, position) = (*name, *next);
        *next += 1;
        let mut logprobs = vec![f32::NAN; VOCAB];
        top.iter().for_each(|&(token, logprob)| logprobs[token.ix()] = logprob);
        let told = Told { step, position, token, logprobs };
        // The row that drew it stands one position before it, and began a page there.
        let page_tokens = u32::try_from(self.handle.facts().page_tokens).expect("pages are small");
        let began_page = (position - 1).is_multiple_of(page_tokens);
        self.told.entry(name).or_default().push(told);
        self.turned += u64::from(began_page && self.was_advanced(step));
    }
}

/// Every branch that was not pruned has drawn all that it was told to.
fn check_told(round: &Round, told: &BTreeMap<Name, Vec<Told>>) -> Result<()> {
    let is_pruned =
        |name: Name| round.orders.iter().any(|(_, order)| matches!(order, Order::Prune(other) if *other == name));
    let mut expected = BTreeMap::<Name, usize>::new();
    for (_, order) in &round.orders {
        if let &Order::Draw { name, tokens, .. } = order {
            *expected.entry(name).or_default() += tokens as usize;
        }
    }
    for (&name, &expected) in expected.iter().filter(|(name, _)| !is_pruned(**name)) {
        let found = told.get(&name).map_or(0, Vec::len);
        if found != expected {
            let what = format!("in the long decode, branch {} drew {found} of {expected} tokens", name.0);
            return Err(Error::Internal(what));
        }
    }
    Ok(())
}

fn uniforms(name: Name) -> UniformKey {
    UniformKey::root(0, "long").child(ForkKind::Sample, u64::from(name.0))
}

/// The token that every engine draws there.
pub fn named(name: Name, position: u32) -> TokenId {
    TokenId::new((uniforms(name).uniform(position) * VOCAB as f64) as usize)
}
