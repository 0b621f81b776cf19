//! The prefix tree against a naive model: random scripts of everything that can be done to it, its integrity checked
//! after each step, and a mock device memory that shows whether every branch would read what it wrote.

use std::collections::HashMap;

use offshoot_core::dice::Dice;
use offshoot_core::ids::{AdapterVersion, PageId, SegmentId, TokenId, WeightVersion};
use offshoot_fixtures::forests::{ForestShape, grow};
use offshoot_kv::{
    AdapterChange, CacheSalt, KvSlot, MOST_KEPT_TOP, Origin, PageGroups, PagePool, PathStart, PathTokens, PrefixTree,
    Reach, TokenScore, Usage, Window,
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
            82..85 => self.retain(),
            85..94 => _ = self.release(),
            94..98 => self.drop(),
            _ => self.evict(),
        }
        self.check();
        self.check_scores();
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
    }
    assert!(scored > 1000 && found > scored, "{scored} scores were kept, {found} found");
    assert!(freed_behind > 50, "windows passed {freed_behind} pages of branches in all scripts");
    assert!(behind_prompts > 50, "windows passed {behind_prompts} pages of prompts in all scripts");
}

#[test]
fn what_a_window_has_passed_is_freed_and_matched_by_nobody() {
    let eight = PageGroups::windowed(Window { tokens: 8, unit: 4 });
    let (mut tree, mut pool) = (PrefixTree::with_groups(4, eight), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("qqqq")).unwrap();
    tree.lay_ahead(&mut pool, prompt).unwrap();
    let branch = tree.fork(prompt);
    tree.release(prompt);
    let mut text = tokens("qqqq");
    for letter in b'a'..=b'z' {
        tree.append(&mut pool, branch, &[TokenId(letter.into())]).unwrap();
        text.push(TokenId(letter.into()));
        tree.mark_computed(branch, tree.end(branch));
        tree.free_behind(&mut pool, branch, tree.end(branch).saturating_sub(9) / 4 * 4);
        tree.check_integrity(&pool).unwrap();
        assert!(20 - pool.free() <= 1 + 4, "the prompt, and pages for the window and a token more");
        assert!(tree.path(branch).len() <= 3, "what is gone is one segment");
    }
    assert_eq!(tree.context(branch), text);
    assert_eq!(tree.known(PathStart::FIRST, &text), (30, 30), "the window before its end is there");
    assert_eq!(tree.known(PathStart::FIRST, &text[..20]), (4, 4), "the one before position 20 is gone");
    let longer = tree.admit_behind(&mut pool, PathStart::Behind(branch), &tokens("!"), u32::MAX).unwrap();
    assert_eq!(tree.end(longer), 31);
    assert_eq!(tree.within(longer, 29), tree.within(prompt, 4), "what ends where keys are gone is no beginning");
    // Another copy of the beginning is laid out anew, beside what was freed.
    let twin = tree.admit(&mut pool, &text[..20]).unwrap();
    tree.lay_upto(&mut pool, twin, 20).unwrap();
    assert!((0..20).all(|position| tree.has_slots(twin, position)));
    tree.check_integrity(&pool).unwrap();
    tree.mark_computed(twin, 20);
    assert_eq!(tree.known(PathStart::FIRST, &text[..20]), (20, 20));
    [branch, longer, twin].into_iter().for_each(|segment| tree.release(segment));
    assert_eq!(tree.evict(&mut pool, 3), 3);
    assert_eq!(tree.known(PathStart::FIRST, &text[..20]), (20, 20), "the least recently used goes first");
    tree.evict(&mut pool, usize::MAX);
    assert_eq!(pool.free(), 20);
    tree.check_integrity(&pool).unwrap();
}

/// While a prompt is computed, it needs no more pages than are counted for it, however long it is.
#[test]
fn a_prompt_holds_what_is_counted_of_it() {
    const AHEAD: u32 = 10;
    for (all, windowed) in [(0, 1), (1, 1), (2, 3)] {
        for page_tokens in [1, 4, 16] {
            let window = Window { tokens: 13, unit: 2 * page_tokens };
            let groups = PageGroups::mixed(all, windowed, window);
            let end = 400;
            let text: Vec<TokenId> = (0..end).map(TokenId).collect();
            let mut tree = PrefixTree::with_groups(page_tokens, groups).laying_ahead(AHEAD);
            let most = tree.to_admit(0, end);
            let numbers = (13 + 2 * page_tokens + AHEAD).div_ceil(page_tokens) as usize + 1;
            assert_eq!(most, all * end.div_ceil(page_tokens) as usize + windowed * numbers);
            let mut pool = PagePool::new(most);
            let prompt = tree.admit(&mut pool, &text).unwrap();
            let mut usage = Usage::default();
            tree.add_path(&mut usage, prompt);
            assert_eq!(usage.committed(), most, "it takes the rest while it is computed");
            while tree.computed(prompt) < end {
                if tree.lay_ahead(&mut pool, prompt).is_err() {
                    assert!(tree.free_behind_prompts(&mut pool, &[]) > 0);
                    tree.lay_ahead(&mut pool, prompt).unwrap();
                }
                tree.check_integrity(&pool).unwrap();
                let mut usage = Usage::default();
                tree.add_path(&mut usage, prompt);
                assert!(usage.committed() <= most, "{} pages of {most}", usage.committed());
                tree.mark_computed(prompt, end.min(tree.computed(prompt) + AHEAD));
            }
            // Whoever begins at its end finds the window; whoever parts from it before, does not.
            assert_eq!(tree.known(PathStart::FIRST, &text), (end, end));
            assert_eq!(tree.known(PathStart::FIRST, &text[..300]), (0, 0));
            tree.release(prompt);
            tree.evict(&mut pool, usize::MAX);
            assert_eq!(pool.free(), pool.capacity());
        }
    }
}

#[test]
fn grown_forests_are_sound() {
    for shape in ForestShape::ALL {
        for seed in 0..10 {
            let grown = grow(shape, 16, seed);
            let slots = grown.rows.iter().map(|r| grown.tree.slot(r.segment, r.position));
            let distinct: std::collections::HashSet<_> = slots.map(|s| (s.page, s.slot)).collect();
            assert_eq!(distinct.len(), grown.rows.len(), "{shape:?}, seed {seed}");
        }
    }
}

fn tokens(text: &str) -> Vec<TokenId> {
    text.bytes().map(|b| TokenId(b.into())).collect()
}

#[test]
fn a_twin_prompt_shares_what_is_registered_but_not_computed() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(10));
    let first = tree.admit(&mut pool, &tokens("the same header, one")).unwrap();
    let free = pool.free();
    let second = tree.admit(&mut pool, &tokens("the same header, two")).unwrap();
    assert_eq!(free - pool.free(), 1, "only the last four tokens are new");
    assert_eq!(tree.computed(second), 0);
    tree.mark_computed(first, 17);
    assert_eq!(tree.computed(second), 17, "what one computes, both have");
    tree.mark_computed(first, 20);
    assert_eq!((tree.computed(first), tree.computed(second)), (20, 17));
}

#[test]
fn a_fork_in_mid_page_shares_the_page_and_writes_to_its_own() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(10));
    let prompt = tree.admit(&mut pool, &tokens("abcdef")).unwrap();
    let branch = tree.fork_at(&mut pool, prompt, 5);
    tree.append(&mut pool, branch, &tokens("xyz")).unwrap();
    let shared = tree.slot(branch, 4);
    assert_eq!(shared, tree.slot(prompt, 4));
    assert_eq!(pool.holders(shared.page), 2);
    let (own, other) = (tree.slot(branch, 5), tree.slot(prompt, 5));
    assert_eq!((own.slot, other.slot, other.page), (1, 1, shared.page));
    assert_ne!(own.page, other.page);
    assert_eq!(tree.context(branch), tokens("abcdexyz"));
}

#[test]
fn a_prompt_that_goes_on_from_a_running_branch_leaves_its_writer_alone() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("q")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("thought")).unwrap();
    let same = tree.admit(&mut pool, &tokens("qthought")).unwrap();
    let longer = tree.admit(&mut pool, &tokens("qthought and more")).unwrap();
    tree.append(&mut pool, branch, &tokens(" goes on")).unwrap();
    assert_eq!(tree.context(branch), tokens("qthought goes on"));
    assert_eq!(tree.context(same), tokens("qthought"));
    assert_eq!(tree.context(longer), tokens("qthought and more"));
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn prompts_of_other_salts_are_matched_by_their_own_alone() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(40));
    let salted = |salt: Option<CacheSalt>| PathStart::Root(Origin { salt, ..Origin::FIRST });
    let starts = [None, Some(CacheSalt([1; 16])), Some(CacheSalt([2; 16]))].map(salted);
    let [plain, mine, yours] = starts;
    let first = tree.admit(&mut pool, &tokens("question")).unwrap();
    assert_eq!([plain, mine, yours].map(|start| tree.known(start, &tokens("questions")).0), [8, 0, 0]);
    let own = tree.admit_behind(&mut pool, mine, &tokens("question"), u32::MAX).unwrap();
    assert_ne!(first, own);
    let branch = tree.fork(own);
    tree.append(&mut pool, branch, &tokens("because")).unwrap();
    // Splits inside the prompt, and at its very beginning.
    let middle = tree.fork_at(&mut pool, branch, 5);
    tree.append(&mut pool, middle, &tokens("x")).unwrap();
    let begin = tree.fork_at(&mut pool, branch, 0);
    tree.append(&mut pool, begin, &tokens("new")).unwrap();
    tree.check_integrity(&pool).unwrap();
    let lengths = |tree: &PrefixTree, text: &str| starts.map(|start| tree.known(start, &tokens(text)).0);
    assert_eq!(lengths(&tree, "questionbecause"), [8, 15, 0]);
    assert_eq!(lengths(&tree, "questx"), [5, 6, 0]);
    assert_eq!(lengths(&tree, "news"), [0, 3, 0]);
    // Behind a path its own salt holds.
    assert_eq!(tree.known(PathStart::Behind(own), &tokens("be")).0, 10);
    assert_eq!(tree.known(PathStart::Behind(first), &tokens("be")).0, 8);
    [first, own, branch, middle, begin].into_iter().for_each(|id| tree.release(id));
    tree.evict(&mut pool, usize::MAX);
    tree.check_integrity(&pool).unwrap();
    assert_eq!(pool.free(), 40);
}

#[test]
fn what_other_weights_or_another_adapter_computed_is_not_matched() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(40));
    let old = tree.admit(&mut pool, &tokens("question")).unwrap();
    tree.mark_computed(old, 8);
    tree.keep_score(old, 3, TokenScore::new(-1.0, None, &[]));
    let newer = PathStart::Root(Origin { weights: WeightVersion::FIRST.next(), ..Origin::FIRST });
    assert_eq!(tree.known(newer, &tokens("question")), (0, 0));
    let new = tree.admit_behind(&mut pool, newer, &tokens("question"), u32::MAX).unwrap();
    assert_ne!(tree.slot(new, 0).page, tree.slot(old, 0).page);
    assert_eq!((tree.computed(new), tree.scores(new, 3..4, 0).next()), (0, None));
    // An adapter begins where it is first used: what is before is shared.
    let adapters = [None, Some(AdapterVersion(1)), Some(AdapterVersion(2))];
    let branches = adapters.map(|adapter| {
        let branch = tree.fork_with(old, adapter);
        tree.append(&mut pool, branch, &tokens("because")).unwrap();
        assert_eq!(tree.slot(branch, 3), tree.slot(old, 3));
        branch
    });
    let known = adapters.map(|adapter| tree.known_path(PathStart::Adapted(old, adapter), &tokens("become")));
    assert_eq!(known, branches.map(|branch| Some((branch, 11))));
    assert_eq!(tree.known(PathStart::Behind(branches[1]), &tokens("x")).0, 15);
    let adapted = PathStart::Root(Origin::FIRST.with_adapter(adapters[1]));
    assert_eq!(tree.known(adapted, &tokens("question")), (0, 0), "the beginning was computed without it");
    // So it is found from the root.
    let text = tokens("questionbecause");
    let known = [(8, adapters[1]), (8, adapters[2]), (5, adapters[1])].map(|(at, adapter)| {
        let changes = [AdapterChange { at, adapter }];
        tree.known_path(PathStart::FIRST, PathTokens { tokens: &text, changes: &changes })
    });
    assert_eq!(known, [Some((branches[1], 15)), Some((branches[2], 15)), Some((old, 5))]);
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn a_token_that_is_still_drawn_is_matched_by_nobody() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("q")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("now")).unwrap();
    tree.append_pending(&mut pool, branch).unwrap();
    tree.mark_computed(branch, 5);
    assert_eq!(tree.known(PathStart::FIRST, &tokens("qnow!")), (4, 4));
    let twin = tree.admit(&mut pool, &tokens("qnow!")).unwrap();
    tree.check_integrity(&pool).unwrap();
    // The twin split the branch, whose writer goes on undisturbed.
    tree.settle(branch, TokenId(b'!'.into()));
    assert_eq!((tree.context(branch), tree.computed(branch)), (tokens("qnow!"), 5));
    assert_ne!(tree.slot(branch, 4).page, tree.slot(twin, 4).page);
    tree.append_pending(&mut pool, branch).unwrap();
    let free = pool.free();
    tree.take_back(&mut pool, branch);
    assert_eq!((tree.context(branch), pool.free()), (tokens("qnow!"), free), "its page has other tokens");
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn scores_follow_their_tokens() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let score = |logprob: f32, tops: u32| {
        let top: Vec<_> = (0..tops).map(|token| (TokenId(token), -(token as f32))).collect();
        TokenScore::new(logprob, None, &top)
    };
    let found = |tree: &PrefixTree, segment, positions: std::ops::Range<u32>, tops| -> Vec<f32> {
        tree.scores(segment, positions, tops).map(|score| score.logprob).collect()
    };
    let whole = tree.admit(&mut pool, &tokens("a question")).unwrap();
    tree.keep_score(whole, 1, score(-1.0, 0));
    assert!(found(&tree, whole, 1..10, 0).is_empty(), "nothing is computed yet");
    tree.mark_computed(whole, 7);
    (0..10).for_each(|at| tree.keep_score(whole, at, score(-(at as f32), 1)));
    assert_eq!(found(&tree, whole, 1..10, 1), [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0], "up to the next row");
    assert!(found(&tree, whole, 0..10, 0).is_empty(), "nothing is before the first token");
    assert!(found(&tree, whole, 1..10, 2).is_empty());
    // More of the likeliest tokens replace fewer, and fewer do not replace more.
    tree.keep_score(whole, 2, score(-2.5, 3));
    tree.keep_score(whole, 2, score(-2.0, 1));
    assert_eq!(found(&tree, whole, 2..10, 3), [-2.5]);
    tree.keep_score(whole, 3, score(-3.5, MOST_KEPT_TOP as u32 + 1));
    assert_eq!(found(&tree, whole, 3..4, MOST_KEPT_TOP), [-3.5]);
    assert!(found(&tree, whole, 3..4, MOST_KEPT_TOP + 1).is_empty(), "no more than these are kept");
    // A prompt that parts inside splits them.
    let other = tree.admit(&mut pool, &tokens("a quiz")).unwrap();
    assert_eq!(found(&tree, other, 1..6, 0), [-1.0, -2.5, -3.5]);
    assert_eq!(found(&tree, whole, 1..10, 0), [-1.0, -2.5, -3.5, -4.0, -5.0, -6.0, -7.0]);
    tree.check_integrity(&pool).unwrap();
    // They go with their pages.
    [whole, other].into_iter().for_each(|segment| tree.release(segment));
    while pool.free() < 19 {
        assert_eq!(tree.evict(&mut pool, 1), 1);
        tree.check_integrity(&pool).unwrap();
    }
    let again = tree.admit(&mut pool, &tokens("a question")).unwrap();
    assert_eq!(found(&tree, again, 1..10, 0), [-1.0, -2.5, -3.5]);
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn the_first_child_goes_on_in_the_last_page_and_no_other() {
    let (mut tree, mut pool) = (PrefixTree::new(8), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let longer = tree.admit(&mut pool, &tokens("question: why")).unwrap();
    assert_eq!(20 - pool.free(), 2);
    let [first, second, third] = [(); 3].map(|()| tree.fork(longer));
    tree.append(&mut pool, first, &tokens("ab")).unwrap();
    let shared = tree.slot(longer, 12).page;
    assert_eq!((tree.slot(first, 13), 20 - pool.free()), (KvSlot { page: shared, slot: 5 }, 2));
    tree.append(&mut pool, second, &tokens("cd")).unwrap();
    assert_ne!(tree.slot(second, 13).page, shared, "the slots behind the prompt are another's");
    // A grandchild goes on behind its parent, in the page of all three.
    let beneath = tree.fork(first);
    tree.append(&mut pool, beneath, &tokens("e")).unwrap();
    assert_eq!(tree.slot(beneath, 15), KvSlot { page: shared, slot: 7 });
    assert_eq!((pool.holders(shared), tree.leased().pages), (3, 3));
    tree.check_integrity(&pool).unwrap();
    // What a branch gives up, the next one may have.
    [beneath, first].into_iter().for_each(|segment| tree.release(segment));
    assert_eq!(tree.prune(&mut pool, beneath), 0, "the page is still the prompt's");
    tree.append(&mut pool, third, &tokens("fghi")).unwrap();
    assert_eq!((tree.slot(third, 13).page, 20 - pool.free()), (shared, 4));
    // Whole pages are copied to one that stands apart.
    let apart = tree.fork(prompt);
    tree.append_apart(&mut pool, apart, &tokens("xyz"), tree.end(apart)).unwrap();
    let late = tree.fork(tree.parent(third).unwrap());
    tree.append_apart(&mut pool, late, &tokens("xyz"), tree.end(late)).unwrap();
    assert_eq!(pool.holders(tree.slot(late, 13).page), 1);
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn a_prompt_goes_on_where_another_ends_in_mid_page() {
    let (mut tree, mut pool) = (PrefixTree::new(8), PagePool::new(20));
    // Each is the one before and three tokens more: one row of pages for all.
    let text: Vec<TokenId> = (0..60).map(TokenId).collect();
    for end in (3..=60).step_by(3) {
        tree.admit(&mut pool, &text[..end]).unwrap();
        assert_eq!(20 - pool.free(), end.div_ceil(8));
        tree.check_integrity(&pool).unwrap();
    }
    // One that leaves them in mid-page has a page of its own there.
    let other = tree.admit(&mut pool, &[&text[..30], &[TokenId(99)]].concat()).unwrap();
    assert_eq!((20 - pool.free(), tree.slot(other, 30).slot), (9, 6));
}

/// Tokens compared while all of `prompts` are admitted, and admitted again.
fn compared(prompts: &[Vec<TokenId>]) -> u64 {
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let (mut tree, mut pool) = (PrefixTree::new(16), PagePool::new(tokens / 16 + prompts.len()));
    for prompt in prompts.iter().chain(prompts) {
        tree.admit(&mut pool, prompt).unwrap();
    }
    tree.check_integrity(&pool).unwrap();
    tree.compared()
}

#[test]
fn prompts_are_matched_in_time_linear_in_their_tokens() {
    let number = |n: u32| vec![TokenId(n % 600), TokenId(n / 600)];
    let equal = vec![(0..1000).map(TokenId).collect::<Vec<_>>(); 200];
    let different: Vec<_> = (0..200_000).map(number).collect();
    let one_token: Vec<_> = (0..200_000).map(|n| vec![TokenId(n)]).collect();
    let beginnings: Vec<Vec<TokenId>> = (1..=600).map(|end| (0..end).map(TokenId).collect()).collect();
    let backwards: Vec<_> = beginnings.iter().rev().cloned().collect();
    let empty = vec![Vec::new(); 100];
    for prompts in [equal, different, one_token, beginnings, backwards, empty] {
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        // Each once or twice, and one comparison for each segment of a path; a segment has a token.
        let most = 4 * (tokens + prompts.len()) as u64;
        let compared = compared(&prompts);
        assert!(compared <= most, "{compared} comparisons for {} prompts of {tokens} tokens", prompts.len());
    }
}

#[test]
fn siblings_alike_are_not_looked_at_by_what_goes_on_behind_one_of_them() {
    const SIBLINGS: usize = 2000;
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(5 * SIBLINGS));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let siblings: Vec<_> = (0..SIBLINGS).map(|_| tree.fork(prompt)).collect();
    for &sibling in &siblings {
        tree.append(&mut pool, sibling, &tokens("because")).unwrap();
    }
    let mut ends = Vec::new();
    for &sibling in &siblings {
        let twins =
            [(); 3].map(|()| tree.admit_behind(&mut pool, PathStart::Behind(sibling), &tokens("!"), u32::MAX).unwrap());
        assert_eq!(twins, [twins[0]; 3], "what is given the same behind one of them is shared");
        assert_eq!(tree.context(twins[0]), tokens("questionbecause!"));
        ends.push(twins[0]);
    }
    assert!(ends.windows(2).all(|pair| pair[0] != pair[1]), "each goes on in its own path");
    tree.check_integrity(&pool).unwrap();
    assert!(tree.compared() <= 6 * SIBLINGS as u64, "{} comparisons for {SIBLINGS} siblings", tree.compared());
}

#[test]
fn pages_in_use_are_counted_once() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("because")).unwrap();
    let mut usage = Usage::default();
    assert_eq!(tree.gain(&usage, PathStart::FIRST, &tokens("questionbecause"), 15), 4, "nothing is in use");
    tree.add_path(&mut usage, branch);
    assert_eq!((usage.pages(), tree.leased().pages), (4, 4));
    // A third of the way into the branch's second page.
    assert_eq!(tree.gain(&usage, PathStart::FIRST, &tokens("questionbecame"), 14), 1);
    assert_eq!(tree.gain_after(&usage, prompt, 17), 3);
    let other = tree.admit(&mut pool, &tokens("questionbecame")).unwrap();
    tree.add_new_path(&mut usage, other, u32::MAX, 1);
    assert_eq!((usage.pages(), tree.leased().pages), (5, 5));
}

#[test]
fn released_thoughts_are_found_again_until_they_are_evicted() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("because")).unwrap();
    tree.mark_computed(branch, 15);
    tree.release(branch);
    assert_eq!(tree.known(PathStart::FIRST, &tokens("questionbecome")), (11, 11));
    // Its last page goes first.
    assert_eq!(tree.evict(&mut pool, 1), 1);
    assert_eq!((tree.known(PathStart::FIRST, &tokens("questionbecause")), tree.stats().tokens), ((12, 12), 12));
    assert_eq!(tree.evict(&mut pool, 1), 1);
    assert_eq!(tree.known(PathStart::FIRST, &tokens("questionbecome")), (8, 8));
}

#[test]
fn where_one_page_is_wanted_a_long_prompt_loses_one_page() {
    let prompt: Vec<TokenId> = (0..100_000).map(TokenId).collect();
    let (mut tree, mut pool) = (PrefixTree::new(16), PagePool::new(7000));
    let first = tree.admit(&mut pool, &prompt).unwrap();
    tree.mark_computed(first, 100_000);
    // Two go on in mid-page behind a part of it; one of them is still leased.
    let [leased, cached] = [7, 9].map(|last| [&prompt[..50_007], &[TokenId(last); 40]].concat());
    let leased = tree.admit(&mut pool, &leased).unwrap();
    let cached = tree.admit(&mut pool, &cached).unwrap();
    [first, cached].into_iter().for_each(|segment| tree.release(segment));
    let known = |tree: &PrefixTree| tree.known(PathStart::FIRST, &prompt).0;
    // The one that was never computed goes first, page by page.
    for pages_left in (0..3).rev() {
        assert_eq!((tree.evict(&mut pool, 1), known(&tree)), (1, 100_000), "{pages_left} pages are left of it");
        tree.check_integrity(&pool).unwrap();
    }
    for wanted in [1, 1, 10, 1000] {
        let (free, before) = (pool.free(), known(&tree));
        assert_eq!(tree.evict(&mut pool, wanted), wanted);
        assert_eq!(pool.free(), free + wanted);
        assert_eq!(
            known(&tree) as usize,
            (before as usize).div_ceil(16) * 16 - 16 * wanted,
            "the rest is still matched"
        );
        assert_eq!(tree.known(PathStart::FIRST, &prompt).1, known(&tree), "and computed");
        tree.check_integrity(&pool).unwrap();
    }
    // Matched again, it goes on where it was cut.
    let again = tree.admit(&mut pool, &prompt).unwrap();
    assert_eq!(tree.context(again), prompt);
    tree.check_integrity(&pool).unwrap();
    tree.release(again);
    tree.evict(&mut pool, usize::MAX);
    assert_eq!((known(&tree), tree.end(leased)), (50_007, 50_047), "what is leased stays");
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn eviction_takes_the_uncomputed_first_then_the_least_recently_used() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let [old, new, never] = ["aaaa", "bbbb", "cccc"].map(|text| tree.admit(&mut pool, &tokens(text)).unwrap());
    tree.mark_computed(old, 4);
    tree.mark_computed(new, 4);
    [old, new, never].into_iter().for_each(|segment| tree.release(segment));
    let again = tree.admit(&mut pool, &tokens("aaaa")).unwrap();
    tree.release(again);
    let known = |tree: &PrefixTree| ["aaaa", "bbbb", "cccc"].map(|text| tree.known(PathStart::FIRST, &tokens(text)).0);
    assert_eq!(tree.evict(&mut pool, 1), 1);
    assert_eq!(known(&tree), [4, 4, 0]);
    assert_eq!(tree.evict(&mut pool, 1), 1);
    assert_eq!(known(&tree), [4, 0, 0]);
}

#[test]
fn dropping_a_thought_frees_its_own_pages_and_keeps_its_siblings() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let [kept, pruned] = [(); 2].map(|()| tree.fork(prompt));
    tree.append(&mut pool, kept, &tokens("good")).unwrap();
    tree.append(&mut pool, pruned, &tokens("a bad one")).unwrap();
    tree.release(pruned);
    assert_eq!(tree.prune(&mut pool, pruned), 3);
    assert_eq!(tree.prune(&mut pool, kept), 0, "a leased thought stays");
    assert_eq!(tree.context(kept), tokens("questiongood"));
}

#[test]
#[should_panic(expected = "is sealed")]
fn a_forked_branch_cannot_grow() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(4));
    let prompt = tree.admit(&mut pool, &tokens("q")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("a")).unwrap();
    tree.fork(branch);
    let _ = tree.append(&mut pool, branch, &tokens("b"));
}
