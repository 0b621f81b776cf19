//! Kept branches: a finished choice that a later request continues. An id cannot be guessed and belongs to the client
//! that made it; its lease owns the branch in the engine, and with it the claim on its pages, until it is released or
//! its time to live has passed. Under pressure the engine may take the pages; the branch is then computed again when it
//! is used. A response that is stored is such a branch, whose id is the response's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_core::setting::MAX_KEPT;
use offshoot_engine::EngineHandle;
use offshoot_kv::CacheSalt;
use offshoot_openai::protocol::Refusal;

use super::keys::ClientId;
use super::random::random_hex;
use super::responses::{KeptResponse, KeptTurns, ResponseMemory};

/// How many branches may be kept.
#[derive(Clone, Copy, Debug)]
pub struct LeaseLimits {
    /// Most branches of each client.
    pub each: usize,
    /// Time to live of branches whose request does not say.
    pub time_to_live: Duration,
}

/// What becomes of a request whose branches are more than its client may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    Refused,
    /// Responses of the client are forgotten for it; without them it is refused.
    ResponsesGiveWay,
}

/// What a later request continues.
#[derive(Clone, Debug)]
pub struct KeptPrompt {
    pub tokens: Arc<[TokenId]>,
    /// That of the request that kept it.
    pub salt: Option<CacheSalt>,
    /// The name of the adapter of the request that kept it, which may be replaced meanwhile.
    pub adapter: Option<String>,
}

struct Lease {
    client: ClientId,
    branch: BranchId,
    kept: KeptPrompt,
    /// The response whose conversation the branch is, if it is one.
    response: Option<Arc<KeptResponse>>,
    time_to_live: Duration,
    expires: Instant,
}

impl Lease {
    /// When the branch was used last.
    fn used(&self) -> Instant {
        self.expires - self.time_to_live
    }
}

#[derive(Default)]
struct KeptBranches {
    by_id: HashMap<String, Lease>,
    /// Branches that each client keeps, those promised to requests in progress included.
    counts: HashMap<ClientId, usize>,
}

/// All kept branches of a server.
pub struct Leases {
    engine: EngineHandle,
    limits: LeaseLimits,
    kept: Mutex<KeptBranches>,
    /// Of the responses among them.
    pub memory: ResponseMemory,
}

impl Leases {
    pub fn new(engine: EngineHandle, limits: LeaseLimits) -> Self {
        Leases { engine, limits, kept: Mutex::default(), memory: ResponseMemory::default() }
    }

    pub fn usual_time_to_live(&self) -> Duration {
        self.limits.time_to_live
    }

    /// Promises `branches` to a client; refused beyond its limit, for good if they alone are more. What is promised is
    /// either kept or taken back. Where responses give way, [`Leases::forget_beyond`] is to follow once the request is
    /// taken.
    pub fn promise(&self, client: ClientId, branches: usize, beyond: Beyond) -> Result<(), Refusal> {
        let most = self.limits.each;
        if branches > most {
            let expected = format!("at most {most} branches of a request with `keep`: {MAX_KEPT}");
            return Err(Refusal::value("n", &expected, &branches.to_string()));
        }
        let mut kept = self.lock();
        let count = kept.counts.get(&client).copied().unwrap_or(0);
        let needed = count.saturating_add(branches).saturating_sub(most);
        if needed > 0 && (beyond == Beyond::Refused || kept.responses_of(client) < needed) {
            let what = format!("{count} branches are kept; at most {most} may be");
            return Err(Refusal::rate_limit(what, self.limits.time_to_live.as_secs().min(60)));
        }
        if branches > 0 {
            kept.counts.insert(client, count + branches);
        }
        Ok(())
    }

    /// Takes back a promise.
    pub fn take_back(&self, client: ClientId, branches: usize) {
        self.lock().forget(client, branches);
    }

    /// Keeps a branch that was promised. The lease owns it from now on; its id has 128 random bits.
    pub fn keep(&self, client: ClientId, branch: BranchId, kept: KeptPrompt, time_to_live: Duration) -> String {
        let id = format!("branch-{}", random_hex::<16>());
        let expires = Instant::now() + time_to_live;
        self.lock().by_id.insert(id.clone(), Lease { client, branch, kept, response: None, time_to_live, expires });
        id
    }

    /// Makes a kept branch a response of this id. Where the responses of all clients take too much memory, those of the
    /// client that has most of it are forgotten, the ones that were used longest ago first. A branch that is gone stays
    /// so.
    pub fn keep_response(&self, client: ClientId, branch: &str, id: String, turns: KeptTurns) {
        let mut kept = self.lock();
        if kept.by_id.get(branch).is_none_or(|lease| lease.client != client) {
            return;
        }
        let Some(mut lease) = kept.by_id.remove(branch) else { return };
        lease.response = Some(Arc::new(self.memory.keep(client, turns, lease.kept.tokens.len())));
        kept.by_id.insert(id, lease);
        while self.memory.is_full() {
            // Of a client that reads what was forgotten meanwhile nothing is left to forget.
            let mut clients = self.memory.clients_by_bytes().into_iter();
            if !clients.any(|client| self.forget_oldest(&mut kept, client)) {
                break;
            }
        }
    }

    /// Forgets the responses of a client that were used longest ago, as long as it has more branches than it may.
    pub fn forget_beyond(&self, client: ClientId) {
        let mut kept = self.lock();
        while kept.counts.get(&client).is_some_and(|&count| count > self.limits.each)
            && self.forget_oldest(&mut kept, client)
        {}
    }

    /// Whether a client can keep branches at all.
    pub fn can_keep(&self) -> bool {
        self.limits.each > 0
    }

    /// A response that is kept and the tokens of its branch. Its time to live begins anew.
    pub fn response(&self, client: ClientId, id: &str) -> Result<(Arc<KeptResponse>, KeptPrompt), Refusal> {
        let mut kept = self.lock();
        let lease = kept.by_id.get_mut(id).filter(|lease| lease.client == client);
        let found = lease.and_then(|lease| {
            let response = lease.response.clone()?;
            lease.expires = Instant::now() + lease.time_to_live;
            Some((response, lease.kept.clone()))
        });
        found.ok_or_else(|| {
            let shown: String = id.chars().take(60).collect();
            let why = "it was deleted or not stored, its time has passed, or newer ones took its place";
            Refusal::not_found(format!("there is no response {shown:?}: {why}"))
        })
    }

    /// Ends the lease of the response of this client that was used longest ago; false if there is none.
    fn forget_oldest(&self, kept: &mut KeptBranches, client: ClientId) -> bool {
        let own = kept.by_id.iter().filter(|(_, lease)| lease.client == client && lease.response.is_some());
        let oldest = own.min_by_key(|(_, lease)| lease.used());
        let Some(id) = oldest.map(|(id, _)| id.clone()) else { return false };
        self.end(kept, &[id]);
        true
    }

    /// What a kept branch, whose time to live begins anew, has.
    pub fn renew(&self, client: ClientId, id: &str) -> Result<KeptPrompt, Refusal> {
        let mut kept = self.lock();
        let lease = kept.by_id.get_mut(id).filter(|lease| lease.client == client).ok_or_else(|| unknown(id))?;
        lease.expires = Instant::now() + lease.time_to_live;
        Ok(lease.kept.clone())
    }

    /// Ends a lease.
    pub fn release(&self, client: ClientId, id: &str) -> Result<(), Refusal> {
        let mut kept = self.lock();
        if kept.by_id.get(id).is_none_or(|lease| lease.client != client) {
            return Err(unknown(id));
        }
        self.end(&mut kept, &[id.to_owned()]);
        Ok(())
    }

    /// Ends the leases whose time has passed.
    pub fn expire(&self, now: Instant) {
        let mut kept = self.lock();
        let past: Vec<String> =
            kept.by_id.iter().filter(|(_, lease)| lease.expires <= now).map(|(id, _)| id.clone()).collect();
        self.end(&mut kept, &past);
    }

    /// The number of kept branches, responses among them.
    pub fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    /// The number of kept responses.
    pub fn responses(&self) -> usize {
        self.lock().by_id.values().filter(|lease| lease.response.is_some()).count()
    }

    /// A kept branch as a client sees it.
    pub fn describe(&self, client: ClientId, id: &str) -> Result<Value, Refusal> {
        let kept = self.lock();
        let lease = kept.by_id.get(id).filter(|lease| lease.client == client).ok_or_else(|| unknown(id))?;
        let left = lease.expires.saturating_duration_since(Instant::now()).as_secs();
        Ok(json!({ "id": id, "object": "branch", "tokens": lease.kept.tokens.len(), "expires_in": left }))
    }

    fn end(&self, kept: &mut KeptBranches, ids: &[String]) {
        let mut branches = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(lease) = kept.by_id.remove(id) else { continue };
            branches.push(lease.branch);
            kept.forget(lease.client, 1);
        }
        if !branches.is_empty() {
            self.engine.release(&branches);
        }
    }

    fn lock(&self) -> MutexGuard<'_, KeptBranches> {
        self.kept.lock().expect("nothing panics while it holds the leases")
    }
}

impl KeptBranches {
    fn responses_of(&self, client: ClientId) -> usize {
        self.by_id.values().filter(|lease| lease.client == client && lease.response.is_some()).count()
    }

    fn forget(&mut self, client: ClientId, branches: usize) {
        if let Some(count) = self.counts.get_mut(&client) {
            *count = count.saturating_sub(branches);
            if *count == 0 {
                self.counts.remove(&client);
            }
        }
    }
}

fn unknown(id: &str) -> Refusal {
    let shown: String = id.chars().take(60).collect();
    Refusal::not_found(format!("there is no branch {shown:?}: it was released, or its time has passed"))
}

#[cfg(test)]
mod tests {
    use offshoot_engine::ScriptedReply;
    use offshoot_openai::protocol::Turn;

    use super::*;

    fn leases(each: usize) -> Leases {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("a"));
        Leases::new(engine, LeaseLimits { each, time_to_live: Duration::from_secs(600) })
    }

    impl Leases {
        /// Keeps a response of a text of so many bytes.
        fn store(&self, client: ClientId, id: &str, bytes: usize) {
            let kept = KeptPrompt { tokens: Arc::default(), salt: None, adapter: None };
            let branch = self.keep(client, BranchId::new(0), kept, self.usual_time_to_live());
            let last = Turn { input: vec![json!("a".repeat(bytes))], response: json!({}) };
            self.keep_response(client, &branch, id.to_owned(), KeptTurns { earlier: Vec::new(), own: last });
        }

        fn has(&self, client: ClientId, id: &str) -> bool {
            self.response(client, id).is_ok()
        }
    }

    const MANY: usize = 100;

    #[test]
    fn responses_of_who_has_most_are_forgotten_first() {
        let leases = Leases { memory: ResponseMemory::bounded(10_000), ..leases(MANY) };
        let (small, large) = (ClientId(1), ClientId(2));
        leases.store(small, "first", 1000);
        leases.store(large, "second", 4000);
        for id in ["third", "fourth", "fifth"] {
            leases.store(large, id, 4000);
        }
        assert!(leases.has(small, "first") && leases.has(large, "fifth"));
        assert!(!leases.has(large, "second") && !leases.has(large, "third"));
        // A response that is larger than all may be goes itself.
        leases.store(large, "sixth", 20_000);
        assert!(leases.has(small, "first") && !leases.has(large, "sixth"));
    }

    #[test]
    fn a_response_gives_way_once_a_request_is_taken() {
        let leases = leases(2);
        let client = ClientId(0);
        for id in ["first", "second"] {
            leases.promise(client, 1, Beyond::ResponsesGiveWay).expect("there is room");
            leases.store(client, id, 10);
        }
        assert!(leases.promise(client, 1, Beyond::Refused).is_err());
        // A request that is refused in the end costs no response.
        leases.promise(client, 1, Beyond::ResponsesGiveWay).expect("a response gives way");
        leases.take_back(client, 1);
        leases.forget_beyond(client);
        assert!(leases.has(client, "first") && leases.has(client, "second"));
        // Two requests at once: a response each, and none is left for a third.
        for _ in 0..2 {
            leases.promise(client, 1, Beyond::ResponsesGiveWay).expect("a response gives way");
        }
        assert!(leases.promise(client, 1, Beyond::ResponsesGiveWay).is_err());
        leases.forget_beyond(client);
        assert_eq!((leases.responses(), leases.len()), (0, 0));
    }
}
