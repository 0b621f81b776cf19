//! When a server that is not reached is left alone: after some questions in a row that did not reach it, further ones
//! fail at once, but for one from time to time.

use std::time::{Duration, Instant};

use offshoot_core::error::{Error, Result};

/// So many questions in a row do not reach a server that is down.
const IN_A_ROW: u32 = 8;

/// The time for which a server that is down is not asked.
const PAUSE: Duration = Duration::from_secs(30);

/// Whether a server is reached.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Questions in a row that did not reach it.
    unreached: u32,
    /// `None`: it is not down.
    down: Option<Down>,
}

#[derive(Debug)]
struct Down {
    /// Why it was not reached.
    why: String,
    /// When the next question is let through.
    until: Instant,
}

impl Health {
    /// Lets a question to `server` through, or not.
    ///
    /// # Errors
    ///
    /// The server is down.
    pub fn admit(&mut self, server: &str, now: Instant) -> Result<()> {
        match &mut self.down {
            Some(down) if now < down.until => {
                Err(Error::busy(server, format!("it is not reached for now: {}", down.why)))
            }
            Some(down) => {
                // The others wait for what becomes of this one.
                down.until = now + PAUSE;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The server has answered.
    pub fn reached(&mut self) {
        *self = Health::default();
    }

    /// A question has not reached the server. Returns whether it is down from now on, and was not before.
    pub fn unreached(&mut self, why: &str, now: Instant) -> bool {
        self.unreached = self.unreached.saturating_add(1);
        let was_down = self.down.is_some();
        if self.unreached >= IN_A_ROW {
            self.down = Some(Down { why: why.to_owned(), until: now + PAUSE });
        }
        self.down.is_some() && !was_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "the judge's server http://judge";

    #[test]
    fn a_server_that_is_down_is_tried_from_time_to_time() {
        let (mut health, start) = (Health::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for failed in 1..=IN_A_ROW {
            health.admit(SERVER, at(0)).unwrap();
            assert_eq!(health.unreached("refused", at(1)), failed == IN_A_ROW, "it is said once");
        }
        assert!(!health.unreached("refused", at(1)), "one that was under way");
        let error = health.admit(SERVER, at(30)).unwrap_err().to_string();
        assert_eq!(error, "the judge's server http://judge: it is not reached for now: refused");
        health.admit(SERVER, at(31)).unwrap();
        assert!(health.admit(SERVER, at(32)).is_err(), "one is under way");
        assert!(!health.unreached("timeout", at(33)));
        assert!(health.admit(SERVER, at(62)).unwrap_err().to_string().contains("timeout"));
        health.admit(SERVER, at(63)).unwrap();
        health.reached();
        health.admit(SERVER, at(63)).unwrap();
        assert!(!health.unreached("refused", at(64)));
        health.admit(SERVER, at(64)).unwrap();
    }

    #[test]
    fn an_answer_between_failures_starts_the_count_anew() {
        let (mut health, now) = (Health::default(), Instant::now());
        for _ in 0..5 {
            (1..IN_A_ROW).for_each(|_| assert!(!health.unreached("refused", now)));
            health.reached();
        }
        assert!(health.admit(SERVER, now).is_ok());
    }
}
