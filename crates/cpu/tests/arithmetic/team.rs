//! The team of threads: every part runs once, whoever sleeps, waits or panics.

use std::collections::HashSet;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use offshoot_cpu::Team;
use offshoot_cpu::team::{AWAKE, TeamTimes};

/// Runs `regions` regions of changing numbers of parts and asserts that each part ran once, before the region ended.
fn each_part_runs_once(team: &Team, regions: usize) {
    for region in 0..regions {
        let mut counts = vec![0_u32; region % 37];
        team.for_each(&mut counts, |i, count| *count += 1 + i as u32);
        assert!(counts.iter().enumerate().all(|(i, &count)| count == 1 + i as u32), "region {region}: {counts:?}");
    }
}

#[test]
fn each_part_runs_once_whatever_the_number_of_threads() {
    for threads in [1, 2, 3, 8, 33] {
        each_part_runs_once(&Team::new(threads), 3_000);
    }
}

#[test]
fn each_part_runs_once_beside_eight_busy_threads() {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        let ran = catch_unwind(|| each_part_runs_once(&Team::new(4), 500));
        done.store(true, Ordering::Relaxed);
        assert!(ran.is_ok());
    });
}

#[test]
fn workers_take_parts_and_wake_after_they_slept() {
    let team = Team::new(3);
    for _ in 0..3 {
        // Each part waits for all three, so three members must run them at once.
        let met = AtomicUsize::new(0);
        team.run(3, |_| {
            met.fetch_add(1, Ordering::AcqRel);
            while met.load(Ordering::Acquire) < 3 {
                thread::yield_now();
            }
        });
        while team.asleep() < 2 {
            thread::sleep(AWAKE);
        }
    }
}

#[test]
fn time_in_parts_is_counted_for_each_member_and_time_in_regions_once() {
    let (team, each) = (Team::new(2), Duration::from_millis(20));
    // Each part waits for the other, so both members have one.
    let met = AtomicUsize::new(0);
    team.run(2, |_| {
        met.fetch_add(1, Ordering::AcqRel);
        while met.load(Ordering::Acquire) < 2 {
            thread::yield_now();
        }
        thread::sleep(each);
    });
    let TeamTimes { in_regions, in_parts } = team.times();
    // However slow the machine: a sleep is at least as long as it is asked for, and members work inside the region.
    assert!(in_regions >= each && in_parts >= 2 * each && in_parts <= 2 * in_regions, "{:?}", team.times());
    team.run(1, |_| thread::sleep(each));
    assert_eq!(team.times().in_regions, in_regions, "one part needs no region");
}

#[test]
fn all_chunks_are_prepared_before_others_work() {
    for threads in [1, 2, 4] {
        let team = Team::new(threads);
        for (items, length, others) in [(0, 3, 2), (1, 3, 5), (1, 3, 1), (10, 3, 0), (40, 3, 7), (9, 1, 1)] {
            for turn in 0..50 {
                let (mut prepared, mut worked) = (vec![0; items], vec![0; others]);
                team.for_chunks_then(
                    &mut prepared,
                    length,
                    |i, chunk| {
                        if i == 0 && turn % 10 == 0 {
                            // Makes it likely that the others have to wait. What is asserted holds either way.
                            thread::sleep(Duration::from_millis(1));
                        }
                        chunk.iter_mut().enumerate().for_each(|(k, x)| *x += 1 + i * length + k);
                    },
                    &mut worked,
                    |i, worked, prepared| {
                        assert!(prepared.iter().enumerate().all(|(k, &x)| x == k + 1), "{prepared:?}");
                        *worked += i + 1;
                    },
                );
                assert!(prepared.iter().enumerate().all(|(k, &x)| x == k + 1), "{prepared:?}");
                assert_eq!(worked, (1..=others).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn a_panic_while_chunks_are_prepared_reaches_the_caller_and_nobody_works_on_them() {
    for threads in [1, 2, 4] {
        let team = Team::new(threads);
        let prepare = |i: usize, _: &mut [i32]| assert!(i != 1, "chunk 1");
        let work = || team.for_chunks_then(&mut [0; 8], 2, prepare, &mut [0; 4], |_, _, _| panic!("not prepared"));
        let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("a chunk panics");
        assert!(panic.downcast_ref::<&str>().is_some_and(|text| *text == "chunk 1"));
        each_part_runs_once(&team, 10);
    }
}

#[test]
fn time_that_a_member_waits_for_chunks_is_not_time_in_parts() {
    let rest = Duration::from_millis(20);
    let is_left_out = || {
        let (team, is_second_done) = (Team::new(2), AtomicBool::new(false));
        let own = Mutex::new(Duration::ZERO);
        // The first chunk rests after the second one is done, so another member has that one, and then waits.
        let prepare = |i: usize, _: &mut [i32]| {
            if i == 1 {
                is_second_done.store(true, Ordering::Release);
            } else {
                let begun = Instant::now();
                while !is_second_done.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                thread::sleep(rest);
                *own.lock().expect("no member panics") = begun.elapsed();
            }
        };
        team.for_chunks_then(&mut [0; 2], 1, prepare, &mut [0; 2], |_, _, _| {});
        let (TeamTimes { in_regions, in_parts }, own) = (team.times(), own.into_inner().expect("no member panics"));
        assert!(in_regions >= rest && in_parts >= own, "{in_parts:?} in parts, which take {own:?}");
        in_parts < own + rest
    };
    // If the wait were counted, it would be in each try. One is enough: in others the system may let a member stand
    // still where it does not wait.
    assert!((0..50).any(|_| is_left_out()), "the wait is counted as time in parts");
}

#[test]
fn chunks_cover_the_slice() {
    let team = Team::new(2);
    for (length, chunk) in [(0, 3), (1, 3), (9, 3), (10, 3), (1000, 7)] {
        let mut items = vec![usize::MAX; length];
        team.for_chunks(&mut items, chunk, |number, items| {
            items.iter_mut().enumerate().for_each(|(i, item)| *item = number * chunk + i);
        });
        assert!(items.iter().enumerate().all(|(i, &item)| i == item));
    }
}

#[test]
fn regions_inside_a_part_and_of_other_threads_run_where_they_are_called() {
    let (team, ran) = (Team::new(2), AtomicU32::new(0));
    team.run(8, |_| {
        team.run(5, |_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(ran.load(Ordering::Relaxed), 40);
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| each_part_runs_once(&team, 2_000))));
    });
}

#[test]
fn a_panic_reaches_the_caller_after_all_other_parts_and_the_team_goes_on() {
    let team = Team::new(2);
    for bad in [0, 7, 15] {
        let ran = Mutex::new(HashSet::new());
        let result = catch_unwind(AssertUnwindSafe(|| {
            team.run(16, |part| {
                assert!(part != bad, "part {part} fails");
                ran.lock().expect("no part panics with it").insert(part);
            });
        }));
        let panic = *result.expect_err("a part panicked").downcast::<String>().expect("a message");
        assert_eq!(panic, format!("part {bad} fails"));
        assert_eq!(ran.into_inner().expect("as above").len(), 15);
    }
    each_part_runs_once(&team, 100);
}
