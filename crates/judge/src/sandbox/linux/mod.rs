//! The sandbox of Linux: the server, its supervisors and the processes of candidates, each in a module of its own.

mod asked;
mod base;
mod caller;
mod calls;
mod candidate;
mod confinement;
mod connections;
mod delays;
mod disk;
mod files;
mod folder;
mod groups;
mod identity;
mod interpreter;
mod own_limits;
mod probe;
mod processes;
mod root;
mod running;
mod server;
mod setup_error;
mod signals;
mod supervisor;
mod timer;
mod tree;
mod wire;

use super::confined::{
    Confined, DEEPEST, Ended, How, InForce, Isolation, Limit, MOST_FILES, SandboxSetup, StdinMode, StdoutMode,
    WallLimit, WarmInterpreter,
};

pub use folder::WorkFolder;
pub use running::Running;
pub use server::{Sandbox, enter_if_helper};
