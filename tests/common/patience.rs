//! A test that waits for what never comes fails instead of hanging.

use std::time::Duration;

/// Runs `work` on a thread of its own; panics if it takes longer than a minute.
pub fn within_a_minute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = crossbeam_channel::bounded(1);
    let thread = std::thread::spawn(move || drop(sender.send(work())));
    match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(result) => result,
        Err(crossbeam_channel::RecvTimeoutError::Timeout) => panic!("nothing happened for a minute"),
        Err(crossbeam_channel::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it sends nothing if it panics"))
        }
    }
}
