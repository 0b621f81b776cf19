//! Memory that sleeps: what it held waits in host memory where it is kept. `driver::mapped` gives device memory back
//! and takes it again; which parts sleep when is the model's.

use std::sync::Arc;

use memmap2::{Advice, MmapMut};

use super::staging::Staging;
use crate::driver::device::Device;
use crate::driver::mapped::Mapped;
use crate::driver::memory::Memory;
use offshoot_backend::MemoryPart;
use offshoot_core::error::{Error, Result};

/// What sleeps of a device.
#[derive(Default)]
pub struct Asleep {
    weights: Sleepers<DeviceRange>,
    kv: Sleepers<DeviceRange>,
}

/// Memory of one part that sleeps, and host memory for what it holds.
struct Sleepers<R> {
    asleep: Vec<Sleeper<R>>,
    /// Host memory that was used before: pages that nobody has touched yet cost more than the copy into them. It is
    /// kept as long as the model.
    used: Vec<MmapMut>,
}

struct Sleeper<R> {
    range: R,
    /// What it held, if that is kept.
    held: Option<MmapMut>,
}

/// Memory that can be given back while its addresses stay.
trait Sleeps {
    /// What copies between it and the host.
    type Copier;

    fn bytes(&self) -> usize;

    fn is_awake(&self) -> bool;

    /// Gives the memory back. After an error it may sleep all the same.
    fn sleep(&self) -> Result<()>;

    /// Takes memory of unspecified contents.
    fn wake(&self) -> Result<()>;

    fn download(&self, copier: &mut Self::Copier, to: &mut [u8]) -> Result<()>;

    fn upload(&self, copier: &mut Self::Copier, from: &[u8]) -> Result<()>;

    /// Waits for all uploads.
    fn settle(copier: &mut Self::Copier) -> Result<()>;
}

/// A range of a device's addresses, with memory while it is awake.
struct DeviceRange {
    memory: Memory,
    mapped: Arc<Mapped>,
}

impl Sleeps for DeviceRange {
    type Copier = Staging;

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn is_awake(&self) -> bool {
        self.mapped.is_awake()
    }

    fn sleep(&self) -> Result<()> {
        self.mapped.sleep()
    }

    fn wake(&self) -> Result<()> {
        self.mapped.wake()
    }

    fn download(&self, staging: &mut Staging, to: &mut [u8]) -> Result<()> {
        let bytes = to.len();
        staging.download(to, &self.memory, std::iter::once(0..bytes))
    }

    fn upload(&self, staging: &mut Staging, from: &[u8]) -> Result<()> {
        staging.upload(&self.memory, 0, from)
    }

    fn settle(staging: &mut Staging) -> Result<()> {
        staging.settle()
    }
}

impl Asleep {
    /// Gives the memory of `part` back. After an error all of it is awake again, with what it held if that is kept; or,
    /// if that fails, too, some of it sleeps, which [`Asleep::wake`] takes again.
    pub fn sleep(&mut self, device: &Device, staging: &mut Staging, part: MemoryPart, keeps: bool) -> Result<()> {
        device.synchronise()?;
        let ranges = device.mapped_of(part).into_iter().map(|(memory, mapped)| DeviceRange { memory, mapped });
        self.of(part).sleep(ranges.collect(), staging, keeps)
    }

    /// Takes the memory of `part` again, with what is kept. After an error all of it sleeps on.
    pub fn wake(&mut self, staging: &mut Staging, part: MemoryPart) -> Result<()> {
        self.of(part).wake(staging)
    }

    fn of(&mut self, part: MemoryPart) -> &mut Sleepers<DeviceRange> {
        match part {
            MemoryPart::Weights => &mut self.weights,
            MemoryPart::Kv => &mut self.kv,
        }
    }
}

impl<R> Default for Sleepers<R> {
    fn default() -> Self {
        Self { asleep: Vec::new(), used: Vec::new() }
    }
}

impl<R: Sleeps> Sleepers<R> {
    fn sleep(&mut self, ranges: Vec<R>, copier: &mut R::Copier, keeps: bool) -> Result<()> {
        let mut held = Vec::new();
        // All copies are made before anything is given back.
        for range in ranges.into_iter().filter(R::is_awake) {
            let copy = if keeps { Some(self.copy(&range, copier)?) } else { None };
            held.push(Sleeper { range, held: copy });
        }
        for sleeper in held {
            let given_back = sleeper.range.sleep();
            if !sleeper.range.is_awake() {
                self.asleep.push(sleeper);
            }
            if let Err(error) = given_back {
                if let Err(also) = self.wake(copier) {
                    log::warn!("what sleeps already stays asleep: {also}");
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn wake(&mut self, copier: &mut R::Copier) -> Result<()> {
        if let Err(error) = self.woken(copier) {
            // What was enqueued is awaited before the memory is given back.
            let asleep = R::settle(copier).and(self.asleep.iter().try_for_each(|sleeper| sleeper.range.sleep()));
            if let Err(also) = asleep {
                log::warn!("memory that was taken again is not given back: {also}");
            }
            return Err(error);
        }
        self.used.extend(self.asleep.drain(..).filter_map(|sleeper| sleeper.held));
        Ok(())
    }

    fn woken(&self, copier: &mut R::Copier) -> Result<()> {
        self.asleep.iter().try_for_each(|sleeper| sleeper.range.wake())?;
        for Sleeper { range, held } in &self.asleep {
            if let Some(held) = held {
                range.upload(copier, held)?;
            }
        }
        R::settle(copier)
    }

    /// What a range holds, in host memory.
    fn copy(&mut self, range: &R, copier: &mut R::Copier) -> Result<MmapMut> {
        let bytes = range.bytes();
        let mut copy = match self.used.iter().position(|used| used.len() == bytes) {
            Some(place) => self.used.swap_remove(place),
            None => host_memory(bytes)?,
        };
        range.download(copier, &mut copy)?;
        Ok(copy)
    }
}

/// Host memory that nobody has touched, in large pages where the system has some: the threads that fill it take its
/// pages together.
fn host_memory(bytes: usize) -> Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes).map_err(|error| {
        let found = format!("too little for {bytes} bytes of them ({error})");
        Error::value("host memory", "enough for the weights that sleep", found)
    })?;
    if let Err(error) = memory.advise(Advice::HugePage) {
        log::debug!("no large pages for weights that sleep: {error}");
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;

    /// Memory of a test, and which of its calls fail.
    struct Fake {
        bytes: RefCell<Option<Vec<u8>>>,
        size: usize,
        refuses: Rc<Cell<Refused>>,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Refused {
        Nothing,
        Sleep,
        Wake,
        Upload,
    }

    impl Fake {
        fn check(&self, call: Refused) -> Result<()> {
            // The last of the ranges refuses.
            match self.refuses.get() == call && self.size == 3 {
                true => Err(Error::Internal(format!("{call:?}"))),
                false => Ok(()),
            }
        }
    }

    impl Sleeps for Rc<Fake> {
        type Copier = ();

        fn bytes(&self) -> usize {
            self.size
        }

        fn is_awake(&self) -> bool {
            self.bytes.borrow().is_some()
        }

        fn sleep(&self) -> Result<()> {
            self.check(Refused::Sleep)?;
            *self.bytes.borrow_mut() = None;
            Ok(())
        }

        fn wake(&self) -> Result<()> {
            self.check(Refused::Wake)?;
            self.bytes.borrow_mut().get_or_insert(vec![0; self.size]);
            Ok(())
        }

        fn download(&self, (): &mut (), to: &mut [u8]) -> Result<()> {
            to.copy_from_slice(self.bytes.borrow().as_ref().expect("it is awake"));
            Ok(())
        }

        fn upload(&self, (): &mut (), from: &[u8]) -> Result<()> {
            self.check(Refused::Upload)?;
            self.bytes.borrow_mut().as_mut().expect("it is awake").copy_from_slice(from);
            Ok(())
        }

        fn settle((): &mut ()) -> Result<()> {
            Ok(())
        }
    }

    /// Three ranges of 1, 2 and 3 bytes.
    fn ranges() -> (Vec<Rc<Fake>>, Rc<Cell<Refused>>) {
        let refuses = Rc::new(Cell::new(Refused::Nothing));
        let range = |size: usize| {
            let bytes = RefCell::new(Some(vec![size as u8; size]));
            Rc::new(Fake { bytes, size, refuses: refuses.clone() })
        };
        ([1, 2, 3].map(range).to_vec(), refuses)
    }

    fn contents(ranges: &[Rc<Fake>]) -> Vec<Option<Vec<u8>>> {
        ranges.iter().map(|range| range.bytes.borrow().clone()).collect()
    }

    #[test]
    fn what_sleeps_is_restored_and_its_host_memory_used_again() {
        let ((ranges, _), mut sleepers) = (ranges(), Sleepers::default());
        let before = contents(&ranges);
        for _ in 0..2 {
            sleepers.sleep(ranges.clone(), &mut (), true).expect("nothing refuses");
            assert!(ranges.iter().all(|range| !range.is_awake()) && sleepers.used.is_empty());
            sleepers.wake(&mut ()).expect("nothing refuses");
            assert_eq!(contents(&ranges), before);
            assert_eq!((sleepers.asleep.len(), sleepers.used.len()), (0, 3));
        }
    }

    #[test]
    fn a_sleep_that_fails_midway_loses_nothing() {
        let ((ranges, refuses), mut sleepers) = (ranges(), Sleepers::default());
        let before = contents(&ranges);
        refuses.set(Refused::Sleep);
        sleepers.sleep(ranges.clone(), &mut (), true).expect_err("the last range refuses");
        assert_eq!(contents(&ranges), before, "all is awake with what it held");
        assert!(sleepers.asleep.is_empty());
    }

    /// Without a copy it loses what was given back before: whoever asked for it may not use what is awake then.
    #[test]
    fn a_sleep_without_a_copy_that_fails_midway_wakes_memory_alone() {
        let ((ranges, refuses), mut sleepers) = (ranges(), Sleepers::default());
        refuses.set(Refused::Sleep);
        sleepers.sleep(ranges.clone(), &mut (), false).expect_err("the last range refuses");
        assert_eq!(contents(&ranges), [Some(vec![0]), Some(vec![0; 2]), Some(vec![3; 3])]);
        assert!(sleepers.asleep.is_empty() && sleepers.used.is_empty());
    }

    #[test]
    fn a_wake_that_fails_leaves_all_asleep_with_what_it_held() {
        for refused in [Refused::Wake, Refused::Upload] {
            let ((ranges, refuses), mut sleepers) = (ranges(), Sleepers::default());
            let before = contents(&ranges);
            sleepers.sleep(ranges.clone(), &mut (), true).expect("nothing refuses");
            refuses.set(refused);
            sleepers.wake(&mut ()).expect_err("the last range refuses");
            assert!(ranges.iter().all(|range| !range.is_awake()), "{refused:?}");
            refuses.set(Refused::Nothing);
            sleepers.wake(&mut ()).expect("nothing refuses");
            assert_eq!(contents(&ranges), before, "{refused:?}");
        }
    }
}
