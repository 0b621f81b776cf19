//! Confined programs, honest and hostile: what the sandbox gives them, what it says of them, and what is left of them.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use offshoot::judge::sandbox::{Confined, Ended, How, Input, Isolation, Output, Sandbox, Setup};
use offshoot::task::problem::Limits;

fn sandbox(namespaces: bool) -> Sandbox {
    let helper = Some(PathBuf::from(env!("CARGO_BIN_EXE_offshoot")));
    Sandbox::set_up(&Setup { helper, namespaces, ..Setup::new(Isolation::Required) }).unwrap()
}

fn shell(script: &str, folder: &Path) -> Confined {
    Confined {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: Vec::new(),
        readable: Vec::new(),
        folder: folder.into(),
        limits: Limits { cpu: Duration::from_secs(1), memory_bytes: 256 << 20, output_bytes: 1 << 20, processes: 16 },
        stdin: Input::Null,
        stdout: Output::Capture,
        channel: false,
    }
}

fn run(script: &str) -> Ended {
    let sandbox = sandbox(true);
    let folder = sandbox.folder().unwrap();
    sandbox.start(shell(script, folder.path())).unwrap().wait().unwrap()
}

#[test]
fn an_honest_program_is_reported_as_it_ends() {
    let ended = run("echo out; echo err >&2; pwd; exit 3");
    assert_eq!(ended.how, How::Exit(3));
    assert!(ended.stdout.starts_with(b"out\n/"), "{ended:?}");
    assert_eq!(ended.stderr, b"err\n");
    assert_eq!(run("kill -SEGV $$").how, How::Signal(11));
}
