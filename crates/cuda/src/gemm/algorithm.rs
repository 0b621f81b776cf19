//! An algorithm of cuBLASLt with its settings, and its variants. `candidates` asks which are valid for a product,
//! `autotune` finds the fastest.

use std::fmt;

use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtClusterShape_t as Cluster;
use cudarc::cublaslt::sys::cublasLtMatmulAlgoCapAttributes_t as Capability;
use cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t as Setting;
use cudarc::cublaslt::sys::cublasLtReductionScheme_t as Reduction;
use cudarc::cublaslt::sys::cublasStatus_t as Status;
use serde::{Deserialize, Serialize};

/// Parts of a split sum are kept in f32 beside the output and added in order: as exact as one sum, and reproducible.
pub(super) const REDUCTION: Reduction = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

/// Thread block cluster shapes to try; the library refuses those its kernel lacks.
const CLUSTERS: [Cluster; 7] = [
    Cluster::CUBLASLT_CLUSTER_SHAPE_AUTO,
    Cluster::CUBLASLT_CLUSTER_SHAPE_1x1x1,
    Cluster::CUBLASLT_CLUSTER_SHAPE_2x1x1,
    Cluster::CUBLASLT_CLUSTER_SHAPE_1x2x1,
    Cluster::CUBLASLT_CLUSTER_SHAPE_2x2x1,
    Cluster::CUBLASLT_CLUSTER_SHAPE_4x1x1,
    Cluster::CUBLASLT_CLUSTER_SHAPE_1x4x1,
];

/// Most parts of a split sum.
pub(super) const MOST_SPLIT_K: u32 = 8;

/// The library's encoding of an algorithm with its settings. Valid in another process with the same version of the
/// library (cuBLAS documentation, `cublasLtMatmulAlgo_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Algorithm(pub(super) [u64; 8]);

impl Algorithm {
    pub(super) fn raw(self) -> sys::cublasLtMatmulAlgo_t {
        sys::cublasLtMatmulAlgo_t { data: self.0 }
    }

    /// This algorithm with the sum split into `parts`; `None` if it cannot be split, or not with parts kept in f32.
    pub(super) fn split(self, parts: u32) -> Option<Self> {
        let splits = self.capability::<i32>(Capability::CUBLASLT_ALGO_CAP_SPLITK_SUPPORT)? != 0;
        let schemes = self.capability::<u32>(Capability::CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK)?;
        if !splits || schemes & REDUCTION as u32 == 0 {
            return None;
        }
        let reduction = if parts > 1 { REDUCTION } else { Reduction::CUBLASLT_REDUCTION_SCHEME_NONE };
        self.with(Setting::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts)?
            .with(Setting::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction as u32)
    }

    /// This algorithm with its sum in one part.
    pub(super) fn undivided(self) -> Option<Self> {
        if self.split_k() == 1 { Some(self) } else { self.split(1) }
    }

    pub(super) fn split_k(&self) -> u32 {
        self.setting::<u32>(Setting::CUBLASLT_ALGO_CONFIG_SPLITK_NUM).unwrap_or(1).max(1)
    }

    /// Variants that differ in one setting: parts of the sum, cluster, order of the thread blocks. Not all are valid.
    pub(super) fn neighbours(self) -> Vec<Self> {
        let split = (1..=MOST_SPLIT_K).filter_map(|parts| self.split(parts));
        let cluster = CLUSTERS
            .into_iter()
            .filter_map(|cluster| self.with(Setting::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster as u16));
        let swizzles = self.capability::<u32>(Capability::CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT).unwrap_or(0) != 0;
        let orders = if swizzles { 0..2u32 } else { 0..0 };
        let order = orders.filter_map(|order| self.with(Setting::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, order));
        split.chain(cluster).chain(order).filter(|other| *other != self).collect()
    }

    /// Variants that differ in the tile or the pipeline stages: hundreds, few of them valid.
    pub(super) fn relatives(self) -> Vec<Self> {
        let all = |capability, setting| {
            let values = self.capabilities(capability).into_iter();
            values.filter_map(move |value| self.with(setting, value))
        };
        let tiles = all(Capability::CUBLASLT_ALGO_CAP_TILE_IDS, Setting::CUBLASLT_ALGO_CONFIG_TILE_ID);
        let stages = all(Capability::CUBLASLT_ALGO_CAP_STAGES_IDS, Setting::CUBLASLT_ALGO_CONFIG_STAGES_ID);
        tiles.chain(stages).filter(|other| *other != self).collect()
    }

    fn with<T: Copy>(self, setting: Setting, value: T) -> Option<Self> {
        let mut raw = self.raw();
        // SAFETY: the library copies `value`, and refuses a size that is not the setting's; it writes only into `raw`.
        let status = unsafe {
            sys::cublasLtMatmulAlgoConfigSetAttribute(
                &mut raw,
                setting,
                std::ptr::from_ref(&value).cast(),
                size_of::<T>(),
            )
        };
        (status == Status::CUBLAS_STATUS_SUCCESS).then_some(Self(raw.data))
    }

    fn setting<T: Copy + Default>(&self, setting: Setting) -> Option<T> {
        let (raw, mut value, mut written) = (self.raw(), T::default(), 0);
        // SAFETY: at most as many bytes are written as `value` has.
        let status = unsafe {
            let to = std::ptr::from_mut(&mut value).cast();
            sys::cublasLtMatmulAlgoConfigGetAttribute(&raw, setting, to, size_of::<T>(), &mut written)
        };
        (status == Status::CUBLAS_STATUS_SUCCESS).then_some(value)
    }

    fn capability<T: Copy + Default>(&self, capability: Capability) -> Option<T> {
        let (raw, mut value, mut written) = (self.raw(), T::default(), 0);
        // SAFETY: at most as many bytes are written as `value` has.
        let status = unsafe {
            let to = std::ptr::from_mut(&mut value).cast();
            sys::cublasLtMatmulAlgoCapGetAttribute(&raw, capability, to, size_of::<T>(), &mut written)
        };
        (status == Status::CUBLAS_STATUS_SUCCESS).then_some(value)
    }

    /// The values of a capability that is a list.
    fn capabilities(&self, capability: Capability) -> Vec<u32> {
        let raw = self.raw();
        let get = |to: &mut [u32]| {
            let mut bytes = 0;
            // SAFETY: at most as many bytes are written as `to` has; of an empty one only the size is asked.
            let status = unsafe {
                let start = if to.is_empty() { std::ptr::null_mut() } else { to.as_mut_ptr().cast() };
                sys::cublasLtMatmulAlgoCapGetAttribute(&raw, capability, start, size_of_val(to), &mut bytes)
            };
            (status == Status::CUBLAS_STATUS_SUCCESS).then_some(bytes / size_of::<u32>())
        };
        let mut values = vec![0; get(&mut []).unwrap_or(0)];
        let written = if values.is_empty() { 0 } else { get(&mut values).unwrap_or(0) };
        values.truncate(written);
        values
    }
}

/// "algorithm 66, tile 397, stages 35, 4 parts, cluster 3, order 0, option 0": the numbers are cuBLASLt's own.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [id, tile, stages, order, option] = [
            Setting::CUBLASLT_ALGO_CONFIG_ID,
            Setting::CUBLASLT_ALGO_CONFIG_TILE_ID,
            Setting::CUBLASLT_ALGO_CONFIG_STAGES_ID,
            Setting::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
            Setting::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
        ]
        .map(|setting| self.setting::<u32>(setting).unwrap_or(0));
        let cluster = self.setting::<u16>(Setting::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID).unwrap_or(0);
        let parts = self.split_k();
        write!(
            f,
            "algorithm {id}, tile {tile}, stages {stages}, {parts} parts, cluster {cluster}, order {order}, \
             option {option}"
        )
    }
}
