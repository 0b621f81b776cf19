//! Tensors that a trainer on the same GPU lends by handles of its memory (CUDA IPC), as vLLM's engine of this name
//! takes them. They are read where they lie when the update is put in force, or copied at once where the trainer fills
//! one buffer again and again. Handles are closed, and the trainer's count of users is told, when the update has ended.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use offshoot_backend::{DeviceBytes, DeviceLender, DeviceMemory, IpcHandle, MemoryBlock};
use offshoot_openai::protocol::{BodyFields, Refusal};

use super::described::{DescribedTensor, Packing, bytes_of, described, packing};
use super::exports::{ByGpu, Export, Exports, UserCounter};
use crate::rollout::failed;

/// The field with the handles.
pub const HANDLES: &str = "ipc_handles_pickled";

/// An update by handles.
pub struct IpcUpdate {
    tensors: Vec<DescribedTensor>,
    exports: Exports,
}

impl IpcUpdate {
    /// # Errors
    ///
    /// The tensors are not described, their sizes contradict their shapes, or the handles are none.
    pub fn read(fields: &mut BodyFields) -> Result<IpcUpdate, Refusal> {
        let handles = fields.text(HANDLES)?.unwrap_or_default();
        let handles = STANDARD.decode(handles).map_err(|_| Refusal::value(HANDLES, "base64", "something else"))?;
        let tensors = described(fields)?.ok_or_else(|| Refusal::value("names", "at least one tensor", "none"))?;
        packing(fields, Packing::Single)?;
        // In bytes, or in elements, as the sender has it.
        let sizes = [fields.take("tensor_sizes"), fields.take("sizes")].into_iter().flatten().next();
        if let Some(sizes) = sizes {
            let list = sizes.as_array().filter(|list| list.len() == tensors.len());
            let fits = |tensor: &DescribedTensor, size: u64| {
                let elements = tensor.shape.iter().product::<usize>() as u64;
                size == tensor.bytes as u64 || size == elements
            };
            let fit = list.is_some_and(|list| {
                tensors.iter().zip(list).all(|(tensor, size)| size.as_u64().is_some_and(|size| fits(tensor, size)))
            });
            if !fit {
                return Err(Refusal::value("tensor_sizes", "the size of each tensor, as its shape says", "others"));
            }
        }
        let exports = Exports::of_pickle(&handles).ok_or_else(|| {
            let expected = "the pickle (protocol 4 or 5) of the arguments of torch's rebuild_cuda_tensor by GPU, for \
                            memory without expandable segments";
            Refusal::value(HANDLES, expected, "something else")
        })?;
        match &exports {
            Exports::Each(each) if each.len() != tensors.len() => {
                let expected = format!("handles for each of the {} `names`", tensors.len());
                Err(Refusal::value(HANDLES, &expected, &each.len().to_string()))
            }
            _ => Ok(IpcUpdate { tensors, exports }),
        }
    }

    /// Bytes of its tensors.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.tensors)
    }

    /// What is answered where the engine has no GPU.
    pub fn without_gpu() -> Refusal {
        let what = "the engine computes on the CPU, which has no handles of CUDA's memory: send the tensors in bodies \
                    or in a folder";
        Refusal::new("unsupported_transfer", what)
    }

    /// The tensors with the memory in which each lies. `lent` keeps what they need.
    ///
    /// # Errors
    ///
    /// A handle is of another GPU, is not opened, or names memory that holds another tensor than is described.
    pub fn open(self, lender: &dyn DeviceLender, lent: &mut Lent) -> Result<LentTensors, Refusal> {
        let uuid = lender.uuid().map_err(|error| failed(&error))?;
        match self.exports {
            Exports::Each(each) => {
                let own = each.iter().map(|by_gpu| of_gpu(by_gpu, &uuid)).collect::<Result<Vec<_>, _>>()?;
                own.iter().for_each(|export| lent.count(export));
                let mut opened = LentTensors::default();
                for (tensor, export) in self.tensors.into_iter().zip(own) {
                    let (block, start) = one(&tensor, export, lender, lent)?;
                    opened.tensors.push(LentTensor { tensor, block: opened.blocks.len(), start });
                    opened.blocks.push(block);
                }
                Ok(opened)
            }
            Exports::Together(by_gpu) => {
                let export = of_gpu(&by_gpu, &uuid)?;
                lent.count(export);
                together(self.tensors, export, lender, lent)
            }
        }
    }
}

/// Tensors, and the memory in which they lie.
#[derive(Default)]
pub struct LentTensors {
    pub blocks: Vec<MemoryBlock>,
    pub tensors: Vec<LentTensor>,
}

/// A tensor, and where it lies in a block.
pub struct LentTensor {
    pub tensor: DescribedTensor,
    /// Number of the block.
    pub block: usize,
    pub start: usize,
}

fn of_gpu<'a>(by_gpu: &'a ByGpu, uuid: &str) -> Result<&'a Export, Refusal> {
    let is_own = |named: &str| named.strip_prefix("GPU-").unwrap_or(named).eq_ignore_ascii_case(uuid);
    let own = by_gpu.iter().find(|(named, _)| is_own(named)).map(|(_, export)| export);
    own.ok_or_else(|| {
        let named: Vec<&str> = by_gpu.iter().map(|(named, _)| &**named).collect();
        Refusal::value(HANDLES, &format!("handles of memory of the GPU {uuid}"), &format!("of {}", named.join(", ")))
    })
}

/// The memory in which a tensor lies as its export says, and where.
fn one(
    tensor: &DescribedTensor,
    export: &Export,
    lender: &dyn DeviceLender,
    lent: &mut Lent,
) -> Result<(MemoryBlock, usize), Refusal> {
    if (export.dtype, &export.shape) != (tensor.dtype, &tensor.shape) {
        let expected = format!("`{}` as {:?} {:?}", tensor.name, tensor.dtype, tensor.shape);
        return Err(Refusal::value(HANDLES, &expected, &format!("{:?} {:?}", export.dtype, export.shape)));
    }
    if !is_whole(export) {
        let expected = format!("`{}` with its rows one after the other", tensor.name);
        return Err(Refusal::value(HANDLES, &expected, &format!("strides {:?}", export.strides)));
    }
    if tensor.bytes == 0 {
        return Ok((MemoryBlock::Host(Vec::new()), 0));
    }
    let (memory, start) = lent.opened(export, tensor.bytes, lender)?;
    Ok((MemoryBlock::Device(memory), start))
}

/// Tensors one behind the other in one buffer, which is copied: the trainer fills it again when this is answered.
fn together(
    tensors: Vec<DescribedTensor>,
    export: &Export,
    lender: &dyn DeviceLender,
    lent: &mut Lent,
) -> Result<LentTensors, Refusal> {
    let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
    let block = match bytes {
        0 => MemoryBlock::Host(Vec::new()),
        _ => {
            let (memory, start) = lent.opened(export, bytes, lender)?;
            let bytes = DeviceBytes::whole(&*memory).part(start..start + bytes);
            lender.copied(bytes).map_err(|error| failed(&error))?
        }
    };
    let mut end = 0;
    let place = |tensor: DescribedTensor| {
        let start = end;
        end += tensor.bytes;
        LentTensor { tensor, block: 0, start }
    };
    Ok(LentTensors { tensors: tensors.into_iter().map(place).collect(), blocks: vec![block] })
}

/// Whether the elements of a tensor lie row by row, without gaps.
fn is_whole(export: &Export) -> bool {
    let mut step = 1;
    let mut each = export.shape.iter().zip(&export.strides).rev();
    let follows = each.all(|(&size, &stride)| {
        let follows = size <= 1 || stride == step;
        step *= size.max(1);
        follows
    });
    export.shape.len() == export.strides.len() && (follows || export.shape.contains(&0))
}

/// Memory of a trainer that is open for an update, and where the trainer counts its users.
#[derive(Default)]
pub struct Lent {
    opened: HashMap<IpcHandle, Arc<dyn DeviceMemory>>,
    counters: HashSet<UserCounter>,
}

impl Lent {
    /// Notes that an export is used: its user is gone when this is dropped. A buffer that is filled several times is
    /// exported once, and counts one user.
    fn count(&mut self, export: &Export) {
        self.counters.insert(export.counter.clone());
    }

    /// The memory in which an export lies, once it has been written, and where: at least `bytes` bytes of it.
    fn opened(
        &mut self,
        export: &Export,
        bytes: usize,
        lender: &dyn DeviceLender,
    ) -> Result<(Arc<dyn DeviceMemory>, usize), Refusal> {
        let refuse = |error| failed(&error);
        let wrong = |found: &str| Refusal::value(HANDLES, &format!("memory with {bytes} bytes of tensors"), found);
        let handle = export.handle.ok_or_else(|| wrong("no memory"))?;
        if let Some(event) = &export.event {
            lender.wait_for(event).map_err(refuse)?;
        }
        let memory = match self.opened.get(&handle) {
            Some(memory) => memory.clone(),
            None => {
                let memory = lender.opened(&handle).map_err(refuse)?;
                self.opened.insert(handle, memory.clone());
                memory
            }
        };
        let end = export.start.checked_add(bytes).filter(|&end| end <= export.end && export.end <= memory.bytes());
        match end {
            Some(_) => Ok((memory, export.start)),
            None => Err(wrong(&format!("{} bytes, of which it begins at {}", memory.bytes(), export.start))),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The memory is closed before its owner hears of it.
        self.opened.clear();
        self.counters.iter().for_each(|counter| {
            if let Err(error) = counter.give_up("/dev/shm") {
                log::debug!("a trainer is not told that its tensors are free: {}: {error}", counter.file);
            }
        });
    }
}

impl UserCounter {
    /// Bytes before the first number of a file.
    const HEAD: u64 = 64;

    /// Counts one user less, as torch does where it received the tensor itself. The exporter may be gone, and its files
    /// with it.
    fn give_up(&self, folder: &str) -> std::io::Result<()> {
        let name = self.file.strip_prefix('/').unwrap_or(&self.file);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !name.starts_with("torch_") || !name.bytes().all(is_plain) {
            return Err(std::io::Error::other("expected a file that torch names"));
        }
        let file = File::options().read(true).write(true).open(format!("{folder}/{name}"))?;
        let at = Self::HEAD + 8 * self.number as u64;
        let mut number = [0; 8];
        file.read_exact_at(&mut number, at)?;
        match i64::from_le_bytes(number) {
            users @ 1.. => file.write_all_at(&(users - 1).to_le_bytes(), at),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Mutex;

    use serde_json::{Value, json};

    use offshoot_backend::{Dtype, Keeper};
    use offshoot_core::error::{Error, Result as CoreResult};

    use super::super::exports::tests::{UUID, alone, by_gpu, list};
    use super::*;

    /// Memory of 256 bytes, each of which is its place.
    #[derive(Debug)]
    struct Memory;

    impl DeviceMemory for Memory {
        fn ordinal(&self) -> usize {
            0
        }

        fn address(&self) -> u64 {
            4096
        }

        fn bytes(&self) -> usize {
            256
        }

        fn download(&self, range: Range<usize>) -> CoreResult<Vec<u8>> {
            Ok(range.map(|at| at as u8).collect())
        }

        fn not_finite(&self, _: Range<usize>, _: Dtype, _: Dtype) -> CoreResult<Option<usize>> {
            Ok(None)
        }

        fn cast(&self, _: Range<usize>, _: Dtype, _: Dtype) -> CoreResult<Arc<dyn DeviceMemory>> {
            Err(Error::Internal("nothing is rounded".to_owned()))
        }

        fn columns(&self, _: Range<usize>, _: usize, _: Range<usize>) -> CoreResult<Arc<dyn DeviceMemory>> {
            Err(Error::Internal("nothing is divided".to_owned()))
        }
    }

    /// Opens handles of sevens, and notes what it is asked for.
    #[derive(Default)]
    struct Lender(Mutex<Vec<&'static str>>);

    impl Lender {
        fn note(&self, what: &'static str) {
            self.0.lock().expect("no panic").push(what);
        }
    }

    impl DeviceLender for Lender {
        fn uuid(&self) -> CoreResult<String> {
            Ok(UUID.to_owned())
        }

        fn lent(&self, _: u64, _: usize, _: Keeper) -> CoreResult<Arc<dyn DeviceMemory>> {
            Err(Error::Internal("nobody lends".to_owned()))
        }

        fn opened(&self, handle: &IpcHandle) -> CoreResult<Arc<dyn DeviceMemory>> {
            self.note("open");
            match handle == &[7; 64] {
                true => Ok(Arc::new(Memory)),
                false => Err(Error::Internal("it is not there".to_owned())),
            }
        }

        fn wait_for(&self, _: &IpcHandle) -> CoreResult<()> {
            self.note("wait");
            Ok(())
        }

        fn copied(&self, bytes: DeviceBytes<'_>) -> CoreResult<MemoryBlock> {
            self.note("copy");
            bytes.download().map(MemoryBlock::Host)
        }
    }

    fn update(told: &Value) -> Result<IpcUpdate, Refusal> {
        let mut fields = BodyFields::new(told.as_object().expect("an object"));
        let read = IpcUpdate::read(&mut fields)?;
        fields.finish().map(|()| read)
    }

    /// Tensors "a" `[2, 3]` and "b" `[4, 1]` of bf16, with these handles.
    fn told(pickle: &[u8]) -> Value {
        json!({"names": ["a", "b"], "dtype_names": ["bfloat16", "bfloat16"], "shapes": [[2, 3], [4, 1]],
            "ipc_handles_pickled": STANDARD.encode(pickle)})
    }

    fn both(handle: u8) -> Vec<u8> {
        list(&[by_gpu(UUID, [2, 3], 16, &[handle; 64]), by_gpu(UUID, [4, 1], 64, &[handle; 64])])
    }

    /// Names and bytes.
    fn found(lent: &LentTensors) -> Vec<(&str, Vec<u8>)> {
        let bytes = |LentTensor { tensor, block, start }: &LentTensor| {
            let range = *start..start + tensor.bytes;
            match &lent.blocks[*block] {
                MemoryBlock::Host(bytes) => bytes[range].to_vec(),
                MemoryBlock::Device(memory) => memory.download(range).expect("it does not fail"),
            }
        };
        lent.tensors.iter().map(|lent| (&*lent.tensor.name, bytes(lent))).collect()
    }

    #[test]
    fn tensors_are_read_where_they_lie() {
        let (lender, mut lent) = (Lender::default(), Lent::default());
        let tensors = update(&told(&both(7))).expect("it is right").open(&lender, &mut lent).expect("it opens");
        assert_eq!(found(&tensors), [("a", (16..28).collect()), ("b", (64..72).collect())]);
        assert!(tensors.blocks.iter().all(|block| matches!(block, MemoryBlock::Device(_))));
        assert_eq!(*lender.0.lock().expect("no panic"), ["wait", "open", "wait"], "one handle is opened once");
    }

    #[test]
    fn a_buffer_with_all_is_copied_at_once() {
        let (lender, mut lent) = (Lender::default(), Lent::default());
        let mut told = told(&alone(&by_gpu(&format!("GPU-{UUID}"), [10, 5], 32, &[7; 64])));
        told["packed"] = json!(true);
        told["tensor_sizes"] = json!([12, 8]);
        let tensors = update(&told).expect("it is right").open(&lender, &mut lent).expect("it opens");
        assert_eq!(found(&tensors), [("a", (32..44).collect()), ("b", (44..52).collect())]);
        assert_eq!(tensors.blocks.len(), 1);
        assert_eq!(*lender.0.lock().expect("no panic"), ["wait", "open", "copy"]);
    }

    #[test]
    fn handles_that_do_not_fit_are_refused() {
        for (wrong, field) in [
            (json!({"tensor_sizes": [13, 8]}), "tensor_sizes"),
            (json!({"tensor_sizes": []}), "tensor_sizes"),
            (json!({"ipc_handles_pickled": "?"}), HANDLES),
            (json!({"ipc_handles_pickled": "gAQu"}), HANDLES),
            (json!({"ipc_handles_pickled": STANDARD.encode(list(&[]))}), HANDLES),
            (json!({"names": [], "dtype_names": [], "shapes": []}), "names"),
            (json!({"other": 1}), "other"),
        ] {
            let mut told = told(&both(7));
            told.as_object_mut().expect("an object").extend(wrong.as_object().expect("an object").clone());
            assert_eq!(update(&told).err().and_then(|refusal| refusal.param).as_deref(), Some(field), "{wrong}");
        }
        let refused = |pickle: &[u8], expected: &str| {
            let (lender, mut lent) = (Lender::default(), Lent::default());
            let opened = update(&told(pickle)).expect("it is read").open(&lender, &mut lent);
            let message = opened.map(drop).expect_err("it is wrong").message;
            assert!(message.contains(expected), "{message}");
        };
        let b = by_gpu(UUID, [4, 1], 64, &[7; 64]);
        refused(&both(8), "it is not there");
        refused(&list(&[by_gpu("another", [2, 3], 0, &[7; 64]), b.clone()]), "another");
        refused(&list(&[by_gpu(UUID, [3, 2], 0, &[7; 64]), b.clone()]), "[3, 2]");
        refused(&list(&[by_gpu(UUID, [2, 3], 250, &[7; 64]), b]), "256 bytes");
    }

    #[test]
    fn a_trainers_count_goes_down_by_one_for_each_export() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("torch_77_1_0");
        let numbers =
            [[0; 64].to_vec(), [5i64, 1, 0].iter().flat_map(|number| number.to_le_bytes()).collect()].concat();
        std::fs::write(&path, numbers).expect("the folder is writable");
        let counter = |number| UserCounter { file: "/torch_77_1_0".to_owned(), number };
        let give_up = |counter: &UserCounter| counter.give_up(folder.path().to_str().expect("UTF-8"));
        for number in [0, 1, 2] {
            give_up(&counter(number)).expect("it is there");
        }
        give_up(&counter(3)).expect_err("there are three");
        let found = std::fs::read(&path).expect("it is there");
        let found: Vec<i64> = found[64..].as_chunks().0.iter().map(|number| i64::from_le_bytes(*number)).collect();
        assert_eq!(found, [4, 0, 0]);
        for file in ["/passwd", "/torch_/../passwd", "/torch_77_1_1"] {
            give_up(&UserCounter { file: file.to_owned(), number: 0 }).expect_err("it is no counter");
        }
        let mut lent = Lent::default();
        let Some(Exports::Together(by_gpu)) = Exports::of_pickle(&alone(&by_gpu(UUID, [2, 3], 0, &[7; 64]))) else {
            panic!("it is one export");
        };
        lent.count(&by_gpu[0].1);
        lent.count(&by_gpu[0].1);
        assert_eq!(lent.counters.len(), 1, "a buffer that comes again has one user");
    }
}
