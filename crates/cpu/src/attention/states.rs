//! The softmax states of an attention task between kernel calls, one for each row and head of its group. Each section
//! of a row's context has a state of its own; they merge in rising order, while a task goes through the sections or
//! after the tasks that share them.

use std::ops::Range;

use bytemuck::Zeroable;

use super::path::{Geometry, PathKernels, RowStates, StatesMut, StatesRef};
use crate::kv::SLOTS;
use crate::memory::CacheLine;

/// A list of states, whose numbers [`RowStates`] explains.
#[derive(Default)]
pub struct SoftmaxStates {
    m: Vec<f32>,
    l: Vec<CacheLine>,
    o: Vec<CacheLine>,
    /// Cache lines of a state in `o`.
    lines: usize,
}

impl SoftmaxStates {
    /// Becomes `count` empty states of `width` sums of values.
    pub fn clear(&mut self, count: usize, width: usize) {
        self.lines = width / SLOTS;
        self.m.clear();
        self.m.resize(count, f32::MIN);
        self.l.clear();
        self.l.resize(count, CacheLine::zeroed());
        self.o.clear();
        self.o.resize(count * self.lines, CacheLine::zeroed());
    }

    /// Begins a state with a sink: a score that is in the sum and adds no value.
    pub fn add_sink(&mut self, at: usize, sink: f32, geometry: &Geometry) {
        self.m[at] = geometry.unscaled(sink);
        self.l[at].0[0] = 1.0;
    }

    pub fn get(&self, at: Range<usize>) -> StatesRef<'_> {
        let lines = at.start * self.lines..at.end * self.lines;
        StatesRef { m: &self.m[at.clone()], l: &self.l[at], o: &self.o[lines] }
    }

    fn get_mut(&mut self, at: Range<usize>) -> StatesMut<'_> {
        let lines = at.start * self.lines..at.end * self.lines;
        StatesMut { m: &mut self.m[at.clone()], l: &mut self.l[at], o: &mut self.o[lines] }
    }

    /// States `at .. at + count` for a kernel call, with their packed queries.
    pub fn rows(&mut self, at: usize, count: usize, q: *const u8) -> RowStates<u8> {
        let end = at + count;
        RowStates {
            count,
            q,
            m: self.m[at..end].as_mut_ptr(),
            l: self.l[at..end].as_mut_ptr().cast(),
            o: self.o[at * self.lines..end * self.lines].as_mut_ptr().cast(),
        }
    }

    /// Merges the states `next` into as many from `at` on.
    ///
    /// # Safety
    /// The processor has the path's instruction set.
    pub unsafe fn merge(&mut self, at: usize, next: StatesRef<'_>, geometry: &Geometry, kernels: &PathKernels) {
        // SAFETY: promised by the caller.
        unsafe { (kernels.merge)(geometry, &mut self.get_mut(at..at + next.m.len()), next) };
    }

    /// Makes states empty.
    pub fn reset(&mut self, at: Range<usize>) {
        let StatesMut { m, l, o } = self.get_mut(at);
        m.fill(f32::MIN);
        l.fill(CacheLine::zeroed());
        o.fill(CacheLine::zeroed());
    }
}
