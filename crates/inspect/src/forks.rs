//! Forks of one text at every token offset, in random groups, steps and pools, while others are evicted, swapped to
//! host memory and resumed: each has the tokens and log-probabilities, to the last bit, of an engine that computes it
//! alone from its first token. On a device that is not batch-invariant by itself this holds in deterministic mode.

use std::collections::HashMap;
use std::fmt;
use std::task::Poll;
use std::time::Duration;

use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Engine, EngineConfig, EngineFacts, EngineHandle, Event, Extend, Finish, ForkKind, PoolSize, SamplingParams, Stop,
    Turn, UniformKey,
};
use offshoot_model::StepRunner;

/// Tokens that a fork scores, and of these the ones at first; only every `DRAWS`th offset's fork draws behind them.
const OWN: usize = 5;
const AT_FIRST: usize = 3;
const DRAWS: usize = 3;

/// Tokens of the text, if the model's context has room for them.
pub const FORKED_TOKENS: usize = 300;

/// No draw but the shortest ones ends with it.
const STOP: TokenId = TokenId(0);

/// Short draws at a time, after which the engine expects that draws are short, and lets in more branches than fit.
const SHORT_DRAWS: usize = 40;
/// Rounds between them.
const MISLED: usize = 2;

/// What was compared, printable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForkReport {
    /// Forks of all scripts, and the log-probabilities of their tokens.
    pub forks: usize,
    pub values: usize,
    /// Log-probabilities of `values` with another token or another bit.
    pub different: usize,
    /// Position of the first difference between a fork and a fresh computation, or None.
    pub first: Option<String>,
    /// Branches that were preempted, came back from host memory, and tokens that were computed again.
    pub preempted: u64,
    pub swapped: u64,
    pub recomputed: u64,
}

impl ForkReport {
    pub fn passes(&self) -> bool {
        self.different == 0 && self.values > 0
    }
}

impl fmt::Display for ForkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { forks, values, different, first, preempted, swapped, recomputed } = self;
        write!(
            f,
            "{different} of {values} log-probabilities of {forks} forks differ from a fresh computation; {preempted} \
             preempted, {swapped} swapped in, {recomputed} tokens computed again"
        )?;
        first.as_ref().map_or(Ok(()), |first| write!(f, "; the first: {first}"))
    }
}

/// Forks a text of `tokens` tokens by the scripts of `seeds`, each with five sizes of steps, pools and host memory.
/// `deterministic`: the device's mode.
pub fn forks(mut model: Box<dyn StepRunner>, tokens: usize, seeds: u64, deterministic: bool) -> Result<ForkReport> {
    // A page and a half, so that branches grow by pages: those that were let in then do not fit.
    let drawn = model.facts().page_tokens as usize * 3 / 2;
    let text = ForkedText::new(model.config().vocab, tokens.min(model.config().context - OWN - drawn), drawn);
    let usual = EngineConfig { deterministic, check_plans: true, swap_at_any_cost: true, ..EngineConfig::default() };
    // Whole texts in one step, one branch at a time.
    let alone = EngineConfig { max_branches: 1, step_rows: text.tokens.len() + OWN + drawn, ..usual.clone() };
    let mut player = Player::new(model, alone)?;
    let expected = player.alone(&text)?;
    let facts = player.handle.facts().clone();
    model = player.end();
    let mut report = ForkReport::default();
    for seed in 0..seeds {
        let mut dice = Dice::new(seed);
        for corner in corners(&mut dice, &facts, &usual, &text) {
            let mut player = Player::new(model, corner.clone())?;
            let found = player.script(&text, &mut dice)?;
            let metrics = player.engine.metrics();
            report.preempted += metrics.preemptions;
            report.swapped += metrics.swapped_in;
            report.recomputed += metrics.tokens_recomputed;
            for (at, expected) in &expected {
                let found = found.get(at).ok_or_else(|| Error::Internal(format!("no fork at {at} has ended")))?;
                report.see(expected, found, || {
                    let EngineConfig { step_rows, max_branches, swap_bytes, .. } = corner;
                    format!(
                        "at offset {at}, seed {seed}, {step_rows} rows a step, {max_branches} branches, {swap_bytes} \
                         bytes of host memory"
                    )
                });
            }
            model = player.end();
        }
    }
    Ok(report)
}

/// Steps of several sizes, pools from one that has room for everything down to few pages more than the longest branch
/// takes, with no host memory, little and much.
fn corners(dice: &mut Dice, facts: &EngineFacts, usual: &EngineConfig, text: &ForkedText) -> Vec<EngineConfig> {
    let least = facts.path_pages(text.tokens.len() + OWN, text.drawn);
    let little = 4 * facts.page_bytes + 2 * facts.state_bytes;
    let shapes = [
        (256, 8 * least, 0),
        (64, least + least / 3, 1 << 30),
        (37, least + least / 4, 0),
        (16, least + 4, 1 << 30),
        (5, least + least / 2, little),
    ];
    let mut config = |(step_rows, pages, swap_bytes): (usize, usize, usize)| EngineConfig {
        step_rows,
        max_branches: dice.within(3, 30) as usize,
        pool: PoolSize::Share { of_free: 0.5, at_most: pages * facts.page_bytes },
        swap_bytes,
        run_ahead: facts.is_async,
        ..usual.clone()
    };
    shapes.into_iter().map(&mut config).collect()
}

/// The text, and what its forks add to it.
struct ForkedText {
    tokens: Vec<TokenId>,
    vocab: usize,
    /// Tokens of a draw.
    drawn: usize,
}

/// The tokens of a fork and their log-probabilities: its scored ones, then its drawn ones.
type ForkTokens = Vec<(TokenId, f32)>;

impl ForkedText {
    fn new(vocab: usize, len: usize, drawn: usize) -> Self {
        Self { tokens: Dice::new(1000).text(len, vocab), vocab, drawn }
    }

    fn own(&self, at: usize) -> Vec<TokenId> {
        Dice::new(2000 + at as u64).text(OWN, self.vocab)
    }

    fn draw(&self, branch: BranchId, at: usize) -> Extend {
        let params = SamplingParams {
            temperature: 0.9,
            top_p: 0.98,
            logit_bias: vec![(STOP, -1e4)],
            ..SamplingParams::default()
        };
        // As far as the engine knows it may end at any token.
        let stop = Stop { ignore_eos: true, tokens: vec![STOP], ..Stop::max_tokens(self.drawn) };
        let uniforms = UniformKey::root(0, "forks").child(ForkKind::Sample, at as u64);
        Extend::sampled(branch, &params, &stop, uniforms)
    }

    /// The part with this number of what is done to the fork at `at`; `None` behind the last.
    fn part(&self, branch: BranchId, at: usize, number: usize) -> Option<Extend> {
        match number {
            0 => Some(Extend::given(branch, self.own(at)[..AT_FIRST].to_vec(), Some(0))),
            1 => Some(Extend::given(branch, self.own(at)[AT_FIRST..].to_vec(), Some(0))),
            2 if at.is_multiple_of(DRAWS) => Some(self.draw(branch, at)),
            _ => None,
        }
    }
}

/// A fork between two parts.
#[derive(Clone, Copy)]
struct RestingFork {
    at: usize,
    branch: BranchId,
    next: usize,
}

/// An engine that works when it is asked to.
struct Player {
    engine: Engine,
    handle: EngineHandle,
}

impl Player {
    fn new(model: Box<dyn StepRunner>, config: EngineConfig) -> Result<Self> {
        let (engine, handle) = Engine::build(model, None, config)?;
        Ok(Self { engine, handle })
    }

    fn end(self) -> Box<dyn StepRunner> {
        self.engine.into_model()
    }

    /// Every fork by itself; nothing is left of those before it.
    fn alone(&mut self, text: &ForkedText) -> Result<HashMap<usize, ForkTokens>> {
        let mut all = HashMap::new();
        for at in 1..=text.tokens.len() {
            let branch = self.handle.root(text.tokens[..at].to_vec())?;
            let mut found = ForkTokens::new();
            for number in 0.. {
                let Some(extend) = text.part(branch, at, number) else { break };
                found.extend(self.finish(vec![extend])?.into_iter().flat_map(tokens_of));
            }
            self.handle.prune(&[branch]);
            all.insert(at, found);
        }
        Ok(all)
    }

    /// All forks in groups of random size and order, part by part.
    fn script(&mut self, text: &ForkedText, dice: &mut Dice) -> Result<HashMap<usize, ForkTokens>> {
        let mut offsets: Vec<usize> = (1..=text.tokens.len()).collect();
        let mut resting: Vec<RestingFork> = Vec::new();
        let mut all: HashMap<usize, ForkTokens> = HashMap::new();
        for round in 0.. {
            if offsets.is_empty() && resting.is_empty() {
                break;
            }
            if round % MISLED == 0 {
                self.mislead(text)?;
            }
            let mut group = Vec::new();
            for _ in 0..offsets.len().min(dice.within(1, 20) as usize) {
                let at = offsets.swap_remove(dice.within(1, count(offsets.len())) as usize - 1);
                group.push(RestingFork { at, branch: self.handle.root(text.tokens[..at].to_vec())?, next: 0 });
            }
            let goes_on = if group.is_empty() { resting.len() } else { dice.within(0, count(resting.len())) as usize };
            for _ in 0..goes_on {
                group.push(resting.swap_remove(dice.within(1, count(resting.len())) as usize - 1));
            }
            let extend = |fork: &RestingFork| text.part(fork.branch, fork.at, fork.next).expect("it has parts left");
            let extends: Vec<Extend> = group.iter().map(extend).collect();
            for (mut fork, finish) in group.into_iter().zip(self.finish(extends)?) {
                all.entry(fork.at).or_default().extend(tokens_of(finish));
                fork.next += 1;
                match text.part(fork.branch, fork.at, fork.next) {
                    Some(_) => resting.push(fork),
                    None if dice.one_in(2) => self.handle.release(&[fork.branch]),
                    None => self.handle.prune(&[fork.branch]),
                }
            }
        }
        Ok(all)
    }

    /// Draws that end at once, though they might be long.
    fn mislead(&mut self, text: &ForkedText) -> Result<()> {
        let root = self.handle.root(text.tokens[..1].to_vec())?;
        let branches = self.handle.fork(root, SHORT_DRAWS)?;
        let params = SamplingParams { logit_bias: vec![(STOP, 1e4)], ..SamplingParams::default() };
        let stop = Stop { tokens: vec![STOP], ..Stop::max_tokens(2 * text.drawn) };
        let uniforms = UniformKey::root(0, "short");
        let draw = |&branch: &BranchId| Extend::sampled(branch, &params, &stop, uniforms);
        self.finish(branches.iter().map(draw).collect())?;
        self.handle.prune(&branches);
        self.handle.prune(&[root]);
        Ok(())
    }

    fn finish(&mut self, extends: Vec<Extend>) -> Result<Vec<Finish>> {
        let places: HashMap<BranchId, usize> =
            extends.iter().enumerate().map(|(place, extend)| (extend.branch, place)).collect();
        let mut finished: Vec<Option<Finish>> = vec![None; extends.len()];
        let mut receiver = self.handle.start(extends)?;
        while finished.iter().any(Option::is_none) {
            let turn = self.engine.turn()?;
            while let Poll::Ready(Some(event)) = receiver.poll(Duration::ZERO) {
                match event {
                    Event::Tokens { .. } => {}
                    Event::Finished { id: branch, finish } => finished[places[&branch]] = Some(finish),
                    Event::Failed { error, .. } => return Err(error),
                }
            }
            if turn != Turn::Stepped && finished.iter().any(Option::is_none) {
                return Err(Error::Internal("an engine with work has nothing to do".to_owned()));
            }
        }
        // Until it rests, so that it checks its tree.
        while self.engine.turn()? == Turn::Stepped {}
        Ok(finished.into_iter().flatten().collect())
    }
}

fn tokens_of(finish: Finish) -> impl Iterator<Item = (TokenId, f32)> {
    let logprobs = finish.logprobs().to_vec();
    finish.tokens.into_iter().zip(logprobs)
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("some hundred forks")
}

impl ForkReport {
    fn see(&mut self, expected: &ForkTokens, found: &ForkTokens, place: impl FnOnce() -> String) {
        self.forks += 1;
        self.values += expected.len();
        let same = |((a, x), (b, y)): (&(TokenId, f32), &(TokenId, f32))| a == b && x.to_bits() == y.to_bits();
        let different = expected.iter().zip(found).filter(|&pair| !same(pair)).count();
        let different = different + expected.len().abs_diff(found.len());
        if different > 0 {
            self.different += different;
            let at = expected.iter().zip(found).position(|pair| !same(pair)).unwrap_or(expected.len().min(found.len()));
            let (was, is) = (expected.get(at), found.get(at));
            self.first.get_or_insert_with(|| format!("token {at} of the fork {}: {is:?}, not {was:?}", place()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_every_token_counts() {
        let tokens = |logprob: f32| vec![(TokenId(1), -1.0), (TokenId(2), logprob)];
        let mut report = ForkReport::default();
        assert!(!report.passes(), "nothing was compared");
        report.see(&tokens(-2.0), &tokens(-2.0), String::new);
        assert!(report.passes());
        report.see(&tokens(-2.0), &tokens((-2.0f32).next_up()), || "there".to_owned());
        report.see(&tokens(-2.0), &tokens(-2.0)[..1].to_vec(), String::new);
        assert_eq!((report.different, report.values, report.forks), (2, 6, 3));
        assert!(report.to_string().contains("token 1 of the fork there"), "{report}");
    }
}
