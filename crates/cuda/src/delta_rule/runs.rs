//! The runs of a step as the kernels read them (kernels/delta_rule/run.cuh), in waves: the runs of a wave touch no
//! state that another of them writes, so that they are computed at once, and a wave is computed behind the one before
//! it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use offshoot_core::ids::StateId;
use offshoot_kv::StateRun;

/// Words of a run, and of a segment of one.
pub const RUN_WORDS: usize = 8;

/// Rows of a segment, which a block of `causal_conv` takes: a chunk of the chunked delta rule.
pub const SEGMENT_ROWS: u32 = 64;

/// Rows from which a run is long: its chunks are computed as matrices, where there are kernels for that.
pub const LONG_ROWS: usize = 32;

/// No state, as in kernels/delta_rule/run.cuh.
const NO_STATE: u32 = u32::MAX;

/// The words of a step's runs, and which of them each launch takes.
#[derive(Debug, Default)]
pub struct RunPlan {
    words: Vec<u32>,
    waves: Vec<Wave>,
    repeats: bool,
}

/// The runs of a wave and their segments, both by number; the first ones are of long runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    pub runs: Range<usize>,
    pub segments: Range<usize>,
    /// Runs of at least [`LONG_ROWS`], and their segments.
    pub long: usize,
    pub long_segments: usize,
}

impl RunPlan {
    /// The plan of `runs` in a step of `rows` rows. Padded rows have runs too, which begin with no state and keep none:
    /// what is computed from them is as finite as other rows.
    pub fn new(runs: &[StateRun], rows: usize) -> Self {
        if runs.is_empty() {
            return Self { repeats: true, ..Self::default() };
        }
        let own: usize = runs.iter().map(|run| run.rows.len()).sum();
        let rows = u32::try_from(rows).expect("a step has fewer than 2^32 rows");
        let padded = (own as u32..rows).map(|row| StateRun { rows: row..row + 1, from: None, is_in: false, to: None });
        let mut all: Vec<(usize, StateRun)> = waves_of(runs).into_iter().zip(runs.iter().cloned()).collect();
        all.extend(padded.map(|run| (0, run)));
        // The longest first: a wave ends with short ones.
        all.sort_by_key(|(wave, run)| (*wave, Reverse(run.rows.len())));
        let repeats = all.iter().all(|(wave, run)| *wave == 0 && run.rows.len() == 1);

        let mut plan = Self { repeats, ..Self::default() };
        // A run of one row is its own segment.
        let mut segments = if repeats { 0 } else { all.len() };
        let mut words_of_segments = Vec::new();
        for wave in all.chunk_by(|a, b| a.0 == b.0) {
            let (begin, first, mut long_segments) = (segments, plan.words.len() / RUN_WORDS, 0);
            for (_, run) in wave {
                let rows = run.rows.end - run.rows.start;
                let number = segments - begin;
                plan.words.extend(words_of(run, 0..rows, number));
                for place in (0..rows).step_by(SEGMENT_ROWS as usize) {
                    words_of_segments.extend(words_of(run, place..rows.min(place + SEGMENT_ROWS), number));
                    segments += 1;
                }
                if run.rows.len() >= LONG_ROWS {
                    long_segments = segments - begin;
                }
            }
            let long = wave.iter().filter(|(_, run)| run.rows.len() >= LONG_ROWS).count();
            let runs = first..first + wave.len();
            plan.waves.push(Wave { runs, segments: begin..segments, long, long_segments });
        }
        if !repeats {
            plan.words.extend(words_of_segments);
        }
        plan
    }

    /// The most bytes of the words of a step of so many rows: each row a run, or a segment of one.
    pub fn most_bytes(rows: usize) -> usize {
        rows.saturating_mul(2 * RUN_WORDS * size_of::<u32>())
    }

    /// `[runs, then segments][RUN_WORDS]`
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    pub fn waves(&self) -> &[Wave] {
        &self.waves
    }

    /// Whether the launches depend on the step's padded rows alone: each row is a run of its own, and there is one
    /// wave; or there are no runs at all.
    pub fn repeats(&self) -> bool {
        self.repeats
    }
}

/// A run as its segment of the rows at `places`. `first`: the number of its first segment in its wave.
fn words_of(run: &StateRun, places: Range<u32>, first: usize) -> [u32; RUN_WORDS] {
    let slot = |slot: Option<StateId>| slot.map_or(NO_STATE, |slot| slot.0);
    let rows = run.rows.end - run.rows.start;
    let (from, to) = (slot(run.from), slot(run.to));
    let (place, part) = (places.start, places.end - places.start);
    [run.rows.start, rows, from, to, u32::from(run.is_in), place, part, first as u32]
}

/// The wave of each run: the first behind those of all runs before it that write what it reads or writes, or read what
/// it writes.
fn waves_of(runs: &[StateRun]) -> Vec<usize> {
    let mut behind_writer: HashMap<StateId, usize> = HashMap::new();
    let mut behind_readers: HashMap<StateId, usize> = HashMap::new();
    let after = |waves: &HashMap<StateId, usize>, slot: Option<StateId>| {
        slot.and_then(|slot| waves.get(&slot)).copied().unwrap_or(0)
    };
    let place = |run: &StateRun| {
        let read = after(&behind_writer, run.from);
        let written = after(&behind_writer, run.to).max(after(&behind_readers, run.to));
        let wave = read.max(written);
        if let Some(from) = run.from {
            let readers = behind_readers.entry(from).or_default();
            *readers = (*readers).max(wave + 1);
        }
        if let Some(to) = run.to {
            behind_writer.insert(to, wave + 1);
        }
        wave
    };
    runs.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rows: Range<u32>, from: Option<u32>, to: Option<u32>) -> StateRun {
        StateRun { rows, from: from.map(StateId), is_in: false, to: to.map(StateId) }
    }

    #[test]
    fn a_run_is_behind_those_whose_states_it_touches() {
        let runs = [
            run(0..4, None, Some(0)),
            // Reads what the first has written, as the next does.
            run(4..5, Some(0), Some(1)),
            run(5..6, Some(0), None),
            // Writes what both have read.
            run(6..7, Some(2), Some(0)),
            run(7..8, Some(0), Some(0)),
            // Of its own.
            run(8..9, Some(3), Some(3)),
        ];
        assert_eq!(waves_of(&runs), [0, 1, 1, 2, 3, 0]);
    }

    #[test]
    fn runs_are_sorted_by_wave_and_cut_into_segments() {
        let runs = [run(0..1, Some(5), Some(5)), run(1..71, Some(2), Some(2)), run(71..72, Some(2), Some(3))];
        let plan = RunPlan::new(&runs, 73);
        assert!(!plan.repeats());
        let first = Wave { runs: 0..3, segments: 4..8, long: 1, long_segments: 2 };
        assert_eq!(plan.waves(), [first, Wave { runs: 3..4, segments: 8..9, long: 0, long_segments: 0 }]);
        let all: Vec<&[u32]> = plan.words().chunks_exact(RUN_WORDS).collect();
        let none = NO_STATE;
        assert_eq!(
            all[..4],
            [
                [1, 70, 2, 2, 0, 0, 70, 0],
                [0, 1, 5, 5, 0, 0, 1, 2],
                [72, 1, none, none, 0, 0, 1, 3],
                [71, 1, 2, 3, 0, 0, 1, 0],
            ]
        );
        let places: Vec<[u32; 4]> = all[4..].iter().map(|words| [words[0], words[5], words[6], words[7]]).collect();
        assert_eq!(places, [[1, 0, 64, 0], [1, 64, 6, 0], [0, 0, 1, 2], [72, 0, 1, 3], [71, 0, 1, 0]]);
    }

    #[test]
    fn the_launches_of_steps_of_single_rows_depend_on_their_number_alone() {
        let runs = [run(0..1, Some(1), Some(1)), run(1..2, Some(0), Some(2)), run(2..3, Some(0), Some(3))];
        let plan = RunPlan::new(&runs, 8);
        assert!(plan.repeats());
        assert_eq!(plan.waves(), [Wave { runs: 0..8, segments: 0..8, long: 0, long_segments: 0 }]);
        assert_eq!(plan.words().len(), 8 * RUN_WORDS);
        let none = RunPlan::new(&[], 8);
        assert!(none.repeats() && none.waves().is_empty() && none.words().is_empty());
    }
}
