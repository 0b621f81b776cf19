//! Shows progress on standard error: a bar on a terminal, otherwise a line every ten seconds. [`Stage`] counts the steps of
//! a preparation, [`Progress`] the items, samples and tokens of a job; threads share them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::figures::count;
use crate::out;

/// Time between lines if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Time between updates of the bar's clock.
const TICK: Duration = Duration::from_millis(500);
/// The bars, which fit 60 columns.
const STAGE: &str = "{bar:16} {msg}";
const JOB: &str = "{bar:8} {pos}/{len} items, {msg}, {eta} left";

/// Says whether the next line is due.
struct Pace {
    every: Duration,
    last: Mutex<Instant>,
}

impl Pace {
    fn new(every: Duration) -> Self {
        Self { every, last: Mutex::new(Instant::now()) }
    }

    fn is_due(&self) -> bool {
        let mut last = self.last.lock().expect("nothing panics while it holds this lock");
        let due = last.elapsed() >= self.every;
        if due {
            *last = Instant::now();
        }
        due
    }
}

fn bar(length: usize, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the template names known keys");
    ProgressBar::new(length as u64).with_style(style)
}

/// A step of a preparation that takes a while: `prompts 12,000 of 60,000`. Its bar goes when it is dropped.
pub struct Stage {
    bar: ProgressBar,
    /// What is counted, in the plural.
    what: &'static str,
    of: usize,
    done: AtomicU64,
    pace: Pace,
}

impl Stage {
    pub fn new(what: &'static str, of: usize) -> Self {
        Self { bar: bar(of, STAGE), what, of, done: AtomicU64::new(0), pace: Pace::new(LINE_EVERY) }
    }

    pub fn step(&self) {
        if let Some(line) = self.count_one() {
            out::aside(line);
        }
    }

    /// Counts a step; the line to print if one is due and there is no bar.
    fn count_one(&self) -> Option<String> {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let line = || format!("{} {} of {}", self.what, count(done), count(self.of as u64));
        if self.bar.is_hidden() {
            return self.pace.is_due().then(line);
        }
        self.bar.set_position(done);
        // The bar itself limits how often it is drawn, but a text for each of many steps takes time.
        if done.is_multiple_of(64) || done == self.of as u64 {
            self.bar.set_message(line());
        }
        None
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    pace: Pace,
    items_asked: usize,
    items: AtomicU64,
    samples: AtomicU64,
    tokens: AtomicU64,
}

impl Progress {
    pub fn new(items_asked: usize) -> Self {
        let bar = bar(items_asked, JOB);
        bar.enable_steady_tick(TICK);
        Self {
            bar,
            started: Instant::now(),
            pace: Pace::new(LINE_EVERY),
            items_asked,
            items: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
        }
    }

    pub fn sample_done(&self, tokens: usize) {
        self.samples.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        self.show();
    }

    pub fn item_done(&self) {
        self.items.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(1);
        self.show();
    }

    /// Runs `print`, which prints lines, with the bar hidden.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn show(&self) {
        let tokens = self.tokens.load(Ordering::Relaxed);
        let rate = format!("{:.0} tokens/s", tokens as f64 / self.started.elapsed().as_secs_f64().max(1e-9));
        if !self.bar.is_hidden() {
            self.bar.set_message(rate);
        } else if self.pace.is_due() {
            let (items, samples) = (self.items.load(Ordering::Relaxed), count(self.samples.load(Ordering::Relaxed)));
            out::aside(format_args!("{items}/{} items, {samples} samples, {rate}", self.items_asked));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::*;

    /// A terminal of 60 columns that keeps what is written to it.
    #[derive(Clone, Debug, Default)]
    struct Narrow(Arc<Mutex<String>>);

    impl TermLike for Narrow {
        fn width(&self) -> u16 {
            60
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            let mut written = self.0.lock().expect("no panic");
            written.push_str(text.trim_end());
            written.push('\n');
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bars_fit_sixty_columns() {
        let terminal = Narrow::default();
        let target = || ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let job = bar(1_000_000, JOB);
        job.set_draw_target(target());
        job.set_position(999_999);
        job.set_message("123456 tokens/s");
        job.tick();
        let stage = Stage::new("prompts", 10_000_000);
        stage.bar.set_draw_target(target());
        (0..64).for_each(|_| drop(stage.count_one()));
        stage.bar.tick();
        let written = terminal.0.lock().expect("no panic").clone();
        assert!(written.contains("999999/1000000 items, 123456 tokens/s"), "{written}");
        assert!(written.contains("prompts 64 of 10,000,000"), "{written}");
        assert!(written.lines().all(|line| line.chars().count() <= 60), "{written}");
    }

    #[test]
    fn a_stage_without_a_terminal_is_lines_at_its_pace() {
        let mut stage = Stage::new("prompts", 60_000);
        stage.bar = ProgressBar::hidden();
        assert_eq!(stage.count_one(), None, "ten seconds have not gone by");
        stage.pace = Pace::new(Duration::ZERO);
        assert_eq!(stage.count_one().as_deref(), Some("prompts 2 of 60,000"));
    }
}
