//! A simulated device with a model on it, and the memory for keys and values that a job would have there.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::plan_model::PlanModel;
use super::pool::Pool;
use super::replicas::Copying;
use super::second::{SecondAs, SecondModel, build_pair};
use crate::job::PlannedJob;
use crate::options::PlanOptions;
use crate::replay::{ReplaySettings, SimulatedMachine};
use offshoot_backend::ranks::{PARTS, divides_experts};
use offshoot_backend::{Backend, WeightFormat};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::bytes;
use offshoot_core::setting::{DEVICE_PROFILE, DEVICES, TENSOR_PARALLEL, WEIGHTS};
use offshoot_engine::CopyMemory;
use offshoot_kv::plan::{CopyRoom, PlanHints};
use offshoot_launch::{Demand, EngineBudget, EngineOptions, ModelSource, SecondFolder, gpu_names};
use offshoot_model::{ModelConfig, Quantisation, RunnerFacts, SharedKeys};
use offshoot_sim::{BackendKind, DeviceProfile, Sim};

/// Default host memory for preempted branches: the most that a run would take, because the memory of this machine says
/// nothing about the simulated one.
const SWAP_BYTES: usize = 32 << 30;

/// The profile of a job for which the user names none.
const DEFAULT_PROFILE: &str = "h200";

/// Memory for the states of recurrent layers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StateSizes {
    pub states: u64,
    pub state_bytes: u64,
}

pub struct DescribedDevice {
    pub machine: SimulatedMachine,
    pub settings: ReplaySettings,
    pub pool: Pool,
    pub described: String,
    pub kv_bytes_per_token: usize,
    /// The model as the device holds it.
    pub held: ModelConfig,
    /// Hints for each plan of a step, with the number of layers that go by it.
    pub hints: Vec<(PlanHints, u64)>,
    /// Sizes of the states of models with recurrent layers.
    pub states: Option<StateSizes>,
    /// Memory for copies of latents, of models with latent attention.
    pub copies: Option<CopyMemory>,
    /// The devices that compute the model together: how many, and the bytes of weights on each.
    pub ranks: Option<RankSizes>,
    /// What replicas on such devices would copy.
    pub copying: Copying,
    /// The model beside it.
    pub second: Option<SecondAs<SecondModel>>,
    /// Branches that run at once.
    pub branches: usize,
    /// Says that it was not chosen, unless it is what this machine has.
    pub note: Option<String>,
}

/// What to say of the default profile `of` on a machine with these GPUs.
fn note_on_default(of: &str, gpus: &[String]) -> Option<String> {
    let here = match gpus {
        [] => "this machine has no GPU".to_owned(),
        [first, ..] if first.to_ascii_lowercase().contains(of) => return None,
        [first, ..] => format!("this machine has {first}"),
    };
    Some(format!("estimated for the default profile {of}, but {here}; {DEVICE_PROFILE} names another device"))
}

/// The memory of each of several devices that compute one model together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RankSizes {
    pub ranks: usize,
    pub weight_bytes: u64,
    /// Bytes of weights that every device has.
    pub undivided_bytes: u64,
    pub pool_bytes: u64,
    pub kv_bytes_per_token: u64,
    /// How many of them divide the positions of a key head, and how many have copies of it.
    pub position_members: usize,
    pub kv_copies: usize,
}

impl fmt::Display for RankSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, weight_bytes, undivided_bytes, pool_bytes, kv_bytes_per_token, .. } = *self;
        write!(f, "of {ranks}: {} of weights ({} of them on all), ", bytes(weight_bytes), bytes(undivided_bytes))?;
        write!(f, "{} for keys and values, {} of them a token", bytes(pool_bytes), bytes(kv_bytes_per_token))?;
        match (self.position_members, self.kv_copies) {
            (1, 1) => Ok(()),
            (1, copies) => write!(f, ", copied on {copies}"),
            (members, _) => write!(f, ", divided by positions among {members}"),
        }
    }
}

impl DescribedDevice {
    /// The room for copies in steps that find those kept which they can use.
    pub fn copy_room(&self) -> CopyRoom<'static> {
        let pages = self.copies.map_or(CopyRoom::NONE.pages, |copies| copies.pages);
        CopyRoom { pages, holds: &|_, _| true }
    }

    /// Opens the built-in `profile`, or the file of that name, or the default, with `model` on it. The engine is built
    /// as in a run. `ranks`: how many of them compute the model together; `None`: one has all of it.
    pub fn open(profile: Option<&str>, ranks: Option<usize>, budget: &EngineBudget, model: &PlanModel) -> Result<Self> {
        Self::with(profile, ranks, &EngineOptions { budget: *budget, ..EngineOptions::default() }, None, model)
    }

    /// As [`open`](Self::open), with the devices of a job's options and the second model of the job.
    pub fn beside(profile: Option<&str>, options: &PlanOptions, job: &PlannedJob, model: &PlanModel) -> Result<Self> {
        let PlanOptions { ranks, replicas, budget, .. } = options;
        let second = job.second()?;
        let several = [(ranks, TENSOR_PARALLEL), (replicas, DEVICES)];
        let several = several.iter().find_map(|(devices, setting)| Some((devices.filter(|&n| n > 1)?, *setting)));
        if let (Some(second), Some((devices, setting))) = (&second, several) {
            let expected =
                format!("one device, as {} {} stands beside the model", second.kind(), second.path().display());
            return Err(Error::value(setting, expected, devices.to_string()));
        }
        let engine = EngineOptions { budget: *budget, ..EngineOptions::default() };
        Self::with(profile, *ranks, &engine, second.as_ref(), model)
    }

    fn with(
        profile: Option<&str>,
        ranks: Option<usize>,
        engine: &EngineOptions,
        second: Option<&SecondFolder>,
        model: &PlanModel,
    ) -> Result<Self> {
        let budget = &engine.budget;
        // The host memory of this machine is irrelevant.
        EngineBudget { swap_bytes: None, ..*budget }.check()?;
        let one = DeviceProfile::named(profile.unwrap_or(DEFAULT_PROFILE))?;
        let note = match profile {
            Some(_) => None,
            None => note_on_default(&one.name, &gpu_names()),
        };
        let together = ranks.unwrap_or(1);
        // As `launch` divides a model.
        let exact = budget.deterministic || one.backend == BackendKind::Cpu;
        if ranks.is_some() {
            model.config.check_ranks(together, exact)?;
        }
        let of_experts = |format| !model.config.has_experts() || one.multiplies_experts(format);
        // On ranks the codes of GGUF files become dense, and those of experts whose inputs would be cut within groups.
        let parts = if exact { PARTS } else { together };
        let divides = |format| match format {
            WeightFormat::Dense(_) => true,
            WeightFormat::Quantised(_) => {
                model.config.expert_widths().all(|width| divides_experts(format, width, parts))
            }
            WeightFormat::Blocks(_) => false,
        };
        let is_divided = |format| together == 1 || divides(format);
        let multiplies = |format| is_divided(format) && one.multiplies(format) && of_experts(format);
        let held = model.config.held_where(multiplies);
        let shared = model.config.shared_keys(together, exact, one.backend.divides_positions());
        let repeated = held.repeated_bytes(model.dtype, together, shared.members());
        let profile = Arc::new(if together > 1 { one.together(together, repeated, shared.members()) } else { one });
        let sim = Sim::new(profile.clone());
        let launch = engine.launch(ModelSource::random(&held, model.dtype), None, Demand::unbounded());
        if held.quantisation.is_none()
            && let Some(made @ Quantisation::Made { .. }) = &model.config.quantisation
        {
            let expected =
                format!("a device that multiplies them ({DEVICE_PROFILE} cpu), or weights as they are stored");
            return Err(Error::value(WEIGHTS, expected, format!("{made} on {}", profile.name)));
        }
        let (weights, memory) = (held.held_bytes(model.dtype, sim.latent_map_copies()), sim.free_bytes()?);
        let beside = second.map_or(0, |second| second.source().weight_bytes_on(&sim));
        if weights + beside > memory {
            let of_both = second.map_or_else(String::new, |second| format!(" of the model and {}", second.kind()));
            let expected = format!("at least {}, the size of the weights{of_both}", bytes((weights + beside) as u64));
            return Err(Error::value(format!("memory of {}", profile.name), expected, bytes(memory as u64)));
        }
        let (described, page_tokens) = (sim.describe(), sim.page_tokens());
        let loaded = launch.load(sim)?;
        let RunnerFacts { kv_bytes_per_token, plan_hints, layers_by_plan, .. } = loaded.facts();
        let layers = layers_by_plan.into_iter().map(|layers| layers as u64);
        let mut hints: Vec<_> = plan_hints.into_iter().zip(layers).collect();
        let (engine, handle, second) = match second {
            None => {
                let (engine, handle) = launch.build(loaded)?;
                (engine, handle, None)
            }
            Some(second) => {
                let (engine, handle, sizes) = build_pair(&launch, second, &profile)?;
                (engine, handle, Some(sizes))
            }
        };
        let facts = handle.facts();
        let settings = ReplaySettings {
            step_rows: engine.config().step_rows,
            pool_bytes: Some(
                facts.pool_pages * facts.page_bytes + facts.states * facts.state_bytes + facts.copies.bytes(),
            ),
            copies: held.latents().map(|_| facts.copies.bytes()),
            swap_bytes: budget.swap_bytes.unwrap_or(SWAP_BYTES),
            ..ReplaySettings::default()
        };
        // As the engine plans: with copies only where it has memory for them.
        let has_copies = facts.copies.is_some();
        for latents in hints.iter_mut().filter_map(|(hints, _): &mut (PlanHints, u64)| hints.latents.as_mut()) {
            latents.has_copies = has_copies;
        }
        let pool = Pool {
            pages: facts.pool_pages as u64,
            page_tokens,
            page_bytes: facts.page_bytes as u64,
            counts: facts.page_counts(),
        };
        let states = (facts.states > 0)
            .then_some(StateSizes { states: facts.states as u64, state_bytes: facts.state_bytes as u64 });
        let machine =
            SimulatedMachine { model: held.clone(), dtype: model.dtype, kv: budget.kv, states: budget.states, profile };
        Ok(Self {
            machine,
            settings,
            pool,
            described,
            kv_bytes_per_token,
            held: held.clone(),
            hints,
            states,
            copies: held.latents().map(|_| facts.copies),
            ranks: ranks.map(|ranks| RankSizes {
                ranks,
                weight_bytes: ((weights + repeated) / ranks) as u64,
                undivided_bytes: held.undivided_bytes(model.dtype, ranks) as u64,
                pool_bytes: (facts.pool_pages * facts.page_bytes / ranks) as u64,
                kv_bytes_per_token: (kv_bytes_per_token / ranks) as u64,
                position_members: shared.members(),
                kv_copies: if let SharedKeys::Copied { copies, .. } = shared { copies } else { 1 },
            }),
            copying: Copying::of(facts),
            second,
            branches: facts.max_branches,
            note,
        })
    }
}

#[cfg(test)]
#[path = "../../launch/tests/pair/folders.rs"]
mod folders;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::PathBuf;

    use super::*;
    use offshoot_backend::Dtype;
    use offshoot_engine::AdapterLimits;
    use offshoot_gguf::TensorType;
    use offshoot_launch::{JudgeFolderOptions, ScorerOptions};

    #[test]
    fn the_default_is_not_taken_for_the_device_of_this_machine() {
        let note = |gpus: &[&str]| {
            let gpus: Vec<String> = gpus.iter().map(|&name| name.to_owned()).collect();
            note_on_default("h200", &gpus)
        };
        assert!(note(&[]).is_some_and(|note| note.contains("has no GPU")));
        assert!(note(&["NVIDIA L4"]).is_some_and(|note| note.contains("h200") && note.contains("has NVIDIA L4")));
        assert_eq!(note(&["NVIDIA H200 NVL"]), None);
    }

    fn dense() -> ModelConfig {
        let fields = serde_json::json!({
            "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
            "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": true
        });
        ModelConfig::from_json(&fields.to_string()).unwrap()
    }

    fn model() -> PlanModel {
        PlanModel { path: PathBuf::from("a test"), config: dense(), dtype: Dtype::Bf16 }
    }

    fn beside(second: Option<&SecondFolder>) -> DescribedDevice {
        DescribedDevice::with(Some("h200"), None, &EngineOptions::default(), second, &model()).unwrap()
    }

    /// Checks the memory of a pair whose second model has so many bytes of weights, and returns what is left beside
    /// weights and steps.
    fn left_by(pair: &DescribedDevice, of_second: usize) -> u64 {
        let sizes = pair.second.as_ref().expect("a second model was asked for").model();
        // Norms are loaded in f32.
        let (of_model, of_second) = (dense().weight_bytes(Dtype::Bf16) as u64, of_second as u64);
        assert!(sizes.generator.weight_bytes.abs_diff(of_model) < of_model / 100);
        assert!(sizes.memory.weight_bytes.abs_diff(of_second) < of_second / 100);
        assert!(sizes.memory.step_bytes > 0 && sizes.generator.step_bytes > 0);
        assert_eq!(pair.pool.bytes(), sizes.generator.pool_bytes);
        let all = sizes.generator.total() + sizes.memory.total();
        assert!(all <= sizes.device_bytes, "{all}");
        sizes.device_bytes - (all - sizes.generator.pool_bytes - sizes.memory.pool_bytes)
    }

    #[test]
    fn a_scorer_and_the_model_divide_the_memory_of_the_device() {
        let path = folders::scorer();
        let open = |memory| {
            let scorer = ScorerOptions { memory, ..ScorerOptions::new(path.path()) }.open().unwrap();
            let weights = scorer.config().weight_bytes(Dtype::F32);
            (beside(Some(&SecondFolder::Scorer(Arc::new(scorer)))), weights)
        };
        let (pair, weights) = open(None);
        let left = left_by(&pair, weights);
        let second = pair.second.as_ref().expect("a scorer was asked for");
        let sizes = second.model();
        // Both pools are nine tenths of what weights and steps leave.
        let pools = sizes.generator.pool_bytes + sizes.memory.pool_bytes;
        assert!(pools.abs_diff(left / 10 * 9) < 1 << 20, "{pools} of {left}");
        // They hold texts of one length.
        assert!(pair.pool.tokens().abs_diff(sizes.pool_tokens) <= 2 * u64::from(pair.pool.page_tokens));
        assert!(pair.pool.bytes() < beside(None).pool.bytes());
        let third = open(Some(1.0 / 3.0)).0.second.expect("a scorer was asked for");
        let third = third.model();
        assert!((third.generator.pool_bytes / 2).abs_diff(third.memory.pool_bytes) < 1 << 20);
        let said: Vec<String> = second.estimate(1000).lines().into_iter().map(|(_, text)| text).collect();
        assert!(said[0].contains("form custom") && said[1].contains("1,000 tokens to score"), "{said:?}");
        assert!(said[3].starts_with("the scorer: ") && said[4].starts_with("both: "), "{said:?}");
        assert_eq!(serde_json::to_value(second).unwrap()["scorer"]["form"], "custom");
    }

    #[test]
    fn an_embedder_divides_memory_like_a_scorer() {
        let path = folders::embedder();
        let second = ScorerOptions::new(path.path()).open_values().unwrap();
        let pair = beside(Some(&second));
        let second = pair.second.expect("an embedder was asked for");
        assert!(pair.pool.tokens().abs_diff(second.model().pool_tokens) <= 2 * u64::from(pair.pool.page_tokens));
        let said: Vec<String> = second.estimate(1000).lines().into_iter().map(|(_, text)| text).collect();
        assert!(said[1].contains("1,000 tokens to read") && said[3].starts_with("the embedder: "), "{said:?}");
        assert!(serde_json::to_value(second).unwrap()["embedder"].is_object());
    }

    #[test]
    fn a_judge_has_memory_for_as_many_questions_as_it_answers_at_once() {
        let path = folders::generator();
        let judge = JudgeFolderOptions::new(path.path()).open().unwrap();
        let (weights, context) = (judge.config().weight_bytes(Dtype::F32), judge.context() as u64);
        let pair = beside(Some(&SecondFolder::Judge(Arc::new(judge))));
        left_by(&pair, weights);
        let second = pair.second.as_ref().expect("a judge was asked for");
        let sizes = second.model();
        assert_eq!(sizes.pool_tokens, context * sizes.branches as u64);
        let said: Vec<String> = second.estimate(1000).lines().into_iter().map(|(_, text)| text).collect();
        assert!(!said[0].contains("form") && said[1].contains("about 1,000 tokens"), "{said:?}");
        assert!(said[3].starts_with("the judge: ") && said[4].starts_with("both: "), "{said:?}");
        let json = serde_json::to_value(second.estimate(1000)).unwrap();
        assert_eq!((json["judge"]["tokens"].as_u64(), json["judge"]["context"].as_u64()), (Some(1000), Some(context)));
    }

    #[test]
    fn memory_for_adapters_is_no_part_of_the_pool() {
        let model = model();
        let pool = |adapters| {
            let budget = EngineBudget { adapters, ..EngineBudget::default() };
            DescribedDevice::open(Some("h200"), None, &budget, &model).unwrap().pool
        };
        let limits = AdapterLimits { most: 31, rank: 64 };
        let kept = limits.bytes(&model.config, Dtype::Bf16.bytes());
        let (all, left) = (pool(AdapterLimits::NONE), pool(limits));
        // Nine tenths of what is free are keys and values.
        let expected = kept as u64 / 10 * 9;
        assert!((all.bytes() - left.bytes()).abs_diff(expected) <= 2 * all.page_bytes);
    }

    #[test]
    fn what_ranks_make_dense_counts_as_dense() {
        let dense = dense();
        let stored = HashMap::from([("model.embed_tokens.weight".to_owned(), WeightFormat::Blocks(TensorType::Q8_0))]);
        let of_gguf = ModelConfig { formats: Arc::new(stored), ..dense.clone() };
        let sizes = |config: &ModelConfig, ranks: usize| {
            let model = PlanModel { path: PathBuf::from("a test"), config: config.clone(), dtype: Dtype::Bf16 };
            let device = DescribedDevice::open(Some("h200"), Some(ranks), &EngineBudget::default(), &model).unwrap();
            let sizes = device.ranks.expect("ranks were asked for");
            (sizes.weight_bytes, sizes.undivided_bytes)
        };
        let (_, undivided) = sizes(&dense, 2);
        assert_eq!(undivided, 2 * 1000 * 256);
        assert_eq!(sizes(&of_gguf, 2), sizes(&dense, 2));
    }
}
