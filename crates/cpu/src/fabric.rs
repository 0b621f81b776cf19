//! What CPU backends exchange that compute one model together: each gives a copy of its buffer, all meet, and each reads
//! those of all. It serves to test tensor parallelism without GPUs; it makes nothing faster.

use std::sync::{PoisonError, RwLock};

use super::{Cpu, CpuBuffer, KvStore, attention};
use offshoot_backend::Scoring;
use offshoot_backend::ranks::meeting::Meeting;
use offshoot_backend::ranks::{Fabric, PARTS, Place, Ranked, Reduced, folded};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;
use offshoot_kv::plan::{AttentionPlan, Member};

pub struct CpuFabric {
    /// What each rank has given.
    given: Vec<RwLock<Vec<f32>>>,
    meeting: Meeting,
}

impl CpuFabric {
    fn new(ranks: usize) -> Self {
        Self { given: (0..ranks).map(|_| RwLock::default()).collect(), meeting: Meeting::new(ranks) }
    }

    /// Gives `own` to all, and calls `read` with what each has given.
    fn exchange(&self, rank: usize, own: &[f32], read: impl FnOnce(&[&[f32]])) {
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
    /// merge to, for the rank's share of their heads. States are normalised results, with their log-sum-exps `lse`, `[R,
    /// heads]`; a row that sees nothing has zeros and -inf.
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

impl Ranked for Cpu {
    type Fabric = CpuFabric;

    const SHARES_MEMORY: bool = true;
    const DIVIDES_POSITIONS: bool = true;

    fn connect(ranks: &[Self]) -> Result<CpuFabric> {
        Ok(CpuFabric::new(ranks.len()))
    }

    fn place(&self) -> &Option<Place<CpuFabric>> {
        &self.place
    }

    fn place_mut(&mut self) -> &mut Option<Place<CpuFabric>> {
        &mut self.place
    }

    fn all_reduce(&mut self, fabric: &CpuFabric, rank: usize, out: &mut CpuBuffer, parts: &[&CpuBuffer], how: Reduced) {
        assert!(parts.iter().all(|part| (part.rows, part.width) == (out.rows, out.width)), "all_reduce: shapes");
        assert!(!how.exact || parts.len() * fabric.given.len() == PARTS, "all_reduce: all parts of an exact sum");
        let ranks = fabric.given.len();
        let own: Vec<f32> = (0..out.data.len())
            .map(|i| {
                let mut sums: Vec<f32> = parts.iter().map(|part| how.wire.round(part.data[i])).collect();
                // Of one rank the last sum is that of all.
                folded(&mut sums, |a, b, left| if ranks > 1 || left > 1 { how.wire.round(a + b) } else { a + b })
            })
            .collect();
        fabric.exchange(rank, &own, |given| {
            assert!(given.iter().all(|given| given.len() == own.len()), "all_reduce: all ranks have the same shape");
            for (i, out) in out.data.iter_mut().enumerate() {
                let mut sums: Vec<f32> = given.iter().map(|given| given[i]).collect();
                let sum = folded(&mut sums, |a, b, left| how.sum(ranks, a, b, left));
                *out = if how.adds { *out + sum } else { sum };
            }
        });
    }

    fn all_gather(&mut self, fabric: &CpuFabric, rank: usize, out: &mut CpuBuffer, x: &CpuBuffer) {
        assert_eq!((out.rows, out.width), (x.rows, x.width * fabric.given.len()), "all_gather: shapes");
        fabric.exchange(rank, &x.data, |given| {
            let width = out.width.max(1);
            for (row, out) in out.data.chunks_exact_mut(width).enumerate() {
                for (to, given) in out.chunks_exact_mut(x.width.max(1)).zip(given) {
                    to.copy_from_slice(&given[row * x.width..][..x.width]);
                }
            }
        });
    }

    fn columns(&mut self, out: &mut CpuBuffer, x: &CpuBuffer, first: usize) {
        assert!(out.rows == x.rows && first + out.width <= x.width, "columns: shapes");
        let width = out.width;
        for (row, out) in out.data.chunks_exact_mut(width.max(1)).enumerate() {
            out.copy_from_slice(&x.row(row)[first..first + width]);
        }
    }
}

impl Cpu {
    /// Tree attention to a member's positions, `plan`, merged with what the others of its group find.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    pub(super) fn attend_as(
        &mut self,
        member: Member,
        out: &mut CpuBuffer,
        qkv: &CpuBuffer,
        kv: &KvStore,
        layer: LayerIx,
        plan: &AttentionPlan,
        scoring: Scoring<'_, Vec<f32>>,
    ) {
        let heads = kv.heads(layer);
        let mut states = CpuBuffer::new(out.rows, heads.q_width());
        let mut lse = CpuBuffer::new(out.rows, heads.q_heads);
        let (cores, scratch) = (&self.cores, &mut self.attention);
        attention::tree_attention(cores, scratch, &mut states, qkv, kv, layer, plan, scoring, Some(&mut lse));
        let place = self.place.as_ref().expect("a member has a place");
        place.fabric().merge_members(place.number(), member.of as usize, out, &states, &lse);
    }
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
