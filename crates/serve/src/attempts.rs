//! The record of a batch's attempts on disk: which of its requests were in progress each time the server or its engine
//! ended without being asked to. From it follows which requests are suspected of ending it, how many of them are
//! answered together, and when one is given up. Running them is left to `batches`.
//!
//! The record is a text to which each attempt appends: `attempt` at its beginning, `read` once the input file is read,
//! the number of each request's line as the request begins, `done N` when it is refused, `stopped` when the server is
//! asked to end. What was answered needs no note: the file of answers has it. The lines are not forced to the disk: if
//! the machine loses them, somebody is suspected later.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Mutex;

use offshoot_core::error::{Error, Result};
use offshoot_openai::protocol::{Refusal, RefusalKind};

/// Ends of the server while it read the input file of a batch, after which the batch fails.
const MOST_WHILE_READ: u32 = 10;
/// How many requests are answered together of those that were in progress at so many ends of the server: one that has
/// survived fewer ends is answered with all others, one that was in progress at more is answered alone.
const TOGETHER: [(u32, usize); 2] = [(2, 16), (3, 4)];
/// The ends of the server after which a request is given up: during the last of them it was the batch's only one.
const MOST_ENDS: u32 = 7;
const ALONE_FROM: u32 = 4;

/// What earlier attempts tell.
#[derive(Debug, Default)]
pub struct EarlierAttempts {
    /// At how many ends of the server a request was in progress, by the number of its line. Requests whose answers are
    /// in the file of answers have no entry.
    ends: HashMap<usize, u32>,
    /// Ends of the server while it read the input file.
    while_read: u32,
}

/// The open requests of a batch, by the numbers of their lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Suspicion {
    /// Suspected requests, in groups that are answered one after the other, after all other requests.
    pub groups: Vec<Vec<usize>>,
    /// Requests that are given up.
    pub given_up: Vec<usize>,
}

impl EarlierAttempts {
    /// Reads the record at `path`, if there is one.
    pub fn read(path: &Path) -> Result<EarlierAttempts> {
        // Lines are not forced to disk: after a power cut there may be anything.
        match fs::read(path) {
            Ok(bytes) => Ok(EarlierAttempts::of(&String::from_utf8_lossy(&bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(EarlierAttempts::default()),
            Err(error) => Err(Error::io(path, "read")(error)),
        }
    }

    fn of(text: &str) -> EarlierAttempts {
        let mut all = EarlierAttempts::default();
        for attempt in text.split("attempt\n").skip(1).filter(|attempt| !attempt.trim_end().ends_with("stopped")) {
            let Some((_, begun)) = attempt.split_once("read\n") else {
                all.while_read += 1;
                continue;
            };
            let mut open = HashSet::new();
            // A line that was cut short is another request's number, or none: it suspects nobody for long.
            for line in begun.lines() {
                match line.strip_prefix("done ").unwrap_or(line).parse::<usize>() {
                    Ok(number) if line.starts_with("done ") => _ = open.remove(&number),
                    Ok(number) => _ = open.insert(number),
                    Err(_) => {}
                }
            }
            open.into_iter().for_each(|number| *all.ends.entry(number).or_default() += 1);
        }
        all
    }

    /// # Errors
    ///
    /// The server ended too often while it read the batch's input file.
    pub fn check(&self) -> Result<()> {
        match self.while_read < MOST_WHILE_READ {
            true => Ok(()),
            false => {
                let expected = format!("an input file that is read in one of {MOST_WHILE_READ} attempts");
                Err(Error::value("the batch", expected, "the server ended each time while it read the file"))
            }
        }
    }

    /// What is to be done with the `open` requests.
    pub fn suspicion(&self, open: impl Iterator<Item = usize>) -> Suspicion {
        let ends = |line: usize| self.ends.get(&line).copied().unwrap_or(0);
        let mut suspects: Vec<(u32, usize)> = open.map(|line| (ends(line), line)).collect();
        suspects.retain(|&(ends, _)| ends >= TOGETHER[0].0);
        // Those that seem least guilty first.
        suspects.sort_unstable();
        let guilty = suspects.partition_point(|&(ends, _)| ends < MOST_ENDS);
        let given_up = suspects.split_off(guilty).into_iter().map(|(_, line)| line).collect();
        let together = |of: u32| TOGETHER.iter().find(|&&(ends, _)| ends == of).map_or(1, |&(_, most)| most);
        let alike = suspects.chunk_by(|(one, _), (next, _)| one == next);
        let groups = alike.flat_map(|alike| alike.chunks(together(alike[0].0)));
        let groups = groups.map(|group| group.iter().map(|&(_, line)| line).collect()).collect();
        Suspicion { groups, given_up }
    }
}

/// Why a request is given up.
pub fn given_up() -> Refusal {
    let alone = MOST_ENDS - ALONE_FROM;
    let what = format!(
        "the server or its engine ended {MOST_ENDS} times while this request was in progress, the last {alone} times \
         with no other request of its batch"
    );
    Refusal::of_kind(RefusalKind::Internal, "server_ended", what)
}

/// The attempt that runs.
pub struct Attempt {
    record: Mutex<File>,
}

impl Attempt {
    /// Begins an attempt in the record at `path`.
    pub fn begin(path: &Path) -> Result<Attempt> {
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(Error::io(path, "open"))?;
        let attempt = Attempt { record: Mutex::new(file) };
        // After a line that the last end of the server may have cut.
        attempt.note("\nattempt");
        Ok(attempt)
    }

    /// The input file is read.
    pub fn has_read(&self) {
        self.note("read");
    }

    /// The request on this line begins.
    pub fn begun(&self, line: usize) {
        self.note(&line.to_string());
    }

    /// The request on this line is refused.
    pub fn refused(&self, line: usize) {
        self.note(&format!("done {line}"));
    }

    /// The server is asked to end: nobody is suspected of that.
    pub fn stopped(self) {
        self.note("stopped");
    }

    fn note(&self, line: &str) {
        let mut record = self.record.lock().expect("nothing panics while it writes");
        // Without its record a batch is answered, too.
        if let Err(error) = record.write_all(format!("{line}\n").as_bytes()) {
            log::warn!("what a batch begins is not noted: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspicion(text: &str, open: &[usize]) -> Suspicion {
        EarlierAttempts::of(text).suspicion(open.iter().copied())
    }

    #[test]
    fn only_requests_in_progress_at_several_ends_are_suspected() {
        let none = Suspicion::default();
        for innocent in [
            "",
            "attempt\n",
            "attempt\nread\n",
            "attempt\nread\n1\n2\n",
            // Of two attempts the server ended one by itself.
            "attempt\nread\n1\nstopped\n\nattempt\nread\n1\n",
            // Refused before the end.
            "attempt\nread\n1\ndone 1\n\nattempt\nread\n1\n",
            // Cut short.
            "attempt\nread\n12\n1\n\nattempt\nread\n2\nattem",
            "atte\n\nattempt\nre\n\nattempt\n",
        ] {
            assert_eq!(suspicion(innocent, &[1, 2]), none, "{innocent}");
        }
        let twice = "attempt\nread\n1\n2\n3\n".repeat(2);
        assert_eq!(suspicion(&twice, &[1, 3, 4]).groups, [[1, 3]], "2 is answered, 4 was not begun");
    }

    /// A server that ends while one of 100 requests is in progress, and at no other time: the request is found, and no
    /// other one is given up.
    #[test]
    fn a_guilty_request_is_found_and_given_up_alone() {
        let (guilty, mut text) = (37, String::new());
        let mut open: Vec<usize> = (0..100).collect();
        for attempt in 1.. {
            let found = suspicion(&text, &open);
            if !found.given_up.is_empty() {
                assert_eq!(found.given_up, [guilty]);
                assert_eq!((attempt, &*open), (8, &[guilty][..]), "after seven ends, when all others are answered");
                return;
            }
            let apart: Vec<usize> = found.groups.concat();
            let together: Vec<usize> = open.iter().copied().filter(|line| !apart.contains(line)).collect();
            text += "\nattempt\nread\n";
            for group in std::iter::once(together).chain(found.groups) {
                group.iter().for_each(|line| text += &format!("{line}\n"));
                if group.contains(&guilty) {
                    break;
                }
                open.retain(|line| !group.contains(line));
            }
        }
    }

    #[test]
    fn a_batch_fails_whose_input_ends_the_server_each_time() {
        assert!(EarlierAttempts::of(&"\nattempt\n".repeat(9)).check().is_ok());
        assert!(EarlierAttempts::of(&"\nattempt\n".repeat(10)).check().is_err());
        assert!(EarlierAttempts::of(&"\nattempt\nread\n".repeat(100)).check().is_ok());
    }
}
