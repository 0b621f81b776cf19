//! What CPU backends exchange that compute one model together: each gives a copy of its buffer, all meet, and each reads
//! those of all. It serves to test tensor parallelism without GPUs; nobody is faster for it.

use std::panic::panic_any;
use std::sync::{Condvar, Mutex, PoisonError, RwLock};

use super::{Cpu, CpuBuffer};
use crate::backend::ranks::{Aborted, PARTS, Ranked};
use crate::error::Result;

pub struct CpuFabric {
    /// What each rank has given.
    given: Vec<RwLock<Vec<f32>>>,
    meeting: Mutex<Meeting>,
    woken: Condvar,
}

/// Who has come, until all have.
#[derive(Default)]
struct Meeting {
    number: u64,
    came: usize,
    is_aborted: bool,
}

impl CpuFabric {
    fn new(ranks: usize) -> Self {
        let given = (0..ranks).map(|_| RwLock::default()).collect();
        Self { given, meeting: Mutex::default(), woken: Condvar::new() }
    }

    /// Returns when all ranks have called it. Panics with `Aborted` if one has failed.
    fn meet(&self) {
        let mut meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let number = meeting.number;
        meeting.came += 1;
        if meeting.came == self.given.len() {
            *meeting = Meeting { number: number + 1, came: 0, is_aborted: meeting.is_aborted };
            self.woken.notify_all();
        }
        while meeting.number == number && !meeting.is_aborted {
            meeting = self.woken.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        let is_aborted = meeting.is_aborted;
        drop(meeting);
        if is_aborted {
            panic_any(Aborted);
        }
    }

    /// Gives `own` to all, and calls `read` with what each has given.
    fn exchange(&self, rank: usize, own: &[f32], read: impl FnOnce(&[&[f32]])) {
        {
            let mut given = self.given[rank].write().unwrap_or_else(PoisonError::into_inner);
            given.clear();
            given.extend_from_slice(own);
        }
        self.meet();
        {
            let given: Vec<_> =
                self.given.iter().map(|given| given.read().unwrap_or_else(PoisonError::into_inner)).collect();
            read(&given.iter().map(|given| given.as_slice()).collect::<Vec<_>>());
        }
        // Nobody gives anew before all have read.
        self.meet();
    }
}

impl Ranked for Cpu {
    type Fabric = CpuFabric;

    const SHARES_MEMORY: bool = true;

    fn connect(ranks: &mut [Self]) -> Result<CpuFabric> {
        Ok(CpuFabric::new(ranks.len()))
    }

    fn abort(fabric: &CpuFabric) {
        fabric.meeting.lock().unwrap_or_else(PoisonError::into_inner).is_aborted = true;
        fabric.woken.notify_all();
    }

    fn is_aborted(fabric: &CpuFabric) -> bool {
        fabric.meeting.lock().unwrap_or_else(PoisonError::into_inner).is_aborted
    }

    fn all_reduce(&mut self, fabric: &CpuFabric, rank: usize, x: &mut CpuBuffer) {
        let own = std::mem::take(&mut x.data);
        let mut sums = vec![0.0; own.len()];
        fabric.exchange(rank, &own, |given| {
            assert!(given.iter().all(|given| given.len() == own.len()), "all_reduce: all ranks have the same shape");
            for (i, sum) in sums.iter_mut().enumerate() {
                let mut parts = [0.0; PARTS];
                parts.iter_mut().zip(given).for_each(|(part, given)| *part = given[i]);
                *sum = folded(&mut parts[..given.len()]);
            }
        });
        x.data = sums;
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

/// The sum of a power of two of numbers, pair by pair as a balanced tree.
fn folded(parts: &mut [f32]) -> f32 {
    let mut count = parts.len();
    while count > 1 {
        count /= 2;
        for i in 0..count {
            parts[i] = parts[2 * i] + parts[2 * i + 1];
        }
    }
    parts[0]
}
