//! Processes that keep the machine busy while a test looks at something else.

use std::process::{Child, Command, Stdio};

/// Busy processes, three for each core; dropping them ends them.
pub struct Busy(Vec<Child>);

impl Busy {
    pub fn start() -> Busy {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let one = |_| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("a shell starts")
        };
        Busy((0..3 * cores.min(4)).map(one).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for shell in &mut self.0 {
            let _ = shell.kill();
            let _ = shell.wait();
        }
    }
}
