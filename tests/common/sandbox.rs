//! How the sandbox is set up in tests, whose own executable is no helper.

use std::path::PathBuf;

use offshoot::judge::sandbox::{Isolation, Setup};

pub fn setup(namespaces: bool) -> Setup {
    let helper = Some(PathBuf::from(env!("CARGO_BIN_EXE_offshoot")));
    Setup { helper, namespaces, ..Setup::new(Isolation::Required) }
}
