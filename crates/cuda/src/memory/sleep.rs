//! Memory that sleeps: what it held waits in host memory where it is kept. `driver::mapped` gives device memory back
//! and takes it again; which parts sleep when is the model's.

use std::sync::Arc;

use super::staging::Staging;
use crate::driver::device::Device;
use crate::driver::mapped::Mapped;
use crate::driver::memory::Memory;
use offshoot_backend::MemoryPart;
use offshoot_core::error::{Error, Result};

/// What sleeps of a device.
#[derive(Default)]
pub struct Asleep {
    weights: Vec<Sleeper>,
    kv: Vec<Sleeper>,
}

struct Sleeper {
    memory: Memory,
    mapped: Arc<Mapped>,
    /// What it held, if that is kept.
    held: Option<Vec<u8>>,
}

impl Asleep {
    fn of(&mut self, part: MemoryPart) -> &mut Vec<Sleeper> {
        match part {
            MemoryPart::Weights => &mut self.weights,
            MemoryPart::Kv => &mut self.kv,
        }
    }

    /// Gives the memory of `part` back. After an error all that held something is awake.
    pub fn sleep(&mut self, device: &Device, staging: &mut Staging, part: MemoryPart, keeps: bool) -> Result<()> {
        device.synchronise()?;
        let awake = device.mapped_of(part).into_iter().filter(|(_, mapped)| mapped.is_awake());
        let sleeper = |(memory, mapped): (Memory, Arc<Mapped>)| {
            let held = keeps.then(|| download(staging, &memory)).transpose()?;
            Ok(Sleeper { memory, mapped, held })
        };
        let mut sleepers = awake.map(sleeper).collect::<Result<Vec<_>>>()?;
        // From here on only a broken device refuses.
        sleepers.iter().try_for_each(|sleeper| sleeper.mapped.sleep())?;
        self.of(part).append(&mut sleepers);
        Ok(())
    }

    /// Takes the memory of `part` again, with what is kept. After an error all of it sleeps on.
    pub fn wake(&mut self, staging: &mut Staging, part: MemoryPart) -> Result<()> {
        let sleepers = self.of(part);
        if let Err(error) = sleepers.iter().try_for_each(|sleeper| sleeper.mapped.wake()) {
            sleepers.iter().try_for_each(|sleeper| sleeper.mapped.sleep())?;
            return Err(error);
        }
        for Sleeper { memory, held, .. } in sleepers.iter() {
            if let Some(held) = held {
                staging.upload(memory, 0, held)?;
            }
        }
        sleepers.clear();
        Ok(())
    }
}

fn download(staging: &mut Staging, memory: &Memory) -> Result<Vec<u8>> {
    let (bytes, mut held) = (memory.bytes(), Vec::new());
    let no_memory = |_| {
        let found = format!("too little for {bytes} bytes of them");
        Error::value("host memory", "enough for the weights that sleep", found)
    };
    held.try_reserve_exact(bytes).map_err(no_memory)?;
    held.resize(bytes, 0);
    staging.download(&mut held, memory, std::iter::once(0..bytes))?;
    Ok(held)
}
