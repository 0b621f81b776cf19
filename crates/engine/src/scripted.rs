//! An engine without a model, in which a closure answers each extend. Search drivers are tested on it. It behaves as
//! the real engine in branches, events, cancelling and stopping, and has no pages.
//!
//! Its tokens are bytes: `TokenId(b)` is the byte `b`, so that prompts and answers are plain text on both sides.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::adapters::{AdapterLimits, Adapters};
use crate::adapting::nothing_staged;
use crate::copies::CopyMemory;
use crate::events::EventSender;
use crate::facts::EngineFacts;
use crate::handle::{Command, EngineHandle, live};
use crate::live::{LiveMetrics, LivePlace};
use crate::metrics::Metrics;
use crate::prefix_costs::PrefixCosts;
use crate::ready::{FormSource, ReadyExtend};
use crate::records::TokenRecords;
use crate::request::{Continuation, Event, Finish, FinishReason, PositionValues, SamplingParams, Scoring};
use crate::said::Said;
use crate::status::{PauseMode, StatusPlace};
use crate::token_path::TokenPath;
use crate::updates::{Draining, not_paused, weights_lost};
use crate::weights::{Versions, Weights};
use offshoot_backend::{Drawn, MOST_RANK, Records, SampledToken};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId, WeightVersion};
use offshoot_kv::PageGroups;
use offshoot_model::{Sleep, WeightSleep};

/// A script's input: the branch to extend.
pub struct ScriptedCall<'a> {
    pub branch: BranchId,
    /// The whole branch, prompt first.
    pub tokens: &'a [TokenId],
    pub continuation: &'a Continuation,
}

impl ScriptedCall<'_> {
    /// The whole branch as text.
    pub fn text(&self) -> String {
        text_of(self.tokens)
    }
}

/// A script's reply, returned unchanged: the script itself applies stops and limits. Of an extend that goes on behind
/// what another engine has sampled for it, that stands for as many tokens of the reply.
#[derive(Clone, Debug)]
pub struct ScriptedReply {
    tokens: Vec<TokenId>,
    logprobs: Vec<f32>,
    values: Vec<Box<[f32]>>,
    reason: FinishReason,
    end: ReplyEnd,
}

/// What follows the tokens of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyEnd {
    Finishes,
    /// Nothing, until the branch is cancelled.
    Waits,
    Fails,
    /// An update fails midway.
    LosesWeights,
}

impl ScriptedReply {
    /// Samples this text, one token a byte, each with log-probability -1, then ends the text.
    pub fn text(text: &str) -> Self {
        let tokens = tokens_of(text);
        ScriptedReply {
            logprobs: vec![-1.0; tokens.len()],
            values: Vec::new(),
            tokens,
            reason: FinishReason::EndOfText,
            end: ReplyEnd::Finishes,
        }
    }

    /// Scores a `Continuation::Given`: one log-probability for each of its tokens.
    pub fn scores(logprobs: Vec<f32>) -> Self {
        ScriptedReply {
            tokens: Vec::new(),
            logprobs,
            values: Vec::new(),
            reason: FinishReason::Given,
            end: ReplyEnd::Finishes,
        }
    }

    /// A scorer's values, for each position that a [`Scoring::Values`] asks for, in their order.
    pub fn values(values: Vec<Vec<f32>>) -> Self {
        let values = values.into_iter().map(Vec::into_boxed_slice).collect();
        ScriptedReply { values, ..ScriptedReply::scores(Vec::new()) }
    }

    /// Every token has this log-probability.
    pub fn logprob(mut self, logprob: f32) -> Self {
        self.logprobs.fill(logprob);
        self
    }

    pub fn reason(mut self, reason: FinishReason) -> Self {
        self.reason = reason;
        self
    }

    /// The branch samples its text and then fails.
    pub fn failing(mut self) -> Self {
        self.end = ReplyEnd::Fails;
        self
    }

    /// The branch samples its text, and then the engine loses its weights, as by an update that fails midway: what is
    /// in progress fails, and so does what is started until weights are updated.
    pub fn losing_weights(mut self) -> Self {
        self.end = ReplyEnd::LosesWeights;
        self
    }

    /// The branch samples its text and then waits to be cancelled.
    pub fn until_cancelled(mut self) -> Self {
        self.end = ReplyEnd::Waits;
        self
    }
}

/// The bytes of `text` as tokens.
pub fn tokens_of(text: &str) -> Vec<TokenId> {
    text.bytes().map(|byte| TokenId(u32::from(byte))).collect()
}

/// The text of byte tokens; invalid UTF-8 is replaced.
pub fn text_of(tokens: &[TokenId]) -> String {
    let bytes: Vec<u8> = tokens.iter().map(|token| u8::try_from(token.0).unwrap_or(b'?')).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl EngineHandle {
    /// A handle whose extends are answered by `script`. Branches that are extended together grow by a token each in
    /// turn. A panic of the script stops the engine, as in the real one.
    pub fn scripted(script: impl FnMut(&ScriptedCall<'_>) -> ScriptedReply + Send + 'static) -> EngineHandle {
        Self::scripted_with(|facts| facts, script)
    }

    /// A handle as `scripted` makes it, of an engine whose facts `change` has changed.
    pub fn scripted_with(
        change: impl FnOnce(EngineFacts) -> EngineFacts,
        script: impl FnMut(&ScriptedCall<'_>) -> ScriptedReply + Send + 'static,
    ) -> EngineHandle {
        let facts = change(EngineFacts {
            context: 1 << 20,
            vocab: 256,
            bos: None,
            eos: vec![TokenId(0)],
            device: "scripted".to_owned(),
            arithmetic: "scripted".to_owned(),
            batch_invariant: true,
            is_async: false,
            page_tokens: 16,
            page_bytes: 0,
            kv_bytes_per_token: 0,
            // Room for the context; what is held in it is not counted.
            pool_pages: 1 << 16,
            copies: CopyMemory::default(),
            window_pages: None,
            page_groups: PageGroups::ONE,
            max_branches: 128,
            state_bytes: 0,
            states: 0,
            keeps_routes: false,
            values: None,
            adapters: AdapterLimits { most: 4, rank: MOST_RANK },
            prefix_costs: PrefixCosts::default(),
            replicas: 1,
        });
        let (handle, commands, exit_reason) =
            EngineHandle::new(facts, Weights::first(None), None, FormSource::Scripted);
        let (live_place, status) = (handle.live_place(), handle.status_place());
        let adapters = Adapters::new(handle.facts().adapters);
        let mut engine = Scripted {
            script,
            branches: HashMap::new(),
            growing: Vec::new(),
            metrics: Metrics::default(),
            live: live_place,
            status,
            draining: Draining::default(),
            adapters,
            kept_adapters: BTreeSet::new(),
            held: Vec::new(),
        };
        std::thread::spawn(move || {
            live(&exit_reason, || {
                engine.run(&commands);
                Ok(())
            });
        });
        handle
    }
}

struct Scripted<F> {
    script: F,
    branches: HashMap<BranchId, TokenPath>,
    growing: Vec<ScriptedBranch>,
    metrics: Metrics,
    live: LivePlace,
    status: StatusPlace,
    draining: Draining,
    adapters: Adapters,
    /// Versions that branches of other engines have.
    kept_adapters: BTreeSet<AdapterVersion>,
    /// Extends that were started during a pause, and what was said of each.
    held: Vec<(ReadyExtend, Said, EventSender)>,
}

/// A branch in progress.
struct ScriptedBranch {
    branch: BranchId,
    reply: ScriptedReply,
    params: SamplingParams,
    /// Its tokens so far; those that another engine has sampled come first.
    said: Said,
    /// Those in force when it began, which hold for all that is sampled here.
    weights: WeightVersion,
    events: EventSender,
}

impl<F: FnMut(&ScriptedCall<'_>) -> ScriptedReply> Scripted<F> {
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            let rests = |growing: &ScriptedBranch| growing.reply.end == ReplyEnd::Waits && growing.is_at_end();
            let waits = !self.status.lock().makes_steps() || self.growing.iter().all(rests);
            let command = match waits {
                true => commands.recv().map_err(|_| TryRecvError::Disconnected),
                false => commands.try_recv(),
            };
            match command {
                Ok(command) => self.execute(command),
                Err(TryRecvError::Empty) => self.step(),
                Err(TryRecvError::Disconnected) => return,
            }
            if self.growing.is_empty() {
                self.draining.end();
            }
            let (running, branches) = (self.growing.len(), self.branches.len());
            self.live.publish(LiveMetrics { metrics: self.metrics.clone(), running, branches, ..Default::default() });
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Root { place, mut path, .. } => {
                self.adapters.resolve(&mut path);
                self.branches.insert(place.branch, path);
            }
            Command::Fork { at, children } => {
                let paths =
                    self.branches.get_mut(&at).map(|path| children.into_iter().map(|child| (child, path.fork())));
                let paths: Vec<(BranchId, TokenPath)> = paths.into_iter().flatten().collect();
                self.branches.extend(paths);
            }
            Command::Start { extends, events } => {
                extends.into_iter().for_each(|extend| self.take(extend, Said::default(), events.clone()));
            }
            Command::Continue { extend, said, events } => self.take(extend, said, events),
            Command::Cancel { branches } => self.cancel(&branches),
            Command::Release { branches } | Command::Prune { branches } => {
                self.cancel(&branches);
                self.branches.retain(|branch, _| !branches.contains(branch));
            }
            Command::Metrics { reply } => drop(reply.send(self.metrics.clone())),
            Command::Pin { .. } => {} // Nothing is ever given up.
            Command::CacheMap { reply, .. } => drop(reply.send(Vec::new())),
            Command::Evict { reply, .. } => drop(reply.send(false)),
            Command::Lend(_) => {} // Its reply is closed: there is nothing to lend.
            Command::Borrow { reply, .. } => drop(reply.send(false)),
            Command::Pause { pause, reply } => {
                self.status.lock().begin_pause(pause);
                if pause.mode() == PauseMode::Abort {
                    let branches: Vec<BranchId> = self.growing.iter().map(|growing| growing.branch).collect();
                    self.cut(&branches, &FinishReason::Aborted);
                }
                if pause.mode() == PauseMode::Keep {
                    self.draining.stand();
                    drop(reply.send(Ok(())));
                } else {
                    self.draining.add(reply);
                }
            }
            Command::Resume { reply } => {
                let resumed = self.resume();
                drop(reply.send(resumed));
            }
            // It has no weights: those of the script count as others.
            Command::UpdateWeights { update, reply, .. } => {
                let is_updatable = self.status.lock().check_updatable();
                if let Err(error) = is_updatable {
                    return drop(reply.send(Err(error))); // Who asked may be gone.
                }
                let weights = self.status.weights_after(&update);
                {
                    let mut status = self.status.lock();
                    (status.weights, status.lacks_weights) = (weights.clone(), false);
                }
                self.wake_up_whole();
                drop(reply.send(Ok(weights)));
            }
            Command::FailAll { why } => self.fail_all(&why),
            Command::SetLabel { label, reply } => {
                let _ = reply.send(self.status.set_label(label)); // Who asked may be gone.
            }
            Command::Sleep { sleep, reply } => {
                let slept = self.sleep(sleep);
                drop(reply.send(slept));
            }
            Command::Wake { parts, reply } => {
                {
                    let mut status = self.status.lock();
                    status.asleep = status.asleep.without(parts);
                }
                self.wake_up_whole();
                drop(reply.send(Ok(())));
            }
            // A script does not see which a branch has.
            Command::SetAdapter { branches, adapter } => {
                let adapter = adapter.map(|version| self.adapters.resolved(version).unwrap_or(version));
                for branch in branches {
                    self.branches.get_mut(&branch).into_iter().for_each(|path| path.set_adapter(adapter));
                }
            }
            Command::KeepAdapters { versions } => {
                self.kept_adapters = versions;
                self.note_adapters();
            }
            Command::StageAdapter { new, reply } => {
                self.note_adapters();
                let slot = self.adapters.staging_slot(&new, &BTreeSet::new());
                let staged = slot.map(|slot| self.adapters.stage(new.loaded(slot)));
                drop(reply.send(staged));
            }
            Command::DropAdapter => drop(self.adapters.drop_staged()),
            Command::PutAdapter { reply } => {
                let put = self.adapters.put().ok_or_else(nothing_staged);
                self.note_adapters();
                if let Ok(put) = &put {
                    self.displace(&put.name);
                }
                drop(reply.send(put));
            }
            Command::UnloadAdapter { name, reply } => {
                let unloaded = self.adapters.retire(&name);
                self.note_adapters();
                drop(reply.send(unloaded));
            }
        }
    }

    /// Gives up retired adapters that no branch has and that are not kept.
    fn note_adapters(&mut self) {
        let of_branches = self.branches.values().flat_map(|path| path.adapters().versions());
        let kept = self.kept_adapters.iter().filter_map(|&version| self.adapters.resolved(version));
        let used: BTreeSet<AdapterVersion> = of_branches.chain(kept).collect();
        for adapter in self.adapters.unused(&used) {
            self.adapters.note_gone(adapter.version, None, &self.kept_adapters);
        }
        self.status.lock().adapters = self.adapters.named();
    }

    /// Has an adapter make way if more are loaded than may be, after `name` was given a new version.
    fn displace(&mut self, name: &str) {
        let Some((displaced, version)) = self.adapters.displaced(name, &BTreeSet::new()) else { return };
        self.branches.values_mut().for_each(|path| path.replace_adapter(displaced.version, version));
        self.adapters.note_gone(displaced.version, Some(version), &self.kept_adapters);
    }

    fn resume(&mut self) -> Result<()> {
        self.status.lock().check_ready("an engine to resume")?;
        self.status.lock().pause = None;
        self.draining.end_early();
        for (extend, said, events) in std::mem::take(&mut self.held) {
            self.start(extend, said, events);
        }
        Ok(())
    }

    /// It has no memory to give back: it only stands still.
    fn sleep(&mut self, sleep: Sleep) -> Result<()> {
        let mut status = self.status.lock();
        status.note_sleep();
        if !status.is_paused() || (status.makes_steps() && !self.growing.is_empty()) {
            return Err(not_paused());
        }
        status.asleep = status.asleep.and(sleep.parts());
        status.lacks_weights |= sleep.weights == Some(WeightSleep::Dropped);
        Ok(())
    }

    /// Resumes an engine that was put to sleep while it ran, once all is there.
    fn wake_up_whole(&mut self) {
        let is_to_resume = self.status.lock().is_to_resume();
        if is_to_resume {
            self.resume().expect("it is awake and has weights");
        }
    }

    /// Starts an extend, at the end of a pause if there is one.
    fn take(&mut self, extend: ReadyExtend, said: Said, events: EventSender) {
        let is_paused = self.status.lock().is_paused();
        match is_paused {
            true => self.held.push((extend, said, events)),
            false => self.start(extend, said, events),
        }
    }

    fn start(&mut self, extend: ReadyExtend, said: Said, events: EventSender) {
        let ReadyExtend { branch, continuation, form: _ } = extend;
        let ready = self.status.lock().check_ready("an engine to sample or score with");
        if let Err(error) = ready {
            events.send(Event::Failed { id: branch, error });
            return;
        }
        let Some(path) = self.branches.get_mut(&branch) else {
            let error = Error::value("branch", "one that lives", branch.to_string());
            events.send(Event::Failed { id: branch, error });
            return;
        };
        if let Err(error) = self.adapters.check(path) {
            events.send(Event::Failed { id: branch, error });
            return;
        }
        let tokens = path.all().into_owned();
        let call = ScriptedCall { branch, tokens: &tokens, continuation: &continuation };
        match &continuation {
            Continuation::Sampled { params, .. } => {
                let (reply, params) = ((self.script)(&call), params.clone());
                said.tokens.iter().for_each(|sampled| path.push_sampled(sampled.token));
                let weights = self.status.lock().weights.version;
                self.growing.push(ScriptedBranch { branch, reply, params, said, weights, events });
            }
            Continuation::Given { tokens: given, scoring } => {
                let scored = scoring.as_ref().map(|_| (self.script)(&call));
                if scored.as_ref().is_some_and(|reply| reply.end == ReplyEnd::Fails) {
                    let error = Error::value("the script", "a branch that goes on", "one that fails");
                    events.send(Event::Failed { id: branch, error });
                    return;
                }
                let (logprobs, values) = scored.map(|reply| (reply.logprobs, reply.values)).unwrap_or_default();
                path.give(given);
                let at: &[u32] = if let Some(Scoring::Values { at }) = scoring { at } else { &[] };
                let values = at.iter().zip(values).map(|(&at, values)| PositionValues { at, values });
                let finish = Finish {
                    text: text_of(given),
                    tokens: given.clone(),
                    logprob: logprobs.iter().copied().map(f64::from).sum(),
                    records: TokenRecords::of_logprobs(logprobs),
                    values: values.collect(),
                    ..Finish::empty(FinishReason::Given)
                };
                events.send(Event::Finished { id: branch, finish });
            }
        }
    }

    /// One token for each branch in progress.
    fn step(&mut self) {
        self.metrics.steps += 1;
        for growing in &mut self.growing {
            if growing.is_at_end() {
                continue;
            }
            let (tokens, weights) = (vec![growing.sampled(growing.said.tokens.len())], growing.weights);
            let text = text_of(&[tokens[0].token]);
            let path = self.branches.get_mut(&growing.branch);
            let adapter = path.as_ref().and_then(|path| path.adapter());
            path.into_iter().for_each(|path| path.push_sampled(tokens[0].token));
            growing.said.add(&tokens, &text, Versions { weights, adapter });
            self.metrics.tokens_sampled += 1;
            if growing.events.hears_tokens() {
                growing.events.send(Event::Tokens { id: growing.branch, tokens, text, weights, adapter });
            }
        }
        if self.growing.iter().any(|growing| growing.is_at_end() && growing.reply.end == ReplyEnd::LosesWeights) {
            self.status.lock().lacks_weights = true;
            return self.fail_all("as the script says");
        }
        self.growing.retain(|growing| {
            let ends = growing.is_at_end() && growing.reply.end != ReplyEnd::Waits;
            match ends {
                true if growing.reply.end == ReplyEnd::Fails => {
                    let error = Error::value("the script", "a branch that goes on", "one that fails");
                    growing.events.send(Event::Failed { id: growing.branch, error });
                }
                true => growing.finish(growing.reply.reason.clone()),
                false => {}
            }
            !ends
        });
    }

    fn fail_all(&mut self, why: &str) {
        for growing in self.growing.drain(..) {
            growing.events.send(Event::Failed { id: growing.branch, error: weights_lost(why) });
        }
    }

    fn cancel(&mut self, branches: &[BranchId]) {
        self.cut(branches, &FinishReason::Cancelled);
    }

    fn cut(&mut self, branches: &[BranchId], reason: &FinishReason) {
        self.held.retain(|(extend, said, events)| {
            let ends = branches.contains(&extend.branch);
            if ends {
                events.send(Event::Finished { id: extend.branch, finish: said.as_finish(reason.clone()) });
            }
            !ends
        });
        self.growing.retain(|growing| {
            let ends = branches.contains(&growing.branch);
            if ends {
                growing.finish(reason.clone());
            }
            !ends
        });
    }
}

impl ScriptedBranch {
    /// Whether it has all tokens of the reply.
    fn is_at_end(&self) -> bool {
        self.said.tokens.len() >= self.reply.tokens.len()
    }

    /// Token number `at` with all that its extend asks for. A scripted token is the only one that could be sampled: it
    /// is alone among the likeliest, its rank is 1, it was drawn with probability 1, the entropy is 0, and the
    /// confidence is its log-probability, negated.
    fn sampled(&self, at: usize) -> SampledToken {
        let (token, logprob) = (self.reply.tokens[at], self.reply.logprobs[at]);
        let tops = self.params.top_logprobs;
        let Records { kept_ids, entropy, confidence, .. } = self.params.recorded();
        let drawn = Drawn { logprob: 0.0, kept: 1, lowest: 0.0, ids: kept_ids.then(|| vec![token]) };
        SampledToken {
            rank: tops.map(|_| NonZeroU32::MIN),
            top: tops.filter(|&tops| tops > 0).map_or_else(Vec::new, |_| vec![(token, logprob)]),
            drawn: self.params.recorded().of_drawn().then_some(drawn),
            entropy: entropy.then_some(0.0),
            confidence: confidence.map(|_| -logprob),
            ..SampledToken::of(token, logprob)
        }
    }

    fn finish(&self, reason: FinishReason) {
        // Of the tokens together: one alone may be a part of a character.
        let text = text_of(&self.said.tokens.iter().map(|sampled| sampled.token).collect::<Vec<_>>());
        let form_ended = self.params.form.is_some() && reason == FinishReason::EndOfText;
        let finish = Finish { text, form_ended, ..self.said.as_finish(reason) };
        self.events.send(Event::Finished { id: self.branch, finish });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use offshoot_model::{SleepParts, TensorsInMemory, UpdateScope};

    use super::*;
    use crate::request::{Extend, SamplingParams, Stop};
    use crate::uniforms::UniformKey;
    use crate::weights::WeightsUpdate;

    fn sampled(branch: BranchId) -> Extend {
        let uniforms = UniformKey::root(0, "item");
        Extend {
            branch,
            continuation: Continuation::Sampled { params: SamplingParams::default(), stop: Stop::default(), uniforms },
        }
    }

    #[test]
    fn branches_grow_as_the_script_says() {
        let engine = EngineHandle::scripted(|call| ScriptedReply::text(&format!("<{}>", call.text().len())));
        let root = engine.root(tokens_of("abc")).unwrap();
        let children = engine.fork(root, 2).unwrap();
        let mut extension = engine.start(children.iter().map(|&child| sampled(child)).collect()).unwrap();
        let mut texts = Vec::new();
        while let Some(event) = extension.next() {
            if let Event::Finished { finish, .. } = event {
                texts.push(finish.text);
            }
        }
        assert_eq!(texts, ["<3>", "<3>"]);
        let mut again = engine.start(vec![sampled(children[0])]).unwrap();
        let last = std::iter::from_fn(|| again.next()).last();
        assert!(matches!(last, Some(Event::Finished { finish, .. }) if finish.text == "<6>"));
        assert_eq!(engine.metrics().unwrap().tokens_sampled, 9);
    }

    #[test]
    fn a_script_has_any_form() {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("no JSON"));
        let root = engine.root(tokens_of("abc")).unwrap();
        let params = SamplingParams::default().form(offshoot_form::Form::JsonObject);
        let extend = Extend::sampled(root, &params, &Stop::default(), UniformKey::root(0, "item"));
        assert_eq!(engine.finish(vec![extend]).unwrap()[0].text, "no JSON");
        assert!(engine.compile_form(&Arc::new(offshoot_form::Form::JsonObject)).unwrap().is_none());
    }

    #[test]
    fn a_held_branch_waits_for_its_cancel() {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("x").until_cancelled());
        let root = engine.root(tokens_of("abc")).unwrap();
        let mut extension = engine.start(vec![sampled(root)]).unwrap();
        assert!(matches!(extension.next(), Some(Event::Tokens { .. })));
        extension.cancel(&[root]);
        let Some(Event::Finished { finish, .. }) = extension.next() else { panic!("cancelled") };
        assert_eq!((finish.reason, finish.text.as_str()), (FinishReason::Cancelled, "x"));
        assert!(extension.next().is_none());
    }

    #[test]
    fn it_sleeps_and_goes_on_by_itself_once_all_is_there() {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("x"));
        let root = engine.root(tokens_of("abc")).unwrap();
        for (sleep, updates) in [(Sleep::LEVEL_1, false), (Sleep::LEVEL_2, true)] {
            engine.sleep(sleep, PauseMode::Wait).unwrap();
            assert!(engine.is_paused() && engine.status().asleep == SleepParts::ALL);
            let mut extension = engine.start(vec![sampled(root)]).unwrap();
            assert!(engine.resume().is_err() && extension.poll(Duration::ZERO).is_pending());
            engine.wake(SleepParts::ALL).unwrap();
            assert_eq!(engine.is_paused(), updates);
            if updates {
                let update = WeightsUpdate::new(Arc::new(TensorsInMemory::default()), UpdateScope::Whole);
                engine.update_weights(update).unwrap();
            }
            let last = std::iter::from_fn(|| extension.next()).last();
            assert!(matches!(last, Some(Event::Finished { .. })));
            assert!(!engine.is_paused());
        }
    }

    #[test]
    fn a_panic_fails_every_branch_and_says_why() {
        let engine = EngineHandle::scripted(|_| panic!("no such page"));
        let root = engine.root(tokens_of("abc")).unwrap();
        let mut extension = engine.start(vec![sampled(root)]).unwrap();
        let Some(Event::Failed { error, .. }) = extension.next() else { panic!("failed") };
        assert!(error.to_string().contains("no such page"), "{error}");
        assert!(extension.next().is_none());
        assert!(engine.root(tokens_of("abc")).is_err());
    }
}
