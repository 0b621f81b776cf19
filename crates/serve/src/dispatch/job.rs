//! What the dispatcher is asked to sample: one job for each request, with its prompts in tokens. `openai` decides what
//! a request means; the queue decides when its samples begin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use offshoot_engine::{Finish, Priority};
use offshoot_form::CompiledForm;
use offshoot_launch::{FormBegun, PromptRequest};
use offshoot_openai::protocol::ProtocolRequest;

use super::outbox::Outbox;
use crate::keys::ClientId;
use crate::leases::BranchForm;

/// Names a job; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// A request, as it is sampled.
pub struct Job {
    pub id: JobId,
    /// What clients may call it when they end it: the answer's id, and those that the request gives itself.
    pub names: Vec<String>,
    pub client: ClientId,
    /// Its priority holds among the jobs of its client; lower numbers are served first.
    pub request: Arc<ProtocolRequest>,
    pub form: JobForm,
    /// Its priority among the jobs of all clients, and in the engine.
    pub among_all: Priority,
    /// How long the branches of finished samples are kept; `None`: they are not.
    pub keep: Option<Duration>,
    /// When the samples that have not ended are cut short.
    pub deadline: Option<Instant>,
    pub outbox: Arc<Outbox>,
}

/// The form of a job's samples.
#[derive(Debug, Default)]
pub struct JobForm {
    /// The request's, held so that each of its samples finds it compiled.
    pub compiled: Option<Arc<CompiledForm>>,
    /// That of the kept branch which is the job's prompt, with nothing behind it.
    pub of_parent: Option<BranchForm>,
}

impl JobForm {
    /// Of a request without a parent.
    pub fn alone(compiled: Option<Arc<CompiledForm>>) -> JobForm {
        JobForm { compiled, of_parent: None }
    }

    /// What the parent has of the form, if its samples go on in it.
    pub fn begun(&self) -> Option<&FormBegun> {
        let key = self.compiled.as_ref()?.key();
        self.of_parent.as_ref().filter(|kept| kept.key == key).map(|kept| &kept.begun)
    }
}

impl Job {
    /// The results of all prompts: samples, scored continuations, and the prompts' own scores.
    pub fn results(&self) -> usize {
        (0..self.request.prompts.len()).map(|prompt| self.request.results(prompt)).sum()
    }

    /// Branches that it will keep: each sample or scored continuation, or each prompt if there are neither.
    pub fn promised(&self) -> usize {
        let kept = |choices: usize| if choices > 0 { choices } else { self.request.best_of.max(1) };
        self.keep.map_or(0, |_| self.request.prompts.iter().map(|prompt| kept(prompt.choices.len())).sum())
    }

    /// The form that the tokens of one of its samples are in, if its text is not complete.
    pub fn kept_form(&self, finish: &Finish) -> Option<BranchForm> {
        let key = self.form.compiled.as_ref().filter(|_| !finish.form_ended)?.key();
        let FormBegun { begin, sampled } = match (self.form.begun(), &self.request.params.form) {
            (Some(begun), _) => begun.clone(),
            (None, form) => FormBegun { begin: form.as_ref()?.begin.clone(), sampled: 0 },
        };
        Some(BranchForm { key, begun: FormBegun { begin, sampled: sampled + finish.tokens.len() } })
    }

    /// Whether it scores continuations of its prompts.
    pub fn has_choices(&self) -> bool {
        self.request.prompts.iter().any(|prompt| !prompt.choices.is_empty())
    }

    /// Whether it scores prompts or continuations.
    pub fn scores(&self) -> bool {
        self.request.scored_top().is_some() || self.has_choices()
    }

    /// Tokens of its prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.request.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }

    /// `samples` of prompt number `prompt` from `first` on. The prompt's scores come with its first samples.
    pub fn part(&self, prompt: usize, first: usize, samples: usize) -> PromptRequest<'_> {
        let whole = self.request.prompt(prompt, "");
        let prompt_logprobs = whole.prompt_logprobs.filter(|_| first == 0);
        PromptRequest { n: samples, prompt_logprobs, priority: self.among_all, ..whole }
    }
}
