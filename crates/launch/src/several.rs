//! Starts a replica of the model on each of several devices, and joins their engines behind one handle. Devices are
//! opened and checked one after the other before anything is loaded; then all load at once.

use std::thread::ScopedJoinHandle;
use std::time::Instant;

use super::assemble::{Load, Size};
use super::{DeviceChoice, EngineBudget, EngineOptions, Launch, LaunchSizes, Launched, Opened};
use offshoot_core::error::{Error, Result};
use offshoot_engine::replicas;
use offshoot_model::StepRunner;

impl Launch<'_> {
    /// Opens each device. Several replicas on the CPU share its cores.
    fn open_each(&self, choices: &[DeviceChoice]) -> Result<Vec<Opened>> {
        choices.iter().map(|choice| choice.open_as_one_of(choices.len(), Some(self.model))).collect()
    }

    pub(super) fn start_each(&self, choices: &[DeviceChoice]) -> Result<Launched> {
        let started = Instant::now();
        let opened = self.open_each(choices)?;
        let (model, budget, exact) = (self.model, self.options.budget, self.is_exact());
        let loaded: Vec<Result<Box<dyn StepRunner>>> = std::thread::scope(|scope| {
            let load = |opened: Opened| {
                let work = move || opened.with_engine(exact, Load { model, budget });
                std::thread::Builder::new().name("load".to_owned()).spawn_scoped(scope, work)
            };
            let threads: Vec<_> = opened.into_iter().map(load).collect();
            let join = |thread: std::io::Result<ScopedJoinHandle<'_, Result<Box<dyn StepRunner>>>>| {
                let thread = thread.map_err(Error::io("a thread", "start"))?;
                thread.join().unwrap_or_else(|_| Err(Error::Internal("loading a model panicked".to_owned())))
            };
            threads.into_iter().map(join).collect()
        });
        let start = |model: Result<Box<dyn StepRunner>>| {
            let (engine, handle) = self.build(model?)?;
            engine.spawn()?;
            Ok(handle)
        };
        let engines = loaded.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        let engine = replicas::join(engines)?;
        let seconds_loading = started.elapsed().as_secs_f64();
        log::info!("the model was loaded on {} devices in {seconds_loading:.2} s", choices.len());
        Ok(Launched { engine, second: None, not_cuda: None, seconds_loading })
    }

    pub(super) fn sizes_of_each(&self, choices: &[DeviceChoice]) -> Result<Vec<LaunchSizes>> {
        let size = |opened: Opened| {
            let device = opened.to_string();
            Ok(LaunchSizes { device, ..opened.with_engine(self.is_exact(), Size(self))? })
        };
        self.open_each(choices)?.into_iter().map(size).collect()
    }

    /// The budget of one of the engines: what is the host's is divided among them.
    pub(super) fn budget_of_each(&self, is_async: bool) -> Result<EngineBudget> {
        let EngineOptions { devices, budget, .. } = &self.options;
        Ok(match devices.known_count()? {
            1 => *budget,
            replicas => budget.one_of(replicas, is_async),
        })
    }
}
