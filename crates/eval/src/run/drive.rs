//! Starts the search of the task's method, with its settings from task, item, tokenizer, scorer and judge. `search`
//! defines the drivers.

use std::sync::Arc;

use crate::task::tree_of_thought::ItemTexts;
use crate::task::{Method, OwnQuestion, SampleScorer, TaskPrompt, TaskVerdict, ThoughtScoring};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_score::{Scale, TextScorer};
use offshoot_search::scorer::{QuestionFor, ScoreQuestion};
use offshoot_search::settings::{Aggregate, BestOfN, SampleScoring, StepSettings};
use offshoot_search::steps::Stepper;
use offshoot_search::tree::{Prompt, SamplingTree};
use offshoot_search::tree_of_thought::Evaluate;
use offshoot_search::{
    ModelScores, Outcome, SampleScore, Scorer, SearchJob, best_by_scorer, best_of_n, choose,
    confident_self_consistency, dvts, entropy_branching, mcts, particle_gibbs, sample, self_consistency, step_beam,
    tree_of_thought, tree_po, vote_by_scorer,
};
use offshoot_verdict::Ask;

use super::judge::verdicts_on;
use super::prepare::PreparedRun;
use super::prompts::{ItemPrompt, question_of};

/// What scores solutions where the method asks for it.
#[derive(Clone, Copy, Default)]
pub struct Scorers<'a> {
    /// Where it asks for `reward`.
    pub reward: Option<&'a dyn TextScorer>,
    /// Where it has a question, unless the run's own model reads the answer in its own batch.
    pub judge: Option<&'a Arc<dyn Ask>>,
}

/// Searches `tree` by the task's method.
pub(super) fn drive(
    prepared: &PreparedRun,
    prompt: &ItemPrompt<'_>,
    by: Scorers<'_>,
    tree: &mut SamplingTree,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let (method, tokenizer) = (&prepared.task.method, &prepared.tokenizer);
    let (root, samples) = (tree.root(), method.samples() as usize);
    match method {
        Method::SelfConsistency { scorer: Some(scorer), .. } => {
            let (mut by, how) = of_samples(prepared, prompt, by, scorer)?;
            vote_by_scorer(tree, root, samples, &mut by, &how, job).map(|outcome| as_scored(scorer, outcome))
        }
        Method::SelfConsistency { stop, confidence: None, .. } => self_consistency(tree, root, samples, *stop, job),
        Method::SelfConsistency { stop, confidence: Some(how), .. } => {
            confident_self_consistency(tree, root, samples, how, *stop, job)
        }
        Method::BestOfN { by, stop_when_passed, .. } => {
            best_of_n(tree, root, &BestOfN { samples, by: *by, stop_when_passed: *stop_when_passed }, job)
        }
        Method::BestByScorer { scorer, .. } => match prepared.own_question() {
            Some(own) => {
                let ask = |text: &str| question(prepared, own, prompt, text);
                best_by_scorer(tree, root, samples, &mut asking(own, &ask), &SampleScoring::default(), job)
            }
            None => {
                let (mut by, how) = of_samples(prepared, prompt, by, scorer)?;
                best_by_scorer(tree, root, samples, &mut by, &how, job).map(|outcome| as_scored(scorer, outcome))
            }
        },
        Method::Sample { .. } => sample(tree, root, samples, job),
        Method::TreeOfThought(how) => {
            let render = |prompt: &TaskPrompt| {
                let tokens = prompt.encode(&mut prepared.task.encoder_of_samples(tokenizer))?.tokens;
                Ok(Prompt { text: prompt.text(tokenizer)?, tokens })
            };
            let continuation = |text: &str| prepared.task.encode_sample(tokenizer, text);
            let texts = ItemTexts { how, item: prompt.item, render: &render, continuation: &continuation };
            let scores = match how.settings.evaluate {
                Evaluate::Scorer => Some(match &how.judge {
                    Some(verdict) => verdict_scores(prepared, prompt, verdict, by)?,
                    None => rewards(prepared, prompt, by)?,
                }),
                Evaluate::Value { .. } | Evaluate::Vote { .. } => None,
            };
            tree_of_thought(tree, &how.settings, &texts, scores, job)
        }
        Method::Choose(how) => choose(tree, root, &prompt.choices, how.by, job),
        Method::StepBeam { search, .. } => {
            stepping(prepared, prompt, by, &search.steps, |s| step_beam(tree, root, search, s, job))
        }
        Method::Dvts { search, .. } => {
            stepping(prepared, prompt, by, &search.steps, |s| dvts(tree, root, search, s, job))
        }
        Method::Particles { search, .. } => {
            stepping(prepared, prompt, by, &search.steps, |s| particle_gibbs(tree, root, search, s, job))
        }
        Method::Mcts { search, .. } => {
            stepping(prepared, prompt, by, &search.steps, |s| mcts(tree, root, search, s, job))
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

/// The task's scorer of an item's solutions.
fn rewards(prepared: &PreparedRun, prompt: &ItemPrompt<'_>, by: Scorers<'_>) -> Result<ModelScores> {
    let task = &prepared.task;
    let scorer = by.reward.ok_or_else(|| Error::Internal("a run by a scorer is without one".to_owned()))?;
    let question = task.scorer.question(prompt.item, task.prompt(prompt.item)?)?;
    ModelScores::new(scorer, &question, task.scorer.on_error)
}

/// The judge of an item's solutions, as their scorer.
fn verdict_scores(
    prepared: &PreparedRun,
    prompt: &ItemPrompt<'_>,
    verdict: &TaskVerdict,
    by: Scorers<'_>,
) -> Result<ModelScores> {
    let task = &prepared.task;
    let judge = by.judge.ok_or_else(|| Error::Internal("a run by a judge is without one".to_owned()))?;
    let tree = verdicts_on(task, prompt.item, verdict, judge).map(|verdicts| verdicts.tree());
    ModelScores::over(&judge.identity().name, Scale::Probability, tree, task.judge.on_error)
}

/// The scorer of an item's whole samples, and how it scores them.
fn of_samples(
    prepared: &PreparedRun,
    prompt: &ItemPrompt<'_>,
    by: Scorers<'_>,
    scorer: &SampleScorer,
) -> Result<(Scorer<'static>, SampleScoring)> {
    match scorer {
        SampleScorer::Reward(scoring) => {
            let scorer = Scorer::Model(Box::new(rewards(prepared, prompt, by)?));
            let of_form = || by.reward.map_or(Aggregate::Last, |scorer| scorer.aggregate());
            let aggregate = scoring.aggregate.unwrap_or_else(of_form);
            Ok((scorer, SampleScoring { delimiter: scoring.delimiter.clone(), aggregate }))
        }
        SampleScorer::Verdict(verdict) => {
            let scores = verdict_scores(prepared, prompt, verdict, by)?;
            Ok((Scorer::Model(Box::new(scores)), SampleScoring::default()))
        }
    }
}

/// The outcome with no scores of steps where a judge has scored the samples: a judge values whole texts, not steps.
fn as_scored(scorer: &SampleScorer, mut outcome: Outcome) -> Outcome {
    if let SampleScorer::Verdict(_) = scorer {
        for sample in &mut outcome.samples {
            if let Some(SampleScore::Scored { step_scores, .. }) = &mut sample.scored {
                step_scores.clear();
            }
        }
    }
    outcome
}

/// Runs a stepwise search.
fn stepping(
    prepared: &PreparedRun,
    prompt: &ItemPrompt<'_>,
    by: Scorers<'_>,
    steps: &StepSettings,
    search: impl FnOnce(&mut Stepper<'_>) -> Result<Outcome>,
) -> Result<Outcome> {
    let decode = |context: &[TokenId], tokens: &[TokenId]| decode(prepared, context, tokens);
    let own = prepared.own_question();
    let ask = |thoughts: &str| match own {
        Some(own) => question(prepared, own, prompt, thoughts),
        None => Err(Error::Internal("a question to the model for a task without one".to_owned())),
    };
    let scorer = match (prepared.task.method.scoring(), own) {
        (Some(ThoughtScoring::Grade), _) => Scorer::Grade,
        (Some(ThoughtScoring::Verdict(_)), Some(own)) => asking(own, &ask),
        (Some(ThoughtScoring::Verdict(verdict)), None) => {
            Scorer::Model(Box::new(verdict_scores(prepared, prompt, verdict, by)?))
        }
        (Some(ThoughtScoring::Reward), _) => Scorer::Model(Box::new(rewards(prepared, prompt, by)?)),
        (Some(ThoughtScoring::MeanLogprob) | None, _) => Scorer::MeanLogprob,
    };
    search(&mut Stepper::new(steps, &decode, scorer))
}

/// The run's own model as the scorer, which reads the probabilities of the question's words.
fn asking<'a>(own: OwnQuestion<'_>, ask: QuestionFor<'a>) -> Scorer<'a> {
    Scorer::Verdicts { ask, worth: own.words.iter().map(|(_, worth)| *worth).collect() }
}

/// The question about a solution of this item.
fn question(
    prepared: &PreparedRun,
    own: OwnQuestion<'_>,
    prompt: &ItemPrompt<'_>,
    thoughts: &str,
) -> Result<ScoreQuestion> {
    question_of(own, prompt.item, thoughts, &mut prepared.task.encoder_of_questions(&prepared.tokenizer))
}
