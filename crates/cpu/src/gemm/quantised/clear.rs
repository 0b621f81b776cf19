//! The definition of a linear layer with quantised weights. Activations are rounded as the format says. Where they and
//! the weights are int8, the products of a group are summed as integers, exactly. Otherwise a group's sum is one chain
//! of f32 multiply-adds over its inputs in the order of the codes. Sums of groups, times their scales, are added in
//! rising order.

use super::operand::Operand;
use super::panels::QuantPanels;
use crate::CpuBuffer;
use crate::gemm::clear::over_panels;
use crate::gemm::pack::PANEL;
use crate::team::Team;
use offshoot_backend::OutputMode;

/// See `quantised::linear`.
pub fn linear(
    team: &Team,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    w: &QuantPanels,
    bias: Option<&[f32]>,
    mode: OutputMode,
) {
    let widen = |p: usize, numbers: &mut [[f32; PANEL]]| {
        for (k, numbers) in numbers.iter_mut().enumerate() {
            *numbers = std::array::from_fn(|lane| w.number(p, k, lane));
        }
    };
    let products = |operand: &Operand, p: usize, numbers: &[[f32; PANEL]]| operand.products(w, p, numbers);
    over_panels(team, out, w.cols, bias, mode, |r| Operand::of(w, x.row(r)), widen, products);
}

impl Operand {
    /// The products of this row and the outputs of panel `p`, whose codes stand for `numbers`, by input and output.
    fn products(&self, w: &QuantPanels, p: usize, numbers: &[[f32; PANEL]]) -> [f32; PANEL] {
        let group = w.format.group_inputs(w.cols).max(1);
        let mut sums = [0.0; PANEL];
        for g in 0..w.groups() {
            let scales: [f32; PANEL] = std::array::from_fn(|lane| w.scales.get(p, g, lane));
            let inputs = g * group..w.cols.min((g + 1) * group);
            let of_group: [f32; PANEL] = match self {
                Operand::Numbers(x) => {
                    let mut products = [0.0; PANEL];
                    for (x, numbers) in x[inputs.clone()].iter().zip(&numbers[inputs]) {
                        products.iter_mut().zip(numbers).for_each(|(product, number)| *product += x * number);
                    }
                    std::array::from_fn(|lane| products[lane] * scales[lane])
                }
                Operand::Int8 { codes, scale } => {
                    let mut products = [0i32; PANEL];
                    for (&code, numbers) in codes[inputs.clone()].iter().zip(&numbers[inputs]) {
                        for (product, &number) in products.iter_mut().zip(numbers) {
                            *product = product.wrapping_add(i32::from(code) * number as i32);
                        }
                    }
                    std::array::from_fn(|lane| products[lane] as f32 * (scale * scales[lane]))
                }
            };
            sums.iter_mut().zip(of_group).for_each(|(sum, of_group)| *sum += of_group);
        }
        sums
    }
}
