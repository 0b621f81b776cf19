//! Offshoot samples trees from language models: many samples of one prompt, many questions to one document, thoughts
//! that fork and are pruned. Whatever branches share is stored, computed and read once, on every level of the tree.
//!
//! # A first tree
//!
//! [`Model::open`] loads a model folder as Hugging Face has it. A [`SamplingTree`] has a prompt as its root; its forks
//! grow in one batch.
//!
//! ```no_run
//! use offshoot::{Model, SamplingParams, Stop};
//!
//! fn main() -> offshoot::Result<()> {
//!     let model = Model::open("tasks/models/demo")?;
//!     let question = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:";
//!     let mut tree = model.tree(question)?.seed(1);
//!     let answers = tree.fork(tree.root(), 8)?;
//!     tree.extend(&answers, &SamplingParams::default(), &Stop::max_tokens(100))?;
//!     for node in answers {
//!         println!("{}", tree.node(node).text);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Where no tree is needed, [`Model::generate`] samples a list of prompts in one call.
//!
//! # A search of one's own
//!
//! A search is an ordinary blocking program over a tree: fork nodes, extend the new ones in one batch, score them,
//! prune the worst, and go on with the rest. Any number can be a score. Here the model is asked below every thought
//! whether it is right so far, and the probability of `yes` decides which four thoughts go on. A thought with which the
//! model ended its text is a whole solution, and is set aside:
//!
//! ```no_run
//! use offshoot::{FinishReason, ForkKind, Model, NodeId, Result, SamplingParams, Stop, TokenId};
//!
//! /// At most eight lines of a solution, eight continuations of each of four thoughts a line.
//! fn beam(model: &Model, question: &str) -> Result<String> {
//!     let (how, line) = (SamplingParams::default().temperature(0.8), Stop::max_tokens(60).at("\n"));
//!     let (ask, yes) = (model.encode("Right so far? Answer yes or no:")?, model.encode(" yes")?);
//!     let mut tree = model.tree(question)?.seed(1);
//!     let (mut kept, mut ended) = (vec![tree.root()], vec![]);
//!     for _ in 0..8 {
//!         let mut thoughts = tree.fork_all(&kept, 8)?;
//!         tree.extend(&thoughts, &how, &line)?;
//!         thoughts.retain(|&thought| !tree.has_failed(thought));
//!         // The questions are given, not sampled; forks of another kind leave the samples' random numbers alone.
//!         let asked = tree.fork_each(ForkKind::Value, &thoughts)?;
//!         tree.extend_given(&asked, &ask)?;
//!         let scored = tree.score(&asked, &yes)?.into_iter().map(|yes| yes.sum).zip(thoughts);
//!         let (over, mut going): (Vec<(f64, NodeId)>, Vec<_>) =
//!             scored.partition(|&(_, thought)| tree.node(thought).finish == Some(FinishReason::EndOfText));
//!         ended.extend(over);
//!         going.sort_by(|a, b| b.0.total_cmp(&a.0));
//!         // What is pruned gives its memory back at once; its record stays.
//!         going.drain(4.min(going.len())..).for_each(|(_, rejected)| tree.prune(rejected));
//!         asked.into_iter().for_each(|question| tree.close(question));
//!         kept = going.into_iter().map(|(_, thought)| thought).collect();
//!     }
//!     // The best solution that has ended, else the best there is. Texts are cut where a line ends, tokens are not.
//!     let best = ended.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, best)| best);
//!     let path = tree.path(best.or(kept.first().copied()).unwrap_or(tree.root()));
//!     let tokens: Vec<TokenId> = path.into_iter().flat_map(|node| tree.node(node).tokens.clone()).collect();
//!     Ok(model.decode_after(&tree.node(tree.root()).tokens, &tokens))
//! }
//! ```
//!
//! * A node is named by its [`NodeId`] and read by [`SamplingTree::node`]: text, tokens, log-probabilities, how it
//!   ended.
//! * [`SamplingTree::start`] returns events instead of blocking: see [below](#while-nodes-grow).
//! * [`SamplingTree::ask`] adds a question about a node with a prompt of its own, in a chat template for example;
//!   [`Model::prompt`] makes it, and its answers are forks of it.
//! * A node that fails (for want of memory, say) does not affect the others; [`SamplingTree::has_failed`] tells.
//! * Searches of several trees run on threads of their own; the engine merges their nodes into one batch. A [`Model`]
//!   can be shared by all of them.
//! * [`SamplingTree::trace`] is the tree as data, for files, Graphviz and `offshoot tree`.
//!
//! # While nodes grow
//!
//! [`SamplingTree::start`] is for searches that stream, judge or cancel nodes while others grow. Here eight answers are
//! shown as they come, until one of them has a result:
//!
//! ```no_run
//! use offshoot::{Hear, Result, SamplingParams, SamplingTree, Stop, TreeEvent};
//!
//! fn first_result(tree: &mut SamplingTree) -> Result<Option<String>> {
//!     let answers = tree.fork(tree.root(), 8)?;
//!     tree.hear(Hear::Tokens);
//!     let mut growing = tree.start(&answers, &SamplingParams::default(), &Stop::max_tokens(100))?;
//!     while let Some(event) = growing.next_event()? {
//!         match event {
//!             TreeEvent::Tokens { id: node, text, .. } => println!("{node}: {text}"),
//!             TreeEvent::Finished { id: node, .. } if growing.tree().node(node).text.contains("####") => {
//!                 // Dropping `growing` cancels the others within a step.
//!                 return Ok(Some(growing.tree().path_text(node)));
//!             }
//!             TreeEvent::Finished { .. } | TreeEvent::Failed { .. } => {}
//!         }
//!     }
//!     Ok(None)
//! }
//! ```
//!
//! # Texts that have a form
//!
//! [`SamplingParams::form`] holds what is sampled to a [`Form`]: JSON by a schema, a pattern, a grammar, one of several
//! texts. A form goes on from one extend of a node to the next, and from a node to its forks;
//! [`SamplingTree::fork_in_form`] begins one for all below a fork. Votes over a field of such texts find their answers
//! by [`search::JsonPointer`].
//!
//! # Searches that exist
//!
//! Votes, best-of-N, beams over steps, tree of thoughts and Monte-Carlo tree search are in [`search`], verdicts on
//! programs in [`judge`].
//!
//! # Random numbers
//!
//! What is sampled follows from the tree's seed and name, the path of forks and the position of a token, never from
//! what else runs. On the CPU the same seed gives the same bytes; on a GPU it does with
//! [`ModelBuilder::deterministic`]. More forks of a node leave the samples of its first ones as they are.
//!
//! # Features
//!
//! The default feature `command` builds the command and all that it needs. With `default-features = false` the library
//! is trees and searches on the CPU; `cuda` adds GPUs, `judge` the module [`judge`], and `eval` what reads benchmarks.
//! `serve` is the server's, which the command starts.
//!
//! # What is public
//!
//! This package is the library: its items keep their names. The crates `offshoot-…` that it is made of are internal and
//! change with every version; `docs/design.md` describes them.
#![warn(missing_docs)]

/// The command line: for the command alone.
#[cfg(feature = "command")]
#[doc(hidden)]
pub mod cli;

mod generate;
#[cfg(feature = "judge")]
mod judged;
mod model;

pub use generate::Generate;
pub use model::{Model, ModelBuilder, ToPrompt};

#[doc(inline)]
pub use offshoot_backend::{KvDtype, StateDtype};
#[doc(inline)]
pub use offshoot_core::ids::{NodeId, TokenId};
#[doc(inline)]
pub use offshoot_core::{Error, Result};
#[doc(inline)]
pub use offshoot_engine::{
    Drawn, Finish, FinishReason, ForkKind, GroupEnd, Hear, LogprobsMode, Metrics, Records, SampledToken,
    SamplingParams, Stop, Stragglers, TokenRecord, TokenRecords, TokenRoutes,
};
#[doc(inline)]
pub use offshoot_form::{Form, FormBegin, SampleForm};
#[doc(inline)]
pub use offshoot_kv::plan::Planner;
#[doc(inline)]
pub use offshoot_launch::{DeviceChoice, Devices};
#[doc(inline)]
pub use offshoot_model::{ActivationChoice, MadeFormat};
#[doc(inline)]
pub use offshoot_search::tree::{
    After, Extension, Growth, LogProb, NodeState, Probe, Prompt, SamplingTree, ThoughtNode, TokenRun, Trace, TraceNode,
    TreeCost, TreeEvent, UnappliedEvent,
};
#[doc(inline)]
pub use offshoot_text::Message;

/// Searches over a [`SamplingTree`]. Each is a blocking function that samples candidates below a node, hands their
/// texts to the job's assessor and returns an [`Outcome`](search::Outcome).
///
/// ```no_run
/// use offshoot::search::{Assessment, Decided, SearchJob, self_consistency};
/// use offshoot::{Model, SamplingParams, Stop};
///
/// # fn main() -> offshoot::Result<()> {
/// let model = Model::open("tasks/models/demo")?;
/// let mut tree = model.tree("Question: Tom has 12 boxes with 15 pens in each. How many pens has Tom?\nAnswer:")?;
/// let (how, stop) = (SamplingParams::default().temperature(0.8), Stop::max_tokens(200).at("\n\n"));
/// let answer = |text: &str| text.rsplit_once("#### ").map(|(_, answer)| answer.trim().to_string());
/// let assess = |text: &str| Assessment::graded(answer(text), None);
/// let mut job = SearchJob::new(&how, &stop).assessed_by(assess);
/// // Up to 32 samples vote; those that cannot change the vote are spared.
/// let root = tree.root();
/// let outcome = self_consistency(&mut tree, root, 32, Decided::Certain, &mut job)?;
/// println!("{:?} by {:?}", outcome.prediction, outcome.votes);
/// # Ok(())
/// # }
/// ```
///
/// | search | what it does |
/// |---|---|
/// | [`sample`](search::sample) | N candidates, without a choice: for pass@k |
/// | [`best_of_n`](search::best_of_n), [`best_by_scorer`](search::best_by_scorer) | the best of N |
/// | [`self_consistency`](search::self_consistency) | the most frequent answer of N |
/// | [`vote_by_scorer`](search::vote_by_scorer) | the answer of N whose samples a scorer values most |
/// | [`step_beam`](search::step_beam), [`dvts`](search::dvts) | beams over steps, with a [`Scorer`](search::Scorer) |
/// | [`particle_gibbs`](search::particle_gibbs) | particles over steps, drawn by a scorer's values |
/// | [`mcts`](search::mcts) | Monte-Carlo tree search over steps |
/// | [`tree_of_thought`](search::tree_of_thought) | thoughts that the model proposes and values |
/// | [`tree_po`](search::tree_po) | rollouts by segments, which share prefixes |
/// | [`entropy_branching`](search::entropy_branching) | rollouts that fork where entropy is highest |
/// | [`choose`](search::choose) | the most likely of given answers |
pub mod search {
    #[doc(inline)]
    pub use offshoot_search::best_of_n::{best_of_n, sample};
    pub use offshoot_search::confidence;
    #[doc(inline)]
    pub use offshoot_search::{best_by_scorer, vote_by_scorer};

    #[doc(inline)]
    pub use offshoot_search::choose::{Neutral, OfferedChoice, choose};
    #[doc(inline)]
    pub use offshoot_search::dvts::dvts;
    #[doc(inline)]
    pub use offshoot_search::entropy_branching::entropy_branching;
    #[doc(inline)]
    pub use offshoot_search::mcts::mcts;
    #[doc(inline)]
    pub use offshoot_search::particles::particle_gibbs;
    #[doc(inline)]
    pub use offshoot_search::rollout::{
        DrawnToken, Leaf, LeafColumns, RolloutTrie, TokenColumns, TreeLeaf, TreeRow, TrieBuilder, TriePlace, TrieToken,
    };
    #[doc(inline)]
    pub use offshoot_search::scorer::{NodeText, ScoreQuestion, Scorer};
    #[doc(inline)]
    pub use offshoot_search::self_consistency::self_consistency;
    #[doc(inline)]
    pub use offshoot_search::settings::{
        Aggregate, BestBy, BestOfN, ChooseBy, Decide, EntropyBranching, Mcts, MctsDecide, MctsSelect, ParticleSearch,
        Resampling, RolloutScoring, SampleScoring, StepEnd, StepSearch, StepSettings, TreePo,
    };
    #[doc(inline)]
    pub use offshoot_search::step_beam::step_beam;
    #[doc(inline)]
    pub use offshoot_search::steps::{Stepper, Then};
    #[doc(inline)]
    pub use offshoot_search::stragglers::{finish_stragglers, release_stragglers};
    #[doc(inline)]
    pub use offshoot_search::tree_of_thought::{
        AnswerSettings, Appraisal, Evaluate, Generate, Proposal, SamplingOverrides, Texts, ThoughtSearch,
        ThoughtSelect, ThoughtTraversal, ValueBy, tree_of_thought,
    };
    #[doc(inline)]
    pub use offshoot_search::tree_po::tree_po;
    #[doc(inline)]
    pub use offshoot_search::vote::Decided;
    #[doc(inline)]
    pub use offshoot_search::{
        Assess, Assessment, AssessmentRequest, Assessor, CalledTools, ChoiceScore, Details, FailedBranches,
        JsonPointer, ModelScores, OnScorerError, Outcome, Sample, SampleScore, ScorerWork, SearchJob, Straggler,
    };
}

/// Verdicts on programs, each of which runs in a sandbox of the operating system. A program that judges begins its
/// `main` with [`enter_if_helper`].
///
/// ```no_run
/// use offshoot::judge::{Judge, JudgeSetup, Language, Problem};
///
/// fn main() -> offshoot::Result<()> {
///     offshoot::enter_if_helper();
///     let judge = Judge::open(&JudgeSetup::default(), &[])?;
///     let sums = Problem::streams("sum", [("1 2\n", "3\n"), ("20 22\n", "42\n")]);
///     let judgement = judge.judge(&sums, &Language::Python, "print(sum(map(int, input().split())))")?;
///     assert!(judgement.accepted());
///     Ok(())
/// }
/// ```
///
/// In a search [`JudgedBy`](judge::JudgedBy) assesses candidates by a judge.
#[cfg(feature = "judge")]
pub mod judge {
    pub use crate::judged::JudgedBy;
    #[cfg(feature = "eval")]
    pub use crate::judged::problem_of_row;
    #[doc(inline)]
    pub use offshoot_judge::language::Commands;
    #[doc(inline)]
    pub use offshoot_judge::problem::{
        Assembly, CallSuite, CallTest, Compare, Limits, Problem, ReferenceSuite, ScriptSuite, StreamSuite, StreamTest,
        TestSuite,
    };
    #[doc(inline)]
    pub use offshoot_judge::{Isolation, Judge, JudgeSetup, Judgement, Language, TestVerdict, Verdict};
}

/// Becomes the helper as which this process was started, if it was, and then never returns. It is to be the first line
/// of `main` of a program that judges programs, or that has strangers' chat templates and forms (JSON schemas,
/// patterns, grammars) bounded in memory and time.
pub fn enter_if_helper() {
    #[cfg(feature = "judge")]
    offshoot_judge::sandbox::enter_if_helper();
    offshoot_core::bounded::enter_if_helper(&[
        #[cfg(feature = "eval")]
        &offshoot_eval::task::TEMPLATES,
        &offshoot_form::TRIAL,
        &offshoot_text::CHAT_TEMPLATES,
    ]);
}
