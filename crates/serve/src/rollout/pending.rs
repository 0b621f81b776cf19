//! The weight update that a trainer sends in parts: begun, filled, put in force or dropped. At most one is open. A
//! trainer that dies is noticed by its silence: the update is then dropped with all that came of it, and the next one
//! can begin. Where tensors come from is left to `transfer`, and what becomes of them to `update`.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use offshoot_model::UpdateScope;
use offshoot_openai::protocol::{Refusal, RefusalKind};

use super::transfer::ReceivedTensors;

/// Names an update; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateId(u64);

enum Phase {
    /// No update is open.
    Free,
    /// Tensors come.
    Receiving(Receiving),
    /// All have come and are being put in force, which ends by itself.
    Committing,
}

struct Receiving {
    id: UpdateId,
    tensors: ReceivedTensors,
    scope: UpdateScope,
    /// When it is dropped unless the trainer is heard before.
    dropped_at: Instant,
}

/// The update that is open, if any.
pub struct PendingUpdate {
    phase: Mutex<Open>,
    patience: Duration,
    /// Most bytes of tensors that it holds.
    most_bytes: usize,
}

struct Open {
    phase: Phase,
    next: u64,
}

/// The right to put an update in force. Dropping it ends the update, however that went.
pub struct Committing<'a> {
    pending: &'a PendingUpdate,
}

impl PendingUpdate {
    /// `patience`: how long a trainer may say nothing; `most_bytes`: how much it may send.
    pub fn new(patience: Duration, most_bytes: usize) -> Self {
        PendingUpdate { phase: Mutex::new(Open { phase: Phase::Free, next: 0 }), patience, most_bytes }
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// Opens an update.
    ///
    /// # Errors
    ///
    /// One is open.
    pub fn start(&self, scope: UpdateScope, now: Instant) -> Result<UpdateId, Refusal> {
        let mut open = self.open(now);
        open.check_free()?;
        let id = UpdateId(open.next);
        open.next += 1;
        let dropped_at = now + self.patience;
        open.phase = Phase::Receiving(Receiving { id, tensors: ReceivedTensors::default(), scope, dropped_at });
        Ok(id)
    }

    /// The update that tensors are sent for now, which the trainer thereby is heard in.
    pub fn heard(&self, now: Instant) -> Result<UpdateId, Refusal> {
        Ok(self.open(now).receiving(now + self.patience)?.id)
    }

    /// The trainer is heard in the update `id`, which must be open still.
    pub fn go_on(&self, id: UpdateId, now: Instant) -> Result<(), Refusal> {
        match self.heard(now)? == id {
            true => Ok(()),
            false => Err(not_open()),
        }
    }

    /// Adds to the update `id` what `add` adds.
    ///
    /// # Errors
    ///
    /// The update is not open any more, holds more than it may, or `add` failed. It is dropped in the last two cases.
    pub fn add(
        &self,
        id: UpdateId,
        now: Instant,
        add: impl FnOnce(&mut ReceivedTensors) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut open = self.open(now);
        let receiving = open.receiving(now + self.patience)?;
        if receiving.id != id {
            return Err(not_open());
        }
        let added = add(&mut receiving.tensors).and_then(|()| match receiving.tensors.bytes() <= self.most_bytes {
            true => Ok(()),
            false => Err(self.too_much()),
        });
        added.inspect_err(|_| open.phase = Phase::Free)
    }

    /// For an update of more bytes than it may hold.
    pub fn too_much(&self) -> Refusal {
        let what = format!("expected at most {} bytes of tensors in an update, found more", self.most_bytes);
        Refusal::of_kind(RefusalKind::TooLarge, "update_too_large", what)
    }

    /// Takes the tensors of the open update, to put them in force.
    ///
    /// # Errors
    ///
    /// None is open.
    pub fn take(&self, now: Instant) -> Result<(Committing<'_>, ReceivedTensors, UpdateScope), Refusal> {
        let mut open = self.open(now);
        open.receiving(now + self.patience)?;
        match std::mem::replace(&mut open.phase, Phase::Committing) {
            Phase::Receiving(Receiving { tensors, scope, .. }) => Ok((Committing { pending: self }, tensors, scope)),
            _ => Err(not_open()),
        }
    }

    /// Opens an update whose tensors are all there.
    ///
    /// # Errors
    ///
    /// One is open.
    pub fn take_whole(&self, now: Instant) -> Result<Committing<'_>, Refusal> {
        let mut open = self.open(now);
        open.check_free()?;
        open.phase = Phase::Committing;
        Ok(Committing { pending: self })
    }

    /// Drops the open update with what came of it, if its tensors still come. Whether there was one.
    pub fn drop_it(&self) -> bool {
        let mut open = self.lock();
        let was_open = matches!(open.phase, Phase::Receiving(_));
        if was_open {
            open.phase = Phase::Free;
        }
        was_open
    }

    /// Drops the update `id` once its trainer was silent too long. Otherwise the time at which that will be, if it is
    /// open.
    pub fn expire(&self, id: UpdateId, now: Instant) -> Option<Instant> {
        match &self.open(now).phase {
            Phase::Receiving(receiving) if receiving.id == id => Some(receiving.dropped_at),
            _ => None,
        }
    }

    /// The state, without an update whose trainer was silent too long.
    fn open(&self, now: Instant) -> MutexGuard<'_, Open> {
        let mut open = self.lock();
        if let Phase::Receiving(receiving) = &open.phase
            && receiving.dropped_at <= now
        {
            let silent = self.patience.as_secs_f64();
            let (tensors, bytes) = (receiving.tensors.len(), receiving.tensors.bytes());
            log::warn!(
                "a weight update was dropped after {silent} s of silence, with {tensors} tensors ({bytes} bytes); the \
                 old weights stay in force"
            );
            open.phase = Phase::Free;
        }
        open
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.phase.lock().expect("nothing panics while it holds the state of an update")
    }
}

impl Open {
    fn check_free(&self) -> Result<(), Refusal> {
        match self.phase {
            Phase::Free => Ok(()),
            Phase::Receiving(_) => {
                let what = "a weight update is open: finish it, or send no more of it until its time limit has passed";
                Err(Refusal::of_kind(RefusalKind::Conflict, "update_open", what))
            }
            Phase::Committing => {
                let what = "another weight update is being put in force";
                Err(Refusal::of_kind(RefusalKind::Conflict, "update_open", what))
            }
        }
    }

    /// The open update, which is dropped at `dropped_at` from now on.
    fn receiving(&mut self, dropped_at: Instant) -> Result<&mut Receiving, Refusal> {
        match &mut self.phase {
            Phase::Receiving(receiving) => {
                receiving.dropped_at = dropped_at;
                Ok(receiving)
            }
            Phase::Free | Phase::Committing => Err(not_open()),
        }
    }
}

fn not_open() -> Refusal {
    let what = "no weight update is open: none was started, or it was dropped for an error or the trainer's silence";
    Refusal::of_kind(RefusalKind::Conflict, "no_update", what)
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.pending.lock().phase = Phase::Free;
    }
}

#[cfg(test)]
mod tests {
    use offshoot_backend::MemoryBlock;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn pending() -> (PendingUpdate, Instant) {
        (PendingUpdate::new(PATIENCE, 100), Instant::now())
    }

    fn code<T>(result: Result<T, Refusal>) -> &'static str {
        result.map_or_else(|refusal| refusal.code, |_| "")
    }

    fn bytes(received: &mut ReceivedTensors, count: usize) -> Result<(), Refusal> {
        received.add_block(MemoryBlock::Host(vec![0; count]), &[])
    }

    /// Adds a tensor of so many bytes.
    fn tensor(name: &str, count: usize) -> impl FnOnce(&mut ReceivedTensors) -> Result<(), Refusal> {
        let tensor = crate::rollout::transfer::DescribedTensor {
            name: name.to_owned(),
            dtype: offshoot_model::TensorDtype::U8,
            shape: vec![count],
            bytes: count,
        };
        move |received| received.add_block(MemoryBlock::Host(vec![0; count]), &[tensor])
    }

    #[test]
    fn an_update_is_started_filled_and_taken_once() {
        let (pending, now) = pending();
        assert_eq!(code(pending.take(now)), "no_update");
        assert_eq!(code(pending.heard(now)), "no_update");
        let id = pending.start(UpdateScope::Whole, now).expect("none is open");
        assert_eq!(code(pending.start(UpdateScope::Whole, now)), "update_open");
        assert_eq!(code(pending.take_whole(now)), "update_open");
        pending.add(id, now, tensor("a", 40)).expect("there is room");
        let (committing, tensors, scope) = pending.take(now).expect("it is open");
        assert_eq!((tensors.bytes(), scope), (40, UpdateScope::Whole));
        for refused in [code(pending.start(UpdateScope::Whole, now)), code(pending.take_whole(now))] {
            assert_eq!(refused, "update_open");
        }
        assert_eq!(code(pending.add(id, now, tensor("b", 1))), "no_update");
        drop(committing);
        assert_ne!(pending.start(UpdateScope::Changed, now).expect("it is free again"), id);
    }

    #[test]
    fn a_silent_trainer_is_dropped_and_cannot_go_on() {
        let (pending, now) = pending();
        let first = pending.start(UpdateScope::Changed, now).expect("none is open");
        let later = now + PATIENCE / 2;
        pending.add(first, later, tensor("a", 10)).expect("it is in time");
        assert_eq!(pending.expire(first, now + PATIENCE), Some(later + PATIENCE));
        let late = later + PATIENCE;
        assert_eq!(pending.expire(first, late), None);
        assert_eq!(code(pending.take(late)), "no_update");
        let second = pending.start(UpdateScope::Changed, late).expect("the first one was dropped");
        assert_eq!(code(pending.add(first, late, tensor("b", 1))), "no_update", "it is another trainer's");
        let (_committing, tensors, _) = pending.take(late).expect("the second one is open");
        assert_eq!(tensors.bytes(), 0, "nothing of the first one is left");
        assert_eq!(pending.expire(second, late), None);
    }

    #[test]
    fn too_much_and_wrong_parts_drop_the_update() {
        let (pending, now) = pending();
        let id = pending.start(UpdateScope::Changed, now).expect("none is open");
        pending.add(id, now, tensor("a", 60)).expect("there is room");
        assert_eq!(code(pending.add(id, now, tensor("b", 41))), "update_too_large");
        assert_eq!(code(pending.take(now)), "no_update");
        let id = pending.start(UpdateScope::Changed, now).expect("it is free");
        assert_eq!(code(pending.add(id, now, |received| bytes(received, 3))), "invalid_body");
        assert_eq!(code(pending.heard(now)), "no_update");
        pending.start(UpdateScope::Changed, now).expect("it is free");
        assert!(pending.drop_it() && !pending.drop_it());
    }
}
