//! The ops on an NVIDIA GPU, found at run time: nothing of CUDA is needed to build, and a machine without it says why.
//! Everything is enqueued on one stream, but for branches of graphs, which repeat whole steps. This file holds the open
//! GPU and how its products are chosen.
//!
//! A folder uses only folders below it, and no folder above uses one in a circle (`tests/texts/floors_cuda.rs`):
//!
//! ```text
//! backend                         the ops of `Backend`, each routed to its folder
//! loading                         kernels and matrices, loaded with the first of their kind; room for rows
//! timing, ranks                   how long a step takes, for benchmarks; what passes between GPUs of one model
//! step                            a step's words on the device, its graphs, and its results on their way to the host
//! latents                         what latent attention needs beside attention and its products
//! ops, gemm, lora, experts,       the launchers: element-wise ops; linear layers; adapters; mixtures of experts; tree
//! attention, delta_rule, sampling attention; recurrent layers; sampling
//! rounding                        activations rounded to e4m3, for gemm and experts
//! four_bit                        products with 4-bit weights, of layers and experts
//! memory                          what lies on the device: activations, weights, KV pages, states, staged lists
//! driver                          one device: stream, allocations, kernels, events, graphs
//! compile                         from kernels/ to machine code
//! discovery                       which GPUs there are, and where CUDA's libraries lie
//! ```
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod attention;
mod backend;
pub mod compile;
pub mod delta_rule;
pub mod discovery;
pub mod driver;
pub mod experts;
pub mod four_bit;
pub mod gemm;
pub mod latents;
mod loading;
pub mod lora;
pub mod memory;
pub mod ops;
pub mod ranks;
mod rounding;
pub mod sampling;
#[cfg(test)]
#[path = "../../../tests/common/skip.rs"]
mod skip;
pub mod step;
mod timing;

use std::collections::HashMap;
use std::sync::Arc;

pub use self::attention::levels::LevelRows;
pub use self::experts::Experts;
pub use self::experts::routes::Routes;
pub use self::latents::LatentMaps;
pub use self::lora::{Lora, LoraTerm};
pub use self::memory::buffer::Buffer;
pub use self::memory::kv::Kv;
pub use self::memory::weights::{Matrix, Vector};
pub use self::ops::Rope;
pub use self::step::Step;

use self::compile::elements::{HeadWidths, KvElement};
use self::delta_rule::StateKernels;
use self::driver::branch::Branch;
use self::driver::device::Device;
use self::driver::event::Event;
use self::driver::memory::Memory;
use self::experts::ExpertKernels;
use self::four_bit::FourBitKernels;
use self::gemm::Gemm;
use self::gemm::chooser::{self, AlgorithmPolicy};
use self::gemm::shared::Sharing;
use self::latents::LatentOps;
use self::loading::{Expanding, Fp8};
use self::lora::LoraKernels;
use self::memory::sleep::Asleep;
use self::memory::weights::WeightLoader;
use self::ops::Ops;
use self::ranks::fabric::CudaFabric;
use self::step::StepOrder;
use offshoot_backend::ranks::Place;
use offshoot_backend::{Dtype, HeadLayout, KvDtype, WeightFormat};
use offshoot_core::error::Result;

/// An open GPU, and what is loaded on it.
pub struct Cuda {
    device: Device,
    loader: WeightLoader,
    /// Kernels by dtype of operands; loaded with their first buffer, matrix or pages.
    ops: HashMap<Dtype, Ops>,
    /// Products by weight format; loaded with the first matrix.
    gemms: HashMap<WeightFormat, Gemm>,
    /// Loaded with the first matrix of e4m3.
    fp8: Option<Fp8>,
    four_bit: FourBitKernels,
    /// The most rows that any buffer had, and the most places that any routes had.
    most_rows: usize,
    most_places: usize,
    /// Kernels of experts by dtype of weights; loaded with the first experts.
    experts: HashMap<Dtype, ExpertKernels>,
    /// The ops of latent attention by dtype, loaded with the first op of theirs, and between their parts the latents
    /// that are expanded, by the shape of maps.
    latents: HashMap<Dtype, LatentOps>,
    expanding: Vec<Expanding>,
    /// One for each dtype, of activations and of states, and heads; loaded with the first states of them.
    states: Vec<StateKernels>,
    /// Products of the chunks of long runs; nothing lasts from one layer to the next.
    chunk_products: Option<Memory>,
    /// Kernels of adapters by dtype; loaded with the first table of their dtype.
    lora: HashMap<Dtype, LoraKernels>,
    /// The sums of `add_lora` between its two products, and the most bytes of a row.
    lora_sums: Option<Memory>,
    lora_row_bytes: usize,
    choosing: AlgorithmPolicy,
    /// Among the ranks of a model.
    place: Option<Place<CudaFabric>>,
    /// Number of changes that invalidate captured graphs: memory addresses, or whether attention runs.
    moves: u64,
    skips_attention: bool,
    /// Whether timed runs find in caches what the run before left there.
    keeps_caches: bool,
    asleep: Asleep,
    /// Whether ops of the last step that was run may have been enqueued on the device.
    has_begun: bool,
    deterministic: bool,
    kv: KvDtype,
    /// Shared with the backends of other models on this GPU.
    order: Arc<StepOrder>,
    /// What of a captured step is computed beside other parts of it; `None` until a model is loaded that has such
    /// parts.
    branch: Option<Arc<Branch>>,
    /// The end of its last step; made with the first one that has another backend beside it.
    end: Option<Arc<Event>>,
}

impl Cuda {
    /// Opens GPU number `ordinal`. The error is one sentence; see `Device::open`.
    pub fn open(ordinal: usize) -> Result<Self> {
        Self::on(Device::open(ordinal)?, Arc::default())
    }

    /// Opens this GPU once more, for another model. Both have a stream and memory of their own. On the device each step
    /// of one follows the last step of the other that was submitted before it, so that they take turns where both have
    /// work.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open).
    pub fn beside(&self) -> Result<Self> {
        Self::on(Device::open(self.device.facts().ordinal)?, self.order.clone())
    }

    fn on(device: Device, order: Arc<StepOrder>) -> Result<Self> {
        Ok(Self {
            loader: WeightLoader::new(&device)?,
            ops: HashMap::new(),
            gemms: HashMap::new(),
            fp8: None,
            four_bit: FourBitKernels::new(&device),
            most_rows: 0,
            most_places: 0,
            experts: HashMap::new(),
            latents: HashMap::new(),
            expanding: Vec::new(),
            states: Vec::new(),
            chunk_products: None,
            lora: HashMap::new(),
            lora_sums: None,
            lora_row_bytes: 0,
            choosing: AlgorithmPolicy::Fastest { at_most: chooser::TUNE_BUDGET },
            place: None,
            moves: 0,
            skips_attention: false,
            branch: None,
            keeps_caches: false,
            asleep: Asleep::default(),
            has_begun: false,
            deterministic: false,
            kv: KvDtype::Model,
            order,
            end: None,
            device,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Leaves out attention from now on, which gives the upper bound for any attention. For benchmarks.
    pub fn skip_attention(&mut self) {
        self.moves += 1;
        self.skips_attention = true;
    }

    /// Sets how algorithms of linear layers are chosen; by default the fastest measured.
    pub fn choose_products(&mut self, choosing: AlgorithmPolicy) {
        self.moves += 1;
        self.choosing = choosing;
        self.gemms.values_mut().for_each(|gemm| gemm.choose(choosing));
        self.fp8.iter_mut().for_each(|fp8| fp8.linear.choose(choosing));
    }

    /// What orders its steps among those of other models, with the mark of its own steps' end; `None`: it is the only
    /// backend.
    fn order(&mut self) -> Result<Option<(Arc<StepOrder>, Arc<Event>)>> {
        if Arc::strong_count(&self.order) == 1 {
            return Ok(None);
        }
        let end = match &self.end {
            Some(end) => end.clone(),
            None => self.end.insert(Arc::new(self.device.event()?)).clone(),
        };
        Ok(Some((self.order.clone(), end)))
    }

    /// How all ranks of a model choose algorithms of linear layers alike: as the first one does.
    fn sharing(&self) -> Option<Sharing> {
        let place = self.place.as_ref()?;
        Some(Sharing::new(place.fabric().choices.clone(), place.number() == 0))
    }

    /// Enqueues without autotuning, for shapes that may never recur.
    fn without_tuning(&mut self, enqueue: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.may_tune(false);
        let enqueued = enqueue(self);
        self.may_tune(true);
        enqueued
    }

    fn may_tune(&mut self, may_tune: bool) {
        self.gemms.values_mut().for_each(|gemm| gemm.products.may_tune(may_tune));
        self.fp8.iter_mut().for_each(|fp8| fp8.linear.products.may_tune(may_tune));
    }

    /// The page layout of keys and values for a model with these heads and weights.
    fn kv_element(&self, heads: HeadLayout, dtype: Dtype) -> KvElement {
        KvElement::of(heads.kv_dtype(self.kv), self.device.facts(), dtype, HeadWidths::of(heads))
    }
}
