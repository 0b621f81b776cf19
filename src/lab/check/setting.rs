//! The cases of tree attention, without a device: heads, dtypes, windows and sharpness of a case, its keys, values and
//! queries as functions of their positions, so that they need not be stored, and the tolerance of its results.

use std::fmt;

use super::dense::dense;
use crate::backend::{Backend, Dtype, HeadLayout, KvDtype, Scoring};
use crate::dice::noise;
use crate::ids::GroupIx;
use crate::kv::KvSlot;
use crate::plan::PlanHints;

const HEAD_DIMS: [usize; 8] = [128, 64, 16, 96, 256, 80, 512, 32];
const GROUPS: [(usize, usize); 7] = [(4, 1), (6, 2), (7, 1), (8, 4), (1, 1), (16, 1), (32, 2)];
/// Softcaps: none, or one that the scores of flat queries hardly meet, or all do.
const SOFTCAPS: [Option<f32>; 5] = [None, None, Some(30.0), None, Some(0.5)];
const WINDOWS: [Option<u32>; 6] = [None, Some(17), None, None, Some(100), Some(1)];
/// Largest query elements: small for a flat softmax, large for a peaked one with a running maximum that rises a lot.
/// Kernels rescale at different rises of the maximum; if f16 could not hold the rise, elements are even larger. In f32,
/// rounding of larger scores would matter.
pub const fn sharpness(dtype: Dtype) -> [f32; 3] {
    match dtype {
        Dtype::F32 => [1.0, 1.0, 16.0],
        Dtype::F16 => [1.0, 1.0, 64.0],
        Dtype::Bf16 => [1.0, 64.0, 2048.0],
    }
}

/// The parameters of an attention case, apart from the tree.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub heads: HeadLayout,
    pub dtype: Dtype,
    pub kv: KvDtype,
    pub window: Option<u32>,
    pub sharpness: f32,
    pub terms: ScoreTerms,
}

/// What scores are beyond scaled products; by default nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScoreTerms {
    pub softcap: Option<f32>,
    pub has_sinks: bool,
}

impl Setting {
    /// Setting number `i`: the periods have no common factor, so that few settings cover all pairs of neighbours.
    pub fn number(i: usize, dtype: Dtype) -> Self {
        let (q_heads, kv_heads) = GROUPS[i % GROUPS.len()];
        Setting {
            heads: HeadLayout { q_heads, kv_heads, head_dim: HEAD_DIMS[i % HEAD_DIMS.len()] },
            dtype,
            kv: KvDtype::Model,
            window: WINDOWS[i / 2 % WINDOWS.len()],
            sharpness: sharpness(dtype)[i % 3],
            terms: ScoreTerms { softcap: SOFTCAPS[i % SOFTCAPS.len()], has_sinks: i % 4 == 1 },
        }
    }

    /// The same with fp8 keys and values, and more often with head sizes for which some kernel stores one byte per
    /// element.
    pub fn fp8(i: usize, dtype: Dtype) -> Self {
        let setting = Self::number(i, dtype);
        let head_dim = [128, 64, setting.heads.head_dim][i / 3 % 3];
        Self { kv: KvDtype::Fp8, heads: HeadLayout { head_dim, ..setting.heads }, ..setting }
    }

    pub fn scale(&self) -> f32 {
        (self.heads.head_dim as f32).powf(-0.5)
    }

    /// The sink of each query head, among its scores in size.
    pub fn sinks(&self) -> Option<Vec<f32>> {
        let size = 1.0 + self.sharpness.min(8.0);
        self.terms.has_sinks.then(|| (0..self.heads.q_heads as u64).map(|head| size * noise([3, 0, 0, head])).collect())
    }

    /// `sinks`: those of [`Setting::sinks`], as a backend holds them.
    pub fn scoring<'a, V>(&self, sinks: Option<&'a V>) -> Scoring<'a, V> {
        Scoring { scale: self.scale(), softcap: self.terms.softcap, sinks }
    }

    /// Key heads, then value heads, of the token in slot `at`, as they are stored.
    pub fn kv(&self, at: KvSlot) -> impl Iterator<Item = f32> {
        let (dtype, kv) = (self.dtype, self.kv);
        self.given_kv(at).map(move |x| kv.round(dtype, x))
    }

    /// The same, before they are rounded for storage.
    pub fn given_kv(&self, at: KvSlot) -> impl Iterator<Item = f32> {
        let (dtype, width) = (self.dtype, 2 * self.heads.kv_heads * self.heads.head_dim);
        (0..width as u64).map(move |i| dtype.round(noise([1, at.page.0.into(), at.slot.into(), i])))
    }

    /// Query heads of `row` at `position`.
    pub fn query(&self, row: usize, position: usize) -> impl Iterator<Item = f32> {
        let (dtype, sharpness) = (self.dtype, self.sharpness);
        (0..self.heads.q_width() as u64)
            .map(move |i| dtype.round(sharpness * noise([2, row as u64, position as u64, i])))
    }

    /// See [`tolerance`]: a backend may round both to the model's dtype. With fp8 keys and values, the definition uses
    /// the rounded ones, so that their rounding does not count; numerators are then in f16 or finer. A capped score is
    /// off by some roundings of its cap, and numerators by as much relatively.
    pub fn tolerance(&self) -> f64 {
        tolerance(self.dtype, self.dtype) + 4.0 * Dtype::F32.rounding() * f64::from(self.terms.softcap.unwrap_or(0.0))
    }

    /// The result of one row by the definition; its own position is the last of `context`.
    pub fn dense(&self, row: usize, context: &[KvSlot]) -> Vec<f64> {
        let hidden = self.window.map_or(0, |window| context.len().saturating_sub(window as usize));
        let query: Vec<f32> = self.query(row, context.len() - 1).collect();
        let stored: Vec<Vec<f32>> = context[hidden..].iter().map(|&at| self.kv(at).collect()).collect();
        let sinks = self.sinks();
        let stored: Vec<&[f32]> = stored.iter().map(Vec::as_slice).collect();
        dense(self.heads, &self.scoring(sinks.as_ref()), &query, &stored)
    }
}

/// Tolerance of attention relative to f64 if softmax numerators and results are rounded to these dtypes: the norm of
/// the difference over the norm of the result.
///
/// The error of a rounding is 0.38 of its maximum (uniform over mantissas from 1 to 2), and up to a quarter more by
/// chance in short results: 0.48. The two roundings are independent: 0.54 together for equal dtypes, before chance, as
/// measured for single-pass kernels (2.1e-3 in bf16, 2.8e-4 in f16). In f32, roundings of scores count: 1e-5.
pub fn tolerance(numerators: Dtype, results: Dtype) -> f64 {
    (0.48 * numerators.rounding().hypot(results.rounding())).max(1e-5)
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeadLayout { q_heads, kv_heads, head_dim } = self.heads;
        write!(f, "{q_heads} / {kv_heads} x {head_dim}")?;
        if self.kv != KvDtype::Model {
            write!(f, ", {}", self.kv)?;
        }
        if let Some(cap) = self.terms.softcap {
            write!(f, ", softcap {cap}")?;
        }
        if self.terms.has_sinks {
            write!(f, ", sinks")?;
        }
        self.window.map_or(Ok(()), |window| write!(f, ", window {window}"))
    }
}

pub fn hints<B: Backend>(backend: &B, heads: HeadLayout, dtype: Dtype, window: Option<u32>) -> PlanHints {
    let small = |size: usize| u32::try_from(size).expect("heads are far below 2^32");
    PlanHints {
        group: GroupIx(0),
        tile: backend.attention_tile(heads, dtype, window),
        window,
        q_heads: small(heads.q_heads),
        kv_heads: small(heads.kv_heads),
        head_dim: small(heads.head_dim),
        kv_element_bytes: small(backend.kv_element_bytes(heads, dtype)),
        cost: backend.cost_model(),
    }
}
