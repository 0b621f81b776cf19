//! Late requests: a step that gets its requests after it is submitted samples what it samples when it is submitted with
//! them, on one device and on ranks, planned anew or advanced; and steps and requests out of order are refused.

use std::num::NonZeroU16;
use std::sync::Arc;

use offshoot_backend::{
    AllowedTokens, Dtype, Filters, Pick, Records, RowToken, SampleRequest, SampledToken, SeenToken, StepBatch,
    StepRequests,
};
use offshoot_core::ids::{GroupIx, SegmentId, TokenId};
use offshoot_cpu::{Cpu, Isa};
use offshoot_kv::plan::{NewPage, PlanHints, Planner};
use offshoot_kv::{PagePool, PrefixTree, StepRow};
use offshoot_model::{Decoder, KvRoom, LoadedRanks, ModelConfig, ModelWeights, StepLimits, StepRunner};

const VOCAB: usize = 500;
const ROWS: usize = 3;
const STEPS: u32 = 40;
const PAGES: usize = 16;

fn weights() -> ModelWeights {
    let config = r#"{ "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 500, "eos_token_id": 1,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }"#;
    ModelWeights::random(ModelConfig::from_json(config).unwrap(), Dtype::F32, 7)
}

/// Branches below one prompt, each with room for all steps.
struct Branches {
    tree: PrefixTree,
    leaves: Vec<SegmentId>,
    /// Position of the branches' first token.
    first: u32,
    hints: PlanHints,
}

impl Branches {
    /// Computes the prompt.
    fn new(model: &mut dyn StepRunner) -> Self {
        let largest = StepBatch::default().shape();
        let limits = StepLimits { deterministic: true, longest: 128, largest, keeps_routes: false };
        model.prepare(limits).unwrap();
        model.allocate(KvRoom { pages: PAGES, ..KvRoom::default() }).unwrap();
        let facts = model.facts();
        let (mut pool, mut tree) = (PagePool::new(PAGES), PrefixTree::new(facts.page_tokens));
        let prompt: Vec<TokenId> = (0..9).map(|i| TokenId::new(i * 7)).collect();
        let trunk = tree.admit(&mut pool, &prompt).unwrap();
        let first = tree.end(trunk);
        let leaves: Vec<SegmentId> = (0..ROWS).map(|_| tree.fork(trunk)).collect();
        for &leaf in &leaves {
            tree.append(&mut pool, leaf, &vec![TokenId(0); STEPS as usize + 1]).unwrap();
        }
        let branches = Branches { tree, leaves, first, hints: facts.plan_hints[0] };
        let rows: Vec<StepRow> = (0..first).map(|position| StepRow { segment: trunk, position }).collect();
        let tokens = prompt.into_iter().map(RowToken::Known).collect();
        model.submit(branches.batch(&rows, tokens, StepRequests::None)).unwrap();
        assert!(model.collect().unwrap().is_empty());
        branches
    }

    fn batch(&self, rows: &[StepRow], tokens: Vec<RowToken>, requests: StepRequests) -> StepBatch {
        StepBatch {
            tokens,
            positions: rows.iter().map(|row| row.position).collect(),
            slots: vec![rows.iter().map(|row| self.tree.slot(row.segment, row.position)).collect()],
            logit_rows: if matches!(requests, StepRequests::None) {
                Vec::new()
            } else {
                (0..rows.len() as u32).collect()
            },
            plans: vec![Planner::Balanced.plan(&self.tree.forest(rows), &self.hints)],
            requests,
            ..StepBatch::default()
        }
    }

    /// The branches' tokens number `number`.
    fn rows(&self, number: u32) -> Vec<StepRow> {
        let row = |&segment: &SegmentId| StepRow { segment, position: self.first + number };
        self.leaves.iter().map(row).collect()
    }

    fn new_pages(&self, number: u32) -> Vec<NewPage> {
        let slots = (0u32..).zip(self.rows(number)).map(|(row, at)| (row, self.tree.slot(at.segment, at.position)));
        let firsts = slots.filter(|(_, slot)| slot.slot == 0);
        firsts.map(|(row, slot)| NewPage { group: GroupIx(0), row, page: slot.page }).collect()
    }
}

/// The request of a branch for its token behind `sampled`: what it allows, and penalties, follow from these.
fn request(row: usize, sampled: &[TokenId]) -> SampleRequest {
    let last = sampled.last().map_or(0, |token| token.0);
    let number = sampled.len() as u32;
    let uniform = f64::from((number * 37 + row as u32 * 11) % 100) / 100.0;
    let filters = Filters { temperature: 1.5, ..Filters::default() };
    let pick = if number % 5 == 4 { Pick::Greedy } else { Pick::Random { filters, uniform } };
    let allowed: Vec<TokenId> = match number % 4 {
        // A forced one.
        0 => vec![TokenId((last + 3 + row as u32) % VOCAB as u32)],
        _ => (0..VOCAB as u32).filter(|token| (token + last) % 3 == number % 3).map(TokenId).collect(),
    };
    let seen = |&token: &TokenId| SeenToken { token, sampled: 1, in_prompt: false };
    let mut seen: Vec<SeenToken> = sampled.iter().map(seen).collect();
    seen.sort_by_key(|seen| seen.token);
    seen.dedup_by_key(|seen| seen.token);
    SampleRequest {
        allowed: Some(Arc::new(AllowedTokens::new(allowed, VOCAB))),
        presence_penalty: if row == 1 { 0.7 } else { 0.0 },
        seen,
        top_logprobs: Some(2),
        records: Records { entropy: true, confidence: NonZeroU16::new(9), ..Records::default() },
        ..SampleRequest::of(pick)
    }
}

/// How the requests of a step reach the model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// With the step.
    Given,
    Late,
    /// Late, and each step but the first is the one before, advanced.
    LateAdvanced,
}

/// What each step samples for its rows.
fn samples(model: &mut dyn StepRunner, when: When) -> Vec<Vec<SampledToken>> {
    let branches = Branches::new(model);
    let mut texts: Vec<Vec<TokenId>> = vec![Vec::new(); ROWS];
    let mut all = Vec::new();
    for number in 0..STEPS {
        let requests: Vec<SampleRequest> = (0..ROWS).map(|row| request(row, &texts[row])).collect();
        let token = |text: &Vec<TokenId>| RowToken::Known(text.last().copied().unwrap_or(TokenId(5)));
        let tokens = texts.iter().map(token).collect();
        let batch = |requests| branches.batch(&branches.rows(number), tokens, requests);
        match (when, number) {
            (When::Given, _) => model.submit(batch(StepRequests::Given(requests))).unwrap(),
            (When::LateAdvanced, 1..) => {
                // The uniforms are those of the requests.
                model.submit_advanced(&[], &branches.new_pages(number)).unwrap();
                model.sample(requests).unwrap();
            }
            (When::Late | When::LateAdvanced, _) => {
                let batch = batch(StepRequests::Late);
                assert!(batch.can_advance());
                model.submit(batch).unwrap();
                model.sample(requests).unwrap();
            }
        }
        let sampled: Vec<SampledToken> = model.collect().unwrap().into_iter().flatten().collect();
        assert_eq!(sampled.len(), ROWS);
        texts.iter_mut().zip(&sampled).for_each(|(text, sampled)| text.push(sampled.token));
        all.push(sampled);
    }
    model.clear();
    all
}

fn alone() -> Box<dyn StepRunner> {
    let mut cpu = Cpu::with_isa(Isa::Portable);
    Decoder::of(&mut cpu, &weights()).unwrap().on(cpu)
}

#[test]
fn late_requests_sample_what_given_ones_do() {
    let weights = weights();
    let ranks = super::ranks::ranks(Isa::Portable, 2, true);
    let ranks = LoadedRanks::start(ranks, |rank| Decoder::of(rank, &weights)).unwrap();
    for mut model in [alone(), ranks] {
        let given = samples(&mut *model, When::Given);
        let texts: Vec<TokenId> = given.iter().flatten().map(|sampled| sampled.token).collect();
        assert!(texts.iter().collect::<std::collections::BTreeSet<_>>().len() > 30, "{texts:?}");
        for when in [When::Late, When::LateAdvanced] {
            assert_eq!(samples(&mut *model, when), given, "{when:?}");
        }
    }
}

#[test]
fn steps_and_late_requests_out_of_order_are_refused() {
    let mut model = alone();
    let branches = Branches::new(&mut *model);
    let requests = || -> Vec<SampleRequest> { (0..ROWS).map(|row| request(row, &[])).collect() };
    let batch =
        |number| branches.batch(&branches.rows(number), vec![RowToken::Known(TokenId(5)); ROWS], StepRequests::Late);
    let refused = |model: &mut dyn StepRunner, requests| model.sample(requests).unwrap_err().to_string();

    let error = refused(&mut *model, requests());
    assert!(error.contains("3 late requests of a step that awaits none"), "{error}");
    model.submit(batch(0)).unwrap();
    for failure in [model.submit(batch(1)), model.submit_advanced(&[], &[])] {
        let failure = failure.unwrap_err();
        assert!(!failure.has_begun && failure.error.to_string().contains("waits for 3 late requests"), "{failure:?}");
    }
    let error = refused(&mut *model, requests().split_off(1));
    assert!(error.contains("2 late requests for 3 rows of logits"), "{error}");
    let unseen = |request| SampleRequest { unseen: Some(0), ..request };
    let error = refused(&mut *model, requests().into_iter().map(unseen).collect());
    assert!(error.contains("unseen"), "{error}");

    // What was refused has changed nothing.
    model.sample(requests()).unwrap();
    assert!(refused(&mut *model, requests()).contains("awaits none"));
    assert_eq!(model.collect().unwrap().len(), ROWS);
    model.submit_advanced(&[], &[]).unwrap();
    model.sample(requests()).unwrap();
    assert_eq!(model.collect().unwrap().len(), ROWS);

    let rows: Vec<StepRow> = branches.rows(2);
    let empty = StepBatch {
        logit_rows: Vec::new(),
        ..branches.batch(&rows, vec![RowToken::Known(TokenId(5)); ROWS], StepRequests::Late)
    };
    let failure = model.submit(empty).unwrap_err();
    assert!(failure.error.to_string().contains("do not fit each other"), "{failure:?}");
}
