//! The order in which the forms of requests are compiled: a few at once, the clients in turn, each client's in the
//! order in which they came. A client never has all permits, so that the first form of another one waits for none of
//! them. How a form is compiled is left to the engine.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offshoot_form::FORMS_AT_ONCE;
use tokio::sync::oneshot::{self, Sender};

use super::keys::ClientId;

/// Permits that one client may have at once.
const MOST_OF_CLIENT: usize = FORMS_AT_ONCE - 1;

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
    /// Who waits, by client: the client that is to have the next permit first.
    waiting: VecDeque<(ClientId, VecDeque<Sender<FormPermit>>)>,
}

/// A permit to compile a form of a client, given back when it is dropped.
pub struct FormPermit {
    permits: Arc<FormPermits>,
    client: ClientId,
}

impl FormPermits {
    /// Waits for a permit. Who does not wait any more is passed over.
    pub async fn take(self: &Arc<Self>, client: ClientId) -> FormPermit {
        let (sender, receiver) = oneshot::channel();
        self.lock().wait(client, sender);
        self.give();
        receiver.await.expect("who waits is forgotten only with a permit")
    }

    /// Gives the permits that are free to those who wait.
    fn give(self: &Arc<Self>) {
        loop {
            // One whose taker has left just now comes back at once, which asks for the lock again.
            let Some((client, next)) = self.lock().next() else { return };
            drop(next.send(FormPermit { permits: self.clone(), client }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, PermitOrder> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PermitOrder {
    fn wait(&mut self, client: ClientId, sender: Sender<FormPermit>) {
        match self.waiting.iter_mut().find(|(other, _)| *other == client) {
            Some((_, own)) => own.push_back(sender),
            None => self.waiting.push_back((client, VecDeque::from([sender]))),
        }
    }

    /// Takes a permit for whoever is to have the next one; `None`: nobody is, or none is free.
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

    use super::*;

    type Waiting = Pin<Box<dyn Future<Output = FormPermit>>>;

    fn wait(permits: &Arc<FormPermits>, client: usize) -> Waiting {
        let permits = permits.clone();
        let mut waiting: Waiting = Box::pin(async move { permits.take(ClientId(client)).await });
        assert!(matches!(poll(&mut waiting), Poll::Pending), "a permit was free");
        waiting
    }

    fn take(permits: &Arc<FormPermits>, client: usize) -> FormPermit {
        let permits = permits.clone();
        let mut waiting: Waiting = Box::pin(async move { permits.take(ClientId(client)).await });
        let Poll::Ready(permit) = poll(&mut waiting) else { panic!("no permit is free for client {client}") };
        permit
    }

    fn poll(waiting: &mut Waiting) -> Poll<FormPermit> {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_client_with_many_forms_leaves_turns_to_others() {
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
        let Poll::Ready(first) = poll(&mut many[0]) else { panic!("it is the next of the client that waits longest") };
        assert!(matches!((poll(&mut second), poll(&mut third)), (Poll::Pending, Poll::Pending)));
        drop(first);
        let Poll::Ready(of_second) = poll(&mut second) else { panic!("the second client is next") };
        drop(last);
        let Poll::Ready(of_third) = poll(&mut third) else { panic!("and then the third") };
        assert!(many[1..].iter_mut().all(|waiting| poll(waiting).is_pending()), "all permits are taken");
        drop((of_second, of_third));
    }

    #[test]
    fn who_leaves_is_passed_over() {
        let permits = Arc::new(FormPermits::default());
        let held: Vec<FormPermit> = (0..MOST_OF_CLIENT).map(|_| take(&permits, 1)).collect();
        let (left, mut stays) = (wait(&permits, 1), wait(&permits, 1));
        drop(left);
        drop(held);
        let Poll::Ready(permit) = poll(&mut stays) else { panic!("there are permits") };
        // One that was given to somebody who left before taking it comes back.
        let others: Vec<FormPermit> = (1..MOST_OF_CLIENT).map(|_| take(&permits, 1)).collect();
        let (given, mut next) = (wait(&permits, 1), wait(&permits, 1));
        drop(permit);
        drop(given);
        assert!(poll(&mut next).is_ready());
        drop(others);
        assert_eq!(permits.lock().taken, 0);
    }
}
