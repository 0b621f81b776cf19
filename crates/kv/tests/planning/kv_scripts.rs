//! The prefix tree against a naive model: random scripts of everything that can be done to it, its integrity checked
//! after each step, and a mock device memory that shows whether every branch would read what it wrote.

use std::collections::HashMap;

use offshoot_core::dice::Dice;
use offshoot_core::ids::{AdapterVersion, PageId, SegmentId, TokenId, WeightVersion};
use offshoot_kv::{
    AdapterChange, CacheSalt, KvSlot, Origin, PageGroups, PagePool, PathStart, PathTokens, PrefixTree, Reach,
    TokenScore, Usage, Window,
};

use crate::full::some_or_full;

/// What one lease must keep: the tokens of its context, whether it may grow, how far it is computed, and the token that
/// its last slot waits for.
#[derive(Clone)]
struct Lease {
    segment: SegmentId,
    tokens: Vec<TokenId>,
    /// For each token what it is computed with, and that of those to come.
    origins: Vec<Origin>,
    origin: Origin,
    may_grow: bool,
    computed: usize,
    pending: Option<TokenId>,
    /// First row that will be computed for it though others have computed it.
    again: Option<u32>,
}

impl Lease {
    fn push(&mut self, tokens: &[TokenId]) {
        self.tokens.extend_from_slice(tokens);
        self.origins.resize(self.tokens.len(), self.origin);
    }

    /// Its tokens, a pending one included, each with what it is computed with.
    fn text(&self) -> Text {
        let mut whole = self.clone();
        whole.push(self.pending.as_slice());
        whole.tokens.into_iter().zip(whole.origins).collect()
    }
}

type Text = Vec<(TokenId, Origin)>;

/// The tree, the model of it, and a memory in which each slot holds the whole text up to its token (as keys and values
/// do), and what each token of it was computed with.
struct Script {
    tree: PrefixTree,
    pool: PagePool,
    dice: Dice,
    leases: Vec<Lease>,
    memory: HashMap<(PageId, u32), Text>,
    /// Pages freed behind windows of branches, and of prompts.
    freed_behind: usize,
    freed_behind_prompts: usize,
    /// Scores that were kept, and that were found.
    scored: usize,
    found: usize,
    /// Values that were kept, and that were found of texts.
    valued: usize,
    values_found: usize,
}

impl Script {
    fn new(seed: u64, page_tokens: u32, pages: usize, groups: PageGroups) -> Self {
        Self {
            tree: PrefixTree::with_groups(page_tokens, groups).laying_ahead(1 + seed as u32 % 30),
            pool: PagePool::new(pages),
            dice: Dice::new(seed),
            leases: Vec::new(),
            memory: HashMap::new(),
            freed_behind: 0,
            freed_behind_prompts: 0,
            scored: 0,
            found: 0,
            valued: 0,
            values_found: 0,
        }
    }

    fn step(&mut self) {
        match self.dice.within(0, 99) {
            0..16 => self.admit(),
            16..20 => self.admit_adapted(),
            20..35 => self.fork(),
            35..45 => self.fork_at(),
            45..54 => self.append(),
            54..59 => self.draw(),
            59..65 => self.free_behind(),
            65..67 => self.free_behind_prompts(),
            67..77 => self.compute(),
            77..82 => self.score(),
            82..85 => self.value(),
            85..87 => self.retain(),
            87..94 => _ = self.release(),
            94..98 => self.drop(),
            _ => self.evict(),
        }
        self.check();
        self.check_scores();
        self.check_values();
    }

    /// Few tokens and many repeats, so that prompts share, split and meet sampled text.
    fn text(&mut self, longest: u32) -> Vec<TokenId> {
        (0..self.dice.within(0, longest)).map(|_| TokenId(self.dice.within(0, 1))).collect()
    }

    /// One of a few.
    fn origin(&mut self) -> Origin {
        let weights = WeightVersion(self.dice.within(0, 1).into());
        let salt = self.dice.one_in(4).then_some(CacheSalt([1; 16]));
        Origin { weights, adapter: self.adapter(), salt }
    }

    fn adapter(&mut self) -> Option<AdapterVersion> {
        self.dice.one_in(3).then(|| AdapterVersion(self.dice.within(0, 1).into()))
    }

    fn any(&mut self) -> Option<usize> {
        let all: Vec<usize> = (0..self.leases.len()).collect();
        (!all.is_empty()).then(|| self.dice.pick(&all))
    }

    fn admit(&mut self) {
        let (mut tokens, mut origin) = (Vec::new(), self.origin());
        if let Some(at) = self.any().filter(|_| self.dice.one_in(2)) {
            tokens = self.leases[at].tokens.clone();
            if self.dice.one_in(2) {
                origin = self.leases[at].origins.first().copied().unwrap_or(origin);
            }
        }
        let start = PathStart::Root(origin);
        tokens.truncate(self.dice.within(0, 60) as usize);
        tokens.extend(self.text(40));
        let (free, (known, computed)) = (self.pool.free(), self.tree.known(start, &tokens));
        let alone = self.alone();
        let shared = self.tree.shared_with_one(&alone, start, &tokens);
        let again = self.dice.one_in(4).then(|| self.dice.within(0, 99)).filter(|&row| (row as usize) < tokens.len());
        match self.tree.admit_behind(&mut self.pool, start, &tokens, again.unwrap_or(u32::MAX)) {
            Ok(segment) => {
                if again.is_none() {
                    let stay = self.alone().pages() + shared;
                    assert!(stay >= alone.pages(), "more pages stay than the prompt was said to share");
                    assert_eq!(self.tree.computed(segment), computed, "what is known says how much is computed");
                }
                assert!(self.tree.known(start, &tokens).0 as usize == tokens.len(), "a prompt is known once admitted");
                let computed = self.tree.computed(segment) as usize;
                let origins = vec![origin; tokens.len()];
                let lease = Lease { segment, tokens, origins, origin, may_grow: false, computed, pending: None, again };
                self.leases.push(lease);
            }
            Err(short) => {
                assert!(short.needed > free);
                assert_eq!(self.tree.known(start, &tokens).0, known, "what fails changes nothing");
            }
        }
    }

    /// A prompt that goes on behind a path, with other adapters. It is looked for from the path's end or from the root.
    fn admit_adapted(&mut self) {
        let Some(at) = self.any() else { return };
        self.end_draw(self.leases[at].segment);
        let (path, mut adapter, new) = (self.leases[at].clone(), self.adapter(), self.text(20));
        let mut whole = path.text();
        for token in new {
            whole.push((token, path.origin.with_adapter(adapter)));
            adapter = if self.dice.one_in(4) { self.adapter() } else { adapter };
        }
        let Some(&(_, first)) = whole.first() else { return };
        let from = if self.dice.one_in(2) { path.tokens.len() } else { 0 };
        let start = match whole.get(from) {
            Some(&(_, next)) if from > 0 => PathStart::Adapted(path.segment, next.adapter),
            Some(_) => PathStart::Root(first),
            None => PathStart::Behind(path.segment),
        };
        let (tokens, origins): (Vec<TokenId>, Vec<Origin>) = whole.into_iter().unzip();
        let pairs = origins[from..].windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]);
        let changes: Vec<AdapterChange> =
            pairs.map(|(at, pair)| AdapterChange { at: at + 1, adapter: pair[1].adapter }).collect();
        let rest = PathTokens { tokens: &tokens[from..], changes: &changes };
        let (free, known) = (self.pool.free(), self.tree.known(start, rest));
        match self.tree.admit_behind(&mut self.pool, start, rest, u32::MAX) {
            Ok(segment) => {
                assert_eq!(self.tree.computed(segment), known.1, "what is known says how much is computed");
                assert_eq!(self.tree.known(start, rest).0 as usize, tokens.len());
                let (origin, computed) = (self.tree.origin(segment), known.1 as usize);
                let (may_grow, pending, again) = (false, None, None);
                self.leases.push(Lease { segment, tokens, origins, origin, may_grow, computed, pending, again });
            }
            Err(short) => {
                assert!(short.needed > free);
                assert_eq!(self.tree.known(start, rest), known, "what fails changes nothing");
            }
        }
    }

    fn fork(&mut self) {
        let Some(at) = self.any() else { return };
        self.end_draw(self.leases[at].segment);
        let (parent, mut origin) = (self.leases[at].segment, self.leases[at].origin);
        let segment = match self.dice.one_in(3) {
            true => {
                origin = origin.with_adapter(self.adapter());
                self.tree.fork_with(parent, origin.adapter)
            }
            false => self.tree.fork(parent),
        };
        if !self.tree.tokens_of(self.leases[at].segment).is_empty() {
            self.seal(self.leases[at].segment);
        }
        let branch = Lease { segment, origin, may_grow: true, again: None, ..self.leases[at].clone() };
        self.leases.push(branch);
    }

    fn fork_at(&mut self) {
        let Some(at) = self.any() else { return };
        self.end_draw(self.leases[at].segment);
        let Lease { segment: old, tokens, origins, origin, computed, .. } = self.leases[at].clone();
        let end = u32::try_from(tokens.len()).unwrap();
        let lacks = self.tree.path(old).into_iter().any(|id| self.tree.passed(id) > self.tree.first_position(id));
        let position = if lacks { end } else { self.dice.within(0, end) };
        let segment = self.tree.fork_at(&mut self.pool, old, position);
        if position as usize == tokens.len() && !self.tree.tokens_of(old).is_empty() {
            self.seal(old);
        }
        let tokens = tokens[..position as usize].to_vec();
        let (origins, computed) = (origins[..position as usize].to_vec(), computed.min(tokens.len()));
        let branch = Lease { segment, tokens, origins, origin, may_grow: true, computed, pending: None, again: None };
        self.leases.push(branch);
    }

    fn seal(&mut self, segment: SegmentId) {
        self.each(segment, |lease| lease.may_grow = false);
    }

    fn each(&mut self, segment: SegmentId, change: impl Fn(&mut Lease)) {
        self.leases.iter_mut().filter(|l| l.segment == segment).for_each(change);
    }

    fn append(&mut self) {
        let open: Vec<_> = self.leases.iter().filter(|l| l.may_grow).map(|l| l.segment).collect();
        if open.is_empty() {
            return;
        }
        let (segment, new) = (self.dice.pick(&open), self.text(20));
        self.end_draw(segment);
        let (free, end) = (self.pool.free(), self.tree.end(segment));
        match self.tree.append(&mut self.pool, segment, &new) {
            Ok(()) => self.each(segment, |lease| lease.push(&new)),
            Err(short) => assert!(short.needed > free && self.tree.end(segment) == end, "what fails changes nothing"),
        }
    }

    /// A slot for a token that nobody knows yet.
    fn draw(&mut self) {
        let open: Vec<_> = self.leases.iter().filter(|l| l.may_grow).map(|l| l.segment).collect();
        if open.is_empty() {
            return;
        }
        let (segment, token) = (self.dice.pick(&open), TokenId(self.dice.within(0, 1)));
        self.end_draw(segment);
        let (free, end) = (self.pool.free(), self.tree.end(segment));
        match self.tree.append_pending(&mut self.pool, segment) {
            Ok(()) => self.each(segment, |lease| lease.pending = Some(token)),
            Err(short) => assert!(short.needed > free && self.tree.end(segment) == end, "what fails changes nothing"),
        }
    }

    /// The token that the last slot of `segment` waits for is told, or is no part of the branch.
    fn end_draw(&mut self, segment: SegmentId) {
        let Some(token) = self.leases.iter().find(|l| l.segment == segment).and_then(|l| l.pending) else { return };
        match self.dice.one_in(2) {
            true => {
                self.tree.settle(segment, token);
                self.each(segment, |lease| lease.push(&[token]));
            }
            false => {
                self.tree.take_back(&mut self.pool, segment);
                self.each(segment, |lease| lease.computed = lease.computed.min(lease.tokens.len()));
            }
        }
        self.each(segment, |lease| lease.pending = None);
    }

    /// Writes some more of a path into memory, from where it is computed on.
    fn compute(&mut self) {
        let Some(at) = self.any() else { return };
        let segment = self.leases[at].segment;
        let upto = self.dice.within(self.tree.computed(segment), self.tree.end(segment));
        let _ = self.compute_upto(at, upto);
    }

    /// False if there are too few pages.
    fn compute_upto(&mut self, at: usize, upto: u32) -> bool {
        let (segment, text) = (self.leases[at].segment, self.leases[at].text());
        let free = self.pool.free();
        let first = self.tree.computed(segment);
        let laid = match upto <= first + 8 {
            true => self.tree.lay_ahead(&mut self.pool, segment),
            false => self.tree.lay_upto(&mut self.pool, segment, upto),
        };
        if let Err(short) = laid {
            assert!(short.needed > self.pool.free() && self.pool.free() <= free);
            return false;
        }
        let upto = (first..upto).find(|&position| !self.tree.has_slots(segment, position)).unwrap_or(upto);
        for position in first..upto {
            for group in self.tree.groups().iter() {
                let KvSlot { page, slot } = self.tree.slot_in(group, segment, position);
                self.memory.insert((page, slot), text[..=position as usize].to_vec());
            }
        }
        self.tree.mark_computed(segment, upto);
        self.leases[at].computed = upto.max(first) as usize;
        true
    }

    /// The score of a text's last token: as many likeliest tokens as were asked for, each told by the text.
    fn score_of(text: &[(TokenId, Origin)], tops: usize) -> TokenScore {
        let number = |token: TokenId, origin: Origin| {
            let adapter = origin.adapter.map_or(0, |adapter| 1 + adapter.0 as u32);
            token.0 + 2 * (origin.weights.0 as u32) + 4 * adapter + 16 * u32::from(origin.salt.is_some())
        };
        let next = |hash: u32, &(token, origin): &_| hash.wrapping_mul(31).wrapping_add(number(token, origin) + 1);
        let hash = text.iter().fold(1, next);
        let top: Vec<(TokenId, f32)> = (0..tops).map(|rank| (TokenId(hash % 97), rank as f32)).collect();
        TokenScore::new(hash as f32, None, &top)
    }

    /// Scores some tokens of a path, also where that is too soon.
    fn score(&mut self) {
        let Some(at) = self.any() else { return };
        let Lease { segment, tokens, .. } = self.leases[at].clone();
        let known = &self.leases[at].text()[..tokens.len()];
        let first = self.dice.within(0, self.tree.end(segment));
        let (upto, tops) = (first + self.dice.within(0, 12), self.dice.within(0, 3) as usize);
        for position in first..upto {
            let text = &known[..known.len().min(position as usize + 1)];
            let belongs = (1..tokens.len()).contains(&(position as usize))
                && position <= self.tree.computed(segment)
                && self.keeps_scores(segment, position);
            self.tree.keep_score(segment, position, Self::score_of(text, tops));
            let kept = self.tree.scores(segment, position..position + 1, tops).next();
            assert_eq!(kept.is_some(), belongs, "position {position} of {}", tokens.len());
            self.scored += usize::from(belongs);
        }
    }

    /// A scorer's values of a text's last token, told by the text.
    fn values_of(text: &[(TokenId, Origin)]) -> [f32; 2] {
        let TokenScore { logprob, .. } = Self::score_of(text, 0);
        [logprob, -logprob]
    }

    /// Keeps values of some tokens of a path, also where that is too soon.
    fn value(&mut self) {
        let Some(at) = self.any() else { return };
        let Lease { segment, tokens, .. } = self.leases[at].clone();
        let known = &self.leases[at].text()[..tokens.len()];
        let first = self.dice.within(0, self.tree.end(segment));
        for position in first..first + self.dice.within(0, 12) {
            let belongs = (position as usize) < tokens.len()
                && position < self.tree.computed(segment)
                && self.keeps_scores(segment, position);
            let text = &known[..known.len().min(position as usize + 1)];
            self.tree.keep_values(segment, position, &Self::values_of(text));
            let kept = self.tree.kept_values(segment, [position]).count();
            assert_eq!(kept, usize::from(belongs), "position {position} of {}", tokens.len());
            self.valued += usize::from(belongs);
        }
    }

    /// Values are those of their text, whoever has computed them.
    fn check_values(&mut self) {
        for lease in &self.leases {
            let (Lease { segment, tokens, .. }, text) = (lease, lease.text());
            let all = 0..u32::try_from(tokens.len()).unwrap();
            let each: Vec<u32> = all.clone().filter(|&at| self.tree.kept_values(*segment, [at]).count() == 1).collect();
            let found: Vec<(u32, &[f32])> = self.tree.kept_values(*segment, all).collect();
            assert_eq!(found.iter().map(|(at, _)| *at).collect::<Vec<_>>(), each);
            for (at, values) in found {
                assert_eq!(values, Self::values_of(&text[..=at as usize]), "another text's values");
                self.values_found += 1;
            }
        }
    }

    /// Whether the token at `position` has a slot in some group, or gets one.
    fn keeps_scores(&self, segment: SegmentId, position: u32) -> bool {
        let (owner, _) = self.tree.parts(segment, position..position + 1)[0];
        self.tree.groups().with(Reach::All) > 0 || position >= self.tree.passed(owner)
    }

    /// Every score is that of its text, whoever scored it.
    fn check_scores(&mut self) {
        for lease in &self.leases {
            let (Lease { segment, tokens, .. }, text) = (lease, lease.text());
            for position in 1..tokens.len() {
                let at = u32::try_from(position).unwrap();
                for tops in 0..=3 {
                    let Some(score) = self.tree.scores(*segment, at..at + 1, tops).next() else { continue };
                    let expected = Self::score_of(&text[..=position], score.top.len());
                    assert!(*score == expected && score.top.len() >= tops, "another text's score");
                    self.found += 1;
                }
            }
        }
    }

    /// A window has passed some of a branch, which is all computed.
    fn free_behind(&mut self) {
        let open: Vec<usize> = (0..self.leases.len()).filter(|&at| self.leases[at].may_grow).collect();
        if open.is_empty() {
            return;
        }
        let at = self.dice.pick(&open);
        let segment = self.leases[at].segment;
        let Some(window) = self.tree.groups().window() else { return };
        if !self.compute_upto(at, self.tree.end(segment)) || self.tree.computed(segment) < self.tree.end(segment) {
            return;
        }
        let same = self.leases.iter().filter(|lease| lease.segment == segment);
        let again = same.filter_map(|lease| lease.again).min().map_or(u32::MAX, |row| row + 1);
        let upto = window.passed(self.tree.end(segment).saturating_sub(1).min(again));
        if upto > 0 {
            let (free, leased) = (self.pool.free(), self.tree.leased().pages);
            let freed = self.tree.free_behind(&mut self.pool, segment, upto);
            assert_eq!((self.pool.free(), self.tree.leased().pages), (free + freed, leased - freed));
            self.freed_behind += freed;
        }
    }

    /// Pages are short: those of prompts behind the windows of all rows to come are freed.
    fn free_behind_prompts(&mut self) {
        let again: Vec<_> = self.leases.iter().filter_map(|lease| Some((lease.segment, lease.again?))).collect();
        let (free, leased) = (self.pool.free(), self.tree.leased().pages);
        let is_behind = self.tree.is_behind_prompts(&again);
        let freed = self.tree.free_behind_prompts(&mut self.pool, &again);
        assert_eq!((self.pool.free(), self.tree.leased().pages), (free + freed, leased - freed));
        assert!(freed == 0 || is_behind);
        assert!(!self.tree.is_behind_prompts(&again), "all of it is freed at once");
        self.freed_behind_prompts += freed;
    }

    fn retain(&mut self) {
        let Some(at) = self.any() else { return };
        self.tree.retain(self.leases[at].segment);
        self.leases.push(self.leases[at].clone());
    }

    /// What each lease holds alone.
    fn alone(&self) -> Usage {
        let mut alone = Usage::default();
        for lease in &self.leases {
            self.tree.add_alone(&mut alone, lease.segment);
        }
        alone
    }

    fn release(&mut self) -> Option<SegmentId> {
        let at = self.any()?;
        self.end_draw(self.leases[at].segment);
        let lease = self.leases.swap_remove(at);
        let (alone, leased) = (self.tree.add_alone(&mut Usage::default(), lease.segment), self.tree.leased().pages);
        self.tree.release(lease.segment);
        assert_eq!(self.tree.leased().pages + alone, leased, "what a lease alone holds goes with it");
        Some(lease.segment)
    }

    fn drop(&mut self) {
        let Some(segment) = self.release() else { return };
        let free = self.pool.free();
        let freed = self.tree.prune(&mut self.pool, segment);
        assert_eq!(self.pool.free(), free + freed);
    }

    fn evict(&mut self) {
        let wanted = self.dice.within(0, 40) as usize;
        let free = self.pool.free();
        let freed = self.tree.evict(&mut self.pool, wanted);
        assert_eq!(self.pool.free(), free + freed);
        let most = wanted + self.tree.groups().count() - 1;
        assert!(freed <= most, "{freed} pages are freed where {wanted} are wanted");
        if freed < wanted {
            self.check();
            self.check_only_leased_paths_remain();
        }
    }

    fn check_only_leased_paths_remain(&self) {
        let paths = self.leases.iter().flat_map(|l| self.tree.path(l.segment));
        let leased: std::collections::HashSet<_> = paths.collect();
        assert_eq!(self.tree.stats().segments, leased.len());
    }

    fn check(&self) {
        self.tree.check_integrity(&self.pool).unwrap();
        assert_eq!(self.tree.stats().leases, self.leases.len());
        for lease in &self.leases {
            let Lease { segment, ref tokens, computed, pending, again, .. } = *lease;
            assert_eq!(&self.tree.context(segment), tokens, "a pending token is not part of the context");
            assert_eq!(self.tree.is_pending(segment), pending.is_some());
            assert_eq!(self.tree.origin(segment), lease.origin);
            let text = lease.text();
            assert_eq!(self.tree.end(segment) as usize, text.len());
            let now = self.tree.computed(segment);
            assert!(now as usize >= computed, "what was computed stays so while it is leased");
            let next = again.map_or(now, |row| now.min(row + 1));
            let read_from = self.tree.groups().window().map_or(0, |window| window.passed(next));
            for position in 0..now {
                let is_there = self.tree.has_slots(segment, position);
                assert!(is_there || position < read_from, "position {position} is gone, which row {next} reads");
                for group in self.tree.groups().iter() {
                    if !is_there && self.tree.groups().place(group).0 == Reach::Window {
                        continue;
                    }
                    let KvSlot { page, slot } = self.tree.slot_in(group, segment, position);
                    assert_eq!(slot, position % self.tree.page_tokens());
                    let read = &self.memory[&(page, slot)];
                    assert_eq!(read, &text[..=position as usize], "a branch reads another's memory");
                }
            }
        }
    }
}

/// Groups of layers that all lack a window, all have one, or some.
fn groups(seed: u64, page_tokens: u32) -> PageGroups {
    let window = Window { tokens: 1 + seed as u32 % 11, unit: page_tokens };
    match seed / 4 % 4 {
        0 => PageGroups::ONE,
        1 => PageGroups::windowed(window),
        2 => PageGroups::mixed(1, 1, window),
        _ => PageGroups::mixed(2, 3, window),
    }
}

#[test]
fn random_scripts_agree_with_the_model() {
    let (mut freed_behind, mut behind_prompts, mut scored, mut found) = (0, 0, 0, 0);
    let (mut valued, mut values_found) = (0, 0);
    // Every size of pages meets every cut of layers, with few pages and with many.
    for seed in 0..some_or_full(48, 120) {
        let page_tokens = [1, 4, 16, 64][seed as usize % 4];
        let groups = groups(seed, page_tokens);
        let pages = groups.count() * if seed % 3 == 0 { 12 } else { 400 };
        let mut script = Script::new(seed, page_tokens, pages, groups);
        (0..250).for_each(|_| script.step());
        let held: Vec<SegmentId> = script.leases.iter().map(|lease| lease.segment).collect();
        held.into_iter().for_each(|segment| script.end_draw(segment));
        script.leases.drain(..).for_each(|lease| script.tree.release(lease.segment));
        script.tree.evict(&mut script.pool, usize::MAX);
        script.check();
        assert_eq!(script.pool.free(), script.pool.capacity(), "seed {seed}: pages are lost");
        freed_behind += script.freed_behind;
        behind_prompts += script.freed_behind_prompts;
        (scored, found) = (scored + script.scored, found + script.found);
        (valued, values_found) = (valued + script.valued, values_found + script.values_found);
    }
    assert!(scored > 1000 && found > scored, "{scored} scores were kept, {found} found");
    assert!(valued > 300 && values_found > valued, "{valued} values were kept, {values_found} found");
    assert!(freed_behind > 50, "windows passed {freed_behind} pages of branches in all scripts");
    assert!(behind_prompts > 50, "windows passed {behind_prompts} pages of prompts in all scripts");
}
