//! The weight update that a trainer sends in parts: begun, filled, put in force or dropped; and the session of NCCL by
//! which its tensors may come. At most one update is open, and a trainer that dies is noticed by its silence: the
//! update is then dropped with all that came of it. How tensors come is left to `transfer`, and what becomes of them to
//! `update`.
//!
//! NCCL pairs a broadcast with whoever receives next, by order alone. So an update that is dropped ends the session:
//! what its trainer has begun to send would be received as the beginning of the next update.
//!
//! The state is locked for moments alone, as threads that must not stand ask for it: nothing is received, awaited or
//! freed under the lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use offshoot_model::UpdateScope;
use offshoot_openai::protocol::{Refusal, RefusalKind};

use super::transfer::{NcclSession, ReceivedTensors, UserCounter, Users};

/// Names an update; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateId(u64);

/// The update that is open, if any, and the trainer's session.
pub struct PendingUpdate {
    state: Mutex<State>,
    /// How long a trainer may say nothing.
    timeout: Duration,
    /// Most bytes of tensors of an update.
    most_bytes: usize,
}

struct State {
    phase: Phase,
    next: u64,
    session: Session,
}

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
    /// Bytes of tensors that are coming: [`Room`]s for them.
    coming: usize,
    scope: UpdateScope,
    /// When it is dropped unless the trainer is heard before.
    dropped_at: Instant,
}

/// How the trainer sends tensors.
enum Session {
    /// In requests.
    Requests,
    /// By broadcasts.
    Nccl(NcclSession),
    /// By broadcasts, which a request receives at this moment.
    InUse,
}

/// The right to put an update in force. Dropping it ends the update, however that went.
pub struct Committing<'a> {
    pending: &'a PendingUpdate,
}

/// Room for tensors of an update that are coming. Dropped before any have come, it drops the update: nothing may be put
/// in force without what was sent for it.
pub struct Room {
    pending: Arc<PendingUpdate>,
    id: UpdateId,
    /// Bytes that have not come.
    bytes: usize,
    is_filled: bool,
}

/// The session while a request receives by it. Dropped with the session, it ends both the session and the update.
struct SessionInUse<'a> {
    pending: &'a PendingUpdate,
    id: UpdateId,
    session: Option<NcclSession>,
}

impl PendingUpdate {
    /// `timeout`: how long a trainer may say nothing; `most_bytes`: how much it may send.
    pub fn new(timeout: Duration, most_bytes: usize) -> Self {
        let state = State { phase: Phase::Free, next: 0, session: Session::Requests };
        PendingUpdate { state: Mutex::new(state), timeout, most_bytes }
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Opens an update.
    ///
    /// # Errors
    ///
    /// One is open.
    pub fn start(&self, scope: UpdateScope, now: Instant) -> Result<UpdateId, Refusal> {
        let mut state = self.state(now);
        state.check_free()?;
        let id = UpdateId(state.next);
        state.next += 1;
        let (tensors, dropped_at) = (ReceivedTensors::default(), now + self.timeout);
        state.phase = Phase::Receiving(Receiving { id, tensors, coming: 0, scope, dropped_at });
        Ok(id)
    }

    /// The update that is open, for which the trainer sends something now.
    pub fn current(&self, now: Instant) -> Result<UpdateId, Refusal> {
        Ok(self.state(now).receiving(None, now + self.timeout)?.id)
    }

    /// Room for so many bytes of tensors of the update `id`, before any memory is taken for them.
    ///
    /// # Errors
    ///
    /// The update is not open any more, or would hold more than it may; it is dropped then.
    pub fn room(self: &Arc<Self>, id: UpdateId, bytes: usize, now: Instant) -> Result<Room, Refusal> {
        let mut room = Room { pending: self.clone(), id, bytes: 0, is_filled: false };
        room.grow(bytes, now)?;
        Ok(room)
    }

    /// The users of memory that is lent to the update `id`, which are counted until it has ended and what this returns
    /// is dropped. Where the update is not open any more, they are counted until the latter.
    pub fn users(&self, id: UpdateId, counters: Vec<UserCounter>, now: Instant) -> Users {
        match self.state(now).receiving(Some(id), now + self.timeout) {
            Ok(receiving) => receiving.tensors.users(counters),
            Err(_) => Users::default().of(counters),
        }
    }

    /// Has `receive` receive tensors of the update `id` by the session. If that fails, or the update is dropped
    /// meanwhile, the session ends.
    ///
    /// # Errors
    ///
    /// The update is not open, there is no session, it is in use, or `receive` failed.
    pub fn by_session(
        &self,
        id: UpdateId,
        now: Instant,
        receive: impl FnOnce(&mut NcclSession) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut state = self.state(now);
        state.receiving(Some(id), now + self.timeout)?;
        let session = match std::mem::replace(&mut state.session, Session::InUse) {
            Session::Nccl(session) => session,
            Session::InUse => return Err(in_use()),
            Session::Requests => {
                state.session = Session::Requests;
                let what = "no trainer is joined by NCCL: expected /init_weight_transfer_engine with its address \
                            before this; a session ends with an update that was dropped or refused";
                return Err(Refusal::of_kind(RefusalKind::Conflict, "no_session", what));
            }
        };
        drop(state);
        let mut using = SessionInUse { pending: self, id, session: Some(session) };
        receive(using.session.as_mut().expect("it was put there"))?;
        using.give_back()
    }

    /// Begins a session, or ends the one that there is.
    ///
    /// # Errors
    ///
    /// A request receives by it at this moment.
    pub fn set_session(&self, session: Option<NcclSession>) -> Result<(), Refusal> {
        let mut state = self.lock();
        if matches!(state.session, Session::InUse) {
            return Err(in_use());
        }
        state.end_session();
        if let Some(session) = session {
            state.session = Session::Nccl(session);
        }
        Ok(())
    }

    /// Takes the tensors of the open update, to put them in force.
    ///
    /// # Errors
    ///
    /// None is open, or tensors of it are still coming.
    pub fn take(&self, now: Instant) -> Result<(Committing<'_>, ReceivedTensors, UpdateScope), Refusal> {
        let mut state = self.state(now);
        let is_coming = state.receiving(None, now + self.timeout)?.coming > 0;
        if is_coming || matches!(state.session, Session::InUse) {
            return Err(in_use());
        }
        match std::mem::replace(&mut state.phase, Phase::Committing) {
            Phase::Receiving(Receiving { tensors, scope, .. }) => Ok((Committing { pending: self }, tensors, scope)),
            Phase::Free | Phase::Committing => unreachable!("it was receiving just now, and the lock is held"),
        }
    }

    /// Opens an update whose tensors are all there.
    ///
    /// # Errors
    ///
    /// One is open.
    pub fn take_whole(&self, now: Instant) -> Result<Committing<'_>, Refusal> {
        let mut state = self.state(now);
        state.check_free()?;
        state.phase = Phase::Committing;
        Ok(Committing { pending: self })
    }

    /// Drops the open update with what came of it, if its tensors still come, and ends the session.
    pub fn drop_all(&self) {
        let mut state = self.lock();
        state.drop_update();
        state.end_session();
    }

    /// Drops the update `id` once its trainer was silent too long. Otherwise the time to look again, if it is open.
    pub fn expire(&self, id: UpdateId, now: Instant) -> Option<Instant> {
        let state = self.state(now);
        match &state.phase {
            // What is received has its own time limit.
            Phase::Receiving(receiving) if receiving.id == id && matches!(state.session, Session::InUse) => {
                Some(now + self.timeout)
            }
            Phase::Receiving(receiving) if receiving.id == id => Some(receiving.dropped_at),
            _ => None,
        }
    }

    /// The state, without an update whose trainer was silent too long.
    fn state(&self, now: Instant) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if let Phase::Receiving(receiving) = &state.phase
            && receiving.dropped_at <= now
            && !matches!(state.session, Session::InUse)
        {
            let silent = self.timeout.as_secs_f64();
            let (tensors, bytes) = (receiving.tensors.len(), receiving.tensors.bytes());
            log::warn!(
                "a weight update was dropped after {silent} s of silence, with {tensors} tensors ({bytes} bytes); the \
                 old weights stay in force"
            );
            state.drop_update();
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whoever panics while it adds tensors has a `Room` or a request that drops the update as it unwinds.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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

    /// The open update, which must be `id` if there is one, and is dropped at `dropped_at` from now on.
    fn receiving(&mut self, id: Option<UpdateId>, dropped_at: Instant) -> Result<&mut Receiving, Refusal> {
        match &mut self.phase {
            Phase::Receiving(receiving) if id.is_none_or(|id| id == receiving.id) => {
                receiving.dropped_at = dropped_at;
                Ok(receiving)
            }
            Phase::Receiving(_) | Phase::Free | Phase::Committing => {
                let what = "no weight update is open: none was started, or it was dropped for an error or the \
                            trainer's silence";
                Err(Refusal::of_kind(RefusalKind::Conflict, "no_update", what))
            }
        }
    }

    /// Drops the update that is open, if tensors of it still come, and the session with it.
    fn drop_update(&mut self) {
        if matches!(self.phase, Phase::Receiving(_)) {
            drop_elsewhere("end of an update", std::mem::replace(&mut self.phase, Phase::Free));
            self.end_session();
        }
    }

    /// Ends the session. One that is in use ends when the request that uses it finds its update dropped.
    fn end_session(&mut self) {
        match std::mem::replace(&mut self.session, Session::Requests) {
            Session::Requests => {}
            Session::InUse => self.session = Session::InUse,
            Session::Nccl(session) => drop_elsewhere("end of NCCL", session),
        }
    }
}

/// Drops what may wait for the GPU at its end on a thread of its own, as the lock is held. Without a thread it ends
/// here.
fn drop_elsewhere<T: Send + 'static>(name: &str, dropped: T) {
    drop(thread::Builder::new().name(name.to_owned()).spawn(move || drop(dropped)));
}

fn in_use() -> Refusal {
    let what = "tensors of a weight update are being received: send this again when the request that they belong to \
                has been answered";
    Refusal::of_kind(RefusalKind::Conflict, "update_open", what)
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.pending.lock().phase = Phase::Free;
    }
}

impl Room {
    /// More room.
    ///
    /// # Errors
    ///
    /// As of [`PendingUpdate::room`].
    pub fn grow(&mut self, bytes: usize, now: Instant) -> Result<(), Refusal> {
        let PendingUpdate { timeout, most_bytes, .. } = *self.pending;
        let mut state = self.pending.state(now);
        let receiving = state.receiving(Some(self.id), now + timeout)?;
        let held = receiving.tensors.bytes().saturating_add(receiving.coming).saturating_add(bytes);
        if held > most_bytes {
            state.drop_update();
            let what = format!("expected at most {most_bytes} bytes of tensors in an update, found more");
            return Err(Refusal::of_kind(RefusalKind::TooLarge, "update_too_large", what));
        }
        receiving.coming += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Adds to the update what `add` adds, which has room here. `add` waits for nothing: the state is locked.
    ///
    /// # Errors
    ///
    /// The update is not open any more, or `add` failed; it is dropped then.
    pub fn fill(
        &mut self,
        now: Instant,
        add: impl FnOnce(&mut ReceivedTensors) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut state = self.pending.state(now);
        let receiving = state.receiving(Some(self.id), now + self.pending.timeout)?;
        let before = receiving.tensors.bytes();
        if let Err(refusal) = add(&mut receiving.tensors) {
            state.drop_update();
            return Err(refusal);
        }
        let filled = receiving.tensors.bytes() - before;
        debug_assert!(filled <= self.bytes, "{filled} bytes came, and there was room for {}", self.bytes);
        let filled = filled.min(self.bytes);
        receiving.coming -= filled;
        self.bytes -= filled;
        self.is_filled = true;
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut state = self.pending.lock();
        if let Phase::Receiving(receiving) = &mut state.phase
            && receiving.id == self.id
        {
            receiving.coming -= self.bytes;
            if !self.is_filled {
                state.drop_update();
            }
        }
    }
}

impl SessionInUse<'_> {
    /// Puts the session back, whose broadcasts have all been received.
    fn give_back(mut self) -> Result<(), Refusal> {
        let now = Instant::now();
        let mut state = self.pending.lock();
        state.receiving(Some(self.id), now + self.pending.timeout)?;
        state.session = self.session.take().map_or(Session::Requests, Session::Nccl);
        Ok(())
    }
}

impl Drop for SessionInUse<'_> {
    fn drop(&mut self) {
        if self.session.is_some() {
            let mut state = self.pending.lock();
            state.session = Session::Requests;
            if matches!(&state.phase, Phase::Receiving(receiving) if receiving.id == self.id) {
                state.drop_update();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use offshoot_backend::MemoryBlock;
    use offshoot_launch::TrainerLink;
    use offshoot_model::{TensorDtype, TensorSource};

    use super::*;
    use crate::rollout::transfer::{DescribedTensor, Packing};

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn pending() -> (Arc<PendingUpdate>, Instant) {
        (Arc::new(PendingUpdate::new(TIMEOUT, 100)), Instant::now())
    }

    fn code<T>(result: Result<T, Refusal>) -> &'static str {
        result.map_or_else(|refusal| refusal.code, |_| "")
    }

    fn described(name: &str, bytes: usize) -> DescribedTensor {
        DescribedTensor { name: name.to_owned(), dtype: TensorDtype::U8, shape: vec![bytes], bytes }
    }

    fn host(bytes: usize) -> MemoryBlock {
        MemoryBlock::Host(vec![0; bytes])
    }

    /// Adds a tensor of so many bytes, as a body with it does.
    fn add(pending: &Arc<PendingUpdate>, id: UpdateId, now: Instant, name: &str, bytes: usize) -> Result<(), Refusal> {
        let mut room = pending.room(id, bytes, now)?;
        room.fill(now, |received| received.add_block(host(bytes), &[described(name, bytes)]))
    }

    /// A trainer that broadcasts blocks of its number of so far, whoever receives them.
    #[derive(Clone, Default)]
    struct Numbering(Arc<Mutex<u8>>);

    impl TrainerLink for Numbering {
        fn receive(&mut self, bytes: usize) -> offshoot_core::error::Result<MemoryBlock> {
            let mut number = self.0.lock().expect("no panic");
            *number += 1;
            Ok(MemoryBlock::Host(vec![*number; bytes]))
        }
    }

    impl Numbering {
        fn join(&self, pending: &PendingUpdate) {
            let session = NcclSession::of(Box::new(self.clone()), Packing::Single);
            pending.set_session(Some(session)).expect("it is not in use");
        }
    }

    /// Receives a tensor of this name by the session.
    fn receive(pending: &Arc<PendingUpdate>, id: UpdateId, now: Instant, name: &str) -> Result<(), Refusal> {
        pending.by_session(id, now, |session| {
            let mut room = pending.room(id, 4, now)?;
            session.coming(Some(vec![described(name, 4)]))?;
            session.receive(Packing::Single, &mut |block, tensors| {
                room.fill(now, |received| received.add_block(block, tensors))
            })
        })
    }

    #[test]
    fn an_update_is_started_filled_and_taken_once() {
        let (pending, now) = pending();
        assert_eq!(code(pending.take(now)), "no_update");
        assert_eq!(code(pending.current(now)), "no_update");
        let id = pending.start(UpdateScope::Whole, now).expect("none is open");
        assert_eq!(code(pending.start(UpdateScope::Whole, now)), "update_open");
        assert_eq!(code(pending.take_whole(now)), "update_open");
        add(&pending, id, now, "a", 40).expect("there is room");
        let (committing, tensors, scope) = pending.take(now).expect("it is open");
        assert_eq!((tensors.bytes(), scope), (40, UpdateScope::Whole));
        for refused in [code(pending.start(UpdateScope::Whole, now)), code(pending.take_whole(now))] {
            assert_eq!(refused, "update_open");
        }
        assert_eq!(code(add(&pending, id, now, "b", 1)), "no_update");
        drop(committing);
        assert_ne!(pending.start(UpdateScope::Changed, now).expect("it is free again"), id);
    }

    #[test]
    fn a_silent_trainer_is_dropped_and_cannot_go_on() {
        let (pending, now) = pending();
        let first = pending.start(UpdateScope::Changed, now).expect("none is open");
        let later = now + TIMEOUT / 2;
        add(&pending, first, later, "a", 10).expect("it is in time");
        assert_eq!(pending.expire(first, now + TIMEOUT), Some(later + TIMEOUT));
        let late = later + TIMEOUT;
        assert_eq!(pending.expire(first, late), None);
        assert_eq!(code(pending.take(late)), "no_update");
        let second = pending.start(UpdateScope::Changed, late).expect("the first one was dropped");
        assert_eq!(code(add(&pending, first, late, "b", 1)), "no_update", "it is another trainer's");
        let (_committing, tensors, _) = pending.take(late).expect("the second one is open");
        assert_eq!(tensors.bytes(), 0, "nothing of the first one is left");
        assert_eq!(pending.expire(second, late), None);
    }

    #[test]
    fn too_much_and_wrong_parts_drop_the_update() {
        let (pending, now) = pending();
        let id = pending.start(UpdateScope::Changed, now).expect("none is open");
        add(&pending, id, now, "a", 60).expect("there is room");
        assert_eq!(code(pending.room(id, 41, now)), "update_too_large");
        assert_eq!(code(pending.take(now)), "no_update");
        let id = pending.start(UpdateScope::Changed, now).expect("it is free");
        let mut room = pending.room(id, 3, now).expect("there is room");
        assert_eq!(code(room.fill(now, |received| received.add_block(host(3), &[]))), "invalid_body");
        assert_eq!(code(pending.current(now)), "no_update");
        let id = pending.start(UpdateScope::Changed, now).expect("it is free");
        pending.drop_all();
        assert_eq!(code(pending.room(id, 1, now)), "no_update");
    }

    /// Several bodies at once have the room of one update together, before any of them has come.
    #[test]
    fn what_is_coming_is_counted_before_it_comes() {
        let (pending, now) = pending();
        let id = pending.start(UpdateScope::Changed, now).expect("none is open");
        let mut first = pending.room(id, 60, now).expect("there is room");
        let mut second = pending.room(id, 40, now).expect("there is room");
        assert_eq!(code(pending.take(now)), "update_open", "they are coming still");
        first.fill(now, |received| received.add_block(host(60), &[described("a", 60)])).expect("it fits");
        drop(first);
        // Less than it was said to be.
        second.fill(now, |received| received.add_block(host(30), &[described("b", 30)])).expect("it fits");
        drop(second);
        let mut third = pending.room(id, 10, now).expect("what did not come leaves its room");
        assert_eq!(code(third.grow(1, now)), "update_too_large", "what came is counted on");
        let id = pending.start(UpdateScope::Changed, now).expect("it was dropped");
        assert_eq!(code(pending.room(id, usize::MAX, now)), "update_too_large");
    }

    /// A body that breaks off, or whose client goes, may have had what the rest of the update needs.
    #[test]
    fn what_does_not_come_drops_the_update() {
        let (pending, now) = pending();
        let id = pending.start(UpdateScope::Changed, now).expect("none is open");
        add(&pending, id, now, "a", 10).expect("there is room");
        drop(pending.room(id, 10, now).expect("there is room"));
        assert_eq!(code(pending.take(now)), "no_update");
        // Not another one that was begun since.
        let id = pending.start(UpdateScope::Changed, now).expect("it is free");
        let late = pending.room(id, 10, now).expect("there is room");
        pending.drop_all();
        pending.start(UpdateScope::Changed, now).expect("it is free");
        drop(late);
        pending.take(now).map(drop).expect("it is open");
    }

    #[test]
    fn tensors_of_broadcasts_are_those_that_were_sent_for_them() {
        let (pending, now) = pending();
        let trainer = Numbering::default();
        trainer.join(&pending);
        for update in 0..2 {
            let id = pending.start(UpdateScope::Changed, now).expect("none is open");
            receive(&pending, id, now, "a").expect("it is sent");
            receive(&pending, id, now, "b").expect("it is sent");
            let (_committing, tensors, _) = pending.take(now).expect("all have come");
            let number = |name| tensors.tensor(name).expect("it came").data.on_host().expect("it is there")[0];
            let numbers = ["a", "b"].map(number);
            assert_eq!(numbers, [2 * update + 1, 2 * update + 2]);
        }
    }

    /// The trainer broadcasts whether the server receives or not: behind an update that was refused or dropped nothing
    /// of it may be taken for the next one.
    #[test]
    fn the_session_ends_with_an_update_that_is_dropped_or_refused() {
        let begun = |trainer: &Numbering| {
            let (pending, now) = pending();
            trainer.join(&pending);
            let id = pending.start(UpdateScope::Changed, now).expect("none is open");
            (pending, id, now)
        };
        let trainer = Numbering::default();
        let ended = |pending: &Arc<PendingUpdate>, now: Instant, why: &str| {
            let id = pending.start(UpdateScope::Changed, now).expect("none is open any more");
            let before = *trainer.0.lock().expect("no panic");
            assert_eq!(code(receive(pending, id, now, "a")), "no_session", "{why}");
            assert_eq!(*trainer.0.lock().expect("no panic"), before, "{why}: nothing is received");
            // Until the trainer joins again.
            trainer.join(pending);
            receive(pending, id, now, "a").expect("there is a session");
        };
        let (pending, _, now) = begun(&trainer);
        ended(&pending, now + TIMEOUT, "silence");
        let (pending, id, now) = begun(&trainer);
        assert_eq!(code(pending.room(id, 101, now)), "update_too_large");
        ended(&pending, now, "too much");
        let (pending, _, now) = begun(&trainer);
        pending.drop_all();
        ended(&pending, now, "a refusal");
        // Also one for which no update is open.
        let (pending, id, now) = begun(&trainer);
        drop(pending.take(now).expect("it is open"));
        assert_eq!(code(receive(&pending, id, now, "a")), "no_update");
        pending.drop_all();
        ended(&pending, now, "a refusal without an update");
        let (pending, id, now) = begun(&trainer);
        receive(&pending, id, now, "a").expect("it is sent");
        assert_eq!(code(receive(&pending, id, now, "a")), "duplicate_tensor");
        ended(&pending, now, "tensors that do not fit");
        // Dropped while it receives, which has its own time limit.
        let (pending, id, now) = begun(&trainer);
        let dropped = pending.by_session(id, now, |_| {
            assert_eq!(code(pending.set_session(None)), "update_open");
            assert!(pending.expire(id, now + 2 * TIMEOUT).is_some(), "nobody is silent while tensors come");
            pending.drop_all();
            Ok(())
        });
        assert_eq!(code(dropped), "no_update");
        ended(&pending, now, "dropped while it received");
    }
}
