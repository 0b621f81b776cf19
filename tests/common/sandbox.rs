//! How the sandbox is set up in tests, whose own executable is no helper: a suite names one as `HELPER`.

use std::path::PathBuf;

use offshoot_judge::sandbox::{Isolation, SandboxSetup};

pub fn setup(namespaces: bool) -> SandboxSetup {
    let helper = Some(PathBuf::from(crate::HELPER));
    SandboxSetup { helper, namespaces, ..SandboxSetup::new(Isolation::Required) }
}
