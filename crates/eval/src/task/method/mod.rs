//! The task file's key `method`, read and range-checked: which search a task uses. `sampling` defines how tokens
//! are sampled.

pub mod choose;
pub mod confidence;
mod form;
mod rollouts;
mod sampling;
pub mod scoring;
pub mod steps;
pub mod tree_of_thought;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::source::Place;
use crate::task::items::Item;
use crate::task::verdict::{TaskVerdict, VerdictKey, VerdictSettings};
use offshoot_core::error::Result;
use offshoot_core::figures::counted;
use offshoot_engine::GroupEnd;
use offshoot_search::confidence::ConfidenceVote;
use offshoot_search::settings::{
    Aggregate, BestBy, Decide, EntropyBranching, Mcts, MctsDecide, ParticleSearch, StepSearch, TreePo,
};
use offshoot_search::tree_of_thought::{Evaluate, Generate, ThoughtTraversal};
use offshoot_search::vote::Decided;

pub use choose::Choose;
pub use form::FormSettings;
pub(crate) use form::SchemaSettings;
pub use sampling::Sampling;
pub use scoring::{RewardScoring, SampleScorer, ThoughtScoring};

use choose::ChooseSettings;
use confidence::ConfidenceVoteSettings;
use rollouts::{EntropyBranchingSettings, TreePoSettings};
use steps::{MctsSettings, ParticleFilteringSettings, ParticleGibbsSettings, StepSearchSettings};
use tree_of_thought::{TreeOfThought, TreeOfThoughtSettings};

/// The task file's key `method`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MethodSettings {
    /// Samples vote: the most frequent answer wins.
    SelfConsistency(VoteSettings),
    /// One of the samples is chosen.
    BestOfN(BestSettings),
    /// Samples, for pass@k; none is chosen.
    Sample(SampleSettings),
    /// Tree of thoughts (Yao et al., 2023): thoughts are generated step by step; the model scores them and the best are
    /// continued.
    TreeOfThought(Box<TreeOfThoughtSettings>),
    /// The most likely of offered answers is chosen; nothing is sampled.
    Choose(ChooseSettings),
    /// Beam search by steps: the best partial solutions of all are kept.
    StepBeam(StepSearchSettings),
    /// Diverse verifier tree search: the best partial solution of each subtree is kept.
    Dvts(StepSearchSettings),
    /// Particle filtering: after each step as many partial solutions are drawn anew, by their scores.
    ParticleFiltering(ParticleFilteringSettings),
    /// Particle filtering again and again, each time beside solutions of the time before.
    ParticleGibbs(ParticleGibbsSettings),
    /// Monte Carlo tree search.
    Mcts(Box<MctsSettings>),
    /// Rollouts by segments (TreePO): the likeliest branch, and where all fail the search falls back.
    TreePo(TreePoSettings),
    /// Rollouts that fork at the tokens of highest entropy.
    EntropyBranching(EntropyBranchingSettings),
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct VoteSettings {
    /// Samples of each item.
    #[schemars(range(min = 1))]
    samples: u32,
    /// Whether to stop samples once they cannot change the vote, or are unlikely to, or once a window of them agrees.
    #[schemars(extend("x-expected" = "true, false, {\"confidence\": P} or {\"window\": N}"))]
    stop_when_decided: Option<StopSettings>,
    /// The samples of an item that have not finished are cancelled once so many have (default: none is).
    #[schemars(range(min = 1))]
    min_finished: Option<u32>,
    /// Samples' confidences weigh their votes, and end samples (default: votes are equal, samples whole).
    confidence: Option<ConfidenceVoteSettings>,
    /// What a vote weighs (default: votes are equal).
    #[schemars(extend("x-expected" = WEIGHTS))]
    weigh_by: Option<VoteWeightSettings>,
    /// With `reward`: the string that ends a step of a sample (default: the line end).
    #[schemars(length(min = 1), extend("x-expected" = "a string that is not empty"))]
    delimiter: Option<String>,
    /// With `reward`: how the scores of a sample's steps become its own (default: as the scorer's form says).
    aggregate: Option<Aggregate>,
}

/// What `weigh_by` of `self_consistency` must be.
const WEIGHTS: &str = "`reward`, or an object with `prompt` and one of `words`, `score`, `pairs` and `groups`";

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum VoteWeightSettings {
    Named(VoteWeight),
    Verdict(Box<VerdictSettings>),
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum VoteWeight {
    /// The score of the sample by the task's `scorer`.
    Reward,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum StopSettings {
    Certain(bool),
    Confident(ConfidenceSettings),
    Agreeing(WindowSettings),
}

#[derive(Deserialize, JsonSchema)]
struct ConfidenceSettings {
    /// The probability that the leading answer is really the more frequent one, from which on the vote is decided.
    #[schemars(extend(
        "exclusiveMinimum" = 0.5, "exclusiveMaximum" = 1, "x-expected" = "a number above 0.5, below 1"
    ))]
    confidence: f64,
}

#[derive(Deserialize, JsonSchema)]
struct WindowSettings {
    /// So many samples, one window after the other; the vote is decided once all samples of a window gave the same
    /// answer.
    #[schemars(range(min = 2))]
    window: NonZeroU32,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct BestSettings {
    /// Samples of each item.
    #[schemars(range(min = 1))]
    samples: u32,
    /// The measure of a sample, or what a judge is asked about it.
    #[schemars(extend("x-expected" = MEASURES))]
    by: BestBySettings,
    /// Whether the other samples are stopped as soon as one passes (with `grade` or `judge`).
    #[serde(default)]
    stop_when_passed: bool,
    /// The samples of an item that have not finished are cancelled once so many have (default: none is). Not where a
    /// judge chooses.
    #[schemars(range(min = 1))]
    min_finished: Option<u32>,
    /// With `reward`: the string that ends a step of a sample (default: the line end).
    #[schemars(length(min = 1), extend("x-expected" = "a string that is not empty"))]
    delimiter: Option<String>,
    /// With `reward`: how the scores of a sample's steps become its own (default: as the scorer's form says).
    aggregate: Option<Aggregate>,
}

/// What `by` of `best_of_n` must be.
const MEASURES: &str = "one of `logprob`, `mean_logprob`, `grade`, `judge`, or, without `stop_when_passed`, \
                        `reward` or an object with `prompt` and one of `words`, `score`, `pairs` and `groups`";

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum BestBySettings {
    Measure(SampleMeasure),
    Verdict(Box<VerdictSettings>),
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SampleMeasure {
    /// Log-probability of the whole sample.
    Logprob,
    /// Mean log-probability per token.
    MeanLogprob,
    /// The task's grader: a right sample is better than a wrong one.
    Grade,
    /// The same, where `grade` is `judge`.
    Judge,
    /// The score of the task's `scorer`.
    Reward,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct SampleSettings {
    /// Samples of each item.
    #[schemars(range(min = 1))]
    samples: u32,
    /// The samples of an item that have not finished are cancelled once so many have (default: none is).
    #[schemars(range(min = 1))]
    min_finished: Option<u32>,
}

/// How an item is searched, and how its answer is chosen.
#[derive(Debug, PartialEq)]
pub enum Method {
    /// The most frequent answer wins. Sampling stops early once the vote is decided. With `confidence` or `scorer` the
    /// answer of the largest weight wins; with `confidence` samples may end early, too.
    SelfConsistency {
        samples: u32,
        stop: Decided,
        min_finished: Option<NonZeroU32>,
        confidence: Option<ConfidenceVote>,
        /// A vote weighs the sample's score; all samples are drawn.
        scorer: Option<SampleScorer>,
    },
    /// One sample is chosen by a measure of the sample itself. `stop_when_passed` (only with [`BestBy::Grade`]) stops
    /// the other samples as soon as one is right.
    BestOfN { samples: u32, by: BestBy, stop_when_passed: bool, min_finished: Option<NonZeroU32> },
    /// One sample is chosen by a score.
    BestByScorer { samples: u32, scorer: SampleScorer, min_finished: Option<NonZeroU32> },
    /// Samples are generated and graded; none is chosen (pass@k).
    Sample { samples: u32, min_finished: Option<NonZeroU32> },
    /// Thoughts are generated step by step; the model scores them and the best are expanded.
    TreeOfThought(Box<TreeOfThought>),
    /// Nothing is sampled: the most likely of the offered answers is chosen.
    Choose(Choose),
    /// Beam search by steps: the best partial solutions of all are kept.
    StepBeam { search: StepSearch, scorer: ThoughtScoring },
    /// Diverse verifier tree search: the best partial solution of each subtree is kept.
    Dvts { search: StepSearch, scorer: ThoughtScoring },
    /// Particle filtering, which has one iteration and no references, and particle Gibbs.
    Particles { name: ParticleMethod, search: ParticleSearch, scorer: ThoughtScoring },
    /// Monte Carlo tree search. Without a `scorer` the value of a solution is its agreement with the others.
    Mcts { search: Mcts, scorer: Option<ThoughtScoring> },
    /// Rollouts by segments.
    TreePo(TreePo),
    /// Rollouts that fork at high entropy.
    EntropyBranching(EntropyBranching),
}

/// A method with particles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParticleMethod {
    /// `particle_filtering`.
    Filtering,
    /// `particle_gibbs`.
    Gibbs,
}

/// What ends an item's sampling early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyStop {
    /// The vote is decided.
    Decided,
    /// A sample has passed.
    Passed,
    /// Enough samples have finished.
    Finished,
}

impl Method {
    /// Samples of one item. For a search: the most that it generates at once; for `mcts`: the simulations.
    pub fn samples(&self) -> u32 {
        match self {
            Method::SelfConsistency { samples, .. }
            | Method::BestOfN { samples, .. }
            | Method::BestByScorer { samples, .. }
            | Method::Sample { samples, .. } => *samples,
            Method::TreeOfThought(how) => how.settings.breadth.saturating_mul(match how.settings.generate {
                Generate::Sample { thoughts, .. } => thoughts,
                Generate::Propose { lists, .. } => lists,
            }),
            Method::Choose(_) => 1,
            Method::StepBeam { search, .. } | Method::Dvts { search, .. } => search.samples,
            Method::Particles { search, .. } => search.samples,
            Method::Mcts { search, .. } => search.samples,
            Method::TreePo(how) => how.samples,
            Method::EntropyBranching(how) => how.samples(),
        }
    }

    /// When an item's samples end before all have finished.
    pub fn group_end(&self) -> Option<GroupEnd> {
        match self {
            Method::SelfConsistency { min_finished, .. }
            | Method::BestOfN { min_finished, .. }
            | Method::BestByScorer { min_finished, .. }
            | Method::Sample { min_finished, .. } => min_finished.map(|least| {
                let least = NonZeroUsize::try_from(least).expect("a machine's sizes have 32 bits at least");
                GroupEnd::new(least)
            }),
            _ => None,
        }
    }

    /// Whether its samples are written as rollouts that share prefixes.
    pub fn makes_rollouts(&self) -> bool {
        matches!(self, Method::TreePo(_) | Method::EntropyBranching(_))
    }

    /// The method in words, for the first line of a summary.
    pub fn described(&self) -> String {
        let by = match self.reward_key() {
            Some("weigh_by") => ", weighed by reward",
            Some(_) => ", by reward",
            None => "",
        };
        format!("{}{by}", self.sized())
    }

    /// Its name and how much it samples.
    fn sized(&self) -> String {
        match self {
            Method::Choose(choose) => match choose.count() {
                Some(choices) => format!("{} of {choices}", self.name()),
                None => self.name().to_string(),
            },
            Method::Mcts { search, .. } => {
                format!("{} with {}", self.name(), counted(search.samples.into(), "simulation"))
            }
            Method::TreeOfThought(how) => format!("{} with {}", self.name(), how.described()),
            _ => format!("{} with {}", self.name(), counted(self.samples().into(), "sample")),
        }
    }

    /// The tokens of a window of samples' confidences, where they count.
    pub fn confidence_window(&self) -> Option<NonZeroUsize> {
        match self {
            Method::SelfConsistency { confidence, .. } => confidence.as_ref().map(|how| how.windows.window),
            _ => None,
        }
    }

    /// What may end the sampling of an item before all samples are finished. `None`: nothing.
    pub fn spares(&self) -> Option<EarlyStop> {
        match self {
            Method::SelfConsistency { stop, .. } if *stop != Decided::Never => Some(EarlyStop::Decided),
            Method::BestOfN { stop_when_passed: true, .. } => Some(EarlyStop::Passed),
            _ => self.group_end().map(|_| EarlyStop::Finished),
        }
    }

    /// Whether its samples are independent samples of one distribution, so that each can be kept without the others.
    pub fn draws_alike(&self) -> bool {
        match self {
            Method::SelfConsistency { .. }
            | Method::BestOfN { .. }
            | Method::BestByScorer { .. }
            | Method::Sample { .. } => true,
            Method::TreeOfThought(_)
            | Method::Choose(_)
            | Method::StepBeam { .. }
            | Method::Dvts { .. }
            | Method::Particles { .. }
            | Method::Mcts { .. }
            | Method::TreePo(_)
            | Method::EntropyBranching(_) => false,
        }
    }

    /// Whether all samples come from one distribution and none is omitted or cut because of others; otherwise pass@k
    /// and maj@k cannot be computed of them.
    pub fn draws_all(&self) -> bool {
        self.draws_alike() && self.spares().is_none() && self.warm_up().is_none()
    }

    /// The number of samples that are drawn whole before the others may end by low confidence; `None`: nothing ends by
    /// it.
    pub fn warm_up(&self) -> Option<NonZeroU32> {
        match self {
            Method::SelfConsistency { confidence, .. } => confidence.as_ref().and_then(ConfidenceVote::warm_up),
            _ => None,
        }
    }

    /// What it asks a judge about complete or partial solutions.
    pub fn verdict(&self) -> Option<&TaskVerdict> {
        match self {
            Method::TreeOfThought(how) => how.judge.as_ref(),
            other => match (other.sample_scorer(), other.scoring()) {
                (Some(SampleScorer::Verdict(verdict)), _) | (_, Some(ThoughtScoring::Verdict(verdict))) => {
                    Some(verdict)
                }
                _ => None,
            },
        }
    }

    /// The key that asks for the task's scorer; `None`: the method does not use it.
    pub fn reward_key(&self) -> Option<&'static str> {
        match self {
            Method::SelfConsistency { scorer: Some(SampleScorer::Reward(_)), .. } => Some("weigh_by"),
            Method::BestByScorer { scorer: SampleScorer::Reward(_), .. } => Some("by"),
            Method::TreeOfThought(how) if how.judge.is_none() && matches!(how.settings.evaluate, Evaluate::Scorer) => {
                Some("evaluate")
            }
            other => (other.scoring() == Some(&ThoughtScoring::Reward)).then_some("scorer"),
        }
    }

    /// What scores whole samples; `None`: nothing does, or steps have scores, too.
    pub fn sample_scorer(&self) -> Option<&SampleScorer> {
        match self {
            Method::SelfConsistency { scorer, .. } => scorer.as_ref(),
            Method::BestByScorer { scorer, .. } => Some(scorer),
            _ => None,
        }
    }

    /// The most texts of an item that it has scored, if a judge scores them; `None`: that many are not known before.
    pub fn most_scored(&self) -> Option<usize> {
        let samples = self.samples() as usize;
        match self {
            Method::StepBeam { search, .. } | Method::Dvts { search, .. } => samples.checked_mul(search.steps.most),
            Method::Particles { search, .. } => samples.checked_mul(search.steps.most),
            Method::TreeOfThought(how) if matches!(how.settings.generate, Generate::Propose { .. }) => None,
            Method::TreeOfThought(how) if how.settings.search != ThoughtTraversal::Bfs => None,
            Method::TreeOfThought(how) => samples.checked_mul(how.settings.steps as usize),
            _ => Some(samples),
        }
    }

    /// Whether a score tells which of its samples is the best.
    pub fn ranks_by_score(&self) -> bool {
        self.sample_scorer().is_some()
    }

    /// Whether a judge compares its samples, so that a sample's score is one among all of them.
    pub fn compares(&self) -> bool {
        self.verdict().is_some_and(TaskVerdict::compares)
    }

    /// How the task's scorer scores whole samples; `None`: it does not, or scores steps too.
    pub fn reward_of_samples(&self) -> Option<&RewardScoring> {
        match self.sample_scorer() {
            Some(SampleScorer::Reward(scoring)) => Some(scoring),
            Some(SampleScorer::Verdict(_)) | None => None,
        }
    }

    /// How it makes one score of those of steps by the task's scorer; `None`: as the scorer's form says.
    pub fn reward_aggregate(&self) -> Option<Aggregate> {
        match self {
            Method::StepBeam { search, .. } | Method::Dvts { search, .. } => Some(search.aggregate),
            Method::Particles { search, .. } => Some(search.aggregate),
            Method::Mcts { .. } | Method::TreeOfThought(_) => Some(Aggregate::Last),
            other => other.reward_of_samples().and_then(|scoring| scoring.aggregate),
        }
    }

    /// How a stepwise search scores complete and partial solutions.
    pub fn scoring(&self) -> Option<&ThoughtScoring> {
        match self {
            Method::StepBeam { scorer, .. } | Method::Dvts { scorer, .. } | Method::Particles { scorer, .. } => {
                Some(scorer)
            }
            Method::Mcts { scorer, .. } => scorer.as_ref(),
            _ => None,
        }
    }

    /// Whether its search, once it has ended, stays the same whatever the grades of its samples are: neither it nor
    /// what is written of it goes by them.
    pub fn chooses_without_grades(&self) -> bool {
        !self.draws_alike() && !self.makes_rollouts() && self.scoring() != Some(&ThoughtScoring::Grade)
    }

    /// Whether the grade of its choice is that of the chosen answer, whichever sample gave it.
    pub fn grades_answers(&self) -> bool {
        match self {
            Method::SelfConsistency { .. }
            | Method::StepBeam { .. }
            | Method::Dvts { .. }
            | Method::Particles { .. }
            | Method::Mcts { .. } => true,
            Method::BestOfN { .. }
            | Method::BestByScorer { .. }
            | Method::Sample { .. }
            | Method::TreeOfThought(_)
            | Method::Choose(_)
            | Method::TreePo(_)
            | Method::EntropyBranching(_) => false,
        }
    }

    /// Whether it votes on answers.
    pub fn votes(&self) -> bool {
        match self {
            Method::SelfConsistency { .. } => true,
            Method::StepBeam { search, .. } | Method::Dvts { search, .. } => search.by != Decide::Best,
            Method::Particles { search, .. } => search.by != Decide::Best,
            Method::Mcts { search, scorer } => {
                scorer.is_none() || matches!(search.by, MctsDecide::Rollouts(Decide::Vote | Decide::WeightedVote))
            }
            _ => false,
        }
    }

    /// Whether it generates further prompts for its own model during the search, beside questions to a judge.
    pub fn asks(&self) -> bool {
        match self {
            Method::TreeOfThought(_) => true,
            Method::Choose(choose) => choose.neutral.is_some(),
            _ => false,
        }
    }

    /// The files included in its prompts about `item` by paths that are templates.
    pub fn prompt_files(&self, item: &Item) -> Result<Vec<PathBuf>> {
        let mut files = self.verdict().map_or(Ok(Vec::new()), |verdict| verdict.prompt_files(item))?;
        if let Method::TreeOfThought(how) = self {
            files.extend(how.prompt_files(item)?);
        }
        Ok(files)
    }

    /// Checks the fields of an item that the method needs.
    pub fn check_item(&self, item: &Item) -> Result<()> {
        match self {
            Method::TreeOfThought(how) => how.check_item(item),
            _ => Ok(()),
        }
    }

    /// Samples of an item that run at once. If a vote may be decided early, the number that every vote needs.
    pub fn samples_at_once(&self) -> u32 {
        match self {
            Method::SelfConsistency { samples, stop, .. } => {
                let first = self.warm_up().map_or(u32::MAX, NonZeroU32::get);
                first.min(stop.fewest_more::<&str>(&[], *samples))
            }
            Method::Choose(choose) => choose.count().unwrap_or(1) as u32,
            Method::Particles { search, .. } => search.samples / search.iterations,
            Method::Mcts { search, .. } => search.parallel.saturating_mul(search.expansions),
            other => other.samples(),
        }
    }

    /// The method's key in the task file.
    pub fn name(&self) -> &'static str {
        match self {
            Method::SelfConsistency { .. } => "self_consistency",
            Method::BestOfN { .. } | Method::BestByScorer { .. } => "best_of_n",
            Method::Sample { .. } => "sample",
            Method::TreeOfThought(_) => "tree_of_thought",
            Method::Choose(_) => "choose",
            Method::StepBeam { .. } => "step_beam",
            Method::Dvts { .. } => "dvts",
            Method::Particles { name: ParticleMethod::Filtering, .. } => "particle_filtering",
            Method::Particles { name: ParticleMethod::Gibbs, .. } => "particle_gibbs",
            Method::Mcts { .. } => "mcts",
            Method::TreePo(_) => "tree_po",
            Method::EntropyBranching(_) => "entropy_branching",
        }
    }

    /// `place`: of the key `method`.
    pub(crate) fn new(place: &Place<'_>, settings: MethodSettings) -> Result<Method> {
        match settings {
            MethodSettings::SelfConsistency(settings) => {
                let VoteSettings { samples, stop_when_decided, min_finished, confidence, .. } = settings;
                let (weigh_by, delimiter, aggregate) = (settings.weigh_by, settings.delimiter, settings.aggregate);
                let place = place.key("self_consistency");
                let stop = match stop_when_decided {
                    None | Some(StopSettings::Certain(false)) => Decided::Never,
                    Some(StopSettings::Certain(true)) => Decided::Certain,
                    Some(StopSettings::Confident(enough)) => Decided::Confident(enough.confidence),
                    Some(StopSettings::Agreeing(WindowSettings { window })) => Decided::Agreeing(window),
                };
                let settings = confidence.map(|confidence| confidence::vote(&place, samples, confidence));
                let (confidence, min_finished) = (settings.transpose()?, least(&place, samples, min_finished)?);
                if let Some(confidence) = &confidence {
                    confidence::check(&place, confidence, stop, min_finished)?;
                }
                if !matches!(weigh_by, Some(VoteWeightSettings::Named(VoteWeight::Reward))) {
                    without_reward(&place, &delimiter, aggregate, "weigh_by")?;
                }
                let scorer = match weigh_by {
                    None => None,
                    Some(_) if confidence.is_some() => {
                        return Err(place.key("weigh_by").wrong("nothing where `confidence` weighs the votes"));
                    }
                    Some(_) if stop != Decided::Never => {
                        return Err(place.key("stop_when_decided").wrong("false where scores weigh the votes"));
                    }
                    Some(VoteWeightSettings::Named(VoteWeight::Reward)) => {
                        Some(SampleScorer::Reward(RewardScoring::new(delimiter, aggregate)))
                    }
                    Some(VoteWeightSettings::Verdict(_)) if min_finished.is_some() => {
                        return Err(place.key("min_finished").wrong("none where a judge weighs the votes"));
                    }
                    Some(VoteWeightSettings::Verdict(verdict)) => {
                        let verdict = TaskVerdict::new(&place.key("weigh_by"), *verdict, VerdictKey::Votes)?;
                        Some(SampleScorer::Verdict(verdict))
                    }
                };
                Ok(Method::SelfConsistency { samples, stop, min_finished, confidence, scorer })
            }
            MethodSettings::BestOfN(best) => best_of(&place.key("best_of_n"), best),
            MethodSettings::Sample(SampleSettings { samples, min_finished }) => {
                let min_finished = least(&place.key("sample"), samples, min_finished)?;
                Ok(Method::Sample { samples, min_finished })
            }
            MethodSettings::TreeOfThought(settings) => {
                let how = TreeOfThought::new(&place.key("tree_of_thought"), *settings)?;
                Ok(Method::TreeOfThought(Box::new(how)))
            }
            MethodSettings::Choose(settings) => Choose::new(&place.key("choose"), settings).map(Method::Choose),
            MethodSettings::StepBeam(settings) => {
                let (search, scorer) = steps::step_search(&place.key("step_beam"), settings)?;
                Ok(Method::StepBeam { search, scorer })
            }
            MethodSettings::Dvts(settings) => {
                let (search, scorer) = steps::step_search(&place.key("dvts"), settings)?;
                Ok(Method::Dvts { search, scorer })
            }
            MethodSettings::ParticleFiltering(settings) => {
                let (search, scorer) = steps::particle_filtering(&place.key("particle_filtering"), settings)?;
                Ok(Method::Particles { name: ParticleMethod::Filtering, search, scorer })
            }
            MethodSettings::ParticleGibbs(settings) => {
                let (search, scorer) = steps::particle_gibbs(&place.key("particle_gibbs"), settings)?;
                Ok(Method::Particles { name: ParticleMethod::Gibbs, search, scorer })
            }
            MethodSettings::Mcts(settings) => {
                let (search, scorer) = steps::mcts(&place.key("mcts"), *settings)?;
                Ok(Method::Mcts { search, scorer })
            }
            MethodSettings::TreePo(settings) => Ok(Method::TreePo(rollouts::tree_po(settings))),
            MethodSettings::EntropyBranching(settings) => {
                Ok(Method::EntropyBranching(rollouts::entropy_branching(settings)))
            }
        }
    }
}

/// How many of `samples` must finish; `place`: of the method.
fn least(place: &Place<'_>, samples: u32, min_finished: Option<u32>) -> Result<Option<NonZeroU32>> {
    match min_finished {
        Some(least) if least > samples => Err(place.key("min_finished").wrong(format!("at most `samples`, {samples}"))),
        least => Ok(least.and_then(NonZeroU32::new)),
    }
}

/// Refuses the keys of a scorer where none is asked. `place`: of the method; `by`: the key that asks for it.
fn without_reward(place: &Place<'_>, delimiter: &Option<String>, aggregate: Option<Aggregate>, by: &str) -> Result<()> {
    let given = [("delimiter", delimiter.is_some()), ("aggregate", aggregate.is_some())];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((key, _)) => Err(place.key(key).wrong(format!("nothing where `{by}` is not `reward`"))),
        None => Ok(()),
    }
}

fn best_of(place: &Place<'_>, settings: BestSettings) -> Result<Method> {
    let BestSettings { samples, by, stop_when_passed, min_finished, delimiter, aggregate } = settings;
    let min_finished = least(place, samples, min_finished)?;
    if !matches!(by, BestBySettings::Measure(SampleMeasure::Reward)) {
        without_reward(place, &delimiter, aggregate, "by")?;
    }
    let by = match by {
        BestBySettings::Verdict(_) | BestBySettings::Measure(SampleMeasure::Reward) if stop_when_passed => {
            return Err(place.key("by").wrong(MEASURES));
        }
        BestBySettings::Measure(SampleMeasure::Reward) => {
            let scorer = SampleScorer::Reward(RewardScoring::new(delimiter, aggregate));
            return Ok(Method::BestByScorer { samples, scorer, min_finished });
        }
        BestBySettings::Verdict(_) if min_finished.is_some() => {
            return Err(place.key("min_finished").wrong("none where a judge chooses"));
        }
        BestBySettings::Verdict(verdict) => {
            let scorer = SampleScorer::Verdict(TaskVerdict::new(&place.key("by"), *verdict, VerdictKey::Best)?);
            return Ok(Method::BestByScorer { samples, scorer, min_finished });
        }
        BestBySettings::Measure(SampleMeasure::Logprob) => BestBy::Logprob,
        BestBySettings::Measure(SampleMeasure::MeanLogprob) => BestBy::MeanLogprob,
        BestBySettings::Measure(SampleMeasure::Grade | SampleMeasure::Judge) => BestBy::Grade,
    };
    if stop_when_passed && by != BestBy::Grade {
        return Err(place.key("stop_when_passed").wrong("false where `by` is neither `grade` nor `judge`"));
    }
    Ok(Method::BestOfN { samples, by, stop_when_passed, min_finished })
}
