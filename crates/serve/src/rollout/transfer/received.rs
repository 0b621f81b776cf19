//! Tensors that have come from a trainer, or that it lends: named parts of the blocks of bytes in which they came, in
//! host memory or in that of a GPU.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use safetensors::SafeTensors;

use offshoot_backend::{DeviceBytes, MemoryBlock};
use offshoot_model::{TensorData, TensorDtype, TensorSource, TensorView};
use offshoot_openai::protocol::Refusal;

use super::described::DescribedTensor;
use super::exports::UserCounter;
use super::ipc::{LentTensor, LentTensors, OpenedMemory, Users};

/// What errors call the place of these tensors.
const PLACE: &str = "tensors of the update";

/// Tensors by name.
#[derive(Default)]
pub struct ReceivedTensors {
    blocks: Vec<MemoryBlock>,
    tensors: BTreeMap<String, TensorPlace>,
    bytes: usize,
    /// Memory in which lent blocks lie.
    opened: OpenedMemory,
    /// Its users. Dropped behind all memory.
    users: Users,
}

struct TensorPlace {
    dtype: TensorDtype,
    shape: Vec<usize>,
    /// Number of the block, and where in it.
    block: usize,
    range: Range<usize>,
}

impl ReceivedTensors {
    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Adds the tensors of a safetensors file.
    ///
    /// # Errors
    ///
    /// The block is no such file, or a tensor came before; nothing is added then.
    pub fn add_safetensors(&mut self, block: Vec<u8>) -> Result<(), Refusal> {
        let wrong = |why: String| Refusal::new("invalid_body", format!("expected a safetensors file, found {why}"));
        let file = SafeTensors::deserialize(&block).map_err(|error| wrong(error.to_string()))?;
        let begin = block.as_ptr() as usize;
        let place = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
            let start = view.data().as_ptr() as usize - begin;
            let place = TensorPlace {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                block: self.blocks.len(),
                range: start..start + view.data().len(),
            };
            (name.to_owned(), place)
        };
        let places: Vec<(String, TensorPlace)> = file.iter().map(place).collect();
        self.add(vec![MemoryBlock::Host(block)], places)
    }

    /// Adds a block that holds these tensors, one behind the other.
    ///
    /// # Errors
    ///
    /// Their bytes are not as many as the block has, or one came before; nothing is added then.
    pub fn add_block(&mut self, block: MemoryBlock, tensors: &[DescribedTensor]) -> Result<(), Refusal> {
        let mut end = 0;
        let place = |tensor: &DescribedTensor| {
            let start = end;
            end += tensor.bytes;
            let DescribedTensor { name, dtype, shape, .. } = tensor.clone();
            (name, TensorPlace { dtype, shape, block: self.blocks.len(), range: start..end })
        };
        let places: Vec<(String, TensorPlace)> = tensors.iter().map(place).collect();
        if end != block.len() {
            let what = format!("expected {end} bytes of {} tensors, found {}", tensors.len(), block.len());
            self.blocks.push(block);
            return Err(Refusal::new("invalid_body", what));
        }
        self.add(vec![block], places)
    }

    /// The users of exports, which are counted until these tensors and what this returns are dropped.
    pub fn users(&mut self, counters: Vec<UserCounter>) -> Users {
        self.users.of(counters)
    }

    /// Adds tensors that a trainer lends.
    ///
    /// # Errors
    ///
    /// One came before; no tensor is added then.
    pub fn add_lent(&mut self, lent: LentTensors) -> Result<(), Refusal> {
        let LentTensors { blocks, tensors, opened } = lent;
        self.opened.extend(opened);
        let place = |LentTensor { tensor, block, start }: LentTensor| {
            let DescribedTensor { name, dtype, shape, bytes } = tensor;
            (name, TensorPlace { dtype, shape, block: self.blocks.len() + block, range: start..start + bytes })
        };
        let places = tensors.into_iter().map(place).collect();
        self.add(blocks, places)
    }

    /// Also blocks whose tensors are refused stay until all are dropped: freeing device memory may wait for the device,
    /// which whoever adds must not.
    fn add(&mut self, blocks: Vec<MemoryBlock>, places: Vec<(String, TensorPlace)>) -> Result<(), Refusal> {
        self.blocks.extend(blocks);
        let mut names: Vec<&str> = places.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let again = names.iter().copied().find(|name| self.tensors.contains_key(*name));
        if let Some(name) = twice.or(again) {
            let what = format!("`{name}`: expected each tensor once in an update, found it twice");
            return Err(Refusal::new("duplicate_tensor", what));
        }
        self.bytes += places.iter().map(|(_, place)| place.range.len()).sum::<usize>();
        self.tensors.extend(places);
        Ok(())
    }
}

impl TensorSource for ReceivedTensors {
    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, place) = self.tensors.get_key_value(name)?;
        let data = match &self.blocks[place.block] {
            MemoryBlock::Host(bytes) => TensorData::Host(&bytes[place.range.clone()]),
            MemoryBlock::Device(memory) => TensorData::Device(DeviceBytes::whole(&**memory).part(place.range.clone())),
        };
        Some(TensorView { name, dtype: place.dtype, shape: &place.shape, data })
    }

    fn place(&self, _: Option<&str>) -> &Path {
        Path::new(PLACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(names: &[&str]) -> Vec<u8> {
        let bytes = [1u8, 2, 3, 4];
        let tensor = |name: &&str| {
            let view = safetensors::tensor::TensorView::new(TensorDtype::U8, vec![2, 2], &bytes).expect("four bytes");
            ((*name).to_owned(), view)
        };
        safetensors::serialize(names.iter().map(tensor), None).expect("they can be written")
    }

    fn described(name: &str, bytes: usize) -> DescribedTensor {
        DescribedTensor { name: name.to_owned(), dtype: TensorDtype::U8, shape: vec![bytes], bytes }
    }

    #[test]
    fn tensors_of_files_and_of_blocks_are_found_by_name() {
        let mut received = ReceivedTensors::default();
        received.add_safetensors(file(&["a", "b"])).expect("a file");
        received
            .add_block(MemoryBlock::Host(vec![5, 6, 7]), &[described("c", 1), described("d", 2)])
            .expect("three bytes");
        assert_eq!(received.names(), ["a", "b", "c", "d"]);
        let tensor = |name: &str| {
            let tensor = received.tensor(name)?;
            Some((tensor.shape.to_vec(), tensor.data.on_host().expect("it is there").into_owned()))
        };
        assert_eq!(tensor("b"), Some((vec![2, 2], vec![1, 2, 3, 4])));
        assert_eq!(tensor("d"), Some((vec![2], vec![6, 7])));
        assert_eq!(tensor("e"), None);
    }

    #[test]
    fn what_does_not_fit_adds_nothing() {
        let mut received = ReceivedTensors::default();
        received.add_safetensors(file(&["a"])).expect("a file");
        let bytes = received.bytes();
        let refused = |code, added: Result<(), Refusal>| assert_eq!(added.expect_err("it is wrong").code, code);
        refused("invalid_body", received.add_safetensors(vec![1; 20]));
        refused("duplicate_tensor", received.add_safetensors(file(&["b", "a"])));
        refused("invalid_body", received.add_block(MemoryBlock::Host(vec![0; 3]), &[described("c", 2)]));
        refused(
            "duplicate_tensor",
            received.add_block(MemoryBlock::Host(vec![0; 2]), &[described("c", 1), described("c", 1)]),
        );
        assert_eq!((received.names(), received.bytes()), (vec!["a"], bytes));
    }
}
