//! Tables of cosines and sines for each kind of rope, computed in f64 by the formulas of transformers'
//! `modeling_rope_utils.py` and stored in f32. `config::rope` reads config.json; the backend rotates heads.

use std::f64::consts::TAU;

use offshoot_backend::{MOST_ROPES, RopePairs, RopeTable};

use super::config::{AttentionSpec, QueryGrowth, RopeConfig, RopeScaling};

/// What heads are rotated by.
#[derive(Clone, Debug, PartialEq)]
pub enum Turning {
    /// Queries and keys.
    Rope(RopeConfig),
    /// Queries alone, of this width: not turned, but multiplied.
    Growth(QueryGrowth, usize),
}

impl Turning {
    /// The turnings of a layer, in the order in which they are applied.
    pub fn of(attention: &AttentionSpec) -> [Option<Self>; MOST_ROPES] {
        let width = attention.query_width() / attention.heads.q_heads;
        let growth = attention.growth.map(|growth| Self::Growth(growth, width));
        [attention.rope.clone().map(Self::Rope), growth]
    }
}

/// A table that grows with the positions in use: for a context of a million tokens the full table would take half a
/// gigabyte.
pub struct Rotary {
    /// Radians per position, for each pair of elements.
    frequencies: Vec<f64>,
    magnitude: Magnitude,
    positions: usize,
    table: RopeTable,
}

/// What cosines and sines are multiplied by.
enum Magnitude {
    Constant(f64),
    Growth(QueryGrowth),
}

impl Magnitude {
    fn at(&self, position: usize) -> f64 {
        match *self {
            Magnitude::Constant(factor) => factor,
            Magnitude::Growth(QueryGrowth { beta, original_context, offset }) => {
                1.0 + beta * (1.0 + ((position + offset) / original_context) as f64).ln()
            }
        }
    }
}

impl Rotary {
    /// For sequences of at most `longest` tokens.
    pub fn new(turning: &Turning, longest: usize) -> Self {
        let (frequencies, magnitude) = match turning {
            Turning::Rope(config) => (frequencies(config, longest), Magnitude::Constant(attention_factor(config))),
            Turning::Growth(growth, width) => (vec![0.0; width / 2], Magnitude::Growth(*growth)),
        };
        let (keys, pairs) = match turning {
            Turning::Rope(config) => (true, config.pairs),
            // Both elements of a pair are multiplied alike.
            Turning::Growth(..) => (false, RopePairs::Halves),
        };
        let table = RopeTable { rotary: 2 * frequencies.len(), pairs, keys, cos: Vec::new(), sin: Vec::new() };
        Self { frequencies, magnitude, positions: 0, table }
    }

    pub fn table(&self) -> &RopeTable {
        &self.table
    }

    /// Extends the table to at least `positions` positions, by doubling. Returns whether it grew.
    pub fn cover(&mut self, positions: usize) -> bool {
        const SMALLEST: usize = 1024;
        if positions <= self.positions {
            return false;
        }
        let target = positions.next_power_of_two().max(SMALLEST);
        for position in self.positions..target {
            let magnitude = self.magnitude.at(position);
            for frequency in &self.frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                self.table.cos.push((cos * magnitude) as f32);
                self.table.sin.push((sin * magnitude) as f32);
            }
        }
        self.positions = target;
        true
    }
}

fn attention_factor(config: &RopeConfig) -> f64 {
    match config.scaling {
        RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor, .. } => attention_factor,
        _ => 1.0,
    }
}

/// Radians per position, for each pair of elements.
fn frequencies(config: &RopeConfig, longest: usize) -> Vec<f64> {
    let pairs = config.rotary / 2;
    let plain = (0..pairs).map(|i| config.theta.powf(-(2.0 * i as f64) / config.rotary as f64));
    match config.scaling {
        RopeScaling::Long { ref short, ref long, original_context, .. } => {
            let factors = if longest > original_context { long } else { short };
            plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect()
        }
        // Pairs that are not rotated turn by nothing.
        RopeScaling::Proportional { factor, head_dim } => (0..head_dim / 2)
            .map(|i| match i < pairs {
                true => config.theta.powf(-(2.0 * i as f64) / head_dim as f64) / factor,
                false => 0.0,
            })
            .collect(),
        RopeScaling::Factors(ref factors) => plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect(),
        RopeScaling::Plain => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => plain
            .map(|frequency| {
                // By rotations within the original context: fast pairs are kept, slow ones stretched, others
                // interpolated.
                let turns = original_context as f64 * frequency / TAU;
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            })
            .collect(),
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
            let (low, high) = yarn_ramp(config, original_context, beta_fast, beta_slow, truncate);
            plain
                .enumerate()
                .map(|(i, frequency)| {
                    let stretched = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    frequency * (1.0 - stretched + stretched / factor)
                })
                .collect()
        }
    }
}

/// The pairs between which yarn interpolates from plain to stretched frequencies: those that make `beta_fast` and
/// `beta_slow` rotations within the original context.
fn yarn_ramp(
    config: &RopeConfig,
    original_context: usize,
    beta_fast: f64,
    beta_slow: f64,
    truncate: bool,
) -> (f64, f64) {
    let rotary = config.rotary as f64;
    let pair_of = |turns: f64| rotary * (original_context as f64 / (turns * TAU)).ln() / (2.0 * config.theta.ln());
    let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(rotary - 1.0));
    // As in transformers, to avoid a division by zero.
    if low == high { (low, high + 0.001) } else { (low, high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 10_000.0, rotary: 16, pairs: RopePairs::Halves, scaling, score_factor: 1.0 }
    }

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            // The expected values carry nine digits.
            assert!((found - expected).abs() <= 1e-8 * expected.abs(), "{found} is not {expected}");
        }
    }

    #[test]
    fn plain_frequencies_fall_geometrically() {
        let found = frequencies(&config(RopeScaling::Plain), 64);
        close(&found, &[1.0, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766]);
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let plain = frequencies(&config(RopeScaling::Plain), 64);
        let expected: Vec<f64> = plain.iter().map(|f| f / 4.0).collect();
        close(&frequencies(&config(RopeScaling::Linear { factor: 4.0 }), 64), &expected);
    }

    // Expected values of the next two: the formulas of transformers' `_compute_llama3_parameters` and
    // `_compute_yarn_parameters`, evaluated in f64 outside this crate.
    #[test]
    fn llama3_keeps_fast_pairs_and_stretches_slow_ones() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 64 };
        let expected =
            [1.0, 0.2443845994, 0.01304225604, 0.003952847075, 0.00125, 0.0003952847075, 0.000125, 3.952847075e-05];
        close(&frequencies(&config(scaling), 64), &expected);
    }

    #[test]
    fn yarn_goes_over_between_the_two_turn_counts() {
        let yarn = |truncate| RopeScaling::Yarn {
            factor: 4.0,
            original_context: 2048,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate,
            attention_factor: 1.0,
        };
        let ends = ([1.0, 0.316227766, 0.1], [0.00025, 7.90569415e-05]);
        let whole_pairs = [0.02569350599, 0.00625, 0.001383496476];
        let exact = [0.02387019232, 0.005056971521, 0.0008112903817];
        for (truncate, middle) in [(true, whole_pairs), (false, exact)] {
            let expected: Vec<f64> = ends.0.into_iter().chain(middle).chain(ends.1).collect();
            close(&frequencies(&config(yarn(truncate)), 64), &expected);
        }
    }

    #[test]
    fn longrope_stretches_by_the_length_of_the_run() {
        let (short, long) = (vec![1.0; 8], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let scaling = RopeScaling::Long { short, long, original_context: 64, attention_factor: 1.0 };
        let plain = frequencies(&config(RopeScaling::Plain), 64);
        close(&frequencies(&config(scaling.clone()), 64), &plain);
        let expected: Vec<f64> = plain.iter().zip(1..).map(|(f, i)| f / f64::from(i)).collect();
        close(&frequencies(&config(scaling), 65), &expected);
    }

    #[test]
    fn proportional_rope_leaves_the_slow_pairs_of_the_head_alone() {
        let scaling = RopeScaling::Proportional { factor: 2.0, head_dim: 16 };
        let config = RopeConfig { theta: 10_000.0, rotary: 4, pairs: RopePairs::Halves, scaling, score_factor: 1.0 };
        close(&frequencies(&config, 64), &[0.5, 0.158113883, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(Rotary::new(&Turning::Rope(config), 64).table().rotary, 16);
    }

    #[test]
    fn growth_multiplies_queries_by_their_position() {
        let growth = QueryGrowth { beta: 0.5, original_context: 16, offset: 0 };
        let mut rotary = Rotary::new(&Turning::Growth(growth, 8), 64);
        rotary.cover(64);
        let table = rotary.table();
        assert!(!table.keys && table.rotary == 8 && table.sin.iter().all(|&sin| sin == 0.0));
        let at = |position: usize| table.cos[position * 4];
        assert_eq!((at(0), at(15)), (1.0, 1.0));
        assert_eq!((at(16), at(63)), ((1.0 + 0.5 * 2f64.ln()) as f32, (1.0 + 0.5 * 4f64.ln()) as f32));
    }

    #[test]
    fn table_holds_scaled_cosines_of_every_position_it_covers() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: 1.5,
        };
        let mut rotary = Rotary::new(&Turning::Rope(config(scaling)), 4096);
        rotary.cover(10);
        let before = rotary.table().cos.clone();
        rotary.cover(3000);
        assert_eq!(rotary.table().cos[..before.len()], before[..]);
        assert!(rotary.table().cos.len() >= 3000 * 8);
        assert_eq!(rotary.table().cos[0], 1.5);
        let expected = (1.5 * (2999.0 * rotary.frequencies[3]).sin()) as f32;
        assert_eq!(rotary.table().sin[2999 * 8 + 3], expected);
    }
}
