//! Kept branches: a finished choice that a later request continues. An id cannot be guessed and belongs to the client
//! that made it; its lease owns the branch in the engine, and with it the claim on its pages, until it is released or
//! its time to live has passed. Under pressure the engine may take the pages; the branch is then computed again when it
//! is used. A response that is stored is such a branch, whose id is the response's.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_core::setting::MAX_KEPT;
use offshoot_engine::EngineHandle;
use offshoot_form::FormKey;
use offshoot_kv::CacheSalt;
use offshoot_launch::FormBegun;
use offshoot_openai::protocol::Refusal;

use super::kept_branches::{KeptBranches, Lease};
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
    /// The form that its last tokens are in, if that is not complete.
    pub form: Option<BranchForm>,
}

/// The form that the last tokens of a kept branch are in. The form itself is not kept: a request that goes on in it
/// has an equal one.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchForm {
    /// Which form it is.
    pub key: FormKey,
    pub begun: FormBegun,
}

/// A kept branch whose id was sent to nobody yet. Dropped, as where the client has left meanwhile, it is released.
pub struct UnsentBranch {
    leases: Arc<Leases>,
    client: ClientId,
    id: String,
    /// Those of the branch.
    tokens: usize,
    is_sent: bool,
}

impl UnsentBranch {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id, for an answer that is about to be sent. The branch is kept until its client releases it, or its time
    /// has passed.
    pub fn into_id(mut self) -> String {
        self.is_sent = true;
        std::mem::take(&mut self.id)
    }
}

impl fmt::Debug for UnsentBranch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsentBranch").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for UnsentBranch {
    fn drop(&mut self) {
        if !self.is_sent {
            // Its time may have passed.
            let _ = self.leases.release(self.client, &self.id);
        }
    }
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
        let own = kept.of_clients.get(&client);
        let (count, responses) = own.map_or((0, 0), |own| (own.count, own.responses.len()));
        let needed = count.saturating_add(branches).saturating_sub(most);
        if needed > 0 && (beyond == Beyond::Refused || responses < needed) {
            let what = format!("{count} branches are kept; at most {most} may be");
            return Err(Refusal::rate_limit(what, self.limits.time_to_live.as_secs().min(60)));
        }
        if branches > 0 {
            kept.of_clients.entry(client).or_default().count += branches;
        }
        Ok(())
    }

    /// Takes back a promise.
    pub fn take_back(&self, client: ClientId, branches: usize) {
        self.lock().forget(client, branches);
    }

    /// Keeps a branch that was promised. The lease owns it from now on; its id has 128 random bits.
    pub fn keep(
        self: &Arc<Self>,
        client: ClientId,
        branch: BranchId,
        kept: KeptPrompt,
        time_to_live: Duration,
    ) -> UnsentBranch {
        let id = format!("branch-{}", random_hex::<16>());
        let (tokens, expires) = (kept.tokens.len(), Instant::now() + time_to_live);
        self.lock().by_id.insert(id.clone(), Lease { client, branch, kept, response: None, time_to_live, expires });
        UnsentBranch { leases: self.clone(), client, id, tokens, is_sent: false }
    }

    /// Makes a kept branch a response of this id. Where the responses of all clients take too much memory, those of the
    /// client that has most of it are forgotten, the ones that were used longest ago first. If open requests hold what
    /// it has, so that nothing is left to forget, this response is not kept: others' are not to blame. A branch that is
    /// gone stays so.
    pub fn keep_response(&self, branch: UnsentBranch, id: String, turns: KeptTurns) {
        let client = branch.client;
        // Long ones take long to be counted, which holds up nobody.
        let response = Arc::new(self.memory.keep(client, turns, branch.tokens));
        self.lock().store(client, &branch.into_id(), id.clone(), response);
        while self.memory.is_full() {
            let oldest = self.memory.largest_client().and_then(|client| self.lock().end_oldest(client));
            let Some(ended) = oldest.or_else(|| self.lock().end(&id)) else { break };
            self.give_up(vec![ended]);
        }
    }

    /// Forgets the responses of a client that were used longest ago, as long as it has more branches than it may.
    pub fn forget_beyond(&self, client: ClientId) {
        let end = || {
            let mut kept = self.lock();
            let count = kept.of_clients.get(&client).map_or(0, |own| own.count);
            (count > self.limits.each).then(|| kept.end_oldest(client))?
        };
        self.give_up(std::iter::from_fn(end).collect());
    }

    /// Whether a client can keep branches at all.
    pub fn can_keep(&self) -> bool {
        self.limits.each > 0
    }

    /// A response that is kept and the tokens of its branch. Its time to live begins anew.
    pub fn response(&self, client: ClientId, id: &str) -> Result<(Arc<KeptResponse>, KeptPrompt), Refusal> {
        let find = |lease: &Lease| Some((lease.response.as_ref()?.kept.clone(), lease.kept.clone()));
        self.lock().renew(client, id).and_then(find).ok_or_else(|| {
            let shown: String = id.chars().take(60).collect();
            let why = "it was deleted or not stored, its time has passed, or newer ones took its place";
            Refusal::not_found(format!("there is no response {shown:?}: {why}"))
        })
    }

    /// What a kept branch, whose time to live begins anew, has.
    pub fn renew(&self, client: ClientId, id: &str) -> Result<KeptPrompt, Refusal> {
        self.lock().renew(client, id).map(|lease| lease.kept.clone()).ok_or_else(|| unknown(id))
    }

    /// Ends a lease.
    pub fn release(&self, client: ClientId, id: &str) -> Result<(), Refusal> {
        let end = || {
            let mut kept = self.lock();
            kept.by_id.get(id).filter(|lease| lease.client == client)?;
            kept.end(id)
        };
        let lease = end().ok_or_else(|| unknown(id))?;
        self.give_up(vec![lease]);
        Ok(())
    }

    /// Ends the leases whose time has passed.
    pub fn expire(&self, now: Instant) {
        let end = || {
            let mut kept = self.lock();
            let past = kept.by_id.iter().filter(|(_, lease)| lease.expires <= now).map(|(id, _)| id.clone());
            past.collect::<Vec<String>>().iter().filter_map(|id| kept.end(id)).collect()
        };
        self.give_up(end());
    }

    /// Releases the branches of leases that have ended. What is said in responses takes long to be freed, which holds
    /// up nobody.
    fn give_up(&self, ended: Vec<Lease>) {
        let branches: Vec<BranchId> = ended.iter().map(|lease| lease.branch).collect();
        if !branches.is_empty() {
            self.engine.release(&branches);
        }
    }

    /// The number of kept branches, responses among them.
    pub fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    /// The number of kept responses.
    pub fn responses(&self) -> usize {
        self.lock().of_clients.values().map(|own| own.responses.len()).sum()
    }

    /// A kept branch as a client sees it.
    pub fn describe(&self, client: ClientId, id: &str) -> Result<Value, Refusal> {
        let kept = self.lock();
        let lease = kept.by_id.get(id).filter(|lease| lease.client == client).ok_or_else(|| unknown(id))?;
        let left = lease.expires.saturating_duration_since(Instant::now()).as_secs();
        Ok(json!({ "id": id, "object": "branch", "tokens": lease.kept.tokens.len(), "expires_in": left }))
    }

    fn lock(&self) -> MutexGuard<'_, KeptBranches> {
        self.kept.lock().expect("nothing panics while it holds the leases")
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

    fn leases(each: usize) -> Arc<Leases> {
        bounded(each, ResponseMemory::default())
    }

    fn bounded(each: usize, memory: ResponseMemory) -> Arc<Leases> {
        let engine = EngineHandle::scripted(|_| ScriptedReply::text("a"));
        let limits = LeaseLimits { each, time_to_live: Duration::from_secs(600) };
        Arc::new(Leases { memory, ..Leases::new(engine, limits) })
    }

    impl Leases {
        fn keep_branch(self: &Arc<Self>, client: ClientId) -> UnsentBranch {
            let kept = KeptPrompt { tokens: Arc::default(), salt: None, adapter: None, form: None };
            self.keep(client, BranchId::new(0), kept, self.usual_time_to_live())
        }

        /// Keeps a response of a text of so many bytes.
        fn store(self: &Arc<Self>, client: ClientId, id: &str, bytes: usize) {
            let last = Turn { input: vec![json!("a".repeat(bytes))], response: json!({}) };
            self.keep_response(self.keep_branch(client), id.to_owned(), KeptTurns { earlier: Vec::new(), own: last });
        }

        fn has(&self, client: ClientId, id: &str) -> bool {
            self.response(client, id).is_ok()
        }
    }

    const MANY: usize = 100;

    #[test]
    fn responses_of_who_has_most_are_forgotten_first() {
        let leases = bounded(MANY, ResponseMemory::bounded(10_000));
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

    /// A client's open requests hold the turns of its responses: ending these frees nothing.
    #[test]
    fn what_open_requests_hold_costs_others_no_response() {
        let leases = bounded(MANY, ResponseMemory::bounded(10_000));
        let (small, large) = (ClientId(1), ClientId(2));
        leases.store(small, "first", 1000);
        leases.store(large, "second", 7000);
        let (response, _) = leases.response(large, "second").expect("it is kept");
        leases.store(large, "third", 4000);
        assert!(leases.has(small, "first"));
        assert!(!leases.has(large, "second") && !leases.has(large, "third"));
        // Nor one of the client that stores more than there is room for.
        leases.store(small, "fourth", 4000);
        assert!(leases.has(small, "first") && !leases.has(small, "fourth"));
        drop(response);
        leases.store(small, "fifth", 4000);
        assert!(leases.has(small, "first") && leases.has(small, "fifth"));
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

    #[test]
    fn the_response_used_longest_ago_is_forgotten() {
        let leases = leases(3);
        let client = ClientId(0);
        let ids = ["first", "second", "third"];
        for id in ids {
            leases.promise(client, 1, Beyond::ResponsesGiveWay).expect("there is room");
            leases.store(client, id, 10);
        }
        // Used again, in another order and as a parent; another client finds none.
        assert!(leases.has(client, "first") && !leases.has(ClientId(1), "second"));
        assert!(leases.renew(client, "third").is_ok() && leases.renew(ClientId(1), "second").is_err());
        let mut forgotten = Vec::new();
        while leases.responses() > 0 {
            leases.promise(client, 1, Beyond::ResponsesGiveWay).expect("a response gives way");
            leases.forget_beyond(client);
            let is_gone = |id: &&&str| !leases.lock().by_id.contains_key(**id) && !forgotten.contains(*id);
            let gone: Vec<&str> = ids.iter().filter(is_gone).copied().collect();
            forgotten.extend(gone);
        }
        assert_eq!(forgotten, ["second", "first", "third"]);
    }

    #[test]
    fn a_branch_that_nobody_was_told_of_is_released() {
        let leases = leases(2);
        let client = ClientId(0);
        leases.promise(client, 2, Beyond::Refused).expect("there is room");
        let (lost, sent) = (leases.keep_branch(client), leases.keep_branch(client).into_id());
        assert_eq!(leases.len(), 2);
        drop(lost);
        assert_eq!(leases.len(), 1);
        assert!(leases.describe(client, &sent).is_ok());
        leases.promise(client, 1, Beyond::Refused).expect("its place is free");
    }
}
