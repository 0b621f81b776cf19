//! What torch writes of tensors that it exports to other processes (the arguments of its `rebuild_cuda_tensor`), out of
//! a pickle. The pickle is parsed, never run: only the instructions that such a pickle has are known, the only call
//! that it may hold makes a `torch.Size` of a tuple, and what comes of it are numbers, texts and bytes.

use std::rc::Rc;

use offshoot_backend::IpcHandle;
use offshoot_model::TensorDtype;

use super::described::dtype_of;

/// A tensor that another process exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub dtype: TensorDtype,
    pub shape: Vec<usize>,
    /// In elements.
    pub strides: Vec<usize>,
    /// Where the tensor's first byte lies in the memory that the handle names.
    pub start: usize,
    /// The end of its storage there.
    pub end: usize,
    /// `None`: the tensor has no bytes.
    pub handle: Option<IpcHandle>,
    pub counter: UserCounter,
    /// Says when the tensor has been written, if that is still to be waited for.
    pub event: Option<IpcHandle>,
}

/// Where the exporter counts the users of an export.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UserCounter {
    /// The name of a file in shared memory, with a slash before it.
    pub file: String,
    /// Which of its numbers.
    pub number: usize,
}

/// The exports of one tensor, by the UUIDs of the GPUs on which copies of it lie.
pub type ByGpu = Vec<(String, Export)>;

/// What a pickle of exports holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exports {
    /// One for each tensor.
    Each(Vec<ByGpu>),
    /// One buffer with all tensors.
    Together(ByGpu),
}

impl Exports {
    /// `None`: it is another pickle, or none.
    pub fn of_pickle(pickle: &[u8]) -> Option<Exports> {
        match read(pickle)? {
            Value::List(each) => each.iter().map(by_gpu).collect::<Option<_>>().map(Exports::Each),
            one => by_gpu(&one).map(Exports::Together),
        }
    }
}

fn by_gpu(value: &Value) -> Option<ByGpu> {
    let Value::Dict(pairs) = value else { return None };
    let pair = |(uuid, arguments): &(Value, Value)| match uuid {
        Value::Text(uuid) => Some((uuid.to_string(), export(arguments)?)),
        _ => None,
    };
    pairs.iter().map(pair).collect()
}

/// The arguments themselves, or a pair of the function and them.
fn export(value: &Value) -> Option<Export> {
    let Value::Tuple { values, .. } = value else { return None };
    if let [Value::Name { name, .. }, arguments] = &values[..] {
        return (&**name == "rebuild_cuda_tensor").then(|| export(arguments)).flatten();
    }
    let [_, shape, strides, offset, _, dtype, _, handle, storage_bytes, storage_offset, _, file, number, event, waits] =
        &values[..]
    else {
        return None;
    };
    let Value::Name { name: dtype, .. } = dtype else { return None };
    let dtype = dtype_of(dtype).ok()?;
    let (storage_offset, storage_bytes) = (storage_offset.size()?, storage_bytes.size()?);
    let start = offset.size()?.checked_mul(dtype.bitsize() / 8)?.checked_add(storage_offset)?;
    let handle = match handle {
        Value::None => None,
        Value::Bytes(handle) => Some(memory_handle(handle)?),
        _ => return None,
    };
    let event = match (waits, event) {
        (Value::Bool(true), Value::Bytes(event)) => Some(event[..].try_into().ok()?),
        (Value::Bool(false), _) => None,
        _ => return None,
    };
    let Value::Bytes(file) = file else { return None };
    let file = std::str::from_utf8(file).ok()?.to_owned();
    Some(Export {
        dtype,
        shape: shape.sizes()?,
        strides: strides.sizes()?,
        start,
        end: storage_offset.checked_add(storage_bytes)?,
        handle,
        counter: UserCounter { file, number: number.size()? },
        event,
    })
}

/// The driver's handle out of torch's: alone, or behind a version and the kind of memory, of which `c` is what
/// cudaMalloc gives. Other kinds (expandable segments) have no such handle.
fn memory_handle(handle: &[u8]) -> Option<IpcHandle> {
    let own = match handle.len() {
        64 => handle,
        _ => handle.strip_prefix(&[*handle.first()?, b'c'])?,
    };
    own.try_into().ok()
}

/// What a pickle says. Containers are built once: nothing refers to them by the memo.
#[derive(Clone, Debug)]
enum Value {
    None,
    Bool(bool),
    Int(i64),
    Text(Rc<str>),
    Bytes(Rc<[u8]>),
    Name {
        module: Rc<str>,
        name: Rc<str>,
    },
    Tuple {
        values: Rc<[Value]>,
        /// Tuples in each other.
        depth: u8,
    },
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

impl Value {
    fn is_container(&self) -> bool {
        matches!(self, Value::List(_) | Value::Dict(_))
    }

    fn size(&self) -> Option<usize> {
        if let Value::Int(number) = self { usize::try_from(*number).ok() } else { None }
    }

    fn sizes(&self) -> Option<Vec<usize>> {
        if let Value::Tuple { values, .. } = self { values.iter().map(Value::size).collect() } else { None }
    }
}

/// Instructions of pickles of protocols 4 and 5.
mod op {
    pub const PROTO: u8 = 0x80;
    pub const FRAME: u8 = 0x95;
    pub const MARK: u8 = b'(';
    pub const STOP: u8 = b'.';
    pub const NONE: u8 = b'N';
    pub const TRUE: u8 = 0x88;
    pub const FALSE: u8 = 0x89;
    pub const INT_OF_4: u8 = b'J';
    pub const INT_OF_1: u8 = b'K';
    pub const INT_OF_2: u8 = b'M';
    pub const LONG: u8 = 0x8a;
    pub const SHORT_TEXT: u8 = 0x8c;
    pub const TEXT: u8 = b'X';
    pub const SHORT_BYTES: u8 = b'C';
    pub const BYTES: u8 = b'B';
    pub const GLOBAL: u8 = 0x93;
    pub const EMPTY_TUPLE: u8 = b')';
    pub const TUPLE_OF_1: u8 = 0x85;
    pub const TUPLE_OF_2: u8 = 0x86;
    pub const TUPLE_OF_3: u8 = 0x87;
    pub const TUPLE: u8 = b't';
    pub const EMPTY_LIST: u8 = b']';
    pub const APPEND: u8 = b'a';
    pub const APPENDS: u8 = b'e';
    pub const EMPTY_DICT: u8 = b'}';
    pub const SET_ITEM: u8 = b's';
    pub const SET_ITEMS: u8 = b'u';
    pub const CALL: u8 = b'R';
    pub const MEMOIZE: u8 = 0x94;
    pub const RECALL: u8 = b'h';
    pub const LONG_RECALL: u8 = b'j';
}

/// Tuples in each other that are read at most.
const DEEPEST: u8 = 8;

/// What a pickle builds; `None`: it has another instruction, or does not end where it ends.
fn read(pickle: &[u8]) -> Option<Value> {
    let mut reader = Reader { rest: pickle, stack: Vec::new(), marks: Vec::new(), memo: Vec::new() };
    while reader.step()? {}
    let value = reader.stack.pop()?;
    (reader.rest.is_empty() && reader.stack.is_empty() && reader.marks.is_empty()).then_some(value)
}

struct Reader<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    /// Lengths of the stack at marks.
    marks: Vec<usize>,
    /// `None`: a container, which is not recalled.
    memo: Vec<Option<Value>>,
}

impl<'a> Reader<'a> {
    /// Takes one instruction; `Some(false)`: it was the last.
    fn step(&mut self) -> Option<bool> {
        let value = match self.number::<1>()? {
            op::PROTO => return (self.number::<1>()? >= 4).then_some(true),
            op::FRAME => return self.take(8).map(|_| true),
            op::STOP => return Some(false),
            op::MARK => {
                self.marks.push(self.stack.len());
                return Some(true);
            }
            op::MEMOIZE => {
                let last = self.stack.last()?;
                self.memo.push((!last.is_container()).then(|| last.clone()));
                return Some(true);
            }
            op::RECALL => {
                let place = usize::from(self.number::<1>()?);
                self.memo.get(place)?.clone()?
            }
            op::LONG_RECALL => {
                let place = self.length()?;
                self.memo.get(place)?.clone()?
            }
            op::NONE => Value::None,
            op::TRUE => Value::Bool(true),
            op::FALSE => Value::Bool(false),
            op::INT_OF_1 => Value::Int(i64::from(self.number::<1>()?)),
            op::INT_OF_2 => Value::Int(i64::from(u16::from_le_bytes(self.array()?))),
            op::INT_OF_4 => Value::Int(i64::from(i32::from_le_bytes(self.array()?))),
            op::LONG => self.long()?,
            op::SHORT_TEXT => {
                let length = usize::from(self.number::<1>()?);
                self.text(length)?
            }
            op::TEXT => {
                let length = self.length()?;
                self.text(length)?
            }
            op::SHORT_BYTES => {
                let length = usize::from(self.number::<1>()?);
                Value::Bytes(self.take(length)?.into())
            }
            op::BYTES => {
                let length = self.length()?;
                Value::Bytes(self.take(length)?.into())
            }
            op::GLOBAL => {
                let (Value::Text(name), Value::Text(module)) = (self.stack.pop()?, self.stack.pop()?) else {
                    return None;
                };
                Value::Name { module, name }
            }
            op::EMPTY_TUPLE => tuple(Vec::new())?,
            op::TUPLE_OF_1 => tuple(self.last(1)?)?,
            op::TUPLE_OF_2 => tuple(self.last(2)?)?,
            op::TUPLE_OF_3 => tuple(self.last(3)?)?,
            op::TUPLE => tuple(self.marked()?)?,
            op::EMPTY_LIST => Value::List(Vec::new()),
            op::EMPTY_DICT => Value::Dict(Vec::new()),
            op::APPEND => {
                let items = self.last(1)?;
                return self.append(items);
            }
            op::APPENDS => {
                let items = self.marked()?;
                return self.append(items);
            }
            op::SET_ITEM => {
                let items = self.last(2)?;
                return self.set(items);
            }
            op::SET_ITEMS => {
                let items = self.marked()?;
                return self.set(items);
            }
            op::CALL => self.called()?,
            _ => return None,
        };
        self.stack.push(value);
        Some(true)
    }

    /// The one call that is known: a size out of a tuple.
    fn called(&mut self) -> Option<Value> {
        let (arguments, function) = (self.stack.pop()?, self.stack.pop()?);
        match (function, arguments) {
            (Value::Name { module, name }, Value::Tuple { values, .. }) if (&*module, &*name) == ("torch", "Size") => {
                match &values[..] {
                    [size @ Value::Tuple { .. }] => Some(size.clone()),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Lists hold no lists, and dicts no containers: what a pickle builds is as deep as its tuples, however long it is.
    fn append(&mut self, items: Vec<Value>) -> Option<bool> {
        if items.iter().any(|item| matches!(item, Value::List(_))) {
            return None;
        }
        let Some(Value::List(list)) = self.stack.last_mut() else { return None };
        list.extend(items);
        Some(true)
    }

    fn set(&mut self, items: Vec<Value>) -> Option<bool> {
        if items.iter().any(Value::is_container) {
            return None;
        }
        let Some(Value::Dict(dict)) = self.stack.last_mut() else { return None };
        let mut items = items.into_iter();
        while let Some(key) = items.next() {
            dict.push((key, items.next()?));
        }
        Some(true)
    }

    /// The last `count` values, behind the last mark.
    fn last(&mut self, count: usize) -> Option<Vec<Value>> {
        let first = self.stack.len().checked_sub(count)?;
        (self.marks.last().is_none_or(|&mark| mark <= first)).then(|| self.stack.split_off(first))
    }

    fn marked(&mut self) -> Option<Vec<Value>> {
        let mark = self.marks.pop()?;
        (mark <= self.stack.len()).then(|| self.stack.split_off(mark))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        self.take(LENGTH)?.try_into().ok()
    }

    fn number<const ONE: usize>(&mut self) -> Option<u8> {
        self.take(ONE)?.first().copied()
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.array()?)).ok()
    }

    /// A signed number of up to 8 bytes.
    fn long(&mut self) -> Option<Value> {
        let length = usize::from(self.number::<1>()?);
        let bytes = self.take(length)?;
        let sign = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
        let mut number = [sign; 8];
        number.get_mut(..length)?.copy_from_slice(bytes);
        Some(Value::Int(i64::from_le_bytes(number)))
    }

    fn text(&mut self, length: usize) -> Option<Value> {
        Some(Value::Text(std::str::from_utf8(self.take(length)?).ok()?.into()))
    }
}

/// A tuple of what may be in one.
fn tuple(values: Vec<Value>) -> Option<Value> {
    let depth = |value: &Value| match value {
        Value::Tuple { depth, .. } => *depth,
        _ => 0,
    };
    let depth = values.iter().map(depth).max().unwrap_or(0) + 1;
    let holds_container = values.iter().any(Value::is_container);
    (depth <= DEEPEST && !holds_container).then(|| Value::Tuple { values: values.into(), depth })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const UUID: &str = "8a7bc3e0-1111-2222-3333-444455556666";

    fn text(pickle: &mut Vec<u8>, text: &str) {
        pickle.extend([0x8c, text.len() as u8]);
        pickle.extend(text.as_bytes());
        pickle.push(0x94);
    }

    fn name(pickle: &mut Vec<u8>, module: &str, name: &str) {
        text(pickle, module);
        text(pickle, name);
        pickle.extend([0x93, 0x94]);
    }

    fn int(pickle: &mut Vec<u8>, number: usize) {
        pickle.push(b'J');
        pickle.extend((number as i32).to_le_bytes());
    }

    fn bytes(pickle: &mut Vec<u8>, bytes: &[u8]) {
        pickle.extend([b'C', bytes.len() as u8]);
        pickle.extend(bytes);
        pickle.push(0x94);
    }

    /// The arguments of a matrix of bf16 at `start` of the memory `handle`, as a dict from `uuid`.
    pub fn by_gpu(uuid: &str, shape: [usize; 2], start: usize, handle: &[u8]) -> Vec<u8> {
        let mut pickle = vec![b'}', 0x94];
        text(&mut pickle, uuid);
        pickle.push(b'(');
        name(&mut pickle, "torch.nn.parameter", "Parameter");
        name(&mut pickle, "torch", "Size");
        shape.iter().for_each(|&size| int(&mut pickle, size));
        pickle.extend([0x86, 0x94, 0x85, 0x94, b'R', 0x94]);
        int(&mut pickle, shape[1]);
        int(&mut pickle, 1);
        pickle.extend([0x86, 0x94]);
        int(&mut pickle, 0);
        name(&mut pickle, "torch.storage", "TypedStorage");
        name(&mut pickle, "torch", "bfloat16");
        int(&mut pickle, 0);
        bytes(&mut pickle, handle);
        int(&mut pickle, shape[0] * shape[1] * 2);
        int(&mut pickle, start);
        pickle.push(0x89);
        bytes(&mut pickle, b"/torch_77_1_0");
        int(&mut pickle, 3);
        bytes(&mut pickle, &[5; 64]);
        pickle.extend([0x88, b't', 0x94, b's']);
        pickle
    }

    /// A pickle whose numbers of users are in another file than [`by_gpu`] names.
    pub fn named(pickle: &[u8], file: &str) -> Vec<u8> {
        let name = b"C\x0d/torch_77_1_0";
        let mut named = Vec::new();
        let mut rest = pickle;
        while let Some(place) = rest.windows(name.len()).position(|bytes| bytes == name) {
            named.extend(&rest[..place]);
            named.extend([b'C', file.len() as u8]);
            named.extend(file.as_bytes());
            rest = &rest[place + name.len()..];
        }
        named.extend(rest);
        named
    }

    /// As Python writes a list of them.
    pub fn list(each: &[Vec<u8>]) -> Vec<u8> {
        [&[0x80, 4, 0x95, 0, 0, 0, 0, 0, 0, 0, 0, b']', 0x94, b'('], &each.concat()[..], b"e."].concat()
    }

    pub fn alone(one: &[u8]) -> Vec<u8> {
        [&[0x80, 4], one, b"."].concat()
    }

    fn expected(shape: [usize; 2], start: usize) -> Export {
        Export {
            dtype: TensorDtype::BF16,
            shape: shape.to_vec(),
            strides: vec![shape[1], 1],
            start,
            end: start + shape[0] * shape[1] * 2,
            handle: Some([7; 64]),
            counter: UserCounter { file: "/torch_77_1_0".to_owned(), number: 3 },
            event: Some([5; 64]),
        }
    }

    /// Written by Python 3.11 with torch 2.15: two tensors, a `Parameter` `[2, 3]` and a `Tensor` `[4]`, which begins
    /// one element into its storage. Names and bytes are recalled in the second.
    const OF_TORCH: &str = "\
        gASVzAEAAAAAAABdlCh9lIwkOGE3YmMzZTAtMTExMS0yMjIyLTMzMzMtNDQ0NDU1NTU2NjY2lCiMEnRvcmNoLm5uLnBhcmFtZXRl\
        cpSMCVBhcmFtZXRlcpSTlIwFdG9yY2iUjARTaXpllJOUSwJLA4aUhZRSlEsDSwGGlEsAjA10b3JjaC5zdG9yYWdllIwMVHlwZWRT\
        dG9yYWdllJOUjAV0b3JjaJSMCGJmbG9hdDE2lJOUSwBDQgJjAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUm\
        JygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P5RLGE0AAolDDS90b3JjaF83N18xXzCUSwNDQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\
        AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACUiHSUc32UaAIoaAaMBlRlbnNvcpSTlGgISwSFlIWUUpRL\
        AYWUSwFoD2gSSwBoE0sYTQAEiWgUSwNDQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\
        AAAAAAAAAAAAAAAAAACUiHSUc2Uu";

    #[test]
    fn exports_are_found_in_pickles() {
        let read = |pickle: &[u8]| Exports::of_pickle(pickle).expect("they are exports");
        let torchs = [&[2, b'c'], &[7; 64][..]].concat();
        let each = [by_gpu(UUID, [2, 3], 512, &[7; 64]), by_gpu("other", [4, 1], 0, &torchs)];
        let of = |uuid: &str, export| vec![(uuid.to_owned(), export)];
        let both = vec![of(UUID, expected([2, 3], 512)), of("other", expected([4, 1], 0))];
        assert_eq!(read(&list(&each)), Exports::Each(both));
        assert_eq!(read(&alone(&each[0])), Exports::Together(of(UUID, expected([2, 3], 512))));
        assert_eq!(Exports::of_pickle(&list(&[])), Some(Exports::Each(Vec::new())));
    }

    #[test]
    fn what_torch_writes_is_read() {
        use base64::Engine;
        let pickle = base64::engine::general_purpose::STANDARD.decode(OF_TORCH).expect("base64");
        let Some(Exports::Each(each)) = Exports::of_pickle(&pickle) else { panic!("it is a list of exports") };
        let of = |(uuid, export): &(String, Export)| (uuid.clone(), export.shape.clone(), export.start, export.end);
        let found: Vec<_> = each.iter().flatten().map(of).collect();
        let uuid = UUID.to_owned();
        assert_eq!(found, [(uuid.clone(), vec![2, 3], 512, 536), (uuid, vec![4], 1026, 1048)]);
        let counter = UserCounter { file: "/torch_77_1_0".to_owned(), number: 3 };
        let handle = Some(std::array::from_fn(|at| at as u8));
        assert!(each.iter().flatten().all(|(_, export)| export.counter == counter && export.handle == handle));
    }

    #[test]
    fn other_pickles_are_not_read() {
        let good = by_gpu(UUID, [2, 3], 512, &[7; 64]);
        let pickle = list(std::slice::from_ref(&good));
        for length in 0..pickle.len() {
            assert_eq!(Exports::of_pickle(&pickle[..length]), None, "cut at {length}");
        }
        assert_eq!(Exports::of_pickle(&[&pickle[..], b"."].concat()), None);
        // A handle of an expandable segment, and one of another length.
        for handle in [[&[2, b'e'][..], &[7; 64]].concat(), vec![7; 63]] {
            assert_eq!(Exports::of_pickle(&alone(&by_gpu(UUID, [2, 3], 0, &handle))), None);
        }
        // A call of another function than torch.Size: `os.system("true")`.
        let mut call = vec![0x80, 4];
        name(&mut call, "os", "system");
        text(&mut call, "true");
        call.extend([0x85, b'R', b'.']);
        assert_eq!(Exports::of_pickle(&call), None);
        // Lists in lists and dicts in dicts without end, whose end would be as deep.
        let lists = [&[0x80, 4][..], &[b']'; 500_000], &[b'a'; 499_999], b"."].concat();
        assert_eq!(Exports::of_pickle(&lists), None);
        let dicts = [&[0x80, 4][..], &b"}N".repeat(500_000), b"N", &[b's'; 500_000], b"."].concat();
        assert_eq!(Exports::of_pickle(&dicts), None);
        // Tuples in tuples without end, and a dict that holds itself.
        assert_eq!(Exports::of_pickle(&[&[0x80, 4, b')'], &[0x85; 100_000][..], b"."].concat()), None);
        assert_eq!(Exports::of_pickle(&[&[0x80, 4, b'}', 0x94, b'K', 1, b'h', 0, b's', b'.'][..]].concat()), None);
    }
}
