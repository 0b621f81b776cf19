//! Engines behind a router that are played by the test: it reads their commands and says their events.

use std::sync::{Arc, OnceLock};

use crossbeam_channel::Receiver;

use super::router::Router;
use crate::ready::FormSource;
use crate::status::{EngineStatus, StatusPlace};
use crate::{
    Command, EngineHandle, Event, EventBatcher, EventReader, EventSender, Extend, Finish, FinishReason, Hear,
    LivePlace, Priority, QueueKey, ReadyExtend, SampledToken, SamplingParams, ScriptedReply, Stop, TokenPath,
    UniformKey, Weights,
};
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId, WeightVersion};

/// An engine whose commands the test reads; it has ended when they are dropped and the reason is said.
pub fn engine_by_hand() -> (EngineHandle, Receiver<Command>, Arc<OnceLock<String>>) {
    let facts = EngineHandle::scripted(|_| ScriptedReply::text("")).facts().clone();
    EngineHandle::publishing(facts, Weights::first(None), None, FormSource::Scripted, LivePlace::default())
}

/// A router before these engines, without a thread.
pub fn router(engines: Vec<EngineHandle>, commands: Receiver<Command>) -> Router {
    let status = StatusPlace::new(EngineStatus::new(engines[0].weights()));
    Router::new(engines, commands, LivePlace::default(), status)
}

/// What a client hears, and where it is said.
pub fn client() -> (EventReader, EventSender) {
    let mut client = EventReader::new();
    let events = client.sender(Hear::Finishes);
    (client, events)
}

/// What a client hears that hears tokens, too.
pub fn listener() -> (EventReader, EventSender) {
    let mut client = EventReader::new();
    let events = client.sender(Hear::Tokens);
    (client, events)
}

pub fn place(branch: BranchId) -> QueueKey {
    QueueKey { priority: Priority::default(), order: branch, branch }
}

/// A prompt whose engine is the one at `home`.
pub fn root(branch: BranchId, home: usize) -> Command {
    Command::Root { place: place(branch), path: TokenPath::new(vec![TokenId(7); 40]), home: Some(home) }
}

pub fn sampled(branch: BranchId) -> ReadyExtend {
    let (params, stop) = (SamplingParams::default(), Stop::max_tokens(3));
    let Extend { continuation, .. } = Extend::sampled(branch, &params, &stop, UniformKey::root(1, "a"));
    ReadyExtend { branch, continuation, form: None }
}

/// Ends an extend as the engine would that was given this command.
pub fn finish(start: Option<&Command>, branch: BranchId, reason: FinishReason) {
    say(start, Event::Finished { id: branch, finish: Finish::empty(reason) });
}

/// Says this of an extend as the engine would that was given this command.
pub fn say(start: Option<&Command>, event: Event) {
    let Some(Command::Start { events, .. } | Command::Continue { events, .. }) = start else {
        panic!("the engine is given the branch")
    };
    let mut batcher = EventBatcher::default();
    batcher.send(events, event);
    batcher.flush();
}

/// These tokens of an extend, sampled under `weights` and no adapter.
pub fn tokens(branch: BranchId, tokens: &[u32], weights: WeightVersion) -> Event {
    tokens_with(branch, tokens, weights, None)
}

/// These tokens of an extend, sampled under `weights` and `adapter`.
pub fn tokens_with(branch: BranchId, tokens: &[u32], weights: WeightVersion, adapter: Option<AdapterVersion>) -> Event {
    let sampled = tokens.iter().map(|&token| SampledToken::of(TokenId(token), -1.0));
    let text = tokens.iter().map(|token| format!("{token};")).collect();
    Event::Tokens { id: branch, tokens: sampled.collect(), text, weights, adapter }
}
