//! Runs the requests: a thread encodes their prompts, some ahead of their turn; a loop samples from them and writes a
//! request's answer when all of its prompts are complete. `PromptOrder` decides the order of the prompts, `Generator`
//! how many run at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, never};

use crate::protocol::{CallGrammars, PromptCandidates, PromptResults, ProtocolRequest, Refusal, RequestReader};
use offshoot_core::error::{Error, Result};
use offshoot_core::out::Progress;
use offshoot_engine::{EngineFacts, EngineHandle, Event, FinishReason, First, GroupEnd, Hear, KeptAdapter};
use offshoot_form::CompiledForm;
use offshoot_kv::{DistinctTokens, Origin};
use offshoot_launch::{
    BeginOptions, Generator, PromptOrder, Release, SampleId, TextKey, guarded, in_bytes, work_ahead,
};

use super::answer::BatchAnswer;
use super::input::{Call, InputLine};
use super::origin::AnswerOrigin;
use super::output::BatchOutput;
use super::request::{CallRequest, CallResponse, RequestOutline};

/// How often a form is tried again for which there was no room.
const FORM_RETRIES: usize = 5;
/// Longest wait for an event before the interrupt flag is read again.
const PATIENCE: Duration = Duration::from_millis(100);

/// Hears how answering goes on.
pub trait AnswerProgress: Sync {
    /// The request on this line of the input is about to be encoded and sampled.
    fn request_begun(&self, line: usize);
    /// A sample has ended, with so many tokens.
    fn sample_done(&self, tokens: usize);
    /// The request on this line is answered or refused, which added so many bytes to the file of answers. An error ends
    /// the job.
    fn request_done(&self, line: usize, is_refused: bool, bytes: usize) -> Result<()>;
}

impl AnswerProgress for Progress {
    fn request_begun(&self, _line: usize) {}

    fn sample_done(&self, tokens: usize) {
        Progress::sample_done(self, tokens);
    }

    fn request_done(&self, _line: usize, _is_refused: bool, _bytes: usize) -> Result<()> {
        self.item_done();
        Ok(())
    }
}

pub struct BatchJob<'a> {
    pub lines: &'a [InputLine],
    pub origin: &'a AnswerOrigin,
    pub engine: EngineHandle,
    pub reader: RequestReader<'a>,
    /// Those of its requests' calls.
    pub grammars: CallGrammars,
    /// Start of the job, in seconds since 1970.
    pub created: u64,
    pub progress: &'a dyn AnswerProgress,
}

impl BatchJob<'_> {
    /// Returns the number of tokens sampled, or the interrupt or error that ended the job early.
    pub fn answer_all(
        &self,
        requests: &[&RequestOutline],
        output: &mut BatchOutput,
        interrupted: &AtomicBool,
    ) -> Result<usize> {
        self.answer_encoded(requests, output, interrupted, |line| self.encode(line))
    }

    /// As `answer_all`; `encode` turns a line into a request, on a separate thread.
    fn answer_encoded(
        &self,
        requests: &[&RequestOutline],
        output: &mut BatchOutput,
        interrupted: &AtomicBool,
        mut encode: impl FnMut(usize) -> Result<AcceptedRequest, Refusal> + Send,
    ) -> Result<usize> {
        let places = |of: &&RequestOutline| {
            let line = of.line;
            (0..of.prompts.len()).map(move |prompt| RequestPrompt { line, prompt })
        };
        let places: Vec<RequestPrompt> = requests.iter().flat_map(places).collect();
        let prompts = || requests.iter().flat_map(|request| &request.prompts);
        let keys: Vec<_> = prompts().map(|prompt| &prompt.key).collect();
        let (replicas, draws) = (self.engine.facts().replicas, prompts().map(|prompt| prompt.draws).collect());
        let order = Mutex::new(PromptOrder::among(replicas, TextKey::COSTS, &keys, draws));
        let mut answering = AnswerLoop {
            work: self,
            places: &places,
            order: &order,
            generator: Generator::new(self.engine.clone(), Hear::Finishes, Release::EachSample),
            seen: DistinctTokens::default(),
            open: HashMap::new(),
            again: Vec::new(),
            output,
            tokens: 0,
        };
        // Whether the prompts of a line's request are sampled; `None`: it is not encoded yet.
        let mut is_accepted: Vec<Option<bool>> = vec![None; self.lines.len()];
        let next = || loop {
            let place = order.lock().expect("taking does not panic").next_prompt()?;
            let line = places[place].line;
            match is_accepted[line] {
                Some(true) => return Some(NextPrompt { place, request: None }),
                Some(false) => {}
                None => {
                    self.progress.request_begun(line);
                    let encoded = guarded(|| Ok(encode(line))).unwrap_or_else(|error| Err(Refusal::of(&error)));
                    is_accepted[line] = Some(encoded.is_ok());
                    return Some(NextPrompt { place, request: Some(encoded) });
                }
            }
        };
        let ended = std::thread::scope(|scope| {
            let prompts = work_ahead(scope, next)?;
            answering.run(&prompts, interrupted)
        });
        answering.log_prompts();
        ended.map(|()| answering.tokens)
    }

    fn call(&self, line: usize) -> &Call {
        self.lines[line].call.as_ref().expect("a request is read from a call")
    }

    fn encode(&self, line: usize) -> Result<AcceptedRequest, Refusal> {
        let CallRequest { mut request, response } = self.call(line).encoded(&self.reader)?;
        let fitted = request.fit_paths(self.engine.facts()).and_then(|()| self.compile_form(&mut request));
        let form = fitted.map_err(|refusal| CallResponse::refusal(response.as_ref(), refusal))?;
        Ok(AcceptedRequest { asked: CallRequest { request, response }, form })
    }

    fn compile_form(&self, request: &mut ProtocolRequest) -> Result<Option<Arc<CompiledForm>>, Refusal> {
        let mut compile = || request.compile_form(&self.engine, self.reader.tokenizer, &self.grammars, None);
        let mut form = compile();
        for _ in 0..FORM_RETRIES {
            // A batch has time: what a client would send again is tried again.
            let Some(seconds) = form.as_ref().err().and_then(|refusal| refusal.retry_after) else { break };
            std::thread::sleep(Duration::from_secs(seconds));
            form = compile();
        }
        form
    }
}

/// A prompt of the request on a line.
#[derive(Clone, Copy)]
struct RequestPrompt {
    line: usize,
    prompt: usize,
}

/// A request in tokens, with its form.
struct AcceptedRequest {
    asked: CallRequest,
    form: Option<Arc<CompiledForm>>,
}

/// The next prompt to start.
struct NextPrompt {
    /// Index into the places.
    place: usize,
    /// Its request, or why it is refused; `None`: sent with an earlier prompt of the request.
    request: Option<Result<AcceptedRequest, Refusal>>,
}

/// A request with prompts that have begun.
struct BegunRequest {
    asked: CallRequest,
    /// One for each prompt of the request.
    prompts: Vec<OpenPrompt>,
    /// Its adapter, if it has one: prompts of it may begin after the adapter was unloaded.
    _adapter: Option<KeptAdapter>,
    /// Its form, if it has one: each of its samples finds it compiled.
    _form: Option<Arc<CompiledForm>>,
}

#[derive(Default)]
struct OpenPrompt {
    /// If the prompt has begun, the length in tokens of its common prefix with earlier ones.
    shared: usize,
    results: PromptResults,
    /// Its candidates once all have ended, or why there are none.
    ended: Option<Result<PromptCandidates, Refusal>>,
}

struct AnswerLoop<'a> {
    work: &'a BatchJob<'a>,
    /// The request and index of each prompt.
    places: &'a [RequestPrompt],
    order: &'a Mutex<PromptOrder>,
    generator: Generator,
    /// The prompts that have begun.
    seen: DistinctTokens,
    /// By line: requests with prompts that have begun and that are not answered yet.
    open: HashMap<usize, BegunRequest>,
    /// Places of prompts that begin again, whole, once there are weights.
    again: Vec<usize>,
    output: &'a mut BatchOutput,
    tokens: usize,
}

impl AnswerLoop<'_> {
    fn run(&mut self, prompts: &Receiver<NextPrompt>, interrupted: &AtomicBool) -> Result<()> {
        let (silent, mut has_all) = (never(), false);
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let stands = self.work.engine.status().lacks_weights;
            if !stands {
                std::mem::take(&mut self.again).into_iter().try_for_each(|at| self.sample(at))?;
            }
            while !has_all && !stands && !self.generator.has_enough() {
                match prompts.try_recv() {
                    Ok(prompt) => self.begin(prompt)?,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => has_all = true,
                }
            }
            let others = if has_all || stands || self.generator.has_enough() { &silent } else { prompts };
            match self.generator.poll_beside(others, PATIENCE) {
                Poll::Ready(First::Event(Some(event))) => self.handle(event)?,
                Poll::Ready(First::Message(prompt)) => self.begin(prompt)?,
                Poll::Ready(First::Event(None)) if has_all && self.again.is_empty() => return Ok(()),
                Poll::Ready(First::Event(None)) if stands => std::thread::sleep(PATIENCE),
                Poll::Ready(First::Event(None)) => match prompts.recv_timeout(PATIENCE) {
                    Ok(prompt) => self.begin(prompt)?,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => has_all = true,
                },
                Poll::Pending => {}
            }
        }
    }

    fn log_prompts(&self) {
        let Ok(metrics) = self.work.engine.metrics() else { return };
        log::info!(
            "prompts: {} distinct tokens, {} computed, {} log-probabilities found; {} rows in {} steps",
            self.seen.count(),
            metrics.prompt_tokens_computed,
            metrics.scores_reused,
            metrics.rows,
            metrics.steps
        );
    }

    fn begin(&mut self, NextPrompt { place: at, request }: NextPrompt) -> Result<()> {
        let place = self.places[at];
        match request {
            Some(Ok(AcceptedRequest { asked, form })) => {
                let request = &asked.request;
                let prompts = request.prompts.iter().map(|_| OpenPrompt::default()).collect();
                // Where it fails, the request's own branches do, too, and say why.
                let adapter = request.adapter.and_then(|adapter| self.work.engine.keep_adapter(adapter).ok());
                self.open.insert(place.line, BegunRequest { asked, prompts, _adapter: adapter, _form: form });
            }
            Some(Err(refusal)) => return self.refuse(place.line, refusal),
            None => {}
        }
        let open = self.open.get_mut(&place.line).expect("a request is open until all of its prompts have ended");
        let request = &open.asked.request;
        let prompt = request.prompt(place.prompt, &self.work.call(place.line).custom_id);
        let (salt, adapter) = (request.salt, request.adapter);
        let weights = self.work.engine.weights().version;
        let shared = self.seen.insert_apart(Origin { weights, salt, adapter }, prompt.tokens);
        // Reported where something is sampled after the prompt.
        open.prompts[place.prompt].shared = if prompt.n == 0 { 0 } else { shared };
        if prompt.results() == 0 {
            return self.end(at, Ok(PromptCandidates::default()));
        }
        self.sample(at)
    }

    /// Has the engine sample a prompt of an open request.
    fn sample(&mut self, at: usize) -> Result<()> {
        let place = self.places[at];
        let open = self.open.get(&place.line).expect("a request is open until all of its prompts have ended");
        let request = &open.asked.request;
        let prompt = request.prompt(place.prompt, &self.work.call(place.line).custom_id);
        let (salt, adapter) = (request.salt, request.adapter);
        let home = self.order.lock().expect("reading does not panic").home(at);
        let group_end = request.min_finished.map(GroupEnd::new);
        let options = BeginOptions { home, salt, adapter, group_end, ..BeginOptions::default() };
        match self.generator.begin_with(at, &prompt, options) {
            Ok(()) => Ok(()),
            Err(error) => self.fail(at, error),
        }
    }

    /// Ends a prompt of which a sample has failed. Without weights it waits for others: the request is not to blame.
    fn fail(&mut self, at: usize, error: Error) -> Result<()> {
        if let Error::NoWeights { .. } = error {
            let RequestPrompt { line, prompt } = self.places[at];
            let open = self.open.get_mut(&line).expect("a request is open until all of its prompts have ended");
            open.prompts[prompt].results = PromptResults::default();
            self.again.push(at);
            return Ok(());
        }
        let refusal = request_refusal(error, self.work.engine.facts())?;
        self.end(at, Err(refusal))
    }

    fn refuse(&mut self, line: usize, refusal: Refusal) -> Result<()> {
        let answer = BatchAnswer::refused(&self.work.lines[line], refusal, self.work.origin);
        let bytes = self.output.write(line, &answer)?;
        self.work.progress.request_done(line, true, bytes)
    }

    fn handle(&mut self, event: Event<SampleId>) -> Result<()> {
        match event {
            Event::Tokens { .. } => Ok(()),
            Event::Finished { id: sample, finish } => {
                let is_sampled = finish.reason != FinishReason::Given;
                if is_sampled {
                    self.tokens += finish.sampled();
                    self.work.progress.sample_done(finish.sampled());
                }
                let RequestPrompt { line, prompt } = self.places[sample.prompt];
                let BegunRequest { asked: CallRequest { request, .. }, prompts, .. } =
                    self.open.get_mut(&line).expect("its samples have not ended");
                let stop = &request.prompts[prompt].stop;
                if is_sampled && !stop.is_exact() {
                    self.order.lock().expect("noting does not panic").note(finish.tokens.len(), stop.max_tokens);
                }
                let OpenPrompt { results, shared, .. } = &mut prompts[prompt];
                if results.add(sample.sample, finish, None) < request.results(prompt) {
                    return Ok(());
                }
                let candidates = std::mem::take(results).candidates(request, prompt, *shared);
                self.end(sample.prompt, Ok(candidates))
            }
            Event::Failed { id: sample, error } => {
                // The other samples are useless without this one.
                self.generator.prune(sample.prompt);
                self.fail(sample.prompt, error)
            }
        }
    }

    /// Stores the result of one prompt; the last one of a request writes the answer.
    fn end(&mut self, at: usize, part: Result<PromptCandidates, Refusal>) -> Result<()> {
        let place = self.places[at];
        let open = self.open.get_mut(&place.line).expect("a request is open until all of its prompts have ended");
        open.prompts[place.prompt].ended = Some(part);
        if open.prompts.iter().any(|prompt| prompt.ended.is_none()) {
            return Ok(());
        }
        let BegunRequest { asked, prompts, .. } = self.open.remove(&place.line).expect("it was there just now");
        let all: Result<Vec<PromptCandidates>, Refusal> = prompts.into_iter().filter_map(|of| of.ended).collect();
        let (work, line) = (self.work, place.line);
        let answer = match all {
            Ok(all) => BatchAnswer::of(work.call(line), asked, &all, work.origin, work.reader.tokenizer, work.created),
            Err(refusal) => {
                return self.refuse(line, CallResponse::refusal(asked.response.as_ref(), refusal));
            }
        };
        let bytes = self.output.write(line, &answer)?;
        work.progress.request_done(line, false, bytes)
    }
}

/// Errors caused by a single request become its refusal; any other error ends the job.
fn request_refusal(error: Error, facts: &EngineFacts) -> Result<Refusal> {
    match error {
        Error::ContextTooLong { .. }
        | Error::OutOfPages { .. }
        | Error::DeviceMemory { .. }
        | Error::LockedMemory { .. }
        | Error::Value { .. } => {
            let refusal = Refusal::of(&error);
            Ok(Refusal { message: in_bytes(error, facts).to_string(), ..refusal })
        }
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use offshoot_engine::{ScriptedCall, ScriptedReply, WeightsUpdate};
    use offshoot_model::{TensorsInMemory, UpdateScope};
    use serde_json::json;

    use super::*;
    use crate::batch::{input, request};

    fn lines(folder: &Path, bodies: impl Iterator<Item = serde_json::Value>) -> Vec<InputLine> {
        let given = folder.join("in.jsonl");
        let line = |(id, body): (usize, _)| {
            json!({ "custom_id": id.to_string(), "url": "/v1/completions", "body": body }).to_string() + "\n"
        };
        std::fs::write(&given, bodies.enumerate().map(line).collect::<String>()).expect("the folder is writable");
        input::read(&given, 1 << 20).expect("sound lines")
    }

    fn outlines(lines: &[InputLine], reader: &RequestReader<'_>) -> Vec<RequestOutline> {
        let outline = |line: &InputLine| {
            let call = line.call.as_ref().unwrap_or_else(|refusal| panic!("{}", refusal.message));
            RequestOutline::read(reader, line.index, call).unwrap_or_else(|refusal| panic!("{}", refusal.message))
        };
        lines.iter().map(outline).collect()
    }

    /// The engine loses its weights while it samples.
    #[test]
    fn requests_wait_for_weights_that_an_update_has_lost() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bodies = (0..40).map(|id| json!({ "prompt": [format!("{id}."), "and"], "max_tokens": 2, "n": 2 }));
        let lines = lines(folder.path(), bodies);
        let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
        let (real, tokenizer) = offshoot_launch::open(&model).expect("the demo model is part of the project");
        let vocab = real.facts().vocab;
        let mut begun = 0;
        let script = move |_: &ScriptedCall<'_>| {
            begun += 1;
            let reply = ScriptedReply::text("ab").reason(FinishReason::Length);
            if begun == 1 { reply.losing_weights() } else { reply }
        };
        let engine = EngineHandle::scripted_with(|facts| EngineFacts { vocab, max_branches: 8, ..facts }, script);
        let model = offshoot_model::ModelFolder::open(&model).expect("the same");
        let reader = || request::reader(&tokenizer, &model.config, "demo", 0);
        let origin = AnswerOrigin::new(&model, &offshoot_launch::EngineBudget::default(), 0).expect("readable files");
        let out = folder.path().join("out.jsonl");
        let mut output = BatchOutput::open(&out, false, &lines, &origin).expect("a new file");
        let outlines = outlines(&lines, &reader());
        let progress = Progress::new(lines.len());
        let job = BatchJob {
            lines: &lines,
            origin: &origin,
            engine: engine.clone(),
            reader: reader(),
            grammars: CallGrammars::default(),
            created: 0,
            progress: &progress,
        };
        std::thread::scope(|scope| {
            let answering = scope
                .spawn(|| job.answer_all(&outlines.iter().collect::<Vec<_>>(), &mut output, &AtomicBool::new(false)));
            let mut updates = 0;
            while !answering.is_finished() {
                if engine.status().lacks_weights {
                    let tensors = Arc::new(TensorsInMemory::default());
                    engine.update_weights(WeightsUpdate::new(tensors, UpdateScope::Whole)).expect("it takes all");
                    updates += 1;
                }
                std::thread::yield_now();
            }
            assert!(answering.join().expect("it does not panic").expect("nothing ends the job") > 0);
            assert_eq!(updates, 1);
        });
        assert_eq!((output.answered(), output.refused()), (40, 0));
    }

    /// The last prompt is encoded only after the engine's first step: a job that encoded all prompts first would never
    /// start. The line before it is refused when it is encoded.
    #[test]
    fn prompts_are_encoded_while_the_engine_works() {
        const LINES: usize = 100;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = folder.path().join("out.jsonl");
        let body = |id| json!({ "prompt": [format!("Tom has {id} pens."), format!("Mia has {id}")], "max_tokens": 2 });
        let lines = lines(folder.path(), (0..LINES).map(body));
        let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
        let (engine, tokenizer) = offshoot_launch::open(&model).expect("the demo model is part of the project");
        let folder = offshoot_model::ModelFolder::open(&model).expect("the same");
        let reader = || request::reader(&tokenizer, &folder.config, "demo", 0);
        let budget = offshoot_launch::EngineBudget::default();
        let origin = AnswerOrigin::new(&folder, &budget, 0).expect("files that can be read");
        let mut output = BatchOutput::open(&out, false, &lines, &origin).expect("a new file");
        let outlines = outlines(&lines, &reader());
        let progress = Progress::new(LINES);
        let job = BatchJob {
            lines: &lines,
            origin: &origin,
            engine: engine.clone(),
            reader: reader(),
            grammars: CallGrammars::default(),
            created: 0,
            progress: &progress,
        };
        let mut encoded = 0;
        let outlines: Vec<&RequestOutline> = outlines.iter().collect();
        let tokens = job.answer_encoded(&outlines, &mut output, &AtomicBool::new(false), |line| {
            encoded += 1;
            let patience = Instant::now() + Duration::from_secs(60);
            while encoded == LINES && engine.metrics().is_ok_and(|metrics| metrics.steps == 0) {
                assert!(Instant::now() < patience, "the engine waits for the last prompt");
            }
            if encoded == LINES - 1 {
                return Err(Refusal::new("refused", "by a test"));
            }
            job.encode(line)
        });
        assert!(tokens.expect("nothing ends the job") > 0);
        assert_eq!((output.answered(), output.refused()), (LINES - 1, 1));
    }
}
