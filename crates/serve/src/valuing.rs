//! The thread between requests for values and a scorer's engine. Each text is a branch of the engine, which begins them
//! in its own order and shares what they have in common; here they are started as they come, however many wait. It
//! never waits for a client.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::oneshot;

use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;
use offshoot_engine::{EngineHandle, Event, EventReceiver, Extend, Finish, First, Hear, Priority, RootOptions, wait};
use offshoot_kv::Origin;
use offshoot_launch::in_bytes;
use offshoot_openai::protocol::{PoolingRequest, Refusal, RefusalKind, TextValues};

use super::keys::ClientId;
use super::recent::RecentPrompts;

/// What comes back for a request: the values of each of its texts.
type Reply = Result<Vec<TextValues>, Refusal>;

/// A client of the thread, which ends when it is dropped and every request has ended.
pub struct ValueClient {
    messages: Sender<Message>,
    next: AtomicU64,
}

enum Message {
    Ask(Ask),
    Cancel(u64),
}

struct Ask {
    id: u64,
    client: ClientId,
    request: Arc<PoolingRequest>,
    priority: Priority,
    reply: oneshot::Sender<Reply>,
}

/// Cancels a request whose client has left.
struct OpenAsk<'c> {
    id: u64,
    client: &'c ValueClient,
    has_ended: bool,
}

impl Drop for OpenAsk<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // Without a thread there is nothing to cancel.
            drop(self.client.messages.send(Message::Cancel(self.id)));
        }
    }
}

impl ValueClient {
    /// A client and its thread.
    pub fn start(engine: EngineHandle) -> Result<(ValueClient, JoinHandle<()>)> {
        let (messages, receiver) = unbounded();
        let thread = ValueThread {
            receiver: engine.receiver(Hear::Finishes),
            most_recent: engine.facts().pool_tokens(),
            engine,
            messages: receiver,
            asks: HashMap::new(),
            texts: HashMap::new(),
            recent: HashMap::new(),
        };
        let started = std::thread::Builder::new().name("values".to_owned()).spawn(move || thread.run());
        Ok((ValueClient { messages, next: AtomicU64::new(0) }, started.map_err(Error::io("a thread", "start"))?))
    }

    /// The values of a request's texts. Dropping the future cancels what has not ended.
    ///
    /// # Errors
    ///
    /// A text does not fit the engine; a value is no number; or the engine has stopped.
    pub async fn ask(&self, client: ClientId, request: Arc<PoolingRequest>, priority: Priority) -> Reply {
        let (reply, answer) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.messages.send(Message::Ask(Ask { id, client, request, priority, reply })).map_err(|_| stopped())?;
        let mut open = OpenAsk { id, client: self, has_ended: false };
        let answer = answer.await;
        open.has_ended = true;
        answer.unwrap_or_else(|_| Err(stopped()))
    }
}

fn stopped() -> Refusal {
    Refusal::of_kind(RefusalKind::Unavailable, "engine_stopped", "the scorer's engine has stopped")
}

/// A request in progress.
struct OpenRequest {
    request: Arc<PoolingRequest>,
    /// The branches of its texts that have not ended.
    open: Vec<BranchId>,
    /// What each text has come to.
    values: Vec<Option<TextValues>>,
    /// For each text, its tokens that were there before.
    cached: Vec<usize>,
    reply: oneshot::Sender<Reply>,
}

struct ValueThread {
    engine: EngineHandle,
    receiver: EventReceiver,
    messages: Receiver<Message>,
    asks: HashMap<u64, OpenRequest>,
    /// Whose text each branch is, and which of them.
    texts: HashMap<BranchId, (u64, usize)>,
    recent: HashMap<ClientId, RecentPrompts>,
    /// Distinct tokens that are remembered of a client: as many as the engine has room for.
    most_recent: usize,
}

impl ValueThread {
    fn run(mut self) {
        loop {
            let next = match self.receiver.unfinished() {
                0 => match self.messages.recv() {
                    Ok(message) => First::Message(message),
                    Err(_) => return,
                },
                _ => wait(|patience| self.receiver.poll_beside(&self.messages, patience)),
            };
            match next {
                First::Message(Message::Ask(ask)) => self.begin(ask),
                First::Message(Message::Cancel(id)) => self.end(id, None),
                First::Event(Some(event)) => self.note(event),
                First::Event(None) => {}
            }
        }
    }

    fn begin(&mut self, ask: Ask) {
        let Ask { id, client, request, priority, reply } = ask;
        let options = RootOptions { priority, salt: request.salt, ..RootOptions::default() };
        let origin = Origin { weights: self.engine.weights().version, salt: request.salt, adapter: None };
        let recent = self.recent.entry(client).or_default();
        let cached = request.texts.iter().map(|text| recent.add(origin, &text.tokens, self.most_recent)).collect();
        let values = request.texts.iter().map(|_| None).collect();
        self.asks.insert(id, OpenRequest { request: request.clone(), open: Vec::new(), values, cached, reply });
        let mut extends = Vec::with_capacity(request.texts.len());
        for (ix, text) in request.texts.iter().enumerate() {
            match self.engine.root_with(text.tokens.clone(), options) {
                Ok(branch) => {
                    self.texts.insert(branch, (id, ix));
                    self.asks.get_mut(&id).expect("it was put there").open.push(branch);
                    extends.push(Extend::given_with_values(branch, Vec::new(), text.at.clone()));
                }
                Err(error) => return self.end(id, Some(Err(Refusal::of(&error)))),
            }
        }
        if let Err(error) = self.receiver.start(extends) {
            self.end(id, Some(Err(Refusal::of(&error))));
        }
    }

    /// Notes how a branch has ended. One whose request has ended before is released already.
    fn note(&mut self, event: Event) {
        let Some((id, ix)) = self.texts.remove(&event.id()) else { return };
        let Some(open) = self.asks.get_mut(&id) else { return };
        open.open.retain(|&branch| branch != event.id());
        self.engine.release(&[event.id()]);
        match event {
            Event::Tokens { .. } => {}
            Event::Failed { error, .. } => {
                let refusal = self.refusal(error);
                self.end(id, Some(Err(refusal)));
            }
            Event::Finished { finish, .. } => {
                match text_values(finish, open.request.texts[ix].at.len(), open.cached[ix]) {
                    None => self.end(id, Some(Err(aborted()))),
                    Some(values) => {
                        open.values[ix] = Some(values);
                        if open.open.is_empty() {
                            let values = std::mem::take(&mut open.values).into_iter().flatten().collect();
                            self.end(id, Some(Ok(values)));
                        }
                    }
                }
            }
        }
    }

    /// Ends a request: what has not ended of it is cancelled. `None`: its client has left.
    fn end(&mut self, id: u64, reply: Option<Reply>) {
        let Some(ended) = self.asks.remove(&id) else { return };
        self.receiver.cancel(&ended.open);
        for branch in &ended.open {
            self.texts.remove(branch);
        }
        self.engine.release(&ended.open);
        if let Some(reply) = reply {
            // A client that has left needs none.
            drop(ended.reply.send(reply));
        }
    }

    /// Of an error that a branch has come to. What is wrong with a request was found before.
    fn refusal(&self, error: Error) -> Refusal {
        let error = in_bytes(error, self.engine.facts());
        match error {
            Error::Value { .. } => Refusal::of_kind(RefusalKind::Internal, "not_finite", error.to_string()),
            other => Refusal::of(&other),
        }
    }
}

/// The values of a text, if it was not cut short.
fn text_values(finish: Finish, places: usize, cached: usize) -> Option<TextValues> {
    let rows: Vec<Box<[f32]>> = finish.values.into_iter().map(|read| read.values).collect();
    (rows.len() == places).then_some(TextValues { rows, cached })
}

fn aborted() -> Refusal {
    Refusal::of_kind(RefusalKind::Unavailable, "aborted", "the request was ended before its values were read")
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use serde_json::json;

    use super::*;
    use offshoot_engine::{EngineFacts, LogprobsMode, PauseMode, ScriptedCall, ScriptedReply};
    use offshoot_model::ModelFolder;
    use offshoot_openai::protocol::{
        AnyName, PoolingEndpoint, PoolingModel, ProtocolLimits, Reasoning, RequestReader, ScorerValues,
    };
    use offshoot_score::{ResolvedForm, ScoreForm, ScorerConfig};
    use offshoot_text::Tokenizer;

    /// A request for one value of each of these texts.
    fn request(texts: &[&[u32]]) -> Arc<PoolingRequest> {
        let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo");
        let config = ModelFolder::open(&demo).expect("the demo model is part of the project").config;
        let tokenizer = Arc::new(Tokenizer::load(&demo).expect("its tokenizer"));
        let scorer = ScorerConfig::read(&demo).expect("its config");
        let form = ScoreForm::built_in("last-token").expect("a form");
        let form = ResolvedForm::new(&form, tokenizer.clone(), &scorer.head(1), SystemTime::UNIX_EPOCH);
        let form = form.expect("it fits the tokenizer");
        let values = ScorerValues::new(&form, &scorer, 1);
        let limits = ProtocolLimits::default();
        let reader = RequestReader {
            tokenizer: &tokenizer,
            config: &config,
            model: "demo",
            names: &AnyName,
            seed: 0,
            limits: &limits,
            reasoning: Reasoning::Keep,
            logprobs_mode: LogprobsMode::default(),
            priority: Priority::default(),
            keeps_routes: false,
        };
        let body = json!({"input": texts});
        let body = body.as_object().expect("an object");
        let read = reader.read_pooling(PoolingEndpoint::Classify, body, PoolingModel::Scorer(&values, &form));
        Arc::new(read.unwrap_or_else(|refusal| panic!("{}", refusal.message)))
    }

    /// An engine whose value of a text is its last token; a text that ends with 8 fails.
    fn scorer() -> (EngineHandle, ValueClient, JoinHandle<()>) {
        let script = |call: &ScriptedCall<'_>| {
            let last = call.tokens.last().map_or(0, |token| token.0);
            let reply = ScriptedReply::values(vec![vec![last as f32]]);
            if last == 8 { reply.failing() } else { reply }
        };
        let engine = EngineHandle::scripted_with(|facts| EngineFacts { values: Some(1), ..facts }, script);
        let (client, thread) = ValueClient::start(engine.clone()).expect("a thread starts");
        (engine, client, thread)
    }

    fn on_runtime<T>(act: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(act)
    }

    #[test]
    fn each_text_has_its_values_and_what_it_shares_with_earlier_ones_of_its_client() {
        let (_, client, thread) = scorer();
        let ask = |client_id, texts: &[&[u32]]| {
            let reply = on_runtime(client.ask(ClientId(client_id), request(texts), Priority::default()));
            reply.unwrap_or_else(|refusal| panic!("{}", refusal.message))
        };
        let shown = |values: Vec<TextValues>| -> Vec<(f32, usize)> {
            values.into_iter().map(|text| (text.rows[0][0], text.cached)).collect()
        };
        assert_eq!(shown(ask(0, &[&[1, 2, 3], &[1, 2, 4]])), [(3.0, 0), (4.0, 2)]);
        assert_eq!(shown(ask(0, &[&[1, 2, 3, 5]])), [(5.0, 3)]);
        // No client is told what another one has sent.
        assert_eq!(shown(ask(1, &[&[1, 2, 3, 5]])), [(5.0, 0)]);
        drop(client);
        thread.join().expect("it ends with its client");
    }

    #[test]
    fn a_failing_text_refuses_its_request_alone() {
        let (engine, client, thread) = scorer();
        let ask = |texts: &[&[u32]]| on_runtime(client.ask(ClientId(0), request(texts), Priority::default()));
        let refusal = ask(&[&[1, 9], &[1, 8]]).expect_err("a text of it fails");
        assert_eq!(refusal.status() / 100, 5, "{}", refusal.message);
        assert_eq!(ask(&[&[1, 7]]).expect("another request").len(), 1);
        drop(client);
        thread.join().expect("it ends with its client");
        engine.metrics().expect("it lives");
        assert_eq!(engine.live().expect("it lives").branches, 0, "all are released");
    }

    #[test]
    fn many_requests_wait_without_a_refusal_and_one_whose_client_leaves_is_cancelled() {
        let (engine, client, thread) = scorer();
        let client = Arc::new(client);
        engine.pause(PauseMode::Keep).expect("it runs");
        on_runtime(async {
            let ask = |texts: &[&[u32]]| {
                let (client, request) = (client.clone(), request(texts));
                tokio::spawn(async move { client.ask(ClientId(0), request, Priority::default()).await })
            };
            let leaving = client.ask(ClientId(0), request(&[&[9]]), Priority::default());
            let many: Vec<_> = (0..50).map(|_| ask(&[&[1, 2]])).collect();
            let left = tokio::time::timeout(Duration::from_millis(20), leaving).await;
            assert!(left.is_err(), "nothing is computed in a pause");
            engine.resume().expect("it was paused");
            for one in many {
                assert!(one.await.expect("it does not panic").is_ok());
            }
        });
        drop(client);
        thread.join().expect("it ends with its client");
        engine.metrics().expect("it lives");
        assert_eq!(engine.live().expect("it lives").branches, 0, "all are released");
    }
}
