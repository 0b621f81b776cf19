//! A CPU as one rank of a model: sums and gathers over what all ranks give, see [`CpuFabric`].

use super::{Cpu, CpuBuffer, CpuFabric};
use offshoot_backend::ranks::{PARTS, Place, Ranked, Reduced, folded};
use offshoot_core::error::Result;

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
        assert!(!how.exact || parts.len() * fabric.ranks() == PARTS, "all_reduce: all parts of an exact sum");
        let ranks = fabric.ranks();
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
        assert_eq!((out.rows, out.width), (x.rows, x.width * fabric.ranks()), "all_gather: shapes");
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
