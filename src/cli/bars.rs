//! Progress bars on a terminal, which fit 60 columns. What they count is `offshoot_core::out`'s.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use offshoot_core::out::{Bar, BarKind, draw_bars};

/// Time between updates of a job's clock.
const TICK: Duration = Duration::from_millis(500);

struct TerminalBar(ProgressBar);

impl TerminalBar {
    fn new(kind: BarKind, length: u64) -> Self {
        let template = match kind {
            BarKind::Stage => "{bar:16} {msg}",
            BarKind::Job => "{bar:8} {pos}/{len} items, {msg}, {eta} left",
        };
        let style = ProgressStyle::with_template(template).expect("the template names known keys");
        Self(ProgressBar::new(length).with_style(style))
    }
}

impl Bar for TerminalBar {
    fn set_done(&self, done: u64) {
        self.0.set_position(done);
    }

    fn set_text(&self, text: String) {
        self.0.set_message(text);
    }

    fn suspend(&self, print: &mut dyn FnMut()) {
        self.0.suspend(print);
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// Has this process draw a bar for each stage and job, if standard error is a terminal.
pub fn show_bars() {
    draw_bars(|kind, length| {
        let bar = TerminalBar::new(kind, length);
        if bar.0.is_hidden() {
            return None;
        }
        if kind == BarKind::Job {
            bar.0.enable_steady_tick(TICK);
        }
        Some(Box::new(bar))
    });
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

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
        for (kind, done, text) in [
            (BarKind::Job, 999_999, "123456 tokens/s"),
            (BarKind::Stage, 64, "prompts in tokens 9,999,999 of 10,000,000"),
        ] {
            let bar = TerminalBar::new(kind, 1_000_000);
            bar.0.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
            bar.set_done(done);
            bar.set_text(text.to_string());
            bar.0.tick();
        }
        let written = terminal.0.lock().expect("no panic").clone();
        assert!(written.contains("999999/1000000 items, 123456 tokens/s"), "{written}");
        assert!(written.contains("prompts in tokens 9,999,999 of 10,000,000"), "{written}");
        assert!(written.lines().all(|line| line.chars().count() <= 60), "{written}");
    }
}
