//! Mixtures of experts on every code path of the CPU: what the router chooses and how it weighs, what the experts
//! compute, compared with f64; and that a row has the same bits alone as among others.

use offshoot::backend::cpu::{Cpu, CpuBuffer, Isa};
use offshoot::backend::{Backend, Dtype, ExpertInput, ExpertKind, MatrixPart, Router, RouterScores, WeightView};

use crate::ops::{DTYPES, Numbers, UNIT, Weights, bits, check_linear};

const SCORES: [RouterScores; 5] = [
    RouterScores::Softmax { normalise: false },
    RouterScores::Softmax { normalise: true },
    RouterScores::SoftmaxOfChosen,
    RouterScores::Sigmoid { normalise: false },
    RouterScores::Sigmoid { normalise: true },
];

/// The weight of every expert for each row, `[rows, experts]`: zero where it was not chosen. Expert `e` here turns a one
/// into the unit vector `e`.
fn weights(cpu: &mut Cpu, router: Router, scores: &CpuBuffer, factors: Option<&Vec<f32>>) -> CpuBuffer {
    let (rows, count) = (scores.rows, scores.width);
    let unit = |expert: usize| {
        let column: Vec<f32> = (0..count).map(|e| if e == expert { 1.0 } else { 0.0 }).collect();
        Dtype::F32.encode(&column)
    };
    let matrices = (0..count).map(|expert| {
        let bytes = unit(expert);
        let view = WeightView { dtype: Dtype::F32, rows: count, cols: 1, bytes: &bytes };
        cpu.matrix(&[MatrixPart::Dense(view)]).unwrap()
    });
    let matrices = matrices.collect();
    let experts = cpu.experts(matrices, Vec::new(), ExpertKind::Linear).unwrap();
    let mut routes = cpu.routes(count, router).unwrap();
    cpu.resize_routes(&mut routes, rows).unwrap();
    cpu.route(&mut routes, scores, factors);
    let ones = CpuBuffer { rows, width: 1, data: vec![1.0; rows] };
    let mut places = CpuBuffer::new(rows * router.chosen, count);
    cpu.expert_linear(&mut places, &ones, &experts, &routes, ExpertInput::Rows);
    let mut out = CpuBuffer::new(rows, count);
    cpu.combine(&mut out, &places, &routes);
    out
}

/// The definition, in f64.
fn expected(router: Router, scores: &[f32], factors: Option<&Vec<f32>>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    let chosen = &order[..router.chosen];
    let exp = |e: usize| f64::from(scores[e]).exp();
    let sigmoid = |e: usize| 1.0 / (1.0 + f64::from(-scores[e]).exp());
    let sum = |over: &[usize], of: &dyn Fn(usize) -> f64| over.iter().map(|&e| of(e)).sum::<f64>();
    let weight = |e: usize| match router.scores {
        RouterScores::Softmax { normalise: false } => exp(e) / sum(&order, &exp),
        RouterScores::Softmax { normalise: true } | RouterScores::SoftmaxOfChosen => exp(e) / sum(chosen, &exp),
        RouterScores::Sigmoid { normalise: false } => sigmoid(e),
        RouterScores::Sigmoid { normalise: true } => sigmoid(e) / sum(chosen, &sigmoid),
    };
    let mut weights = vec![0.0; scores.len()];
    for &e in chosen {
        weights[e] = weight(e) * factors.map_or(1.0, |factors| f64::from(factors[e]));
    }
    weights
}

#[test]
fn routers_choose_the_largest_scores_and_weigh_them() {
    for isa in Isa::available() {
        let mut cpu = Cpu::with_isa(isa);
        let mut numbers = Numbers::new(3);
        for scores_of in SCORES {
            for (rows, count, chosen) in [(1, 1, 1), (5, 4, 2), (3, 8, 8), (130, 7, 3), (2, 128, 8)] {
                let router = Router { chosen, scores: scores_of };
                let mut scores = numbers.buffer(rows, count);
                scores.data.iter_mut().for_each(|score| *score *= 6.0);
                let factors = (count % 2 == 0).then(|| numbers.vec(count));
                let found = weights(&mut cpu, router, &scores, factors.as_ref());
                for row in 0..rows {
                    let expected = expected(router, scores.row(row), factors.as_ref());
                    for (e, (found, expected)) in found.row(row).iter().zip(expected).enumerate() {
                        // Exponentials of up to two units each, their sum over all experts, a division and two products.
                        let tolerance = (count + 8) as f64 * UNIT * expected.abs();
                        let near = (f64::from(*found) - expected).abs() <= tolerance;
                        assert!(near, "{isa}, {router:?}, row {row}, expert {e}: {found} for {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn of_equal_scores_the_first_expert_is_chosen() {
    let mut cpu = Cpu::with_isa(Isa::Portable);
    let scores = CpuBuffer { rows: 1, width: 5, data: vec![0.5, 1.0, 1.0, -2.0, 1.0] };
    let router = Router { chosen: 2, scores: RouterScores::SoftmaxOfChosen };
    assert_eq!(weights(&mut cpu, router, &scores, None).data, [0.0, 0.5, 0.5, 0.0, 0.0]);
}

/// Experts of some shapes for rows that a router spreads over them, one expert being chosen by none.
fn experts_of(isa: Isa, dtype: Dtype, rows: usize, outputs: usize, inputs: usize) {
    let what = format!("{isa}, {dtype:?}, {rows} x {inputs} -> {outputs}");
    let mut numbers = Numbers::new((rows * 31 + outputs * 7 + inputs) as u64);
    let mut cpu = Cpu::with_isa(isa);
    let (count, chosen) = (5, 2);
    let stored: Vec<Weights> = (0..count).map(|_| Weights::random(&mut numbers, dtype, outputs, inputs)).collect();
    let matrices = stored.iter().map(|w| cpu.matrix(&[w.part()]).unwrap()).collect();
    let biases: Vec<Vec<f32>> = (0..count).map(|_| numbers.vec(outputs)).collect();
    let experts = cpu.experts(matrices, biases.clone(), ExpertKind::Linear).unwrap();
    let mut scores = numbers.buffer(rows, count);
    (0..rows).for_each(|row| scores.data[row * count + 3] = -10.0);
    let x = numbers.buffer(rows, inputs);

    let router = Router { chosen, scores: RouterScores::SoftmaxOfChosen };
    let run = |cpu: &mut Cpu, rows: usize, scores: &CpuBuffer, x: &CpuBuffer| {
        let mut routes = cpu.routes(count, router).unwrap();
        cpu.resize_routes(&mut routes, rows).unwrap();
        cpu.route(&mut routes, scores, None);
        let mut places = CpuBuffer::new(rows * chosen, outputs);
        cpu.expert_linear(&mut places, x, &experts, &routes, ExpertInput::Rows);
        let mut inputs_by_place = CpuBuffer::new(rows * chosen, inputs);
        for place in 0..rows * chosen {
            inputs_by_place.data[place * inputs..][..inputs].copy_from_slice(x.row(routes.row(place)));
        }
        let mut again = CpuBuffer::new(rows * chosen, outputs);
        cpu.expert_linear(&mut again, &inputs_by_place, &experts, &routes, ExpertInput::Places);
        assert_eq!(bits(&again.data), bits(&places.data), "{what}: by rows and by places");
        let mut out = CpuBuffer::new(rows, outputs);
        cpu.combine(&mut out, &places, &routes);
        (routes, places, out)
    };
    let (routes, places, out) = run(&mut cpu, rows, &scores, &x);
    assert!(routes.groups().all(|(expert, _)| expert != 3), "nobody chose it");
    for (expert, at) in routes.groups() {
        let of = |buffer: &CpuBuffer, row: usize| buffer.row(row).to_vec();
        let inputs_of: Vec<f32> = at.clone().flat_map(|place| of(&x, routes.row(place))).collect();
        let found: Vec<f32> = at.clone().flat_map(|place| of(&places, place)).collect();
        let found = CpuBuffer { rows: at.len(), width: outputs, data: found };
        let inputs_of = CpuBuffer { rows: at.len(), width: inputs, data: inputs_of };
        check_linear(isa, &what, &found, &inputs_of, &stored[expert], Some(&biases[expert]), None);
    }
    for row in 0..rows {
        let one = |buffer: &CpuBuffer| CpuBuffer { rows: 1, width: buffer.width, data: buffer.row(row).to_vec() };
        let (_, _, alone) = run(&mut cpu, 1, &one(&scores), &one(&x));
        assert_eq!(bits(alone.row(0)), bits(out.row(row)), "{what}: row {row} alone");
    }
}

#[test]
fn experts_multiply_their_rows_whatever_else_is_in_the_step() {
    for isa in Isa::available() {
        for dtype in DTYPES {
            for rows in [1, 2, 7, 33] {
                experts_of(isa, dtype, rows, 40, 37);
            }
            experts_of(isa, dtype, 3, 1, 1);
            experts_of(isa, dtype, 90, 130, 600);
        }
    }
}
