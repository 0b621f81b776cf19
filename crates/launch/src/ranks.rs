//! Starts one engine on several devices that compute the model together (`--tensor-parallel`; `backend::ranks`).
//! Everything is checked before anything is loaded.

use std::time::Instant;

use super::assemble::{decoder_on, size_on};
use super::device::{OpenRanks, Opened};
use super::{DeviceChoice, Launch, LaunchSizes, Launched};
use offshoot_backend::Backend;
use offshoot_backend::ranks::{Ranked, Ranks};
use offshoot_core::error::Result;
use offshoot_model::LoadedRanks;

impl Launch<'_> {
    pub(super) fn start_ranks(&self, choices: &[DeviceChoice]) -> Result<Launched> {
        match self.open_ranks(choices)? {
            OpenRanks::Cpu(ranks) => self.start_on_ranks(ranks),
            OpenRanks::Cuda(ranks) => self.start_on_ranks(ranks),
        }
    }

    pub(super) fn size_of_ranks(&self, choices: &[DeviceChoice]) -> Result<LaunchSizes> {
        match self.open_ranks(choices)? {
            OpenRanks::Cpu(ranks) => self.size_on_ranks(ranks),
            OpenRanks::Cuda(ranks) => self.size_on_ranks(ranks),
        }
    }

    /// The devices, connected, if they divide the model and have room for their shares of its weights.
    fn open_ranks(&self, choices: &[DeviceChoice]) -> Result<OpenRanks> {
        let (ranks, config) = (choices.len(), self.model.config);
        config.check_ranks(ranks, self.options.budget.deterministic)?;
        let opened = choices.iter().map(|choice| choice.open_as_one_of(ranks, None));
        let opened: Vec<Opened> = opened.collect::<Result<_>>()?;
        // Sums do not depend on the number of ranks where results must not: on CPUs they never do.
        let exact = self.options.budget.deterministic || opened.iter().all(Opened::is_cpu);
        config.check_ranks(ranks, exact)?;
        Opened::join(opened, exact, self.model)
    }

    fn start_on_ranks<B: Ranked>(&self, ranks: Ranks<B>) -> Result<Launched> {
        let (started, budget, weights) = (Instant::now(), self.options.budget, self.model.weights()?);
        let model = LoadedRanks::start(ranks, |rank| decoder_on(rank, &weights, &budget))?;
        self.start_loaded(model, started)
    }

    fn size_on_ranks<B: Ranked>(&self, mut ranks: Ranks<B>) -> Result<LaunchSizes> {
        let (device, free) = (ranks.first().describe(), ranks.free_bytes()?);
        Ok(LaunchSizes { device, ..size_on(self, ranks.first_mut(), free)? })
    }
}
