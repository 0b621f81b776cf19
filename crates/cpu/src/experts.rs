//! Mixtures of experts: the router and the sums over a row's experts. Both are clear loops: they touch few numbers
//! beside the experts' products, which `gemm::grouped` multiplies.

use super::rows::for_rows;
use super::team::Team;
use super::{CpuBuffer, CpuWeights};
use offshoot_backend::{OutputMode, Router, RouterScores};

/// Rows routed in one part: a few microseconds.
const ROUTED_ROWS: usize = 16;

/// The matrices of a mixture's experts, and their biases (none, or one each).
pub struct CpuExperts {
    pub matrices: Vec<CpuWeights>,
    pub biases: Vec<Vec<f32>>,
}

impl CpuExperts {
    pub fn bias(&self, expert: usize) -> Option<&[f32]> {
        self.biases.get(expert).map(Vec::as_slice)
    }
}

/// The experts chosen for some rows. A place is one row at one of its experts; places are sorted by expert, those of an
/// expert by row.
pub struct CpuRoutes {
    experts: usize,
    router: Router,
    /// `[rows][chosen]`, the likeliest first.
    choices: Vec<Choice>,
    /// The row of each place.
    rows: Vec<u32>,
    /// The first place of each expert, and the number of places.
    firsts: Vec<u32>,
    /// The next place of each expert, while rows are sorted.
    next: Vec<u32>,
}

/// A row at one of its experts.
#[derive(Clone, Copy, Default)]
struct Choice {
    expert: u32,
    weight: f32,
    place: u32,
}

impl CpuRoutes {
    pub fn new(experts: usize, router: Router) -> Self {
        Self { experts, router, choices: Vec::new(), rows: Vec::new(), firsts: vec![0; experts + 1], next: Vec::new() }
    }

    pub fn resize(&mut self, rows: usize) {
        self.choices.resize(rows * self.router.chosen, Choice::default());
        self.rows.resize(rows * self.router.chosen, 0);
    }

    /// Experts with places: each with the range of its places.
    pub fn groups(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let ranges = self.firsts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
        ranges.enumerate().filter(|(_, places)| !places.is_empty())
    }

    /// The experts chosen for a row, the likeliest first.
    pub fn chosen(&self, row: usize) -> impl Iterator<Item = u32> {
        let chosen = self.router.chosen;
        self.choices[row * chosen..][..chosen].iter().map(|choice| choice.expert)
    }

    pub fn places(&self) -> usize {
        self.rows.len()
    }

    /// The row of a place.
    pub fn row(&self, place: usize) -> usize {
        self.rows[place] as usize
    }

    /// See `Backend::route`.
    pub fn route(&mut self, team: &Team, scores: &CpuBuffer, factors: Option<&[f32]>) {
        let Router { chosen, .. } = self.router;
        assert_eq!((scores.rows * chosen, scores.width), (self.choices.len(), self.experts), "route: shapes");
        let router = self.router;
        team.for_chunks(&mut self.choices, ROUTED_ROWS * chosen, |share, choices| {
            for (i, choices) in choices.chunks_exact_mut(chosen).enumerate() {
                choose(router, scores.row(share * ROUTED_ROWS + i), choices);
                if let Some(factors) = factors {
                    choices.iter_mut().for_each(|choice| choice.weight *= factors[choice.expert as usize]);
                }
            }
        });
        self.sort();
    }

    /// Gives every choice its place: a counting sort by expert that keeps the order of rows.
    fn sort(&mut self) {
        self.firsts.fill(0);
        for choice in &self.choices {
            self.firsts[choice.expert as usize + 1] += 1;
        }
        for expert in 0..self.experts {
            self.firsts[expert + 1] += self.firsts[expert];
        }
        self.next.clone_from(&self.firsts);
        for (i, choice) in self.choices.iter_mut().enumerate() {
            let place = &mut self.next[choice.expert as usize];
            choice.place = *place;
            self.rows[*place as usize] = (i / self.router.chosen) as u32;
            *place += 1;
        }
    }

    /// See `Backend::combine`.
    pub fn combine(&self, team: &Team, out: &mut CpuBuffer, x: &CpuBuffer, mode: OutputMode) {
        match mode {
            OutputMode::Replace => self.combine_rows(team, out, x, |out, sum| *out = sum),
            OutputMode::Add => self.combine_rows(team, out, x, |out, sum| *out += sum),
        }
    }

    /// Calls `store` with each element of `out` and its sum, which is complete.
    fn combine_rows(&self, team: &Team, out: &mut CpuBuffer, x: &CpuBuffer, store: impl Fn(&mut f32, f32) + Sync) {
        const LANES: usize = 16;
        let Router { chosen, .. } = self.router;
        assert_eq!((out.rows * chosen, out.width), (x.rows, x.width), "combine: shapes");
        for_rows(team, out, |row, out| {
            let choices = &self.choices[row * chosen..][..chosen];
            for (i, out) in out.chunks_mut(LANES).enumerate() {
                let mut sums = [0.0f32; LANES];
                for choice in choices {
                    let x = &x.row(choice.place as usize)[i * LANES..][..out.len()];
                    sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += choice.weight * x);
                }
                out.iter_mut().zip(sums).for_each(|(out, sum)| store(out, sum));
            }
        });
    }
}

/// Chooses the experts with the largest scores, the first one of equals, and weighs them.
fn choose(router: Router, scores: &[f32], choices: &mut [Choice]) {
    let rank = |&a: &usize, &b: &usize| scores[b].total_cmp(&scores[a]).then(a.cmp(&b));
    let mut before = None;
    for choice in choices.iter_mut() {
        let rest = (0..scores.len()).filter(|expert| before.is_none_or(|before| rank(&before, expert).is_lt()));
        let expert = rest.min_by(rank).expect("there are at least as many experts as are chosen");
        (choice.expert, before) = (expert as u32, Some(expert));
    }
    let largest = scores[choices[0].expert as usize];
    let weight = |expert: usize| match router.scores {
        RouterScores::Softmax { .. } | RouterScores::SoftmaxOfChosen => (scores[expert] - largest).exp(),
        RouterScores::Sigmoid { .. } => 1.0 / (1.0 + (-scores[expert]).exp()),
    };
    let sum: f32 = match router.scores {
        RouterScores::Softmax { normalise: false } => (0..scores.len()).map(weight).sum(),
        RouterScores::Sigmoid { normalise: false } => 1.0,
        _ => choices.iter().map(|choice| weight(choice.expert as usize)).sum(),
    };
    choices.iter_mut().for_each(|choice| choice.weight = weight(choice.expert as usize) / sum);
}
