//! The table of kept branches: by their ids, and of each client how many it has and in which order its responses were
//! used. What may be kept, and what the engine is told, is left to `leases`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use offshoot_core::ids::BranchId;

use super::keys::ClientId;
use super::leases::KeptPrompt;
use super::responses::KeptResponse;

/// A kept branch.
pub struct Lease {
    pub client: ClientId,
    pub branch: BranchId,
    pub kept: KeptPrompt,
    /// The response whose conversation the branch is, if it is one.
    pub response: Option<StoredResponse>,
    pub time_to_live: Duration,
    pub expires: Instant,
}

pub struct StoredResponse {
    pub kept: Arc<KeptResponse>,
    last_use: UseNumber,
}

/// Numbers the uses of all responses: a later use has a larger number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UseNumber(u64);

/// All kept branches.
#[derive(Default)]
pub struct KeptBranches {
    pub by_id: HashMap<String, Lease>,
    pub of_clients: HashMap<ClientId, ClientBranches>,
    last_use: UseNumber,
}

/// What a client keeps.
#[derive(Default)]
pub struct ClientBranches {
    /// Branches, those promised to requests in progress included.
    pub count: usize,
    /// The ids of its responses by their last use.
    pub responses: BTreeMap<UseNumber, String>,
}

impl KeptBranches {
    /// Notes that a response is used now, for the first time or again.
    fn use_now(&mut self, client: ClientId, id: String) -> UseNumber {
        self.last_use.0 += 1;
        self.of_clients.entry(client).or_default().responses.insert(self.last_use, id);
        self.last_use
    }

    /// Makes the branch that is kept under this id a response under its own; one that is gone stays so.
    pub fn store(&mut self, client: ClientId, branch: &str, id: String, response: Arc<KeptResponse>) {
        let Some(mut lease) = self.by_id.remove(branch) else { return };
        lease.response = Some(StoredResponse { kept: response, last_use: self.use_now(client, id.clone()) });
        self.by_id.insert(id, lease);
    }

    /// The lease of this client, which is used now: its time to live begins anew.
    pub fn renew(&mut self, client: ClientId, id: &str) -> Option<&Lease> {
        let lease = self.by_id.get(id).filter(|lease| lease.client == client)?;
        let before = lease.response.as_ref().map(|response| response.last_use);
        let of_client = self.of_clients.get_mut(&client);
        let id_again = before.zip(of_client).and_then(|(before, own)| own.responses.remove(&before));
        let now = id_again.map(|id| self.use_now(client, id));
        let lease = self.by_id.get_mut(id)?;
        lease.expires = Instant::now() + lease.time_to_live;
        if let (Some(response), Some(now)) = (&mut lease.response, now) {
            response.last_use = now;
        }
        Some(lease)
    }

    /// Ends a lease.
    pub fn end(&mut self, id: &str) -> Option<Lease> {
        let lease = self.by_id.remove(id)?;
        if let (Some(own), Some(response)) = (self.of_clients.get_mut(&lease.client), &lease.response) {
            own.responses.remove(&response.last_use);
        }
        self.forget(lease.client, 1);
        Some(lease)
    }

    /// Ends the lease of the response of this client that was used longest ago.
    pub fn end_oldest(&mut self, client: ClientId) -> Option<Lease> {
        let (_, id) = self.of_clients.get(&client)?.responses.first_key_value()?;
        let id = id.clone();
        self.end(&id)
    }

    /// Counts so many branches of a client no longer.
    pub fn forget(&mut self, client: ClientId, branches: usize) {
        if let Some(own) = self.of_clients.get_mut(&client) {
            own.count = own.count.saturating_sub(branches);
            if own.count == 0 && own.responses.is_empty() {
                self.of_clients.remove(&client);
            }
        }
    }
}
