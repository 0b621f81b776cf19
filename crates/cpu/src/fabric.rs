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
    fn merge_members(&self, rank: usize, members: usize, out: &mut CpuBuffer, states: &CpuBuffer, lse: &CpuBuffer) {
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use offshoot_backend::Dtype;
    use offshoot_backend::ranks::members::Members;
    use offshoot_backend::ranks::{FailedExchange, Rank, Ranks};
    use offshoot_core::error::Error;

    fn members(ranks: usize) -> Members<Rank<Cpu>> {
        let cpus = (0..ranks).map(|_| Cpu::open().unwrap().on_a_share_of_cores(ranks)).collect();
        Ranks::new(cpus, false).unwrap().start(Ok).unwrap()
    }

    fn one(x: f32) -> CpuBuffer {
        CpuBuffer { rows: 1, width: 1, data: vec![x] }
    }

    /// `out` becomes the sum of all parts, or is increased by it; its number.
    fn sum_into(rank: &mut Rank<Cpu>, mut out: CpuBuffer, parts: &[&CpuBuffer], how: Reduced) -> f32 {
        rank.exchange(|cpu, fabric, number| cpu.all_reduce(fabric, number, &mut out, parts, how));
        out.data[0]
    }

    fn sum(rank: &mut Rank<Cpu>, x: f32) -> f32 {
        sum_into(rank, one(f32::NAN), &[&one(x)], Reduced { wire: Dtype::F32, exact: false, adds: false })
    }

    #[test]
    fn parts_are_rounded_before_they_are_added_to_what_is_there() {
        let found = members(2).each(|rank| {
            // One eighth more than 256: bf16 has steps of 2 there.
            let how = Reduced { wire: Dtype::Bf16, exact: false, adds: true };
            sum_into(rank, one(10.0), &[&one(256.125)], how)
        });
        assert_eq!(found, [522.0; 2]);
    }

    #[test]
    fn the_last_sum_is_rounded_unless_it_is_exact_or_of_two_ranks() {
        // bf16 has steps of 2 from 256 on.
        let sum = |ranks: usize, exact: bool| {
            let found = members(ranks).each(|rank| {
                let x = one(if rank.number() == 0 { 256.0 } else { 0.25 });
                let parts = vec![&x; if exact { PARTS / ranks } else { 1 }];
                sum_into(rank, one(0.5), &parts, Reduced { wire: Dtype::Bf16, exact, adds: true })
            });
            assert!(found.iter().all(|&sum| sum == found[0]), "all have the same");
            found[0]
        };
        assert_eq!(sum(2, false), 0.5 + 256.25);
        assert_eq!(sum(4, false), 0.5 + 256.0);
        assert_eq!(sum(8, false), 0.5 + 258.0);
        assert_eq!(sum(8, true), 0.5 + 257.0);
    }

    #[test]
    fn exact_sums_are_folded_as_one_tree_however_their_parts_are_shared_out() {
        // Numbers whose sums bf16 rounds, in f32 and in bf16.
        let numbers: Vec<f32> = (0..PARTS).map(|part| 1.0 + 0.3 * part as f32 * part as f32).collect();
        for wire in [Dtype::F32, Dtype::Bf16] {
            let sum = |count: usize| {
                members(count).each(|rank| {
                    let own = numbers.chunks(PARTS / count).nth(rank.number()).unwrap();
                    let own: Vec<CpuBuffer> = own.iter().map(|&x| one(x)).collect();
                    let how = Reduced { wire, exact: true, adds: false };
                    sum_into(rank, one(f32::NAN), &own.iter().collect::<Vec<_>>(), how).to_bits()
                })
            };
            let expected = sum(1)[0];
            for count in [2, 4, 8] {
                assert_eq!(sum(count), vec![expected; count], "{wire}");
            }
        }
    }

    #[test]
    fn members_merge_their_shares_of_heads_by_their_log_sum_exps() {
        // Two groups of two members; in each, rows of two heads of two numbers. The second member of the first group
        // has seen nothing.
        let found = members(4).each(|rank| {
            let n = rank.number() as f32;
            let lse = match rank.number() {
                1 => vec![f32::NEG_INFINITY; 2],
                _ => vec![n * 3.0_f32.ln() / 3.0, 100.0],
            };
            let data = if rank.number() == 1 { vec![0.0; 4] } else { vec![n, n + 1.0, 10.0 * n, 10.0 * n + 4.0] };
            let states = CpuBuffer { rows: 1, width: 4, data };
            let lse = CpuBuffer { rows: 1, width: 2, data: lse };
            let mut out = CpuBuffer { rows: 1, width: 2, data: vec![f32::NAN; 2] };
            rank.exchange(|_, fabric, number| fabric.merge_members(number, 2, &mut out, &states, &lse));
            out.data
        });
        assert_eq!(found[..2], [vec![0.0, 1.0], vec![0.0, 4.0]]);
        // Ranks 2 and 3 weigh 3^(2/3) and 3; then equally.
        let share = 3.0 / (3.0 + 3.0_f32.powf(2.0 / 3.0));
        // A few roundings of numbers below 4.
        assert!((found[2][0] - (2.0 + share)).abs() < 2e-6 && (found[2][1] - (3.0 + share)).abs() < 2e-6, "{found:?}");
        assert_eq!(found[3], [25.0, 29.0]);
    }

    /// All ranks but the third add up numbers, until it fails in the second round.
    fn rounds(members: &Members<Rank<Cpu>>, fail: impl Fn() -> Result<()> + Sync) -> Result<Vec<f32>> {
        members.try_together(|rank| {
            let mut x = (1 << rank.number()) as f32;
            for round in 0..3 {
                if (rank.number(), round) == (2, 1) {
                    fail()?;
                }
                x = sum(rank, x);
            }
            Ok(x)
        })
    }

    #[test]
    fn sums_reach_every_rank() {
        assert_eq!(rounds(&members(4), || Ok(())).unwrap(), [15.0 * 16.0; 4]);
    }

    #[test]
    fn each_rank_has_one_thread_that_lasts() {
        let members = members(4);
        let threads = || members.each(|_| std::thread::current().id());
        let first = threads();
        assert_eq!(first[0], std::thread::current().id());
        assert_eq!(first, threads());
        assert_eq!(first.iter().collect::<std::collections::HashSet<_>>().len(), 4);
    }

    #[test]
    fn a_rank_that_panics_ends_all() {
        let members = members(4);
        let gone = |rank: &mut Rank<Cpu>| match rank.number() {
            3 => panic!("rank 3 dies"),
            _ => Ok(sum(rank, 1.0)),
        };
        catch_unwind(AssertUnwindSafe(|| members.try_together(gone))).unwrap_err();
        // Its thread lives: what comes later is refused, not waited for.
        assert!(members.try_together(|_| Ok(())).is_err());
        drop(members);
    }

    #[test]
    fn a_rank_that_fails_ends_all_with_its_error() {
        let members = members(4);
        let failed = rounds(&members, || Err(Error::Internal("rank 2 is gone".to_owned()))).unwrap_err();
        assert!(failed.to_string().contains("rank 2 is gone"), "{failed}");
        // And later calls too, instead of waiting for it.
        let later = rounds(&members, || Ok(())).unwrap_err();
        assert!(later.to_string().contains("another rank has failed"), "{later}");
    }

    #[test]
    fn a_rank_that_fails_by_itself_ends_all_unless_it_lacks_memory() {
        let members = members(2);
        let fail = |short: bool| {
            members.try_each(|rank| match (rank.number(), short) {
                (1, true) => Err(Error::DeviceMemory { device: "cpu".to_owned(), asked: None, free: 0, total: 0 }),
                (1, false) => Err(Error::Internal("rank 1 is gone".to_owned())),
                _ => Ok(()),
            })
        };
        let add = || members.try_together(|rank| Ok(sum(rank, 1.0)));
        assert!(fail(true).unwrap_err().is_shortage());
        assert_eq!(add().unwrap(), [2.0, 2.0]);
        assert!(fail(false).unwrap_err().to_string().contains("rank 1 is gone"));
        assert!(add().unwrap_err().to_string().contains("another rank has failed"));
    }

    #[test]
    fn an_exchange_that_fails_ends_all_with_its_error() {
        let members = members(2);
        let work = |rank: &mut Rank<Cpu>| {
            if rank.number() == 1 {
                std::panic::panic_any(FailedExchange(Error::Internal("rank 1 cannot send".to_owned())));
            }
            Ok(sum(rank, 1.0))
        };
        let failed = members.try_together(work).unwrap_err();
        assert!(failed.to_string().contains("rank 1 cannot send"), "{failed}");
        assert!(members.try_together(|_| Ok(())).is_err());
    }

    #[test]
    fn a_panic_of_a_rank_is_passed_on() {
        let members = members(2);
        let work = |rank: &mut Rank<Cpu>| {
            assert_eq!(rank.number(), 0, "rank 1 panics");
            Ok(sum(rank, 1.0))
        };
        let panic = catch_unwind(AssertUnwindSafe(|| members.try_together(work))).unwrap_err();
        let said = panic.downcast_ref::<String>().expect("an assertion's message");
        assert!(said.contains("rank 1 panics"), "{said}");
    }
}
