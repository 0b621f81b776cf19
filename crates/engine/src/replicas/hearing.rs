//! Carries the engines' events to the clients, and notes what they say of branches: their tokens, and that they rest.

use crate::weights::Versions;
use crate::{Continuation, Event, Finish};
use offshoot_core::ids::BranchId;

use super::branch::On;
use super::load::most_sampled;
use super::prefix::Prefix;
use super::queue::{Started, Task};
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
        let Event::Tokens { id, tokens, text, weights, adapter } = &event else { return self.hear_end(at, event) };
        // What a replica says of an extend that it has no more is not what the one says that has it.
        let has_it = |started: &&mut Started| started.replicas.contains(&at);
        if let Some(started) = self.started.get_mut(id).filter(has_it) {
            started.task.said.add(tokens, text, Versions { weights: *weights, adapter: *adapter });
            if let (Some(record), Some(adapter)) = (self.branches.get_mut(id), *adapter) {
                record.note_adapter(adapter);
            }
            self.batcher.send(&started.task.events, event);
        }
    }

    fn hear_end(&mut self, at: usize, end: Event) {
        let branch = end.id();
        let Some(started) = self.started.get_mut(&branch) else { return };
        let Some(place) = started.replicas.iter().position(|&replica| replica == at) else { return };
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
        if let Some(last) = finish.adapters.last() {
            record.note_adapter(last.version);
        }
        match &task.extend.continuation {
            Continuation::Given { .. } => record.path.give(&finish.tokens),
            Continuation::Sampled { stop, .. } => {
                let facts = self.replicas[0].engine.facts();
                let room = facts.context.saturating_sub(record.path.len());
                record.path.set_form(task.extend.form.as_ref());
                finish.tokens.iter().for_each(|&token| record.path.push_sampled(token));
                if finish.reason.ends_form(&facts.eos) {
                    record.path.end_form();
                }
                record.path.end_extend();
                if !stop.is_exact() && task.cut.is_none() {
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
}
