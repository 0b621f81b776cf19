//! The 128 bytes by which the ranks of one NCCL communicator find each other, out of what a trainer publishes: Python's
//! pickle of a ctypes structure, or base64. The pickle is parsed, never run: only the instructions that such a pickle
//! has are known, and only the names that it has are accepted.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// NCCL's `ncclUniqueId`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// Instructions of pickles.
mod op {
    pub const PROTO: u8 = 0x80;
    pub const FRAME: u8 = 0x95;
    pub const SHORT_UNICODE: u8 = 0x8c;
    pub const SHORT_BYTES: u8 = b'C';
    pub const MEMOIZE: u8 = 0x94;
    pub const STACK_GLOBAL: u8 = 0x93;
    pub const EMPTY_DICT: u8 = b'}';
    pub const TUPLE2: u8 = 0x86;
    pub const REDUCE: u8 = b'R';
    pub const STOP: u8 = b'.';
}

impl UniqueId {
    /// Out of base64.
    pub fn of_base64(text: &str) -> Option<UniqueId> {
        STANDARD.decode(text).ok()?.try_into().ok().map(UniqueId)
    }

    /// Out of the pickle of a structure `ncclUniqueId`, of whatever module.
    pub fn of_pickle(pickle: &[u8]) -> Option<UniqueId> {
        let (mut texts, mut bytes, mut made) = (Vec::new(), None, Vec::new());
        let mut rest = pickle;
        let mut take = |length: usize| {
            let (taken, after) = rest.split_at_checked(length)?;
            rest = after;
            Some(taken)
        };
        loop {
            let [code] = *take(1)? else { return None };
            match code {
                op::PROTO => drop(take(1)?),
                op::FRAME => drop(take(8)?),
                op::SHORT_UNICODE => {
                    let [length] = *take(1)? else { return None };
                    texts.push(std::str::from_utf8(take(usize::from(length))?).ok()?);
                }
                op::SHORT_BYTES => {
                    let [length] = *take(1)? else { return None };
                    let one = take(usize::from(length))?;
                    if bytes.replace(one).is_some() {
                        return None;
                    }
                }
                op::MEMOIZE => {}
                op::STACK_GLOBAL | op::EMPTY_DICT | op::TUPLE2 | op::REDUCE => made.push(code),
                op::STOP => break,
                _ => return None,
            }
        }
        let is_one = take(1).is_none()
            && matches!(texts[..], ["_ctypes", "_unpickle", _, "ncclUniqueId"])
            && made == [op::STACK_GLOBAL, op::STACK_GLOBAL, op::EMPTY_DICT, op::TUPLE2, op::TUPLE2, op::REDUCE];
        let id = <[u8; 128]>::try_from(bytes?).ok()?;
        is_one.then_some(UniqueId(id))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// As Python 3.11 writes it; the id holds the bytes of every instruction.
    pub fn pickle(id: &[u8; 128]) -> Vec<u8> {
        let mut pickle = vec![0x80, 4, 0x95, 0xec, 0, 0, 0, 0, 0, 0, 0];
        let text = |pickle: &mut Vec<u8>, text: &str| {
            pickle.extend([0x8c, text.len() as u8]);
            pickle.extend(text.as_bytes());
            pickle.push(0x94);
        };
        text(&mut pickle, "_ctypes");
        text(&mut pickle, "_unpickle");
        pickle.extend([0x93, 0x94]);
        text(&mut pickle, "vllm.distributed.device_communicators.pynccl_wrapper");
        text(&mut pickle, "ncclUniqueId");
        pickle.extend([0x93, 0x94, b'}', 0x94, b'C', 128]);
        pickle.extend(id);
        pickle.extend([0x94, 0x86, 0x94, 0x86, 0x94, b'R', 0x94, b'.']);
        pickle
    }

    fn id() -> [u8; 128] {
        std::array::from_fn(|at| (at * 7 + 0x43) as u8)
    }

    #[test]
    fn an_id_is_found_in_a_pickle_and_in_base64() {
        let pickle = pickle(&id());
        assert_eq!((pickle.len(), &pickle[111..239]), (247, &id()[..]));
        assert!(UniqueId::of_pickle(&pickle) == Some(UniqueId(id())));
        assert!(UniqueId::of_base64(&STANDARD.encode(id())) == Some(UniqueId(id())));
        assert!(UniqueId::of_base64(&STANDARD.encode(&id()[1..])).is_none());
    }

    #[test]
    fn other_pickles_are_not_read() {
        let pickle = pickle(&id());
        for length in 0..pickle.len() {
            assert!(UniqueId::of_pickle(&pickle[..length]).is_none(), "cut at {length}");
        }
        // Every byte but the version, the frame's length, the module's name and the id itself says what it is.
        for at in 0..pickle.len() {
            let mut other = pickle.clone();
            other[at] ^= 0x21;
            let says_nothing = at == 1 || (3..11).contains(&at) || (37..89).contains(&at) || (111..239).contains(&at);
            assert!(says_nothing || UniqueId::of_pickle(&other).is_none(), "byte {at}");
        }
        let more = [&pickle[..], b"."].concat();
        assert!(UniqueId::of_pickle(&more).is_none());
    }
}
