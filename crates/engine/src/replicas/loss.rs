//! An engine that ends while others live: what it had goes on there. A sample whose client has heard tokens of it goes
//! on behind them, as after an update of the weights; all else begins again. Uniforms follow from the branch and the
//! position, so that under the same weights the same tokens are sampled.

use crate::{LiveMetrics, Metrics};
use offshoot_core::ids::BranchId;

use super::branch::On;
use super::prefix::{KnownPrefixes, Prefix};
use super::queue::{Started, Task};
use super::router::Router;

impl Router {
    /// Notes that an engine has ended, and gives what it had to the others.
    pub fn lose(&mut self, at: usize) {
        if !self.replicas[at].lives() {
            return;
        }
        // What it had finished before it ended does not begin again. Hearing it may notice the loss, too.
        self.hear_all(at);
        let replica = &self.replicas[at];
        if !replica.lives() {
            return;
        }
        let why = replica.engine.exit_reason();
        self.lose_for(at, &why);
    }

    /// Gives what an engine has to the others, for this reason: it is asked for nothing from now on.
    pub fn lose_for(&mut self, at: usize, why: &str) {
        let replica = &mut self.replicas[at];
        let device = replica.engine.facts().device.clone();
        replica.lost = Some(format!("{device}: {why}"));
        replica.known = KnownPrefixes::default();
        replica.begun = KnownPrefixes::default();
        // What it has done still counts; it holds nothing any more.
        let live = replica.engine.live_place();
        let held = Metrics {
            kv_bytes_held: 0,
            kv_bytes_cached: 0,
            states_held: 0,
            latent_copies_held: 0,
            ..live.read().metrics
        };
        live.publish(LiveMetrics { metrics: held, ..LiveMetrics::default() });
        let waiting = replica.queue.take_all();
        if self.replicas.iter().all(|replica| !replica.lives()) {
            let whys: Vec<&str> = self.replicas.iter().filter_map(|replica| replica.lost.as_deref()).collect();
            self.gone = Some(format!("no device is left ({})", whys.join("; ")));
            return;
        }
        for record in self.branches.values_mut().filter(|record| record.on == On::Replica(at)) {
            record.on = On::Nowhere;
            record.prefix = Prefix::of(&record.path, &[]);
        }
        let begun = self.take_begun(at);
        let lost = self.replicas[at].lost.as_deref().unwrap_or_default();
        log::warn!("a device is lost, its {} samples go on on the others: {lost}", begun.len());
        let mut last: Option<(Prefix, usize)> = None;
        for task in waiting.into_iter().chain(begun) {
            let home = self.branches.get(&task.branch()).and_then(|record| record.home);
            let to = self.place(home, &task.prefix, last.as_ref());
            last = Some((task.prefix.clone(), to));
            self.queue(to, task);
        }
    }

    /// The extends that only this engine had, in order, as others go on with them; those that were cancelled end.
    fn take_begun(&mut self, at: usize) -> Vec<Task> {
        let had = |started: &Started| started.replicas.contains(&at);
        let ids: Vec<BranchId> =
            self.started.iter().filter(|(_, started)| had(started)).map(|(&branch, _)| branch).collect();
        let mut begun = Vec::new();
        for branch in ids {
            let Some(started) = self.started.get_mut(&branch) else { continue };
            started.replicas.retain(|&replica| replica != at);
            let (key, work) = (started.task.key, started.task.work);
            self.replicas[at].end(key, work);
            if !started.replicas.is_empty() || started.end.is_some() {
                self.end_if_over(branch);
                continue;
            }
            let Some(Started { mut task, .. }) = self.started.remove(&branch) else { continue };
            if task.cut.is_some() || !self.branches.contains_key(&branch) {
                self.finish_cut(&task);
                continue;
            }
            let Task { extend, said, .. } = &task;
            if let Some(record) = self.branches.get(&branch) {
                task.prefix = record.prefix_with(&extend.continuation, said);
            }
            task.work.output = task.work.output.saturating_sub(task.said.tokens.len() as u64);
            begun.push(task);
        }
        begun.sort_by_key(|task| task.key);
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::super::by_hand;
    use super::super::by_hand::{client, engine_by_hand, finish, listener, place, root, sampled, say, tokens_with};
    use super::*;
    use crate::{AdapterSpan, Command, Event, Finish, FinishReason, TokenPath};
    use offshoot_core::ids::{AdapterVersion, TokenId, WeightVersion};

    #[test]
    fn what_had_finished_before_a_loss_that_a_command_notices_does_not_begin_again() {
        let ((first, of_first, ends_first), (second, of_second, _lives)) = (engine_by_hand(), engine_by_hand());
        let mut router = by_hand::router(vec![first, second], crossbeam_channel::unbounded().1);
        let branch = BranchId(1);
        let (mut client, events) = client();
        router.execute(root(branch, 0));
        router.execute(Command::Start { extends: vec![sampled(branch)], events });
        // At once: the second one, which is short of work, may not take it over first.
        router.give(0, None);
        let given: Vec<Command> = of_first.try_iter().collect();
        finish(given.last(), branch, FinishReason::Length);
        ends_first.set("pulled out".to_owned()).expect("nobody else says why");
        drop((given, of_first));
        router.send(0, Command::Cancel { branches: Vec::new() });
        assert!(!router.replicas[0].lives());
        router.share_out();
        router.batcher.flush();
        assert!(matches!(client.next(), Some(Event::Finished { .. })), "its client has heard the end");
        let begins = |command: Command| matches!(command, Command::Start { .. });
        assert!(!of_second.try_iter().any(begins), "the second engine samples nothing again");
    }

    /// The lost engine had let one version of an adapter make way for a newer one; the other engine has both.
    #[test]
    fn a_branch_goes_on_with_the_adapter_to_which_a_lost_engine_had_come() {
        let (branch, [old, new]) = (BranchId(1), [1, 4].map(AdapterVersion));
        let span = |version, from| AdapterSpan { version, from };
        for rests in [false, true] {
            let ((first, of_first, _lives), (second, of_second, ends_second)) = (engine_by_hand(), engine_by_hand());
            let mut router = by_hand::router(vec![first, second], crossbeam_channel::unbounded().1);
            let (_client, events) = listener();
            let path = TokenPath::of(None, Some(old), vec![TokenId(7); 40]);
            router.execute(Command::Root { place: place(branch), path, home: Some(1) });
            router.execute(Command::Start { extends: vec![sampled(branch)], events: events.clone() });
            router.give(1, None);
            let given: Vec<Command> = of_second.try_iter().collect();
            for adapter in [old, new] {
                say(given.last(), tokens_with(branch, &[5], WeightVersion::FIRST, Some(adapter)));
            }
            if rests {
                let (tokens, adapters) = (vec![TokenId(5); 2], vec![span(old, 0), span(new, 1)]);
                let finish = Finish { tokens, adapters, ..Finish::empty(FinishReason::Length) };
                say(given.last(), Event::Finished { id: branch, finish });
            }
            router.take_events();
            ends_second.set("pulled out".to_owned()).expect("nobody else says why");
            drop((given, of_second));
            router.lose(1);
            if rests {
                router.execute(Command::Start { extends: vec![sampled(branch)], events });
            }
            router.share_out();
            let sent: Vec<Command> = of_first.try_iter().collect();
            let [Command::Root { path, .. }, start] = &sent[..] else { panic!("it goes on on the first one") };
            assert_eq!(path.adapter(), Some(new));
            match start {
                Command::Continue { said, .. } => assert_eq!(said.adapters, [span(old, 0), span(new, 1)]),
                Command::Start { .. } => assert!(rests),
                _ => panic!("it is extended"),
            }
        }
    }
}
