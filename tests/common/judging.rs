//! Whether candidates can be judged on this machine.

use std::process::Command;

/// By the built binary's own word; `false`, with a line that says so, where there is no sandbox or no python3.
pub fn can_judge() -> bool {
    let doctor = Command::new(env!("CARGO_BIN_EXE_offshoot")).args(["judge", "--doctor"]).output();
    let doctor = doctor.expect("the binary starts");
    if !doctor.status.success() {
        crate::skip::skipped(format_args!(
            "no sandbox or no python3 here: {}",
            String::from_utf8_lossy(&doctor.stderr)
        ));
    }
    doctor.status.success()
}
