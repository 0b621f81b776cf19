//! Kept branches: a finished choice that a later request continues. An id cannot be guessed and belongs to the client
//! that made it; its lease owns the branch in the engine, and with it the claim on its pages, until it is released or
//! its time to live has passed. Under pressure the engine may take the pages; the branch is then computed again when it
//! is used.

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

/// How many branches may be kept.
#[derive(Clone, Copy, Debug)]
pub struct LeaseLimits {
    /// Most branches of each client.
    pub each: usize,
    /// Time to live of branches whose request does not say.
    pub time_to_live: Duration,
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
    time_to_live: Duration,
    expires: Instant,
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
}

impl Leases {
    pub fn new(engine: EngineHandle, limits: LeaseLimits) -> Self {
        Leases { engine, limits, kept: Mutex::default() }
    }

    pub fn usual_time_to_live(&self) -> Duration {
        self.limits.time_to_live
    }

    /// Promises `branches` to a client; refused beyond its limit, for good if they alone are more. What is promised is
    /// either kept or taken back.
    pub fn promise(&self, client: ClientId, branches: usize) -> Result<(), Refusal> {
        let most = self.limits.each;
        if branches > most {
            let expected = format!("at most {most} branches of a request with `keep`: {MAX_KEPT}");
            return Err(Refusal::value("n", &expected, &branches.to_string()));
        }
        let mut kept = self.lock();
        let count = kept.counts.entry(client).or_default();
        if count.saturating_add(branches) > most {
            let what = format!("{count} branches are kept; at most {most} may be");
            return Err(Refusal::rate_limit(what, self.limits.time_to_live.as_secs().min(60)));
        }
        *count += branches;
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
        self.lock().by_id.insert(id.clone(), Lease { client, branch, kept, time_to_live, expires });
        id
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

    /// The number of kept branches.
    pub fn len(&self) -> usize {
        self.lock().by_id.len()
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
