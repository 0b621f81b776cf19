//! The masks of an engine's branches. A state that some branch was in costs a look-up; the others are computed by
//! worker threads, each state once, by matchers that are brought up to date, cloned from that of a branch that forked,
//! or made again from the state's tokens. Branches of one form are spread over lanes, each worked on by one thread.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak, mpsc};

use crate::compile::CompiledForm;
use crate::lanes::{Fault, FormLimit, Lane, Matcher, MatcherBytes, Slot};
use crate::mask::{RawMask, StateMask};
use crate::masks::{MaskCache, SharedSets};
use crate::state::{ByState, FormState, StateKey};
use offshoot_core::memory;

/// Bytes of the cache of masks, at most.
const MOST_MASK_BYTES: usize = 256 << 20;
/// Bytes of all lanes, at most: beyond it the lanes of the forms that were unused longest are dropped.
const MOST_LANE_BYTES: usize = 512 << 20;
/// States that a lane computes in one call before another lane is made.
const LANE_STATES: usize = 16;
/// A lane without matchers is dropped when it was not used in so many calls.
const IDLE_CALLS: u64 = 1024;
/// States that are computed by the caller, for which threads would take longer to wake.
const FEW_STATES: usize = 2;
/// Stack of a worker, for the recursion of deep patterns; what is not touched takes no memory.
const STACK_BYTES: usize = 32 << 20;

/// Counts of the masks of an engine since it began; bytes, forms and lanes are those of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormCounts {
    /// Masks that were requested of states whose form has begun.
    pub requested: u64,
    /// Masks that were computed: one at most for each distinct state, or more where the state was forgotten meanwhile.
    pub computed: u64,
    /// Masks found in the cache, or computed once for several branches of a call that are in one state.
    pub shared_states: u64,
    /// Masks that another state had whose matcher stood in the same place of its grammar.
    pub shared_places: u64,
    /// Masks that were computed and have the same set of tokens as another state's mask.
    pub shared_sets: u64,
    /// Matchers that were made again from a state's tokens.
    pub replayed: u64,
    /// Tokens that `replayed` matchers read again.
    pub replayed_tokens: u64,
    /// Masks requested that allow no token.
    pub dead_ends: u64,
    /// States whose mask could not be computed.
    pub failed: u64,
    /// Forms in use.
    pub forms: usize,
    /// Copies of forms' lexers.
    pub lanes: usize,
    /// Bytes of masks.
    pub mask_bytes: usize,
    /// Bytes of matchers, about.
    pub matcher_bytes: usize,
    /// Bytes of the lanes' lexers and of the places that they remember.
    pub lane_bytes: usize,
}

/// All masks of an engine: its worker threads, its matchers' lanes, and the masks that were computed.
pub struct Forms {
    /// Started when first needed; `None` if the threads can't be started.
    workers: OnceLock<Option<rayon::ThreadPool>>,
    threads: usize,
    lanes: HashMap<u64, FormLanes>,
    /// Calls that computed masks.
    calls: u64,
    cache: MaskCache,
    /// The slots of all matchers. Those of dropped states stay listed until the next look at the bound.
    matchers: VecDeque<Weak<Slot>>,
    shared: Shared,
    most_matcher_bytes: usize,
    most_lane_bytes: usize,
    counts: FormCounts,
}

/// What all workers share.
#[derive(Default)]
struct Shared {
    sets: SharedSets,
    matcher_bytes: Arc<MatcherBytes>,
}

/// Bytes of matchers beyond which some are dropped, those of resting branches first, where so many bytes of memory are
/// free: a part of them small enough for several engines, but room for 1,024 branches that have texts of 2,000 tokens
/// each, unless that is a quarter of the memory.
fn most_matcher_bytes(free: usize) -> usize {
    const LEAST: usize = 512 << 20;
    (free / 32).max(LEAST.min(free / 4))
}

/// The lanes of a form.
struct FormLanes {
    form: Weak<CompiledForm>,
    lanes: Vec<Arc<Lane>>,
    /// The call that used it last.
    last_call: u64,
}

/// A state to be computed.
struct Task<'a> {
    state: &'a mut FormState,
    key: StateKey,
    /// The state's index among those of the call.
    at: usize,
    lane: Arc<Lane>,
}

/// What a worker has computed for a task.
struct Done<'a> {
    task: Task<'a>,
    outcome: Result<WorkerMask, Fault>,
    /// The slot of a matcher that the state did not have.
    made: Option<Weak<Slot>>,
    /// Tokens that the matcher read, if it was made again.
    replayed: Option<usize>,
}

/// A mask as a worker has it.
struct WorkerMask {
    mask: Arc<StateMask>,
    source: MaskSource,
}

/// Where a worker has a mask from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MaskSource {
    /// A matcher in the same place of the grammar had it.
    Place,
    /// It was computed; another mask has its set.
    SharedSet,
    /// It was computed.
    NewSet,
}

/// The mask of a state, or why it has none.
type Found = Result<Arc<StateMask>, Fault>;

impl Forms {
    /// Masks that `threads` threads compute.
    pub fn new(threads: usize) -> Forms {
        Forms {
            workers: OnceLock::new(),
            threads: threads.max(1),
            lanes: HashMap::new(),
            calls: 0,
            cache: MaskCache::new(MOST_MASK_BYTES),
            matchers: VecDeque::new(),
            shared: Shared::default(),
            most_matcher_bytes: most_matcher_bytes(memory::free_bytes()),
            most_lane_bytes: MOST_LANE_BYTES,
            counts: FormCounts::default(),
        }
    }

    /// These masks and matchers, bounded to so many bytes. What is beyond is computed again where it is needed again.
    pub fn with_bounds(self, mask_bytes: usize, matcher_bytes: usize) -> Forms {
        Forms { cache: MaskCache::new(mask_bytes), most_matcher_bytes: matcher_bytes, ..self }
    }

    /// These masks, their lanes bounded to so many bytes.
    pub fn with_lane_bound(self, bytes: usize) -> Forms {
        Forms { most_lane_bytes: bytes, ..self }
    }

    /// What each state allows next, in the states' order.
    ///
    /// # Errors
    ///
    /// A state has no mask, but a [`FormLimit`], if finding the mask takes more work than a step may take. A state with
    /// a token that its form does not allow is no error: its mask is empty.
    pub fn masks(&mut self, states: &mut [&mut FormState]) -> Vec<Result<Arc<StateMask>, FormLimit>> {
        let mut found: Vec<Option<Found>> = vec![None; states.len()];
        let mut first: ByState<usize> = ByState::default();
        let mut same = Vec::new();
        let mut missing = Vec::new();
        for (at, state) in states.iter_mut().enumerate() {
            let Some(key) = state.key() else {
                found[at] = Some(Ok(state.free_mask()));
                continue;
            };
            self.counts.requested += 1;
            if let Some(mask) = self.cache.get(&key) {
                found[at] = Some(Ok(mask));
            } else if let Some(&first) = first.get(&key) {
                same.push((at, first));
            } else {
                first.insert(key, at);
                missing.push((at, key, &mut **state));
                continue;
            }
            self.counts.shared_states += 1;
        }
        if !missing.is_empty() {
            for (at, mask) in self.compute(missing) {
                found[at] = Some(mask);
            }
            self.bound_lanes();
            self.bound_matchers();
        }
        for (at, first) in same {
            found[at] = found[first].clone();
        }
        let found: Vec<Found> =
            found.into_iter().map(|mask| mask.expect("each state was looked up or computed")).collect();
        for mask in &found {
            match mask {
                Ok(mask) if mask.is_dead_end() => self.counts.dead_ends += 1,
                Ok(_) => {}
                Err(_) => self.counts.failed += 1,
            }
        }
        found.into_iter().map(|mask| mask.map_err(FormLimit::of)).collect()
    }

    /// What the masks took so far.
    pub fn counts(&self) -> FormCounts {
        FormCounts {
            forms: self.lanes.values().filter(|lanes| lanes.form.strong_count() > 0).count(),
            lanes: self.lanes.values().map(|lanes| lanes.lanes.len()).sum(),
            mask_bytes: self.cache.bytes(),
            matcher_bytes: self.shared.matcher_bytes.get(),
            lane_bytes: self.lanes.values().map(FormLanes::bytes).sum(),
            ..self.counts
        }
    }

    /// The masks of states that are all different, and not known yet.
    fn compute<'a>(&mut self, missing: Vec<(usize, StateKey, &'a mut FormState)>) -> Vec<(usize, Found)> {
        let mut found = Vec::with_capacity(missing.len());
        let jobs = self.assign(missing);
        let workers = Workers { pool: &self.workers, threads: self.threads };
        let kept = &mut Kept { cache: &mut self.cache, matchers: &mut self.matchers, counts: &mut self.counts };
        let mut failed = Vec::new();
        workers.run(&self.shared, jobs, |done| match &done.outcome {
            Err(Fault::Failed(_)) => failed.push(done.task),
            _ => found.push(kept.keep(done)),
        });
        // What failed may have failed for its lane, whose lexer a state before had spoiled: the failed states of a form
        // once more in a lane of their own, and those that fail again each in one.
        let lanes = &mut self.lanes;
        for is_last in [false, true] {
            if failed.is_empty() {
                break;
            }
            let mut jobs: HashMap<(u64, usize), Vec<Task>> = HashMap::new();
            for task in std::mem::take(&mut failed) {
                jobs.entry((task.key.form, if is_last { task.at } else { 0 })).or_default().push(task);
            }
            let in_fresh_lane = |tasks: Vec<Task<'a>>| -> Vec<Task<'a>> {
                let lane = Lane::new(tasks[0].state.form());
                tasks.into_iter().map(|task| Task { lane: lane.clone(), ..task }).collect()
            };
            let jobs = jobs.into_values().map(in_fresh_lane).collect();
            workers.run(&self.shared, jobs, |done| match &done.outcome {
                Err(Fault::Failed(_)) if !is_last => failed.push(done.task),
                outcome => {
                    if let Some(known) = lanes.get_mut(&done.task.key.form).filter(|_| outcome.is_ok()) {
                        known.keep(&done.task.lane, self.threads);
                    }
                    found.push(kept.keep(done));
                }
            });
        }
        found
    }

    /// A lane for each state: that of its matcher, if too many others do not have it.
    fn assign<'a>(&mut self, missing: Vec<(usize, StateKey, &'a mut FormState)>) -> Vec<Vec<Task<'a>>> {
        self.calls += 1;
        let (calls, rests) = (self.calls, self.calls.is_multiple_of(IDLE_CALLS));
        self.lanes.retain(|_, lanes| {
            let is_idle = rests && calls - lanes.last_call > IDLE_CALLS;
            // Besides the list, matchers have a lane.
            lanes.lanes.retain(|lane| !(lane.is_over() || (is_idle && Arc::strong_count(lane) == 1)));
            lanes.form.strong_count() > 0 && !(is_idle && lanes.lanes.is_empty())
        });
        let mut of_form: HashMap<u64, Vec<(usize, StateKey, &'a mut FormState)>> = HashMap::new();
        missing.into_iter().for_each(|state| of_form.entry(state.1.form).or_default().push(state));
        let mut jobs = Vec::new();
        for (id, states) in of_form {
            let wanted = states.len().div_ceil(LANE_STATES).min(self.threads);
            let most = states.len().div_ceil(wanted);
            let form = states[0].2.form().clone();
            let known = self.lanes.entry(id).or_insert_with(|| FormLanes::new(&form));
            known.last_call = calls;
            let mut of_lane: Vec<Vec<Task>> = known.lanes.iter().map(|_| Vec::with_capacity(most)).collect();
            for (at, key, state) in states {
                let own = state.slot.lock().as_ref().map(|matcher| Arc::as_ptr(matcher.lane()));
                let own = own.and_then(|own| known.lanes.iter().position(|lane| Arc::as_ptr(lane) == own));
                let own = own.filter(|&own| of_lane[own].len() < most);
                let least = || (0..of_lane.len()).min_by_key(|&lane| of_lane[lane].len());
                let free = own.or_else(|| least().filter(|&least| of_lane[least].len() < most));
                let lane = free.unwrap_or_else(|| {
                    known.add(&form);
                    of_lane.push(Vec::with_capacity(most));
                    of_lane.len() - 1
                });
                of_lane[lane].push(Task { state, key, at, lane: known.lanes[lane].clone() });
            }
            jobs.extend(of_lane.into_iter().filter(|tasks| !tasks.is_empty()));
        }
        jobs
    }

    /// Gives up lanes with their matchers until the others are within the bound: those of the forms that were unused
    /// longest first, the largest of a form first.
    fn bound_lanes(&mut self) {
        let mut bytes: usize = self.lanes.values().map(FormLanes::bytes).sum();
        if bytes <= self.most_lane_bytes {
            return;
        }
        let of_form = |form: &FormLanes| {
            form.lanes.iter().map(|lane| (form.last_call, Reverse(lane.bytes()), lane.clone())).collect::<Vec<_>>()
        };
        let mut lanes: Vec<(u64, Reverse<usize>, Arc<Lane>)> = self.lanes.values().flat_map(of_form).collect();
        lanes.sort_by_key(|&(last_call, bytes, _)| (last_call, bytes));
        for (_, Reverse(lane_bytes), lane) in lanes {
            if bytes <= self.most_lane_bytes {
                break;
            }
            bytes -= lane_bytes;
            lane.end();
        }
        self.lanes.values_mut().for_each(|form| form.lanes.retain(|lane| !lane.is_over()));
        // A matcher holds its lane.
        for slot in self.matchers.iter().filter_map(Weak::upgrade) {
            slot.lock().take_if(|matcher| matcher.lane().is_over());
        }
    }

    /// Drops matchers beyond the bound, those first that were not used since they were last looked at.
    fn bound_matchers(&mut self) {
        self.matchers.retain(|slot| slot.strong_count() > 0);
        let mut left = 2 * self.matchers.len();
        while self.shared.matcher_bytes.get() > self.most_matcher_bytes && left > 0 {
            left -= 1;
            let Some(slot) = self.matchers.pop_front() else { break };
            let Some(held) = slot.upgrade() else { continue };
            match held.take_used() {
                true => self.matchers.push_back(slot),
                false => *held.lock() = None,
            }
        }
    }
}

impl FormLanes {
    fn new(form: &Arc<CompiledForm>) -> FormLanes {
        FormLanes { form: Arc::downgrade(form), lanes: Vec::new(), last_call: 0 }
    }

    fn bytes(&self) -> usize {
        self.lanes.iter().map(|lane| lane.bytes()).sum()
    }

    /// Keeps a lane that was made for failed states, unless there are as many as `threads` already.
    fn keep(&mut self, lane: &Arc<Lane>, threads: usize) {
        self.lanes.retain(|lane| !lane.is_over());
        if self.lanes.len() < threads && !self.lanes.iter().any(|known| Arc::ptr_eq(known, lane)) {
            self.lanes.push(lane.clone());
        }
    }

    fn add(&mut self, form: &CompiledForm) {
        let lane = self.lanes.first().map_or_else(|| Lane::new(form), |known| known.copy(form));
        self.lanes.push(lane);
    }
}

/// Where what workers have done is kept.
struct Kept<'a> {
    cache: &'a mut MaskCache,
    matchers: &'a mut VecDeque<Weak<Slot>>,
    counts: &'a mut FormCounts,
}

impl Kept<'_> {
    fn keep(&mut self, Done { task, outcome, made, replayed }: Done) -> (usize, Found) {
        self.matchers.extend(made);
        self.counts.replayed += u64::from(replayed.is_some());
        self.counts.replayed_tokens += replayed.unwrap_or(0) as u64;
        let mask = outcome.map(|WorkerMask { mask, source }| {
            match source {
                MaskSource::Place => self.counts.shared_places += 1,
                MaskSource::SharedSet | MaskSource::NewSet => self.counts.computed += 1,
            }
            self.counts.shared_sets += u64::from(source == MaskSource::SharedSet);
            self.cache.put(task.key, mask.clone());
            mask
        });
        (task.at, mask)
    }
}

/// The threads that find masks.
struct Workers<'a> {
    pool: &'a OnceLock<Option<rayon::ThreadPool>>,
    threads: usize,
}

impl Workers<'_> {
    /// Does the jobs, each on one thread, and calls `each` with what is done while others go on.
    fn run<'a>(&self, shared: &Shared, jobs: Vec<Vec<Task<'a>>>, mut each: impl FnMut(Done<'a>)) {
        let few = jobs.iter().map(Vec::len).sum::<usize>() <= FEW_STATES || jobs.len() == 1;
        let start = || {
            let named = rayon::ThreadPoolBuilder::new().thread_name(|ix| format!("forms {ix}"));
            named.num_threads(self.threads).stack_size(STACK_BYTES).build().ok()
        };
        let Some(pool) = (if few { None } else { self.pool.get_or_init(start).as_ref() }) else {
            return jobs.into_iter().flat_map(|tasks| do_all(tasks, shared)).for_each(each);
        };
        let (sender, receiver) = mpsc::channel();
        pool.in_place_scope(|scope| {
            for tasks in jobs {
                let sender = sender.clone();
                // Cannot fail: the receiver is kept until the scope has ended.
                scope.spawn(move |_| _ = sender.send(do_all(tasks, shared)));
            }
            drop(sender);
            receiver.iter().flatten().for_each(&mut each);
        });
    }
}

/// Does the tasks of a lane.
fn do_all<'a>(tasks: Vec<Task<'a>>, shared: &Shared) -> Vec<Done<'a>> {
    let lane = tasks.first().map(|task| task.lane.clone());
    let done = tasks.into_iter().map(|mut task| {
        let (outcome, made, replayed) = work(&mut task, shared);
        Done { task, outcome, made, replayed }
    });
    let done = done.collect();
    lane.iter().for_each(|lane| lane.check_size());
    done
}

/// What a worker finds for a task: the mask; the slot of its matcher, if it has a new one; and how many tokens that one
/// read again.
type Worked = (Result<WorkerMask, Fault>, Option<Weak<Slot>>, Option<usize>);

fn work(task: &mut Task, shared: &Shared) -> Worked {
    let form = task.state.form().clone();
    let tokens = task.state.tokens().len();
    let vocabulary = form.vocabulary();
    let more = task.state.opening().map(|opening| opening.tokens(form.tokenizer(), vocabulary.tokens()));
    let more = more.unwrap_or_default();
    let is_own = Arc::strong_count(&task.state.slot) == 1;
    let held = {
        let mut held = task.state.slot.lock();
        let fits = |matcher: &&Matcher| Arc::ptr_eq(matcher.lane(), &task.lane) && matcher.read() <= tokens;
        match held.as_ref().filter(fits) {
            Some(_) if is_own => held.take(),
            other => other.cloned(),
        }
    };
    let replayed = (held.is_none() && tokens > 0).then_some(tokens);
    let is_new = held.is_none() || !is_own;
    let mut matcher = held.unwrap_or_else(|| Matcher::new(task.lane.clone(), shared.matcher_bytes.clone()));
    let outcome = matcher.read_on(task.state.tokens(), vocabulary).and_then(|place| {
        // A mark that may open reasoning is allowed beside what the place tells.
        let place = place.filter(|_| more.is_empty());
        if let Some(mask) = place.and_then(|place| task.lane.known_mask(&place)) {
            return Ok(WorkerMask { mask, source: MaskSource::Place });
        }
        let found = shared.mask(matcher.compute(&more, vocabulary)?, vocabulary.vocab);
        place.into_iter().for_each(|place| task.lane.remember(place, &found.mask));
        Ok(found)
    });
    let mut made = None;
    if outcome.is_ok() {
        if is_new {
            task.state.slot = Arc::default();
            made = Some(Arc::downgrade(&task.state.slot));
        }
        task.state.slot.put(matcher);
    }
    let outcome = match outcome {
        // No text of the form goes on so; a mark that opens reasoning may.
        Err(Fault::Refused) => Ok(shared.mask(RawMask::new(None, None, &more, vocabulary), vocabulary.vocab)),
        outcome => outcome,
    };
    (outcome, made, replayed)
}

impl Shared {
    /// A mask that was computed.
    fn mask(&self, raw: RawMask, vocab: usize) -> WorkerMask {
        let (mask, is_shared) = self.sets.share(raw, vocab);
        WorkerMask { mask, source: if is_shared { MaskSource::SharedSet } else { MaskSource::NewSet } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::matcher_bytes;

    #[test]
    fn a_server_has_room_for_the_matchers_of_long_texts() {
        // Four bytes a token, about.
        let needed = 1024 * matcher_bytes(4 * 2000);
        for gigabytes in [4_usize, 16, 128, 1024] {
            let free = gigabytes << 30;
            let most = most_matcher_bytes(free);
            assert!(most >= needed && most <= free / 4, "{most} of {free}, {needed} are needed");
        }
        assert_eq!(most_matcher_bytes(1 << 30), 256 << 20);
    }
}
