//! Checks sampling with every parameter, over vocabularies of every size, against the definition: the same
//! tokens, except for random numbers within rounding of a boundary, their ranks, the same log-probabilities and
//! records. A token that is scored under the filters that it was drawn with has the same record to the bit, and so has
//! one that is sampled by a late request.

use std::num::NonZeroU16;
use std::sync::Arc;

use crate::case::{ANY_HEADS, CheckEffort, F32, buffer, rows_at, run};
use crate::report::{CaseResult, CheckReport, WorstError};
use offshoot_backend::{
    ActivationDtype, AllowedTokens, Backend, Distribution, Drawn, Dtype, Filters, Pick, Records, SampleRequest,
    SampledToken, SeenToken, StepBatch, StepRequests, StepShape,
};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::{PageId, TokenId};
use offshoot_kv::KvSlot;

/// Tolerance of a boundary of the distribution, as a share of the total: weights are f32 exponentials of arguments down
/// to -87, accurate to 1e-5 of a tail's weight and 2e-7 of a likely one's, and are summed by chunks.
const BORDER: f64 = 1e-6;

/// The rows of the report.
pub const OPS: [&str; 8] = ["sample", "late", "allowed", "counted", "rank", "record", "log-probability", "re-score"];

pub fn sampling<B: Backend, D: Backend>(
    backend: &mut B,
    definition: &mut D,
    effort: CheckEffort,
    report: &mut CheckReport,
) -> Result<()> {
    let (vocabs, asks): (&[usize], _) = match effort {
        CheckEffort::Quick => (&[7, 320], 12),
        CheckEffort::Full => (&[1, 7, 320, 32_016, 128_256], 64),
    };
    let mut dice = Dice::new(3);
    for &vocab in vocabs {
        for asks in [1, asks] {
            let draws = SampleCases::throw(&mut dice, vocab, asks);
            let expected = draws.draw(definition, &draws.requests)?;
            let found = draws.draw(backend, &draws.requests)?;
            let repeats = found == draws.draw(backend, &draws.requests)?;
            draws.hold(definition, &expected, &found, repeats, report)?;
            draws.hold_scored(backend, &found, report)?;
            draws.hold_late(backend, &found, report)?;
            draws.greedy().hold_counts(backend, definition, report)?;
        }
    }
    let vocabs: &[usize] = match effort {
        CheckEffort::Quick => &[7, 70, 1100],
        CheckEffort::Full => &[1, 7, 32, 70, 512, 1100, 32_016, 151_936],
    };
    for &vocab in vocabs {
        let cases = SampleCases::of_allowed(&mut dice, vocab);
        let expected = cases.draw(definition, &cases.requests)?;
        let found = cases.draw(backend, &cases.requests)?;
        let repeats = found == cases.draw(backend, &cases.requests)?;
        cases.hold(definition, &expected, &found, repeats, report)?;
        cases.hold_scored(backend, &found, report)?;
        cases.hold_late(backend, &found, report)?;
        cases.greedy().hold_counts(backend, definition, report)?;
        cases.greedy().hold_changes(backend, definition, report)?;
    }
    Ok(())
}

/// Sets of allowed tokens: one token, all, all but those of the first word, those of the last word, which may be
/// partial, some of all words, every other token, none. Several requests share each.
fn allowed_sets(dice: &mut Dice, vocab: usize) -> Vec<Arc<AllowedTokens>> {
    let last = vocab as u32 - 1;
    let one = dice.within(0, last);
    let some: Vec<u32> = (0..vocab.div_ceil(20)).map(|_| dice.within(0, last)).collect();
    let of = |tokens: &mut dyn Iterator<Item = u32>| Arc::new(AllowedTokens::new(tokens.map(TokenId), vocab));
    vec![
        of(&mut std::iter::once(one)),
        of(&mut (0..=last)),
        of(&mut (32.min(last)..=last)),
        of(&mut (last / 32 * 32..=last)),
        of(&mut some.into_iter()),
        of(&mut (0..=last).step_by(2)),
        of(&mut std::iter::empty()),
    ]
}

/// Requests that sample in every way from each of some sets of allowed tokens, or score a given token under one, with
/// and without other changes of the scores, and their likeliest tokens; among them some that have no token left.
pub fn allowed_requests(dice: &mut Dice, vocab: usize) -> Vec<SampleRequest> {
    let mut requests = Vec::new();
    for set in allowed_sets(dice, vocab) {
        let random = |temperature, top_k, top_p, min_p, uniform| Pick::Random {
            filters: Filters { temperature, top_k, top_p, min_p },
            uniform,
        };
        let picks = [
            Pick::Greedy,
            Pick::given(TokenId(dice.within(0, vocab as u32 - 1))),
            random(1.0, None, 1.0, 0.0, dice.uniform()),
            random(0.7, None, 1.0, 0.0, dice.uniform()),
            random(1.3, Some(5), 1.0, 0.0, dice.uniform()),
            random(0.9, Some(4_000), 0.9, 0.01, dice.uniform()),
            random(1.0, None, 0.8, 0.0, dice.uniform()),
            random(1.0, None, 1.0, 0.2, dice.uniform()),
            Pick::Given {
                token: TokenId(dice.within(0, vocab as u32 - 1)),
                under: Some(Filters { temperature: 0.8, top_k: Some(6), ..Filters::default() }),
            },
        ];
        for (number, pick) in picks.into_iter().enumerate() {
            let (allowed, top_logprobs) = (Some(set.clone()), [None, Some(0), Some(5)][number % 3]);
            let changed = if number % 2 == 0 { SampleRequest::of(pick) } else { request(dice, vocab, requests.len()) };
            let records = any_records(dice);
            requests.push(SampleRequest { allowed, top_logprobs, pick, records, ..changed });
        }
        let banned = (0..vocab as u32).map(TokenId).filter(|token| set.contains(*token)).take(40).collect();
        requests.push(SampleRequest { allowed: Some(set), banned, ..SampleRequest::of(Pick::Greedy) });
        // Neighbours that allow all.
        requests.push(SampleRequest::of(Pick::Greedy));
    }
    requests
}

/// Number of steps advanced after the loaded one; in them, requests with penalties count their own sampled tokens on
/// the device.
const ADVANCED: usize = 12;

/// One row of logits for each request.
struct SampleCases {
    vocab: usize,
    logits: Vec<f32>,
    requests: Vec<SampleRequest>,
    /// Tokens sampled by the previous step, for requests that count them as seen.
    before: Vec<TokenId>,
}

impl SampleCases {
    fn throw(dice: &mut Dice, vocab: usize, asks: usize) -> Self {
        let logits = (0..asks).flat_map(|_| row(dice, vocab)).collect();
        let requests = (0..asks).map(|ask| request(dice, vocab, ask)).collect();
        Self { vocab, logits, requests, before: dice.text(asks, vocab) }
    }

    fn of_allowed(dice: &mut Dice, vocab: usize) -> Self {
        let requests = allowed_requests(dice, vocab);
        let logits = requests.iter().flat_map(|_| row(dice, vocab)).collect();
        let before = dice.text(requests.len(), vocab);
        Self { vocab, logits, requests, before }
    }

    /// Requests that sample the tokens of `before`.
    fn given(&self) -> Vec<SampleRequest> {
        self.before.iter().map(|&token| SampleRequest::of(Pick::given(token))).collect()
    }

    /// Runs two steps: one that samples given tokens, and then `requests`.
    fn draw<B: Backend>(&self, backend: &mut B, requests: &[SampleRequest]) -> Result<Vec<Option<SampledToken>>> {
        let mut step = backend.step(&[ANY_HEADS], Dtype::F32, self.vocab)?;
        self.draw_given(backend, &mut step, self.given())?;
        self.draw_given(backend, &mut step, requests.to_vec())
    }

    /// Loads and runs a step that samples by `requests`.
    fn draw_given<B: Backend>(
        &self,
        backend: &mut B,
        step: &mut B::Step,
        requests: Vec<SampleRequest>,
    ) -> Result<Vec<Option<SampledToken>>> {
        let asks = requests.len();
        let logit_rows = (0..asks as u32).collect();
        let batch = StepBatch { logit_rows, requests: requests.into(), ..rows_at(&vec![0; asks]) };
        let shape = backend.load(step, batch)?;
        let logits = buffer(backend, ActivationDtype::Sums, shape.logit_rows, self.vocab, &self.logits)?;
        run(backend, step, shape, |backend, step| backend.sample(&logits, step))
    }

    /// These cases with greedy sampling, of which nothing is reported but the token: without boundaries, every token
    /// must be the definition's.
    fn greedy(&self) -> Self {
        let (pick, records, top_logprobs) = (Pick::Greedy, Records::default(), None);
        let greedy = |request: &SampleRequest| SampleRequest { pick, records, top_logprobs, ..request.clone() };
        let requests = self.requests.iter().map(greedy);
        Self { logits: self.logits.clone(), requests: requests.collect(), before: self.before.clone(), ..*self }
    }

    /// The tokens sampled by the loaded step and those advanced after it, from the same logits.
    fn walk<B: Backend>(&self, backend: &mut B) -> Result<Vec<Vec<Option<TokenId>>>> {
        let asks = self.requests.len();
        let mut step = backend.step(&[ANY_HEADS], Dtype::F32, self.vocab)?;
        let given = self.given();
        let slots = vec![KvSlot { page: PageId(0), slot: 0 }; asks];
        let logit_rows: Vec<u32> = (0..asks as u32).collect();
        let batch = |requests: Vec<SampleRequest>| {
            let (logit_rows, slots) = (logit_rows.clone(), slots.clone());
            StepBatch { logit_rows, slots: vec![slots], requests: requests.into(), ..rows_at(&vec![0; asks]) }
        };
        let mut walked = Vec::new();
        for number in 0..2 + ADVANCED {
            let shape = match number {
                0 => backend.load(&mut step, batch(given.clone()))?,
                1 => backend.load(&mut step, batch(self.requests.clone()))?,
                _ => backend.advance(&mut step, &vec![0.0; asks], &[])?,
            };
            let logits = buffer(backend, ActivationDtype::Sums, shape.logit_rows, self.vocab, &self.logits)?;
            let drawn = run(backend, &mut step, shape, |backend, step| backend.sample(&logits, step))?;
            walked.push(drawn.into_iter().map(|drawn| drawn.map(|drawn| drawn.token)).collect());
        }
        Ok(walked)
    }

    /// The requests of each of some steps, which have other sets of allowed tokens each time: their own, those of
    /// their neighbours, a distinct one for each row, one token each or none at all, their own again.
    fn changing(&self) -> impl Iterator<Item = Vec<SampleRequest>> {
        let (asks, vocab) = (self.requests.len(), self.vocab);
        let set =
            move |tokens: &mut dyn Iterator<Item = u32>| Some(Arc::new(AllowedTokens::new(tokens.map(TokenId), vocab)));
        let distinct = move |at: u32| {
            let is_in = move |token: &u32| *token == at || token.wrapping_mul(2_654_435_761 + 2 * at) >> 30 == 0;
            set(&mut (0..vocab as u32).filter(is_in))
        };
        let one = move |at: u32| set(&mut (at % 5 != 4).then_some(at.wrapping_mul(7919) % vocab as u32).into_iter());
        let of = move |number: usize, at: usize| match number {
            0 | 5 => self.requests[at].allowed.clone(),
            1 | 2 => self.requests[(at + number) % asks].allowed.clone(),
            3 => distinct(at as u32),
            _ => one(at as u32),
        };
        let request = move |number: usize, at: usize| SampleRequest {
            allowed: of(number, at),
            unseen: None,
            ..self.requests[at].clone()
        };
        (0..6).map(move |number| (0..asks).map(|at| request(number, at)).collect())
    }

    /// What each step samples by the requests of `changing`: steps that are loaded with them, or steps that get them
    /// late, each but the first the one before, advanced.
    fn change<B: Backend>(&self, backend: &mut B, late: bool) -> Result<Vec<Vec<Option<SampledToken>>>> {
        let asks = self.requests.len();
        let mut step = backend.step(&[ANY_HEADS], Dtype::F32, self.vocab)?;
        let mut changed = Vec::new();
        for (number, requests) in self.changing().enumerate() {
            let drawn = match (late, number) {
                (false, _) => self.draw_given(backend, &mut step, requests)?,
                (true, 0) => self.draw_late(backend, &mut step, requests)?,
                (true, _) => {
                    let shape = backend.advance(&mut step, &vec![0.0; asks], &[])?;
                    self.sample_late(backend, &mut step, shape, requests)?
                }
            };
            changed.push(drawn);
        }
        Ok(changed)
    }

    /// Loads a step of late requests, runs it and samples by them.
    fn draw_late<B: Backend>(
        &self,
        backend: &mut B,
        step: &mut B::Step,
        requests: Vec<SampleRequest>,
    ) -> Result<Vec<Option<SampledToken>>> {
        let asks = requests.len();
        let (logit_rows, slots) = ((0..asks as u32).collect(), vec![vec![KvSlot { page: PageId(0), slot: 0 }; asks]]);
        let batch = StepBatch { logit_rows, slots, requests: StepRequests::Late, ..rows_at(&vec![0; asks]) };
        let shape = backend.load(step, batch)?;
        self.sample_late(backend, step, shape, requests)
    }

    /// Runs a step of this shape that was loaded or advanced, and samples by its late requests.
    fn sample_late<B: Backend>(
        &self,
        backend: &mut B,
        step: &mut B::Step,
        shape: StepShape,
        requests: Vec<SampleRequest>,
    ) -> Result<Vec<Option<SampledToken>>> {
        let logits = buffer(backend, ActivationDtype::Sums, shape.logit_rows, self.vocab, &self.logits)?;
        backend.run(step, shape, |_, _| Ok(()))?;
        backend.load_requests(step, requests)?;
        backend.sample_late(&logits, step)?;
        backend.collect(step)
    }

    /// Samples by late requests what was sampled by requests that the step was loaded with: the same to the bit.
    fn hold_late<B: Backend>(
        &self,
        backend: &mut B,
        found: &[Option<SampledToken>],
        report: &mut CheckReport,
    ) -> Result<()> {
        // The host knows what the step before has sampled.
        let mut counted = StepBatch { requests: self.requests.clone().into(), ..StepBatch::default() };
        counted.count_unseen(&self.before);
        let mut step = backend.step(&[ANY_HEADS], Dtype::F32, self.vocab)?;
        let late = self.draw_late(backend, &mut step, counted.requests.given().to_vec())?;
        let other = (0..found.len()).find(|&ask| found[ask] != late[ask]);
        let what = match other {
            None => format!("{} of {}", found.len(), self.vocab),
            Some(ask) => format!("{:?} for {:?} by {:?}", late[ask], found[ask], self.requests[ask]),
        };
        let misses = if other.is_some() { 1.0 } else { 0.0 };
        report.see("late", None, &what, CaseResult::once(WorstError { error: misses, tolerance: 0.0 }));
        Ok(())
    }

    fn hold_changes<B: Backend, D: Backend>(
        &self,
        backend: &mut B,
        definition: &mut D,
        report: &mut CheckReport,
    ) -> Result<()> {
        let (expected, found) = (self.change(definition, false)?, self.change(backend, false)?);
        let tokens = |steps: &[Vec<Option<SampledToken>>]| {
            steps.iter().flatten().map(|sampled| sampled.as_ref().map(|sampled| sampled.token)).collect::<Vec<_>>()
        };
        let repeats = found == self.change(backend, false)?;
        let misses = if tokens(&found) == tokens(&expected) { 0.0 } else { 1.0 };
        let what = format!("{} of {}, other sets in each step", self.requests.len(), self.vocab);
        report.see("allowed", None, &what, CaseResult::twice(WorstError { error: misses, tolerance: 0.0 }, repeats));
        let misses = if self.change(backend, true)? == found { 0.0 } else { 1.0 };
        report.see("late", None, &what, CaseResult::once(WorstError { error: misses, tolerance: 0.0 }));
        Ok(())
    }

    fn hold_counts<B: Backend, D: Backend>(
        &self,
        backend: &mut B,
        definition: &mut D,
        report: &mut CheckReport,
    ) -> Result<()> {
        let expected = self.walk(definition)?;
        let found = self.walk(backend)?;
        let repeats = found == self.walk(backend)?;
        let misses = if found == expected { 0.0 } else { 1.0 };
        let what = format!("{} of {}, {ADVANCED} steps on", self.requests.len(), self.vocab);
        report.see("counted", None, &what, CaseResult::twice(WorstError { error: misses, tolerance: 0.0 }, repeats));
        Ok(())
    }

    fn hold<D: Backend>(
        &self,
        definition: &mut D,
        expected: &[Option<SampledToken>],
        found: &[Option<SampledToken>],
        repeats: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        let mut wrong = None;
        let mut others = None;
        let mut misranked = None;
        let mut misrecorded = None;
        let mut worst = WorstError::default();
        for (ask, (expected, found)) in expected.iter().zip(found).enumerate() {
            let token = |sampled: &Option<SampledToken>| sampled.as_ref().map(|sampled| sampled.token);
            if token(expected) == token(found) {
                let rank = |sampled: &Option<SampledToken>| sampled.as_ref().and_then(|sampled| sampled.rank);
                if rank(expected) != rank(found) {
                    misranked = misranked.or(Some((ask, token(found), rank(expected), rank(found))));
                }
            }
            if is_alike(expected, found) {
                raise_to_logprobs(&mut worst, expected, found);
                continue;
            }
            if others.is_none() {
                others = Some(self.at_borders(definition)?);
            }
            let nudged = || others.iter().flatten().map(|drawn| &drawn[ask]);
            if token(expected) != token(found) && !nudged().any(|other| token(other) == token(found)) {
                wrong = wrong.or(Some((ask, token(expected), token(found))));
            } else if let Some(other) = nudged().find(|other| is_alike(other, found)) {
                raise_to_logprobs(&mut worst, other, found);
            } else {
                misrecorded = misrecorded.or(Some((ask, expected.clone(), found.clone())));
            }
        }
        let (vocab, asks) = (self.vocab, self.requests.len());
        let what = match wrong {
            None => format!("{asks} of {vocab}"),
            Some((ask, expected, found)) => {
                let request = &self.requests[ask];
                format!("{asks} of {vocab}: token {found:?} for {expected:?} by {request:?}")
            }
        };
        let misses = if wrong.is_some() || expected.len() != found.len() { 1.0 } else { 0.0 };
        report.see("sample", None, &what, CaseResult::twice(WorstError { error: misses, tolerance: 0.0 }, repeats));
        let what_rank = match misranked {
            None => format!("{asks} of {vocab}"),
            Some((ask, token, expected, found)) => {
                format!("{asks} of {vocab}: token {token:?} of ask {ask} is {found:?} for {expected:?}")
            }
        };
        let misses = if misranked.is_some() { 1.0 } else { 0.0 };
        report.see("rank", None, &what_rank, CaseResult::twice(WorstError { error: misses, tolerance: 0.0 }, repeats));
        let what_record = match &misrecorded {
            None => format!("{asks} of {vocab}"),
            Some((ask, expected, found)) => {
                let request = &self.requests[*ask];
                format!("{asks} of {vocab}: {found:?} for {expected:?} by {request:?}")
            }
        };
        let misses = if misrecorded.is_some() { 1.0 } else { 0.0 };
        let of_record = CaseResult::twice(WorstError { error: misses, tolerance: 0.0 }, repeats);
        report.see("record", None, &what_record, of_record);
        report.see("log-probability", None, &what, CaseResult::twice(worst, repeats));
        Ok(())
    }

    /// Scores what was sampled under the filters that it was drawn with: its records are the same to the bit.
    fn hold_scored<B: Backend>(
        &self,
        backend: &mut B,
        found: &[Option<SampledToken>],
        report: &mut CheckReport,
    ) -> Result<()> {
        let score = |(request, found): (&SampleRequest, &Option<SampledToken>)| match found {
            Some(SampledToken { token, .. }) => {
                SampleRequest { pick: Pick::Given { token: *token, under: request.filters() }, ..request.clone() }
            }
            None => request.clone(),
        };
        let requests: Vec<SampleRequest> = self.requests.iter().zip(found).map(score).collect();
        let scored = self.draw(backend, &requests)?;
        let other = (0..found.len()).find(|&ask| found[ask] != scored[ask]);
        let (vocab, asks) = (self.vocab, self.requests.len());
        let what = match other {
            None => format!("{asks} of {vocab}"),
            Some(ask) => {
                let request = &self.requests[ask];
                format!("{asks} of {vocab}: {:?} for {:?} by {request:?}", scored[ask], found[ask])
            }
        };
        let misses = if other.is_some() { 1.0 } else { 0.0 };
        report.see("re-score", None, &what, CaseResult::once(WorstError { error: misses, tolerance: 0.0 }));
        Ok(())
    }

    /// The definition's samples with random numbers or filters shifted slightly, in either direction.
    fn at_borders<D: Backend>(&self, definition: &mut D) -> Result<Vec<Vec<Option<SampledToken>>>> {
        type Nudge = fn(&mut f64, &mut Filters);
        let nudges: [Nudge; 8] = [
            |uniform, _| *uniform = (*uniform - BORDER).max(0.0),
            |uniform, _| *uniform += BORDER,
            |_, filters| filters.top_p *= 1.0 - BORDER as f32,
            |_, filters| filters.top_p = (filters.top_p * (1.0 + BORDER as f32)).min(1.0),
            |_, filters| filters.min_p *= 1.0 - BORDER as f32,
            |_, filters| filters.min_p *= 1.0 + BORDER as f32,
            // The least likely token that can be sampled.
            |_, filters| filters.temperature *= 1.0 - BORDER as f32,
            |_, filters| filters.temperature *= 1.0 + BORDER as f32,
        ];
        let nudged = |nudge: Nudge| {
            let mut requests = self.requests.clone();
            for request in &mut requests {
                match &mut request.pick {
                    Pick::Random { filters, uniform } => nudge(uniform, filters),
                    Pick::Given { under: Some(filters), .. } => nudge(&mut 0.0, filters),
                    Pick::Greedy | Pick::Given { under: None, .. } => {}
                }
            }
            self.draw(definition, &requests)
        };
        nudges.into_iter().map(nudged).collect()
    }
}

/// Whether two samples are of the same token, list the same likeliest tokens and keep the same tokens.
fn is_alike(a: &Option<SampledToken>, b: &Option<SampledToken>) -> bool {
    let kept = |drawn: &Drawn| (drawn.kept, drawn.lowest, drawn.ids.clone());
    let ids = |sampled: &SampledToken| sampled.top.iter().map(|&(token, _)| token).collect::<Vec<_>>();
    let of = |sampled: &SampledToken| (sampled.token, ids(sampled), sampled.drawn.as_ref().map(kept));
    a.as_ref().map(of) == b.as_ref().map(of)
}

/// Raises `worst` to the differences of two samples' log-probabilities. Both are differences of f32 numbers of similar
/// size, with a log-sum-exp accurate to 2e-5: each term is within a few roundings per unit below the largest, and
/// chunks of some thousand are summed in f32. So are the entropy and the confidence, means of such numbers. Both
/// samples are alike.
fn raise_to_logprobs(worst: &mut WorstError, expected: &Option<SampledToken>, found: &Option<SampledToken>) {
    let Some((expected, found)) = expected.as_ref().zip(found.as_ref()) else { return };
    let has =
        |sampled: &SampledToken| [sampled.drawn.is_some(), sampled.entropy.is_some(), sampled.confidence.is_some()];
    if has(expected) != has(found) {
        return worst.raise(f64::INFINITY, 0.0);
    }
    let drawn = expected.drawn.iter().zip(&found.drawn).map(|(a, b)| (a.logprob, b.logprob));
    let entropy = expected.entropy.into_iter().zip(found.entropy);
    let confidence = expected.confidence.into_iter().zip(found.confidence);
    let top = expected.top.iter().zip(&found.top).map(|(a, b)| (a.1, b.1));
    let own = std::iter::once((expected.logprob, found.logprob));
    for (a, b) in
        own.chain(top).chain(drawn).chain(entropy).chain(confidence).map(|(a, b)| (f64::from(a), f64::from(b)))
    {
        worst.raise(if a == b { 0.0 } else { (a - b).abs() }, 2e-5 + 4.0 * F32 * a.abs());
    }
}

/// A row of logits: typical for models, on a coarse grid (ties), very negative, or without any finite value.
fn row(dice: &mut Dice, vocab: usize) -> Vec<f32> {
    match dice.within(0, 9) {
        0 => vec![f32::NEG_INFINITY; vocab],
        1 => vec![f32::NAN; vocab],
        2 => vec![1.5; vocab],
        3 => (0..vocab).map(|_| (6.0 * dice.number()).round() / 2.0).collect(),
        4 => {
            let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, -300.0];
            (0..vocab).map(|_| if dice.one_in(8) { dice.pick(&odd) } else { 9.0 * dice.number() }).collect()
        }
        5 => (0..vocab).map(|_| 80.0 * dice.number()).collect(),
        // Sums of four are nearly normal.
        _ => (0..vocab).map(|_| 4.0 * dice.numbers(4).iter().sum::<f32>()).collect(),
    }
}

fn any_records(dice: &mut Dice) -> Records {
    Records {
        drawn: dice.one_in(3),
        kept_ids: dice.one_in(3),
        entropy: dice.one_in(3),
        // The kernels list the likeliest tokens in one way where they are few, in another where they are more than a
        // vocabulary has chunks.
        confidence: dice
            .pick(&[None, None, Some(1), Some(5), Some(20), Some(300), Some(2048)])
            .and_then(NonZeroU16::new),
    }
}

fn filters(dice: &mut Dice) -> Filters {
    Filters {
        temperature: dice.pick(&[1.0, 0.7, 0.05, 2.5]),
        top_k: dice.pick(&[None, None, Some(1), Some(2), Some(40), Some(1000), Some(5_000_000)]),
        top_p: dice.pick(&[1.0, 1.0, 0.95, 0.5, 0.01]),
        min_p: dice.pick(&[0.0, 0.0, 0.05, 0.5]),
    }
}

fn request(dice: &mut Dice, vocab: usize, ask: usize) -> SampleRequest {
    let last = vocab as u32 - 1;
    let pick = match dice.within(0, 9) {
        0 => Pick::Greedy,
        1 => {
            let under = dice.one_in(2).then(|| filters(dice));
            Pick::Given { token: TokenId(dice.within(0, last)), under }
        }
        _ => Pick::Random { filters: filters(dice), uniform: if dice.one_in(20) { 0.0 } else { dice.uniform() } },
    };
    let mut request = SampleRequest {
        top_logprobs: dice.pick(&[None, Some(0), Some(1), Some(5), Some(20)]),
        top_of: dice.pick(&[Distribution::Model, Distribution::Drawn]),
        records: any_records(dice),
        ..SampleRequest::of(pick)
    };
    if dice.one_in(2) {
        request.repetition_penalty = dice.pick(&[1.0, 1.3, 0.8]);
        request.frequency_penalty = dice.pick(&[0.0, 0.4, -0.3]);
        request.presence_penalty = dice.pick(&[0.0, 0.7]);
        let mut seen: Vec<u32> = (0..dice.within(0, 300)).map(|_| dice.within(0, last)).collect();
        seen.sort_unstable();
        seen.dedup();
        let see = |token| SeenToken { token: TokenId(token), sampled: dice.within(0, 3), in_prompt: dice.one_in(2) };
        request.seen = seen.into_iter().map(see).collect();
        request.unseen = dice.one_in(2).then_some(ask as u32);
    }
    if dice.one_in(3) {
        let bias = |dice: &mut Dice| if dice.one_in(4) { f32::NEG_INFINITY } else { 9.0 * dice.number() };
        let mut biased: Vec<u32> = (0..dice.within(1, 20)).map(|_| dice.within(0, last)).collect();
        biased.sort_unstable();
        biased.dedup();
        request.logit_bias = biased.into_iter().map(|token| (TokenId(token), bias(dice))).collect();
        if dice.one_in(3) {
            let allowed: Vec<TokenId> = (0..dice.within(1, 40)).map(|_| TokenId(dice.within(0, last))).collect();
            request.allowed = Some(Arc::new(AllowedTokens::new(allowed, vocab)));
        }
        request.banned = (0..dice.within(0, 5)).map(|_| TokenId(dice.within(0, last))).collect();
    }
    request
}
