//! Late requests of a whole model: a text of some rows whose steps are enqueued before the host has read the tokens of
//! the step before, and whose requests follow from those. The definition is the same text in the CPU's clear loops,
//! whose steps are loaded with their requests.

use std::sync::Arc;

use offshoot_backend::{
    AllowedTokens, Backend, Dtype, Filters, Pick, RowToken, SampleRequest, SampledToken, SeenToken, StepBatch,
    StepRequests,
};
use offshoot_cases::case::ANY_VOCAB;
use offshoot_cases::{CaseResult, CheckReport, WorstError};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{GroupIx, SegmentId, TokenId};
use offshoot_kv::plan::{NewPage, Planner};
use offshoot_kv::{PagePool, PrefixTree, StepRow};
use offshoot_model::check::tolerance;
use offshoot_model::{Decoder, ModelConfig};

use super::forward::definition;

const ROWS: usize = 11;
/// Enough for rows to fill their pages, and for the shape of the steps to be captured.
const STEPS: u32 = 80;
/// Every so many steps the next one is planned anew; the others are the one before, advanced.
const PLANNED: u32 = 20;
const PROMPT: usize = 9;

/// How a run's requests reach its steps.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// With the step, which is loaded when the tokens of the one before are known.
    Given,
    /// After the step is enqueued, and before that the tokens of the one before are read.
    Late,
}

/// Compares the text of late requests on `backend` with the definition's.
pub fn late<B: Backend>(backend: &mut B, report: &mut CheckReport) -> Result<()> {
    let config = ModelConfig::from_json(&format!(
        r#"{{ "model_type": "llama", "hidden_size": 128, "intermediate_size": 200, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": {ANY_VOCAB},
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5 }}"#
    ))?;
    let expected = text(&mut definition(), &config, When::Given)?;
    let found = text(backend, &config, When::Late)?;
    // In f32 no random number of these lies so near a boundary that rounding could cross it.
    let parted = expected.iter().zip(&found).position(|(a, b)| a.token != b.token);
    let scale = expected.iter().fold(1.0f32, |scale, sampled| scale.max(sampled.logprob.abs()));
    let difference = |(a, b): (&SampledToken, &SampledToken)| f64::from((a.logprob - b.logprob).abs());
    let worst = expected.iter().zip(&found).map(difference).fold(0.0, f64::max);
    let is_same = parted.is_none() && expected.len() == found.len();
    let error = if is_same { worst } else { f64::INFINITY };
    let what = match parted {
        None => format!("{ROWS} rows, {STEPS} steps"),
        Some(at) => format!("row {} of step {}: {:?} for {:?}", at % ROWS, at / ROWS, found[at], expected[at]),
    };
    let tolerance = 2.0 * f64::from(tolerance(Dtype::F32, config.layers.len(), scale));
    report.see("run, late", Some(Dtype::F32), what, CaseResult::once(WorstError { error, tolerance }));
    Ok(())
}

/// What a run samples, step by step.
fn text<B: Backend>(backend: &mut B, config: &ModelConfig, when: When) -> Result<Vec<SampledToken>> {
    let mut decoder = Decoder::random(backend, config.clone(), Dtype::F32, 5)?;
    let mut step = decoder.step(backend)?;
    let branches = Branches::new(backend.page_tokens())?;
    let mut kv = backend.kv(&decoder.kv_shape(branches.pages))?;
    let prompt = branches.prompt_rows();
    let tokens = Branches::prompt().into_iter().map(RowToken::Known).collect();
    let batch = branches.batch(&decoder, &prompt, tokens, StepRequests::None);
    decoder.forward(backend, &mut kv, &mut step, batch)?;
    backend.collect(&mut step)?;

    let mut texts: Vec<Vec<TokenId>> = vec![vec![TokenId(5)]; ROWS];
    let mut all = Vec::new();
    let mut read = |texts: &mut Vec<Vec<TokenId>>, sampled: Vec<Option<SampledToken>>| -> Result<()> {
        for (text, sampled) in texts.iter_mut().zip(sampled) {
            let sampled = sampled.ok_or_else(|| Error::Internal("a row sampled no token".to_owned()))?;
            text.push(sampled.token);
            all.push(sampled);
        }
        Ok(())
    };
    for number in 0..STEPS {
        let rows = branches.rows(number);
        if when == When::Given {
            let tokens = texts.iter().map(|text| RowToken::Known(text[number as usize])).collect();
            let batch = branches.batch(&decoder, &rows, tokens, requests(&texts).into());
            decoder.forward(backend, &mut kv, &mut step, batch)?;
            read(&mut texts, backend.collect(&mut step)?)?;
            continue;
        }
        let shape = if number.is_multiple_of(PLANNED) {
            let token = |row: usize| match number {
                0 => RowToken::Known(texts[row][0]),
                _ => RowToken::Sampled(row as u32),
            };
            let batch = branches.batch(&decoder, &rows, (0..ROWS).map(token).collect(), StepRequests::Late);
            decoder.load_batch(backend, &mut step, batch)?
        } else {
            decoder.load_advanced(backend, &mut step, &[], &branches.new_pages(number))?
        };
        decoder.enqueue(backend, &mut kv, &mut step, shape)?;
        if number > 0 {
            read(&mut texts, backend.collect(&mut step)?)?;
        }
        decoder.sample_late(backend, &mut step, requests(&texts)).map_err(|failure| failure.error)?;
    }
    if when == When::Late {
        read(&mut texts, backend.collect(&mut step)?)?;
    }
    Ok(all)
}

/// Requests for the tokens behind these texts: what each allows and penalises follows from its text.
fn requests(texts: &[Vec<TokenId>]) -> Vec<SampleRequest> {
    texts.iter().enumerate().map(|(row, text)| request(row as u32, text)).collect()
}

fn request(row: u32, text: &[TokenId]) -> SampleRequest {
    let (number, vocab) = (text.len() as u32, ANY_VOCAB as u32);
    let last = text.last().map_or(0, |token| token.0);
    let uniform = f64::from((number * 37 + row * 11) % 101) / 101.0;
    let filters = Filters { temperature: 1.5, ..Filters::default() };
    let allowed: Vec<TokenId> = match (number + row) % 4 {
        0 => vec![TokenId((last + 3 + row) % vocab)],
        _ => (0..vocab).filter(|token| (token + last) % 3 == number % 3).map(TokenId).collect(),
    };
    let seen = |(at, &token): (usize, &TokenId)| {
        let is_first = !text[..at].contains(&token);
        let sampled = text.iter().filter(|other| **other == token).count() as u32;
        is_first.then_some(SeenToken { token, sampled, in_prompt: false })
    };
    SampleRequest {
        // One row is not held to anything.
        allowed: (row > 0).then(|| Arc::new(AllowedTokens::new(allowed, ANY_VOCAB))),
        frequency_penalty: if row.is_multiple_of(5) { 0.2 } else { 0.0 },
        seen: text.iter().enumerate().filter_map(seen).collect(),
        ..SampleRequest::of(Pick::Random { filters, uniform })
    }
}

/// Rows below one prompt, each with room for all steps.
struct Branches {
    tree: PrefixTree,
    trunk: SegmentId,
    leaves: Vec<SegmentId>,
    pages: usize,
}

impl Branches {
    fn new(page_tokens: u32) -> Result<Self> {
        let of_tokens = |tokens: usize| tokens / page_tokens as usize + 2;
        let pages = of_tokens(PROMPT) + ROWS * of_tokens(STEPS as usize);
        let (mut pool, mut tree) = (PagePool::new(pages), PrefixTree::new(page_tokens));
        let short = |_| Error::Internal("the pool of the rows is too small".to_owned());
        let trunk = tree.admit(&mut pool, &Self::prompt()).map_err(short)?;
        let leaves: Vec<SegmentId> = (0..ROWS).map(|_| tree.fork(trunk)).collect();
        for &leaf in &leaves {
            tree.append(&mut pool, leaf, &[TokenId(0); STEPS as usize]).map_err(short)?;
        }
        Ok(Self { tree, trunk, leaves, pages })
    }

    fn prompt() -> Vec<TokenId> {
        (0..PROMPT).map(|i| TokenId::new(i * 7 % ANY_VOCAB)).collect()
    }

    fn prompt_rows(&self) -> Vec<StepRow> {
        (0..PROMPT as u32).map(|position| StepRow { segment: self.trunk, position }).collect()
    }

    /// The rows of step `number`.
    fn rows(&self, number: u32) -> Vec<StepRow> {
        let row = |&segment: &SegmentId| StepRow { segment, position: PROMPT as u32 + number };
        self.leaves.iter().map(row).collect()
    }

    fn new_pages(&self, number: u32) -> Vec<NewPage> {
        let slots = (0u32..).zip(self.rows(number)).map(|(row, at)| (row, self.tree.slot(at.segment, at.position)));
        let firsts = slots.filter(|(_, slot)| slot.slot == 0);
        firsts.map(|(row, slot)| NewPage { group: GroupIx(0), row, page: slot.page }).collect()
    }

    fn batch<B: Backend>(
        &self,
        decoder: &Decoder<B>,
        rows: &[StepRow],
        tokens: Vec<RowToken>,
        requests: StepRequests,
    ) -> StepBatch {
        let samples = !matches!(requests, StepRequests::None);
        let forest = self.tree.forest(rows);
        StepBatch {
            tokens,
            positions: rows.iter().map(|row| row.position).collect(),
            slots: vec![rows.iter().map(|row| self.tree.slot(row.segment, row.position)).collect()],
            logit_rows: if samples { (0..rows.len() as u32).collect() } else { Vec::new() },
            plans: decoder.plan_hints().iter().map(|hints| Planner::Balanced.plan(&forest, hints)).collect(),
            requests,
            ..StepBatch::default()
        }
    }
}
