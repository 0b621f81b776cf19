//! Keys and values in pages.
use super::{Buffer, Isa};
use crate::backend::KvShape;
use crate::ids::LayerIx;
use crate::kv::KvSlot;

pub const PAGE_TOKENS: u32 = 16;

pub struct KvStore {
    pub shape: KvShape,
}

impl KvStore {
    pub fn page_bytes(shape: &KvShape) -> usize {
        let _ = shape;
        unimplemented!("owner: attention")
    }

    pub fn new(isa: Isa, shape: &KvShape) -> Self {
        let _ = (isa, shape);
        unimplemented!("owner: attention")
    }

    pub fn append(&mut self, layer: LayerIx, qkv: &Buffer, slots: &[KvSlot]) {
        let _ = (layer, qkv, slots);
        unimplemented!("owner: attention")
    }
}
