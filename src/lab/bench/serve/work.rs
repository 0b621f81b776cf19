//! The requests of a load and when each is sent: bodies of a batch file, or synthetic prompts by lengths.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{LoadOptions, Pace, SyntheticWork, WorkSource};
use crate::error::{Error, Result};
use crate::lab::replay::{ReplayJob, ReplayRequest, TextRun, TracePrompt, poisson, read_trace};
use crate::lines::{Lines, MOST_OF_RECORD, open};
use crate::openai::protocol::Endpoint;

/// Synthetic requests, unless their number is given.
const REQUESTS: usize = 64;

/// A request as it is sent.
pub struct LoadRequest {
    pub path: &'static str,
    pub body: Bytes,
    /// Whether its events name several choices.
    pub has_choices: bool,
    /// When it is sent, counted from the beginning of the load; zero if each waits for an earlier one to end.
    pub arrival: Duration,
}

/// The requests of `options`, in order of arrival.
pub fn read(options: &LoadOptions) -> Result<Vec<LoadRequest>> {
    // Only a trace has arrivals of its own.
    let (calls, recorded) = match &options.source {
        WorkSource::Batch(path) => (of_batch(path, options.requests.unwrap_or(usize::MAX))?, Vec::new()),
        WorkSource::Synthetic(work) => (work.calls(options.requests.unwrap_or(REQUESTS)), Vec::new()),
        WorkSource::Trace { path, shrink, vocab } => {
            let mut job = read_trace(path)?;
            job.requests.truncate(options.requests.unwrap_or(usize::MAX));
            of_trace(&job, *shrink, *vocab)
        }
    };
    let arrivals: Vec<Duration> = match options.pace {
        Pace::Concurrency(_) => vec![Duration::ZERO; calls.len()],
        Pace::Rate(rate) => poisson(rate, options.seed).take(calls.len()).collect(),
        Pace::AsRecorded => recorded,
    };
    let requests = calls.into_iter().zip(arrivals);
    Ok(requests.map(|(call, arrival)| call.request(arrival, options)).collect())
}

/// A body and where it is sent.
struct LoadCall {
    endpoint: Endpoint,
    body: Map<String, Value>,
}

impl LoadCall {
    fn request(mut self, arrival: Duration, options: &LoadOptions) -> LoadRequest {
        if let Some(model) = &options.model {
            self.body.insert("model".to_owned(), json!(model));
        }
        if options.stream {
            self.body.insert("stream".to_owned(), json!(true));
            self.body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        }
        let prompts = match self.body.get("prompt") {
            Some(Value::Array(list)) if list.iter().all(|prompt| prompt.is_string() || prompt.is_array()) => list.len(),
            _ => 1,
        };
        let n = self.body.get("n").and_then(Value::as_u64).unwrap_or(1);
        let body = Bytes::from(Value::Object(self.body).to_string());
        LoadRequest { path: self.endpoint.path(), body, has_choices: n > 1 || prompts > 1, arrival }
    }
}

fn of_batch(path: &Path, most: usize) -> Result<Vec<LoadCall>> {
    let mut calls = Vec::new();
    for line in Lines::of(path, open(path)?, MOST_OF_RECORD).take(most) {
        let line = line?;
        let wrong = |what: &str| Error::format(path, format!("line {}: {what}", line.number));
        let mut fields: Map<String, Value> =
            serde_json::from_slice(&line.bytes).map_err(|error| wrong(&error.to_string()))?;
        let endpoint = fields.get("url").and_then(Value::as_str).and_then(Endpoint::at);
        let endpoint = endpoint.ok_or_else(|| wrong("`url`: expected the path of completions or chat completions"))?;
        let Some(Value::Object(body)) = fields.remove("body") else {
            return Err(wrong("`body`: expected an object with the request"));
        };
        calls.push(LoadCall { endpoint, body });
    }
    if calls.is_empty() { Err(Error::format(path, "holds no requests")) } else { Ok(calls) }
}

impl SyntheticWork {
    fn calls(&self, requests: usize) -> Vec<LoadCall> {
        let shared = self.shared_tokens.min(self.prompt_tokens);
        let run = |text, tokens| TextRun { text, tokens };
        let prompt = |number| TracePrompt::Runs(vec![run(0, shared), run(number, self.prompt_tokens - shared)]);
        (1..=requests as u64).map(|number| completion(&prompt(number), self.n, self.max_tokens, self.vocab)).collect()
    }
}

/// The calls of a trace and their arrivals.
fn of_trace(job: &ReplayJob, shrink: usize, vocab: usize) -> (Vec<LoadCall>, Vec<Duration>) {
    let call = |request: &ReplayRequest| {
        let output = request.output.div_ceil(shrink);
        completion(&shrunk(&request.prompt, shrink), request.samples, output, vocab)
    };
    (job.requests.iter().map(call).collect(), job.requests.iter().map(|request| request.arrival).collect())
}

/// The prompt with its lengths divided by `shrink`, rounded up; what prompts share is divided alike.
fn shrunk(prompt: &TracePrompt, shrink: usize) -> TracePrompt {
    match prompt {
        TracePrompt::Tokens(tokens) => TracePrompt::Tokens(tokens[..tokens.len().div_ceil(shrink)].to_vec()),
        TracePrompt::Runs(runs) => {
            let run = |run: &TextRun| TextRun { tokens: run.tokens.div_ceil(shrink), ..*run };
            TracePrompt::Runs(runs.iter().map(run).collect())
        }
    }
}

fn completion(prompt: &TracePrompt, n: usize, max_tokens: usize, vocab: usize) -> LoadCall {
    let tokens: Vec<usize> = prompt.tokens(vocab).iter().map(|token| token.ix()).collect();
    let body = json!({ "prompt": tokens, "n": n, "max_tokens": max_tokens, "ignore_eos": true });
    let Value::Object(body) = body else { unreachable!("it is written as an object") };
    LoadCall { endpoint: Endpoint::Completions, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(calls: &[LoadCall]) -> Vec<Vec<u64>> {
        let prompt = |call: &LoadCall| {
            let list = call.body["prompt"].as_array().expect("a list").iter();
            list.map(|id| id.as_u64().expect("an id")).collect()
        };
        calls.iter().map(prompt).collect()
    }

    #[test]
    fn synthetic_prompts_share_what_is_asked_and_nothing_more() {
        let work = SyntheticWork { prompt_tokens: 20, shared_tokens: 12, max_tokens: 3, n: 2, vocab: 50 };
        let prompts = prompts(&work.calls(30));
        assert!(prompts.iter().all(|prompt| prompt.len() == 20 && prompt[..12] == prompts[0][..12]));
        let mut ends: Vec<&[u64]> = prompts.iter().map(|prompt| &prompt[12..14]).collect();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), 30, "two prompts share more than they should");
    }

    #[test]
    fn lengths_of_a_trace_are_divided() {
        let prompt = TracePrompt::Runs(vec![TextRun { text: 1, tokens: 512 }, TextRun { text: 2, tokens: 30 }]);
        let request = ReplayRequest { prompt, arrival: Duration::from_secs(2), samples: 1, output: 9 };
        let (calls, arrivals) = of_trace(&ReplayJob { requests: vec![request] }, 8, 100);
        assert_eq!((prompts(&calls)[0].len(), &calls[0].body["max_tokens"]), (64 + 4, &json!(2)));
        assert_eq!(arrivals, [Duration::from_secs(2)]);
    }
}
