//! Runs of the built `offshoot-lab`, in the repository's folder, which sees no GPU.

use std::process::{Command, Output};

pub fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot-lab"));
    command.current_dir(offshoot_fixtures::REPOSITORY).env_remove("RUST_LOG").env("CUDA_VISIBLE_DEVICES", "");
    command.args(arguments);
    command
}

/// It must succeed; what it printed.
pub fn succeeds(command: &mut Command) -> String {
    let ran = command.output().expect("the binary starts");
    assert!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text")
}

/// It must fail with exit code 2 and print nothing but a sentence; the sentence.
pub fn refuses(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the binary starts");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(2), "{command:?}: {said}");
    assert!(stdout.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&stdout));
    said
}
