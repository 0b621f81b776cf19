//! Weights of scores, and scores that are refused.

use offshoot_cpu::Isa;
use offshoot_cpu::sampling::chunks::{CHUNK, Scores};

#[test]
fn sums_without_weights_and_weights_of_one_chunk_are_those_of_all() {
    let scores: Vec<f32> = (0..300).map(|i| ((i * 7919) % 1009) as f32 / 50.0 - 10.0).collect();
    for isa in Isa::available() {
        for (len, temperature) in [1, 127, 128, 129, 300].into_iter().flat_map(|len| [(len, 1.0), (len, 0.7)]) {
            let mut maxima = Vec::new();
            let scores = Scores::new(isa, &scores[..len], &mut maxima).expect("all scores are finite");
            let (mut weights, mut stored, mut alone) = (Vec::new(), Vec::new(), Vec::new());
            let total = scores.exponentials(isa, temperature, &mut weights, &mut stored);
            assert_eq!(scores.sum_chunks(isa, temperature, &mut alone).to_bits(), total.to_bits());
            assert_eq!(alone, stored, "{isa:?}, {len} tokens");
            for (c, whole) in weights.chunks(CHUNK).enumerate() {
                let mut of_chunk = [0.0; CHUNK];
                scores.weigh_chunk(isa, temperature, c, &mut of_chunk);
                assert_eq!(of_chunk[..whole.len()], *whole, "{isa:?}, {len} tokens, chunk {c}");
            }
        }
    }
}

#[test]
fn scores_are_refused_if_one_is_no_number_or_infinite_wherever_it_is() {
    for (at, wrong) in [0, 15, 16, 127, 128, 290, 299].into_iter().flat_map(|at| [(at, f32::NAN), (at, f32::INFINITY)])
    {
        let mut scores = vec![0.5; 300];
        scores[7] = f32::NEG_INFINITY;
        for isa in Isa::available() {
            assert!(Scores::new(isa, &scores, &mut Vec::new()).is_some());
            let mut scores = scores.clone();
            scores[at] = wrong;
            assert!(Scores::new(isa, &scores, &mut Vec::new()).is_none(), "{isa:?}, {wrong} at {at}");
        }
    }
}
