//! Shows progress on standard error. [`Stage`] counts the steps of a preparation, [`Progress`] the items, samples and
//! tokens of a job; threads share them. Bars are drawn by the program ([`draw_bars`]); where none is drawn, a line is
//! printed every ten seconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::figures::count;
use crate::out;

/// Time between lines if there is no bar.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// The steps of a preparation, shown by the bar's text.
    Stage,
    /// The items of a job, which takes long: shown with the time that is left.
    Job,
}

/// A bar on a terminal.
pub trait Bar: Send + Sync {
    /// Shows that so many are done.
    fn set_done(&self, done: u64);
    /// Replaces the text beside the bar.
    fn set_text(&self, text: String);
    /// Runs `print`, which prints lines, with the bar hidden.
    fn suspend(&self, print: &mut dyn FnMut());
    /// Removes the bar.
    fn clear(&self);
}

/// Draws an empty bar of this length; `None` if standard error is no terminal.
pub type DrawBar = fn(BarKind, u64) -> Option<Box<dyn Bar>>;

static DRAW: OnceLock<DrawBar> = OnceLock::new();

/// Has this process draw bars from now on; the first call decides.
pub fn draw_bars(draw: DrawBar) {
    let _ = DRAW.set(draw);
}

fn bar(kind: BarKind, length: usize) -> Option<Box<dyn Bar>> {
    DRAW.get().and_then(|draw| draw(kind, length as u64))
}

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

/// A step of a preparation that takes a while: `prompts 12,000 of 60,000`. Its bar goes when it is dropped.
pub struct Stage {
    bar: Option<Box<dyn Bar>>,
    /// What is counted, in the plural.
    what: &'static str,
    of: usize,
    done: AtomicU64,
    pace: Pace,
}

impl Stage {
    pub fn new(what: &'static str, of: usize) -> Self {
        Self { bar: bar(BarKind::Stage, of), what, of, done: AtomicU64::new(0), pace: Pace::new(LINE_EVERY) }
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
        let Some(bar) = &self.bar else { return self.pace.is_due().then(line) };
        bar.set_done(done);
        // The bar itself limits how often it is drawn, but a text for each of many steps takes time.
        if done.is_multiple_of(64) || done == self.of as u64 {
            bar.set_text(line());
        }
        None
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.bar.iter().for_each(|bar| bar.clear());
    }
}

pub struct Progress {
    bar: Option<Box<dyn Bar>>,
    started: Instant,
    pace: Pace,
    items_asked: usize,
    items: AtomicU64,
    samples: AtomicU64,
    tokens: AtomicU64,
}

impl Progress {
    pub fn new(items_asked: usize) -> Self {
        Self {
            bar: bar(BarKind::Job, items_asked),
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
        let done = self.items.fetch_add(1, Ordering::Relaxed) + 1;
        self.bar.iter().for_each(|bar| bar.set_done(done));
        self.show();
    }

    /// Runs `print`, which prints lines, with the bar hidden.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        let Some(bar) = &self.bar else { return print() };
        let (mut print, mut printed) = (Some(print), None);
        bar.suspend(&mut || printed = print.take().map(|print| print()));
        printed.expect("a bar runs what prints, once")
    }

    pub fn finish(&self) {
        self.bar.iter().for_each(|bar| bar.clear());
    }

    fn show(&self) {
        let tokens = self.tokens.load(Ordering::Relaxed);
        let rate = format!("{:.0} tokens/s", tokens as f64 / self.started.elapsed().as_secs_f64().max(1e-9));
        if let Some(bar) = &self.bar {
            bar.set_text(rate);
        } else if self.pace.is_due() {
            let (items, samples) = (self.items.load(Ordering::Relaxed), count(self.samples.load(Ordering::Relaxed)));
            out::aside(format_args!("{items}/{} items, {samples} samples, {rate}", self.items_asked));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_stage_without_a_bar_is_lines_at_its_pace() {
        let mut stage = Stage::new("prompts", 60_000);
        assert_eq!(stage.count_one(), None, "ten seconds have not gone by");
        stage.pace = Pace::new(Duration::ZERO);
        assert_eq!(stage.count_one().as_deref(), Some("prompts 2 of 60,000"));
    }

    /// A bar that keeps what it is told.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<String>>>);

    impl Told {
        fn tell(&self, what: String) {
            self.0.lock().expect("no panic").push(what);
        }
    }

    impl Bar for Told {
        fn set_done(&self, done: u64) {
            self.tell(format!("{done} done"));
        }
        fn set_text(&self, text: String) {
            self.tell(text);
        }
        fn suspend(&self, print: &mut dyn FnMut()) {
            self.tell("suspended".into());
            print();
        }
        fn clear(&self) {
            self.tell("cleared".into());
        }
    }

    #[test]
    fn a_bar_is_told_what_is_done() {
        let told = Told::default();
        let mut stage = Stage::new("prompts", 2);
        stage.bar = Some(Box::new(told.clone()));
        assert_eq!((stage.count_one(), stage.count_one()), (None, None), "it prints no lines");
        drop(stage);
        let mut progress = Progress::new(3);
        progress.bar = Some(Box::new(told.clone()));
        progress.item_done();
        assert_eq!(progress.aside(|| 7), 7);
        progress.finish();
        let told = told.0.lock().expect("no panic").clone();
        let expected =
            ["1 done", "2 done", "prompts 2 of 2", "cleared", "1 done", "0 tokens/s", "suspended", "cleared"];
        assert_eq!(told, expected);
    }
}
