//! A request to stop, by Ctrl-C or another signal. While a command prepares its work, nothing is lost by ending at
//! once, so the signal's handler ends the process. From [`Interrupt::listen`] on, the command itself reads the request,
//! keeps what is finished and ends.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a stop was requested, and whether the command will see it.
#[derive(Debug, Default)]
pub struct Interrupt {
    requested: AtomicBool,
    is_heard: AtomicBool,
}

impl Interrupt {
    /// The flag of a request. Call it when there is work to keep, and read the flag from then on.
    pub fn listen(&self) -> &AtomicBool {
        self.is_heard.store(true, Ordering::SeqCst);
        &self.requested
    }

    /// Records a request. `false`: the command does not listen yet, or has been asked before.
    pub fn request(&self) -> bool {
        !self.requested.swap(true, Ordering::SeqCst) && self.is_heard.load(Ordering::SeqCst)
    }

    /// Whether the command has said that it listens.
    pub fn is_heard(&self) -> bool {
        self.is_heard.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_request_to_a_listening_command_is_left_to_it() {
        assert!(!Interrupt::default().request(), "nothing to keep yet");
        let listening = Interrupt::default();
        let flag = listening.listen();
        assert!(listening.request() && flag.load(Ordering::Relaxed));
        assert!(!listening.request(), "the second ends the process");
    }
}
