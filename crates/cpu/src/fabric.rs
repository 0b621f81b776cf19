//! What CPU backends exchange that compute one model together: each gives a copy of its buffer, all meet, and each
//! reads those of all. It serves to test tensor parallelism without GPUs; it makes nothing faster.

use std::sync::{PoisonError, RwLock};

use super::attention::{AttentionScratch, tree_attention};
use super::{Cores, CpuBuffer, KvStore};
use offshoot_backend::Scoring;
use offshoot_backend::ranks::meeting::Meeting;
use offshoot_backend::ranks::{Fabric, Place};
use offshoot_core::ids::LayerIx;
use offshoot_kv::plan::{AttentionPlan, Member};

pub struct CpuFabric {
    /// What each rank has given.
    given: Vec<RwLock<Vec<f32>>>,
    meeting: Meeting,
}

impl CpuFabric {
    pub fn new(ranks: usize) -> Self {
        Self { given: (0..ranks).map(|_| RwLock::default()).collect(), meeting: Meeting::new(ranks) }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.given.len()
    }

    /// Gives `own` to all, and calls `read` with what each has given.
    pub fn exchange(&self, rank: usize, own: &[f32], read: impl FnOnce(&[&[f32]])) {
        {
            let mut given = self.given[rank].write().unwrap_or_else(PoisonError::into_inner);
            given.clear();
            given.extend_from_slice(own);
        }
        self.meeting.meet();
        {
            let given: Vec<_> =
                self.given.iter().map(|given| given.read().unwrap_or_else(PoisonError::into_inner)).collect();
            read(&given.iter().map(|given| given.as_slice()).collect::<Vec<_>>());
        }
        // Nobody gives anew before all have read.
        self.meeting.meet();
    }

    /// `out`, `[R, width / members]`, becomes what `states`, `[R, width]`, of a group of `members` neighbouring ranks
    /// merge to, for the rank's share of their heads. States are normalised results, with their log-sum-exps `lse`,
    /// `[R, heads]`; a row that sees nothing has zeros and -inf.
    pub fn merge_members(&self, rank: usize, members: usize, out: &mut CpuBuffer, states: &CpuBuffer, lse: &CpuBuffer) {
        let (rows, heads) = (states.rows, lse.width / members);
        let shapes = [(out.rows, out.width * members), (lse.rows, states.width)];
        assert_eq!(shapes, [(rows, states.width); 2], "merge_members: shapes");
        let (of_group, head_dim) = (lse.width, out.width / heads.max(1));
        let own: Vec<f32> = states.data.iter().chain(&lse.data).copied().collect();
        let (first_rank, first_head) = (rank / members * members, rank % members * heads);
        self.exchange(rank, &own, |given| {
            let given = &given[first_rank..first_rank + members];
            assert!(given.iter().all(|given| given.len() == own.len()), "merge_members: all have the same shape");
            let given: Vec<(&[f32], &[f32])> = given.iter().map(|given| given.split_at(states.data.len())).collect();
            for (at, out) in out.data.chunks_exact_mut(head_dim.max(1)).enumerate() {
                let at = at / heads * of_group + first_head + at % heads;
                let parts = given.iter().map(|(states, lse)| (&states[at * head_dim..][..head_dim], lse[at]));
                merge_states(out, &parts.collect::<Vec<_>>());
            }
        });
    }
}

impl Fabric for CpuFabric {
    fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    fn abort(&self) {
        self.meeting.abort();
    }

    fn is_aborted(&self) -> bool {
        self.meeting.is_aborted()
    }
}

/// Tree attention to a member's positions, `plan`, merged with what the others of its group find.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn attend_as(
    cores: &Cores,
    scratch: &mut AttentionScratch,
    place: &Place<CpuFabric>,
    member: Member,
    out: &mut CpuBuffer,
    qkv: &CpuBuffer,
    kv: &KvStore,
    layer: LayerIx,
    plan: &AttentionPlan,
    scoring: Scoring<'_, Vec<f32>>,
) {
    let heads = kv.heads(layer);
    let mut states = CpuBuffer::new(out.rows, heads.out_width());
    let mut lse = CpuBuffer::new(out.rows, heads.q_heads);
    tree_attention(cores, scratch, &mut states, qkv, kv, layer, plan, scoring, Some(&mut lse));
    place.fabric().merge_members(place.number(), member.of as usize, out, &states, &lse);
}

/// `out = sum(exp(lse - m) part) / sum(exp(lse - m))` over partial results in their order, with `m` the largest `lse`.
/// Panics if no part has seen anything; of numbers that are none the result is none.
fn merge_states(out: &mut [f32], parts: &[(&[f32], f32)]) {
    if parts.iter().any(|(_, lse)| lse.is_nan()) {
        return out.fill(f32::NAN);
    }
    let most = parts.iter().fold(f32::NEG_INFINITY, |most, &(_, lse)| most.max(lse));
    assert!(most > f32::NEG_INFINITY, "merge_members: a row sees itself, which some member stores");
    let weights: Vec<f32> = parts.iter().map(|&(_, lse)| (lse - most).exp()).collect();
    let inverse = 1.0 / weights.iter().sum::<f32>();
    for (i, out) in out.iter_mut().enumerate() {
        *out = parts.iter().zip(&weights).map(|((part, _), weight)| weight * part[i]).sum::<f32>() * inverse;
    }
}
