//! Allocates page ids with reference counts. What a page contains and who gets one is decided by the callers.

use offshoot_core::ids::PageId;

/// A recoverable shortage: the caller evicts, waits or drops a branch, and retries once `needed` pages are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} free pages are needed at once")]
pub struct OutOfPages {
    /// Pages that must be free for the request to succeed.
    pub needed: usize,
}

/// The pages of the KV memory with the number of holders of each. A page without holders is free.
#[derive(Clone, Debug)]
pub struct PagePool {
    holders: Vec<u32>,
    /// See [`PagePool::stamp`].
    stamps: Vec<u64>,
    /// A stack: the page freed last is taken first, since it may still be in cache.
    free: Vec<PageId>,
}

impl PagePool {
    pub fn new(capacity: usize) -> Self {
        Self {
            holders: vec![0; capacity],
            stamps: vec![0; capacity],
            free: (0..capacity).rev().map(PageId::new).collect(),
        }
    }

    /// Takes a free page; the caller becomes its only holder.
    pub fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.holders[page.ix()] = 1;
        self.restamp(page);
        Some(page)
    }

    /// Says that slots of a held page are written again, which others may have copied.
    pub fn restamp(&mut self, page: PageId) {
        self.stamps[page.ix()] += 1;
    }

    /// Tells what the page holds now from what it held before: while it stays the same, no slot that was computed is
    /// written again.
    pub fn stamp(&self, page: PageId) -> u64 {
        self.stamps[page.ix()]
    }

    /// Takes `count` free pages, or none.
    pub fn take_exactly(&mut self, count: usize) -> Result<Vec<PageId>, OutOfPages> {
        if count > self.free.len() {
            return Err(OutOfPages { needed: count });
        }
        Ok((0..count).map_while(|_| self.take()).collect())
    }

    /// Adds a holder to a held page. Panics if it is free.
    pub fn share(&mut self, page: PageId) {
        assert!(self.holders[page.ix()] > 0, "page {page} is free, so it cannot be shared");
        self.holders[page.ix()] += 1;
    }

    /// Removes a holder. Returns whether the page is free now. Panics if it was free already.
    pub fn give_back(&mut self, page: PageId) -> bool {
        let holders = &mut self.holders[page.ix()];
        *holders = holders.checked_sub(1).expect("a page is given back only by a holder");
        let freed = *holders == 0;
        if freed {
            self.free.push(page);
        }
        freed
    }

    /// The number of free pages.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn capacity(&self) -> usize {
        self.holders.len()
    }

    /// The number of holders of `page`.
    pub fn holders(&self, page: PageId) -> u32 {
        self.holders[page.ix()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_again_after_its_last_holder() {
        let mut pool = PagePool::new(2);
        let page = pool.take().unwrap();
        pool.share(page);
        assert_eq!((pool.free(), pool.holders(page)), (1, 2));
        assert!(!pool.give_back(page));
        assert!(pool.give_back(page));
        assert_eq!((pool.free(), pool.holders(page)), (2, 0));
    }

    #[test]
    fn pages_are_taken_all_or_none() {
        let mut pool = PagePool::new(3);
        assert_eq!(pool.take_exactly(4), Err(OutOfPages { needed: 4 }));
        assert_eq!(pool.free(), 3);
        assert_eq!(pool.take_exactly(3).unwrap().len(), 3);
        assert_eq!(pool.take(), None);
    }

    #[test]
    #[should_panic(expected = "only by a holder")]
    fn a_free_page_cannot_be_given_back() {
        PagePool::new(1).give_back(PageId(0));
    }
}
