//! Runs a script on one of the two engines, turn by turn, and collects the tokens of each branch.

use std::collections::{BTreeMap, HashMap};
use std::task::Poll;
use std::time::Duration;

use super::script::{BranchName, ScriptAction, ScriptRound, VOCAB};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Event, EventReceiver, Extend, ForkKind, Hear, Metrics, SampledToken,
    SamplingParams, Stop, Turn, UniformKey,
};
use offshoot_model::StepRunner;

/// At this temperature all tokens are equally likely to the last bit, so that the random number determines the token,
/// whatever the logits are.
const TEMPERATURE: f32 = 1e20;
/// Too small to change a logit, but every step with a penalty is planned from scratch.
const NO_PENALTY: f32 = 1e-30;

/// A sampled token, as reported by the engine.
pub struct ReportedToken {
    /// The number of its step, from 1.
    pub step: u64,
    pub position: u32,
    pub token: TokenId,
    /// Log-probability of each token of the vocabulary.
    pub logprobs: Vec<f32>,
}

/// Counts of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    pub all: u64,
    /// Steps planned from scratch; the others were the previous step advanced by a token.
    pub replanned: u64,
    /// New pages started by rows of advanced steps.
    pub turned: u64,
}

pub struct ScriptPlayer {
    engine: Engine,
    handle: EngineHandle,
    receiver: EventReceiver,
    params: SamplingParams,
    run_ahead: bool,
    branches: HashMap<BranchName, BranchId>,
    /// Running branches, and the position of their next token.
    drawing: HashMap<BranchId, (BranchName, u32)>,
    told: BTreeMap<BranchName, Vec<ReportedToken>>,
    /// For each step, whether it was advanced.
    advanced: Vec<bool>,
    turned: u64,
}

impl ScriptPlayer {
    /// `replans`: whether every step is planned from scratch.
    pub fn new(model: Box<dyn StepRunner>, config: EngineConfig, replans: bool) -> Result<Self> {
        let run_ahead = config.run_ahead;
        let (engine, handle) = Engine::build(model, None, config)?;
        let params = SamplingParams {
            temperature: TEMPERATURE,
            frequency_penalty: if replans { NO_PENALTY } else { 0.0 },
            top_logprobs: Some(VOCAB),
            ..SamplingParams::default()
        };
        Ok(ScriptPlayer {
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

    pub fn steps(&self) -> StepCounts {
        let Metrics { steps, steps_replanned, .. } = *self.metrics();
        StepCounts { all: steps, replanned: steps_replanned, turned: self.turned }
    }

    /// Whether this step was the previous one advanced by a token.
    pub fn was_advanced(&self, step: u64) -> bool {
        usize::try_from(step).is_ok_and(|step| self.advanced.get(step.wrapping_sub(1)) == Some(&true))
    }

    /// Runs a round and returns the tokens of each branch; for pruned branches, the two sides may differ in the number
    /// of tokens.
    pub fn play(&mut self, round: &ScriptRound) -> Result<BTreeMap<BranchName, Vec<ReportedToken>>> {
        let mut orders = round.orders.iter().peekable();
        loop {
            let led = self.told.get(&round.leader).map_or(0, Vec::len);
            while let Some((_, order)) = orders.next_if(|(moment, _)| *moment as usize <= led) {
                self.act(order)?;
            }
            if self.turn()? != Turn::Stepped {
                assert!(orders.peek().is_none(), "the leader samples more tokens than any order waits for");
                let told = std::mem::take(&mut self.told);
                check_told(round, &told)?;
                return Ok(told);
            }
        }
    }

    fn act(&mut self, order: &ScriptAction) -> Result<()> {
        match order {
            ScriptAction::Root { name, text } => {
                self.branches.insert(*name, self.handle.root(text.clone())?);
            }
            ScriptAction::Fork { at, name } => {
                let forks = self.handle.fork(self.branches[at], 1)?;
                self.branches.insert(*name, forks[0]);
            }
            &ScriptAction::Draw { name, position, tokens } => {
                let branch = self.branches[&name];
                let stop = Stop { ignore_eos: true, ..Stop::max_tokens(tokens as usize) };
                self.drawing.insert(branch, (name, position));
                self.receiver.start(vec![Extend::sampled(branch, &self.params, &stop, uniforms(name))])?;
            }
            ScriptAction::Prune(name) => self.handle.prune(&[self.branches[name]]),
            ScriptAction::Release(name) => self.handle.release(&[self.branches[name]]),
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
        // With run-ahead, reported tokens were sampled by the step before the submitted one.
        let step = after.all - u64::from(submitted && self.run_ahead);
        while let Poll::Ready(Some(event)) = self.receiver.poll(Duration::ZERO) {
            self.note(event, step)?;
        }
        Ok(turn)
    }

    fn note(&mut self, event: Event, step: u64) -> Result<()> {
        match event {
            Event::Tokens { id: branch, tokens, .. } => {
                tokens.into_iter().for_each(|sampled| self.note_token(branch, sampled, step));
                Ok(())
            }
            Event::Finished { id: branch, .. } => {
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
        let told = ReportedToken { step, position, token, logprobs };
        // The row that sampled it is one position earlier, and started a page there.
        let page_tokens = u32::try_from(self.handle.facts().page_tokens).expect("pages are small");
        let began_page = (position - 1).is_multiple_of(page_tokens);
        self.told.entry(name).or_default().push(told);
        self.turned += u64::from(began_page && self.was_advanced(step));
    }
}

/// Checks that every branch that was not pruned has all of its tokens.
fn check_told(round: &ScriptRound, told: &BTreeMap<BranchName, Vec<ReportedToken>>) -> Result<()> {
    let is_pruned = |name: BranchName| {
        round.orders.iter().any(|(_, order)| matches!(order, ScriptAction::Prune(other) if *other == name))
    };
    let mut expected = BTreeMap::<BranchName, usize>::new();
    for (_, order) in &round.orders {
        if let &ScriptAction::Draw { name, tokens, .. } = order {
            *expected.entry(name).or_default() += tokens as usize;
        }
    }
    for (&name, &expected) in expected.iter().filter(|(name, _)| !is_pruned(**name)) {
        let found = told.get(&name).map_or(0, Vec::len);
        if found != expected {
            let what = format!("in the long decode, branch {} sampled {found} of {expected} tokens", name.0);
            return Err(Error::Internal(what));
        }
    }
    Ok(())
}

fn uniforms(name: BranchName) -> UniformKey {
    UniformKey::root(0, "long").child(ForkKind::Sample, u64::from(name.0))
}

/// The token that every engine must sample at this position.
pub fn named(name: BranchName, position: u32) -> TokenId {
    TokenId::new((uniforms(name).uniform(position) * VOCAB as f64) as usize)
}
