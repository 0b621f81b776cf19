//! A simulated device: it computes nothing and keeps time. Each op of `Backend` estimates its duration from its shapes
//! and a [`DeviceProfile`] and advances a virtual [`Clock`]. Weights, activations, keys and values use no real memory
//! but are counted against the memory of the profile. `profile` and `attention` hold the time model; `lab` drives
//! engines on this backend.
//!
//! # Accuracy
//! Profile `h200` compared with benches/runs/2026-11-21-h200-wgmma (`cargo test -p offshoot-lab --test benches
//! modelled_times -- --nocapture` prints both), as estimated / measured time. Attention of 52 trees: 0.82 to 1.16.
//! Decoding of the 12 workloads: 0.86 to 0.97, mean 0.94 (a busy device lowers its clocks). Prefill: 0.83 to 0.96, but
//! 0.5 to 0.7 where a thousand or more branches start at once, because the host's cost of starting a branch is not
//! modelled.
//!
//! # Samples
//! Tokens are sampled as if all logits were equal ([`sample`]): a uniform gives the same token in any batch. Texts are
//! meaningless, so set lengths by `Stop::max_tokens` with `ignore_eos`.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod attention;
mod backend;
mod clock;
mod operands;
mod profile;
mod sample;
mod step;

use std::sync::Arc;

pub use clock::{Clock, StepTime};
pub use operands::{SimBuffer, SimExperts, SimLora, SimLoraTerm, SimMaps, SimMatrix, SimRoutes};
pub use profile::{AttentionTimes, BackendKind, CallTimes, DeviceProfile, LinearTimes, ProductTimes};
pub use sample::sample;
pub use step::SimStep;

use offshoot_backend::{Backend, Dtype, HeadLayout, KvDtype, Share};
use offshoot_core::error::{Error, Result};

/// A simulated device as a [`Backend`].
pub struct Sim {
    profile: Arc<DeviceProfile>,
    clock: Clock,
    kv: KvDtype,
    /// Bytes of weights, activations, keys and values.
    used: usize,
    /// Bytes of `used` that recurrent layers take beside their states.
    state_scratch: usize,
    /// Nanoseconds of the ops enqueued in the current step so far.
    spent: f64,
    deterministic: bool,
}

impl Sim {
    pub fn new(profile: Arc<DeviceProfile>) -> Self {
        let (clock, kv) = (Clock::default(), KvDtype::Model);
        Self { profile, clock, kv, used: 0, state_scratch: 0, spent: 0.0, deterministic: false }
    }

    /// A handle to the device's clock.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Counts `bytes` as allocated. Errors: the profile's memory is full.
    fn allocate(&mut self, bytes: usize) -> Result<()> {
        let (device, total) = (self.describe(), self.profile.memory());
        let free = total.saturating_sub(self.used);
        if bytes > free {
            return Err(Error::DeviceMemory { device, asked: Some(bytes), free, total });
        }
        self.used += bytes;
        Ok(())
    }

    /// Bytes of one token's keys and values in one layer.
    fn token_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize {
        heads.stored_width() * self.kv_copies(heads) * self.kv_element_bytes(heads, dtype)
    }

    /// A size of one device's pages, where those that share key heads each have a part.
    fn of_members(&self, size: u32) -> u32 {
        size * u32::try_from(self.profile.sharing).expect("there are few devices")
    }

    /// An op whose time is that of moving `bytes`.
    fn small_op(&mut self, bytes: usize) {
        self.spent += self.profile.small_op.ns(bytes);
    }

    /// A product, and what devices that compute together exchange of its results: parts as their operands are, shares
    /// as they are.
    fn product(&mut self, out: &SimBuffer, x: &SimBuffer, w: &SimMatrix) {
        self.spent += self.profile.linear.ns(w.bytes(), w.shape.rows, w.shape.cols, out.rows, w.speed);
        self.spent += match (w.split, out.share) {
            ([true, _], Share::Summed { .. }) => self.profile.all_reduce_ns(out.rows * out.width * x.element_bytes),
            ([_, true], Share::Gathered) => self.profile.all_gather_ns(out.bytes()),
            _ => 0.0,
        };
    }

    /// A product of `rows` rows with those maps of a layer whose outputs, or inputs, take `widths` of its `nope +
    /// value`.
    fn map_rows(&mut self, maps: &SimMaps, widths: usize, outputs: usize, inputs: usize, rows: usize) {
        let bytes = maps.bytes * widths / (maps.heads.nope + maps.heads.value);
        self.spent += self.profile.linear.ns(bytes, outputs, inputs, rows, 1.0);
    }

    /// The sum of what the experts of a row have computed.
    fn sum_of_experts(&mut self, out: &SimBuffer, x: &SimBuffer, moved: usize) {
        self.small_op(moved);
        if x.share == Share::Parts {
            self.spent += self.profile.all_reduce_ns(out.rows * out.width * x.element_bytes);
        }
    }

    /// A copy of `bytes` between device and host, after all enqueued steps.
    fn transfer(&self, bytes: usize) {
        self.clock.transfer(bytes as f64 / self.profile.host_link_bytes_per_s * 1e9);
    }
}
