//! Starts one engine on several devices that compute the model together (`--tensor-parallel`; `backend::ranks`).
//! Everything is checked before anything is loaded.

use std::time::Instant;

use super::assemble::{decoder_on, size_on};
use super::device::{OnRanks, OpenRanks, Opened};
use super::{DeviceChoice, Launch, LaunchSizes, Launched};
use offshoot_backend::Backend;
use offshoot_backend::ranks::{Ranked, Ranks};
use offshoot_core::error::Result;
use offshoot_model::LoadedRanks;

impl Launch<'_> {
    pub(super) fn start_ranks(&self, choices: &[DeviceChoice]) -> Result<Launched> {
        self.open_ranks(choices)?.with(Start(self))
    }

    pub(super) fn size_of_ranks(&self, choices: &[DeviceChoice]) -> Result<LaunchSizes> {
        self.open_ranks(choices)?.with(Size(self))
    }

    /// The devices as one, if they divide the model and have room for their shares of its weights.
    fn open_ranks(&self, choices: &[DeviceChoice]) -> Result<OpenRanks> {
        // Sums do not depend on the number of ranks where results must not.
        let exact = self.budget.deterministic;
        self.model.config.check_ranks(choices.len(), exact)?;
        let opened = choices.iter().map(|choice| choice.open_as_one_of(choices.len(), None));
        Opened::join(opened.collect::<Result<_>>()?, exact, self.model)
    }
}

struct Start<'a>(&'a Launch<'a>);

impl OnRanks for Start<'_> {
    type Output = Launched;

    fn run<B: Ranked>(self, ranks: Ranks<B>) -> Result<Launched> {
        let (started, Launch { model, budget, .. }) = (Instant::now(), self.0);
        let weights = model.weights()?;
        let model = LoadedRanks::start(ranks, |rank| decoder_on(rank, &weights, budget))?;
        self.0.start_loaded(model, started)
    }
}

struct Size<'a>(&'a Launch<'a>);

impl OnRanks for Size<'_> {
    type Output = LaunchSizes;

    fn run<B: Ranked>(self, mut ranks: Ranks<B>) -> Result<LaunchSizes> {
        let (device, free) = (ranks.first().describe(), ranks.free_bytes()?);
        Ok(LaunchSizes { device, ..size_on(self.0, ranks.first_mut(), free)? })
    }
}
