//! A file of requests and the file of its answers, as both commands that answer such files use them: `offshoot batch`
//! with an engine of its own, and a server with the engine that it has.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use super::answer::{BatchAnswer, unanswered};
use super::input::InputLine;
use super::origin::AnswerOrigin;
use super::output::BatchOutput;
use super::request::RequestOutline;
use super::work::{AnswerProgress, BatchJob};
use crate::protocol::{CallGrammars, Refusal, RequestReader};
use offshoot_core::error::Result;
use offshoot_engine::EngineHandle;

/// The lines of the input, and the answers so far.
pub struct RequestFile {
    pub lines: Vec<InputLine>,
    pub(super) output: BatchOutput,
    origin: AnswerOrigin,
    /// Those that are not answered yet.
    requests: Vec<RequestOutline>,
}

impl RequestFile {
    /// Opens the file of answers at `out`, with `resume` one that may have some, and refuses what cannot be answered.
    pub fn open(
        lines: Vec<InputLine>,
        out: &Path,
        resume: bool,
        origin: AnswerOrigin,
        reader: &RequestReader<'_>,
    ) -> Result<RequestFile> {
        let mut output = BatchOutput::open(out, resume, &lines, &origin)?;
        let mut requests: Vec<RequestOutline> = Vec::new();
        for line in &lines {
            if output.has(line.index) {
                continue;
            }
            let read = line.call.as_ref().map_err(Refusal::clone);
            match read.and_then(|call| RequestOutline::read(reader, line.index, call)) {
                Ok(request) => requests.push(request),
                Err(refusal) => drop(output.write(line.index, &BatchAnswer::refused(line, refusal, &origin))?),
            }
        }
        Ok(RequestFile { lines, output, origin, requests })
    }

    /// Indices of the lines whose requests are neither answered nor refused.
    pub fn open_requests(&self) -> impl Iterator<Item = usize> {
        self.requests.iter().map(|request| request.line).filter(|&line| !self.output.has(line))
    }

    /// Requests that are answered, and those that are refused.
    pub fn counts(&self) -> (usize, usize) {
        (self.output.answered(), self.output.refused())
    }

    /// Branches of the open requests.
    pub fn branches(&self) -> usize {
        self.requests.iter().map(|request| request.branches).sum::<usize>().max(1)
    }

    /// Most tokens that the branches of the open requests hold.
    pub fn most_tokens(&self) -> usize {
        self.requests.iter().map(|request| request.most_tokens).fold(0, usize::saturating_add)
    }

    /// Answers the open requests among these lines, until all of them are answered or `interrupted` is set. Returns the
    /// number of tokens sampled.
    pub fn answer(
        &mut self,
        is_wanted: impl Fn(usize) -> bool,
        engine: EngineHandle,
        reader: RequestReader<'_>,
        progress: &dyn AnswerProgress,
        interrupted: &AtomicBool,
    ) -> Result<usize> {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let grammars = CallGrammars::default();
        let job = BatchJob { lines: &self.lines, origin: &self.origin, engine, reader, grammars, created, progress };
        let is_wanted = |request: &&RequestOutline| is_wanted(request.line) && !self.output.has(request.line);
        let requests: Vec<&RequestOutline> = self.requests.iter().filter(is_wanted).collect();
        if requests.is_empty() {
            return Ok(0);
        }
        job.answer_all(&requests, &mut self.output, interrupted)
    }

    /// Refuses the open request of a line.
    pub fn refuse(&mut self, line: usize, refusal: Refusal) -> Result<()> {
        let answer = BatchAnswer::refused(&self.lines[line], refusal, &self.origin);
        self.output.write(line, &answer).map(drop)
    }

    /// The lines that say of each open request why it is not answered; `code` and `message`: the reason.
    pub fn unanswered(&self, code: &str, message: &str) -> Vec<(usize, String)> {
        let line = |line: usize| (line, unanswered(&self.lines[line], code, message).to_string());
        self.open_requests().filter(|&line| !self.output.was_refused(line)).map(line).collect()
    }

    /// Writes such lines. Their requests stay open.
    pub fn leave(&mut self, unanswered: Vec<(usize, String)>) -> Result<()> {
        unanswered.into_iter().try_for_each(|(line, text)| self.output.leave(line, text))
    }

    /// Sorts the answers into the order of the input.
    pub fn finish(self) -> Result<()> {
        self.output.finish()
    }
}
