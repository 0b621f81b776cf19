//! The threads of a reward model as a scorer. One keeps the trees of answers and places them on branches of the engine;
//! others write answers in the scorer's form, which takes longer. Clients send what they ask for, and each tree has a
//! channel for its results. Which branches an answer needs is decided in `placing`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, available_parallelism};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::placing::{Before, Place, Placed};
use crate::resolved::{ResolvedForm, WrittenAnswer};
use crate::scorer::TextScores;
use offshoot_core::bounded::caught;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, NodeId};
use offshoot_engine::{EngineHandle, Event, EventReceiver, FinishReason, First, Hear, wait};
use offshoot_text::Message;

/// Threads that write answers, at most. Eight write more than one GPU scores.
const MOST_WRITERS: usize = 8;

/// A tree of answers; the numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TreeId(u64);

/// What the scorer's thread is asked for.
pub(crate) enum Work {
    /// A question, with some answer to it as it is written, and where results go.
    Begin { tree: TreeId, question: Arc<[Message]>, begun: Arc<WrittenAnswer>, results: Sender<AnswerScores> },
    /// An answer.
    Start { tree: TreeId, answer: Answer },
    /// An answer is written.
    Written { tree: TreeId, node: NodeId, start: u64, written: Result<WrittenAnswer> },
    /// An answer is given up.
    Prune { tree: TreeId, node: NodeId },
    /// All answers of a tree are given up.
    Close { tree: TreeId },
    /// The last client is gone.
    End,
}

/// An answer to score.
pub(crate) struct Answer {
    /// The node at which it ends.
    pub node: NodeId,
    /// Its number among the answers of its tree that were started.
    pub start: u64,
    /// The node that it goes on from.
    pub parent: Option<NodeId>,
    /// The whole answer, as the search has cut it.
    pub steps: Arc<[String]>,
}

/// What became of an answer.
pub(crate) struct AnswerScores {
    /// The node at which it ends.
    pub node: NodeId,
    /// Its number among the answers of its tree that were started.
    pub start: u64,
    /// Its scores.
    pub result: Result<TextScores>,
}

/// The scorer's thread. Dropping it ends the thread and waits for that.
pub(crate) struct ScorerThread {
    work: Sender<Work>,
    next_tree: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl ScorerThread {
    /// Starts the thread, and those that write.
    pub fn start(engine: EngineHandle, form: Arc<ResolvedForm>) -> Result<ScorerThread> {
        let (work, received) = unbounded();
        let writers = Writers::start(&form, &work)?;
        let receiver = engine.receiver(Hear::Finishes);
        let scorer = Scorer { engine, form, receiver, writers, trees: HashMap::new(), branches: HashMap::new() };
        let thread = spawn("scorer", move || scorer.run(&received))?;
        Ok(ScorerThread { work, next_tree: AtomicU64::new(0), thread: Some(thread) })
    }

    /// The number of a new tree.
    pub fn name_tree(&self) -> TreeId {
        TreeId(self.next_tree.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks for something.
    pub fn send(&self, work: Work) -> Result<()> {
        self.work.send(work).map_err(|_| self.ended())
    }

    /// The error of what was asked for after the thread has ended, which it does early only by a fault of ours.
    pub fn ended(&self) -> Error {
        Error::Internal("the scorer's thread has ended".to_owned())
    }
}

impl Drop for ScorerThread {
    fn drop(&mut self) {
        let _ = self.work.send(Work::End);
        if let Some(thread) = self.thread.take() {
            // A panic was written to the log by then, and clients had their errors.
            let _ = thread.join();
        }
    }
}

/// What the scorer's thread has.
struct Scorer {
    engine: EngineHandle,
    form: Arc<ResolvedForm>,
    /// The events of the branches that are being extended.
    receiver: EventReceiver,
    writers: Writers,
    trees: HashMap<TreeId, Tree>,
    /// Whose each branch is that is being extended.
    branches: HashMap<BranchId, (TreeId, NodeId)>,
}

/// The answers to one question.
struct Tree {
    question: Arc<[Message]>,
    begun: Arc<WrittenAnswer>,
    results: Sender<AnswerScores>,
    /// The root that was made first, whose place in the engine's queue all of the tree's have.
    root: Option<BranchId>,
    /// The answer that was placed last.
    last: Option<Arc<WrittenAnswer>>,
    answers: HashMap<NodeId, TreeAnswer>,
}

struct TreeAnswer {
    start: u64,
    stage: Stage,
}

enum Stage {
    /// It is being written in the scorer's form.
    Writing(Option<Before>),
    /// It has branches, and scores once they have ended.
    Placed(Placed),
    /// It has an error in place of scores.
    Failed,
}

impl Tree {
    fn placed(&self, node: NodeId) -> Option<&Placed> {
        match &self.answers.get(&node)?.stage {
            Stage::Placed(placed) => Some(placed),
            Stage::Writing(_) | Stage::Failed => None,
        }
    }
}

impl Scorer {
    /// Works until the last client is gone.
    fn run(mut self, received: &Receiver<Work>) {
        loop {
            let first = match self.receiver.unfinished() {
                0 => received.recv().map(First::Message),
                _ => Ok(wait(|patience| self.receiver.poll_beside(received, patience))),
            };
            match first {
                Ok(First::Message(Work::End)) | Err(_) => return,
                Ok(First::Message(work)) => self.take(work),
                Ok(First::Event(Some(event))) => self.note(event),
                Ok(First::Event(None)) => {}
            }
        }
    }

    fn take(&mut self, work: Work) {
        match work {
            Work::Begin { tree, question, begun, results } => {
                let answers = HashMap::new();
                self.trees.insert(tree, Tree { question, begun, results, root: None, last: None, answers });
            }
            Work::Start { tree, answer } => self.start(tree, answer),
            Work::Written { tree, node, start, written } => self.place(tree, node, start, written),
            Work::Prune { tree, node } => self.prune(tree, node),
            Work::Close { tree } => {
                if let Some(tree) = self.trees.remove(&tree) {
                    tree.answers.into_values().for_each(|answer| self.give_up(answer.stage));
                }
            }
            Work::End => {}
        }
    }

    /// Has an answer written.
    fn start(&mut self, id: TreeId, answer: Answer) {
        let Some(tree) = self.trees.get_mut(&id) else { return };
        let Answer { node, start, parent, steps } = answer;
        let parent = parent.and_then(|parent| tree.placed(parent));
        let before = parent.map(|parent| parent.before(&self.engine));
        let written = before.as_ref().map_or(&tree.begun, |before| &before.written);
        let (question, before_it) = (Arc::clone(&tree.question), Arc::clone(written));
        self.writers.write(Writing { tree: id, node, start, question, steps, before: before_it });
        tree.answers.insert(node, TreeAnswer { start, stage: Stage::Writing(before) });
    }

    /// Places an answer on branches once it is written.
    fn place(&mut self, id: TreeId, node: NodeId, start: u64, written: Result<WrittenAnswer>) {
        let Some(tree) = self.trees.get_mut(&id) else { return };
        let Some(answer) = tree.answers.get_mut(&node).filter(|answer| answer.start == start) else { return };
        let Stage::Writing(before) = &mut answer.stage else { return };
        let placed = written.and_then(|written| {
            let last = tree.last.as_ref().map(|last| &last.rendered);
            let place = Place { engine: &self.engine, beside: tree.root, before: before.take(), last };
            place.begin(&mut self.receiver, written)
        });
        match placed {
            Ok(placed) => {
                tree.root = tree.root.or(placed.root());
                tree.last = Some(Arc::clone(placed.written()));
                self.branches.extend(placed.extended().map(|branch| (branch, (id, node))));
                answer.stage = Stage::Placed(placed);
                self.report(id, node);
            }
            Err(error) => self.fail(id, node, error),
        }
    }

    /// What became of a branch.
    fn note(&mut self, event: Event) {
        let Some((id, node)) = self.branches.remove(&event.id()) else { return };
        let answer = self.trees.get_mut(&id).and_then(|tree| tree.answers.get_mut(&node));
        let Some(TreeAnswer { stage: Stage::Placed(placed), .. }) = answer else { return };
        match event {
            Event::Tokens { .. } => {}
            Event::Finished { id: branch, finish } => match finish.reason {
                FinishReason::Given => {
                    if let Some(done) = placed.note(branch, finish.values) {
                        self.engine.release(&[done]);
                    }
                    self.report(id, node);
                }
                reason => {
                    let (what, why) = ("the scores of an answer", format!("the scorer's engine ends it: {reason:?}"));
                    self.fail(id, node, Error::Busy { what: what.to_owned(), why });
                }
            },
            Event::Failed { error, .. } => self.fail(id, node, error),
        }
    }

    /// Sends an answer's scores once it has all of its values.
    fn report(&mut self, id: TreeId, node: NodeId) {
        let Some(tree) = self.trees.get(&id) else { return };
        let Some(answer) = tree.answers.get(&node) else { return };
        let Stage::Placed(placed) = &answer.stage else { return };
        let Some(values) = placed.values() else { return };
        let (rendered, start) = (&placed.written().rendered, answer.start);
        let result = values.and_then(|values| self.form.scores(rendered, &values));
        let (tokens, computed) = (rendered.tokens.len(), placed.computed());
        let result = result.map(|scores| TextScores { scores, tokens, computed, detail: None, lacking: None });
        // The client may be gone by now.
        let _ = tree.results.send(AnswerScores { node, start, result });
    }

    /// Sends an error in place of an answer's scores, and gives its branches up.
    fn fail(&mut self, id: TreeId, node: NodeId, error: Error) {
        let Some(tree) = self.trees.get_mut(&id) else { return };
        let Some(answer) = tree.answers.get_mut(&node) else { return };
        let start = answer.start;
        let failed = std::mem::replace(&mut answer.stage, Stage::Failed);
        let _ = tree.results.send(AnswerScores { node, start, result: Err(error) });
        self.give_up(failed);
    }

    fn prune(&mut self, tree: TreeId, node: NodeId) {
        let pruned = self.trees.get_mut(&tree).and_then(|tree| tree.answers.remove(&node));
        pruned.into_iter().for_each(|answer| self.give_up(answer.stage));
    }

    /// Forgets the branches of an answer. Their keys and values stay cached until room is needed.
    fn give_up(&mut self, stage: Stage) {
        let branches: Vec<BranchId> = match stage {
            Stage::Writing(before) => before.iter().filter_map(Before::branch).collect(),
            Stage::Placed(placed) => placed.branches().collect(),
            Stage::Failed => return,
        };
        branches.iter().for_each(|branch| _ = self.branches.remove(branch));
        self.engine.release(&branches);
    }
}

/// The threads that write answers. Dropping them waits until they have ended.
struct Writers {
    queued: Receiver<Writing>,
    /// `None`: they end.
    queue: Option<Sender<Writing>>,
    threads: Vec<JoinHandle<()>>,
}

/// An answer to write.
struct Writing {
    tree: TreeId,
    node: NodeId,
    start: u64,
    question: Arc<[Message]>,
    steps: Arc<[String]>,
    /// An answer to the same question: the nearer this one, the less work.
    before: Arc<WrittenAnswer>,
}

impl Writers {
    /// Starts the threads, which send what they have written to `done`.
    fn start(form: &Arc<ResolvedForm>, done: &Sender<Work>) -> Result<Writers> {
        let (queue, queued) = unbounded();
        let mut writers = Writers { queued, queue: Some(queue), threads: Vec::new() };
        let threads = available_parallelism().map_or(1, |cores| cores.get().div_ceil(2).min(MOST_WRITERS));
        for _ in 0..threads {
            let (queued, form, done) = (writers.queued.clone(), Arc::clone(form), done.clone());
            writers.threads.push(spawn("scorer-text", move || write_all(&queued, &form, &done))?);
        }
        Ok(writers)
    }

    fn write(&self, writing: Writing) {
        if let Some(queue) = &self.queue {
            queue.send(writing).expect("`queued` is kept here");
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.queued.try_iter().for_each(drop);
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Writes answers until no more can come.
fn write_all(queued: &Receiver<Writing>, form: &ResolvedForm, done: &Sender<Work>) {
    for Writing { tree, node, start, question, steps, before } in queued {
        let written = caught(|| form.write(&question, &steps, Some(&before)));
        let written = written.unwrap_or_else(|panic| Err(Error::Internal(format!("writing an answer: {panic}"))));
        if done.send(Work::Written { tree, node, start, written }).is_err() {
            return;
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = Builder::new().name(name.to_owned()).spawn(body);
    started.map_err(|error| Error::Busy { what: "a thread of the scorer".to_owned(), why: error.to_string() })
}
