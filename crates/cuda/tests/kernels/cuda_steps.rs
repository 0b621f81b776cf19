//! Steps of the CUDA backend in orders that the engine does not choose: more of them under way than have turns, some
//! loaded and never run, results that outgrow their memory. Without a GPU every test says so and passes.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use offshoot_backend::{
    ActivationDtype, AllowedTokens, Backend, Distribution, Drawn, Dtype, Filters, HeadLayout, Pick, Records, RowToken,
    SampleRequest, SampledToken, StepBatch,
};
use offshoot_core::ids::PageId;
use offshoot_core::ids::TokenId;
use offshoot_cuda::{Buffer, Cuda, Step};
use offshoot_kv::KvSlot;

const VOCAB: usize = 50;

struct Setup {
    cuda: Cuda,
    step: Step,
    logits: Buffer,
}

fn setup() -> Option<Setup> {
    let mut cuda = match Cuda::open(0) {
        Ok(cuda) => cuda,
        Err(error) => {
            crate::skip::skipped(format_args!("{error}"));
            return None;
        }
    };
    let heads = HeadLayout::new(1, 1, 16);
    let step = cuda.step(&[heads], Dtype::F32, VOCAB).unwrap();
    let mut logits = cuda.buffer(VOCAB, ActivationDtype::Sums).unwrap();
    cuda.resize(&mut logits, 64).unwrap();
    cuda.write(&mut logits, 64, &[0.5; 64 * VOCAB]).unwrap();
    Some(Setup { cuda, step, logits })
}

/// Draws `token` from one row, with so many of the likeliest beside it.
fn batch(token: u32, top_logprobs: usize) -> StepBatch {
    let given = SampleRequest::of(Pick::given(TokenId(token)));
    batch_of(vec![SampleRequest { top_logprobs: Some(top_logprobs), ..given }])
}

/// A row for each request.
fn batch_of(requests: Vec<SampleRequest>) -> StepBatch {
    let rows = requests.len();
    StepBatch {
        tokens: vec![RowToken::Known(TokenId(0)); rows],
        positions: vec![0; rows],
        slots: vec![vec![KvSlot { page: PageId(0), slot: 0 }; rows]],
        logit_rows: (0..rows as u32).collect(),
        plans: Vec::new(),
        state_runs: Vec::new(),
        adapters: Vec::new(),
        requests: requests.into(),
        expansions: None,
    }
}

/// Samples the only one of `tokens`, whose logits are all equal; none of none.
fn allowing(tokens: &[u32]) -> SampleRequest {
    let set = AllowedTokens::new(tokens.iter().copied().map(TokenId), VOCAB);
    SampleRequest { allowed: Some(Arc::new(set)), ..SampleRequest::of(Pick::Greedy) }
}

impl Setup {
    fn run(&mut self, batch: StepBatch) {
        let shape = self.cuda.load(&mut self.step, batch).unwrap();
        self.cuda.resize(&mut self.logits, shape.logit_rows).unwrap();
        let logits = &self.logits;
        let ops = |cuda: &mut Cuda, step: &mut Step| {
            cuda.sample(logits, step);
            Ok(())
        };
        self.cuda.run(&mut self.step, shape, ops).unwrap();
    }

    fn collect(&mut self) -> SampledToken {
        let mut drawn = self.cuda.collect(&mut self.step).unwrap();
        assert_eq!(drawn.len(), 1);
        drawn.remove(0).expect("a given token is scored")
    }

    fn collect_tokens(&mut self) -> Vec<Option<TokenId>> {
        let drawn = self.cuda.collect(&mut self.step).unwrap();
        drawn.into_iter().map(|drawn| drawn.map(|drawn| drawn.token)).collect()
    }
}

#[test]
fn steps_that_nobody_collects_in_time_keep_their_draws() {
    let Some(mut setup) = setup() else { return };
    for round in 0..3 {
        (0..6).for_each(|i| setup.run(batch(6 * round + i, 0)));
        for i in 0..6 {
            assert_eq!(setup.collect().token, TokenId(6 * round + i));
        }
    }
}

#[test]
fn steps_loaded_and_never_run_change_no_other() {
    let Some(mut setup) = setup() else { return };
    for token in 0..20 {
        setup.run(batch(token, 0));
        for other in 0..token % 4 {
            setup.cuda.load(&mut setup.step, batch(30 + other, 0)).unwrap();
        }
        assert_eq!(setup.collect().token, TokenId(token));
    }
}

#[test]
fn results_that_outgrow_their_memory_lose_none_under_way() {
    let Some(mut setup) = setup() else { return };
    // 8 asks with padding, 12 bytes each and 8 for each of the likeliest: from 480 bytes to 125 KiB.
    let tops = [6, 300, 0, 2000];
    for (token, &top) in (0..).zip(&tops) {
        setup.run(batch(token, top));
    }
    for (token, &top) in (0..).zip(&tops) {
        let drawn = setup.collect();
        assert_eq!(drawn.token, TokenId(token));
        assert_eq!(drawn.top.len(), top.min(VOCAB));
        assert_eq!(drawn.rank, NonZeroU32::new(token + 1), "all tokens are equally likely");
        assert!((drawn.logprob + (VOCAB as f32).ln()).abs() < 1e-5, "{}", drawn.logprob);
    }
}

#[test]
fn sets_of_allowed_tokens_that_outgrow_their_room_change_no_step_under_way() {
    let Some(mut setup) = setup() else { return };
    let shared = allowing(&[7]);
    // One set more in each step; those of the step before are dropped, but for the shared one.
    let tokens = |step: u32| (0..step).map(move |row| (step + row) % VOCAB as u32);
    for first in (1..40).step_by(4) {
        for step in first..first + 4 {
            let own = tokens(step).map(|token| allowing(&[token]));
            let requests = own.chain([shared.clone(), allowing(&[]), SampleRequest::of(Pick::Greedy), shared.clone()]);
            setup.run(batch_of(requests.collect()));
        }
        for step in first..first + 4 {
            let own = tokens(step).map(|token| Some(TokenId(token)));
            let others = [Some(TokenId(7)), None, Some(TokenId(0)), Some(TokenId(7))];
            assert_eq!(setup.collect_tokens(), own.chain(others).collect::<Vec<_>>(), "step {step}");
        }
    }
}

#[test]
fn records_that_come_and_go_are_each_steps_own() {
    let Some(mut setup) = setup() else { return };
    let plain = SampleRequest::of(Pick::Greedy);
    let all = Records { drawn: true, kept_ids: true, entropy: true, confidence: NonZeroU16::new(7) };
    // Token 0 is banned, all others are equally likely: the smallest ids are kept.
    let of = |top_k, records| SampleRequest {
        banned: vec![TokenId(0)],
        records,
        top_logprobs: Some(3),
        top_of: Distribution::Drawn,
        ..SampleRequest::of(Pick::Random {
            filters: Filters { top_k: Some(top_k), ..Filters::default() },
            uniform: 0.5,
        })
    };
    let entropy = Records { entropy: true, ..Records::default() };
    let is_near = |a: f32, b: f32| (a - b).abs() < 1e-5;
    for _ in 0..3 {
        // More results each time, then fewer.
        for top_k in [1, 20, 40] {
            setup.run(batch_of(vec![plain.clone(), of(top_k, all), of(top_k, entropy), plain.clone()]));
            setup.run(batch_of(vec![plain.clone(); 4]));
        }
        for top_k in [1, 20, 40] {
            let sampled = setup.cuda.collect(&mut setup.step).unwrap();
            let sampled: Vec<SampledToken> = sampled.into_iter().flatten().collect();
            let nothing = |sampled: &SampledToken| (sampled.token, sampled.drawn.is_none(), sampled.entropy);
            assert_eq!([0, 3].map(|at| nothing(&sampled[at])), [(TokenId(0), true, None); 2]);
            let token = TokenId(top_k / 2 + 1);
            assert_eq!((sampled[1].token, sampled[2].token), (token, token), "{top_k}");
            assert_eq!(sampled[1].rank, NonZeroU32::new(token.0));
            let Drawn { logprob, kept, lowest, ids } = sampled[1].drawn.clone().unwrap();
            assert!(is_near(logprob, -(top_k as f32).ln()), "{logprob} of {top_k}");
            assert_eq!((kept, lowest, ids), (top_k, 0.5, Some((1..=top_k).map(TokenId).collect())));
            let top: Vec<TokenId> = (1..=top_k.min(3)).map(TokenId).collect();
            for sampled in &sampled[1..3] {
                assert_eq!(sampled.top.iter().map(|&(token, _)| token).collect::<Vec<_>>(), top);
                assert!(sampled.top.iter().all(|&(_, listed)| listed == logprob), "{sampled:?}");
                assert!(is_near(sampled.entropy.unwrap(), (VOCAB as f32).ln()), "{sampled:?}");
            }
            // Equally likely tokens: the mean of any of them is that of all.
            assert!(is_near(sampled[1].confidence.unwrap(), (VOCAB as f32).ln()), "{:?}", sampled[1]);
            assert_eq!((sampled[0].confidence, sampled[2].confidence), (None, None));
            assert_eq!(sampled[2].drawn, None);
            // The logits are those of the model again.
            assert_eq!(setup.collect_tokens(), [Some(TokenId(0)); 4]);
        }
    }
}

#[test]
fn room_that_was_reserved_is_not_asked_for_again() {
    let Some(mut setup) = setup() else { return };
    let shape = batch(0, 0).shape();
    let reserved = setup.cuda.reserve(&mut setup.step, shape).unwrap();
    assert_eq!(setup.cuda.load(&mut setup.step, batch(1, 0)).unwrap(), reserved);
}
