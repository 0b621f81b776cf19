//! Ranks on threads of the CPU: sums and merges of all, and what a failing rank does to the others.

use std::panic::{AssertUnwindSafe, catch_unwind};

use offshoot_backend::Dtype;
use offshoot_backend::ranks::members::Members;
use offshoot_backend::ranks::{FailedExchange, PARTS, Rank, Ranked, Ranks, Reduced};
use offshoot_core::error::{Error, Result};
use offshoot_cpu::{Cpu, CpuBuffer};

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
