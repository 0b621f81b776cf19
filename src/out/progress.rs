//! Shows progress: a bar on a terminal, otherwise a line every ten seconds. Shared by the threads that process items.

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

pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    last_line: Mutex<Instant>,
    items_asked: usize,
    items: AtomicU64,
    samples: AtomicU64,
    tokens: AtomicU64,
}

impl Progress {
    pub fn new(items_asked: usize) -> Self {
        let bar = ProgressBar::new(items_asked as u64);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} items, {msg}, {elapsed} gone, {eta} left");
        bar.set_style(style.expect("the template names known keys"));
        bar.enable_steady_tick(TICK);
        Self {
            bar,
            started: Instant::now(),
            last_line: Mutex::new(Instant::now()),
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
        let message = format!(
            "{} samples, {:.0} tokens/s",
            count(self.samples.load(Ordering::Relaxed)),
            tokens as f64 / self.started.elapsed().as_secs_f64().max(1e-9)
        );
        if !self.bar.is_hidden() {
            self.bar.set_message(message);
            return;
        }
        let mut last = self.last_line.lock().expect("nothing panics while it holds this lock");
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            let items = self.items.load(Ordering::Relaxed);
            out::aside(format_args!("{items}/{} items, {message}", self.items_asked));
        }
    }
}
