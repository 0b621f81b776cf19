//! The experts chosen for the rows of a step, on the device: who chose whom, with which weight, and the places sorted
//! by expert. The host knows only how many there are.

use crate::compile::unit::Unit;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::small;
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;
use crate::memory::kv::{Kv, PAGE_TOKENS, SlotWords};
use crate::memory::weights::Vector;
use offshoot_backend::{Dtype, GroupMerit, Router, RouterScores, RouterWeighs};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::LayerIx;

/// The most experts of a mixture: as many as a block's table of tiles has, as in kernels/experts/tile.cuh.
const MOST_EXPERTS: usize = 1024;

/// Experts that a row can choose: a lane of a warp holds one, as in kernels/experts/route_choose.cu.
const MOST_CHOSEN: usize = 32;

/// Groups of experts: a lane of a warp judges one, as in kernels/experts/route_choose.cu.
const MOST_GROUPS: usize = 32;

/// Rows of a block of `route_choose`, one to a warp.
const CHOOSING_WARPS: usize = 4;

/// Threads of a block of `route_places`, and choices that a thread reads at a time.
const PLACES_THREADS: u32 = 512;
const PLACES_RUN: usize = 8;

/// Threads of a block of `route_keep`.
const KEEPING_THREADS: u32 = 256;

/// A place is a row at one of its experts; places are sorted by expert, those of an expert by row.
pub struct Routes {
    device: Device,
    choose: Function,
    sort: Function,
    experts: usize,
    router: Router,
    rows: usize,
    /// `[experts + 1]`: the first place of each expert, and the number of places.
    firsts: Memory,
    /// Experts that had places, summed over all routes, and the number of these.
    needed: Memory,
    /// Absent until there has been a row.
    choices: Option<Choices>,
}

/// One entry for each choice or place.
struct Choices {
    capacity: usize,
    /// u16 `[rows, chosen]`, in the order they were chosen in.
    experts: Memory,
    /// f32 `[rows, chosen]`
    weights: Memory,
    /// The place of each choice, and the row of each place.
    places: Memory,
    rows: Memory,
}

impl Choices {
    fn new(device: &Device, capacity: usize) -> Result<Self> {
        let words = || device.alloc(capacity * size_of::<u32>());
        let experts = device.alloc(capacity.next_multiple_of(PLACES_RUN) * size_of::<u16>())?;
        Ok(Self { capacity, experts, weights: words()?, places: words()?, rows: words()? })
    }
}

impl Routes {
    /// Routes without rows. An error by `check`.
    pub fn new(device: &Device, experts: usize, router: Router) -> Result<Self> {
        assert!(router.chooses_among(experts), "routes: {router:?} among {experts} experts");
        check(experts, router)?;
        device.prepare(&units::routes())?;
        Ok(Self {
            choose: device.function(&Unit::new(&units::ROUTE_CHOOSE), "route_choose")?,
            sort: device.function(&Unit::new(&units::ROUTE_PLACES), "route_places")?,
            firsts: device.alloc((experts + 1) * size_of::<u32>())?,
            device: device.clone(),
            needed: device.zeroed(2 * size_of::<u32>())?,
            experts,
            router,
            rows: 0,
            choices: None,
        })
    }

    /// Sets the row count; contents are unspecified afterwards. Returns whether addresses have changed.
    pub fn resize(&mut self, rows: usize) -> Result<bool> {
        let places = rows * self.router.chosen;
        let grows = self.choices.as_ref().map_or(0, |choices| choices.capacity) < places;
        if grows {
            self.rows = 0;
            self.choices = None;
            self.choices = Some(Choices::new(&self.device, places)?);
        }
        self.rows = rows;
        Ok(grows)
    }

    /// Experts that have matrices, the first ones.
    pub fn multiplied(&self) -> usize {
        self.experts - self.router.identities
    }

    pub fn weighs(&self) -> RouterWeighs {
        self.router.weighs
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn chosen(&self) -> usize {
        self.router.chosen
    }

    pub fn places(&self) -> usize {
        self.rows * self.router.chosen
    }

    pub fn firsts(&self) -> &Memory {
        &self.firsts
    }

    pub fn rows_of_places(&self) -> &Memory {
        &self.choices().rows
    }

    pub fn places_of_choices(&self) -> &Memory {
        &self.choices().places
    }

    pub fn weights(&self) -> &Memory {
        &self.choices().weights
    }

    /// Where the number of places at experts that have matrices lies: those of identities are behind them.
    pub fn multiplied_places(&self) -> (&Memory, usize) {
        (&self.firsts, self.multiplied() * size_of::<u32>())
    }

    fn choices(&self) -> &Choices {
        self.choices.as_ref().expect("an op is enqueued only for routes with rows")
    }

    /// See `Backend::route`.
    pub fn route(&self, scores: &Buffer, factors: Option<&Vector>, bias: Option<&Vector>) {
        assert_eq!((scores.rows, scores.width), (self.rows, self.experts), "route: shape of the scores");
        assert_eq!(scores.element, Dtype::F32, "route: scores are f32");
        let is_of_experts = |vector: Option<&Vector>| vector.is_none_or(|vector| vector.len == self.experts);
        assert!(is_of_experts(factors) && is_of_experts(bias), "route: a factor and a bias for each expert");
        if self.rows == 0 {
            return;
        }
        let (choices, experts, chosen) = (self.choices(), small(self.experts), small(self.router.chosen));
        let args = Args::new().memory(&choices.experts).memory(&choices.weights).memory(scores.memory());
        let args = [factors, bias]
            .into_iter()
            .fold(args, |args, vector| args.memory_or_null(vector.map(|vector| &vector.memory)));
        let args = args.u32(small(self.rows)).u32(experts).u32(chosen).u32(scores_number(self.router.scores));
        let (groups, kept, sums_two) = match self.router.groups {
            None => (0, 0, false),
            Some(groups) => (groups.count, groups.chosen, groups.merit == GroupMerit::SumOfTwo),
        };
        let args = args.u32(small(groups)).u32(small(kept)).u32(u32::from(sums_two));
        let args = args.f32(scores_operand(self.router.scores));
        let blocks = small(self.rows.div_ceil(CHOOSING_WARPS));
        let keys = CHOOSING_WARPS * self.experts * size_of::<u32>();
        self.device.launch(&self.choose, [blocks, 1, 1], small(CHOOSING_WARPS * 32), keys, &args);

        let args = Args::new().memory(&self.firsts).memory(&choices.rows).memory(&choices.places);
        let args = args.memory(&self.needed).memory(&choices.experts).u32(small(self.places())).u32(chosen);
        let args = args.u32(experts).u32(small(self.multiplied()));
        self.device.launch(&self.sort, [experts, 1, 1], PLACES_THREADS, 0, &args);
    }
}

impl Routes {
    /// See `Backend::keep_routes`.
    pub fn keep(&self, kv: &Kv, layer: LayerIx, slots: SlotWords<'_>) {
        let shape = kv.routes();
        assert_eq!(self.router.chosen, shape.chosen, "keep_routes: experts of a row");
        if self.rows == 0 {
            return;
        }
        let SlotWords { words, member } = slots;
        let args = Args::new().memory_at(kv.memory(), kv.routes_at()).memory(&self.choices().experts);
        let args = args.memory_at(words.0, words.1).u32(small(self.places())).u32(small(shape.chosen));
        let args = args.u32(small(layer.ix() * shape.chosen * shape.id_bytes())).u32(small(shape.id_bytes()));
        let args = args.u32(small(shape.slot_bytes())).u32(small(shape.page_bytes(PAGE_TOKENS)));
        let args = args.u32(member.number).u32(member.of);
        let blocks = small(self.places().div_ceil(KEEPING_THREADS as usize));
        self.device.launch(kv.route_keep(), [blocks, 1, 1], KEEPING_THREADS, 0, &args);
    }
}

impl Drop for Routes {
    /// Logs how many experts a step needed: what floors are counted from.
    fn drop(&mut self) {
        if !log::log_enabled!(log::Level::Debug) || self.choices.is_none() {
            return;
        }
        match self.device.download(&self.needed, 0..2 * size_of::<u32>()) {
            Ok(bytes) => {
                let [sum, routes] = [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i])));
                let mean = f64::from(sum) / f64::from(routes.max(1));
                let experts = self.multiplied();
                log::debug!("{mean:.1} of {experts} experts had rows, in the mean of {routes} routes");
            }
            Err(error) => log::debug!("how many experts had rows is not known: {error}"),
        }
    }
}

/// An error if there are more experts or groups, or more of them are chosen, than the kernels' tables hold.
fn check(experts: usize, router: Router) -> Result<()> {
    check_count(experts)?;
    within("groups of experts (n_group)", router.groups.map_or(0, |groups| groups.count), MOST_GROUPS)?;
    within("experts per token (num_experts_per_tok)", router.chosen, MOST_CHOSEN)
}

/// An error if there are more experts than the kernels' tables hold.
pub fn check_count(experts: usize) -> Result<()> {
    within("experts of a layer", experts, MOST_EXPERTS)
}

fn within(what: &str, found: usize, most: usize) -> Result<()> {
    if found <= most {
        return Ok(());
    }
    Err(Error::value(what, format!("at most {most} on a GPU; the CPU takes any"), found.to_string()))
}

/// As in kernels/experts/route_choose.cu.
fn scores_number(scores: RouterScores) -> u32 {
    match scores {
        RouterScores::Softmax { normalise: false } => 0,
        RouterScores::Softmax { normalise: true } | RouterScores::SoftmaxOfChosen => 1,
        RouterScores::Sigmoid { sum: None } => 2,
        RouterScores::Sigmoid { sum: Some(_) } => 3,
        RouterScores::SparseMixer { .. } => 4,
    }
}

/// What that kernel calls `number`; 0 where it reads none.
fn scores_operand(scores: RouterScores) -> f32 {
    match scores {
        RouterScores::Sigmoid { sum: Some(least) } => least.number(),
        RouterScores::SparseMixer { spread } => spread,
        RouterScores::Softmax { .. } | RouterScores::SoftmaxOfChosen | RouterScores::Sigmoid { sum: None } => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use offshoot_backend::{GroupMerit, RouterGroups};

    use super::*;

    #[test]
    fn routers_that_no_kernel_takes_are_named() {
        let router = |chosen: usize, count: usize| {
            let groups = RouterGroups { count, chosen: count / 2, merit: GroupMerit::Best };
            Router { groups: Some(groups), ..Router::new(chosen, RouterScores::Softmax { normalise: false }) }
        };
        assert!(check(1024, router(32, 32)).is_ok());
        for (experts, router, said) in [
            (1025, router(8, 8), "experts of a layer"),
            (1024, router(8, 64), "n_group"),
            (1024, router(33, 8), "num_experts_per_tok"),
        ] {
            let error = check(experts, router).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("on a GPU; the CPU takes any"), "{error}");
        }
    }
}
