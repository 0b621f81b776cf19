//! The clock of a confined program: real time, less the time in which the machine or the judge kept the program
//! waiting, so that a verdict does not depend on what else runs. The program's supervisor measures that time
//! (`sandbox`) and writes it into a [`ClockFile`]; here the caller, which alone knows when it waits for the program,
//! charges it for those turns.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::most_real;

/// The longest wait between two looks at a clock.
const STEP: Duration = Duration::from_millis(100);
/// The shortest one: a supervisor measures every 5 ms.
const SHORTEST_STEP: Duration = Duration::from_millis(2);
/// The kernel counts some waiting for a core only after it. So much of what exceeds the turns is kept for later ones.
const MOST_SPARE: Duration = Duration::from_millis(50);

/// What a program's clock says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    /// When it was read: the kernel's monotonic clock.
    pub at: Duration,
    /// The time until then that is not charged, from the program's start.
    pub free: Duration,
}

/// The last reading of a program's clock, in a file that its supervisor writes and its caller reads; behind it, whether
/// the caller has ended the program's input.
#[derive(Debug)]
pub struct ClockFile(File);

/// Where the file says that the input has ended: behind the three words of a reading.
const INPUT_ENDED: u64 = 24;

/// Tells a whole reading from one that is being written.
const CHECK: u64 = 0x0ff5_4007_c10c_4a5e;

impl ClockFile {
    pub fn new(file: File) -> ClockFile {
        ClockFile(file)
    }

    pub fn write(&self, reading: ClockReading) -> io::Result<()> {
        let [at, free] = [reading.at, reading.free].map(nanoseconds);
        let words = [at, free, at ^ free ^ CHECK];
        self.0.write_all_at(words.map(u64::to_le_bytes).as_flattened(), 0)
    }

    /// Says that the caller sends no more input. A pipe does not tell the supervisor: the program itself can open it
    /// for writing, so that it never ends.
    pub fn end_input(&self) {
        // If memory is short, the program is not charged while its input is empty.
        let _ = self.0.write_all_at(&[1], INPUT_ENDED);
    }

    pub fn input_has_ended(&self) -> bool {
        self.0.read_at(&mut [0], INPUT_ENDED).is_ok_and(|read| read > 0)
    }

    /// `None` until the program begins.
    pub fn read(&self) -> Option<ClockReading> {
        let mut words = [[0; 8]; 3];
        // A reading that is being written is whole at the next look.
        for _ in 0..3 {
            self.0.read_exact_at(words.as_flattened_mut(), 0).ok()?;
            let [at, free, check] = words.map(u64::from_le_bytes);
            if check == at ^ free ^ CHECK {
                return Some(ClockReading { at: Duration::from_nanos(at), free: Duration::from_nanos(free) });
            }
        }
        None
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Now by the kernel's monotonic clock, which all processes share.
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which outlives the call; every kernel has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of this thread.
pub fn own_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which outlives the call; every kernel has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What the kernel counts of a thread: a line of three numbers in a file `schedstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCounts {
    /// CPU time.
    pub ran: Duration,
    /// Time in which it was ready to run and waited for a core, up to its last start on one.
    pub waited: Duration,
    /// How often it was given a core.
    pub slices: u64,
}

impl ThreadCounts {
    /// `None` if the text is another. All are zero before its first start, and where the kernel does not count.
    pub fn parsed(text: &str) -> Option<ThreadCounts> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (ran, waited, slices) = (next()?, next()?, next()?);
        Some(ThreadCounts { ran: Duration::from_nanos(ran), waited: Duration::from_nanos(waited), slices })
    }

    /// The counts of the thread whose file this is.
    pub fn of(file: &File) -> Option<ThreadCounts> {
        let mut text = [0; 80];
        let read = file.read_at(&mut text, 0).ok()?;
        ThreadCounts::parsed(std::str::from_utf8(&text[..read]).ok()?)
    }
}

/// The counts of the thread that opens it.
pub const OWN_COUNTS: &str = "/proc/thread-self/schedstat";

/// Time in which this thread has waited for a core; zero where the kernel does not say.
fn own_wait() -> Duration {
    thread_local! {
        static OWN: Option<File> = File::open(OWN_COUNTS).ok();
    }
    OWN.with(|file| ThreadCounts::of(file.as_ref()?)).map_or(Duration::ZERO, |counts| counts.waited)
}

/// Charges a program for its turns: the times in which its caller waits for it.
#[derive(Debug)]
struct TurnClock {
    file: Arc<ClockFile>,
    /// The latest reading that has been taken into account.
    last: Option<ClockReading>,
    charged: Duration,
    /// All of its turns.
    real: Duration,
    spare: Duration,
    /// Turns that have ended, as far as they are not before the last reading: begin and end.
    ended: Vec<(Duration, Duration)>,
    /// The turn that has not ended, and this thread's own waiting before it.
    open: Option<(Duration, Duration)>,
}

impl TurnClock {
    fn new(file: Arc<ClockFile>) -> TurnClock {
        let last = file.read();
        let (charged, real, spare) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        TurnClock { file, last, charged, real, spare, ended: Vec::new(), open: None }
    }

    fn open(&mut self, now: Duration, own_wait: Duration) {
        self.open = Some((now, own_wait));
    }

    /// Ends the turn. If the program has `moved`, it was not its turn any more while this thread waited for a core.
    fn close(&mut self, now: Duration, own_wait: Duration, moved: bool) {
        let Some((begin, wait_before)) = self.open.take() else { return };
        let late = if moved { own_wait.saturating_sub(wait_before) } else { Duration::ZERO };
        let end = now.saturating_sub(late);
        if end > begin {
            self.ended.push((begin, end));
        }
    }

    /// Takes a later reading into account. The program cannot be charged for what comes after it.
    fn settle(&mut self, reading: Option<ClockReading>) {
        let Some(reading) = reading else { return };
        let Some(last) = self.last.replace(reading).filter(|last| reading.at > last.at) else {
            self.ended.retain(|&(_, end)| end > reading.at);
            return;
        };
        let open = self.open.map(|(begin, _)| (begin, Duration::MAX));
        let within = |(begin, end): (Duration, Duration)| end.min(reading.at).saturating_sub(begin.max(last.at));
        let turns: Duration = self.ended.iter().copied().chain(open).map(within).sum();
        let free = self.spare + reading.free.saturating_sub(last.free);
        self.real += turns;
        self.charged += turns.saturating_sub(free);
        self.spare = free.saturating_sub(turns).min(MOST_SPARE);
        self.ended.retain(|&(_, end)| end > reading.at);
    }

    /// The end of an allowance of `limit` from now on. All that earlier turns can be charged for when the next reading
    /// comes is theirs.
    fn allow(&self, limit: Duration) -> Allowance {
        let since = self.last.map_or(Duration::ZERO, |last| last.at);
        let before: Duration = self.ended.iter().map(|&(begin, end)| end.saturating_sub(begin.max(since))).sum();
        Allowance {
            charged: (self.charged + before).saturating_add(limit),
            real: (self.real + before).saturating_add(most_real(limit)),
        }
    }

    /// What is left of an allowance; zero if it is used up.
    fn left(&self, of: Allowance) -> Duration {
        of.charged.saturating_sub(self.charged).min(of.real.saturating_sub(self.real))
    }
}

/// When the real time of a candidate ends. All waits for the candidate together have this time.
#[derive(Clone, Copy, Debug)]
pub struct RealTimeEnd {
    at: Duration,
    time: Duration,
}

impl RealTimeEnd {
    /// `time` from now.
    pub fn after(time: Duration) -> RealTimeEnd {
        RealTimeEnd::of(now(), time)
    }

    fn of(begin: Duration, time: Duration) -> RealTimeEnd {
        RealTimeEnd { at: begin.saturating_add(time), time }
    }

    /// Zero if it is over.
    pub fn left(self) -> Duration {
        self.left_at(now())
    }

    fn left_at(self, now: Duration) -> Duration {
        self.at.saturating_sub(now)
    }

    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// Why a candidate is ended once it is over.
    pub fn passed(self) -> String {
        format!("its tests are not done after {} s of real time, whatever its clock says", self.time.as_secs_f64())
    }
}

/// How far a program's turns may go.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    /// By its clock.
    charged: Duration,
    /// In real time.
    real: Duration,
}

/// How long a process is waited for.
pub trait Patience {
    /// Begins a wait. How long to wait before asking again, more than zero; `None` if the time is over.
    fn begin(&mut self) -> Option<Duration>;
    /// Ends the wait, in which the process has or has not `moved`: sent or taken something.
    fn end(&mut self, moved: bool);
}

/// A limit on a program's turns, by its own clock.
#[derive(Debug)]
pub struct Deadline {
    clock: TurnClock,
    whole: Allowance,
    part: Option<Allowance>,
    until: Option<RealTimeEnd>,
}

impl Deadline {
    /// All turns of the program together may take `limit`.
    pub fn new(file: Arc<ClockFile>, limit: Duration) -> Deadline {
        let clock = TurnClock::new(file);
        Deadline { whole: clock.allow(limit), clock, part: None, until: None }
    }

    /// This deadline, or `end` if `end` comes first.
    pub fn until(self, end: RealTimeEnd) -> Deadline {
        Deadline { until: Some(end), ..self }
    }

    /// The turns from now on may take `limit`.
    pub fn begin_whole(&mut self, limit: Duration) {
        self.whole = self.clock.allow(limit);
    }

    /// The turns from now on may take `limit`, until the next part or [`Deadline::end_part`].
    pub fn begin_part(&mut self, limit: Duration) {
        self.part = Some(self.clock.allow(limit));
    }

    pub fn end_part(&mut self) {
        self.part = None;
    }

    fn left(&self) -> Option<Duration> {
        self.left_at(now())
    }

    fn left_at(&self, now: Duration) -> Option<Duration> {
        let whole = self.clock.left(self.whole);
        let left = self.part.map_or(whole, |part| whole.min(self.clock.left(part)));
        let left = self.until.map_or(left, |end| left.min(end.left_at(now)));
        (!left.is_zero()).then(|| left.clamp(SHORTEST_STEP, STEP))
    }
}

impl Patience for Deadline {
    fn begin(&mut self) -> Option<Duration> {
        self.clock.settle(self.clock.file.read());
        let left = self.left()?;
        self.clock.open(now(), own_wait());
        Some(left)
    }

    fn end(&mut self, moved: bool) {
        self.clock.close(now(), own_wait(), moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Arc<ClockFile> {
        Arc::new(ClockFile::new(tempfile::tempfile().expect("a temporary file")))
    }

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn reading(at: u64, free: u64) -> Option<ClockReading> {
        Some(ClockReading { at: ms(at), free: ms(free) })
    }

    fn clock() -> TurnClock {
        let mut clock = TurnClock::new(file());
        clock.settle(reading(1000, 0));
        clock
    }

    #[test]
    fn a_reading_is_read_as_it_was_written() {
        let file = file();
        assert_eq!(file.read(), None, "the program has not begun");
        let written = ClockReading { at: Duration::new(7, 1), free: ms(3) };
        file.write(written).unwrap();
        assert_eq!(file.read(), Some(written));
        file.0.write_all_at(&[9], 0).unwrap();
        assert_eq!(file.read(), None, "half of another");
        assert!(!file.input_has_ended());
        file.end_input();
        file.write(written).unwrap();
        assert_eq!((file.read(), file.input_has_ended()), (Some(written), true));
    }

    #[test]
    fn waiting_for_a_core_is_not_charged_and_sleeping_is() {
        let mut sleeper = clock();
        sleeper.open(ms(1000), ms(0));
        sleeper.settle(reading(4000, 0));
        assert_eq!(sleeper.charged, ms(3000));
        let mut waiting = clock();
        waiting.open(ms(1000), ms(0));
        waiting.settle(reading(4000, 2500));
        assert_eq!(waiting.charged, ms(500));
    }

    #[test]
    fn nothing_is_charged_before_a_reading_says_whether_it_is_free() {
        let mut clock = clock();
        clock.open(ms(1000), ms(0));
        clock.close(ms(1900), ms(0), true);
        assert_eq!((clock.charged, clock.allow(ms(7)).charged), (ms(0), ms(907)));
        clock.settle(reading(2000, 850));
        assert_eq!((clock.charged, clock.allow(ms(7)).charged), (ms(50), ms(57)));
    }

    #[test]
    fn only_turns_are_charged() {
        let mut clock = clock();
        for begin in [1010, 1200, 1900] {
            clock.open(ms(begin), ms(0));
            clock.close(ms(begin + 30), ms(0), true);
        }
        clock.settle(reading(1910, 0));
        assert_eq!(clock.charged, ms(70), "the third turn only up to the reading");
        clock.settle(reading(2000, 0));
        assert_eq!(clock.charged, ms(90));
        assert!(clock.ended.is_empty());
    }

    #[test]
    fn a_turn_ends_with_the_answer_even_if_its_reader_waits_for_a_core() {
        let mut clock = clock();
        clock.open(ms(1000), ms(70));
        clock.close(ms(1500), ms(470), true);
        clock.open(ms(2000), ms(500));
        clock.close(ms(2100), ms(590), false);
        clock.settle(reading(3000, 0));
        assert_eq!(clock.charged, ms(100 + 100), "a reader that waited in vain was not late");
    }

    #[test]
    fn waiting_that_the_kernel_counts_late_is_made_good_within_bounds() {
        let mut clock = clock();
        clock.open(ms(1000), ms(0));
        clock.close(ms(1020), ms(0), true);
        clock.settle(reading(1020, 0));
        clock.settle(reading(1040, 20));
        clock.open(ms(1040), ms(0));
        clock.settle(reading(1100, 20));
        assert_eq!(clock.charged, ms(20 + 40));
        let mut idle = super::tests::clock();
        idle.settle(reading(9000, 8000));
        idle.open(ms(9000), ms(0));
        idle.settle(reading(10_000, 8000));
        assert_eq!(idle.charged, ms(1000) - MOST_SPARE, "what waited between its turns");
    }

    #[test]
    fn a_deadline_passes_once_its_time_is_over() {
        let file = file();
        let mut deadline = Deadline::new(file.clone(), ms(3000));
        assert_eq!(deadline.left(), Some(STEP));
        deadline.begin_part(ms(20));
        assert_eq!(deadline.left(), Some(ms(20)));
        deadline.clock.charged = ms(20);
        assert_eq!(deadline.left(), None);
        deadline.end_part();
        assert_eq!(deadline.left(), Some(STEP));
        deadline.clock.charged = ms(3000);
        assert_eq!(deadline.left(), None);
        deadline.begin_whole(ms(1));
        assert_eq!(deadline.left(), Some(SHORTEST_STEP));
    }

    #[test]
    fn real_time_passes_a_deadline_too_whatever_is_free() {
        let mut deadline = Deadline { clock: clock(), ..Deadline::new(file(), ms(10)) };
        deadline.clock.open(ms(1000), ms(0));
        deadline.clock.settle(reading(1500, 500));
        assert_eq!((deadline.clock.charged, deadline.left()), (ms(0), Some(ms(10))));
        deadline.clock.settle(reading(1600, 600));
        assert_eq!((deadline.clock.charged, deadline.left()), (ms(0), None));
        deadline.begin_whole(Duration::MAX);
        assert!(deadline.left().is_some());
    }

    #[test]
    fn the_end_of_a_candidates_real_time_passes_every_deadline() {
        let end = RealTimeEnd::of(ms(1000), ms(600_000));
        let mut deadline = Deadline { clock: clock(), ..Deadline::new(file(), ms(3000)).until(end) };
        assert_eq!(deadline.left_at(ms(600_950)), Some(ms(50)));
        for part in 0..3 {
            deadline.begin_whole(Duration::MAX);
            deadline.begin_part(ms(3000));
            assert_eq!(deadline.left_at(ms(601_000)), None, "part {part} has its own time, all of them one end");
        }
        assert_eq!(end.passed(), "its tests are not done after 600 s of real time, whatever its clock says");
        assert_eq!(RealTimeEnd::of(ms(1000), Duration::MAX).left_at(ms(0)), Duration::MAX);
    }

    #[test]
    fn a_program_that_has_not_begun_is_waited_for() {
        let mut deadline = Deadline::new(file(), ms(1));
        for _ in 0..3 {
            assert!(deadline.begin().is_some());
            std::thread::sleep(ms(2));
            deadline.end(false);
        }
    }

    #[test]
    fn counts_are_three_numbers() {
        let counts = ThreadCounts { ran: Duration::from_nanos(5), waited: Duration::from_nanos(72_800), slices: 1 };
        assert_eq!(ThreadCounts::parsed("5 72800 1\n"), Some(counts));
        assert_eq!(ThreadCounts::parsed("0 0 0\n"), Some(ThreadCounts::default()));
        assert_eq!(ThreadCounts::parsed("5 7"), None);
    }
}
