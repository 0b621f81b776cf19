//! Carries the engines' events to the clients, and notes what they say of branches: their tokens, and that they rest.
//! Where an extend began again on a second replica, the router drops what its client has heard already.

use crate::weights::note_version;
use crate::{Command, Continuation, Event, Finish, SampledToken};
use offshoot_core::error::Error;
use offshoot_core::ids::{BranchId, WeightVersion};
use offshoot_core::setting::DETERMINISTIC;

use super::branch::On;
use super::load::most_sampled;
use super::prefix::Prefix;
use super::queue::{Said, Started, Task};
use super::router::Router;

impl Router {
    /// Takes up all events that engines have sent, and notes engines that have ended.
    pub fn take_events(&mut self) {
        for at in 0..self.replicas.len() {
            if !self.replicas[at].lives() {
                continue;
            }
            self.hear_all(at);
            // An engine that has extends holds senders of their events, or a command does that waits for it. Asked
            // after a read, which may have taken the message that the last sender is gone: one that goes later wakes
            // again.
            if self.replicas[at].events.is_disconnected() {
                // What it sent before it ended.
                self.hear_all(at);
                if self.replicas[at].in_flight() > 0 {
                    self.lose(at);
                }
            }
        }
    }

    /// Takes up what one engine has sent.
    pub fn hear_all(&mut self, at: usize) {
        while let Some(event) = self.replicas[at].events.next() {
            self.hear(at, event);
        }
    }

    fn hear(&mut self, at: usize, event: Event) {
        match event {
            Event::Tokens { id: branch, tokens, text, weights } => {
                self.hear_tokens(at, branch, tokens, text, weights);
            }
            end => self.hear_end(at, end),
        }
    }

    fn hear_tokens(
        &mut self,
        at: usize,
        branch: BranchId,
        tokens: Vec<SampledToken>,
        text: String,
        weights: WeightVersion,
    ) {
        // What a replica says of an extend that it has no more is not what the one says that has it.
        let has_it = |started: &&mut Started| started.replicas.contains(&at);
        let Some(started) = self.started.get_mut(&branch).filter(has_it) else { return };
        match started.task.said.hear(tokens, text, weights) {
            Ok(Some((tokens, text))) => {
                self.batcher.send(&started.task.events, Event::Tokens { id: branch, tokens, text, weights });
            }
            Ok(None) => {}
            Err(Differs) => self.fail_differing(branch),
        }
    }

    fn hear_end(&mut self, at: usize, end: Event) {
        let branch = end.id();
        let Some(started) = self.started.get_mut(&branch) else { return };
        let Some(place) = started.replicas.iter().position(|&replica| replica == at) else { return };
        if started.task.said.is_short() && matches!(end, Event::Finished { .. }) {
            return match started.task.cut.is_some() {
                // What its client has heard is more than the second replica had said.
                true => self.take_back(branch).iter().for_each(|task| self.finish_cut(task)),
                false => self.fail_differing(branch),
            };
        }
        started.replicas.swap_remove(place);
        self.replicas[at].end(started.task.key, started.task.work);
        if !matches!(started.end, Some(Event::Failed { .. })) {
            started.end = Some(end);
        }
        self.end_if_over(branch);
    }

    /// Passes on the end of an extend that no engine has any more.
    pub fn end_if_over(&mut self, branch: BranchId) {
        if self.started.get(&branch).is_none_or(|started| !started.replicas.is_empty()) {
            return;
        }
        let Some(started) = self.started.remove(&branch) else { return };
        let Some(end) = started.end else { return };
        match &end {
            Event::Finished { finish, .. } => self.note_finish(&started.task, finish),
            Event::Failed { .. } => {
                if let Some(record) = self.branches.get_mut(&branch) {
                    record.is_known = false;
                }
            }
            Event::Tokens { .. } => {}
        }
        self.batcher.send(&started.task.events, end);
    }

    /// Notes what an extend added to its branch.
    pub fn note_finish(&mut self, task: &Task, finish: &Finish) {
        let Some(record) = self.branches.get_mut(&task.branch()) else { return };
        match &task.extend.continuation {
            Continuation::Given { .. } => record.path.give(&finish.tokens),
            Continuation::Sampled { stop, .. } => {
                finish.tokens.iter().for_each(|&token| record.path.push_sampled(token));
                if !stop.is_exact() && task.cut.is_none() {
                    let room = self.replicas[0].engine.facts().context.saturating_sub(task.prefix.tokens());
                    self.lengths.note(finish.tokens.len(), most_sampled(stop, room));
                }
            }
        }
        match (record.on, record.home) {
            // A prompt may continue it: the next message of a chat. Prompts of a job have a home.
            (On::Replica(at), None) => {
                let prefix = Prefix::of(&record.path, &[]);
                self.replicas[at].known.note(&prefix);
                self.replicas[at].begun.note(&prefix);
            }
            (On::Nowhere, _) if !finish.tokens.is_empty() => record.prefix = Prefix::of(&record.path, &[]),
            _ => {}
        }
    }

    /// Fails an extend of which a second replica says something else than the first one did.
    fn fail_differing(&mut self, branch: BranchId) {
        let Some(task) = self.take_back(branch) else { return };
        if let Some(record) = self.branches.get_mut(&branch) {
            record.is_known = false;
        }
        let expected = format!("the tokens that a lost device had sampled ({DETERMINISTIC})");
        let error = Error::value("a sample that was begun again", expected, "others");
        self.batcher.send(&task.events, Event::Failed { id: branch, error });
    }

    /// Takes an extend, and its branch, from the engines that have it.
    fn take_back(&mut self, branch: BranchId) -> Option<Task> {
        let started = self.started.remove(&branch)?;
        for &at in &started.replicas {
            self.replicas[at].end(started.task.key, started.task.work);
            self.send(at, Command::Release { branches: vec![branch] });
        }
        if let Some(record) = self.branches.get_mut(&branch) {
            record.on = On::Nowhere;
        }
        Some(started.task)
    }
}

/// What is said a second time is not what was said before.
pub(super) struct Differs;

impl Said {
    /// Notes what an engine says; what of it is new to the client, if anything is.
    fn hear(
        &mut self,
        mut tokens: Vec<SampledToken>,
        mut text: String,
        weights: WeightVersion,
    ) -> Result<Option<(Vec<SampledToken>, String)>, Differs> {
        if let Some(repeated) = &mut self.repeated {
            let again = tokens.len().min(self.tokens.len() - repeated.tokens);
            let before = &self.tokens[repeated.tokens..repeated.tokens + again];
            if tokens.iter().zip(before).any(|(new, old)| new.token != old.token) {
                return Err(Differs);
            }
            tokens.drain(..again);
            let bytes = text.len().min(self.text.len() - repeated.bytes);
            if text.as_bytes()[..bytes] != self.text.as_bytes()[repeated.bytes..repeated.bytes + bytes] {
                return Err(Differs);
            }
            text = text.get(bytes..).ok_or(Differs)?.to_owned();
            repeated.tokens += again;
            repeated.bytes += bytes;
            if repeated.tokens == self.tokens.len() && repeated.bytes == self.text.len() {
                self.repeated = None;
            }
            if tokens.is_empty() && text.is_empty() {
                return Ok(None);
            }
        }
        if !tokens.is_empty() {
            note_version(&mut self.weights, weights, self.tokens.len());
        }
        self.tokens.extend_from_slice(&tokens);
        self.text.push_str(&text);
        Ok(Some((tokens, text)))
    }

    /// Whether something that the client has heard was not said again.
    fn is_short(&self) -> bool {
        self.repeated.is_some_and(|repeated| repeated.tokens < self.tokens.len())
    }
}
