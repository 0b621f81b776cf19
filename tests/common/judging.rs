//! Whether candidates can be judged on this machine.

use std::process::Command;
use std::sync::OnceLock;

/// By the built binary's own word, asked once; `false`, with a line that says so, where there is no sandbox or no
/// python3.
pub fn can_judge() -> bool {
    static LACKS: OnceLock<Option<String>> = OnceLock::new();
    let lacks = LACKS.get_or_init(|| {
        let doctor = Command::new(env!("CARGO_BIN_EXE_offshoot")).args(["judge", "--doctor"]).output();
        let doctor = doctor.expect("the binary starts");
        (!doctor.status.success()).then(|| String::from_utf8_lossy(&doctor.stderr).into_owned())
    });
    if let Some(why) = lacks {
        crate::skip::skipped(format_args!("no sandbox or no python3 here: {why}"));
    }
    lacks.is_none()
}
