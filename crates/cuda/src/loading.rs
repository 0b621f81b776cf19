//! Kernels are loaded with the first weights, pages or buffers of their format, and matrices into the layout that their
//! kernels read. Room for rows between kernels grows with the largest step; addresses that move so are counted, as
//! graphs name them.

use std::collections::hash_map::Entry;

use crate::Cuda;
use crate::compile::elements::Fp8Scaling;
use crate::compile::four_bit::FourBit;
use crate::delta_rule::StateKernels;
use crate::driver::memory::Memory;
use crate::experts::fp8::{Fp8ExpertKernels, Fp8Experts};
use crate::experts::{ExpertKernels, Experts};
use crate::gemm::Gemm;
use crate::gemm::linear_fp8::LinearFp8;
use crate::latents::{self, LatentMaps, LatentOps, expanded_rows};
use crate::memory;
use crate::memory::buffer::Buffer;
use crate::memory::weights::{Matrix, Vector};
use crate::ops::Ops;
use crate::rounding::{RowRounder, RowsOf};
use offshoot_backend::{
    Dtype, ExpertKind, HeldPart, LatentHeads, LayerState, MatrixPart, QuantView, StackShape, StateDtype, WeightFormat,
    all_quantised, with_dense,
};
use offshoot_core::error::Result;

/// What multiplies e4m3.
pub struct Fp8 {
    pub rounder: RowRounder,
    pub linear: LinearFp8,
    pub experts: Fp8ExpertKernels,
    /// The scales whose kernels are loaded, of linear layers and of experts.
    pub loaded: Vec<Fp8Scaling>,
    pub loaded_of_experts: Vec<Fp8Scaling>,
    /// The most inputs of any matrix, and of any experts.
    pub inner: usize,
    pub inner_of_experts: usize,
}

/// Latents of one shape on their way to copies: gathered, then mapped to the keys and values of all heads.
pub struct Expanding {
    heads: LatentHeads,
    pub gathered: Buffer,
    pub mapped: Buffer,
}

impl Expanding {
    fn is_for(&self, heads: LatentHeads, dtype: Dtype) -> bool {
        (self.heads, self.gathered.element) == (heads, dtype)
    }
}

impl Cuda {
    /// Loads the maps of a layer with latent attention, in the memory of `old` if that is given and as large.
    pub(crate) fn latent_maps_over(
        &mut self,
        parts: &[HeldPart<'_>],
        heads: LatentHeads,
        dtype: Dtype,
        old: Option<&LatentMaps>,
    ) -> Result<LatentMaps> {
        latents::check(heads)?;
        let matrix = with_dense(parts, |parts| self.matrix_over(parts, old.map(|old| &old.matrix)))?;
        assert_eq!(matrix.format, WeightFormat::Dense(dtype), "latent_maps: dtype of the maps");
        if !self.expanding.iter().any(|room| room.is_for(heads, dtype)) {
            let (gathered, mapped) = (Buffer::new(heads.rank, dtype), Buffer::new(heads.map_rows(), dtype));
            self.expanding.push(Expanding { heads, gathered, mapped });
        }
        Ok(LatentMaps::new(heads, matrix))
    }

    /// Runs an op of latent attention that changes `out`, by kernels that are loaded with the first op of their dtype.
    /// An error is kept for the device's next check.
    pub(crate) fn latents(&mut self, out: &Buffer, run: impl FnOnce(&LatentOps)) {
        self.forget_before(out);
        let loaded = match self.latents.entry(out.element) {
            Entry::Occupied(loaded) => Ok(loaded.into_mut()),
            Entry::Vacant(new) => LatentOps::load(&self.device, out.element).map(|ops| new.insert(ops)),
        };
        match loaded {
            Ok(ops) => run(ops),
            Err(error) => self.device.keep(error),
        }
    }

    /// Makes room for the latents of so many expansions, as many as are expanded at a time.
    pub(crate) fn reserve_expanding(&mut self, expansions: usize) -> Result<()> {
        for number in 0..self.expanding.len() {
            self.reserve_expanding_of(number, expansions)?;
        }
        Ok(())
    }

    fn reserve_expanding_of(&mut self, number: usize, expansions: usize) -> Result<()> {
        let rows = expanded_rows(expansions);
        let Expanding { gathered, mapped, .. } = &mut self.expanding[number];
        for buffer in [gathered, mapped] {
            if buffer.rows < rows {
                let reserved = buffer.resize(&self.device, rows);
                self.moves += u64::from(*reserved.as_ref().unwrap_or(&true));
                reserved?;
            }
        }
        Ok(())
    }

    /// The room for latents of these maps, taken until it is given back, with rows for so many expansions: reserved
    /// with the step, unless the maps were loaded after it.
    pub(crate) fn take_expanding(&mut self, maps: &LatentMaps, expansions: usize) -> Result<Expanding> {
        let is_for = |room: &Expanding| room.is_for(maps.heads, maps.matrix.element());
        let number = self.expanding.iter().position(is_for).expect("made with the first maps of their shape");
        self.reserve_expanding_of(number, expansions)?;
        Ok(self.expanding.swap_remove(number))
    }

    pub(crate) fn give_expanding(&mut self, room: Expanding) {
        self.expanding.push(room);
    }

    pub(crate) fn load_ops(&mut self, dtype: Dtype) -> Result<()> {
        if !self.ops.contains_key(&dtype) {
            self.ops.insert(dtype, Ops::load(&self.device, dtype)?);
        }
        Ok(())
    }

    pub(crate) fn load_kernels(&mut self, element: Dtype) -> Result<()> {
        self.load_ops(element)?;
        let format = WeightFormat::Dense(element);
        if !self.gemms.contains_key(&format) {
            let mut gemm = Gemm::load(&self.device, format)?;
            gemm.choose(self.choosing);
            self.sharing().into_iter().for_each(|sharing| gemm.products.share(sharing));
            if self.branch.is_some() {
                gemm.products.reserve_branch()?;
            }
            self.gemms.insert(format, gemm);
        }
        Ok(())
    }

    /// The element-wise ops, for one that changes `out`.
    pub(crate) fn ops(&mut self, dtype: Dtype, out: &Buffer) -> &Ops {
        self.forget_before(out);
        self.ops_of(dtype)
    }

    pub(crate) fn ops_of(&self, dtype: Dtype) -> &Ops {
        self.ops.get(&dtype).expect("loaded with the first buffer, matrix or pages of their dtype")
    }

    pub(crate) fn expert_kernels(&self, dtype: Dtype) -> &ExpertKernels {
        self.experts.get(&dtype).expect("loaded with the first experts of their dtype")
    }

    pub(crate) fn load_states(&mut self, element: Dtype, state: StateDtype, layer: LayerState) -> Result<()> {
        if self.state_kernels(element, state, layer).is_none() {
            self.states.push(StateKernels::load(&self.device, element, state, layer)?);
        }
        Ok(())
    }

    /// Makes room for products of chunks where no step was announced, outside of captured graphs, whose steps have no
    /// long runs. Without room long runs are computed token by token.
    pub(crate) fn reserve_chunk_products(&mut self, bytes: usize) -> bool {
        if self.chunk_products.as_ref().is_some_and(|memory| memory.bytes() >= bytes) {
            return true;
        }
        // An error of a launch before this one is not one of memory: it is kept for the step's end.
        if let Err(error) = self.device.check() {
            self.device.keep(error);
            return false;
        }
        self.chunk_products = None;
        match self.device.alloc(bytes) {
            Ok(memory) => self.chunk_products = Some(memory),
            Err(error) if error.is_shortage() => {
                log::warn!("long runs of recurrent layers are computed token by token: {error}");
            }
            Err(error) => self.device.keep(error),
        }
        self.chunk_products.is_some()
    }

    pub(crate) fn state_kernels(&self, element: Dtype, state: StateDtype, layer: LayerState) -> Option<&StateKernels> {
        let is_for =
            |kernels: &&StateKernels| (kernels.element, kernels.state, kernels.layer) == (element, state, layer);
        self.states.iter().find(is_for)
    }

    pub(crate) fn forget_rounded(&mut self) {
        self.fp8.iter_mut().for_each(|fp8| fp8.rounder.forget());
    }

    /// Forgets rounded rows before an op that changes `out` and no other buffer whose rows a product may read rounded.
    pub(crate) fn forget_before(&mut self, out: &Buffer) {
        self.fp8.iter_mut().for_each(|fp8| fp8.rounder.forget_before(out));
    }

    /// Forgets the rounded rows of `out`, which an op changes and no other buffer.
    pub(crate) fn forget_rows_of(&mut self, out: &Buffer) {
        self.fp8.iter_mut().for_each(|fp8| fp8.rounder.forget_rows_of(out));
    }

    /// Before an op that uses memory of all ops of its kind (rounded rows, sums of adapters): in a branch, it waits for
    /// what is enqueued beside it.
    pub(crate) fn share_memory_of_main(&mut self) {
        let Some(branch) = self.branch.as_ref().filter(|_| self.device.is_in_branch()) else { return };
        if let Err(error) = branch.wait_for_main() {
            self.device.keep(error);
        }
    }

    /// What multiplies e4m3, opened if it is not.
    pub(crate) fn opened_fp8(&mut self) -> Result<&mut Fp8> {
        if self.fp8.is_none() {
            let mut linear = LinearFp8::new(&self.device)?;
            linear.choose(self.choosing);
            self.sharing().into_iter().for_each(|sharing| linear.products.share(sharing));
            if self.branch.is_some() {
                linear.products.reserve_branch()?;
            }
            let (rounder, experts) = (RowRounder::new(&self.device), Fp8ExpertKernels::new(&self.device));
            let (loaded, loaded_of_experts) = (Vec::new(), Vec::new());
            let (inner, inner_of_experts) = (0, 0);
            self.fp8 = Some(Fp8 { rounder, linear, experts, loaded, loaded_of_experts, inner, inner_of_experts });
        }
        Ok(self.fp8.as_mut().expect("opened above"))
    }

    /// Stacks `parts` into a matrix, in the memory of `old` if that is given and as large.
    pub(crate) fn matrix_over(&mut self, parts: &[MatrixPart<'_>], old: Option<&Matrix>) -> Result<Matrix> {
        if let Some(views) = all_quantised(parts) {
            return match FourBit::of(views[0].format) {
                Some(format) => {
                    self.four_bit.load(format)?;
                    memory::four_bit::matrix(&self.device, self.loader.staging(), &views, old)
                }
                None => self.fp8_matrix(&views, old),
            };
        }
        let element =
            StackShape::of(parts).dense.expect("dense parts of one dtype, by `multiplies` and `MIXES_DTYPES`");
        self.load_kernels(element)?;
        let matrix = self.loader.matrix(parts, old)?;
        if old.is_none_or(|old| !matrix.is_over(old)) {
            self.gemm(matrix.format).products.remember(&matrix);
        }
        Ok(matrix)
    }

    pub(crate) fn fp8_matrix(&mut self, views: &[QuantView<'_>], old: Option<&Matrix>) -> Result<Matrix> {
        let format = WeightFormat::Quantised(views.first().expect("a matrix has at least one part").format);
        let scaling = Fp8Scaling::of(format, self.device.facts().major).expect("a format that `multiplies` takes");
        let fp8 = self.opened_fp8()?;
        if !fp8.loaded.contains(&scaling) {
            fp8.rounder.load(scaling)?;
            fp8.linear.load(scaling)?;
            fp8.loaded.push(scaling);
        }
        let matrix = self.loader.fp8_matrix(views, scaling, old)?;
        let fp8 = self.opened_fp8()?;
        if old.is_none_or(|old| !matrix.is_over(old)) {
            fp8.linear.products.remember(&matrix);
        }
        fp8.inner = fp8.inner.max(matrix.inner);
        self.reserve_rounded()?;
        Ok(matrix)
    }

    pub(crate) fn fp8_experts(
        &mut self,
        matrices: Vec<Matrix>,
        biases: &[Vector],
        kind: ExpertKind,
    ) -> Result<Experts> {
        let fp8 = self.opened_fp8()?;
        let scaling = matrices.iter().find_map(|matrix| matrix.fp8.as_ref()).expect("some are of e4m3").scaling;
        if !fp8.loaded_of_experts.contains(&scaling) {
            fp8.experts.load(scaling)?;
            fp8.loaded_of_experts.push(scaling);
        }
        fp8.inner_of_experts = fp8.inner_of_experts.max(matrices[0].inner);
        self.reserve_rounded()?;
        Fp8Experts::load(&self.opened_fp8()?.experts, matrices, biases, kind).map(Experts::Fp8)
    }

    /// Makes ready for buffers of so many rows.
    pub(crate) fn note_rows(&mut self, rows: usize) -> Result<()> {
        if rows > self.most_rows {
            self.most_rows = rows;
            self.reserve_rounded()?;
            self.reserve_lora()?;
        }
        Ok(())
    }

    /// Makes room for the sums of adapters of all rows. Without room, each later step asks again.
    pub(crate) fn reserve_lora(&mut self) -> Result<()> {
        let bytes = self.most_rows.saturating_mul(self.lora_row_bytes);
        if self.lora_sums.as_ref().map_or(0, Memory::bytes) >= bytes {
            return Ok(());
        }
        self.moves += 1;
        self.lora_sums = None;
        match self.device.alloc(bytes) {
            Ok(memory) => {
                self.lora_sums = Some(memory);
                Ok(())
            }
            Err(error) => {
                self.most_rows = 0;
                Err(error)
            }
        }
    }

    /// Makes room for the rounded rows of all products. Without room, each later step asks again for its own.
    pub(crate) fn reserve_rounded(&mut self) -> Result<()> {
        let Some(fp8) = &mut self.fp8 else { return Ok(()) };
        let linear = RowsOf { rows: self.most_rows, inner: fp8.inner };
        let experts = RowsOf { rows: self.most_places, inner: fp8.inner_of_experts };
        let reserved = fp8.rounder.reserve(linear, experts);
        if reserved.is_err() {
            (self.most_rows, self.most_places) = (0, 0);
        }
        self.moves += u64::from(*reserved.as_ref().unwrap_or(&true));
        reserved.map(drop)
    }

    pub(crate) fn gemm(&mut self, format: WeightFormat) -> &mut Gemm {
        self.gemms.get_mut(&format).expect("loaded with the first matrix of its format")
    }
}

/// Why there are kernels of e4m3 for experts of such weights.
pub(crate) const OPENED_WITH_FP8: &str = "opened with the first matrix of e4m3";

/// Why there are kernels for a layer with states.
pub(crate) const LOADED_WITH_STATES: &str = "loaded with the states of their heads and dtype";
