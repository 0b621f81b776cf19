//! The order in which the forms of requests are compiled: a few at once, the clients in turn, each client's in the
//! order in which they came. A client never has all permits, so that the first form of another one waits for none of
//! them. Nobody waits without end, and of each client so many wait at most. How a form is compiled is left to the
//! engine.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offshoot_core::error::Error;
use offshoot_form::FORMS_AT_ONCE;
use offshoot_openai::protocol::Refusal;
use tokio::sync::oneshot::{self, Sender};

use super::keys::ClientId;

/// Permits that one client may have at once.
const MOST_OF_CLIENT: usize = FORMS_AT_ONCE - 1;
/// Requests of one client that may wait for a permit.
const MOST_WAITING: usize = 1024;
/// How long a request may wait for a permit.
pub const PERMIT_WAIT: Duration = Duration::from_secs(30);

/// Permits to compile a form.
#[derive(Default)]
pub struct FormPermits {
    order: Mutex<PermitOrder>,
}

#[derive(Default)]
struct PermitOrder {
    taken: usize,
    /// Of them, those of each client that has some.
    of_clients: HashMap<ClientId, usize>,
    /// The requests that wait, by client; the client whose turn is next comes first.
    waiting: VecDeque<(ClientId, VecDeque<Sender<FormPermit>>)>,
}

/// A permit to compile a form of a client, given back when it is dropped.
pub struct FormPermit {
    permits: Arc<FormPermits>,
    client: ClientId,
}

impl FormPermits {
    /// Waits for a permit until `deadline`. A request whose client has left meanwhile gets none.
    ///
    /// # Errors
    ///
    /// There is none until then, or too many requests of the client wait already.
    pub async fn take(self: &Arc<Self>, client: ClientId, deadline: Instant) -> Result<FormPermit, Refusal> {
        let (sender, receiver) = oneshot::channel();
        if !self.lock().wait(client, sender) {
            return Err(busy("more forms of this key wait to be compiled than may wait"));
        }
        self.give();
        let waited = tokio::time::timeout_at(deadline.into(), receiver).await;
        waited.map_err(|_| busy("other forms are being compiled"))?.map_err(|_| Refusal::shutting_down())
    }

    /// Gives the permits that are free to the requests that wait.
    fn give(self: &Arc<Self>) {
        loop {
            // The permit of a request that has just ended comes back at once, which takes the lock again.
            let Some((client, next)) = self.lock().next() else { return };
            drop(next.send(FormPermit { permits: self.clone(), client }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, PermitOrder> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy(why: &str) -> Refusal {
    Refusal::of(&Error::busy("the form", format!("{why}; try again")))
}

impl PermitOrder {
    /// Has a request of the client wait, unless too many do.
    fn wait(&mut self, client: ClientId, sender: Sender<FormPermit>) -> bool {
        let Some((_, own)) = self.waiting.iter_mut().find(|(other, _)| *other == client) else {
            self.waiting.push_back((client, VecDeque::from([sender])));
            return true;
        };
        if own.len() >= MOST_WAITING {
            own.retain(|waiting| !waiting.is_closed());
        }
        let has_room = own.len() < MOST_WAITING;
        if has_room {
            own.push_back(sender);
        }
        has_room
    }

    /// Takes the next permit, and says where it goes; `None`: no request waits for one that it may have, or none is
    /// free.
    fn next(&mut self) -> Option<(ClientId, Sender<FormPermit>)> {
        if self.taken >= FORMS_AT_ONCE {
            return None;
        }
        loop {
            let permits = |client| self.of_clients.get(client).copied().unwrap_or(0);
            let at = self.waiting.iter().position(|(client, _)| permits(client) < MOST_OF_CLIENT)?;
            let (client, mut own) = self.waiting.remove(at)?;
            let next = std::iter::from_fn(|| own.pop_front()).find(|next| !next.is_closed());
            if !own.is_empty() {
                self.waiting.push_back((client, own));
            }
            if let Some(next) = next {
                self.taken += 1;
                *self.of_clients.entry(client).or_default() += 1;
                return Some((client, next));
            }
        }
    }

    fn give_back(&mut self, client: ClientId) {
        self.taken -= 1;
        let left = self.of_clients.get(&client).map_or(0, |permits| permits - 1);
        match left {
            0 => drop(self.of_clients.remove(&client)),
            left => drop(self.of_clients.insert(client, left)),
        }
    }
}

impl Drop for FormPermit {
    fn drop(&mut self) {
        self.permits.lock().give_back(self.client);
        self.permits.give();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    type Waiting = Pin<Box<dyn Future<Output = Result<FormPermit, Refusal>>>>;

    /// What the deadlines of requests need.
    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().expect("a runtime starts")
    }

    fn begin(permits: &Arc<FormPermits>, client: usize, deadline: Instant) -> Waiting {
        let permits = permits.clone();
        Box::pin(async move { permits.take(ClientId(client), deadline).await })
    }

    fn wait(permits: &Arc<FormPermits>, client: usize) -> Waiting {
        let mut waiting = begin(permits, client, Instant::now() + Duration::from_secs(3600));
        assert!(poll(&mut waiting).is_none(), "a permit was free");
        waiting
    }

    fn take(permits: &Arc<FormPermits>, client: usize) -> FormPermit {
        let mut waiting = begin(permits, client, Instant::now() + Duration::from_secs(3600));
        poll(&mut waiting).unwrap_or_else(|| panic!("no permit is free for client {client}"))
    }

    fn poll(waiting: &mut Waiting) -> Option<FormPermit> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit.unwrap_or_else(|refusal| panic!("{}", refusal.message))),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_with_many_forms_leaves_turns_to_others() {
        let runtime = runtime();
        let _runtime = runtime.enter();
        let permits = Arc::new(FormPermits::default());
        let mut held: Vec<FormPermit> = (0..MOST_OF_CLIENT).map(|_| take(&permits, 1)).collect();
        let mut many: Vec<Waiting> = (0..20).map(|_| wait(&permits, 1)).collect();
        // Others have one at once, whatever waits.
        for client in [2, 3, 2] {
            drop(take(&permits, client));
        }
        // Where all are taken, the clients come in turn.
        let last = take(&permits, 2);
        let (mut second, mut third) = (wait(&permits, 2), wait(&permits, 3));
        held.pop();
        let first = poll(&mut many[0]).expect("it is the next of the client that waits longest");
        assert!(poll(&mut second).is_none() && poll(&mut third).is_none());
        drop(first);
        let of_second = poll(&mut second).expect("the second client is next");
        drop(last);
        let of_third = poll(&mut third).expect("and then the third");
        assert!(many[1..].iter_mut().all(|waiting| poll(waiting).is_none()), "all permits are taken");
        drop((of_second, of_third));
    }

    #[test]
    fn a_request_that_has_ended_gets_no_permit() {
        let runtime = runtime();
        let _runtime = runtime.enter();
        let permits = Arc::new(FormPermits::default());
        let held: Vec<FormPermit> = (0..MOST_OF_CLIENT).map(|_| take(&permits, 1)).collect();
        let (left, mut stays) = (wait(&permits, 1), wait(&permits, 1));
        drop(left);
        drop(held);
        let permit = poll(&mut stays).expect("there are permits");
        // One that was given to a request that ended before taking it comes back.
        let others: Vec<FormPermit> = (1..MOST_OF_CLIENT).map(|_| take(&permits, 1)).collect();
        let (given, mut next) = (wait(&permits, 1), wait(&permits, 1));
        drop(permit);
        drop(given);
        assert!(poll(&mut next).is_some());
        drop((next, others));
        assert_eq!(permits.lock().taken, 0);
    }

    #[test]
    fn a_wait_for_a_permit_has_an_end() {
        let runtime = runtime();
        let permits = Arc::new(FormPermits::default());
        let entered = runtime.enter();
        let held: Vec<FormPermit> = (0..MOST_OF_CLIENT).map(|_| take(&permits, 1)).collect();
        drop(entered);
        let refused = |deadline| runtime.block_on(permits.take(ClientId(1), deadline)).map(drop);
        let refusal = refused(Instant::now() + Duration::from_millis(20)).expect_err("all permits are held");
        assert!(refusal.status() == 503 && refusal.retry_after.is_some(), "{}", refusal.message);
        // As many wait as may: one more is refused at once, whenever its deadline is; another client's is not.
        let _runtime = runtime.enter();
        let mut waiting: Vec<Waiting> = (0..MOST_WAITING).map(|_| wait(&permits, 1)).collect();
        let Poll::Ready(full) = begin(&permits, 1, Instant::now() + Duration::from_secs(3600))
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it waits among too many")
        };
        assert_eq!(full.map(drop).expect_err("there is no room").status(), 503);
        drop(take(&permits, 2));
        // The places of requests that have ended are free.
        waiting.pop();
        waiting.push(wait(&permits, 1));
        drop(held);
        assert!(poll(&mut waiting[0]).is_some());
    }
}
