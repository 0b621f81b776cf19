//! What all layers read and write in a step: rope tables, which grow with the sequences, keys and values, and the
//! step's integers.

use offshoot_backend::{Backend, CopiesShape, CopyStore, StepRows};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;

use super::lora::{AdaptedLayer, StepAdapters};
use super::rope::{Rotary, Turning};

/// A rope table that covers all positions in use, on the host and in the backend's memory.
pub struct LoadedRope<B: Backend> {
    rotary: Rotary,
    pub table: B::Rope,
    /// Whether `table` equals that of `rotary`: false if the device had no memory for a longer table.
    is_current: bool,
}

/// The operands of all layers in a step.
pub struct StepOperands<'a, B: Backend> {
    pub ropes: &'a [LoadedRope<B>],
    pub kv: &'a mut B::Kv,
    /// Copies of latents by [`CopyStore`]; `None`: no step has any.
    pub copies: Option<&'a mut [B::Kv; CopyStore::COUNT]>,
    /// As in `StepShape`.
    pub absorbs: bool,
    pub copies_shape: [CopiesShape; CopyStore::COUNT],
    pub loaded: &'a mut B::Step,
    /// The layers that adapters may change; `None`: no row has an adapter.
    pub adapted: Option<&'a [AdaptedLayer<B>]>,
}

impl<B: Backend> StepOperands<'_, B> {
    /// The adapters of such rows.
    pub fn adapters(&self, rows: StepRows) -> StepAdapters<'_, B> {
        StepAdapters::of(self.adapted, rows, self.loaded)
    }
}

/// A store of copies, and where those of layer `stored` are in it. Panics if there are none.
pub fn copies_of<'a, K>(
    copies: &'a mut Option<&mut [K; CopyStore::COUNT]>,
    store: CopyStore,
    stored: LayerIx,
) -> (&'a mut K, LayerIx) {
    let all = copies.as_mut().expect("a step that reads copies is loaded only where there is memory for them");
    let layer = match store {
        CopyStore::Kept => stored,
        CopyStore::Again => LayerIx(0),
    };
    (&mut all[store as usize], layer)
}

/// One table for each of `ropes`, for sequences of at most `longest` tokens.
pub fn load_ropes<B: Backend>(backend: &mut B, ropes: &[Turning], longest: usize) -> Result<Vec<LoadedRope<B>>> {
    ropes.iter().map(|rope| LoadedRope::new(backend, rope, longest)).collect()
}

impl<B: Backend> LoadedRope<B> {
    fn new(backend: &mut B, turning: &Turning, longest: usize) -> Result<Self> {
        let rotary = Rotary::new(turning, longest);
        Ok(Self { table: backend.rope_table(rotary.table())?, rotary, is_current: true })
    }

    /// Makes the table cover so many positions.
    pub fn cover(&mut self, backend: &mut B, positions: usize) -> Result<()> {
        self.is_current &= !self.rotary.cover(positions);
        if !self.is_current {
            self.table = backend.rope_table(self.rotary.table())?;
            self.is_current = true;
        }
        Ok(())
    }
}
