//! Runs a job whose prompts are known in advance: starts them in the order of `PromptOrder`, enough at a time that the
//! engine always has work.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::task::Poll;
use std::time::Duration;

use super::{AsRequest, BeginOptions, Generator, KeptSample, RefusedPrompt, SampleId};
use crate::PromptOrder;
use offshoot_core::error::{Error, Result};
use offshoot_engine::{Event, Finish, FinishReason, wait};
use offshoot_kv::TokenCosts;

/// The result of one prompt: its samples by index, and the prompt's own scores if they were asked for, each a finish or
/// an error; an error if the whole prompt was refused.
pub type PromptResult = Result<Vec<Result<Finish>>>;

/// An event of a sample, or the prompt of which there will be none. Each sample of a prompt that is not refused ends
/// once, finished or failed.
pub type GenerationEvent = Result<Event<SampleId>, RefusedPrompt>;

/// A running job. Dropping it cancels the samples that have not finished.
pub struct Generation<R> {
    requests: Vec<R>,
    generator: Generator,
    order: PromptOrder,
    is_begun: Vec<bool>,
    cancelled: HashSet<SampleId>,
    /// What stragglers have whose branches are kept.
    kept: BTreeMap<SampleId, Finish>,
    /// Events produced here instead of by the engine.
    ready: VecDeque<GenerationEvent>,
}

impl<R: AsRequest> Generation<R> {
    pub fn new(requests: Vec<R>, generator: Generator) -> Self {
        let context = generator.engine().facts().context;
        let prompts: Vec<_> = requests.iter().map(|request| request.as_request().tokens).collect();
        let draws = requests.iter().map(|request| request.as_request().draws(context)).collect();
        let replicas = generator.engine().facts().replicas;
        let order = PromptOrder::among(replicas, TokenCosts::default(), &prompts, draws);
        Generation {
            generator,
            order,
            is_begun: vec![false; requests.len()],
            cancelled: HashSet::new(),
            kept: BTreeMap::new(),
            ready: VecDeque::new(),
            requests,
        }
    }

    /// Waits for the next event; `None` once every sample of every prompt has ended.
    #[expect(clippy::should_implement_trait, reason = "an Iterator would suggest that dropping it midway is harmless")]
    pub fn next(&mut self) -> Option<GenerationEvent> {
        wait(|patience| self.poll(patience))
    }

    /// Like `next`, but waits at most `patience`; `Poll::Pending` if nothing happened.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<GenerationEvent>> {
        self.begin_more();
        if let Some(event) = self.ready.pop_front() {
            return Poll::Ready(Some(event));
        }
        // If nothing is in flight, nothing is left: `begin_more` always starts a prompt when the engine has none.
        let event = match self.generator.poll(patience) {
            Poll::Ready(Some(Event::Finished { id, finish })) => {
                let finish = self.joined(id, finish);
                self.note_length(id, &finish);
                Poll::Ready(Some(Event::Finished { id, finish }))
            }
            other => other,
        };
        event.map(|event| event.map(Ok))
    }

    /// The finish of a sample with what it had before it was resumed. Of a straggler that is kept it is remembered.
    fn joined(&mut self, id: SampleId, finish: Finish) -> Finish {
        let request = &self.requests[id.prompt];
        let is_sample = id.sample < request.as_request().n;
        let finish = match self.kept.remove(&id) {
            Some(before) => before.followed_by(finish),
            None => finish,
        };
        if is_sample && request.group_end().is_some_and(|end| end.keeps(&finish.reason)) {
            self.kept.insert(id, finish.clone());
        }
        finish
    }

    /// Continues the kept stragglers of a prompt to their ends and returns their indices among its samples. Each
    /// finishes once more, with all that it has sampled; none is cancelled because others finish.
    ///
    /// # Errors
    ///
    /// Samples of the prompt still run.
    pub fn resume(&mut self, prompt: usize) -> Result<Vec<usize>> {
        if self.generator.is_in_flight(prompt) {
            let expected = "one whose samples have ended or wait";
            return Err(Error::value(format!("prompt {prompt} that is resumed"), expected, "one that runs"));
        }
        let mut kept = Vec::new();
        for (&id, before) in self.kept.range(SampleId { prompt, sample: 0 }..SampleId { prompt: prompt + 1, sample: 0 })
        {
            let branch = self.generator.take_branch(id);
            kept.extend(branch.map(|branch| KeptSample { sample: id.sample, branch, tokens: before.tokens.len() }));
        }
        if !kept.is_empty() {
            let options = BeginOptions { home: self.order.home(prompt), ..BeginOptions::default() };
            self.generator.resume(prompt, &kept, &self.requests[prompt].as_request(), options)?;
        }
        Ok(kept.iter().map(|kept| kept.sample).collect())
    }

    /// Releases the kept stragglers of a prompt, which then cannot be resumed.
    pub fn release_kept(&mut self, prompt: usize) {
        let of = SampleId { prompt, sample: 0 }..SampleId { prompt: prompt + 1, sample: 0 };
        let ids: Vec<SampleId> = self.kept.range(of).map(|(&id, _)| id).collect();
        for id in ids {
            if let Some(branch) = self.generator.take_branch(id) {
                self.generator.engine().release(&[branch]);
                self.kept.remove(&id);
            }
        }
    }

    /// Updates the length estimate with a finished sample of unknown length.
    fn note_length(&mut self, sample: SampleId, finish: &Finish) {
        let stop = self.requests[sample.prompt].as_request().stop;
        if !stop.is_exact() && !finish.reason.is_cut() {
            self.order.note(finish.tokens.len(), stop.max_tokens);
        }
    }

    /// Starts prompts until enough samples wait in the engine.
    fn begin_more(&mut self) {
        while !self.generator.has_enough() {
            let Some(prompt) = self.order.next_prompt() else { return };
            if !std::mem::replace(&mut self.is_begun[prompt], true) {
                self.begin(prompt);
            }
        }
    }

    fn begin(&mut self, prompt: usize) {
        let request = self.requests[prompt].as_request();
        let group_end = self.requests[prompt].group_end();
        let (home, adapter) = (self.order.home(prompt), self.requests[prompt].adapter());
        let options = BeginOptions { home, adapter, group_end, ..BeginOptions::default() };
        if let Err(error) = self.generator.begin_with(prompt, &request, options) {
            return self.ready.push_back(Err(RefusedPrompt { prompt, error }));
        }
        if !self.cancelled.is_empty() {
            let mut cancelled: Vec<SampleId> =
                (0..request.results()).map(|sample| SampleId { prompt, sample }).collect();
            cancelled.retain(|sample| self.cancelled.remove(sample));
            self.generator.start();
            self.generator.cancel(&cancelled);
        }
    }

    /// Cancels these samples; each finishes as cancelled and keeps its tokens, unless it has already ended.
    pub fn cancel(&mut self, samples: &[SampleId]) {
        self.generator.cancel(samples);
        self.cancelled.extend(samples.iter().filter(|sample| !self.is_begun[sample.prompt]));
    }

    /// Cancels all samples of a prompt. A prompt that has not started never does.
    pub fn cancel_prompt(&mut self, prompt: usize) {
        self.generator.cancel_prompt(prompt);
        if !std::mem::replace(&mut self.is_begun[prompt], true) {
            let cancelled = |sample| {
                let finish = Finish::empty(FinishReason::Cancelled);
                Ok(Event::Finished { id: SampleId { prompt, sample }, finish })
            };
            self.ready.extend((0..self.requests[prompt].as_request().results()).map(cancelled));
        }
    }

    /// Drops a prompt at once; no further events of it are returned.
    pub fn prune(&mut self, prompt: usize) {
        self.is_begun[prompt] = true;
        self.generator.prune(prompt);
    }

    /// Whether this prompt has started and has samples that have not ended.
    pub fn is_in_flight(&self, prompt: usize) -> bool {
        self.generator.is_in_flight(prompt)
    }

    /// Events waiting to be read; bounded even if they are never read.
    pub fn queued(&self) -> usize {
        self.ready.len() + self.generator.queued()
    }

    /// Runs to the end and returns the result of each prompt, in the order of the requests.
    pub fn collect(mut self) -> Vec<PromptResult> {
        let mut all: Vec<Result<Vec<Option<Result<Finish>>>>> = self
            .requests
            .iter()
            .map(|request| Ok((0..request.as_request().results()).map(|_| None).collect()))
            .collect();
        while let Some(event) = self.next() {
            let (sample, result) = match event {
                Ok(Event::Tokens { .. }) => continue,
                Ok(Event::Finished { id, finish }) => (id, Ok(finish)),
                Ok(Event::Failed { id, error }) => (id, Err(error)),
                Err(RefusedPrompt { prompt, error }) => {
                    all[prompt] = Err(error);
                    continue;
                }
            };
            if let Ok(samples) = &mut all[sample.prompt] {
                samples[sample.sample] = Some(result);
            }
        }
        let whole = |result: Option<Result<Finish>>| {
            result.unwrap_or_else(|| Err(Error::Internal("a sample was discarded".to_owned())))
        };
        all.into_iter().map(|samples| samples.map(|samples| samples.into_iter().map(whole).collect())).collect()
    }

    /// Runs to the end and returns the samples of every prompt.
    ///
    /// # Errors
    ///
    /// The first error of any prompt or sample.
    pub fn collect_all(self) -> Result<Vec<Vec<Finish>>> {
        self.collect().into_iter().map(|samples| samples?.into_iter().collect()).collect()
    }

    /// Runs to the end and returns the number of sampled tokens. The engine keeps the samples' keys and values until
    /// the generation is dropped.
    ///
    /// Fails with the first error of any sample or prompt.
    pub fn count_tokens(&mut self) -> Result<usize> {
        let mut sampled = 0;
        while let Some(event) = self.next() {
            match event {
                Ok(Event::Tokens { .. }) => {}
                Ok(Event::Finished { finish, .. }) => sampled += finish.tokens.len(),
                Ok(Event::Failed { error, .. }) | Err(RefusedPrompt { error, .. }) => return Err(error),
            }
        }
        Ok(sampled)
    }
}
