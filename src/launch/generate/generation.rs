//! A job whose prompts are all known: begun in the order of `Order`, so many at once that the engine never runs dry.

use std::collections::{HashSet, VecDeque};
use std::task::Poll;
use std::time::Duration;

use super::generator::FOREVER;
use super::{GenerateEvent, Generator, PromptRequest, SampleId};
use crate::engine::{Finish, FinishReason};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::launch::Order;

/// Samples that wait in the engine beside as many as it grows at once, at most, and tokens of their prompts.
const AHEAD: usize = 4096;
const TOKENS_AHEAD: usize = 1 << 24;

/// What one prompt came to: its samples in their order, each whole or with the reason why it is not; an error where all
/// were refused.
pub type Samples = Result<Vec<Result<Finish>>>;

/// A job under way. Dropping it cancels what has not ended.
pub struct Generation<'a> {
    requests: Vec<PromptRequest<'a>>,
    generator: Generator,
    order: Order,
    /// The prompt that was begun last.
    before: &'a [TokenId],
    /// Of each prompt that was begun, the tokens that it has in common with the one begun before it.
    shared: Vec<usize>,
    is_begun: Vec<bool>,
    cancelled: HashSet<SampleId>,
    /// Events that did not come from the engine.
    ready: VecDeque<GenerateEvent>,
}

impl<'a> Generation<'a> {
    pub fn new(requests: Vec<PromptRequest<'a>>, generator: Generator) -> Self {
        let context = generator.engine().facts().context;
        let prompts: Vec<&[TokenId]> = requests.iter().map(|request| request.tokens).collect();
        let order = Order::new(&prompts, requests.iter().map(|request| request.draws(context)).collect());
        Generation {
            generator,
            order,
            before: &[],
            shared: vec![0; requests.len()],
            is_begun: vec![false; requests.len()],
            cancelled: HashSet::new(),
            ready: VecDeque::new(),
            requests,
        }
    }

    /// Waits for the next event; `None` once every sample of every prompt has ended.
    #[expect(clippy::should_implement_trait, reason = "an Iterator would suggest that dropping it midway is harmless")]
    pub fn next(&mut self) -> Option<GenerateEvent> {
        loop {
            if let Poll::Ready(event) = self.poll(FOREVER) {
                return event;
            }
        }
    }

    /// `next` that waits no longer than `patience`; `Poll::Pending` if nothing happened until then.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<GenerateEvent>> {
        self.begin_more();
        if let Some(event) = self.ready.pop_front() {
            return Poll::Ready(Some(event));
        }
        // Nothing in flight here means that nothing is left: a prompt is begun at any rate while the engine has none.
        let event = self.generator.poll(patience);
        if let Poll::Ready(Some(GenerateEvent::Finished { sample, finish })) = &event {
            self.note_length(*sample, finish);
        }
        event
    }

    /// Tells the order how long a sample became whose length nobody knew.
    fn note_length(&mut self, sample: SampleId, finish: &Finish) {
        let stop = self.requests[sample.prompt].stop;
        if !stop.is_exact() && finish.reason != FinishReason::Cancelled {
            self.order.note(finish.tokens.len(), stop.max_tokens);
        }
    }

    /// Has the engine begin prompts until enough wait there.
    fn begin_more(&mut self) {
        let at_once = self.generator.engine().facts().max_branches;
        loop {
            let waiting = self.generator.samples().saturating_sub(at_once);
            if waiting > AHEAD || (waiting > 0 && self.generator.prompt_tokens() > TOKENS_AHEAD) {
                return;
            }
            let Some(prompt) = self.order.next_prompt() else { return };
            if !std::mem::replace(&mut self.is_begun[prompt], true) {
                self.begin(prompt);
            }
        }
    }

    fn begin(&mut self, prompt: usize) {
        let request = self.requests[prompt];
        if let Err(error) = self.generator.begin(prompt, &request) {
            return self.ready.push_back(GenerateEvent::Refused { prompt, error });
        }
        let before = std::mem::replace(&mut self.before, request.tokens);
        self.shared[prompt] = before.iter().zip(request.tokens).take_while(|(a, b)| a == b).count();
        if !self.cancelled.is_empty() {
            let mut cancelled: Vec<SampleId> = (0..request.n).map(|sample| SampleId { prompt, sample }).collect();
            cancelled.retain(|sample| self.cancelled.remove(sample));
            self.generator.start();
            self.generator.cancel(&cancelled);
        }
    }

    /// Stops these samples; each finishes as cancelled, with what it has, unless it has ended already.
    pub fn cancel(&mut self, samples: &[SampleId]) {
        self.generator.cancel(samples);
        self.cancelled.extend(samples.iter().filter(|sample| !self.is_begun[sample.prompt]));
    }

    /// The same with all samples of a prompt. One that the engine does not have yet is never begun.
    pub fn cancel_prompt(&mut self, prompt: usize) {
        self.generator.cancel_prompt(prompt);
        if !std::mem::replace(&mut self.is_begun[prompt], true) {
            let cancelled = |sample| GenerateEvent::Finished {
                sample: SampleId { prompt, sample },
                finish: Finish::empty(FinishReason::Cancelled),
            };
            self.ready.extend((0..self.requests[prompt].n).map(cancelled));
        }
    }

    /// Has the engine forget a prompt at once: no event of it comes any more.
    pub fn discard(&mut self, prompt: usize) {
        self.is_begun[prompt] = true;
        self.generator.discard(prompt);
    }

    /// Whether the engine has this prompt, and not all its samples have ended.
    pub fn is_in_flight(&self, prompt: usize) -> bool {
        self.generator.is_in_flight(prompt)
    }

    /// Tokens that a prompt which was begun has in common with the one begun before it.
    pub fn shared_tokens(&self, prompt: usize) -> usize {
        self.shared[prompt]
    }

    /// Events that wait to be read: bounded, however long nobody reads.
    pub fn queued(&self) -> usize {
        self.ready.len() + self.generator.queued()
    }

    /// Runs to the end: what each prompt came to, in the order in which they were given.
    pub fn collect(mut self) -> Vec<Samples> {
        let mut all: Vec<Result<Vec<Option<Result<Finish>>>>> =
            self.requests.iter().map(|request| Ok((0..request.n).map(|_| None).collect())).collect();
        while let Some(event) = self.next() {
            let (sample, result) = match event {
                GenerateEvent::Tokens { .. } => continue,
                GenerateEvent::Finished { sample, finish } => (sample, Ok(finish)),
                GenerateEvent::Failed { sample, error } => (sample, Err(error)),
                GenerateEvent::Refused { prompt, error } => {
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

    /// The samples of every prompt, or the first error of any of them.
    pub fn collect_all(self) -> Result<Vec<Vec<Finish>>> {
        self.collect().into_iter().map(|samples| samples?.into_iter().collect()).collect()
    }

    /// Runs to the end and counts the tokens that were sampled, for who wants no more. What the engine holds of the
    /// samples is given back when the generation is dropped.
    ///
    /// # Errors
    /// The first of any sample or prompt.
    pub fn count_tokens(&mut self) -> Result<usize> {
        let mut sampled = 0;
        while let Some(event) = self.next() {
            match event {
                GenerateEvent::Tokens { .. } => {}
                GenerateEvent::Finished { finish, .. } => sampled += finish.tokens.len(),
                GenerateEvent::Failed { error, .. } | GenerateEvent::Refused { error, .. } => return Err(error),
            }
        }
        Ok(sampled)
    }
}
