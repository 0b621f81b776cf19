//! Attention attribution of tokens that an engine drew: the shares that dense attention gives its levels, whatever the
//! chunks, the plans and the paths that were computed before.

use offshoot_backend::{
    ActivationDtype, Attended, AttentionLevels, Backend, LevelBounds, LevelMass, LevelRow, MOST_LEVELS,
};
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_engine::SamplingParams;
use offshoot_kv::plan::Planner;
use offshoot_model::Attribution;

use super::bench::{CONTEXT, Mode, Shape, decoder, draw, finish, finishes, key, length, params, prompt, roomy};
use super::plain::whole;

/// Inside pages, which have 16 tokens.
fn bounds() -> LevelBounds {
    LevelBounds::behind(&[5, 23, 40]).unwrap()
}

/// The attention of `own` along a prompt, by a fresh model in steps of at most `step_rows` rows.
fn along(shape: Shape, step_rows: usize, prompt: &[TokenId], bounds: LevelBounds, own: &[TokenId]) -> Vec<LevelMass> {
    let (mut backend, mut decoder) = decoder(shape);
    let mut attribution = Attribution::new(&mut backend, &mut decoder, CONTEXT, step_rows).unwrap();
    attribution.along(prompt, bounds, own).unwrap()
}

/// The attention of every row of one forward over `tokens`: as the ops find it by this planner, and as dense attention
/// in f64 computes it from the queries and keys of each layer.
fn forward(shape: Shape, tokens: &[TokenId], planner: Planner) -> (Vec<LevelMass>, Vec<[f64; MOST_LEVELS]>) {
    let (mut backend, mut decoder) = decoder(shape);
    let (mut kv, batch) = whole(&mut backend, &decoder, tokens, planner);
    let level_rows: Vec<LevelRow> = (0..tokens.len() as u32).map(|row| LevelRow { row, bounds: bounds() }).collect();
    let level_rows = backend.level_rows(&kv, &batch.plans, &level_rows).unwrap();
    let heads = decoder.config().heads().next().unwrap();
    let layers = decoder.config().heads().count();
    let mut buffer = |width| {
        let mut buffer = backend.buffer(width, ActivationDtype::Sums).unwrap();
        backend.resize(&mut buffer, tokens.len()).unwrap();
        buffer
    };
    let (mut lse, mut mass) = (buffer(heads.q_heads * MOST_LEVELS), buffer(MOST_LEVELS));
    let mut dense = vec![[0.0; MOST_LEVELS]; tokens.len()];
    let mut step = decoder.step(&mut backend).unwrap();
    let observe = |backend: &mut Cpu, read: Attended<'_, Cpu>| {
        backend.level_lse(&mut lse, &read, &level_rows);
        backend.add_level_mass(&mut mass, &lse, read.layer, layers);
        for (row, shares) in dense.iter_mut().enumerate() {
            for head in 0..heads.q_heads {
                let of_head = dense_shares(shape, &read, row, head);
                shares.iter_mut().zip(of_head).for_each(|(sum, x)| *sum += x / (heads.q_heads * layers) as f64);
            }
        }
    };
    decoder.forward_observed(&mut backend, &mut kv, &mut step, batch, observe).unwrap();
    assert!(backend.collect(&mut step).unwrap().is_empty(), "nothing is drawn");
    (mass.data.as_chunks().0.to_vec(), dense)
}

/// The softmax of a row's head over all that it sees, summed by level.
fn dense_shares(shape: Shape, read: &Attended<'_, Cpu>, row: usize, head: usize) -> [f64; MOST_LEVELS] {
    let heads = read.kv.heads(read.layer);
    let d = heads.head_dim;
    let query = &read.qkv.row(row)[head * d..][..d];
    let mut shares = [0.0; MOST_LEVELS];
    for p in 0..=row {
        if !matches!(shape, Shape::Full | Shape::Mixture | Shape::Hybrid) && row - p >= 21 {
            continue;
        }
        let key = &read.qkv.row(p)[heads.q_width() + head / heads.group() * d..][..d];
        let dot: f64 = query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
        let level = (0..MOST_LEVELS).find(|&level| bounds().level(level).contains(&(p as u32))).unwrap();
        shares[level] += (dot * f64::from(read.scoring.scale)).exp();
    }
    let total: f64 = shares.iter().sum();
    shares.map(|share| share / total)
}

fn shares_are_those_of_dense_attention_whatever_the_chunks_and_the_plan(mode: Mode) {
    for shape in [Shape::Full, Shape::Windowed, Shape::Hybrid] {
        let engine = mode.engine_of(shape, roomy());
        let prompt = prompt(3, 40);
        let root = engine.root(prompt.clone()).unwrap();
        let own = finish(&engine, draw(root, key("greedy", 0), SamplingParams::greedy(), length(20))).tokens;
        let found = along(shape, 512, &prompt, bounds(), &own);
        for step_rows in [1, 7, 40] {
            assert_eq!(along(shape, step_rows, &prompt, bounds(), &own), found, "{shape:?}, {step_rows} rows a step");
        }
        // The last token drew nothing.
        let drew = [&prompt[..], &own[..19]].concat();
        for planner in Planner::ALL {
            let (masses, dense) = forward(shape, &drew, planner);
            assert_eq!(masses[39..], found, "{shape:?}, {planner}");
            for (mass, dense) in masses.iter().flatten().zip(dense.iter().flatten()) {
                assert!((f64::from(*mass) - dense).abs() < 1e-5, "{shape:?}: {mass}, not {dense}");
            }
        }
        for (drawn, mass) in found.iter().enumerate() {
            assert!((mass.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{mass:?}");
            // The window of 21 leaves the first levels behind; without one, all are seen.
            let seen: Vec<bool> = mass[..4].iter().map(|&mass| mass > 0.0).collect();
            match shape {
                Shape::Full | Shape::Mixture | Shape::Hybrid | Shape::Latent => {
                    assert_eq!(seen, [true, true, true, drawn > 0])
                }
                Shape::Windowed | Shape::LongWindowed | Shape::LongMixed => {
                    assert_eq!(seen, [false, 40 + drawn < 23 + 21, true, drawn > 0])
                }
            }
        }
    }
}

fn what_was_computed_before_changes_no_share(mode: Mode) {
    let engine = mode.engine(roomy());
    let trunk = prompt(1, 40);
    let children = engine.fork(engine.root(trunk.clone()).unwrap(), 5).unwrap();
    let extends = (0..).zip(&children).map(|(i, &child)| draw(child, key("a", i), params(), length(30))).collect();
    let drawn: Vec<Vec<TokenId>> = finishes(&engine, extends).into_iter().map(|finish| finish.tokens).collect();
    let mut paths: Vec<(&[TokenId], LevelBounds, &[TokenId])> = Vec::new();
    for own in &drawn {
        paths.push((&trunk, bounds(), own));
    }
    // A path again, its beginning, other levels, a longer and a shorter prompt of the same tokens, another prompt, no
    // tokens.
    let longer = [&trunk[..], &drawn[0][..3]].concat();
    let other = prompt(2, 25);
    paths.extend([
        (&trunk[..], bounds(), &drawn[4][..]),
        (&trunk, bounds(), &drawn[4][..11]),
        (&trunk, LevelBounds::behind(&[7]).unwrap(), &drawn[4]),
        (&trunk, bounds(), &drawn[0]),
        (&longer, bounds(), &drawn[0][3..]),
        (&trunk[..38], bounds(), &drawn[0]),
        (&other, bounds(), &drawn[1]),
        (&trunk, bounds(), &[]),
        (&trunk, bounds(), &drawn[2]),
    ]);
    let (mut backend, mut decoder) = decoder(Shape::Full);
    let mut attribution = Attribution::new(&mut backend, &mut decoder, CONTEXT, 13).unwrap();
    for (number, (prompt, bounds, own)) in paths.into_iter().enumerate() {
        let found = attribution.along(prompt, bounds, own).unwrap();
        assert_eq!(found.len(), own.len());
        assert_eq!(found, along(Shape::Full, 512, prompt, bounds, own), "path {number}");
    }
    let error = attribution.along(&[], bounds(), &drawn[0]).unwrap_err();
    assert!(error.to_string().contains("prompt: expected at least one token"), "{error}");
}

in_modes! {
    in_turn, run_ahead:
    shares_are_those_of_dense_attention_whatever_the_chunks_and_the_plan,
    what_was_computed_before_changes_no_share,
}
