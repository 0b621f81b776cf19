//! The memory for copies of latents that are expanded to keys and values. A decoder has it beside its activations: what
//! it holds can be made again from the latents, and nobody saves it.

use super::config::ModelConfig;
use super::decoder::Decoder;
use offshoot_backend::{Backend, CopyStore, Dtype, KvShape};
use offshoot_core::error::Result;

impl ModelConfig {
    /// The memory of each store of copies, of so many pages; `None`: the model has no latent attention.
    pub fn copy_shapes(&self, dtype: Dtype, pages: [usize; CopyStore::COUNT]) -> Option<[KvShape; CopyStore::COUNT]> {
        let heads = self.latents()?.expanded();
        let shape = |store: CopyStore| {
            let layers = match store {
                CopyStore::Kept => self.stored_heads().count(),
                CopyStore::Again => 1,
            };
            KvShape::uniform(layers, heads, dtype, pages[store as usize])
        };
        Some(CopyStore::ALL.map(shape))
    }

    /// Bytes of a page of each store; 0 if the model has no latent attention.
    pub fn copy_page_bytes<B: Backend>(&self, backend: &B, dtype: Dtype) -> [usize; CopyStore::COUNT] {
        let shapes = self.copy_shapes(dtype, [1; CopyStore::COUNT]);
        shapes.map_or([0; CopyStore::COUNT], |shapes| shapes.map(|shape| backend.page_bytes(&shape)))
    }
}

impl<B: Backend> Decoder<B> {
    /// Bytes of a page of each store; 0 if the model has no latent attention.
    pub fn copy_page_bytes(&self, backend: &B) -> [usize; CopyStore::COUNT] {
        self.config().copy_page_bytes(backend, self.dtype())
    }

    /// Allocates memory for copies, so many pages of each store, in place of what was allocated. Where one store has no
    /// page, or the model no latent attention, there is none: all that its steps read is then absorbed.
    ///
    /// # Errors
    ///
    /// The device lacks memory.
    pub fn allocate_copies(&mut self, backend: &mut B, pages: [usize; CopyStore::COUNT]) -> Result<()> {
        self.drop_copies();
        if pages.contains(&0) {
            return Ok(());
        }
        if let Some([kept, again]) = self.config().copy_shapes(self.dtype(), pages) {
            self.set_copies(Some([backend.kv(&kept)?, backend.kv(&again)?]));
        }
        Ok(())
    }

    /// Gives the memory for copies back.
    pub fn drop_copies(&mut self) {
        self.set_copies(None);
    }
}
