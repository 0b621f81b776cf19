//! Mixtures of experts: the router and the sums over a row's experts. Both are clear loops: they touch few numbers
//! beside the experts' products, which `gemm::grouped` multiplies.

use super::rows::for_rows;
use super::team::Team;
use super::{CpuBuffer, CpuWeights};
use offshoot_backend::{GroupMerit, OutputMode, Router, RouterGroups, RouterScores, RouterWeighs};

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
    /// `[rows][chosen]`, in the order they were chosen in.
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
        assert!(router.chooses_among(experts), "routes: {router:?} among {experts} experts");
        Self { experts, router, choices: Vec::new(), rows: Vec::new(), firsts: vec![0; experts + 1], next: Vec::new() }
    }

    pub fn resize(&mut self, rows: usize) {
        self.choices.resize(rows * self.router.chosen, Choice::default());
        self.rows.resize(rows * self.router.chosen, 0);
    }

    /// Experts that have matrices and places: each with the range of its places.
    pub fn groups(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let ranges = self.firsts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
        ranges.take(self.multiplied()).enumerate().filter(|(_, places)| !places.is_empty())
    }

    /// Experts that have matrices.
    fn multiplied(&self) -> usize {
        self.experts - self.router.identities
    }

    /// The experts chosen for a row, in the order they were chosen in.
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
    pub fn route(&mut self, team: &Team, scores: &CpuBuffer, factors: Option<&[f32]>, bias: Option<&[f32]>) {
        let Router { chosen, .. } = self.router;
        assert_eq!((scores.rows * chosen, scores.width), (self.choices.len(), self.experts), "route: shapes");
        assert!(bias.is_none_or(|bias| bias.len() == self.experts), "route: a bias for each expert");
        let router = self.router;
        team.for_chunks(&mut self.choices, ROUTED_ROWS * chosen, |share, choices| {
            let mut merits = Vec::new();
            for (i, choices) in choices.chunks_exact_mut(chosen).enumerate() {
                let scores = scores.row(share * ROUTED_ROWS + i);
                if bias.is_some() || router.groups.is_some() {
                    judge(router, scores, bias, &mut merits);
                    choose(&merits, choices);
                } else {
                    choose(scores, choices);
                }
                weigh(router.scores, scores, choices);
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

    /// See `Backend::weigh_places`.
    pub fn weigh_places(&self, team: &Team, out: &mut CpuBuffer, x: &CpuBuffer) {
        assert_eq!((out.rows, out.width), (self.places(), x.width), "weigh_places: shapes");
        let mut weights = vec![0.0; self.places()];
        self.choices.iter().for_each(|choice| weights[choice.place as usize] = choice.weight);
        for_rows(team, out, |place, out| {
            out.iter_mut().zip(x.row(self.row(place))).for_each(|(out, x)| *out = weights[place] * x);
        });
    }

    /// See `Backend::combine`.
    pub fn combine(
        &self,
        team: &Team,
        out: &mut CpuBuffer,
        x: &CpuBuffer,
        input: Option<&CpuBuffer>,
        mode: OutputMode,
    ) {
        match mode {
            OutputMode::Replace => self.combine_rows(team, out, x, input, |out, sum| *out = sum),
            OutputMode::Add => self.combine_rows(team, out, x, input, |out, sum| *out += sum),
        }
    }

    /// Calls `store` with each element of `out` and its sum, which is complete.
    fn combine_rows(
        &self,
        team: &Team,
        out: &mut CpuBuffer,
        x: &CpuBuffer,
        input: Option<&CpuBuffer>,
        store: impl Fn(&mut f32, f32) + Sync,
    ) {
        const LANES: usize = 16;
        let Router { chosen, weighs, .. } = self.router;
        assert_eq!((out.rows * chosen, out.width), (x.rows, x.width), "combine: shapes");
        let is_of_rows = |input: &CpuBuffer| (input.rows, input.width) == (out.rows, out.width);
        assert!(input.is_none_or(is_of_rows), "combine: a row of the input for each row");
        let given = |row: usize, choice: &Choice| match (choice.expert as usize) < self.multiplied() {
            true => Some(x.row(choice.place as usize)),
            false => input.map(|input| input.row(row)),
        };
        for_rows(team, out, |row, out| {
            let choices = &self.choices[row * chosen..][..chosen];
            for (i, out) in out.chunks_mut(LANES).enumerate() {
                let mut sums = [0.0f32; LANES];
                for choice in choices {
                    let Some(x) = given(row, choice) else { continue };
                    let x = &x[i * LANES..][..out.len()];
                    let weight = if weighs == RouterWeighs::Inputs { 1.0 } else { choice.weight };
                    sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * x);
                }
                out.iter_mut().zip(sums).for_each(|(out, sum)| store(out, sum));
            }
        });
    }
}

/// The merits of a row's experts (see `Router`); -inf in groups that the row does not keep.
fn judge(router: Router, scores: &[f32], bias: Option<&[f32]>, merits: &mut Vec<f32>) {
    merits.clear();
    match router.scores {
        RouterScores::Softmax { .. } | RouterScores::SoftmaxOfChosen | RouterScores::SparseMixer { .. } => {
            let (largest, sum) = softmax_over(scores.iter().copied());
            merits.extend(scores.iter().map(|score| (score - largest).exp() / sum));
        }
        RouterScores::Sigmoid { .. } => merits.extend(scores.iter().copied().map(sigmoid)),
    }
    if let Some(bias) = bias {
        merits.iter_mut().zip(bias).for_each(|(merit, bias)| *merit += bias);
    }
    if let Some(groups) = router.groups {
        leave_groups(groups, merits);
    }
}

/// Makes the merits of all groups but the best -inf.
fn leave_groups(groups: RouterGroups, merits: &mut [f32]) {
    let size = merits.len() / groups.count;
    let mut ranked: Vec<(usize, f32)> =
        merits.chunks_exact(size).map(|group| of_group(groups.merit, group)).enumerate().collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    for &(group, _) in ranked.iter().skip(groups.chosen) {
        merits[group * size..][..size].fill(f32::NEG_INFINITY);
    }
}

/// The merit of a group whose experts have these.
fn of_group(merit: GroupMerit, merits: &[f32]) -> f32 {
    let mut two = [f32::NEG_INFINITY; 2];
    for &merit in merits {
        if merit.total_cmp(&two[0]).is_gt() {
            two = [merit, two[0]];
        } else if merit.total_cmp(&two[1]).is_gt() {
            two[1] = merit;
        }
    }
    match merit {
        GroupMerit::Best => two[0],
        GroupMerit::SumOfTwo => two[0] + two[1],
    }
}

/// Chooses the experts with the largest `ranks`, the first one of equals.
fn choose(ranks: &[f32], choices: &mut [Choice]) {
    let rank = |&a: &usize, &b: &usize| ranks[b].total_cmp(&ranks[a]).then(a.cmp(&b));
    let mut before = None;
    for choice in choices.iter_mut() {
        let rest = (0..ranks.len()).filter(|expert| before.is_none_or(|before| rank(&before, expert).is_lt()));
        let expert = rest.min_by(rank).expect("there are at least as many experts as are chosen");
        (choice.expert, before) = (expert as u32, Some(expert));
    }
}

/// Weighs the chosen experts by the scores of all.
fn weigh(kind: RouterScores, scores: &[f32], choices: &mut [Choice]) {
    let score = |choice: &Choice| scores[choice.expert as usize];
    match kind {
        RouterScores::Softmax { .. } | RouterScores::SoftmaxOfChosen => {
            let (largest, sum) = match kind {
                RouterScores::Softmax { normalise: false } => softmax_over(scores.iter().copied()),
                _ => softmax_over(choices.iter().map(score)),
            };
            choices.iter_mut().for_each(|choice| choice.weight = (score(choice) - largest).exp() / sum);
        }
        RouterScores::Sigmoid { sum } => {
            choices.iter_mut().for_each(|choice| choice.weight = sigmoid(score(choice)));
            if let Some(least) = sum {
                let sum = choices.iter().map(|choice| choice.weight).sum::<f32>() + least.number();
                choices.iter_mut().for_each(|choice| choice.weight /= sum);
            }
        }
        RouterScores::SparseMixer { spread } => {
            for ix in 0..choices.len() {
                let (before, most) = (&choices[..ix], score(&choices[ix]));
                let is_left = |expert: usize| before.iter().all(|choice| choice.expert as usize != expert);
                let is_near = |score: f32| (most - score) / score.abs().max(most) <= spread || most == score;
                let near = scores.iter().enumerate().filter(|(expert, score)| is_left(*expert) && is_near(**score));
                choices[ix].weight = 1.0 / near.map(|(_, score)| (score - most).exp()).sum::<f32>();
            }
        }
    }
}

/// The largest of some scores, and the sum of their exponentials below it.
fn softmax_over(scores: impl Iterator<Item = f32> + Clone) -> (f32, f32) {
    let largest = scores.clone().max_by(f32::total_cmp).expect("there is an expert");
    (largest, scores.map(|score| (score - largest).exp()).sum())
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
