//! Starts the search of the task's method, with its settings from task, item, tokenizer and scorer. `search` defines
//! the drivers.

use crate::task::tree_of_thought::ItemTexts;
use crate::task::{Method, RewardScoring, SampleScorer, TaskPrompt, ThoughtScoring, Verdicts};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_score::TextScorer;
use offshoot_search::scorer::{QuestionFor, ScoreQuestion};
use offshoot_search::settings::{Aggregate, BestOfN, SampleScoring, StepSettings};
use offshoot_search::steps::Stepper;
use offshoot_search::tree::{Prompt, SamplingTree};
use offshoot_search::tree_of_thought::Evaluate;
use offshoot_search::{
    ModelScores, Outcome, Scorer, SearchJob, best_by_scorer, best_of_n, choose, confident_self_consistency, dvts,
    entropy_branching, mcts, particle_gibbs, sample, self_consistency, step_beam, tree_of_thought, tree_po,
    vote_by_scorer,
};

use super::prepare::PreparedRun;
use super::prompts::{ItemPrompt, question_of};

/// Searches `tree` by the task's method. `scorer`: what scores solutions where the method asks for it.
pub(super) fn drive(
    prepared: &PreparedRun,
    prompt: &ItemPrompt<'_>,
    scorer: Option<&dyn TextScorer>,
    tree: &mut SamplingTree,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let (method, tokenizer) = (&prepared.task.method, &prepared.tokenizer);
    let (root, samples) = (tree.root(), method.samples() as usize);
    match method {
        Method::SelfConsistency { reward: Some(scoring), .. } => {
            let (mut by, how) = of_samples(prepared, prompt, scorer, scoring)?;
            vote_by_scorer(tree, root, samples, &mut by, &how, job)
        }
        Method::BestByScorer { scorer: SampleScorer::Reward(scoring), .. } => {
            let (mut by, how) = of_samples(prepared, prompt, scorer, scoring)?;
            best_by_scorer(tree, root, samples, &mut by, &how, job)
        }
        Method::SelfConsistency { stop, confidence: None, .. } => self_consistency(tree, root, samples, *stop, job),
        Method::SelfConsistency { stop, confidence: Some(how), .. } => {
            confident_self_consistency(tree, root, samples, how, *stop, job)
        }
        Method::BestOfN { by, stop_when_passed, .. } => {
            best_of_n(tree, root, &BestOfN { samples, by: *by, stop_when_passed: *stop_when_passed }, job)
        }
        Method::BestByScorer { scorer: SampleScorer::Verdicts(verdicts), .. } => {
            let ask = |text: &str| question(prepared, prompt, text);
            let how = SampleScoring::default();
            best_by_scorer(tree, root, samples, &mut asking(verdicts, &ask), &how, job)
        }
        Method::Sample { .. } => sample(tree, root, samples, job),
        Method::TreeOfThought(how) => {
            let render = |prompt: &TaskPrompt| {
                let tokens = prompt.encode(&mut prepared.task.encoder_of_samples(tokenizer))?.tokens;
                Ok(Prompt { text: prompt.text(tokenizer)?, tokens })
            };
            let continuation = |text: &str| prepared.task.encode_sample(tokenizer, text);
            let texts = ItemTexts { how, item: prompt.item, render: &render, continuation: &continuation };
            let scores = match how.settings.evaluate {
                Evaluate::Scorer => Some(scores(prepared, prompt, scorer)?),
                Evaluate::Value { .. } | Evaluate::Vote { .. } => None,
            };
            tree_of_thought(tree, &how.settings, &texts, scores, job)
        }
        Method::Choose(how) => choose(tree, root, &prompt.choices, how.by, job),
        Method::StepBeam { search, .. } => {
            stepping(prepared, prompt, scorer, &search.steps, |s| step_beam(tree, root, search, s, job))
        }
        Method::Dvts { search, .. } => {
            stepping(prepared, prompt, scorer, &search.steps, |s| dvts(tree, root, search, s, job))
        }
        Method::Particles { search, .. } => {
            stepping(prepared, prompt, scorer, &search.steps, |s| particle_gibbs(tree, root, search, s, job))
        }
        Method::Mcts { search, .. } => {
            stepping(prepared, prompt, scorer, &search.steps, |s| mcts(tree, root, search, s, job))
        }
        Method::TreePo(how) => tree_po(tree, root, how, &|context, tokens| decode(prepared, context, tokens), job),
        Method::EntropyBranching(how) => {
            entropy_branching(tree, root, how, &|context, tokens| decode(prepared, context, tokens), job)
        }
    }
}

/// The text of tokens behind others.
fn decode(prepared: &PreparedRun, context: &[TokenId], tokens: &[TokenId]) -> String {
    prepared.tokenizer.stream(context).text_of(tokens)
}

/// The scorer of an item's solutions.
fn scores(prepared: &PreparedRun, prompt: &ItemPrompt<'_>, scorer: Option<&dyn TextScorer>) -> Result<ModelScores> {
    let task = &prepared.task;
    let scorer = scorer.ok_or_else(|| Error::Internal("a run by a scorer is without one".to_owned()))?;
    let question = task.scorer.question(prompt.item, task.prompt(prompt.item)?)?;
    ModelScores::new(scorer, &question, task.scorer.on_error)
}

/// The scorer of an item's whole samples, and how it scores them.
fn of_samples(
    prepared: &PreparedRun,
    prompt: &ItemPrompt<'_>,
    scorer: Option<&dyn TextScorer>,
    scoring: &RewardScoring,
) -> Result<(Scorer<'static>, SampleScoring)> {
    let by = Scorer::Model(Box::new(scores(prepared, prompt, scorer)?));
    let of_form = || scorer.map_or(Aggregate::Last, |scorer| scorer.aggregate());
    let aggregate = scoring.aggregate.unwrap_or_else(of_form);
    Ok((by, SampleScoring { delimiter: scoring.delimiter.clone(), aggregate }))
}

/// Runs a stepwise search.
fn stepping(
    prepared: &PreparedRun,
    prompt: &ItemPrompt<'_>,
    scorer: Option<&dyn TextScorer>,
    steps: &StepSettings,
    search: impl FnOnce(&mut Stepper<'_>) -> Result<Outcome>,
) -> Result<Outcome> {
    let decode = |context: &[TokenId], tokens: &[TokenId]| decode(prepared, context, tokens);
    let ask = |thoughts: &str| question(prepared, prompt, thoughts);
    let scorer = match prepared.task.method.scoring() {
        Some(ThoughtScoring::Grade) => Scorer::Grade,
        Some(ThoughtScoring::Verdicts(verdicts)) => asking(verdicts, &ask),
        Some(ThoughtScoring::Reward) => Scorer::Model(Box::new(scores(prepared, prompt, scorer)?)),
        Some(ThoughtScoring::MeanLogprob) | None => Scorer::MeanLogprob,
    };
    search(&mut Stepper::new(steps, &decode, scorer))
}

fn asking<'a>(verdicts: &Verdicts, ask: QuestionFor<'a>) -> Scorer<'a> {
    Scorer::Verdicts { ask, worth: verdicts.words.iter().map(|(_, worth)| *worth).collect() }
}

/// The question of the task's scorer about a solution of this item.
fn question(prepared: &PreparedRun, prompt: &ItemPrompt<'_>, thoughts: &str) -> Result<ScoreQuestion> {
    let Some(verdicts) = prepared.task.method.verdicts() else {
        return Err(Error::Internal("a question for a task without one".to_string()));
    };
    question_of(verdicts, prompt.item, thoughts, &mut prepared.task.encoder_of_samples(&prepared.tokenizer))
}
