//! Tensors that a trainer on the same GPU lends by handles of its memory (CUDA IPC), as vLLM's engine of this name
//! takes them. They are read where they lie when the update is put in force, or copied at once where the trainer fills
//! one buffer again and again. Handles are closed, and the trainer's count of users is told, when the update has ended.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memmap2::MmapMut;

use offshoot_backend::{DeviceBytes, DeviceLender, DeviceMemory, IpcHandle, MemoryBlock};
use offshoot_openai::protocol::{BodyFields, Refusal, RefusalKind};

use super::described::{DescribedTensor, Packing, bytes_of, described, packing};
use super::exports::{ByGpu, Export, Exports, UserCounter};
use crate::rollout::failed;

/// The folder of the files in which torch counts.
const SHARED_MEMORY: &str = "/dev/shm";

/// The field with the handles.
pub const HANDLES: &str = "ipc_handles_pickled";

/// An update by handles.
pub struct IpcUpdate {
    tensors: Vec<DescribedTensor>,
    exports: Exports,
}

impl IpcUpdate {
    /// What a trainer exports.
    ///
    /// # Errors
    ///
    /// The handles are none.
    pub fn exports(fields: &mut BodyFields) -> Result<Exports, Refusal> {
        let handles = fields.text(HANDLES)?.unwrap_or_default();
        let handles = STANDARD.decode(handles).map_err(|_| Refusal::value(HANDLES, "base64", "something else"))?;
        Exports::of_pickle(&handles).ok_or_else(|| {
            let expected = "the pickle (protocol 4 or 5) of the arguments of torch's rebuild_cuda_tensor by GPU, for \
                            memory without expandable segments";
            Refusal::value(HANDLES, expected, "something else")
        })
    }

    /// # Errors
    ///
    /// The tensors are not described, their sizes contradict their shapes, or the exports are not as many.
    pub fn read(exports: Exports, fields: &mut BodyFields) -> Result<IpcUpdate, Refusal> {
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

    /// The tensors with the memory in which each lies, once all has been written. Whoever calls it holds the [`Users`]
    /// of the memory until that is dropped.
    ///
    /// # Errors
    ///
    /// A handle is of another GPU, is not opened, or names memory that holds another tensor than is described; or it
    /// has not been written at the `deadline`.
    pub fn open(self, lender: &dyn DeviceLender, deadline: Instant) -> Result<LentTensors, Refusal> {
        let uuid = lender.uuid().map_err(|error| failed(&error))?;
        let mut opening = Opening { lender, deadline, opened: OpenedMemory::new() };
        match self.exports {
            Exports::Each(each) => {
                let own = each.iter().map(|by_gpu| of_gpu(by_gpu, &uuid)).collect::<Result<Vec<_>, _>>()?;
                let (mut blocks, mut tensors) = (Vec::new(), Vec::new());
                for (tensor, export) in self.tensors.into_iter().zip(own) {
                    let (block, start) = one(&tensor, export, &mut opening)?;
                    tensors.push(LentTensor { tensor, block: blocks.len(), start });
                    blocks.push(block);
                }
                Ok(LentTensors { blocks, tensors, opened: opening.opened })
            }
            Exports::Together(by_gpu) => {
                let (block, tensors) = together(self.tensors, of_gpu(&by_gpu, &uuid)?, &mut opening)?;
                Ok(LentTensors { blocks: vec![block], tensors, opened: opening.opened })
            }
        }
    }
}

/// Tensors, and the memory in which they lie.
pub struct LentTensors {
    pub blocks: Vec<MemoryBlock>,
    pub tensors: Vec<LentTensor>,
    /// Kept until the update ends: a buffer that is filled again is then opened already.
    pub opened: OpenedMemory,
}

/// Memory of a trainer that is open, by its handles.
pub type OpenedMemory = HashMap<IpcHandle, Arc<dyn DeviceMemory>>;

/// A tensor, and where it lies in a block.
pub struct LentTensor {
    pub tensor: DescribedTensor,
    /// Number of the block.
    pub block: usize,
    pub start: usize,
}

fn own<'a>(by_gpu: &'a ByGpu, uuid: &str) -> Option<&'a Export> {
    let is_own = |named: &str| named.strip_prefix("GPU-").unwrap_or(named).eq_ignore_ascii_case(uuid);
    by_gpu.iter().find(|(named, _)| is_own(named)).map(|(_, export)| export)
}

fn of_gpu<'a>(by_gpu: &'a ByGpu, uuid: &str) -> Result<&'a Export, Refusal> {
    own(by_gpu, uuid).ok_or_else(|| {
        let named: Vec<&str> = by_gpu.iter().map(|(named, _)| &**named).collect();
        Refusal::value(HANDLES, &format!("handles of memory of the GPU {uuid}"), &format!("of {}", named.join(", ")))
    })
}

/// The memory in which a tensor lies as its export says, and where.
fn one(tensor: &DescribedTensor, export: &Export, opening: &mut Opening<'_>) -> Result<(MemoryBlock, usize), Refusal> {
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
    let (memory, start) = opening.memory(export, tensor.bytes)?;
    Ok((MemoryBlock::Device(memory), start))
}

/// Tensors one behind the other in one buffer, which is copied: the trainer fills it again when this is answered.
fn together(
    tensors: Vec<DescribedTensor>,
    export: &Export,
    opening: &mut Opening<'_>,
) -> Result<(MemoryBlock, Vec<LentTensor>), Refusal> {
    let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
    let block = match bytes {
        0 => MemoryBlock::Host(Vec::new()),
        _ => {
            let (memory, start) = opening.memory(export, bytes)?;
            let bytes = DeviceBytes::whole(&*memory).part(start..start + bytes);
            opening.lender.copied(bytes).map_err(|error| failed(&error))?
        }
    };
    let mut end = 0;
    let place = |tensor: DescribedTensor| {
        let start = end;
        end += tensor.bytes;
        LentTensor { tensor, block: 0, start }
    };
    Ok((block, tensors.into_iter().map(place).collect()))
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

/// Opens a trainer's memory for an update.
struct Opening<'a> {
    lender: &'a dyn DeviceLender,
    /// When all must have been written.
    deadline: Instant,
    opened: OpenedMemory,
}

impl Opening<'_> {
    /// The memory in which an export lies, once it has been written, and where: at least `bytes` bytes of it.
    fn memory(&mut self, export: &Export, bytes: usize) -> Result<(Arc<dyn DeviceMemory>, usize), Refusal> {
        let Opening { lender, deadline, .. } = *self;
        let refuse = |error| failed(&error);
        let wrong = |found: &str| Refusal::value(HANDLES, &format!("memory with {bytes} bytes of tensors"), found);
        let handle = export.handle.ok_or_else(|| wrong("no memory"))?;
        if let Some(event) = &export.event
            && !lender.wait_for(event, deadline).map_err(refuse)?
        {
            let what = "the tensors were lent before they were written, and not written in the time that a trainer \
                        may be silent";
            return Err(Refusal::of_kind(RefusalKind::Timeout, "timeout", what));
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

/// The users that trainers count for what they lend to an update: one for each export, as a buffer that is filled
/// several times is exported once. Whoever may still read the memory has a clone, which it drops behind the memory; the
/// trainer hears of the end of the last one.
#[derive(Clone, Default)]
pub struct Users(HashMap<UserCounter, Arc<User>>);

struct User(UserCounter);

impl Users {
    /// Those of these exports, which are among `self` from now on.
    pub fn of(&mut self, counters: Vec<UserCounter>) -> Users {
        let user = |counter: UserCounter| {
            let user = self.0.entry(counter.clone()).or_insert_with(|| Arc::new(User(counter.clone())));
            (counter, user.clone())
        };
        Users(counters.into_iter().map(user).collect())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Err(error) = self.0.give_up(SHARED_MEMORY) {
            log::debug!("a trainer is not told that its tensors are free: {}: {error}", self.0.file);
        }
    }
}

impl Exports {
    /// Where the trainer counts the engine on the GPU `uuid` as a user. Of an export for several GPUs the others belong
    /// to other engines; one for a single GPU is this engine's, also where it can't read it.
    pub fn counters(&self, uuid: Option<&str>) -> Vec<UserCounter> {
        let each = match self {
            Exports::Each(each) => &each[..],
            Exports::Together(by_gpu) => std::slice::from_ref(by_gpu),
        };
        let of = |by_gpu: &ByGpu| {
            let only = if let [(_, export)] = &by_gpu[..] { Some(export) } else { None };
            only.or_else(|| own(by_gpu, uuid?)).map(|export| export.counter.clone())
        };
        each.iter().filter_map(of).collect()
    }
}

impl UserCounter {
    /// Bytes before the first number of a file.
    const HEAD: usize = 64;

    /// Counts one user less, as torch does where it received the tensor itself: other users may count at the same time.
    /// The exporter may be gone, and its files with it.
    fn give_up(&self, folder: &str) -> std::io::Result<()> {
        let name = self.file.strip_prefix('/').unwrap_or(&self.file);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !name.starts_with("torch_") || !name.bytes().all(is_plain) {
            return Err(std::io::Error::other("expected a file that torch names"));
        }
        let file = File::options().read(true).write(true).open(format!("{folder}/{name}"))?;
        // SAFETY: no reference to its bytes is made, as other processes write to them; torch never shortens the file.
        let mut numbers = unsafe { MmapMut::map_mut(&file)? };
        let size = size_of::<AtomicI64>();
        let at = self.number.checked_mul(size).and_then(|at| at.checked_add(Self::HEAD));
        let at = at.filter(|&at| at.checked_add(size).is_some_and(|end| end <= numbers.len()));
        let at = at.ok_or_else(|| std::io::Error::other(format!("expected number {}, found fewer", self.number)))?;
        // SAFETY: 8 bytes of the map, which is of pages and lives until the end; `HEAD` is a multiple of 8. All that
        // write to them do so atomically.
        let users = unsafe { AtomicI64::from_ptr(numbers.as_mut_ptr().add(at).cast()) };
        let one_less = |users: i64| (users > 0).then(|| users - 1);
        // A count that is not above zero stays: nobody counts this user.
        let _ = users.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
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
    pub struct Lender {
        noted: Mutex<Vec<&'static str>>,
        /// What happens while the trainer still writes; whether it has written then.
        writes: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    }

    impl Lender {
        pub fn writing(writes: impl Fn() -> bool + Send + Sync + 'static) -> Self {
            Lender { noted: Mutex::default(), writes: Some(Box::new(writes)) }
        }

        fn noted(&self) -> Vec<&'static str> {
            self.noted.lock().expect("no panic").clone()
        }

        fn note(&self, what: &'static str) {
            self.noted.lock().expect("no panic").push(what);
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

        fn wait_for(&self, _: &IpcHandle, _: Instant) -> CoreResult<bool> {
            self.note("wait");
            Ok(self.writes.as_ref().is_none_or(|writes| writes()))
        }

        fn copied(&self, bytes: DeviceBytes<'_>) -> CoreResult<MemoryBlock> {
            self.note("copy");
            bytes.download().map(MemoryBlock::Host)
        }
    }

    fn update(told: &Value) -> Result<IpcUpdate, Refusal> {
        let mut fields = BodyFields::new(told.as_object().expect("an object"));
        let read = IpcUpdate::exports(&mut fields).and_then(|exports| IpcUpdate::read(exports, &mut fields))?;
        fields.finish().map(|()| read)
    }

    /// Tensors "a" `[2, 3]` and "b" `[4, 1]` of bf16, with these handles.
    pub fn told(pickle: &[u8]) -> Value {
        json!({"names": ["a", "b"], "dtype_names": ["bfloat16", "bfloat16"], "shapes": [[2, 3], [4, 1]],
            "ipc_handles_pickled": STANDARD.encode(pickle)})
    }

    pub fn both(handle: u8) -> Vec<u8> {
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
        let lender = Lender::default();
        let tensors = update(&told(&both(7))).expect("it is right").open(&lender, Instant::now()).expect("it opens");
        assert_eq!(found(&tensors), [("a", (16..28).collect()), ("b", (64..72).collect())]);
        assert!(tensors.blocks.iter().all(|block| matches!(block, MemoryBlock::Device(_))));
        assert_eq!(lender.noted(), ["wait", "open", "wait"], "one handle is opened once");
    }

    #[test]
    fn a_buffer_with_all_is_copied_at_once() {
        let lender = Lender::default();
        let mut told = told(&alone(&by_gpu(&format!("GPU-{UUID}"), [10, 5], 32, &[7; 64])));
        told["packed"] = json!(true);
        told["tensor_sizes"] = json!([12, 8]);
        let tensors = update(&told).expect("it is right").open(&lender, Instant::now()).expect("it opens");
        assert_eq!(found(&tensors), [("a", (32..44).collect()), ("b", (44..52).collect())]);
        assert_eq!(tensors.blocks.len(), 1);
        assert_eq!(lender.noted(), ["wait", "open", "copy"]);
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
            let lender = Lender::default();
            let opened = update(&told(pickle)).expect("it is read").open(&lender, Instant::now());
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
        for number in [3, usize::MAX / 8, usize::MAX] {
            give_up(&counter(number)).expect_err("there are three");
        }
        let found = std::fs::read(&path).expect("it is there");
        let found: Vec<i64> = found[64..].as_chunks().0.iter().map(|number| i64::from_le_bytes(*number)).collect();
        assert_eq!(found, [4, 0, 0]);
        // Several at once lose none.
        std::fs::write(&path, [&[0; 64][..], &8000i64.to_ne_bytes()].concat()).expect("the folder is writable");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..500).for_each(|_| give_up(&counter(0)).expect("it is there")));
            }
        });
        assert_eq!(std::fs::read(&path).expect("it is there")[64..], 4000i64.to_ne_bytes());
        for file in ["/passwd", "/torch_/../passwd", "/torch_77_1_1"] {
            give_up(&UserCounter { file: file.to_owned(), number: 0 }).expect_err("it is no counter");
        }
        let read = |by_gpu: &[u8]| Exports::of_pickle(&alone(by_gpu)).expect("it is one export").counters(Some(UUID));
        let mut users = Users::default();
        let both = [0, 1].map(|_| users.of(read(&by_gpu(UUID, [2, 3], 0, &[7; 64]))));
        assert_eq!((users.0.len(), both.len()), (1, 2), "a buffer that comes again has one user");
        assert_eq!(read(&by_gpu("another", [2, 3], 0, &[7; 64])).len(), 1, "it is lent to nobody else");
        std::mem::forget((users, both));
    }
}
