//! A branch as the engine keeps it: its tokens, its lease on the prefix tree, and the work in progress. Holds
//! everything that survives preemption; keys and values belong to the prefix tree.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::allowed::Allowed;
use crate::confidence::ConfidenceWindow;
use crate::events::EventSender;
use crate::facts::EngineFacts;
use crate::place::{Priority, QueueKey};
use crate::records::TokenRecords;
use crate::request::{Event, Finish, FinishReason};
use crate::routes::TokenRoutes;
use crate::sampler::SamplingRules;
use crate::text::BranchText;
use crate::token_path::{self, TokenPath};
use crate::uniforms::UniformKey;
use crate::values::ValuesState;
use crate::weights::{AdapterSpan, Versions, WeightSpan};
use offshoot_backend::{Distribution, SampledToken};
use offshoot_core::error::Error;
use offshoot_core::ids::{BranchId, SegmentId, TokenId};
use offshoot_form::{FormLimit, FormState, StateMask};
use offshoot_kv::TokenScore;

pub(super) struct Branch {
    pub id: BranchId,
    /// The first two parts of its queue key.
    pub priority: Priority,
    pub order: BranchId,
    /// The whole path, prompt first, as far as the host knows it. Tokens after which nothing was sampled yet have no
    /// slots in the prefix tree.
    pub tokens: TokenPath,
    pub hold: KvHold,
    /// Pages of its path if it has run on it, else 0: its share of `KvCache::unshared_pages`.
    pub unshared_pages: u32,
    pub stage: Stage,
    /// Whether it keeps its path while it rests, whoever is short of pages.
    pub is_pin: bool,
    pub work: BranchWork,
    /// Number of extends started, and of times that scores are requested again. Results of an earlier generation are
    /// discarded.
    pub generation: u64,
    /// Leading tokens whose keys and values were computed at least once for this branch.
    pub computed_once: usize,
    /// Leading tokens after which this branch has sampled or scored; the given ones among them are counted in the
    /// metrics.
    counted: usize,
    /// Prompts that were registered when what it shares with them was spared last. See `KvCache::spare`.
    pub spared: u64,
}

/// Where a branch is in the scheduler's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Resting,
    /// It has work and was not admitted yet, or gave way to a more urgent one.
    Waiting,
    Running,
    /// It was admitted, then preempted: it gave its own pages to others.
    Preempted,
}

/// The keys and values that a branch holds. Its tokens and uniforms do not depend on it.
#[derive(Clone, Copy)]
pub(super) enum KvHold {
    /// None: when it runs, its tokens are matched with the prefix tree, and the rest is computed.
    Nothing,
    Path(Lease),
    Swapped(Swapped),
}

/// A preempted branch whose own keys and values, and state, are in host memory.
#[derive(Clone, Copy)]
pub(super) struct Swapped {
    /// The leased segment at whose end its own tokens begin.
    pub before: SegmentId,
    /// Position up to which host memory has its keys and values.
    pub computed: u32,
    /// Position from which it has those of layers with a window.
    pub passed: u32,
    /// Bytes that they fill there.
    pub bytes: usize,
}

/// A branch's claim on its path in the prefix tree.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub segment: SegmentId,
    /// The segment is open and this branch is its only writer. Otherwise others may end there too, and it must be
    /// forked before tokens are appended.
    pub own: bool,
    /// This branch has run on it; false for a fork that only keeps its parent's path.
    pub used: bool,
}

pub(super) enum BranchWork {
    Idle,
    Sample(Box<SamplingState>),
    Score(Box<ScoringState>),
    Values(Box<ValuesState>),
}

/// What a form allows in the place of a token, or that it takes too much work to find.
pub(super) type FormMask = Result<Arc<StateMask>, FormLimit>;

pub(super) struct SamplingState {
    /// Their `begin` is the first position that this extend samples.
    pub rules: SamplingRules,
    pub uniforms: UniformKey,
    pub events: EventSender,
    /// Length of the branch at which the extend ends at the latest.
    pub limit: usize,
    pub in_flight: InFlight,
    /// Those of the tokens that are kept. Behind them the path may have forced tokens whose records are awaited.
    pub records: TokenRecords,
    /// Whether they have confidence left; `None`: nothing ends by it.
    pub confidence: Option<ConfidenceWindow>,
    /// What the form of the sample, if it has one, allows at the positions behind those with records: at all that are
    /// requested, and at those of forced tokens that the path has already.
    pub masks: VecDeque<FormMask>,
    /// The token that ended it and is not kept.
    pub stop_token: Option<SampledToken>,
    /// As `Finish::routes`.
    pub routes: Option<TokenRoutes>,
    /// As `Finish::weights`.
    pub weights: Vec<WeightSpan>,
    /// As `Finish::adapters`.
    pub adapters: Vec<AdapterSpan>,
    pub text: BranchText,
}

/// Tokens of one branch that were requested and not collected.
#[derive(Clone, Copy, Default)]
pub(super) struct InFlight {
    pub tokens: usize,
    /// Index of the newest one among the requests of the step submitted last.
    pub request: u32,
}

pub(super) struct ScoringState {
    pub events: EventSender,
    /// First position that is scored. The tokens are at the branch's end already.
    pub begin: usize,
    /// Number of tokens that are collected, requested, or scored by requests of others; `records` holds those
    /// collected.
    pub requested: usize,
    pub scores: WantedScores,
    pub records: TokenRecords,
    /// As `Finish::weights`.
    pub weights: Vec<WeightSpan>,
    /// As `Finish::adapters`.
    pub adapters: Vec<AdapterSpan>,
    /// Empty until the end.
    pub text: BranchText,
}

/// What a scoring branch needs to know of its tokens.
pub(super) enum WantedScores {
    /// Their log-probabilities under the model, and so many of the likeliest tokens in each one's place. Branches with
    /// the same path share them.
    Model { tops: usize },
    /// Their records as an extend by these rules, which begins with the first of them, would have sampled them. No
    /// other branch can take them over, nor does this one.
    AsSampled {
        rules: Box<SamplingRules>,
        /// The form of the rules, if they have one.
        form: Option<ScoredForm>,
    },
}

/// The form of tokens that are scored as if they were sampled in it.
pub(super) struct ScoredForm {
    /// What it allows at the positions from the first one on whose score is not collected, as far as it was asked for.
    pub masks: VecDeque<Arc<StateMask>>,
    /// The state at the position behind those.
    pub state: FormState,
}

impl SamplingState {
    /// The first position whose record is not collected.
    pub fn next(&self) -> usize {
        self.rules.begin + self.records.len()
    }

    /// The first position that is not requested.
    pub fn requested(&self) -> usize {
        self.next() + self.in_flight.tokens
    }

    /// What the form allows at `position`; `None`: there is none, or it is not known yet.
    pub fn mask_at(&self, position: usize) -> Option<&FormMask> {
        self.masks.get(position.checked_sub(self.next())?)
    }

    /// The tokens that may be sampled at `position`, but for those that are banned: none where the form is beyond its
    /// limit.
    pub fn allowed_at(&self, position: usize, facts: &EngineFacts) -> Allowed {
        match self.mask_at(position) {
            Some(Err(_)) => Allowed::none(facts.vocab),
            Some(Ok(mask)) => self.rules.allowed_under(Some(mask), facts),
            None => self.rules.allowed_under(None, facts),
        }
    }
}

impl ScoringState {
    /// Nothing is scored of the tokens from `begin` on.
    pub fn new(events: EventSender, begin: usize, scores: WantedScores, text: BranchText) -> Self {
        let (records, weights, adapters) = (TokenRecords::default(), Vec::new(), Vec::new());
        ScoringState { events, begin, requested: 0, scores, records, weights, adapters, text }
    }

    /// The first position whose score is not collected.
    pub fn next(&self) -> usize {
        self.begin + self.records.len()
    }

    /// Lends the form that the tokens are scored in, if it is one that is `wanted`, until
    /// [`put_form`](Self::put_form).
    pub fn lend_form(&mut self, wanted: impl FnOnce(&mut ScoredForm) -> bool) -> Option<ScoredForm> {
        match &mut self.scores {
            WantedScores::AsSampled { form, .. } => form.take_if(wanted),
            WantedScores::Model { .. } => None,
        }
    }

    /// Puts back what [`lend_form`](Self::lend_form) has lent.
    pub fn put_form(&mut self, lent: ScoredForm) {
        if let WantedScores::AsSampled { form, .. } = &mut self.scores {
            *form = Some(lent);
        }
    }

    /// What the form allows at `position`; `None`: there is none, or it is not known yet.
    pub fn mask_at(&self, position: usize) -> Option<&Arc<StateMask>> {
        match &self.scores {
            WantedScores::AsSampled { form: Some(form), .. } => form.masks.get(position.checked_sub(self.next())?),
            WantedScores::AsSampled { form: None, .. } | WantedScores::Model { .. } => None,
        }
    }

    /// How many of the likeliest tokens a score of another branch must have for this one to take it over; `None`: it
    /// takes over none.
    pub fn shared_tops(&self) -> Option<usize> {
        match &self.scores {
            WantedScores::Model { tops } => Some(*tops),
            WantedScores::AsSampled { .. } => None,
        }
    }

    /// The distribution whose likeliest tokens, and ranks, its scores have.
    pub fn top_of(&self) -> Distribution {
        match &self.scores {
            WantedScores::Model { .. } => Distribution::Model,
            WantedScores::AsSampled { rules, .. } => rules.params.top_of(),
        }
    }

    /// Adds the score that another branch has computed of `token` by `versions`, which is at `next`; it has at least
    /// `tops` likeliest tokens.
    pub fn take_over(&mut self, token: TokenId, score: &TokenScore, tops: usize, versions: Versions) {
        let TokenScore { logprob, rank, top } = score;
        let scored = SampledToken { rank: *rank, top: top[..tops].to_vec(), ..SampledToken::of(token, *logprob) };
        self.add(scored, versions);
    }

    /// Adds the score of the token at `next`, which follows from `versions`.
    pub fn add(&mut self, scored: SampledToken, versions: Versions) {
        versions.note(&mut self.weights, &mut self.adapters, self.records.len());
        let forced = match &mut self.scores {
            WantedScores::AsSampled { rules, form: Some(form) } => {
                let mask = form.masks.pop_front();
                mask.is_some_and(|mask| rules.was_forced(&mask, scored.token))
            }
            WantedScores::AsSampled { form: None, .. } | WantedScores::Model { .. } => false,
        };
        self.records.push(SampledToken { forced, ..scored });
        self.requested = self.requested.max(self.records.len());
    }
}

/// The positions of a branch that the next steps must compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeededPositions {
    /// Leading tokens that may be matched with the prefix tree, as only the last one's logits are needed. At most the
    /// known ones.
    pub match_upto: usize,
    /// First position whose logits or values are needed. Of a scoring branch, others may compute those of some later
    /// positions.
    pub logits_from: usize,
    /// End of the positions to compute.
    pub end: usize,
}

impl Branch {
    /// A root that comes after all roots made before.
    #[cfg(test)]
    pub fn root(id: BranchId, tokens: Vec<TokenId>) -> Self {
        Branch::at_rest(QueueKey { priority: Priority::default(), order: id, branch: id }, TokenPath::new(tokens))
    }

    /// A branch without work. `place`: where it queues once it gets some.
    pub fn at_rest(place: QueueKey, tokens: TokenPath) -> Self {
        Branch {
            id: place.branch,
            priority: place.priority,
            order: place.order,
            tokens,
            hold: KvHold::Nothing,
            unshared_pages: 0,
            stage: Stage::Resting,
            is_pin: false,
            work: BranchWork::Idle,
            generation: 0,
            computed_once: 0,
            counted: 0,
            spared: 0,
        }
    }

    /// Its place in the queue.
    pub fn key(&self) -> QueueKey {
        QueueKey { priority: self.priority, order: self.order, branch: self.id }
    }

    /// A branch that continues where this one ends. The caller must retain its lease, if it has one.
    pub fn fork(&mut self, id: BranchId) -> Self {
        let hold = self.lease().map(|lease| KvHold::Path(Lease { own: false, used: false, ..lease }));
        Branch {
            hold: hold.unwrap_or(KvHold::Nothing),
            computed_once: self.computed_once,
            ..Branch::at_rest(QueueKey { branch: id, ..self.key() }, self.tokens.fork())
        }
    }

    /// Its lease on the whole path.
    pub fn lease(&self) -> Option<Lease> {
        match self.hold {
            KvHold::Path(lease) => Some(lease),
            KvHold::Nothing | KvHold::Swapped(_) => None,
        }
    }

    /// Last segment of the part of its path that it keeps in the prefix tree, if any.
    pub fn kept(&self) -> Option<SegmentId> {
        match self.hold {
            KvHold::Nothing => None,
            KvHold::Path(lease) => Some(lease.segment),
            KvHold::Swapped(swapped) => Some(swapped.before),
        }
    }

    pub fn rests(&self) -> bool {
        matches!(self.work, BranchWork::Idle)
    }

    /// Number of leading tokens that are computed as they were given: those before its work began, and those that are
    /// scored, without the last one; or those up to the last one whose values are asked for.
    pub fn given(&self) -> usize {
        match &self.work {
            BranchWork::Idle => self.tokens.len(),
            BranchWork::Sample(sampling) => sampling.rules.begin,
            BranchWork::Score(_) => self.tokens.len() - 1,
            BranchWork::Values(values) => values.end(),
        }
    }

    /// `None` if nothing is to be computed: it rests, or all that it needs is requested.
    pub fn need(&self) -> Option<NeededPositions> {
        let known = self.tokens.len();
        match &self.work {
            BranchWork::Idle => None,
            // Behind the position that is sampled next the path may have forced tokens, whose records are requested,
            // too. Nothing is sampled behind the last token that the limit allows.
            BranchWork::Sample(sampling) => {
                let logits_from = sampling.requested() - 1;
                let end = known.max(sampling.requested()).min(sampling.limit - 1);
                (logits_from < end).then(|| NeededPositions { match_upto: known.min(end), logits_from, end })
            }
            // The last token is not computed: only its own probability is needed.
            BranchWork::Score(scoring) => {
                let requested = scoring.begin + scoring.requested;
                (requested < known).then(|| NeededPositions {
                    match_upto: known - 1,
                    logits_from: requested - 1,
                    end: known - 1,
                })
            }
            // The row of the last position is computed, too: the values are its own.
            BranchWork::Values(values) => {
                let logits_from = values.missing().next()? as usize;
                Some(NeededPositions { match_upto: values.end(), logits_from, end: values.end() })
            }
        }
    }

    /// Begins to sample or to score.
    pub fn begin(&mut self, work: BranchWork) {
        self.generation += 1;
        self.work = work;
    }

    /// Records that its next sample or probability was submitted as request number `request` of a step, in the row at
    /// `position`.
    pub fn note_requested(&mut self, position: usize, request: u32) {
        self.computed_once = self.computed_once.max(position + 1);
        match &mut self.work {
            BranchWork::Idle => {}
            BranchWork::Sample(sampling) => {
                sampling.in_flight = InFlight { tokens: sampling.in_flight.tokens + 1, request }
            }
            // Those before it are collected or in flight, too, its own or of others.
            BranchWork::Score(scoring) => scoring.requested = position + 2 - scoring.begin,
            BranchWork::Values(values) => values.note_requested(token_path::position(position)),
        }
    }

    /// Samples, scores and values that were submitted and not collected; of scores also those that others compute for
    /// it before its own last one.
    pub fn in_flight(&self) -> usize {
        match &self.work {
            BranchWork::Sample(sampling) => sampling.in_flight.tokens,
            BranchWork::Score(scoring) => scoring.requested - scoring.records.len(),
            BranchWork::Values(values) => values.requested().count(),
            BranchWork::Idle => 0,
        }
    }

    /// Whether the token at `position` was given, not sampled. A token that is not known yet is being sampled.
    pub fn is_given(&self, position: usize) -> bool {
        position < self.tokens.len() && !self.tokens.is_sampled(position)
    }

    /// Number of given tokens up to `position` that this branch needs for the first time.
    pub fn count_given(&mut self, position: usize) -> u64 {
        let new = self.counted..(position + 1).max(self.counted);
        self.counted = new.end;
        self.tokens.given_in(new) as u64
    }

    /// Ends the work with `reason` and sends the event.
    pub fn finish(&mut self, reason: FinishReason) {
        self.take_back_forced();
        let is_in_form = self.tokens.is_in_form();
        self.tokens.end_extend();
        if reason.is_cut() {
            self.take_back_unscored();
        }
        let ended = std::mem::replace(&mut self.work, BranchWork::Idle);
        let (events, begin, text, recorded) = match ended {
            BranchWork::Idle => return,
            BranchWork::Sample(sampling) => {
                let SamplingState { events, rules, records, stop_token, weights, adapters, routes, text, .. } =
                    *sampling;
                let form_ended = rules.params.form.is_some() && !is_in_form;
                let recorded =
                    Finish { records, stop_token, weights, adapters, routes, form_ended, ..Finish::empty(reason) };
                (events, rules.begin, text, recorded)
            }
            BranchWork::Score(scoring) => {
                let ScoringState { events, begin, records, weights, adapters, mut text, .. } = *scoring;
                for &token in &*self.tokens.slice(begin..self.tokens.len()) {
                    text.push(token, false);
                }
                (events, begin, text, Finish { records, weights, adapters, ..Finish::empty(reason) })
            }
            BranchWork::Values(values) => {
                let (begin, (events, mut text, values)) = (values.begin, values.into_end());
                for &token in &*self.tokens.slice(begin..self.tokens.len()) {
                    text.push(token, false);
                }
                (events, begin, text, Finish { values, ..Finish::empty(reason) })
            }
        };
        let tokens = self.tokens.slice(begin..self.tokens.len()).into_owned();
        let last = recorded.stop_token.as_ref().map(|stop| stop.logprob);
        let logprob = recorded.logprobs().iter().copied().chain(last).map(f64::from).sum();
        let goes_on = recorded.reason.is_cut();
        let finish = Finish { tokens, text: text.finish(goes_on), logprob, ..recorded };
        events.send(Event::Finished { id: self.id, finish });
    }

    /// Ends the work with an error and sends the event.
    pub fn fail(&mut self, error: Error) {
        self.take_back_forced();
        self.tokens.end_extend();
        if self.is_pin {
            log::warn!("the prefix of branch {} is not pinned: {error}", self.id);
        } else {
            self.take_back_unscored();
        }
        let events = match std::mem::replace(&mut self.work, BranchWork::Idle) {
            BranchWork::Idle => return,
            BranchWork::Sample(sampling) => sampling.events,
            BranchWork::Score(scoring) => scoring.events,
            BranchWork::Values(values) => values.events,
        };
        events.send(Event::Failed { id: self.id, error });
    }

    /// Requests all scores and values again that are not collected, as a score that another branch was to compute did
    /// not come, or what was computed is given up.
    pub fn request_again(&mut self) {
        match &mut self.work {
            BranchWork::Score(scoring) => scoring.requested = scoring.records.len(),
            BranchWork::Values(values) => values.request_again(),
            BranchWork::Sample(_) | BranchWork::Idle => return,
        }
        self.generation += 1;
    }

    /// Requests all values again, as weights or an adapter have changed: those of an extend follow from the same ones.
    pub fn restart_values(&mut self) {
        if let BranchWork::Values(values) = &mut self.work {
            values.restart();
            self.generation += 1;
        }
    }

    /// Removes given tokens that were not scored yet from the branch.
    fn take_back_unscored(&mut self) {
        match &self.work {
            BranchWork::Score(scoring) => self.tokens.take_back(scoring.next()),
            BranchWork::Values(values) => self.tokens.take_back(values.kept_end(self.tokens.len())),
            BranchWork::Sample(_) | BranchWork::Idle => {}
        }
    }

    /// Whether it asks for values and has all of them.
    pub fn has_all_values(&self) -> bool {
        matches!(&self.work, BranchWork::Values(values) if values.is_complete())
    }

    /// Removes forced tokens whose records are not collected from the branch, whose extend is about to end.
    pub fn take_back_forced(&mut self) {
        if let BranchWork::Sample(sampling) = &self.work {
            self.tokens.take_back(sampling.next());
        }
    }

    /// Whether its next step must be late: which tokens it may sample depends on its form, or on tokens that are still
    /// in flight.
    pub fn samples_late(&self) -> bool {
        match &self.work {
            BranchWork::Sample(sampling) => sampling.rules.looks_back(),
            BranchWork::Score(_) | BranchWork::Values(_) | BranchWork::Idle => self.is_in_form(),
        }
    }

    /// Whether it knows tokens that it samples and whose records are not requested: forced ones, from the second of a
    /// run on.
    pub fn knows_unrequested(&self) -> bool {
        matches!(&self.work, BranchWork::Sample(sampling) if self.tokens.len() > sampling.requested())
    }

    /// Whether it samples, or scores, in a form.
    pub fn is_in_form(&self) -> bool {
        match &self.work {
            BranchWork::Sample(sampling) => sampling.rules.params.form.is_some(),
            BranchWork::Score(scoring) => matches!(scoring.scores, WantedScores::AsSampled { form: Some(_), .. }),
            BranchWork::Values(_) | BranchWork::Idle => false,
        }
    }

    /// Whether the result of a request of this generation is one that it waits for.
    pub fn awaits(&self, generation: u64) -> bool {
        self.generation == generation && !self.rests()
    }
}
