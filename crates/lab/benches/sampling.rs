//! `cargo bench -p offshoot-lab --bench sampling`: tokens that one thread samples a second from 151,936 logits on the
//! CPU, flat, from noise and peaked, without filters and with each; beside the rate without filters, and what records
//! leave of the rate.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use offshoot_backend::{Filters, Pick, Records, SampleRequest};
use offshoot_core::dice::Dice;
use offshoot_cpu::sampling::{self, SampleScratch};
use offshoot_cpu::{Cores, CpuBuffer, Isa, Team};

/// Qwen2's vocabulary.
const VOCABULARY: usize = 151_936;
const LEAST: Duration = Duration::from_secs(1);

fn main() {
    let isa = *Isa::available().last().expect("one path needs nothing of the processor");
    println!("{isa}, 1 thread; with records: rate over that without");
    let [drawn, ids, entropy, confidence] = ["drawn", "kept ids", "entropy", "confidence"];
    println!(
        "{:>8} {:>12} {:>10} {:>12} {drawn:>8} {ids:>8} {entropy:>8} {confidence:>10}",
        "logits", "filters", "tokens/s", "of no filter"
    );
    let mut dice = Dice::new(1);
    let noise: Vec<f32> = (0..VOCABULARY).map(|_| dice.uniform() as f32).collect();
    let kinds: [(&str, Vec<f32>); 3] = [
        ("flat", vec![0.25; VOCABULARY]),
        ("noise", noise.iter().map(|x| 2.0 * x).collect()),
        ("peaked", noise.iter().map(|x| 25.0 * x.powi(8)).collect()),
    ];
    for (kind, data) in kinds {
        let logits = CpuBuffer { rows: 1, width: VOCABULARY, data };
        let mut unfiltered = 0.0;
        for (filters, top_k, top_p, min_p) in [
            ("none", None, 1.0, 0.0),
            ("top_p 0.95", None, 0.95, 0.0),
            ("top_p 0.5", None, 0.5, 0.0),
            ("min_p 0.05", None, 1.0, 0.05),
            ("top_k 50", Some(50), 1.0, 0.0),
        ] {
            let of_request = Filters { temperature: 1.0, top_k, top_p, min_p };
            let [rate, drawn, ids, entropy, confidence] =
                rates(isa, &logits, |uniform| Pick::Random { filters: of_request, uniform });
            unfiltered = if filters == "none" { rate } else { unfiltered };
            let [drawn, ids, entropy, confidence] = [drawn, ids, entropy, confidence].map(|recorded| recorded / rate);
            let of_none = rate / unfiltered;
            let sampled = format!("{kind:>8} {filters:>12} {rate:>10.0} {of_none:>12.2}");
            println!("{sampled} {drawn:>8.2} {ids:>8.2} {entropy:>8.2} {confidence:>10.2}");
        }
    }
}

/// Tokens a second: nothing recorded, the distribution drawn from, its ids too, the entropy, the confidence of 20
/// tokens. Each in turn, token by token, so that what else the machine does slows all of them.
fn rates(isa: Isa, logits: &CpuBuffer, pick: impl Fn(f64) -> Pick) -> [f64; 5] {
    let none = Records::default();
    let recorded = [
        none,
        Records { drawn: true, ..none },
        Records { kept_ids: true, ..none },
        Records { entropy: true, ..none },
        Records { confidence: NonZeroU16::new(20), ..none },
    ];
    let cores = Cores { isa, team: Team::new(1).into() };
    let (mut scratch, mut samples) = (SampleScratch::default(), Vec::new());
    let mut seconds = [0.0; 5];
    let begun = Instant::now();
    let mut sampled = 0;
    while begun.elapsed() < LEAST {
        let uniform = f64::from(sampled % 97) / 97.0;
        for (records, seconds) in recorded.into_iter().zip(&mut seconds) {
            let request = SampleRequest { records, ..SampleRequest::of(pick(uniform)) };
            let begun = Instant::now();
            samples.clear();
            sampling::sample(&cores, &mut scratch, logits, std::slice::from_ref(&request), &mut samples);
            std::hint::black_box(&samples);
            *seconds += begun.elapsed().as_secs_f64();
        }
        sampled += 1;
    }
    seconds.map(|seconds| f64::from(sampled) / seconds)
}
