//! Rows whose experts are chosen, and the choice and weights that they should get, in f64. Scores are skewed, so that
//! some experts have most rows and some none, and few, so that many are equal; where merits choose, some are so large
//! that their sigmoids are 1. A row of which rounding could decide the choice is drawn again.

use std::fmt;

use super::activations::sigmoid;
use crate::case::{buffer, vector};
use offshoot_backend::{ActivationDtype, Backend, GroupMerit, LeastSum, Router, RouterScores};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;

/// The part of the larger of two merits up to which they are too close to tell, if they are not equal.
const CLOSE: f32 = 1e-5;

/// Draws of a row, of which one can be told.
const DRAWS: usize = 1000;

/// Rows whose experts are chosen.
#[derive(Clone)]
pub(super) struct Routed {
    pub rows: usize,
    pub experts: usize,
    pub router: Router,
    pub scores: Vec<f32>,
    /// Added to merits, one for each expert.
    pub bias: Option<Vec<f32>>,
}

/// An expert of a row, with its weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    pub expert: usize,
    pub weight: f64,
}

impl Routed {
    /// Rows of a router without a bias.
    pub fn random(dice: &mut Dice, rows: usize, experts: usize, router: Router) -> Self {
        Self::drawn(dice, rows, experts, router, None)
    }

    /// Rows of a router with a bias.
    pub fn biased(dice: &mut Dice, rows: usize, experts: usize, router: Router) -> Self {
        // Sigmoids are wider apart than parts of a softmax.
        let step = if is_softmax(router.scores) { 64.0 } else { 8.0 };
        let bias = (0..experts).map(|_| dice.within(0, 4) as f32 / step).collect();
        Self::drawn(dice, rows, experts, router, Some(bias))
    }

    fn drawn(dice: &mut Dice, rows: usize, experts: usize, router: Router, bias: Option<Vec<f32>>) -> Self {
        let mut routed = Self { rows: 0, experts, router, scores: Vec::new(), bias };
        let saturates = routed.has_merits();
        while routed.rows < rows {
            let row = routed.rows;
            routed.rows += 1;
            let decided = (0..DRAWS).any(|_| {
                let drawn = (0..experts).map(|expert| score(dice, expert, saturates));
                routed.scores.truncate(row * experts);
                routed.scores.extend(drawn);
                routed.is_decided(row)
            });
            assert!(decided, "{routed}: rounding decides the choices of row {row} in {DRAWS} draws");
        }
        routed
    }

    fn has_merits(&self) -> bool {
        self.bias.is_some() || self.router.groups.is_some()
    }

    pub fn places(&self) -> usize {
        self.rows * self.router.chosen
    }

    /// Experts that have matrices, the first ones.
    pub fn multiplied(&self) -> usize {
        self.experts - self.router.identities
    }

    pub fn route<B: Backend>(&self, backend: &mut B, factors: Option<&Vec<f32>>) -> Result<B::Routes> {
        let mut routes = backend.routes(self.experts, self.router)?;
        backend.resize_routes(&mut routes, self.rows)?;
        let scores = buffer(backend, ActivationDtype::Sums, self.rows, self.experts, &self.scores)?;
        let mut of_experts = |values: Option<&Vec<f32>>| values.map(|values| vector(backend, values)).transpose();
        let (factors, bias) = (of_experts(factors)?, of_experts(self.bias.as_ref())?);
        backend.route(&mut routes, &scores, factors.as_ref(), bias.as_ref());
        Ok(routes)
    }

    fn scores_of(&self, row: usize) -> &[f32] {
        &self.scores[row * self.experts..][..self.experts]
    }

    /// The softmax over all experts, or the sigmoid, of a row's scores.
    fn shares(&self, row: usize) -> Vec<f64> {
        let scores: Vec<f64> = self.scores_of(row).iter().copied().map(f64::from).collect();
        if !is_softmax(self.router.scores) {
            return scores.into_iter().map(sigmoid).collect();
        }
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        scores.into_iter().map(|score| score.exp() / sum).collect()
    }

    /// What a row's experts are ranked by: scores, or merits as f32 holds them.
    fn ranks(&self, row: usize) -> Vec<f32> {
        if !self.has_merits() {
            return self.scores_of(row).to_vec();
        }
        let bias = |expert: usize| self.bias.as_ref().map_or(0.0, |bias| bias[expert]);
        self.shares(row).into_iter().enumerate().map(|(expert, share)| share as f32 + bias(expert)).collect()
    }

    /// The groups, the best first, each with the merits it is judged by.
    fn ranked_groups(&self, ranks: &[f32]) -> Vec<(usize, Vec<f32>)> {
        let Some(groups) = self.router.groups else { return vec![(0, Vec::new())] };
        let judged = |group: &[f32]| {
            let mut best = group.to_vec();
            best.sort_by(|a, b| b.total_cmp(a));
            best.truncate(match groups.merit {
                GroupMerit::Best => 1,
                GroupMerit::SumOfTwo => 2,
            });
            best
        };
        let mut all: Vec<_> = ranks.chunks(self.experts / groups.count).map(judged).enumerate().collect();
        all.sort_by(|(_, a), (_, b)| b.iter().sum::<f32>().total_cmp(&a.iter().sum()));
        all
    }

    /// The experts that a row may choose, the best first.
    fn ranked(&self, row: usize) -> Vec<usize> {
        let ranks = self.ranks(row);
        let (count, kept) = self.router.groups.map_or((1, 1), |groups| (groups.count, groups.chosen));
        let best: Vec<usize> = self.ranked_groups(&ranks).iter().take(kept).map(|group| group.0).collect();
        let mut order: Vec<usize> =
            (0..self.experts).filter(|expert| best.contains(&(expert / (self.experts / count)))).collect();
        order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]));
        order
    }

    /// Whether no two neighbours in a row's ranking that could change places are too close to tell. Equal ones are
    /// told apart by their numbers.
    fn is_decided(&self, row: usize) -> bool {
        if !self.has_merits() {
            return true;
        }
        let apart = |a: f32, b: f32| (a - b).abs() > CLOSE * a.abs().max(b.abs());
        let (ranks, order) = (self.ranks(row), self.ranked(row));
        let order = &order[..order.len().min(self.router.chosen + 1)];
        let groups = self.ranked_groups(&ranks);
        let kept = self.router.groups.map_or(1, |groups| groups.chosen);
        // A group's merit of equal merits is equal; one that two sums of others happen to have is not told.
        let groups_apart = groups
            .get(kept - 1..=kept)
            .is_none_or(|pair| pair[0].1 == pair[1].1 || apart(pair[0].1.iter().sum(), pair[1].1.iter().sum()));
        groups_apart
            && order.windows(2).all(|pair| ranks[pair[0]] == ranks[pair[1]] || apart(ranks[pair[0]], ranks[pair[1]]))
    }

    /// The experts of a row, in the order they are chosen in.
    pub fn choice(&self, row: usize) -> Vec<Chosen> {
        let (shares, order) = (self.shares(row), self.ranked(row));
        let chosen = &order[..self.router.chosen];
        let of_chosen = || chosen.iter().map(|&expert| shares[expert]).sum::<f64>();
        let sum = match self.router.scores {
            RouterScores::Softmax { normalise: false } | RouterScores::Sigmoid { sum: None } => 1.0,
            RouterScores::Softmax { normalise: true } | RouterScores::SoftmaxOfChosen => of_chosen(),
            RouterScores::Sigmoid { sum: Some(LeastSum::Tiny) } => of_chosen() + 1e-20,
            RouterScores::Sigmoid { sum: Some(LeastSum::Millionth) } => of_chosen() + 1e-6,
            RouterScores::SparseMixer { spread } => return self.mixed(row, chosen, spread),
        };
        chosen.iter().map(|&expert| Chosen { expert, weight: shares[expert] / sum }).collect()
    }

    /// The choices of a sparse mixer.
    fn mixed(&self, row: usize, chosen: &[usize], spread: f32) -> Vec<Chosen> {
        let scores: Vec<f64> = self.scores_of(row).iter().copied().map(f64::from).collect();
        let of_choice = |(ix, &expert): (usize, &usize)| {
            let most = scores[expert];
            let counts = |other: &usize| {
                let far = (most - scores[*other]) / scores[*other].abs().max(most) > f64::from(spread);
                !chosen[..ix].contains(other) && !far
            };
            let sum: f64 = (0..scores.len()).filter(counts).map(|other| (scores[other] - most).exp()).sum();
            Chosen { expert, weight: 1.0 / sum }
        };
        chosen.iter().enumerate().map(of_choice).collect()
    }

    /// Each place, in order: its row, and which of the row's experts it is at.
    pub fn places_in_order(&self) -> Vec<(usize, Chosen)> {
        let mut places: Vec<_> =
            (0..self.rows).flat_map(|row| self.choice(row).into_iter().map(move |chosen| (row, chosen))).collect();
        places.sort_by(|(a, one), (b, other)| one.expert.cmp(&other.expert).then(a.cmp(b)));
        places
    }

    /// Places at experts that have matrices, the first ones.
    pub fn multiplied_places(&self) -> usize {
        self.places_in_order().iter().filter(|(_, chosen)| chosen.expert < self.multiplied()).count()
    }
}

fn is_softmax(scores: RouterScores) -> bool {
    !matches!(scores, RouterScores::Sigmoid { .. })
}

/// One of few scores, larger for the first experts; some experts are never chosen where there are others. `saturates`:
/// the sigmoids of some are 1.
fn score(dice: &mut Dice, expert: usize, saturates: bool) -> f32 {
    let lead = if expert % 5 == 4 { -40.0 } else { -((expert % 7) as f32) / 2.0 };
    let more = if saturates && lead > -40.0 && dice.within(0, 5) == 0 { 24.0 } else { 0.0 };
    lead + more + dice.within(0, 16) as f32 / 4.0
}

impl fmt::Display for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows, {} of {} experts", self.rows, self.router.chosen, self.experts)?;
        if let Some(groups) = self.router.groups {
            write!(f, ", {} of {} groups by {:?}", groups.chosen, groups.count, groups.merit)?;
        }
        if self.router.identities > 0 {
            write!(f, ", {} identities", self.router.identities)?;
        }
        f.write_str(if self.bias.is_some() { ", biased" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::RouterGroups;

    fn experts(routed: &Routed, row: usize) -> Vec<usize> {
        routed.choice(row).iter().map(|chosen| chosen.expert).collect()
    }

    /// Cases of biases and groups test something: many rows choose otherwise without them.
    #[test]
    fn biases_and_groups_change_choices() {
        let groups = Some(RouterGroups { count: 8, chosen: 4, merit: GroupMerit::SumOfTwo });
        let router = Router { groups, ..Router::new(6, RouterScores::Sigmoid { sum: Some(LeastSum::Tiny) }) };
        let routed = Routed::biased(&mut Dice::new(5), 100, 64, router);
        let unbiased = Routed { bias: None, ..routed.clone() };
        let ungrouped = Routed { router: Router { groups: None, ..router }, ..routed.clone() };
        for other in [unbiased, ungrouped] {
            let changed = (0..100).filter(|&row| experts(&other, row) != experts(&routed, row)).count();
            assert!(changed > 50, "{changed} of 100 rows of {other}");
        }
        // Scores that differ, whose sigmoids are both 1, are told apart by bias and number alone.
        let (mut saturated, mut first) = (routed.scores_of(0).to_vec(), routed.clone());
        saturated[..2].copy_from_slice(&[20.0, 30.0]);
        first.bias = Some(vec![0.0; 64]);
        first.scores[..64].copy_from_slice(&saturated);
        let order = first.ranked(0);
        let place = |expert: usize| order.iter().position(|&other| other == expert);
        assert!(place(0) < place(1), "{order:?}");
    }
}
