//! Stubs for systems other than Linux, which have no sandbox: nothing can be started.

use std::convert::Infallible;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use super::confined::{Confined, Ended, InForce, SandboxSetup, WarmInterpreter};
use crate::fair_clock::ClockFile;
use crate::problem::Limits;
use offshoot_core::error::{Error, Result};

/// There is none.
#[derive(Debug)]
pub struct Sandbox(Infallible);

/// There is none.
#[derive(Debug)]
pub struct WorkFolder(Infallible);

/// There is none.
#[derive(Debug)]
pub struct Running(Infallible);

/// Does nothing: there is no helper.
pub fn enter_if_helper() {}

impl Sandbox {
    pub fn set_up(_: &SandboxSetup) -> Result<Sandbox> {
        Err(Error::value("judging programs", "Linux, for its sandbox", std::env::consts::OS))
    }

    pub fn warmed(&self, _: WarmInterpreter) -> Result<Sandbox> {
        match self.0 {}
    }

    pub fn in_force(&self) -> &InForce {
        match self.0 {}
    }

    pub(crate) fn lower_than(&self, _: &Limits) -> Vec<String> {
        match self.0 {}
    }

    pub fn folder(&self) -> Result<WorkFolder> {
        match self.0 {}
    }

    pub fn start(&self, _: Confined) -> Result<Running> {
        match self.0 {}
    }
}

impl WorkFolder {
    pub fn path(&self) -> &Path {
        match self.0 {}
    }
}

impl Running {
    pub fn write_stdin(&mut self, _: &[u8]) -> Result<()> {
        match self.0 {}
    }

    pub fn close_stdin(&mut self) {
        match self.0 {}
    }

    pub fn channel(&self) -> Option<&UnixStream> {
        match self.0 {}
    }

    pub(crate) fn clock(&self) -> Arc<ClockFile> {
        match self.0 {}
    }

    pub fn take_stdout(&self) -> Vec<u8> {
        match self.0 {}
    }

    pub fn kill(&mut self) {
        match self.0 {}
    }

    pub fn wait(self) -> Result<Ended> {
        match self.0 {}
    }
}
