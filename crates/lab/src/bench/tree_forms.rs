//! Trees of latents whose nodes are attended to in the forms that the planner chooses (`bench attention --form
//! cheapest`): absorbed attention, the map of what it has read, attention to copies, which are made before, and the
//! merge of both. All four are timed together, the map also by itself.

use super::tables::median;
use super::tree_attention::{LAYER, TIMES, drawn};
use super::trees::{PagedTree, TreeSpec};
use offshoot_backend::{
    ActivationDtype, CopyStore, Expansion, HeldPart, KvShape, LatentHeads, MatrixPart, RandomWeight, Scoring, Split,
    StepBatch, Timed, Uniform,
};
use offshoot_cases::case::{buffer, rows_at, run, tails};
use offshoot_cases::dense::relative_error;
use offshoot_cases::setting::hints;
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;
use offshoot_kv::CopyCache;
use offshoot_kv::plan::{LatentForm, LatentFormChoice, LatentHints, PlanHints, Planner};

/// The layer of copies.
const COPY_LAYER: LayerIx = LayerIx(0);

/// What was measured of a tree.
pub(super) struct MeasuredTreeForms {
    pub us: Vec<f64>,
    /// The median of the map alone.
    pub map_us: f64,
    /// Of the results, relative to those of the same tree all absorbed, on the same device.
    pub difference: f64,
    pub items: usize,
}

/// Measures a tree, of which `kv` has the latents.
pub(super) fn measure_forms<B: Timed>(
    backend: &mut B,
    tree: &TreeSpec,
    latents: LatentHeads,
    (paged, kv): (&PagedTree, &B::Kv),
    planner: Planner,
    sharpness: f32,
) -> Result<MeasuredTreeForms> {
    let rows = paged.forest.row_positions.len();
    let width = latents.query_width();
    let queries = drawn(tree.dtype, 3, rows, width, 0..width, sharpness);
    let (_, absorbed) =
        attend(backend, tree, latents, (paged, kv), planner, LatentFormChoice::All(LatentForm::Absorbed), &queries)?;
    let (measured, found) = attend(backend, tree, latents, (paged, kv), planner, LatentFormChoice::Cheapest, &queries)?;
    let absorbed: Vec<f64> = absorbed.into_iter().map(f64::from).collect();
    Ok(MeasuredTreeForms { difference: relative_error(std::iter::once((&found[..], &absorbed[..]))), ..measured })
}

/// Times the ops in the forms of `choice`, and reads their results.
fn attend<B: Timed>(
    backend: &mut B,
    tree: &TreeSpec,
    latents: LatentHeads,
    (paged, kv): (&PagedTree, &B::Kv),
    planner: Planner,
    choice: LatentFormChoice,
    queries: &[f32],
) -> Result<(MeasuredTreeForms, Vec<f32>)> {
    let (absorbed, expanded, dtype) = (latents.absorbed(), latents.expanded(), tree.dtype);
    let small = |size: usize| u32::try_from(size).expect("heads are far below 2^32");
    let hints = PlanHints {
        latents: Some(LatentHints {
            nope: small(latents.nope),
            rope: small(latents.rope),
            value: small(latents.value),
            tile: backend.attention_tile(expanded, dtype, None),
            copy_element_bytes: small(backend.kv_element_bytes(expanded, dtype)),
            has_copies: true,
        }),
        ..hints(backend, absorbed, dtype, None)
    };
    let mut cache = CopyCache::new([paged.pages, 0]);
    let plans = cache.with_room(|_| 0, |room| planner.plan_forms(&paged.forest, &hints, choice, room));
    let copied = cache.assign(plans.copied, |_| 0);
    let [kept, again] = copied.plans;
    let items = plans.absorbed.items.len() + kept.items.len();
    let batch = |expansions: [Vec<Expansion>; CopyStore::COUNT]| StepBatch {
        plans: vec![plans.absorbed.clone(), kept.clone(), again.clone()],
        expansions: Some(expansions),
        ..rows_at(&paged.forest.row_positions)
    };
    let numbers = Uniform { stream: 1 << 50, centre: 0.0, reach: 0.1 };
    let part = MatrixPart::Random(RandomWeight::of(dtype, latents.map_rows(), latents.rank, numbers));
    let maps = backend.latent_maps(&[HeldPart { part, becomes: None }], latents, dtype, &Split::Whole, None)?;
    let pages = if kept.items.is_empty() { 1 } else { paged.pages };
    let mut copies = backend.kv(&KvShape::uniform(1, expanded, dtype, pages))?;
    let mut step = backend.step(&[absorbed, expanded, expanded], dtype, 1)?;
    let shape = backend.load(&mut step, batch(copied.expansions))?;
    if shape.copies[CopyStore::Kept as usize].expansions > 0 {
        run(backend, &mut step, shape, |backend, step| {
            backend.expand_latents(&mut copies, COPY_LAYER, kv, LAYER, &maps, CopyStore::Kept, step);
        })?;
    }
    let shape = backend.load(&mut step, batch(Default::default()))?;

    let (rows, operands) = (paged.forest.row_positions.len(), ActivationDtype::Operands(dtype));
    let mut absorbing = buffer(backend, operands, shape.rows, absorbed.q_width(), &tails(latents, queries))?;
    let queries = buffer(backend, operands, shape.rows, latents.query_width(), queries)?;
    let mut read = buffer(backend, operands, shape.rows, absorbed.out_width(), &[])?;
    let mut out = buffer(backend, operands, shape.rows, latents.out_width(), &[])?;
    let mut other = buffer(backend, operands, shape.rows, latents.out_width(), &[])?;
    let mut lse = buffer(backend, ActivationDtype::Sums, shape.rows, latents.heads, &[])?;
    let mut other_lse = buffer(backend, ActivationDtype::Sums, shape.rows, latents.heads, &[])?;
    run(backend, &mut step, shape, |backend, _| backend.absorb_queries(&mut absorbing, &queries, &maps))?;
    let scale = ((latents.nope + latents.rope) as f32).powf(-0.5);
    let us = backend.time(&mut step, shape, TIMES, |backend, step| {
        let scoring = Scoring::scaled(scale);
        backend.tree_attention_lse(&mut read, &mut lse, &absorbing, kv, LAYER, step, 0, scoring);
        backend.map_values(&mut out, &read, &maps);
        if shape.copies[CopyStore::Kept as usize].is_read {
            let (to, to_lse, scoring) = (&mut other, &mut other_lse, Scoring::scaled(scale));
            backend.tree_attention_lse(to, to_lse, &queries, &copies, COPY_LAYER, step, 1, scoring);
            backend.merge_attended(&mut out, &mut lse, &other, &other_lse);
        }
        Ok(())
    })?;
    let found = backend.read(&out, rows)?;
    let map_us = backend.time(&mut step, shape, TIMES, |backend, _| {
        backend.map_values(&mut out, &read, &maps);
        Ok(())
    })?;
    Ok((MeasuredTreeForms { us, map_us: median(map_us), difference: 0.0, items }, found))
}
