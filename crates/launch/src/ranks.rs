//! Starts one engine on several devices that compute the model together (`--tensor-parallel`): `backend::ranks` makes one
//! backend of them. Everything is checked before anything is loaded.

use super::assemble::{Start, size_on};
use super::device::{OpenRanks, Opened};
use super::{DeviceChoice, Launch, LaunchSizes, Launched, OnBackend};
use offshoot_backend::Backend;
use offshoot_core::error::Result;

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

struct Size<'a>(&'a Launch<'a>);

impl OnBackend for Size<'_> {
    type Output = LaunchSizes;

    fn run<B: Backend>(self, backend: B) -> Result<LaunchSizes> {
        let device = backend.describe();
        Ok(LaunchSizes { device, ..size_on(self.0, backend)? })
    }
}
