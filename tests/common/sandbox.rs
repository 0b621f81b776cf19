//! How the sandbox is set up in tests, whose own executable is no helper.

use std::path::PathBuf;

use offshoot::judge::sandbox::{Isolation, SandboxSetup};

pub fn setup(namespaces: bool) -> SandboxSetup {
    let helper = Some(PathBuf::from(env!("CARGO_BIN_EXE_offshoot")));
    SandboxSetup { helper, namespaces, ..SandboxSetup::new(Isolation::Required) }
}
