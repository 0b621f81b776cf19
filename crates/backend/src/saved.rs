//! Keys and values of pages while they are in host memory ([`SavedPages`]): one type for all backends, so that whoever
//! keeps them knows none.

use std::borrow::Cow;

/// Keys and values of some pages, all layers, in host memory: `pages x page_bytes` bytes in the device's own order
/// (`Backend::page_layout`).
#[derive(Clone, Debug)]
pub enum SavedPages {
    /// Bytes that one device saved.
    Bytes(Vec<u8>),
    /// What each of the devices that compute one model has of the pages.
    Ranks(Vec<SavedPages>),
    /// The number of bytes that a simulated device would have saved.
    Simulated { bytes: usize },
}

impl SavedPages {
    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        match self {
            SavedPages::Bytes(bytes) => bytes.len(),
            SavedPages::Ranks(each) => each.iter().map(SavedPages::bytes).sum(),
            SavedPages::Simulated { bytes } => *bytes,
        }
    }

    /// All bytes, those of several devices one device's after the other's; zeros for a simulated device. Bytes of one
    /// device are not copied.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            SavedPages::Bytes(bytes) => bytes,
            SavedPages::Ranks(each) => each.into_iter().map(SavedPages::into_bytes).collect::<Vec<_>>().concat(),
            SavedPages::Simulated { bytes } => vec![0; bytes],
        }
    }

    /// The bytes of pages that one device has saved; panics on others.
    pub fn of_device(&self) -> &[u8] {
        match self {
            SavedPages::Bytes(bytes) => bytes,
            SavedPages::Ranks(_) | SavedPages::Simulated { .. } => panic!("these pages are of another kind of device"),
        }
    }

    /// [`SavedPages::of_device`], to be changed.
    pub fn of_device_mut(&mut self) -> &mut [u8] {
        match self {
            SavedPages::Bytes(bytes) => bytes,
            SavedPages::Ranks(_) | SavedPages::Simulated { .. } => panic!("these pages are of another kind of device"),
        }
    }

    /// What rank number `rank` of `ranks` has of pages: what it saved, or its share of the bytes of all.
    pub fn of_rank(&self, rank: usize, ranks: usize) -> Cow<'_, SavedPages> {
        match self {
            SavedPages::Ranks(each) => Cow::Borrowed(&each[rank]),
            SavedPages::Bytes(bytes) => {
                let share = bytes.len() / ranks;
                Cow::Owned(SavedPages::Bytes(bytes[rank * share..][..share].to_vec()))
            }
            SavedPages::Simulated { .. } => panic!("these pages are of another kind of device"),
        }
    }

    /// What each of several devices has saved, to be changed; panics on pages of one device.
    pub fn of_ranks_mut(&mut self) -> &mut [SavedPages] {
        match self {
            SavedPages::Ranks(each) => each,
            SavedPages::Bytes(_) | SavedPages::Simulated { .. } => panic!("these pages are of one device"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_ranks_are_divided_as_they_were_joined() {
        let saved = SavedPages::Ranks(vec![SavedPages::Bytes(vec![1, 2]), SavedPages::Bytes(vec![3, 4])]);
        assert_eq!(saved.bytes(), 4);
        let joined = SavedPages::Bytes(saved.clone().into_bytes());
        for rank in 0..2 {
            assert_eq!(joined.of_rank(rank, 2).of_device(), saved.of_rank(rank, 2).of_device());
        }
        assert_eq!(joined.of_device(), [1, 2, 3, 4]);
        assert_eq!(SavedPages::Simulated { bytes: 2 }.into_bytes(), [0, 0]);
    }
}
